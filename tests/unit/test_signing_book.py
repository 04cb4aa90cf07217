"""The book of what a registrar signed: no number is given out twice, and none goes back."""

from __future__ import annotations

import os
import threading
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from campaign_world import plan_of
from cases import each_case

from fedtally.campaign import signing_book
from fedtally.campaign.enrolment import (
    MAX_NUMBER,
    Authority,
    PlanSignature,
    end_of,
    revoke_plans,
    sign_plan,
)
from fedtally.campaign.signing_book import SigningBook, book_path
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.errors import InvalidInputError, UnreadableFileError

KEY, OTHER = (SigningKey(Secret(bytes([n]) * 32)) for n in (200, 201))
PLAN = plan_of()
LAST = date(2100, 1, 31)
ENDED = "0a" * 32


def signature(number: int, purpose: str = "a study", key: SigningKey = KEY) -> PlanSignature:
    return sign_plan(key, PLAN, Authority(purpose, number, LAST, (ENDED,)))


def book_of(place: Path) -> SigningBook:
    return SigningBook(book_path(place / "registrar.key"), KEY.public)


def test_numbers_count_within_a_purpose(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    assert book.next_number("a study") == 1 and not book.knows(PLAN.fingerprint)
    for number, purpose in ((1, "a study"), (2, "a study"), (1, "K\u00f6ln"), (9, "a study")):
        book.add(signature(number, purpose))
        book = book_of(tmp_path)
    book.add(revoke_plans(KEY, ["1b" * 32]))
    book = book_of(tmp_path)
    assert [book.next_number(one) for one in ("a study", "Ko\u0308ln", "lunch")] == [10, 2, 1]
    assert book.ended() == {ENDED, "1b" * 32} and book.knows(PLAN.fingerprint)
    assert book.open_plans("a study", end_of(LAST) - 1) == [PLAN.fingerprint]
    assert book.open_plans("a study", end_of(LAST)) == []
    assert book.open_plans("lunch", 0) == []
    assert (tmp_path / "registrar.key.signed").stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidInputError, match="for good: plan anew"):
        book.check_open(ENDED)
    book.check_open(PLAN.fingerprint)
    book.add(revoke_plans(KEY, [PLAN.fingerprint]))
    assert book_of(tmp_path).open_plans("a study", 0) == []


def test_the_last_number_is_the_last(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    book.add(signature(MAX_NUMBER))
    with pytest.raises(InvalidInputError, match="all numbers of the purpose 'a study' are used"):
        book_of(tmp_path).next_number("a study")


def test_a_number_that_another_process_took_meanwhile_is_refused(tmp_path: Path) -> None:
    mine, theirs = book_of(tmp_path), book_of(tmp_path)
    number = mine.next_number("a study")
    assert theirs.next_number("a study") == number
    theirs.add(signature(number))
    with pytest.raises(InvalidInputError, match="must be above 1, .* got 1: leave number= out"):
        mine.add(signature(number))
    assert len((tmp_path / "registrar.key.signed").read_text().splitlines()) == 1


def test_of_many_at_once_each_number_is_taken_once(tmp_path: Path) -> None:
    taken: list[int] = []

    def sign() -> None:
        for _ in range(5):
            book = book_of(tmp_path)
            number = book.next_number("a study")
            try:
                book.add(signature(number))
            except InvalidInputError:
                continue
            taken.append(number)

    threads = [threading.Thread(target=sign) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(taken) == list(range(1, len(taken) + 1)) and len(taken) >= 5
    assert book_of(tmp_path).highest("a study") == len(taken)


def test_a_book_that_is_damaged_says_where_and_the_way_out(tmp_path: Path) -> None:
    book, place = book_of(tmp_path), tmp_path / "registrar.key.signed"
    book.add(signature(1))
    book.add(revoke_plans(KEY, [ENDED]))
    first, second = place.read_text().splitlines(True)
    for damaged, line in (
        (first[:-1], 1),  # cut off: the next line would be written into it
        (first + second[:-1], 2),
        (first[5:], 1),
        (first + "\n" + second, 2),
        (first + "\xff\n", 2),
        (first + second.replace("0a", "0g"), 2),
    ):
        place.write_text(damaged)
        with pytest.raises(UnreadableFileError, match=rf"damaged in line {line}: .*\(number=\)"):
            book_of(tmp_path)
    place.write_text(signature(1, key=OTHER).to_line())
    with pytest.raises(UnreadableFileError, match=r"is of another key \(line 1\): move it away"):
        book_of(tmp_path)
    place.unlink()
    place.mkdir()
    with pytest.raises(UnreadableFileError, match="cannot read .*key.signed: Is a directory"):
        book_of(tmp_path)


def test_a_book_that_is_too_long_is_refused_and_not_read_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book_of(tmp_path).add(signature(1))
    book_of(tmp_path).add(signature(2))
    line = len(book_path(tmp_path / "registrar.key").read_bytes()) // 2
    monkeypatch.setattr("fedtally.campaign.signing_book._MOST_BYTES", line)
    with pytest.raises(UnreadableFileError, match="put the newest copy back"):
        book_of(tmp_path)


@each_case("at", ["open", "write", "fsync"])
def test_a_signature_that_cannot_be_noted_is_not_given_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    folder = tmp_path / at
    folder.mkdir()
    book, place, write = book_of(folder), folder / "registrar.key.signed", os.write
    book.add(signature(1))
    before = place.read_text()

    def fails(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if at == "write":  # a disk may take a part before it is full
            patch.setattr(signing_book.os, "write", lambda file, text: write(file, text[:9]))
        else:
            patch.setattr(signing_book.os, at, fails)
        with pytest.raises(InvalidInputError, match="No space left on device.*sign again"):
            book.add(signature(2))
    assert place.read_text() == before
    book.add(signature(2))
    assert book_of(folder).highest("a study") == 2
