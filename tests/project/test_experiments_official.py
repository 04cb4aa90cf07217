"""Official files are read as they are downloaded: tiny ones, in their formats, against plain
counting."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zipfile
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path
from urllib.parse import urlparse

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import official, official_rows, output, populations, recovery

from fedtally.errors import InvalidInputError, UnreadableFileError

TIME = "2010-10-17T01:48:53Z"
SHARD = "c4-train.{:05d}-of-01024.json.gz"
GOWALLA, BRIGHTKITE = "loc-gowalla_totalCheckins.txt", "loc-brightkite_totalCheckins.txt"
BROKEN_CHECKINS = {
    b"": 0,  # a blank line is no row
    b"17\t2010-10-17T01:48:53Z\t40.1": "not five fields",
    b"17\t2010-10-17T01:48:53Z\t40.1\t-100\t5\t6": "not five fields",
    b"17\t2010-10-17T01:48:53Z\t\t-100.0\t5": "no latitude",
    b"17\t2010-10-17T01:48:53Z\t1_0\t-100.0\t5": "no latitude",
    b"17\t2010-10-17T01:48:53Z\tnan\t-100.0\t5": "no latitude",
    b"17\t2010-10-17T01:48:53Z\t40.0\t12,5\t5": "no longitude",
    b"17\t17/10/2010\t40.0\t-100.0\t5": "no time",
    b"\t2010-10-17T01:48:53Z\t40.0\t-100.0\t5": "no user",
    b"\xff\xfe\x00": "not five fields",
    b"17\t2010-10-17T01:48:53Z\t90.5\t-100.0\t5": "not on the Earth",
    b"17\t2010-10-17T01:48:53Z\t1e300\t-100.0\t5": "not on the Earth",
    b"17\t2010-10-17T01:48:53Z\t30.0\t-200.0\t5": "not on the Earth",
}


def read(path: Path, *more: Path) -> official.Official:
    return official.read(official._format_of([path, *more]), [path, *more])


def run(*arguments: object) -> str:
    result = CliRunner().invoke(
        official.command, [str(argument) for argument in arguments], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output


def checkins(points: list[tuple[str, str]]) -> list[bytes]:
    return [
        f"{user}\t{TIME}\t{lat}\t{lon}\t{7 * user}".encode()
        for user, (lat, lon) in enumerate(points)
    ]


def some_points(count: int) -> list[tuple[str, str]]:
    rng = np.random.default_rng(0)
    places = rng.uniform((20, -135), (55, -55), (count, 2))
    return [(f"{latitude:.6f}", f"{longitude:.6f}") for latitude, longitude in places.tolist()]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("zipped", [False, True])
def test_gowalla_counts_what_is_in_the_grid_and_broken_rows_by_reason(
    tmp_path: Path, ending: bytes, zipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(official_rows, "_BLOCK", 64)
    points = [
        *some_points(300),
        ("25.0", "-130.0"),
        ("50.0", "-60.0"),
        ("25.3", "-129.7"),
        ("0", "0"),
    ]
    lines = [*checkins(points), *BROKEN_CHECKINS]
    np.random.default_rng(1).shuffle(lines)
    data = ending.join(lines)  # the last line without an end
    path = tmp_path / (GOWALLA + ".gz" * zipped)
    path.write_bytes(gzip.compress(data) if zipped else data)
    expected: Counter[int] = Counter()
    for lat, lon in points:
        south, west = (Fraction(text) - first for text, first in ((lat, 25), (lon, -130)))
        if 0 <= south <= 25 and 0 <= west <= 70:
            expected[min(int(south * 10), 249) * 700 + min(int(west * 10), 699)] += 1
    found = read(path)
    assert {int(cell): found.weights[cell] for cell in np.flatnonzero(found.weights)} == expected
    assert len(found.weights) == 175_000
    report = found.report
    assert report.dropped == Counter(reason for reason in BROKEN_CHECKINS.values() if reason)
    assert report.clients == expected.total()
    assert report.left_out == {"outside the grid": len(points) - expected.total()}
    assert report.rows == len(points) + len(BROKEN_CHECKINS) - 1


def test_brightkite_is_counted_on_the_cells_of_its_stand_in(tmp_path: Path) -> None:
    points = [
        ("40.7", "-74.0"),
        ("40.7", "-74.0"),
        ("0.0", "0.0"),
        ("10.0", "-127.96875"),
        ("-0.1", "-100.0"),
    ]
    (tmp_path / f"{BRIGHTKITE}.gz").write_bytes(gzip.compress(b"\n".join(checkins(points)) + b"\n"))
    found = read(tmp_path / f"{BRIGHTKITE}.gz")
    # Pixels of 360 / 2048 degrees from the western edge; northwards asinh(tan(latitude)) in units
    # of 2 pi / 2048.
    column, row = (
        int((127.96875 - 74.0) * 2048 / 360),
        int(np.arcsinh(np.tan(np.radians(40.7))) * 1024 / np.pi),
    )
    southern = int(np.arcsinh(np.tan(np.radians(10.0))) * 1024 / np.pi)
    assert {int(cell): found.weights[cell] for cell in np.flatnonzero(found.weights)} == {
        column * 500 + row: 2.0,
        southern: 1.0,
    }
    assert found.report.left_out == {"outside the grid": 2}
    stand_in = output.data_folder(None) / "brightkite_us_grid.npz"
    if stand_in.is_file():
        with np.load(stand_in) as arrays:
            assert np.allclose(arrays["lon_edges"], official_rows.MERIDIANS, rtol=0, atol=1e-12)
            assert np.allclose(arrays["lat_edges"], official_rows.PARALLELS, rtol=0, atol=1e-12)
            assert arrays["counts"].shape == (350, 500)


TWEETS = [
    ("ann", "Good MORNING, good people! http://t.co/x"),
    ("bob", "caf\xe9 tea-time; it's www.tea.org \xa0nice"),
    ("ann", 'He said "hello, world", twice :-)'),
    ("cy", "99 ab ok"),  # no word
    ("bob", "good good good"),
    ("dee", "@ann #good a/b/c (really)*"),
]


def tweet_file() -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for number, (user, tweet) in enumerate(TWEETS):
        writer.writerow(["0", number, "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", user, tweet])
    return text.getvalue().encode("latin-1")


def shares_of_words() -> dict[str, Fraction]:
    """Compute the law by the definition: draw a user, then one of the user's words."""
    held = defaultdict(list)
    for user, tweet in TWEETS:
        for piece in tweet.lower().split():
            word = piece.strip(",.;?!")
            allowed = re.match(r"^[a-z_\@\#\-\;\(\)\*\:\.\'\/]+$", word)
            if len(word) >= 3 and not re.match("http|www", word) and allowed:
                held[user].append(word)
    law: dict[str, Fraction] = defaultdict(Fraction)
    for words in held.values():
        for word in words:
            law[word] += Fraction(1, len(words) * len(held))
    return law


@pytest.mark.parametrize("form", ["csv", "csv.gz", "zip"])
def test_sentiment140_gives_every_user_one_of_the_users_words(tmp_path: Path, form: str) -> None:
    broken = [
        b'"0","1","d","q","no text"',
        b'"0","1","d"quoted","open',
        b'"0","1","d","q","","no user here"',
    ]
    lines = tweet_file().splitlines(keepends=True)
    lines[2:2] = [line + b"\r\n" for line in broken]
    data = b"".join(lines)
    if form == "zip":
        path = tmp_path / "trainingandtestdata.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(
                "testdata.manual.2009.06.14.csv", b'"4","3","d","q","eve","not these words"\n'
            )
            archive.writestr(official.TWEETS, data)
    else:
        path = tmp_path / (official.TWEETS + ".gz" * (form == "csv.gz"))
        path.write_bytes(gzip.compress(data) if form == "csv.gz" else data)
    found, law = read(path), shares_of_words()
    assert "good" in law and "café" not in law and "ab" not in law
    assert sorted(found.weights / found.report.clients) == pytest.approx(
        sorted(map(float, law.values())), abs=1e-15
    )
    # in the order of the file: good, morning
    first_words = found.weights[:2] / found.report.clients
    assert first_words == pytest.approx([float(law["good"]), float(law["morning"])], abs=1e-15)
    assert found.report.clients == 3 and found.report.rows == len(TWEETS) + 3
    assert found.report.dropped == {"not six fields": 2, "no user": 1}
    assert found.report.left_out == {"no word": 1}


def test_an_open_quote_does_not_swallow_the_rows_after_it(tmp_path: Path) -> None:
    path = tmp_path / official.TWEETS
    path.write_bytes(b'"0","1","d","q","amy","an open quote\n' + tweet_file())
    assert read(path).report.clients == 4


URLS = [
    "https://www.example.org/a",
    "http://WWW.example.org/b?c",
    "https://example.org/",
    "https://news.example.org:8080/x",
    "https://m\xfcnchen.example/",
    "https://ann:secret@Ann.example:8080/",
    "https://bob@ann.example:8080/",
    *["https://many.example/"] * 5,
]
BROKEN_DOCUMENTS = {
    b'{"text": "cut sho': "not JSON",
    b"[" * 100_000: "not JSON",
    b'{"text": "\xff", "url": "https://a.example"}': "not JSON",
    b'["https://a.example"]': "no url with a domain",
    b'{"text": "a"}': "no url with a domain",
    b'{"url": null}': "no url with a domain",
    b'{"url": "not an address"}': "no url with a domain",
    b'{"url": "http://[broken/"}': "no url with a domain",
    b'{"url": "http://ann@/"}': "no url with a domain",
    b'{"url": "http://\\ud800.example/"}': "no url with a domain",
}


def shard(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(gzip.compress(b"\n".join(lines) + b"\n"))
    return path


def documents(urls: list[str]) -> list[bytes]:
    return [
        json.dumps({"text": "a, b", "timestamp": "2019-04-25T12:57:54Z", "url": url}).encode()
        for url in urls
    ]


def test_c4_counts_domains_by_their_documents_over_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(official_rows, "_BLOCK", 4)
    monkeypatch.setattr(official_rows, "_MOST_NEW", 4)  # merge often
    rng = np.random.default_rng(0)
    urls = [*URLS, *(f"https://site{site}.example/" for site in rng.zipf(1.5, 300) % 50)]
    paths = [
        shard(tmp_path / SHARD.format(1), [*documents(urls[:200]), *BROKEN_DOCUMENTS]),
        shard(tmp_path / SHARD.format(1023), documents(urls[200:])),
    ]
    found = read(*paths)
    each = Counter(urlparse(url).netloc.lower().split("@")[-1] for url in urls)
    assert each["ann.example:8080"] == 2
    expected = Counter(each.values())
    assert found.weights.tolist() == [expected[number] for number in range(1, max(expected) + 1)]
    assert found.report.clients == len(each) and found.note == "2 of 1,024 shards"
    assert found.report.dropped == Counter(BROKEN_DOCUMENTS.values())
    assert found.report.rows == len(urls) + len(BROKEN_DOCUMENTS)


def test_c4_is_read_of_a_table_of_domains(tmp_path: Path) -> None:
    path = tmp_path / "c4_domains.csv"
    path.write_bytes(
        b'\xef\xbb\xbfdomain,count\r\na.example,3\r\n"b.example",3\r\n\r\nA.example,2\nc.example,'
        b" 1\nd.example,0\ne.example,-2\nf.example,2.5\n,4\ng.example\n\xff.example,1\n"
    )
    found = read(path)
    assert found.weights.tolist() == [1, 0, 1, 0, 1]  # c 1, b 3, a 5
    assert found.report.dropped == {"no count": 4, "no domain": 1, "not two fields": 2}
    tabs = tmp_path / "domains.tsv"
    tabs.write_bytes(b"a.example\t3\nb,b.example\t1\n")
    assert official.read("c4-domains", [tabs]).weights.tolist() == [1, 0, 1]
    tabs.write_bytes(b"a.example\t900000000\n")
    with pytest.raises(InvalidInputError, match="900,000,000 documents"):
        official.read("c4-domains", [tabs])


def test_files_that_end_early_or_do_not_unpack_are_refused(tmp_path: Path) -> None:
    whole = gzip.compress(b"\n".join(checkins(some_points(20_000))))
    path = tmp_path / f"{GOWALLA}.gz"
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    for data in (whole[: len(whole) // 2], whole[:-3], bytes(damaged)):
        path.write_bytes(data)
        with pytest.raises(UnreadableFileError, match=r"beyond row [0-9,]+: .*; download it again"):
            read(path)
    archive = tmp_path / "trainingandtestdata.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(official.TWEETS, tweet_file() * 50)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UnreadableFileError, match="not a zip file"):
        read(archive)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("another.csv", tweet_file())
    with pytest.raises(UnreadableFileError, match=f"it holds no {official.TWEETS}"):
        read(archive)
    with pytest.raises(UnreadableFileError, match="No such file"):
        read(tmp_path / GOWALLA)


def test_files_without_a_row_are_refused(tmp_path: Path) -> None:
    whole = shard(tmp_path / SHARD.format(0), documents(URLS))
    for content in (b"", gzip.compress(b""), gzip.compress(b"\n\n")):
        (tmp_path / SHARD.format(1)).write_bytes(content)
        with pytest.raises(
            UnreadableFileError,
            match=f"{SHARD.format(1)} cannot .*: it has no row; download it again",
        ):
            read(whole, tmp_path / SHARD.format(1))


def test_a_part_of_a_file_is_not_taken_for_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"\n".join(checkins([("40.0", "-100.0")] * 1000))
    (tmp_path / GOWALLA).write_bytes(data[:-10])
    assert populations.load("gowalla", tmp_path).title == "Gowalla (1,000 of 6,442,892 rows)"
    monkeypatch.setitem(official.ROWS, "gowalla", 1000)
    assert not read(tmp_path / GOWALLA).note
    (tmp_path / official.TWEETS).write_bytes(tweet_file())
    assert read(tmp_path / official.TWEETS).note == f"{len(TWEETS)} of 1,600,000 rows"


def test_the_cache_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / GOWALLA).write_bytes(b"\n".join(checkins([("40.0", "-100.0")])))
    refused = CliRunner().invoke(
        official.command, [str(tmp_path / GOWALLA), "--cache", str(tmp_path / GOWALLA)]
    )
    assert refused.exit_code == 2 and "--cache" in refused.output
    with pytest.raises(
        InvalidInputError, match="cannot make the folder .*; choose another --cache"
    ):
        run(tmp_path / GOWALLA, "--cache", tmp_path / GOWALLA / "below")


def test_a_line_without_end_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official, "_LONGEST", 100)
    lines = [
        *checkins([("40.0", "-100.0")]),
        b"x" * 99,
        b"y" * 100,
        b"z" * 1000,
        *checkins([("30.0", "-100.0")]),
    ]
    (tmp_path / GOWALLA).write_bytes(b"\n".join(lines))
    report = read(tmp_path / GOWALLA).report
    assert (report.rows, report.clients, report.dropped) == (
        5,
        2,
        {"too long": 2, "not five fields": 1},
    )


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / GOWALLA
    path.write_bytes(b"no\ncheck-ins\n")
    with pytest.raises(
        InvalidInputError, match="no row of the format gowalla: 2 rows, 2 not five fields"
    ):
        read(path)
    with pytest.raises(InvalidInputError, match="say with --format"):
        run(tmp_path / "notes.txt")
    with pytest.raises(InvalidInputError, match="say with --format"):
        run(path, tmp_path / SHARD.format(0))
    with pytest.raises(InvalidInputError, match="one file"):
        run(path, path)
    with pytest.raises(InvalidInputError, match="different shards"):
        run(tmp_path / SHARD.format(0), tmp_path / SHARD.format(0))


def test_the_command_reports_and_keeps_the_counts_for_the_figures(tmp_path: Path) -> None:
    path = tmp_path / "renamed.txt"
    path.write_bytes(
        b"\n".join([*checkins([("40.0", "-100.0")] * 3), b"broken", *checkins([("0", "0")])])
    )
    folder = tmp_path / "data"
    printed = run(path, "--format", "gowalla", "--cache", folder)
    for line in (
        "rows 5 6,442,892",
        "dropped: not five fields 1 -",
        "left out: outside the grid 1 -",
        "clients 3 -",
    ):
        assert re.search(" +".join(map(re.escape, line.rsplit(" ", 2))), printed)
    kept, found = official.load(folder / "gowalla_official.npz"), official.read("gowalla", [path])
    assert (
        np.array_equal(kept.weights, found.weights)
        and kept[:2] == found[:2]
        and kept.report == found.report
    )
    population = populations.load("gowalla", folder)
    title = "Gowalla (5 of 6,442,892 rows)"
    assert (population.title, population.official, population.num_clients) == (title, True, 17_500)
    assert population.law.max() == 1.0 and len(population.law) == 175_000
    with pytest.raises(UnreadableFileError):
        official.load(path)


def test_populations_prefer_the_official_file_and_name_the_stand_in(tmp_path: Path) -> None:
    np.savez(tmp_path / recovery.TABLES["c4"][0], pmf=np.array([0.5, 0.3, 0.2]))
    stand_in = populations.load("c4", tmp_path)
    assert (stand_in.title, stand_in.official) == ("C4 (stand-in: lognormal surrogate)", False)
    assert stand_in.law.tolist() == [0.5, 0.3, 0.2] and (stand_in.num_clients, stand_in.rows) == (
        15_000,
        5,
    )
    with pytest.raises(ValueError, match="read-only"):
        stand_in.law[0] = 1.0
    shard(tmp_path / SHARD.format(7), documents(URLS))
    populations._load.cache_clear()
    found = populations.load("c4", tmp_path)
    assert (found.title, found.official) == ("C4 (1 of 1,024 shards)", True)
    # example.org, its port 8080 and the umlaut once, www.example.org and ann twice, many.example
    # five times.
    assert found.law.tolist() == [3 / 6, 2 / 6, 0.0, 0.0, 1 / 6]
    assert populations.digest(found.law) != populations.digest(stand_in.law)
    assert populations.digest(found.law) == populations.digest(found.law.copy())


def test_populations_name_both_files_where_there_is_none(tmp_path: Path) -> None:
    for name in populations.NAMES:
        with pytest.raises(InvalidInputError, match="--data") as caught:
            populations.load(name, tmp_path)
        assert official.names(name)[0] in str(caught.value) and recovery.TABLES[name][0] in str(
            caught.value
        )
    with pytest.raises(InvalidInputError, match="one of gowalla"):
        populations.load("gowala", tmp_path)


def test_stand_ins_have_the_papers_domains() -> None:
    folder = output.data_folder(None)
    for name, size in (
        ("gowalla", 175_000),
        ("brightkite", 175_000),
        ("c4", 150_868),
        ("sentiment140", 264_939),
    ):
        if (folder / recovery.TABLES[name][0]).is_file():
            population = populations.load(name)
            assert len(population.law) == size and population.law.sum() == pytest.approx(1.0)
            assert population.official or "stand-in" in population.title
