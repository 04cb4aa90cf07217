"""Public lists: what a name says is read whole, and what is no list is refused before anything."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedtally
from fedtally.cli.app import run
from fedtally.domain import Dictionary, IntegerSet
from fedtally.domain.columns import as_text
from fedtally.domain.look_alikes import oddities
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.sources import domain_of, of_description, open_list, read_candidates
from fedtally.store import Ledger

ROWS = "v\n" + "a\n" * 60 + "b\n" * 40
PRIVATE: dict[str, Any] = {"item": "v", "epsilon": 4.0}


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\r\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_list_has_one_candidate_a_line(tmp_path: Path, end: str, last: bool, mark: str) -> None:
    words = ["tea ", "\u2028kaffee", "漢字", 'the "real" thing', "{a", "Paris, France"]
    text = f"{mark}{end.join(words)}{end * last}"
    file = written(tmp_path / "words.txt", text)
    assert read_candidates(file) == read_candidates(str(file)) == Dictionary(words)
    assert domain_of(str(file)) == Dictionary(words) and read_candidates(file).public


def packed_by_zstd(content: bytes) -> bytes:
    held: bytes = pa.compress(content, "zstd", asbytes=True)
    return held


@pytest.mark.parametrize(
    ("end", "pack"),
    [
        *[(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)],
        *[(".zst", packed_by_zstd), ("", gzip.compress)],
    ],
)
def test_a_list_may_be_compressed(tmp_path: Path, end: str, pack: Callable[[bytes], bytes]) -> None:
    file = written(tmp_path / f"words.txt{end}", pack("tea\ncafé\n".encode()))
    assert read_candidates(file) == Dictionary(["tea", "café"])
    if end:
        with pytest.raises(UnreadableFileError, match="is no intact"):
            read_candidates(written(tmp_path / f"cut.txt{end}", file.read_bytes()[:-3]))
    table = written(tmp_path / f"t.csv{end}", pack(b"n,word\n1,tea\n2,milk\n"))
    assert read_candidates(f"{table}:word") == Dictionary(["tea", "milk"])


def tables(folder: Path, name: str, words: list[str]) -> list[Path]:
    """Write a table of two columns in each format."""
    table = pa.table({"n": range(len(words)), name: words})
    parquet.write_table(table, folder / "t.parquet")
    feather.write_feather(table, folder / "t.feather")
    lines = [json.dumps({"n": n, name: word}) for n, word in enumerate(words)]
    quoted = ['"{}"'.format(word.replace('"', '""')) for word in words]
    return [
        folder / "t.parquet",
        folder / "t.feather",
        written(folder / "t.jsonl", "\n".join(lines)),
        written(folder / "t.csv", f"n,{name}\n" + "".join(f"0,{word}\n" for word in quoted)),
        written(folder / "t.tsv", f"n\t{name}\r\n" + "".join(f"0\t{w}\r\n" for w in quoted)),
        written(folder / "t.txt", f"n,{name}\n" + "".join(f"0,{word}\n" for word in quoted)),
    ]


def test_a_table_gives_the_column_that_is_named(tmp_path: Path) -> None:
    words = ["tea", "Paris, France", ' "q" ', "007"]
    for path in tables(tmp_path, "word", words):
        for domain in (read_candidates(f"{path}:word"), domain_of(f"{path}:word")):
            assert domain == Dictionary(words), path
        if path.suffix != ".txt":
            with pytest.raises(InvalidInputError, match=r"'n', 'word'.*:COLUMN"):
                read_candidates(path)
        with pytest.raises(InvalidInputError, match=r"has no column 'words'"):
            read_candidates(f"{path}:words")
        with pytest.raises(UnreadableFileError, match="there is no such file"):
            read_candidates(f"{path}x:word")
    for path in tables(tmp_path, "item", words):
        if path.suffix != ".txt":
            assert read_candidates(path) == Dictionary(words), path
    parquet.write_table(pa.table({"code": [3, 5]}), tmp_path / "one.parquet")
    assert read_candidates(tmp_path / "one.parquet") == Dictionary(["3", "5"])


def test_the_first_word_of_a_csv_is_not_taken_for_a_header(tmp_path: Path) -> None:
    file = written(tmp_path / "words.csv", "tea\nmilk\n")
    for read in (read_candidates, open_list, domain_of):
        with pytest.raises(InvalidInputError, match=r"name the column .*:COLUMN.*/words\.txt"):
            read(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "words.txt is empty"),
        (b"a\n\nb\n", "line 2 of .*words.txt is empty"),
        (b"\n", "line 1 of .*words.txt is empty"),
        (b"a\nb\nc\nb\n", "line 4 of .*words.txt repeats line 2, 'b'"),
        (b"a\rb\rb\r", "line 3 of .*words.txt repeats line 2, 'b'"),
        (
            b"a\n\na\n\n\nb\nb\n",
            r"line 2 of .*is empty \(3 in all\); line 3 .* 'a' \(2 in all\); rem",
        ),
        (b"a\nb\n\xff\n", "line 3 of .*words.txt is not UTF-8"),
        ("a\nb\n".encode("utf-16"), "words.txt is no text: .* UTF-16; save it as UTF-8"),
        ("a\nb\n".encode("utf-16-le"), "words.txt is no text: .* UTF-16; save it as UTF-8"),
        ("\ufeffa\n\ufeffb\n".encode(), "line 2 of .* begins with a byte order mark"),
        (b'"a"\n"b"\n', "each line of .* is in quotes, as in a CSV.* FILE:COLUMN"),
        (b'{"v": "a"}\r{"v": "b"}\r', "each line of .* is an object of JSON"),
        (b'["a", "b"]\n', "each line of .* is a list of JSON"),
        (b"item\tn\na\t1\n", "each line of .* holds a tab"),
        (b"PAR1\x15\x04\0", r"is a table: call it \.parquet"),
        (b"ARROW1\0\0", r"is a table: call it \.parquet"),
    ],
)
def test_what_is_no_list_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = written(tmp_path / "words.txt", content)
    with pytest.raises(InvalidInputError, match=message):
        read_candidates(file)


@pytest.mark.parametrize("word", ["PAR1", "PAR1B", "ARROW1"])
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_a_word_may_begin_as_a_format_does(tmp_path: Path, word: str, end: str) -> None:
    words = [word, "tea"] if end else [word]
    file = written(tmp_path / "genes.txt", end.join([*words, ""]) if end else word)
    assert read_candidates(file) == Dictionary(words)
    assert {one.item for one in fedtally.estimate(file, seed=1).top(9)} == set(words)
    table = parquet_of(words, tmp_path / "genes.txt")
    with pytest.raises(UnreadableFileError, match="is a table"):
        read_candidates(table)
    with pytest.raises(UnreadableFileError, match="is a Parquet file"):
        fedtally.estimate(table, seed=1)


def parquet_of(words: list[str], path: Path) -> Path:
    parquet.write_table(pa.table({"item": words}), path)
    return path


def test_ids_in_braces_are_a_list(tmp_path: Path) -> None:
    ids = ["{6B29FC40-CA47-1067-B31D-00DD010662DA}", "{}", "{a}"]
    assert read_candidates(written(tmp_path / "ids.txt", "\n".join(ids))) == Dictionary(ids)


@pytest.mark.parametrize("name", ["t.parquet", "C:\\t.parquet", "a:b:t.parquet"])
@pytest.mark.parametrize("column", ["w", "dc:title", "a:b:c"])
def test_paths_and_columns_of_lists_may_hold_colons(tmp_path: Path, name: str, column: str) -> None:
    path = tmp_path / name
    parquet.write_table(pa.table({column: ["tea", "rice"], "n": [1, 2]}), path)
    assert read_candidates(f"{path}:{column}") == Dictionary(["tea", "rice"])
    assert domain_of(f"{path}:{column}") == Dictionary(["tea", "rice"])
    with pytest.raises(UnreadableFileError, match="no such file"):
        read_candidates(f"{tmp_path / 'none.parquet'}:{column}")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv:w", 'w\n"a\nb"\nc\n', "row 1 of .*t.csv holds a line end"),
        ("t.csv:w", "w,n\na,1\na,2\n", "row 2 of .*t.csv repeats row 1, 'a'"),
        ("t.csv:w", "w,n\na,1\n,2\n", "has rows without a candidate"),
        ("t.csv:w", "w,n\n", "t.csv is empty"),
        ("t.csv:w", "w,n", "t.csv is empty"),
        ("t.csv:w", b"w\n\xe9\n", "is no UTF-8 text: save it as UTF-8"),
        ("t.csv:w", "w;n\na;1\n", r"columns 'w;n': separate them by commas, or by tabs in \.tsv"),
        ("t.json:w", '[{"w": "a"}]', "one object a line"),
        ("t.xlsx", "PK", "is a spreadsheet"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(
    tmp_path: Path, name: str, content: bytes | str, message: str
) -> None:
    written(tmp_path / name.partition(":")[0], content)
    with pytest.raises(InvalidInputError, match=message):
        read_candidates(str(tmp_path / name))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.txt", tmp_path):
        with pytest.raises(UnreadableFileError, match="cannot (be )?read"):
            read_candidates(path)


def test_a_digest_tells_the_list_so_its_lines_may_look_like_anything(tmp_path: Path) -> None:
    words = Dictionary(['"a"', '"b"'])
    file = written(tmp_path / "words.txt", '"a"\n"b"\n')
    assert of_description(words.describe(), file) == words
    table = written(tmp_path / "t.csv", 'w,n\n"""a""",1\n"""b""",2\n')
    assert of_description(words.describe(), f"{table}:w") == words
    with pytest.raises(InvalidInputError, match="holds other candidates"):
        of_description(words.describe(), f"{table}:n")


def test_integers_that_a_caller_lists_are_public(tmp_path: Path) -> None:
    listed = [1, 2, 3]
    private = fedtally.estimate([1, 2, 1], domain=listed, epsilon=1)
    assert private.plan.domain == IntegerSet(listed, public=True).describe()
    assert not fedtally.estimate([1, 2, 1], seed=1).domain.public  # the input's own items are not
    with pytest.raises(InvalidInputError, match="the domain is the input itself"):
        fedtally.estimate(listed, domain=listed, epsilon=1)
    # the plan is found again with the list as a file, in any order
    for content in ("1\n2\n3\n", "3\n1\n2\n"):
        file = written(tmp_path / "plates.txt", content)
        assert of_description(private.plan.domain, file) == private.domain
    with pytest.raises(InvalidInputError, match="holds other candidates"):
        of_description(private.plan.domain, written(tmp_path / "others.txt", "1\n2\n4\n"))
    with pytest.raises(InvalidInputError, match="distinct items of one input"):
        of_description(IntegerSet(listed).describe(), tmp_path / "plates.txt")


BAD_LISTS = {
    "table.csv": "word,n\na,1\nb,2\n",
    "quoted.csv": '"a"\n"b"\n',
    "table.tsv": "word\tn\na\t1\nb\t2\n",
    "list.jsonl": '{"v":"a","n":1}\n{"v":"b","n":2}\n',
    "quoted.txt": '"a"\n"b"\n',
    "cut.txt.gz": gzip.compress(b"a\nb\n")[:-4],
    "latin.txt": "a\né\n".encode("latin-1"),
    "joined.txt": "\ufeffa\n\ufeffb\n".encode(),
    "list.txt.lz4": b"",
}


@pytest.mark.parametrize("name", BAD_LISTS)
def test_a_list_that_is_none_costs_no_budget(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = written(tmp_path / "c.csv", ROWS)
    file = written(tmp_path / name, BAD_LISTS[name])
    books = Ledger.open(str(tmp_path / "books.db"), create=True)
    books.grant("clients", epsilon=9.0, delta=1e-5, time=0)
    before = books.export()
    asked = ["estimate", str(rows), "--domain", str(file), "--epsilon", "4"]
    assert run([*asked, "--ledger", str(tmp_path / "books.db")]) == 2
    assert str(file) in capsys.readouterr().err.replace("\n", "")
    with pytest.raises(InvalidInputError, match=name):
        fedtally.estimate(rows, domain=file, **PRIVATE)
    assert books.export() == before


@pytest.mark.parametrize("name", ["latin.txt", "wide.txt", "empty.txt", "t.csv:w", "cut.txt.gz"])
def test_a_dictionary_that_is_no_list_costs_no_budget(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = {
        "latin.txt": "caf\u00e9\n".encode("latin-1"),
        "wide.txt": "tea\n".encode("utf-16"),
        "empty.txt": b"",
        "t.csv:w": b"v,n\na,1\n",
        "cut.txt.gz": gzip.compress(b"tea\n")[:-4],
    }
    written(tmp_path / name.partition(":")[0], contents[name])
    rows = written(tmp_path / "c.csv", ROWS)
    books = Ledger.open(str(tmp_path / "books.db"), create=True)
    books.grant("clients", epsilon=9.0, delta=1e-5, time=0)
    before = books.export()
    asked = ["estimate", str(rows), "--domain", "open", "--dictionary", f"{tmp_path / name}"]
    assert run([*asked, "--epsilon", "4", "--ledger", str(tmp_path / "books.db")]) == 2
    told = capsys.readouterr().err
    assert name.partition(":")[0] in told and "--text-encoding" not in told
    assert books.export() == before


@pytest.mark.parametrize("content", ["caf\u00e9\n".encode("latin-1"), "tea\n".encode("utf-16")])
def test_a_list_of_another_encoding_names_no_option_of_the_input(
    tmp_path: Path, content: bytes
) -> None:
    file = written(tmp_path / "words.txt", content)
    with pytest.raises(InvalidInputError, match="is no UTF-8 text: save it as UTF-8"):
        list(open_list(file).batches())


def test_a_column_of_the_input_is_the_input(tmp_path: Path) -> None:
    rows = written(tmp_path / "c.csv", "v\na\nb\n")
    with pytest.raises(InvalidInputError, match="the domain is the input itself"):
        fedtally.estimate(rows, domain=f"{rows}:v", **PRIVATE)


def test_a_table_is_a_list_of_candidates_with_epsilon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = written(tmp_path / "c.csv", ROWS)
    table = written(tmp_path / "t.csv", "word,n\na,1\nb,2\n")
    found = fedtally.estimate(rows, domain=f"{table}:word", **PRIVATE)
    assert {each.item for each in found.top(2)} == {"a", "b"}
    assert run(["estimate", str(rows), "--domain", f"{table}:word", "--epsilon", "4"]) == 0
    found.save(tmp_path / "r.fed")
    for asked in (f"{table}:word", str(written(tmp_path / "mac.txt", "a\rb\r"))):
        capsys.readouterr()
        assert run(["query", str(tmp_path / "r.fed"), "--items", asked, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert [each["item"] for each in shown["estimates"]] == ["a", "b"]


# ---- what people do not see ----


@pytest.mark.parametrize(
    ("words", "alike", "hidden", "decomposed"),
    [
        (["a", "b c", "d\te"], None, None, None),
        (["a", "\ufeffa"], (1, ("\ufeffa", "a")), (1, "\ufeffa"), None),
        (
            ["caf\u00e9", "tea", "cafe\u0301"],
            (1, ("cafe\u0301", "caf\u00e9")),
            None,
            (1, "cafe\u0301"),
        ),
        (["x\u200by", "x\u00ady"], (2, ("x\u200by", "x\u00ady")), (2, "x\u200by"), None),
        (["a\u00a0b", "a b"], (1, ("a\u00a0b", "a b")), None, None),
        (["a\x01", "a"], (1, ("a\x01", "a")), (1, "a\x01"), None),
        (["\u0645\u06cc\u200c\u062e", "\U0001f469\u200d\U0001f4bb", "漢字"], None, None, None),
        (["\ufeffa", "b"], None, (1, "\ufeffa"), None),
        (["e\u0301", "b"], None, None, (1, "e\u0301")),
    ],
)
def test_odd_candidates_are_found(
    words: list[str], alike: Any, hidden: Any, decomposed: Any
) -> None:
    found = oddities(as_text(words))
    assert (found.alike, found.hidden, found.decomposed) == (alike, hidden, decomposed)
    # they are found wherever they stand among others, which are many bytes
    others = [f"{n:>07}" for n in range(200_000)]
    assert oddities(as_text([*others, *words])) == found


@given(st.lists(st.text("ae\u0301\u00e9\u200d\ufeff \u00a0", max_size=4), unique=True, min_size=1))
def test_those_that_look_alike_are_counted(words: list[str]) -> None:
    import unicodedata

    def seen(word: str) -> str:
        word = "".join(c for c in word if c not in "\u200d\ufeff").replace("\u00a0", " ")
        return unicodedata.normalize("NFC", word)

    texts = [seen(word) for word in words]
    twins = [
        w
        for w, s in zip(words, texts, strict=True)
        if w != s and (s in words or texts.count(s) > 1)
    ]
    found = oddities(as_text(words)).alike
    assert (0 if found is None else found[0]) == len(twins)
    if found is not None:
        one, other = found[1]
        assert one != other and seen(one) == seen(other)


@pytest.mark.parametrize(
    ("words", "delimiter"),
    [
        (["item,n", "a,1", "b,2"], ","),
        (["item;n", "a;1"], ";"),
        (["Paris, France", "Rome, Italy"], ""),
        (["Paris, France", "Rome"], ""),
        (["40.5,-70", "41,2.5"], ""),
        (["a,b"], ""),
    ],
)
def test_a_list_that_may_be_a_table_is_told(
    tmp_path: Path, words: list[str], delimiter: str
) -> None:
    file = written(tmp_path / "words.txt", "\n".join(words))
    found = fedtally.estimate([words[0]] * 9, domain=file, epsilon=4.0)
    told = [note for note in found.cautions if "FILE:COLUMN" in note]
    assert len(told) == bool(delimiter) and all(f"holds {delimiter!r}" in note for note in told)


def test_candidates_that_look_alike_are_told_with_epsilon(tmp_path: Path) -> None:
    file = written(tmp_path / "words.txt", "café\ncafe\u0301\nb\u200b\n")
    for domain, told in (
        (
            file,
            r"1 candidate looks like another: 'cafe\u0301' and 'caf\xe9' differ by an invisible",
        ),
        (["b", "c\u200b"], "1 candidate holds an invisible sign"),
        (["b", "e\u0301"], "1 candidate is not in the composed form"),
        (["b", "x" * 99 + "\u200b"], "xxx…xxx"),
    ):
        notes = fedtally.estimate(["b"] * 9, domain=domain, epsilon=4.0).cautions
        assert [note for note in notes if told in note], notes


def test_words_of_a_spreadsheet_s_file_are_told(tmp_path: Path) -> None:
    """A list from a CSV file of an answer has other words, and those of Parquet are the words."""
    words = ["@anna", "=)", "-lol", '"=x', "\uff1d1", "-5", "'tis", "null", "NA"]
    answer = fedtally.estimate([word for word in words for _ in range(9)], domain=words)
    for name in ("found.csv", "found.parquet"):
        answer.export(tmp_path / name)
    quoted = read_candidates(tmp_path / "found.csv")
    note = (
        "5 candidates begin with an apostrophe, which the CSV file of an answer has before signs of"
        " formulas: {} is another item than {}; take the words from a Parquet file of the answer"
    )
    first = next(word for word in quoted.labels(range(quoted.size)) if word[1:] in words)
    told = fedtally.estimate(["-5"] * 9, domain=quoted, epsilon=4.0).cautions
    assert note.format(ascii(first), ascii(first[1:])) in told
    whole = read_candidates(f"{tmp_path}/found.parquet:item")
    assert (
        set(whole.labels(range(whole.size))) == set(words)
        and oddities(as_text(words)).quoted is None
    )
    told = fedtally.estimate(["-5"] * 9, domain=whole, epsilon=4.0).cautions
    assert not [note for note in told if "apostrophe" in note]
    # the words of clients are no list
    own = fedtally.estimate(["'@anna"] * 9).cautions
    assert not [note for note in own if "apostrophe" in note]


def test_notes_of_rows_are_told_without_epsilon_alone(tmp_path: Path) -> None:
    """A note that depends on rows would show what they hold."""
    text = "user,url\nu1,/a\nu2,/a\n{0}user,url\nu3,/b\n{0}user,url\nu4,user\nu5,{0}/b\n"
    table = written(tmp_path / "t.csv", f"\ufeff{text.format(chr(0xFEFF))}")
    plain = fedtally.estimate(table, item="url", client="user", seed=1)
    [note] = [note for note in plain.cautions if "2 rows repeat the header" in note]
    assert "is the first row an item (--no-header)" in note
    assert [note for note in plain.cautions if "invisible sign" in note]
    private = {"epsilon": 4.0, "domain": ["/a", "/b", "url"]}
    notes = fedtally.estimate(table, item="url", client="user", **private).cautions
    assert not any("header" in note or "invisible" in note for note in notes)
    single = written(tmp_path / "s.csv", "url\n/a\nurl\n")
    assert "1 row repeats the header" in str(fedtally.estimate(single, seed=1).cautions)
    bare = written(tmp_path / "n.csv", "1\n/a\n")
    assert fedtally.estimate(bare, item="1", seed=1).cautions == ()


def test_set_of_several_types_is_refused() -> None:
    assert domain_of({"tea", "rice"}) == Dictionary(["rice", "tea"])
    for mixed in ({1, "a"}, {None, "a", "b"}):
        with pytest.raises(InvalidInputError, match="items must"):
            domain_of(mixed)
