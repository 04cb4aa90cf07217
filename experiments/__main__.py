"""Run an experiment: ``python -m experiments figure3 --data FOLDER``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from experiments import (
    band,
    changed,
    coverage,
    epsilon,
    error_model,
    exact,
    exceedance,
    families,
    figure1,
    figure2,
    figure3,
    foreseen,
    hashing,
    known,
    limit,
    lists,
    log_factor,
    natural,
    official,
    open_domain,
    open_planner,
    open_tau,
    options,
    output,
    pilots,
    planner,
    poisoning,
    privacy,
    promises,
    recovery,
    released,
    releases,
    seeds,
    several,
    shrinkage,
    silos,
    sizes,
    stopping,
    streams,
    tradeoff,
    vectors,
    widths,
)
from fedtally.errors import FedtallyError

ALONE = ("all", "official")  # not part of a run of all


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def main() -> None:
    """Remake the paper's figures and check what the design rests on."""


for module in (
    figure1,
    figure2,
    figure3,
    foreseen,
    epsilon,
    released,
    families,
    log_factor,
    natural,
    vectors,
    planner,
    pilots,
    widths,
    promises,
    exceedance,
    exact,
    tradeoff,
    recovery,
    error_model,
    coverage,
    band,
    changed,
    lists,
    shrinkage,
    limit,
    sizes,
    known,
    silos,
    stopping,
    streams,
    hashing,
    poisoning,
    seeds,
    several,
    privacy,
    releases,
    open_domain,
    open_planner,
    open_tau,
    official,
):
    main.add_command(module.command)


@main.command("all")
@click.option(
    "--quick", is_flag=True, help="A small run of each, in minutes, to see that everything works."
)
@options.data("Folder of the real tables. [default: FEDTALLY_DATA or ../shared/data]")
@options.folder(
    None,
    f"Folder of the results. [default: {options.FOLDER}, of quick runs {options.QUICK_FOLDER}]",
)
@options.jobs
def everything(quick: bool, data: Path | None, folder: Path | None, jobs: int) -> None:
    """Run every experiment, one after the other; exit code 1 if any missed what it is held to."""
    folder = folder or (options.QUICK_FOLDER if quick else options.FOLDER)
    output.make_folder(folder)
    tables = output.data_folder(data)
    missed, left_out = [], []
    for name, command in main.commands.items():
        if name in ALONE:
            continue
        given: dict[str, object] = {
            "folder": folder,
            "path": folder / f"{name}.parquet",
            "jobs": jobs,
        }
        given |= {"data": tables} if tables.is_dir() else {}
        passed = [
            (parameter.opts[0], given[parameter.name])
            for parameter in command.params
            if parameter.name in given
        ]
        arguments = [str(word) for option in passed for word in option] + ["--quick"] * quick
        click.secho(f"\n== {name}", bold=True)
        start = time.perf_counter()
        try:
            command.main(arguments, f"python -m experiments {name}", standalone_mode=False)
        except output.MissingDataError as error:
            click.echo(f"left out: {error}")
            left_out.append(name)
        except SystemExit as verdict:
            if verdict.code:
                missed.append(name)
        click.echo(f"({time.perf_counter() - start:.1f} s)")
    click.echo(
        f"\nmissed: {', '.join(missed) or 'none'}; left out for want of data:"
        f" {', '.join(left_out) or 'none'}"
    )
    if missed:
        sys.exit(1)


if __name__ == "__main__":
    try:
        main(prog_name="python -m experiments")
    except FedtallyError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
