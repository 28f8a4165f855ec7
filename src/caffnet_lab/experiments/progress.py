"""Progress of many runs, or of one long measurement: bars on a terminal, elsewhere a line at least every minute."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from caffnet_lab.experiments.yardsticks.tasks import DRIVES, FORECASTS, OPTIMISED

if TYPE_CHECKING:  # `caffnet bench` shows progress too, and needs no packages of the experiments
    from caffnet_lab.experiments.campaign import OnDone, OnTick
    from caffnet_lab.experiments.config import RunConfig
    from caffnet_lab.experiments.training import Tick

#: The number that a run is judged by; a dot goes into a group.
HEADLINE = {
    **{"pwc": ("mse", "MSE"), "opt": ("objective", "objective"), "cbf": ("cost", "cost")},
    **dict.fromkeys(OPTIMISED, ("gap.percent", "gap in %")),
    **dict.fromkeys(FORECASTS, ("score", "scaled error")),
    **dict.fromkeys(DRIVES, ("cost", "cost")),
}


#: Seconds between two lines in a log; ticks come after whole epochs, so a little less than a minute.
HEARTBEAT = 50.0


@contextlib.contextmanager
def progress_bars(runs: list[RunConfig], console: Console) -> Iterator[tuple[OnTick, OnDone]]:
    """The callbacks for `run_campaign`: bars with loss, violation and time left on a terminal, else lines."""
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        whole = bars.add_task("[bold]all runs", total=len(runs), status="")
        lines: dict[str, Any] = {}

        def on_tick(config: RunConfig, tick: Tick) -> None:
            if config.name not in lines:
                text = f"{config.task} {config.method} seed {config.seed}"
                lines[config.name] = bars.add_task(text, total=tick.epochs, status="")
            line = lines[config.name]
            bars.update(line, completed=tick.epoch, status=f"loss {tick.loss:.4g} violation {tick.worst:.1e}")

        def on_done(config: RunConfig, record: dict[str, Any]) -> None:
            if config.name in lines:
                bars.remove_task(lines.pop(config.name))
            bars.console.print(describe(config, record), highlight=False)
            bars.advance(whole)

        yield on_tick, on_done


@contextlib.contextmanager
def progress_bar(console: Console, total: float | None = None) -> Iterator[Callable[[str, float | None], None]]:
    """The callback of one long measurement: what is done now, and how much of `total` is complete."""
    if not console.is_terminal:
        log = _Log(console)
        yield lambda text, completed: log.say_sometimes(text)
        return
    with Progress(console=console, transient=True) as bars:
        bar = bars.add_task("measuring", total=total)
        yield lambda text, completed: bars.update(bar, description=escape(text), completed=completed)


class _Log:
    """Lines in a pipe.

    Args:
        console: where they go.
    """

    def __init__(self, console: Console):
        self.console = console
        self.last = time.monotonic()

    def say(self, text: str) -> None:
        self.last = time.monotonic()
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def say_sometimes(self, text: str) -> None:
        if time.monotonic() - self.last >= HEARTBEAT:
            self.say(text)


def _lines(console: Console) -> tuple[OnTick, OnDone]:
    """For a pipe: what is finished, and in between how far a run is, at least every minute or every epoch."""
    log = _Log(console)

    def on_tick(config: RunConfig, tick: Tick) -> None:
        done = f"epoch {tick.epoch} of {tick.epochs}"
        log.say_sometimes(f"{config.label}: {done}, loss {tick.loss:.6g}, worst violation {tick.worst:.1e}")

    return on_tick, lambda config, record: log.say(describe(config, record))


def describe(config: RunConfig, record: dict[str, Any]) -> str:
    """A finished run in one line."""
    key, label = HEADLINE[config.task]
    found = record["evaluation"]
    value = functools.reduce(lambda part, name: part[name], key.split("."), found)
    worst = max(found[kind]["max"] for kind in ("inequality", "equality") if kind in found)
    return f"{config.label}: {label} {value:.6g}, worst violation {worst:.1e}"
