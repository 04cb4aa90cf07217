"""Tasks of DAP: their two files, what binds them, keys and reports."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace

import pytest
from cases import each_case
from dap_world import COLLECTOR, SIZES, TASK_SECONDS, key, make_task

from fedtally.crypto.hpke_aad import SUITE
from fedtally.crypto.keys import RejectedError, Secret
from fedtally.dap.client import make_report, random_bytes
from fedtally.dap.draft18 import (
    BatchMode,
    Extension,
    HpkeConfig,
    HpkeConfigList,
    InputShareAad,
    Interval,
    PlaintextInputShare,
)
from fedtally.dap.sealing import Keyring, choose, config, seal
from fedtally.dap.task import Task, TaskSecret, from_text, to_text
from fedtally.errors import InvalidInputError

SEED = Secret(bytes(range(32)))


# ---- the public file ----


@pytest.mark.parametrize("vdaf", SIZES)
def test_a_public_file_is_read_as_it_was_written(vdaf: str) -> None:
    task = make_task(vdaf)
    again = Task.from_toml(task.to_toml())
    assert again == task
    assert again.id == hashlib.sha256(task.configuration.encode()).digest()
    assert again.prio3.context == b"dap-18" + task.id


def test_a_task_in_bytes() -> None:
    """Worked out by hand from the draft."""
    task = make_task("histogram", info=bytes(range(16)))
    assert task.configuration.encode().hex() == (
        "10000102030405060708090a0b0c0d0e0f"
        f"{len('https://leader.example/'):04x}"
        + b"https://leader.example/".hex()
        + f"{len('https://helper.example/'):04x}"
        + b"https://helper.example/".hex()
        + f"{3600:016x}{3:016x}"
        + "010000"
        + "00000004"
        + "00080000000400000002"
        + "0014"
        + f"00010010{TASK_SECONDS[0] // 3600:016x}{24 * 10:016x}"
    )


def test_equal_parameters_with_other_random_bytes_are_another_task() -> None:
    assert make_task("count", info=bytes(16)).id != make_task("count", info=b"\1" * 16).id


EDITS = [
    ("fedtally-dap-task/1", "fedtally-dap-task/2", "has the schema 'fedtally-dap-task/2'"),
    ("draft = 18", "draft = 9", "id is not the digest"),
    ("draft = 18", "draft = 17", "draft must be 18 or 9, got 17"),
    ("draft = 18", "draft = 9.0", "draft must be an integer"),
    ("precision = 3600", "precision = 1800", "id is not the digest of this task"),
    ("precision = 3600", "precision = 0", "precision"),
    ("precision = 3600", "precision = 7", "start must be a multiple of the precision, 7 s"),
    ("min_batch = 3", "min_batch = 2", "id is not the digest of this task"),
    ("min_batch = 3", "min_batch = 0", "min_batch"),
    ("min_batch = 3", "min_batch = true", "min_batch"),
    ("buckets = 4", "buckets = 5", "id is not the digest of this task"),
    ("buckets = 4", "buckets = 0", "buckets"),
    ("buckets = 4", "", "vdaf lacks buckets"),
    ("buckets = 4", "buckets = 4\nrows = 3", "vdaf has unknown entries rows"),
    ('kind = "histogram"', 'kind = "median"', "must be one of count, sumvec, histogram"),
    ('kind = "histogram"', "kind = 4", "kind must be a text, got int"),
    ('kind = "histogram"', "", "vdaf must be a table with the entry kind"),
    ("https://leader.example/", "leader.example", "leader must be an address as https://"),
    ("https://leader.example/", "https://leader.example/ä", "leader must be an address"),
    ("https://leader.example/", "https:///x", "leader must be an address"),
    ("https://leader.example/", "https://a@leader.example/", "leader must be an address"),
    ("https://leader.example/", "https://leader.example/?x=1", "leader must be an address"),
    ("https://leader.example/", "https://leader.example/#x", "leader must be an address"),
    ("https://helper.example/", "https://LEADER.example", "must have two addresses"),
    ("https://helper.example/", "https://helper.example/x", "id is not the digest"),
    ("[interval]", "[period]", "the file lacks interval"),
    ("[collector]\nid = 1", "[collector]\nid = 256", "id"),
    ("[collector]", "extra = 1\n[collector]", "vdaf has unknown entries extra"),
    ('info = "', 'info = "0', "info must be digits in hexadecimal"),
    ('info = "00', 'info = "', "info must have 16 bytes, got 15"),
    ('id = "', 'id = "A', "an id must be 32 bytes in base64url"),
    ('id = "', "id = 3 # ", "id must be a text, got int"),
    ("= 18", "=", "the file is no TOML"),
]


@each_case(("old", "new", "match"), EDITS)
def test_a_public_file_that_was_changed_is_refused(old: str, new: str, match: str) -> None:
    text = make_task("histogram", info=bytes(16)).to_toml()
    assert old in text
    with pytest.raises(InvalidInputError, match=match):
        Task.from_toml(text.replace(old, new, 1))


def test_an_interval_has_a_time() -> None:
    start, end = TASK_SECONDS
    with pytest.raises(InvalidInputError, match="interval must end after it starts"):
        make_task("count", end=start)
    with pytest.raises(InvalidInputError, match="interval must end after it starts"):
        make_task("count", start=end)
    with pytest.raises(InvalidInputError, match="end must be a multiple"):
        make_task("count", end=end + 1)


def test_what_is_not_known_is_refused() -> None:
    """A configuration of others: extensions are mandatory to support."""
    task = make_task("count")
    of, extension = task.configuration, task.configuration.extensions[0]
    for changed, match in [
        ({"extensions": ()}, "must have the extension task_interval"),
        ({"extensions": (extension, Extension(2, b""))}, "and no other"),
        ({"extensions": (extension, extension)}, "and no other"),
        ({"extensions": (Extension(0, b""), extension)}, "and no other"),
        ({"extensions": (Extension(1, extension.data + b"x"),)}, "1 bytes follow"),
        ({"batch_mode": BatchMode.LEADER_SELECTED}, "batch mode time_interval"),
        ({"batch_config": b"x"}, "batch mode time_interval"),
        ({"vdaf_type": 2}, r"must be one of 1 \(count\), 3 \(sumvec\), 4 \(histogram\), got 2"),
        ({"vdaf_configuration": b"x"}, "1 bytes follow"),
        ({"precision": 0}, "precision"),
        ({"min_batch": 0}, "min_batch"),
        ({"task_info": bytes(15)}, "info must have 16 bytes"),
    ]:
        with pytest.raises(InvalidInputError, match=match):
            Task(replace(of, **changed), task.collector)
    with pytest.raises(RejectedError, match="low order"):
        Task(of, HpkeConfig(1, *SUITE, bytes(32)))


def test_ids_have_one_text() -> None:
    id = bytes(range(32))
    assert from_text(to_text(id), 32) == id
    text = to_text(id)
    for bad in (text + "=", text[:-1] + "9", text[:-1], text + "A", "", "ä" * 43, text[:-1] + " "):
        with pytest.raises(InvalidInputError, match="must be 32 bytes in base64url"):
            from_text(bad, 32)
    assert "-" in to_text(b"\xfb" * 32)  # of URLs, not of mail
    assert from_text(to_text(b"\xfb" * 32), 32) == b"\xfb" * 32


# ---- the secret file ----


def test_the_verification_key_is_the_draft_s() -> None:
    """HKDF (RFC 5869) with the salt of the draft, written out."""
    task = make_task("count")
    extracted = hmac.digest(b"verify_key", bytes(range(32)), "sha256")
    expected = hmac.digest(extracted, task.id + b"\1", "sha256")
    assert TaskSecret(task.id, SEED).verify_key(task) == expected
    other = make_task("count", info=b"\7" * 16)
    assert TaskSecret(other.id, SEED).verify_key(other) != expected


def test_a_secret_file_is_of_one_task() -> None:
    task, other = make_task("count"), make_task("count", info=b"\7" * 16)
    secret = TaskSecret.from_toml(TaskSecret(task.id, SEED).to_toml())
    assert secret == TaskSecret(task.id, SEED)
    with pytest.raises(InvalidInputError, match=f"is of the task {to_text(task.id)}"):
        secret.verify_key(other)


def test_no_file_has_what_the_other_has() -> None:
    task = make_task("count")
    secret = TaskSecret(task.id, SEED)
    seed, derived = bytes(range(32)).hex(), secret.verify_key(task).hex()
    assert seed in secret.to_toml()
    assert seed not in task.to_toml() and derived not in task.to_toml()
    assert seed not in repr(secret) and seed not in repr(task)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("secret/1", "secret/2", "this version reads fedtally-dap-secret/1"),
        ('seed = "00', 'seed = "', "seed must be 64 digits in hexadecimal$"),
        ('seed = "0', 'seed = "g', "seed must be 64 digits in hexadecimal$"),
        ("seed = ", "seed = 3 # ", "seed must be 64 digits in hexadecimal$"),
        ("seed = ", "seeds = ", "the file lacks seed"),
        ('collector = "00', 'collector = "', "collector must have 32 bytes, got 31"),
        ("collector = ", "tokens = ", "the file lacks collector"),
        ('task = "', 'task = "A', "an id must be 32 bytes"),
    ],
)
def test_a_secret_file_that_was_changed_is_refused(old: str, new: str, match: str) -> None:
    text = TaskSecret(make_task("count").id, SEED).to_toml()
    with pytest.raises(InvalidInputError, match=match) as error:
        TaskSecret.from_toml(text.replace(old, new, 1))
    assert "0102030405" not in str(error.value)


# ---- keys ----


def test_a_client_takes_the_first_key_that_it_knows() -> None:
    good = config(3, key(1).public)
    unknown = HpkeConfig(1, 0x0010, 1, 1, b"a key of another curve")
    assert choose(HpkeConfigList((unknown, good, config(4, key(2).public)))) == good
    with pytest.raises(InvalidInputError, match="offers no key"):
        choose(HpkeConfigList((unknown,)))
    with pytest.raises(InvalidInputError, match="two keys of one number"):
        choose(HpkeConfigList((good, HpkeConfig(3, *SUITE, key(2).public))))
    with pytest.raises(RejectedError, match="must be 32 bytes"):
        choose(HpkeConfigList((HpkeConfig(3, *SUITE, b"short"),)))


def test_a_keyring_opens_with_the_key_of_the_number() -> None:
    ring = Keyring({7: key(1), 2: key(2)})
    first, second = ring.configs.configs
    assert (first.id, second.id) == (7, 2)
    assert 7 in ring and 3 not in ring
    for each in (first, second):
        assert ring.open(seal(each, b"share", b"info", b"aad"), b"info", b"aad") == b"share"
    sealed = seal(first, b"share", b"info", b"aad")
    for wrong in (2, 3):
        with pytest.raises(RejectedError):
            ring.open(replace(sealed, config=wrong), b"info", b"aad")
    for bad in ({}, {256: key(1)}, {-1: key(1)}):
        with pytest.raises(InvalidInputError):
            Keyring(bad)


# ---- reports ----


def test_a_report_has_the_shares_and_nothing_else() -> None:
    task, random = make_task("histogram"), bytes(range(144))
    leader, helper = config(1, key(1).public), config(2, key(2).public)
    assert random_bytes(task) == 16 + 128
    report = make_report(
        task, 2, leader=leader, helper=helper, now=TASK_SECONDS[0] + 3599.9, random=random
    )
    assert report.metadata.id == random[:16]
    assert report.metadata.time == task.interval.start
    assert report.metadata.extensions == ()
    public, shares = task.prio3.shard(2, random[:16], random[16:])
    assert report.public_share == public
    aad = InputShareAad(task.id, task.configuration, report.metadata, public).encode()
    for sealed, owner, share, role in [
        (report.leader, key(1), shares[0], b"\2"),
        (report.helper, key(2), shares[1], b"\3"),
    ]:
        info = b"dap-18 input share\1" + role
        plain = owner.open(sealed.key, sealed.payload, info, aad)
        assert PlaintextInputShare.decode(plain) == PlaintextInputShare((), share)
    assert (report.leader.config, report.helper.config) == (1, 2)


def test_a_client_makes_no_report_that_would_be_refused() -> None:
    task = make_task("histogram")
    keys = {"leader": config(1, key(1).public), "helper": config(1, key(1).public)}
    start, end = TASK_SECONDS
    for now in (start - 1, end):
        with pytest.raises(InvalidInputError, match="does not run now"):
            make_report(task, 2, **keys, now=now, random=bytes(144))
    for now in (start, end - 1):
        make_report(task, 2, **keys, now=now, random=bytes(144))
    with pytest.raises(InvalidInputError, match="measurement"):
        make_report(task, 4, **keys, now=start, random=bytes(144))
    with pytest.raises(InvalidInputError, match="random must be 144 bytes, got 143"):
        make_report(task, 2, **keys, now=start, random=bytes(143))


def test_intervals_of_a_task_are_in_its_precision() -> None:
    task = make_task("count")
    assert task.interval == Interval(TASK_SECONDS[0] // 3600, 240)
    assert task.time(TASK_SECONDS[0] + 7199) == task.interval.start + 1
    assert task.collector == COLLECTOR.configs.configs[0]
