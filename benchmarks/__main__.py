"""Run a benchmark: ``python -m benchmarks kernels``."""

from __future__ import annotations

import click

from benchmarks import (
    batches,
    bill,
    campaign,
    dap,
    deploy,
    footprint,
    histograms,
    host,
    joint,
    kernels,
    large,
    light_agent,
    noise,
    open_domain,
    peers,
    planning,
    proofs,
    secagg,
    serve,
    silos,
    tables,
    two_servers,
    web,
    windows,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def main() -> None:
    """Measure fedtally on this machine; every goal says whether it is met."""


for module in (
    batches,
    bill,
    campaign,
    dap,
    deploy,
    footprint,
    histograms,
    host,
    joint,
    kernels,
    large,
    light_agent,
    noise,
    open_domain,
    peers,
    planning,
    proofs,
    secagg,
    serve,
    silos,
    tables,
    two_servers,
    web,
    windows,
):
    main.add_command(module.command)

if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
