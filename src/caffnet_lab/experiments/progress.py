"""Progress of many runs on a terminal; one line per finished run elsewhere."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from caffnet_lab.experiments.campaign import OnDone, OnTick
from caffnet_lab.experiments.config import RunConfig
from caffnet_lab.experiments.training import Tick
from caffnet_lab.experiments.yardsticks.tasks import DRIVES, FORECASTS, OPTIMISED

#: The number that a run is judged by; a dot goes into a group.
HEADLINE = {
    **{"pwc": ("mse", "MSE"), "opt": ("objective", "objective"), "cbf": ("cost", "cost")},
    **dict.fromkeys(OPTIMISED, ("gap.percent", "gap in %")),
    **dict.fromkeys(FORECASTS, ("score", "scaled error")),
    **dict.fromkeys(DRIVES, ("cost", "cost")),
}


@contextlib.contextmanager
def progress_bars(runs: list[RunConfig], console: Console) -> Iterator[tuple[OnTick | None, OnDone]]:
    """The callbacks for `run_campaign`: bars with loss, violation and time left, if the console is a terminal."""
    if not console.is_terminal:
        yield None, lambda config, record: console.print(describe(config, record), soft_wrap=True, highlight=False)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        whole = bars.add_task("[bold]all runs", total=len(runs), told="")
        lines: dict[str, Any] = {}

        def on_tick(config: RunConfig, tick: Tick) -> None:
            if config.name not in lines:
                text = f"{config.task} {config.method} seed {config.seed}"
                lines[config.name] = bars.add_task(text, total=tick.epochs, told="")
            line = lines[config.name]
            bars.update(line, completed=tick.epoch, told=f"loss {tick.loss:.4g} violation {tick.worst:.1e}")

        def on_done(config: RunConfig, record: dict[str, Any]) -> None:
            if config.name in lines:
                bars.remove_task(lines.pop(config.name))
            bars.console.print(describe(config, record), highlight=False)
            bars.advance(whole)

        yield on_tick, on_done


def describe(config: RunConfig, record: dict[str, Any]) -> str:
    """A finished run in one line."""
    key, label = HEADLINE[config.task]
    found = record["evaluation"]
    value = functools.reduce(lambda part, name: part[name], key.split("."), found)
    worst = max(found[kind]["max"] for kind in ("inequality", "equality") if kind in found)
    return f"{config.label}: {label} {value:.6g}, worst violation {worst:.1e}"
