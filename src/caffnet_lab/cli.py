"""The command line: parses options, calls the library and prints. It computes nothing itself."""

from __future__ import annotations

import errno
import itertools
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from caffnet_lab.experiments.config import MOST_SEED, MOST_THREADS, WHOLE_NUMBERS, ConfigError, check_whole


class _Commands(TyperGroup):
    """The group of commands. Reports unwritable files and a lack of memory in one line, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the program that reads the output has ended, as `head` does
                raise
            _fail(error)
        except (MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            short = MemoryError("Not enough memory: ask for less, or use a machine that has more.")
            for note in getattr(error, "__notes__", ()):
                short.add_note(note)
            _fail(short)


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, cls=_Commands)


def _print_version(wanted: bool) -> None:
    if wanted:
        from caffnet import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def caffnet(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Hard affine constraints on the outputs of neural networks."""


@app.command()
def run(
    task: Annotated[
        str | None,
        typer.Argument(
            help="pwc, opt, cbf or a yardstick (dc3-simple, dcopf-118, ...); not needed if the config has it."
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings; the options below override it.")] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="paper (default): as published; ours: as we recommend. The yardsticks have only ours."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A row of the task's table, such as nn, hardnet, caffnet-ff, caffnet-ff-lite, caffnet-tf, post-hoc or "
            "ipopt. Repeat for more; all rows by default."
        ),
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Repeat for more; the paper's five seeds by default.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data; the protocol's by default.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Rate of Adam; the protocol's by default.")] = None,
    batch: Annotated[int | None, typer.Option(help="Samples per step, 0 for all; the protocol's by default.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float64 (default) or float32.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; cuda by default if there is one.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other setting as NAME=VALUE, for example clip=1.0. Repeat for more."),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads per run; 1 by default.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at the same time; 1 by default.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of records and checkpoints; results, or runs/quick with --quick.")
    ] = None,
    checkpoint_seconds: Annotated[float | None, typer.Option(help="Time between checkpoints; 20 s by default.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, few epochs: a first look.")] = False,
) -> None:
    """Run an experiment of the paper or a yardstick. Resumes stopped runs and skips finished ones."""
    from caffnet_lab.experiments.campaign import WorkerError, run_campaign
    from caffnet_lab.experiments.checkpoint import CheckpointError
    from caffnet_lab.experiments.config import load_campaign, parse_settings
    from caffnet_lab.experiments.progress import progress_bars
    from caffnet_lab.experiments.records import RecordError
    from caffnet_lab.experiments.run import default_device
    from caffnet_lab.experiments.training import DivergedError

    try:
        options = {
            "task": task,
            "protocol": protocol,
            "methods": method,
            "seeds": seed,
            "epochs": epochs,
            "learning_rate": learning_rate,
            "batch": batch,
            "dtype": dtype,
            "device": device,
            "threads": threads,
            "jobs": jobs,
            "out": None if out is None else str(out),
            "checkpoint_seconds": checkpoint_seconds,
            "quick": quick or None,
        }
        given, others = {k: v for k, v in options.items() if v is not None}, parse_settings(settings or [])
        if twice := sorted(set(given) & set(others)):
            raise ConfigError(f"{', '.join(twice)} is set twice: by an option and by --set.")
        campaign = load_campaign(config, default_device(), **given, **others)
        console = Console(quiet=os.environ.get("RANK", "0") != "0")  # only one of several processes prints
        with progress_bars(campaign.runs, console) as (on_tick, on_done):
            run_campaign(campaign, on_tick, on_done)
    except (ConfigError, CheckpointError, RecordError, DivergedError, WorkerError, ImportError) as error:
        _fail(error)
    except KeyboardInterrupt:
        typer.secho("Stopped. Rerun the command to resume from the last checkpoints.", err=True)
        raise typer.Exit(130) from None


@app.command("time")
def time_(
    task: Annotated[str, typer.Argument(help="pwc, opt, cbf or a yardstick.")],
    protocol: Annotated[
        str | None, typer.Option(help="paper (default) or ours. The yardsticks have only ours.")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="As in run. Repeat for more; all by default.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; cuda by default if there is one.")] = None,
    rounds: Annotated[int, typer.Option(help="Epochs of each method that are timed.")] = 7,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("results"),
) -> None:
    """Time an epoch and a test of every method of an experiment, side by side."""
    _check_whole("--rounds", rounds, 1, 100_000)
    _check_whole("--threads", threads, 1, MOST_THREADS)
    import torch

    from caffnet_lab.experiments.config import default_protocol
    from caffnet_lab.experiments.records import RecordError
    from caffnet_lab.experiments.run import default_device
    from caffnet_lab.experiments.timing import time_methods

    protocol = protocol or default_protocol(task)
    torch.set_num_threads(threads)
    console = Console()
    try:
        with console.status("building") as status:
            found = time_methods(
                task,
                protocol,
                out,
                methods=method,
                rounds=rounds,
                device=device or default_device(),
                on_step=lambda what: status.update(what),
            )
    except (ConfigError, RecordError, ImportError) as error:
        _fail(error)
    for name, times in found["methods"].items():
        train = "" if times["train_ms"] is None else f"T_train {times['train_ms']:.4g} ms, "
        console.print(f"{task} {protocol} {name}: {train}T_test {times['test_ms']:.4g} ms")


@app.command()
def report(
    records: Annotated[list[Path] | None, typer.Argument(help="Folders with records; results by default.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the tables, the figures and the page.")] = Path("report"),
    markdown: Annotated[
        Path | None,
        typer.Option(help="Also write the Markdown here, with its figures in figures/<name> beside it."),
    ] = None,
) -> None:
    """Make the paper's tables and figures from records: Markdown, LaTeX, CSV, PNG and one HTML page."""
    from caffnet_lab.experiments.records import RecordError
    from caffnet_lab.experiments.report import write_report

    _check_folder("--out", out)
    if markdown is not None:
        _check_file("--markdown", markdown)
    try:
        written = write_report(records or [Path("results")], out, markdown)
    except (ConfigError, RecordError) as error:
        _fail(error)
    for path in written:
        typer.echo(path)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="File of the figure.")] = Path("demo.png"),
    epochs: Annotated[int, typer.Option(help="Training epochs of each network.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the data and the networks.")] = 6,
) -> None:
    """Train a CAffNet and a soft-constrained network on the paper's piecewise task; print a table, draw a figure."""
    _check_whole("--epochs", epochs, 1, WHOLE_NUMBERS["epochs"][1])
    _check_whole("--seed", seed, 0, MOST_SEED)
    _check_picture("--out", out)
    _make_folder(out.parent)

    from rich.table import Table as Grid

    from caffnet_lab.experiments.demo import compare, draw
    from caffnet_lab.experiments.progress import progress_bar

    console = Console()
    with progress_bar(console, 1.0) as show:
        results = compare(seed, epochs, lambda name, share, loss: show(f"{name}, loss {loss:.4f}", share))
    grid = Grid(title=f"Piecewise task, {epochs} epochs, 400 test points", title_justify="left")
    for header in ("network", "mean squared error", "largest violation", "test points violated"):
        grid.add_column(header, justify="left" if header == "network" else "right")
    for result in results:
        share = f"{100 * result.violated:.1f} %"
        grid.add_row(result.name, f"{result.error:.5f}", f"{result.violation:.2e}", share)
    console.print(grid)
    draw(results, out)
    _tell_written(console, out)


@app.command()
def methods(
    out: Annotated[Path, typer.Option(help="Folder for methods.md, methods.html and methods.json.")] = Path("methods"),
    method: Annotated[list[str] | None, typer.Option(help="Only this method; repeat for more.")] = None,
    family: Annotated[list[str] | None, typer.Option(help="Only this kind of constraint; repeat for more.")] = None,
    problems: Annotated[int, typer.Option(help="Random constraints per cell.")] = 20,
    inputs: Annotated[int, typer.Option(help="Random inputs per constraint.")] = 50,
    epochs: Annotated[int, typer.Option(help="Epochs of the short training; 0 for none.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    float32: Annotated[bool, typer.Option("--float32", help="Measure in float32 instead of float64.")] = False,
) -> None:
    """Measure the paper's Table 1: every method on every kind of constraint."""
    _check_folder("--out", out)  # before minutes of work whose results could not be written

    import torch
    from rich.table import Table as Grid

    from caffnet import ConstraintError
    from caffnet.methods import METHODS
    from caffnet_lab.experiments.progress import progress_bar
    from caffnet_lab.methods_table import report
    from caffnet_lab.methods_table.families import FAMILIES
    from caffnet_lab.methods_table.table import measure

    console = Console()
    cells = itertools.count()
    try:
        with progress_bar(console, len(method or METHODS) * len(family or FAMILIES)) as show:
            table = measure(
                method,
                family,
                problems=problems,
                inputs=inputs,
                epochs=epochs,
                seed=seed,
                dtype=torch.float32 if float32 else torch.float64,
                progress=lambda name, kind: show(f"{name}, {kind}", next(cells)),
            )
    except (ConfigError, ConstraintError) as error:
        _fail(error)
    for title, build, _ in report.SECTIONS:
        header, rows = build(table)
        grid = Grid(*header, title=title, title_justify="left", show_lines=False)
        for row in rows:
            grid.add_row(*map(escape, row))
        console.print(grid)
    for path in report.write(table, out):
        _tell_written(console, path)


@app.command()
def bench(
    task: Annotated[
        list[str] | None,
        typer.Option(help="Task or family: pwc, growth, dc3-200, everyday, ... Repeat for more; all by default."),
    ] = None,
    contestant: Annotated[
        list[str] | None, typer.Option(help="Repeat for more; all that are installed by default.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few rounds and small sizes, for a first look.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for bench.json, bench.md and the plots.")] = Path("bench"),
    threads: Annotated[int | None, typer.Option(help="Threads of torch and the rivals; all cores by default.")] = None,
    limit: Annotated[float, typer.Option(help="Seconds that one call of a contestant may take.")] = 30.0,
    memory: Annotated[str, typer.Option(help="Contestants whose peak memory is measured: ours, all or none.")] = "ours",
) -> None:
    """Measure the layer, its backbone, the paper's algorithm and the rivals, and judge the claims about speed."""
    if threads is not None:
        _check_whole("--threads", threads, 1, MOST_THREADS)
    if not 0 < limit < float("inf"):
        _fail(ConfigError(f"--limit must be a number of seconds above 0, got {limit}."))
    _check_folder("--out", out)

    from caffnet_lab.bench import contestants, machine, tasks

    machine.wait_passively(sys.argv[1:])

    from rich.table import Table as Grid

    from caffnet_lab.bench import claims, everyday, measure, report
    from caffnet_lab.bench.ready import Limits
    from caffnet_lab.experiments.progress import progress_bar

    console = Console(width=None if sys.stdout.isatty() else 150)
    try:
        wanted = [word for word in task or () if word != everyday.NAME]
        chosen = [] if task and not wanted else tasks.select(wanted, quick)
        names = contestants.select(contestant)
        watched = contestants.watched(names, memory)
    except ValueError as error:
        _fail(error)
    limits = Limits(threads or machine.default_threads(), seconds=limit)
    conditions = {**machine.conditions(limits.threads), "quick": quick}
    with progress_bar(console) as show:
        facts, records = measure.run(
            chosen,
            names,
            limits,
            measure.QUICK if quick else measure.Effort(),
            watched,
            lambda where, what: show(f"{where}: {what}", None),
            lambda facts, records: report.save(out, conditions, facts, records, claims.judge(facts, records)),
        )
        daily = []
        if everyday.NAME in task if task else contestant is None:
            daily = everyday.measure(quick, lambda line: show(line, None))
    conditions["load_at_end"] = machine.load()
    judged = [*claims.judge(facts, records), *daily]
    for title, header, rows in (
        ("Measured (medians)", report.RECORD_HEADER, report.record_rows(facts, records)),
        ("Not measured", ("contestant", "why", "tasks"), report.absent(records)),
        ("What the layer must show", report.CLAIM_HEADER, report.claim_rows(judged)),
    ):
        grid = Grid(title=title, title_justify="left")
        for name in header:
            grid.add_column(name, overflow="fold")
        for row in rows:
            grid.add_row(*(_coloured(cell) for cell in row))
        if rows:
            console.print(grid)
    console.print(report.noise(records))
    for path in report.write(out, conditions, facts, records, judged):
        _tell_written(console, path)


@app.command()
def programs(
    task: Annotated[
        list[str] | None,
        typer.Option(help="A program or family, such as qp, mint or opf-118. Repeat for more; all by default."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few rounds: a first look.")] = False,
    threads: Annotated[int | None, typer.Option(help="Threads of torch and the rivals; all cores by default.")] = None,
) -> None:
    """Measure solve_qp beside other layers and solvers for quadratic and linear programs; print a Markdown table."""
    if threads is not None:
        _check_whole("--threads", threads, 1, MOST_THREADS)

    from caffnet_lab.bench import machine

    machine.wait_passively(sys.argv[1:])

    from caffnet_lab.bench import measure
    from caffnet_lab.bench import programs as side_by_side
    from caffnet_lab.bench.ready import Limits

    try:
        chosen = side_by_side.select(task)
    except ValueError as error:
        _fail(error)
    limits = Limits(threads or machine.default_threads())
    effort = measure.QUICK if quick else measure.Effort()
    lines = side_by_side.run(chosen, limits, effort, lambda line: typer.echo(line, err=True))
    for cells in (side_by_side.HEADER, ("---",) * len(side_by_side.HEADER), *side_by_side.rows(lines)):
        typer.echo(f"| {' | '.join(cells)} |")


def _coloured(cell: str) -> str:
    return {"pass": "[green]pass[/green]", "MISS": "[bold red]MISS[/bold red]"}.get(cell, escape(cell))


@app.command()
def figures(
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("figures"),
    kind: Annotated[
        list[str] | None, typer.Option(help="png, pdf or svg. Repeat for more; png and pdf by default.")
    ] = None,
) -> None:
    """Draw the paper's Figures 1, 2, 3 and 8 with the methods of the package, and the error by width."""
    if unknown := sorted(set(kind or ()) - {"png", "pdf", "svg"}):
        _fail(ConfigError(f"--kind must be png, pdf or svg, got {', '.join(unknown)}."))
    _make_folder(out)

    from caffnet_lab.methods_table.figures import draw_all

    for path in draw_all(out, kind or ("png", "pdf")):
        typer.echo(f"written: {path}")


@app.command()
def audit(
    constraint: Annotated[
        str, typer.Argument(help="The constraint, a function of the state: module:name or file.py:name.")
    ],
    lower: Annotated[str, typer.Option(help="Lower corner of the box of states, as in --lower=-5,-4,0.")],
    upper: Annotated[str, typer.Option(help="Upper corner of the box of states.")],
    samples: Annotated[int, typer.Option(help="Number of states in the first search.")] = 4096,
    names: Annotated[str | None, typer.Option(help="Names of the entries of the state, as in --names=p,v.")] = None,
    times: Annotated[
        str | None, typer.Option(help="Interval of time, for a barrier that moves, as in --times=0,5.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(help="Function x -> bool, true for the states that count: module:name or file.py:name."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="File for a picture over the first two entries.")] = None,
) -> None:
    """Look for states without an admissible input. Exits with 1 if there are any, for use in CI; with 2 on errors."""
    from caffnet import ConstraintError
    from caffnet.control import audit as look
    from caffnet_lab.lookup import NotFoundError, find

    _check_whole("--samples", samples, 1, 2**24)
    if picture is not None:
        _check_picture("--picture", picture)
    try:
        found = look(
            find(constraint),
            _numbers_of("--lower", lower),
            _numbers_of("--upper", upper),
            samples=samples,
            names=None if names is None else names.split(","),
            times=None if times is None else tuple(_numbers_of("--times", times, 2)),  # pyright: ignore
            where=None if where is None else find(where, "--where", "x -> bool"),
        )
    except (ConstraintError, NotFoundError) as error:
        _fail(error)
    typer.echo(str(found))
    if picture is not None:
        typer.echo(f"written: {found.draw(picture)}")
    if not found.ok:
        raise typer.Exit(1)


@app.command()
def simulate(
    scenario: Annotated[list[str] | None, typer.Argument(help="integrator, unicycle, ...; all by default.")] = None,
    starts: Annotated[int, typer.Option(help="Number of initial states.")] = 1000,
    time_steps: Annotated[
        bool, typer.Option("--time", help="Measure the time of one step instead of simulating.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the records.")] = Path("runs/control"),
) -> None:
    """Simulate every system with and without the safety filter. Exits with 1 if the filter breaks a limit."""
    from caffnet_lab.safe_control.records import write
    from caffnet_lab.safe_control.scenarios import SCENARIOS
    from caffnet_lab.safe_control.simulate import simulate as drive

    _check_known("scenario", scenario, SCENARIOS)
    _check_whole("--starts", starts, 1, 10**6)
    _make_folder(out)
    if time_steps:
        from caffnet_lab.safe_control.steps import time_steps as measure

        record = measure()
        write(out / "steps.json", record)
        for name, took in record["microseconds"].items():
            typer.echo(f"{name}: {took:.0f} µs")
        return
    kept = True
    for name in scenario or SCENARIOS:
        record = drive(name, starts)
        write(out / f"{name}.json", record)
        kept &= record["smallest"] >= 0
        typer.echo(
            f"{name}: smallest h {record['smallest']:.2e} (without the filter {record['smallest_without']:.2g}), "
            f"{record['infeasible_states']} of {record['states']} states infeasible"
        )
    if not kept:
        raise typer.Exit(1)


@app.command("rl")
def reinforcement_learning(
    task: Annotated[list[str] | None, typer.Argument(help="pendulum, reacher-o, ...; all by default.")] = None,
    agent: Annotated[list[str] | None, typer.Option(help="sac-interior, td3-project, ...; all by default.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Repeat for more; 0, 1 and 2 by default.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of training; the task's by default.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the records; runs with a record are not repeated.")] = Path(
        "runs/rl"
    ),
) -> None:
    """Train agents whose actions satisfy rows that depend on the state (needs the extra rl)."""
    from caffnet_lab.safe_control.records import write
    from caffnet_lab.safe_rl.tasks import TASKS
    from caffnet_lab.safe_rl.train import AGENTS, run

    _check_known("task", task, TASKS)
    _check_known("agent", agent, AGENTS)
    _make_folder(out)
    for one in seed or (0, 1, 2):
        for name in task or TASKS:
            for who in agent or AGENTS:
                path = out / f"{name}-{who}-seed{one}.json"
                if path.exists():
                    continue
                record = run(TASKS[name], who, one, steps)
                write(path, record)
                typer.echo(f"{name}, {who}, seed {one}: return {record['return']:.1f}")


@app.command("control-report")
def control_report(
    records: Annotated[Path, typer.Argument(help="Folder with records of simulate and rl, at any depth.")] = Path(
        "runs"
    ),
    markdown: Annotated[Path, typer.Option(help="File for the Markdown page.")] = Path("report/control.md"),
    figure: Annotated[Path, typer.Option(help="File for the figure of the returns.")] = Path("report/rl.png"),
) -> None:
    """Make the tables and the figure of safe control from their records."""
    from caffnet_lab.safe_control.report import report

    _check_file("--markdown", markdown)
    _check_file("--figure", figure)
    written = report(records, markdown, figure)
    if not written:
        _fail(ConfigError(f"No records of simulate or rl below {records}: do a run first (caffnet simulate)."))
    for path in written:
        typer.echo(f"written: {path}")


@app.command()
def export(
    source: Annotated[
        str, typer.Argument(help="A model in Python, module:name or file.py:name, or the record of a run, NAME.json.")
    ],
    out: Annotated[Path, typer.Option(help="The folder (c, aot) or the file (onnx) to write.")],
    to: Annotated[str, typer.Option(help="c: plain C; onnx: ONNX Runtime; aot: C++ with libtorch.")] = "c",
    name: Annotated[str, typer.Option(help="For c: prefix of the names of files and functions.")] = "policy",
    operators: Annotated[
        str, typer.Option(help="For onnx: caffnet (one operator of this library) or plain (standard operators).")
    ] = "caffnet",
) -> None:
    """Export a trained model to C, ONNX Runtime or C++, to run without Python."""
    from caffnet import ConstraintError
    from caffnet.deploy import to_aot, to_c, to_onnx
    from caffnet_lab.experiments.checkpoint import CheckpointError
    from caffnet_lab.experiments.records import RecordError
    from caffnet_lab.export import load_source

    if to not in ("c", "onnx", "aot"):
        _fail(ConfigError(f"--to must be c, onnx or aot, got {to!r}."))
    for option, value, usual, home in (("--name", name, "policy", "c"), ("--operators", operators, "caffnet", "onnx")):
        if value != usual and to != home:
            _fail(ConfigError(f"{option} is only for --to {home}, got --to {to}."))
    (_check_file if to == "onnx" else _check_folder)("--out", out)
    try:
        model, inputs = load_source(source)
        if to == "c":
            written = to_c(model, out, inputs=inputs, name=name)
        elif to == "onnx":
            _make_folder(out.parent)
            written = to_onnx(model, out, operators=operators, inputs=inputs)
        else:
            written = to_aot(model, out, inputs=inputs)
    except (ConstraintError, ConfigError, CheckpointError, RecordError) as error:
        _fail(error)
    _tell_written(Console(), written)


def _check_known(what: str, given: list[str] | None, known: Any) -> None:
    if unknown := [name for name in given or () if name not in known]:
        _fail(ConfigError(f"There is no {what} {unknown[0]!r}; there are {', '.join(known)}."))


def _numbers_of(option: str, text: str, count: int | None = None) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or (count is not None and len(numbers) != count):
        wanted = "numbers" if count is None else f"{count} numbers"
        _fail(ConfigError(f"{option} must be {wanted} with commas between, as in {option}=-1,0.5, got {text!r}."))
    return numbers


def _tell_written(console: Console, path: Path) -> None:
    console.print(f"written: {path}", markup=False, soft_wrap=True)


def _check_whole(option: str, value: int, least: int, most: int) -> None:
    try:
        check_whole(option, value, least, most)
    except ConfigError as error:
        _fail(error)


def _check_folder(option: str, folder: Path) -> None:
    """Raise an error if a file is where the folder should be. Creates nothing yet."""
    for path in (folder, *folder.parents):
        if path.is_dir():
            return
        if path.exists():
            _fail(ConfigError(f"{option} must be a folder, but {path} is a file: choose another."))


def _check_file(option: str, path: Path) -> None:
    if path.is_dir():
        _fail(ConfigError(f"{option} must be a file, but {path} is a folder: choose another."))
    _check_folder(f"The place of {option}", path.parent)


def _check_picture(option: str, path: Path) -> None:
    if path.suffix not in (".png", ".pdf", ".svg"):
        _fail(ConfigError(f"{option} must be a file that ends in .png, .pdf or .svg, got {path}."))
    _check_file(option, path)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _fail(ConfigError(f"{folder} must be a folder, but cannot be one: {error.strerror}."))


def _out_of_memory(error: BaseException) -> bool:
    """Return True if the error says that memory ran out, in Python or torch."""
    lacking = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return lacking or "can't allocate memory" in str(error)


def _fail(error: Exception) -> NoReturn:
    """Print the error in one line and exit with code 2."""
    what = str(error)
    if isinstance(error, OSError) and error.strerror:
        where = error.filename2 or error.filename
        what = f"{where} cannot be used: {error.strerror}." if where else f"{error.strerror}."
    lines = [what, *getattr(error, "__notes__", ())]
    typer.secho(f"Error: {' '.join(lines)}", fg="red", err=True)
    raise typer.Exit(2)
