"""The command line: it parses, calls and prints; numbers are made elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Hard affine constraints on the outputs of neural networks.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Keep every command a subcommand, however many there are."""


@app.command()
def methods(
    out: Annotated[Path, typer.Option(help="Folder for methods.md, methods.html and methods.json.")] = Path("methods"),
    method: Annotated[list[str] | None, typer.Option(help="Only this method; repeat for more.")] = None,
    family: Annotated[list[str] | None, typer.Option(help="Only this kind of constraint; repeat for more.")] = None,
    problems: Annotated[int, typer.Option(help="Random constraints per cell.")] = 20,
    inputs: Annotated[int, typer.Option(help="Random inputs per constraint.")] = 50,
    epochs: Annotated[int, typer.Option(help="Epochs of the short training; 0 for none.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    float32: Annotated[bool, typer.Option("--float32", help="Measure in float32 instead of float64.")] = False,
) -> None:
    """Measure the paper's Table 1: every method on every kind of constraint."""
    import torch
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table as Grid

    from caffnet.errors import ConstraintError
    from caffnet.methods import METHODS, report
    from caffnet.methods.families import FAMILIES
    from caffnet.methods.table import measure

    console = Console()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(method or METHODS) * len(family or FAMILIES))

        def advance(name: str, kind: str) -> None:
            progress.update(task, advance=1, description=f"{name}, {kind}")

        try:
            table = measure(
                method,
                family,
                problems=problems,
                inputs=inputs,
                epochs=epochs,
                seed=seed,
                dtype=torch.float32 if float32 else torch.float64,
                progress=advance,
            )
        except ConstraintError as error:
            raise typer.BadParameter(str(error)) from None
    for title, build, _ in report.SECTIONS:
        header, rows = build(table)
        grid = Grid(*header, title=title, title_justify="left", show_lines=False)
        for row in rows:
            grid.add_row(*row)
        console.print(grid)
    for path in report.write(table, out):
        console.print(f"written: {path}")


@app.command()
def figures(
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("figures"),
    kind: Annotated[list[str] | None, typer.Option(help="File type; repeat for more. Default: png and pdf.")] = None,
) -> None:
    """Draw the paper's Figures 1 and 4 from what the methods return."""
    from caffnet.methods.figures import draw_all

    for path in draw_all(out, kind or ("png", "pdf")):
        typer.echo(f"written: {path}")


def main() -> None:
    """Entry point of the ``caffnet`` command."""
    app()


if __name__ == "__main__":
    main()
