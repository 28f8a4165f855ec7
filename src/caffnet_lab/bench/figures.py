"""Plots of a run: growth in log-log with fitted exponents, and every task as ratios to the backbone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from caffnet_lab.bench.claims import DIRECTIONS, EXPONENT_FROM, Table
from caffnet_lab.bench.contestants import BACKBONE, LAYER
from caffnet_lab.bench.measure import Record

DPI = 160
TITLES = {"forward": "forward", "train": "forward + backward"}
#: Okabe and Ito's colours, which colour-blind readers can distinguish; each has its own marker.
_LOOKS = {
    LAYER: ("#D55E00", "o", "-"),
    BACKBONE: ("#000000", "", "--"),
    "caffnet-full": ("#E69F00", "s", "-"),
    "caffnet-lite": ("#E69F00", "v", "-"),
    "caffnet-active": ("#E69F00", "o", "-"),
    "literal": ("#999999", "X", ":"),
    "cvxpylayers": ("#CC79A7", "^", "-"),
    "cvxpylayers-moreau": ("#CC79A7", "D", "-"),
    "qpth": ("#0072B2", "v", "-"),
    "proxsuite": ("#0072B2", "s", "-"),
    "qpax": ("#56B4E9", "P", "-"),
    "pinet": ("#56B4E9", "*", "-"),
    "daqp": ("#009E73", "o", "--"),
    "quadprog": ("#009E73", "^", "--"),
    "piqp": ("#009E73", "s", "--"),
}
_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def draw(folder: Path, facts: Sequence[dict[str, Any]], records: Sequence[Record]) -> list[Path]:
    """Write what the records allow: ``growth.png`` needs two sizes, ``ratios.png`` one task."""
    table = Table(facts, records)
    written = []
    with matplotlib.rc_context(_STYLE):
        for name, make in (("growth.png", growth), ("ratios.png", ratios)):
            figure = make(table)
            if figure is not None:
                figure.savefig(folder / name, dpi=DPI)
                written.append(folder / name)
    return written


def growth(table: Table) -> Figure | None:
    """Time over n, both axes logarithmic; the exponents are fitted from n = 16 on."""
    lines = {d: {name: table.growth(name, d) for name in _LOOKS} for d in DIRECTIONS}
    if not any(len(points) >= 2 for points in lines["forward"].values()):
        return None
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for panel, direction in zip(axes, DIRECTIONS, strict=True):
        drawn = {name: points for name, points in lines[direction].items() if points}
        for name, points in drawn.items():
            colour, marker, line = _LOOKS[name]
            slope = table.exponent(name, direction)
            label = name if slope is None else f"{name}: n^{slope:.1f}"
            n, seconds = zip(*points, strict=True)
            width = 2.2 if name == LAYER else 1.2
            panel.plot(n, [1e3 * s for s in seconds], line, c=colour, marker=marker, ms=5, lw=width, label=label)
        sizes = sorted({n for points in drawn.values() for n, _ in points})
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(sizes, [str(n) for n in sizes])
        panel.minorticks_off()
        panel.grid(alpha=0.25, lw=0.5)
        panel.set_xlabel("outputs n, with 4n rows per sample")
        panel.set_title(TITLES[direction], loc="left")
        panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), title=f"fit from n = {EXPONENT_FROM}")
    axes[0].set_ylabel("milliseconds for 256 samples")
    return figure


def ratios(table: Table) -> Figure | None:
    """For each task outside of growth: time over that of the backbone."""
    tasks = [name for name, fact in table.facts.items() if fact["family"] != "growth"]
    names = [n for n in _LOOKS if n != BACKBONE and any(table.ratio(t, n, BACKBONE, "forward") for t in tasks)]
    if not tasks or not names:
        return None
    figure = Figure(figsize=(11, 0.9 + 0.26 * len(names) + 0.6), layout="constrained")
    axes = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for panel, task in zip(axes, tasks, strict=True):
        for place, name in enumerate(names):
            colour = _LOOKS[name][0]
            for direction, face in zip(DIRECTIONS, (colour, "white"), strict=True):
                value = table.ratio(task, name, BACKBONE, direction)
                if value is not None:
                    panel.plot(value, place, "o", mec=colour, mfc=face, ms=6, mew=1.4)
        panel.axvline(1, c="black", lw=0.8, ls="--")
        panel.set_xscale("log")
        panel.set_title(task, loc="left")
        panel.grid(axis="x", alpha=0.25, lw=0.5)
        panel.minorticks_off()
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    figure.supxlabel("time / backbone's time; full: forward, empty: forward + backward", fontsize=9)
    return figure
