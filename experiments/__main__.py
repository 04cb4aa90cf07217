"""Run an experiment: ``python -m experiments figure3 --data FOLDER``."""

from __future__ import annotations

import sys

import click

from experiments import (
    band,
    coverage,
    error_model,
    exceedance,
    families,
    figure2,
    figure3,
    hashing,
    openings,
    planner,
    privacy,
    recovery,
    shrinkage,
    tradeoff,
)
from fedtally.errors import FedtallyError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def main() -> None:
    """Remake the paper's figures and check what the design rests on."""


for module in (
    figure2,
    figure3,
    hashing,
    recovery,
    coverage,
    band,
    error_model,
    shrinkage,
    tradeoff,
    privacy,
    openings,
    planner,
    exceedance,
    families,
):
    main.add_command(module.command)

if __name__ == "__main__":
    try:
        main(prog_name="python -m experiments")
    except FedtallyError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
