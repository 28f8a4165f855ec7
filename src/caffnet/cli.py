"""The command line: parses, calls, prints. No numerics here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


@app.callback()
def caffnet() -> None:
    """Hard affine constraints on the outputs of neural networks."""


@app.command()
def run(
    task: Annotated[str | None, typer.Argument(help="pwc, opt or cbf; may come from the config.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file; options below override it.")] = None,
    protocol: Annotated[str | None, typer.Option(help="paper (default), fair or ours.")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="A row of the table; repeat for more. All by default.")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Repeat for more. The paper's five by default.")] = None,
    epochs: Annotated[int | None, typer.Option()] = None,
    learning_rate: Annotated[float | None, typer.Option()] = None,
    batch: Annotated[int | None, typer.Option(help="Samples per step; 0 for all.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float64 or float32.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; cuda by default if there is one.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads per run.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at the same time.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of records and checkpoints.")] = None,
    checkpoint_seconds: Annotated[float | None, typer.Option(help="Time between checkpoints.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, few epochs: does everything work?")] = False,
) -> None:
    """Run one of the paper's experiments. Killed runs continue, finished ones are not run again."""
    from caffnet.experiments.checkpoint import CheckpointError
    from caffnet.experiments.config import ConfigError, load_campaign
    from caffnet.experiments.progress import progress_bars
    from caffnet.experiments.records import RecordError
    from caffnet.experiments.run import default_device, run_campaign

    try:
        campaign = load_campaign(
            config,
            default_device=default_device(),
            task=task,
            protocol=protocol,
            methods=method,
            seeds=seed,
            epochs=epochs,
            learning_rate=learning_rate,
            batch=batch,
            dtype=dtype,
            device=device,
            threads=threads,
            jobs=jobs,
            out=None if out is None else str(out),
            checkpoint_seconds=checkpoint_seconds,
            quick=quick or None,
        )
        console = Console(quiet=os.environ.get("RANK", "0") != "0")  # of several processes, one speaks
        with progress_bars(campaign.runs, console) as (on_tick, on_done):
            run_campaign(campaign, on_tick, on_done)
    except (ConfigError, CheckpointError, RecordError) as error:
        _fail(error)


@app.command()
def report(
    records: Annotated[list[Path] | None, typer.Argument(help="Folders with records.")] = None,
    out: Annotated[Path, typer.Option(help="Where the tables, the figures and the page go.")] = Path("report"),
) -> None:
    """Turn records into the paper's tables and figures: Markdown, LaTeX, CSV, PNG and one HTML page."""
    from caffnet.experiments.records import RecordError
    from caffnet.experiments.report import write_report

    try:
        written = write_report(records or [Path("results")], out)
    except RecordError as error:
        _fail(error)
    for path in written:
        typer.echo(path)


def _fail(error: Exception) -> NoReturn:
    typer.secho(f"Error: {error}", fg="red", err=True)
    raise typer.Exit(2)


def main() -> None:
    """The entry point of the ``caffnet`` command."""
    app()


if __name__ == "__main__":
    main()
