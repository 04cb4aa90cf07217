"""The harness of the experiments: what a study leaves, that it goes on where it was stopped, and
quick runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import __main__ as commands
from experiments import options, output, study
from pyarrow import parquet

import fedtally
from fedtally.errors import InvalidInputError


class Task(NamedTuple):
    number: int
    log: Path


def measure(task: Task) -> list[study.Row]:
    with task.log.open("a") as log:
        log.write(f"{task.number}\n")
    if task.log.with_suffix(".stop").exists() and task.number == 2:
        raise KeyboardInterrupt
    return [{"number": task.number, "square": task.number**2.0, "seed": 7, "plan": "{}"}] * 2


def squares(log: Path, count: int = 3) -> study.Study:
    return study.Study(
        "squares",
        [Task(n, log) for n in range(1, count + 1)],
        measure,
        lambda rows: {
            "Squares": [{"number": row["number"], "square": row["square"]} for row in rows[::2]]
        },
        about="What squares are.",
    )


def test_a_study_leaves_a_table_and_a_text(tmp_path: Path) -> None:
    rows = study.run(squares(tmp_path / "log"), tmp_path / "made")
    assert [row["square"] for row in rows] == [1.0, 1.0, 4.0, 4.0, 9.0, 9.0]
    assert {row["version"] for row in rows} == {fedtally.__version__}
    assert parquet.read_table(tmp_path / "made" / "squares.parquet").to_pylist() == rows
    text = (tmp_path / "made" / "squares.md").read_text()
    assert text.startswith(
        "# squares\n\nWhat squares are.\n\n## Squares\n\n| number | square |\n| --- | --- |\n| 1 |"
        " 1 |\n"
    )
    assert {path.name for path in (tmp_path / "made").iterdir()} == {
        "squares.parquet",
        "squares.md",
    }


def test_a_stopped_study_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.with_suffix(".stop").touch()
    with pytest.raises(KeyboardInterrupt):
        study.run(squares(log), tmp_path)
    assert "the same command goes on from there" in capsys.readouterr().err
    assert not (tmp_path / "squares.parquet").exists()
    log.with_suffix(".stop").unlink()
    rows = study.run(squares(log), tmp_path)
    assert log.read_text().split() == ["1", "2", "2", "3"]  # the first was not measured again
    assert "1 of 3 tasks were done before" in capsys.readouterr().err
    assert [row["number"] for row in rows] == [1, 1, 2, 2, 3, 3]
    assert not list(tmp_path.glob("*.partial.jsonl"))


def test_a_line_that_was_cut_short_is_measured_again(tmp_path: Path) -> None:
    log, made = tmp_path / "log", squares(tmp_path / "log")
    partial = tmp_path / f"squares-{study.fingerprint(made)}.partial.jsonl"
    whole = json.dumps(
        [repr(made.tasks[2]), [{"number": 3, "square": -1.0, "seed": 7, "plan": "{}"}]]
    )
    partial.write_text(whole + "\n" + whole[:20])
    rows = study.run(made, tmp_path)
    # the kept row is taken as it is
    assert [row["square"] for row in rows] == [1.0, 1.0, 4.0, 4.0, -1.0]
    assert log.read_text().split() == ["1", "2"]


def test_a_damaged_line_is_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = squares(tmp_path / "log")
    partial = tmp_path / f"squares-{study.fingerprint(made)}.partial.jsonl"
    kept = json.dumps(
        [repr(made.tasks[2]), [{"number": 3, "square": -1.0, "seed": 7, "plan": "{}"}]]
    )
    partial.write_text(f"[{{\n{kept}\n")
    assert [row["square"] for row in study.run(made, tmp_path)] == [1.0, 1.0, 4.0, 4.0, -1.0]
    assert f"line 1 of {partial} is damaged" in capsys.readouterr().err


def test_what_cannot_be_written_leaves_what_there_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(table: object, path: str) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    study.run(squares(tmp_path / "log"), tmp_path)
    before = (tmp_path / "squares.parquet").read_bytes()
    monkeypatch.setattr(parquet, "write_table", full)
    with pytest.raises(InvalidInputError, match="No space left on device"):
        study.run(squares(tmp_path / "log"), tmp_path)
    assert (tmp_path / "squares.parquet").read_bytes() == before
    assert list(tmp_path.glob("*.partial.jsonl"))  # and what was measured is kept


def test_other_settings_are_another_study(tmp_path: Path) -> None:
    few, many = squares(tmp_path / "log"), squares(tmp_path / "log", 4)
    assert study.fingerprint(few) != study.fingerprint(many)
    assert study.fingerprint(few) == study.fingerprint(squares(tmp_path / "log"))


def test_processes_give_the_same_rows_in_the_same_order(tmp_path: Path) -> None:
    alone = study.run(squares(tmp_path / "a"), tmp_path / "a made")
    together = study.run(squares(tmp_path / "a"), tmp_path / "b made", jobs=2)
    assert alone == together


def test_rows_say_from_what_they_come(tmp_path: Path) -> None:
    made = squares(tmp_path / "log")._replace(
        measure=lambda task: [{"number": task.number, "seed": 1}]
    )
    with pytest.raises(ValueError, match="rows of squares lack plan"):
        study.run(made, tmp_path)


def test_tasks_must_differ(tmp_path: Path) -> None:
    made = squares(tmp_path / "log")
    with pytest.raises(ValueError, match="tasks of squares must differ"):
        study.run(made._replace(tasks=[made.tasks[0]] * 2), tmp_path)


def test_a_picture_is_written_twice(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    made = squares(tmp_path / "log")._replace(draw=lambda rows: Figure(figsize=(1, 1)))
    study.run(made, tmp_path)
    assert (tmp_path / "squares.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "squares.svg").read_bytes()


def test_a_folder_that_cannot_be_made_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match="choose another --output"):
        study.run(squares(tmp_path / "log"), tmp_path / "file" / "folder")
    assert not (tmp_path / "log").exists()


@click.command()
@options.quick(size=1, name="small")
@click.option("--size", default=100)
@click.option("--name", default="large")
@click.option("--miss", is_flag=True)
def sized(size: int, name: str, miss: bool) -> None:
    """Say what was chosen."""
    click.echo(f"{size} {name}")
    if miss:
        raise SystemExit(1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "100 large"), (["--quick"], "1 small"), (["--quick", "--size", "100"], "100 small")],
)
def test_quick_changes_what_the_command_line_does_not_say(arguments: list[str], said: str) -> None:
    assert CliRunner().invoke(sized, arguments).output.strip() == said


@click.command()
@options.quick()
@click.option("--width", "widths", multiple=True, type=int)
def wide(widths: tuple[int, ...]) -> None:
    """Say which."""
    click.echo(str(widths))


def test_what_is_said_twice_counts_once() -> None:
    assert (
        CliRunner().invoke(wide, ["--width", "5", "--width", "3", "--width", "5"]).output.strip()
        == "(5, 3)"
    )


def test_what_a_quick_run_misses_means_nothing() -> None:
    assert CliRunner().invoke(sized, ["--miss"]).exit_code == 1
    quick = CliRunner().invoke(sized, ["--miss", "--quick"])
    assert quick.exit_code == 0
    assert "means nothing" in quick.output


def test_every_experiment_has_a_quick_run() -> None:
    for name, command in commands.main.commands.items():
        if name not in commands.ALONE[1:]:
            assert any(parameter.name == "quick" for parameter in command.params), name


# Experiments that no other test runs as they are: `all` runs them here.
RUN_BY_ALL = ("error_model", "foreseen", "shrinkage", "silos", "sizes")


def test_every_experiment_is_run_by_a_test() -> None:
    beside = Path(__file__).parent.glob("test_experiments*.py")
    texts = "".join(path.read_text("utf-8") for path in beside)
    for name, command in commands.main.commands.items():
        if name not in (*commands.ALONE, *RUN_BY_ALL):
            assert command.callback is not None
            module = command.callback.__module__.removeprefix("experiments.")
            assert f"{module}.command" in texts, f"add {name} to RUN_BY_ALL"


def test_all_runs_them_and_says_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(**values: Any) -> None:
        raise output.MissingDataError("gowalla.txt does not exist")

    chosen = {name: commands.main.commands[name] for name in ("all", *RUN_BY_ALL)}
    chosen["absent"] = click.Command(
        "absent", callback=absent, params=[click.Option(["--quick"], is_flag=True)]
    )
    monkeypatch.setattr(commands.main, "commands", chosen)
    result = CliRunner().invoke(
        commands.main, ["all", "--quick", "--output", str(tmp_path)], catch_exceptions=False
    )
    assert result.exit_code == 0
    assert "left out: gowalla.txt does not exist" in result.output
    assert "missed: none; left out for want of data: absent" in result.output
    assert (tmp_path / "sizes.parquet").is_file()
