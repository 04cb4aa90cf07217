"""Tokens of a campaign over HTTPS: who has one, what the disk holds, and what is refused."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from campaign_world import plan_of
from cases import each_case
from secagg_cohort import stream

from fedtally.base import archive
from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.key_files import create_key_files
from fedtally.campaign.transports.https import tokens
from fedtally.campaign.transports.https.tokens import TOKENS, Tokens, digest_of
from fedtally.cli.app import run
from fedtally.errors import InvalidInputError, UnreadableFileError

TOKEN = "a token of the operator's own"
DIGEST = digest_of(TOKEN)
WHOLE = f"fedtally-tokens/1\nada = {DIGEST}\nend\n"


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    """Write the file of a campaign's tokens."""
    place = folder / TOKENS
    place.write_text(text, encoding="latin-1")
    place.chmod(mode)
    return place


def deaf(_: str) -> None:
    raise AssertionError("nothing went wrong, and somebody was warned")


def test_a_token_names_its_client_and_no_other_text_does(tmp_path: Path) -> None:
    made = tokens.mint(tmp_path, 20, stream("tokens"))
    known = Tokens(tmp_path, deaf)
    assert {known.name_of(token) for token in made.values()} == made.keys()
    assert len({*made, *made.values()}) == 40
    name, token = next(iter(made.items()))
    for other in ("", token[:-1], token + "A", token.upper(), name, digest_of(token), "\udcff"):
        assert known.name_of(other) is None


def test_a_token_of_another_campaign_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    here, there = (tokens.mint(tmp_path / name, 1, stream(name)) for name in "ab")
    assert here.keys() != there.keys()
    assert all(Tokens(tmp_path / "a", deaf).name_of(token) is None for token in there.values())


def test_the_disk_holds_digests_alone_and_nobody_else_reads_them(tmp_path: Path) -> None:
    made = tokens.mint(tmp_path, 3, stream("tokens")) | tokens.add(tmp_path, ["ada"], stream("a"))
    place = tmp_path / TOKENS
    assert place.stat().st_mode & 0o777 == 0o600
    text = place.read_text()
    assert not any(token.removeprefix("fedtally_")[:8] in text for token in made.values())
    assert text.splitlines()[1:-1] == [f"{n} = {digest_of(made[n])}" for n in sorted(made)]
    assert not any(token in repr(Tokens(tmp_path, deaf)) for token in made.values())
    assert [path.name for path in tmp_path.iterdir()] == [TOKENS]


def test_a_name_that_is_drawn_twice_is_drawn_again(tmp_path: Path) -> None:
    drawn = iter([b"n" * 8, b"1" * 32, b"n" * 8, b"2" * 32, b"m" * 8, b"3" * 32])
    first = tokens.mint(tmp_path, 1, lambda _: next(drawn))

    def draw(size: int) -> bytes:
        return next(found for found in drawn if len(found) == size)

    assert first.keys().isdisjoint(tokens.mint(tmp_path, 1, draw))


REFUSED = {
    "cut off in a digest": (WHOLE[:60], 0o600, "is cut off or no file of tokens"),
    "cut off between lines": (WHOLE[:-4], 0o600, "is cut off or no file of tokens"),
    "cut off in the last line": (WHOLE[:-1], 0o600, "is cut off or no file of tokens"),
    "empty": ("", 0o600, "is cut off or no file of tokens"),
    "of another version": (WHOLE.replace("/1", "/2"), 0o600, "no file of tokens"),
    "a name twice": (
        WHOLE.replace("end", f"ada = {digest_of('b')}\nend"),
        0o600,
        "line 3 of .* has the name of another line once more",
    ),
    "a token twice": (
        WHOLE.replace("end", f"ben = {DIGEST}\nend"),
        0o600,
        "line 3 of .* has the token of another name once more",
    ),
    "no digest": (WHOLE.replace(DIGEST[-1:] + "\n", "\n", 1), 0o600, "line 2 of .* is not NAME ="),
    "a name that is none": (WHOLE.replace("ada", ".."), 0o600, "line 2 of .* is not NAME ="),
    "an empty line": (WHOLE.replace("end", "\nend"), 0o600, "line 3 of .* is not NAME ="),
    "no text": (WHOLE.replace("ada", "\xff"), 0o600, r"cannot read .* \(it is no ASCII text\)"),
    "open to the group": (WHOLE, 0o640, r"is open to others than its owner \(mode 0640\): chmod"),
    "open to all": (WHOLE, 0o602, r"mode 0602"),
}


@each_case(("what", "case"), REFUSED.items())
def test_a_file_that_is_wrong_is_refused_and_the_tokens_of_before_stay(
    tmp_path: Path, what: str, case: tuple[str, int, str]
) -> None:
    text, mode, why = case
    written(tmp_path, WHOLE)
    heard: list[str] = []
    known = Tokens(tmp_path, heard.append)
    written(tmp_path, text, mode)
    with pytest.raises(InvalidInputError, match=why):
        Tokens(tmp_path, deaf)
    known.reload()
    assert known.name_of(TOKEN) == "ada"
    assert len(heard) == 1 and "those of before count" in heard[0]
    # a change of a file that is wrong would make a whole file of half of it
    with pytest.raises(InvalidInputError, match=why):
        tokens.mint(tmp_path, 1, stream("tokens"))
    assert written(tmp_path, text, mode).read_text(encoding="latin-1") == text


def test_a_file_that_is_gone_or_a_folder_keeps_the_tokens_of_before(tmp_path: Path) -> None:
    place = written(tmp_path, WHOLE)
    heard: list[str] = []
    known = Tokens(tmp_path, heard.append)
    place.unlink()
    known.reload()
    # `mint` refuses where clients were asked, so the file comes first
    put_back, anew = heard[-1].index("put the file back"), heard[-1].index("tokens mint")
    assert "has no file 'tokens', so no client could speak" in heard[-1] and put_back < anew
    place.mkdir()
    known.reload()
    assert "cannot read" in heard[-1]
    assert known.name_of(TOKEN) == "ada"


def test_what_was_added_and_revoked_counts_once_it_is_read_again(tmp_path: Path) -> None:
    made = tokens.add(tmp_path, ["ada", "ben"], stream("tokens"))
    known = Tokens(tmp_path, deaf)
    tokens.revoke(tmp_path, ["ada"])
    (late,) = tokens.mint(tmp_path, 1, stream("late")).values()
    assert known.name_of(made["ada"]) == "ada" and known.name_of(late) is None
    known.reload()
    assert known.name_of(made["ada"]) is None
    assert known.name_of(made["ben"]) == "ben" and known.name_of(late) is not None


def test_nothing_is_added_or_revoked_in_part(tmp_path: Path) -> None:
    tokens.add(tmp_path, ["ada"], stream("tokens"))
    before = (tmp_path / TOKENS).read_bytes()
    held = tokens.read(tmp_path)
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: tokens.add(tmp_path, ["ben", "ada"], stream("b")), "ada has a token already"),
        (lambda: tokens.add(tmp_path, ["ben", "a b"], stream("b")), "'a b' is no name of a client"),
        (lambda: tokens.add(tmp_path, ["a" * 65], stream("b")), "is no name of a client"),
        (lambda: tokens.add(tmp_path, [".a"], stream("b")), "'.a' is no name of a client"),
        (lambda: tokens.revoke(tmp_path, ["ada", "ben"]), "no client is called 'ben'"),
        (lambda: tokens.take(tmp_path, {"ada": DIGEST}), "ada has a token already"),
        (lambda: tokens.take(tmp_path, {"ben": held["ada"]}), "ben is that of another name"),
        (
            lambda: tokens.mint(tmp_path, 0, stream("b")),
            "mints 1 to 1,000,000 tokens at once, got 0",
        ),
        (lambda: tokens.mint(tmp_path, 10**6 + 1, stream("b")), "got 1,000,001"),
    ]
    for change, why in refusals:
        with pytest.raises(InvalidInputError, match=why):
            change()
        assert (tmp_path / TOKENS).read_bytes() == before


def test_files_of_tokens_are_for_their_owner_alone(tmp_path: Path) -> None:
    made = tokens.mint(tmp_path, 2, stream("tokens"), tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700
    for name, token in made.items():
        place = tmp_path / "out" / f"{name}.token"
        assert place.stat().st_mode & 0o777 == 0o600
        assert place.read_text() == f"{token}\n"


def test_no_file_is_left_and_no_token_added_where_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "ben.token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidInputError, match=r"cannot write .*ben.token \(File exists\)"):
        tokens.add(tmp_path, ["ada", "ben"], stream("tokens"), out)
    assert [path.name for path in out.iterdir()] == ["ben.token"]
    assert not (tmp_path / TOKENS).exists() and not (tmp_path / "elsewhere").exists()
    with pytest.raises(InvalidInputError, match="cannot write .*none/out"):
        tokens.add(tmp_path, ["ada"], stream("tokens"), tmp_path / "none" / "out")

    # nor where the digests cannot be written
    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "sync", full)
    with pytest.raises(InvalidInputError, match="No space left"):
        tokens.add(tmp_path, ["cleo"], stream("tokens"), out)
    assert [path.name for path in out.iterdir()] == ["ben.token"]


def test_two_commands_at_once_lose_nobody(tmp_path: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow() -> None:
        with tokens.changing(tmp_path) as digests:
            begun.set()
            may_end.wait(20)
            digests["ada"] = DIGEST

    first = threading.Thread(target=slow)
    second = threading.Thread(target=tokens.add, args=(tmp_path, ["ben"], stream("b")))
    first.start()
    assert begun.wait(20)
    second.start()
    second.join(0.1)
    assert second.is_alive()  # it waits
    may_end.set()
    first.join(20), second.join(20)
    assert tokens.read(tmp_path).keys() == {"ada", "ben"}


# ---- the commands ----


@pytest.fixture
def survey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CampaignFolder:
    """A campaign in the working directory."""
    monkeypatch.chdir(tmp_path)
    create_key_files("server.key", "server", stream("server"))
    plan_of(trust=None).save("plan.toml")
    return CampaignFolder.create("survey", "plan.toml", server_key="server.key", mark="mark")


def test_each_command_does_what_it_says(
    survey: CampaignFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(*words: str) -> str:
        assert run(["campaign", "tokens", *words]) == 0
        return capsys.readouterr().out

    lines = asked("mint", "survey", "--count", "2").splitlines()
    made = dict(line.split() for line in lines)
    known = Tokens(survey.path, deaf)
    assert {known.name_of(token) for token in made.values()} == made.keys()
    assert asked("add", "survey", "ada", "--output", "out") == ""
    Path("hashes.txt").write_text(f"ben = {DIGEST}\n")
    asked("import", "survey", "hashes.txt")
    asked("revoke", "survey", *made)
    assert asked("list", "survey").split() == ["ada", "ben"]
    known.reload()
    assert known.name_of(TOKEN) == "ben"
    assert known.name_of(Path("out/ada.token").read_text().strip()) == "ada"


def test_json_has_what_the_screen_has(
    survey: CampaignFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(*words: str) -> dict[str, object]:
        assert run(["campaign", "tokens", *words, "--json"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return dict(json.loads(out))

    (made,) = asked("add", "survey", "ada")["clients"]  # type: ignore[misc, str-unpack]
    assert Tokens(survey.path, deaf).name_of(made["token"]) == made["client"] == "ada"  # type: ignore[index, has-type]
    assert asked("add", "survey", "ben", "-o", "out")["clients"] == [
        {"client": "ben", "token": None}
    ]
    assert asked("list", "survey")["clients"] == ["ada", "ben"]
    assert asked("revoke", "survey", "ben", "ben")["clients"] == ["ben"]


def test_a_process_that_runs_is_named(
    survey: CampaignFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with survey.lock(12345):
        assert run(["campaign", "tokens", "mint", "survey", "--count", "1"]) == 0
    assert "next: kill -HUP 12345, so that" in capsys.readouterr().err
    with survey.lock(12345):
        monkeypatch.setattr("fedtally.campaign.runner._namespace", lambda: "pid:[2]")
        assert run(["campaign", "tokens", "mint", "survey", "--count", "1"]) == 0
    assert "next: kill -HUP 12345 in its container, so that" in capsys.readouterr().err


@each_case(
    ("text", "why"),
    [
        ("ben", "line 1 of hashes.txt is not NAME = DIGEST"),
        (f"ben = {DIGEST}\n\n", "line 2 of hashes.txt is not NAME = DIGEST"),
        (f"ben = {DIGEST.upper()}", "64 lower-case"),
        (f"ben = {DIGEST}\nben = {digest_of('c')}", "has the name of another line once more"),
        ("\xff = ", "is no text"),
    ],
)
def test_lines_that_are_wrong_are_not_taken(
    survey: CampaignFolder, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    Path("hashes.txt").write_bytes(text.encode("latin-1"))
    assert run(["campaign", "tokens", "import", "survey", "hashes.txt"]) == 2
    assert why in " ".join(capsys.readouterr().err.split())
    assert not (survey.path / TOKENS).exists()


def test_who_has_no_campaign_has_no_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["campaign", "tokens", "mint", str(tmp_path), "--count", "1"]) == 2
    assert "fedtally campaign init" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []
    with pytest.raises(UnreadableFileError):
        CampaignFolder.open(tmp_path)


def test_a_campaign_that_lost_its_tokens_gets_no_new_ones_by_mistake(
    survey: CampaignFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device whose token is missing hears 401 after the next reload, and ends for good."""
    Path("hashes.txt").write_text(f"cem = {DIGEST}\n")
    place = survey.path / TOKENS

    def give(*words: str) -> int:
        return run(["campaign", "tokens", words[0], "survey", *words[1:]])

    assert give("add", "ada") == 0
    place.unlink()
    assert give("add", "ada") == 0  # nobody was asked yet
    driver = survey.driver(clock=lambda: 1, random=stream("claim"))
    place.unlink()
    assert give("add", "ada") == 0  # the campaign has begun, and nobody was asked yet
    for number in range(survey.plan.num_clients):
        driver.check_in(f"client {number}", 1)
    driver.tick(1)
    assert survey.status().open
    ways = (("mint", "--count", "1"), ("add", "ben"), ("import", "hashes.txt"))
    for words in ways:
        assert give(*words) == 0  # the tokens are there
    place.unlink()
    for is_db_lost in (False, True):
        if is_db_lost:
            (survey.path / "campaign.db").unlink()
        for words in ways:
            capsys.readouterr()
            assert give(*words) == 2
            said = " ".join(capsys.readouterr().err.split())
            assert f"put {place} back from your backup" in said and "--anew" in said
            assert not place.exists()
    for words in ways:
        assert give(*words, "--anew") == 0
        place.unlink()
