"""Plans of strings of which nobody has the list: made, saved, run, merged, and lists of words."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import fedtally
from fedtally.answer import screen
from fedtally.answer.answer import Answer
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.server import FrequencyServer
from fedtally.cli.app import run
from fedtally.domain import Names, OpenStrings, Unread
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.plan import Plan
from fedtally.recovery import names as reader
from fedtally.recovery.names import read_names
from fedtally.sketch import CountSketch, Spelling

DOMAIN = OpenStrings(max_length=8, bits=12)
COUNTS = {"tea": 90, "coffee": 70, "milk": 50, "water": 30, "juice": 20, "caf\u00e9": 15}
WORDS = [item for item, count in COUNTS.items() for _ in range(count)]
ASKED = {"domain": DOMAIN, "max_bytes": 300, "allow_rare_names": True}


def told(capsys):
    """Return what a command printed, in one line."""
    printed = capsys.readouterr()
    return " ".join((printed.out + printed.err).split())


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return str(path)


# ---- plans ----


def made_plan(tmp_path, *options):
    """Return the path of a plan that the command made, for hashes of 12 bits."""
    path = tmp_path / "plan.toml"
    asked = ["plan", "--domain", "open", "-o", str(path), "--quiet", "--json", *options]
    assert run(asked) == 0
    found = Plan.load(path)
    domain = OpenStrings(found.domain["max_length"], 12, normalise=found.domain.get("normalise"))
    replace(found, domain=domain.describe()).save(path)
    return str(path)


def test_a_plan_is_made_saved_and_run(tmp_path, words, capsys):
    options = ["--clients", "275", "--max-bytes", "500", "--max-length", "8", "--normalise", "nfc"]
    plan = made_plan(tmp_path, *options, "--allow-rare-names")
    document = json.loads(capsys.readouterr().out)
    agreed = Plan.load(plan)
    assert agreed.domain["normalise"] == "nfc" and agreed.bytes_per_client <= 500
    assert document["plan"]["spelling"] == agreed.to_dict()["spelling"]
    assert document["rare_names"]["counters"] == agreed.vector_length
    assert document["minimax"] is None and document["predicted_linf"] < 0.5
    assert run(["inspect", plan, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["domain"]["max_length"] == 8
    saved = str(tmp_path / "r.fed")
    asked = ["estimate", words, "--plan", plan, "--seed", "1", "--save", saved, "--quiet"]
    assert run(asked) == 2 and "--allow-rare-names" in told(capsys)
    assert run([*asked, "--allow-rare-names", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["estimates"][0]["item"] == "tea"
    assert found["open"]["normalise"] == "nfc"
    # a name asks for the hash of it, in the normal form
    assert run(["query", saved, "cafe\u0301", "--json"]) == 0
    queried = json.loads(capsys.readouterr().out)["estimates"][0]
    assert queried["frequency"] == fedtally.Result.load(saved).frequency("caf\u00e9")
    assert run(["inspect", saved]) == 0 and "spelling" in told(capsys)
    # another plan than that of the options
    assert run([*asked, "--domain", "open", "--max-length", "9", "--allow-rare-names"]) == 2
    assert "the plan is for the domain kind=open" in told(capsys)
    assert run(["simulate", words, "--plan", plan, "--repeats", "1", "--seed", "1"]) == 0
    shown = told(capsys)
    assert "Names met: 100.0% of the strings above" in shown
    assert "over 1 repeat, and at least 100.0%; wrong names: 0" in shown


def test_the_screen_of_a_plan(tmp_path, capsys):
    asked = ["plan", "--clients", "100000", "--domain", "open", "--quiet"]
    assert run([*asked, "--max-bytes", "5kB", "--rounds", "8", "--details"]) == 0
    shown = told(capsys)
    assert "100,000 clients and all strings" in shown
    assert "for 9 of 72 positions of names of up to 64 bytes" in shown
    assert "nothing bounds what the sums show" in shown and "one-hot" not in shown
    for more, message in (
        (["--name-length", "65"], "--name-length must be at most 64, got 65"),
        (["--schedule", "batched:auto"], "--schedule batched:auto is not for an open domain"),
        (["--plot", "x.png"], "--plot is not for an open domain: it draws the error for a list"),
        (["--domain-size", "5"], "--domain-size does not go with --domain: both say"),
    ):
        assert run([*asked, *more]) == 2
        assert message in (shown := told(capsys)), shown
    assert run([*asked, "--max-bytes", "1MB"]) == 0
    assert "of 1,000,000 bytes are used: of more counters" in told(capsys)


def test_a_plan_with_epsilon_counts_the_rows_of_all_parts(tmp_path, capsys):
    options = ["--clients", "100000", "--max-bytes", "32kB", "--epsilon", "4"]
    plan = Plan.load(made_plan(tmp_path, *options))
    document = json.loads(capsys.readouterr().out)
    assert document["rare_names"] is None and document["privacy"]["epsilon"] <= 4
    assert plan.privacy.event.rows == plan.spec.touched > plan.rows


def test_a_plan_decides_the_domain_of_a_run():
    plan = fedtally.estimate(WORDS, seed=1, **ASKED).plan
    again = fedtally.estimate(WORDS, plan=plan, seed=1, allow_rare_names=True)
    assert again.domain == DOMAIN.with_seed(plan.seed)
    named = fedtally.estimate(WORDS, plan=plan, seed=1, domain="open", allow_rare_names=True)
    assert named.plan == plan
    with pytest.raises(InvalidInputError, match="declare the same domain"):
        fedtally.estimate(WORDS, plan=plan, seed=1, domain=OpenStrings(9, 12))


# ---- several plans ----


def test_results_of_two_plans_are_one(tmp_path, capsys):
    parts = [fedtally.estimate(WORDS, seed=seed, **ASKED) for seed in (1, 2)]
    assert parts[0].domain != parts[1].domain  # other hashes
    merged = Answer(parts)
    top = merged.top(4)
    assert [each.item for each in top][:3] == ["tea", "coffee", "milk"]
    for each in top:
        own = [part.frequency(each.item) for part in parts]
        assert each.frequency == pytest.approx(np.mean(own))
        assert each.low < each.frequency < each.high
    assert merged.estimates(["tea"])[0].frequency == top[0].frequency
    # a hash that was not read is in no list: in the other result its string has another hash
    assert not any(isinstance(each.item, Unread) for each in merged.top(100))
    table = merged.to_arrow()  # all that were read, of half a client or more
    assert table["item"].to_pylist()[:4] == [each.item for each in top]
    assert "candidates=none" in repr(merged)
    for number, part in enumerate(parts):
        part.save(tmp_path / f"{number}.fed")
    assert run(["merge", str(tmp_path / "0.fed"), str(tmp_path / "1.fed"), "--query", "milk"]) == 0
    assert "in 2 results; all strings" in told(capsys)
    nobody = "a"  # sorts before all others, and is held by nobody
    parts[0].__dict__["names"] |= {int(parts[0].domain.encode([nobody])[0]): nobody}
    assert [each.item for each in merged.top(4)] == [each.item for each in top]
    assert merged.to_arrow().equals(table) and len(merged) == len(table)
    for part in parts:
        part.__dict__["names"] = {}
    assert merged.top(3) == []


# ---- silos ----


def test_silos_spell_what_their_people_hold():
    people = np.arange(len(WORDS))
    silos = people % 4
    options = {"clients": people, "silos": silos, "seed": 1, **ASKED}
    result = fedtally.estimate(WORDS, **options, people=100)
    assert result.num_silos == 4 and result.num_clients == len(WORDS)
    assert result.top(1)[0].item == "tea"
    # the sums are those of the same people without silos
    plan = result.plan
    alone = replace(plan, people=1, num_clients=len(WORDS), max_round_clients=len(WORDS))
    flat = fedtally.estimate(WORDS, plan=alone, seed=1, allow_rare_names=True)
    assert (flat.sketches[0].vector == result.sketches[0].vector).all()
    # and those of vectors that the silos made themselves
    domain = DOMAIN.with_seed(plan.seed)
    names, ids = Names(domain, WORDS), domain.fingerprints(WORDS)
    vectors = [
        FrequencyClient.of_people(
            plan, ids[silos == silo], people[silos == silo], names=names
        ).contribution(0)
        for silo in range(4)
    ]
    total = np.sum(vectors, axis=0)
    assert total[-1] == len(WORDS) and (total[:-1] == result.sketches[0].vector).all()
    with pytest.raises(InvalidInputError, match="give the names of the ids"):
        FrequencyClient.of_people(plan, ids, people)
    server = FrequencyServer(plan, MemoryBooks())
    assert server._sketch(0, total, 4).num_clients == len(WORDS)


def test_people_count_in_what_sums_of_silos_show():
    people = np.arange(len(WORDS))
    options = {"domain": DOMAIN, "clients": people, "silos": people % 4, "people": 300, "seed": 1}
    plan = fedtally.estimate(WORDS, **options, max_bytes=300).plan
    assert plan.num_clients == 4 < plan.vector_length < len(people)
    # of more bytes no more are taken than have a client for each counter
    assert fedtally.estimate(WORDS, **options, max_bytes=6000).plan.vector_length <= len(people)


@pytest.mark.parametrize("method", ["ideal", "secagg"])
def test_silos_with_privacy(method):
    rng = np.random.default_rng(1)
    result = fedtally.estimate(
        WORDS * 2,
        clients=np.arange(2 * len(WORDS)),
        silos=rng.integers(0, 8, 2 * len(WORDS)),
        people=90,
        domain=DOMAIN,
        max_bytes=4000,
        epsilon=30.0,
        secure_sum=method,
        not_private=True,
        seed=1,
    )
    assert result.plan.privacy.event.rows == result.plan.spec.touched
    assert abs(result.frequency("tea") - 90 / len(WORDS)) < 0.15


# ---- lists of known words ----


def spec_sums(items, counts, words, **changes):
    """Return the sums of one round, the frequencies of their hashes, and the words by hash."""
    asked = {
        "rows": 5,
        "width": 40,
        "schedule": "shared",
        "num_rounds": 1,
        "num_clients": 1000,
        "max_round_clients": 1000,
        "domain": DOMAIN.describe(),
        "max_items": 1,
        "seed": bytes(range(32)),
        "spelling": Spelling(3, 16, 8),
    }
    plan = Plan(**asked | changes)
    strings = OpenStrings(8, 12, plan.seed)
    names, sketch = Names(strings, items), CountSketch(plan.spec, 0)
    sketch.add(names.spell(strings.fingerprints(items), plan.spec.num_positions), np.array(counts))
    found = strings.encode(items).tolist()
    shares = {h: n / sum(counts) for h, n in zip(found, counts, strict=True)}
    listed = {}
    for word in words:
        listed.setdefault(int(strings.encode([word])[0]), []).append(word)
    return [sketch], strings, shares, listed


@pytest.fixture
def unspelled(monkeypatch):
    """Let no name be spelled: only the list can name a hash."""
    monkeypatch.setattr(reader, "_words", lambda *_: [])


def test_words_of_a_list_name_hashes(unspelled):
    items = ["tea", "coffee", "longer than any name that can be read"]
    sums, strings, shares, listed = spec_sums(items, [500, 300, 200], [*items, "cola"])
    found = read_names(sums, strings, shares, words=listed)
    assert sorted(found.values()) == sorted(items)
    assert read_names(sums, strings, shares) == {}


@pytest.mark.parametrize(
    ("listed", "named"),
    [
        (["tea", "coffee"], "tea"),  # a word of the same hash whose symbols do not fit
        (["coffee", "tea"], "tea"),
        (["coffee"], None),
        (["tea", "tea\\x00"], "tea"),  # with a control character it is no name
    ],
)
def test_a_word_must_fit_its_symbols(unspelled, listed, named):
    sums, strings, shares, _ = spec_sums(["tea"], [500], [])
    h = int(strings.encode(["tea"])[0])
    found = read_names(sums, strings, shares, words={h: listed})
    assert found.get(h) == named


def test_of_two_words_that_fit_none_is_given():
    """Two strings of one hash, held as often: each explains half of the scores."""
    [sketch], strings, _, _ = spec_sums(["tea"], [1], [])
    sketch = CountSketch(sketch.spec, 0)
    names = Names(strings, ["tea", "rum"])
    rows = names.spell(strings.fingerprints(["tea", "rum"]), 9)
    h = int(rows[0, 0])
    rows[1, 0], rows[1, 1:] = h, rows[1, 1:] & np.uint64(255) | np.uint64(h << 8)
    sketch.add(rows, np.array([500, 500]))
    assert read_names([sketch], strings, {h: 1.0}, words={h: ["tea", "rum"]}) == {}
    # with one of them in the list, nothing tells that there is another one
    assert read_names([sketch], strings, {h: 1.0}, words={h: ["tea"]}) == {h: "tea"}


def test_a_list_changes_no_frequency(tmp_path, capsys):
    plain = fedtally.estimate(WORDS, seed=1, **ASKED)
    listed = fedtally.estimate(WORDS, seed=1, **ASKED, dictionary=[*COUNTS, "cola"])
    assert set(plain.names.items()) <= set(listed.names.items())
    for one, other in zip(plain.top(20), listed.top(20), strict=True):
        assert (one.frequency, one.low, one.high, one.count) == (
            other.frequency,
            other.low,
            other.high,
            other.count,
        )
    # what was recognised is kept with the result, and no other word is
    listed.save(tmp_path / "r")
    again = fedtally.Result.load(tmp_path / "r")
    assert again.words == listed.words and again.names == listed.names
    assert {"tea", "coffee"} <= set(again.decoded(confidence=0.5).words) <= set(COUNTS)
    later = fedtally.Result.load(tmp_path / "r")
    later.words = ()
    later.recognise([["tea", "caf\u00e9"], ["milk"]])
    assert set(later.words) == {"tea", "caf\u00e9", "milk"} & {
        word for word in COUNTS if int(later.domain.encode([word])[0]) in later._found
    }
    counts = fedtally.estimate(WORDS, seed=1)
    with pytest.raises(InvalidInputError, match="names the hashes of an open domain"):
        counts.recognise([["tea"]])


@pytest.mark.parametrize("form", ["txt", "csv", "csv:word", "parquet:word", "parquet"])
def test_lists_of_all_forms(tmp_path, form):
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    suffix, _, column = form.partition(":")
    path = tmp_path / f"list.{suffix}"
    columns = {column or "item": [*COUNTS, "cola"]} | ({"n": [1] * 7} if column else {})
    if suffix == "txt":
        path.write_text("\n".join([*COUNTS, "cola"]) + "\n", encoding="utf-8")
    else:
        table = pa.table(columns)
        writers = {"csv": pyarrow.csv.write_csv, "parquet": pyarrow.parquet.write_table}
        writers[suffix](table, path)
    listed = fedtally.estimate(
        WORDS, seed=1, **ASKED, dictionary=f"{path}:{column}" if column else path
    )
    assert {"tea", "coffee", "milk"} <= set(listed.names.values())
    assert "cola" not in listed.names.values()


def test_lists_that_cannot_be_used(tmp_path, words, capsys):
    with pytest.raises(UnreadableFileError, match="FILE or FILE:COLUMN"):
        fedtally.estimate(WORDS, **ASKED, dictionary="no.txt")
    with pytest.raises(InvalidInputError, match="dictionary= goes with domain='open'"):
        fedtally.estimate(WORDS, dictionary=words)
    private = {"domain": DOMAIN, "epsilon": 50.0}
    with pytest.raises(InvalidInputError, match="the dictionary is the input itself"):
        fedtally.estimate(words, **private, dictionary=words)
    with pytest.raises(InvalidInputError, match="the dictionary is the input itself"):
        fedtally.estimate(words, **private, dictionary=f"{words}:item")
    asked = ["estimate", words, "--domain", "open", "--epsilon", "1", "--dictionary", words]
    assert run(asked) == 2 and "the dictionary is the input itself" in told(capsys)
    assert run(["estimate", words, "--dictionary", words]) == 2
    said = told(capsys)  # the table of rules, as in Python
    assert "--dictionary goes with --domain open: its names may be in the list" in said
    assert "take an open domain" in said


# ---- the normal form ----


def test_one_text_in_two_forms_is_one_string():
    one, two = "caf\u00e9", "cafe\u0301"
    plain, normal = (OpenStrings(8, 12, bytes(32), form) for form in (None, "nfc"))
    assert plain.encode([one]).tolist() != plain.encode([two]).tolist()
    assert normal.encode([one]).tolist() == normal.encode([two]).tolist()
    assert normal.describe()["normalise"] == "nfc" and "normalise" not in plain.describe()
    assert fedtally.domain.load(normal.describe(), normal.arrays()) == normal != plain
    assert normal.name(two.encode()) is None and normal.name(one.encode()) == one
    with pytest.raises(InvalidInputError, match="normalise must be \"nfc\", got 'nfd'"):
        OpenStrings(normalise="nfd")
    held = [one] * 60 + [two] * 60 + ["tea"] * 80
    asked = ASKED | {"domain": OpenStrings(8, 12, normalise="nfc")}
    result = fedtally.estimate(held, seed=1, **asked)
    assert [(each.item, each.frequency) for each in result.top(2)] == [
        (one, pytest.approx(0.6, abs=0.01)),
        ("tea", pytest.approx(0.4, abs=0.01)),
    ]
    # a client by itself does the same
    vectors = [FrequencyClient(result.plan, asked["domain"], [text]) for text in (one, two)]
    first, second = (each.contribution(0) for each in vectors)
    assert (first == second).all()


@pytest.mark.parametrize(
    "name",
    [
        "\U0001f469\u200d\U0001f4bb",  # an emoji of two, joined
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian, with a non-joiner
        "\u0939\u093f\u0928\u094d\u0926\u0940",  # Hindi, with marks
    ],
)
def test_names_of_all_scripts_are_read(name, capsys):
    domain = OpenStrings(24, 12)
    held = [name] * 150 + ["tea"] * 150
    asked = ASKED | {"domain": domain, "max_bytes": 900}
    result = fedtally.estimate(held, seed=1, **asked)
    assert name in [each.item for each in result.top(2)]
    # joiners are shown as escapes: what a screen cannot show must be told apart
    shown = screen.plain(screen.answer(result, result.top(2)))
    assert ("\\u200" in shown) == ("\u200d" in name or "\u200c" in name)
