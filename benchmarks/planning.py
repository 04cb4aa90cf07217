"""CPU of a plan for a small sketch, whose campaigns the planner runs for itself."""

from __future__ import annotations

import os
import subprocess
import sys

import click

QUESTIONS = {
    "epsilon 1": "--clients 50000 --domain-size 100000 --tau 0.02 --epsilon 1",
    "no epsilon": "--clients 50000 --domain-size 1000 --tau 0.05",
    "secagg": "--clients 50000 --domain-size 100000 --tau 0.03 --secure-sum secagg",
}


def cpu_seconds(question: str) -> float:
    """Return user and system seconds of one plan, in a process of its own."""
    before = os.times()
    program = "from fedtally.cli import main; main()"
    subprocess.run(
        [sys.executable, "-c", program, "plan", *question.split()],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


@click.command("plan")
@click.option("--repeats", default=3, help="Runs of each question, of which the best counts.")
def command(repeats: int) -> None:
    """CPU seconds of `fedtally plan` for small sketches: the best of several runs."""
    for name, question in QUESTIONS.items():
        best = min(cpu_seconds(question) for _ in range(repeats))
        click.echo(f"{name:12} {best:6.2f} s   fedtally plan {question}")
