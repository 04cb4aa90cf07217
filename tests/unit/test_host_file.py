"""The file of a host, which `fedtally plan --host` reads, is whole or refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedtally import __version__, kernels
from fedtally.base import toml
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.plan.costs import REFERENCE, Host

AGAIN = "measure again: python -m benchmarks host -o FILE"


@pytest.fixture
def host() -> Host:
    return replace(REFERENCE, kernels=kernels.backend(), version=__version__)


def refused(path: Path) -> str:
    with pytest.raises(UnreadableFileError) as caught:
        Host.load(path, __version__)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_host_is_read_as_it_was_written(tmp_path: Path, host: Host) -> None:
    path = tmp_path / "host.toml"
    path.write_text(host.to_toml(), encoding="utf-8")
    assert Host.load(path, __version__) == host


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kernels": "other"}, "kernels must be"),
        ({"kernels": 4}, "kernels must be a text, got 4"),
        ({"version": "0.0.1"}, f"version must be {__version__!r}, as here, got '0.0.1'"),
        ({"schema": "fedtally-plan/1"}, "schema must be 'fedtally-host/1', got 'fedtally-plan/1'"),
        ({"seconds": 3}, "seconds must be a table, got int"),
        ({"cores": 2}, "the host has unknown entries cores"),
    ],
)
def test_another_host_is_refused_by_name(
    tmp_path: Path, host: Host, changed: dict[str, Any], message: str
) -> None:
    path = tmp_path / "host.toml"
    path.write_text(toml.document(host.to_dict() | changed), encoding="utf-8")
    assert message in refused(path)


@pytest.mark.parametrize("entry", ["schema", "kernels", "version", "seconds"])
def test_a_missing_entry_is_named(tmp_path: Path, host: Host, entry: str) -> None:
    values = host.to_dict()
    del values[entry]
    path = tmp_path / "host.toml"
    path.write_text(toml.document(values), encoding="utf-8")
    assert refused(path).endswith(f"the host lacks {entry}; {AGAIN}")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0.0", "message must be above 0 seconds, got 0.0"),
        ("-1e-6", "message must be above 0 seconds, got -1e-06"),
        ("inf", "message must be finite, got inf"),
        ("nan", "message must be finite, got nan"),
        ("true", "message must be a number, got True"),
        ('"4e-5"', "message must be a number, got '4e-5'"),
        (None, "seconds lacks message"),
    ],
)
def test_an_operation_takes_a_positive_and_finite_time(
    tmp_path: Path, host: Host, value: str | None, message: str
) -> None:
    lines = host.to_toml().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("message = "))
    lines[at] = "" if value is None else f"message = {value}"
    path = tmp_path / "host.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    assert refused(path).endswith(f"{message}; {AGAIN}")


def test_an_unknown_operation_is_named_with_the_one_that_was_meant(
    tmp_path: Path, host: Host
) -> None:
    path = tmp_path / "host.toml"
    path.write_text(f"{host.to_toml()}mesage = 1.0\n", encoding="utf-8")
    assert "seconds has unknown entries mesage; did you mean 'message'?" in refused(path)


@pytest.mark.parametrize("data", [b"{", b"[" * 10_000, b"\xff\xfe", b"#" * 70_000, b""])
def test_what_is_no_host_says_what_to_do(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "host.toml"
    path.write_bytes(data)
    assert refused(path).endswith(AGAIN)


def test_a_file_that_is_absent_is_named(tmp_path: Path, host: Host) -> None:
    assert refused(tmp_path / "quite.other").endswith(f"No such file or directory; {AGAIN}")
    (tmp_path / "host.toml").write_text(host.to_toml(), encoding="utf-8")
    assert refused(tmp_path / "hosts.toml").endswith("did you mean 'host.toml'?")


def test_a_host_of_no_time_cannot_be_made(host: Host) -> None:
    with pytest.raises(InvalidInputError, match="draw must be above 0 seconds"):
        replace(host, seconds=dict(host.seconds) | {"draw": 0.0})
