"""Figures of the yardsticks: gaps, losses over time, flows of a dispatch, forecasts, ways past obstacles."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from caffnet_lab.experiments.config import UNTRAINED
from caffnet_lab.experiments.report.figures import COLOURS, DASHED, STYLE, lowest_losses
from caffnet_lab.experiments.report.groups import Group, main_groups, title_of
from caffnet_lab.experiments.report.yardsticks import breaks_rows
from caffnet_lab.experiments.shape import is_number
from caffnet_lab.experiments.yardsticks.tasks import DRIVES, ELLIPSES, FORECASTS

LEAST = 1e-6  # percent: what lies below is drawn there
LEAST_LOSS = 1e-4  # of the loss above the lowest, over the number of samples that the lowest stands for
SOLVERS = ("ipopt", "daqp", "highs", "highs-warm")


def yardstick_figures(groups: list[Group]) -> dict[str, tuple[str, Figure]]:
    """Every figure that these groups of one task allow: name -> (caption, figure)."""
    if not groups:
        return {}
    groups = main_groups(groups, groups[0].task, groups[0].protocol)
    drawn: dict[str, tuple[str, Figure]] = {}
    with matplotlib.rc_context(STYLE):
        gaps = gap_distribution(groups) if "gap_percent" in groups[0].records[0]["curves"] else None
        if gaps is not None:
            caption = (
                "Share of the test samples with at least this gap to the optimum, first seed; dashed: methods that "
                f"break some row by more than 1e-6. Gaps below {LEAST:g} % are drawn at {LEAST:g} %."
            )
            drawn["gaps"] = (caption, gaps)
        losses = loss_by_epoch(groups)
        if losses is not None:
            caption = (
                "Training loss above the lowest of the methods that keep the rows, first seed; dashed: methods that "
                "break some row, whose losses include penalties. The table of speeds compares the time of epochs."
            )
            drawn["loss"] = (caption, losses)
        for name, caption, draw in (
            (
                "flows",
                "Flows of all branches for the largest test load, from the lower limit (-1) to the upper one (1), in "
                "the order of the optimum's; flows outside break a limit.",
                dispatched_flows,
            ),
            (
                "forecasts",
                "The bottom series with the most zeros in the test times, one step ahead: actual values, base "
                "forecasts and the forecasts of the methods.",
                forecasts,
            ),
            ("paths", "The path of the axle from eight test starts, and the ellipses; first seed.", paths),
        ):
            figure = draw(groups)
            if figure is not None:
                drawn[name] = (caption, figure)
    return drawn


def gap_distribution(groups: list[Group]) -> Figure | None:
    """One line per method: its quantiles, from the largest gap down."""
    shown = [group for group in groups if group.method not in SOLVERS]
    if not shown:
        return None
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    ax = figure.subplots()
    for group in shown:
        quantiles = group.records[0]["curves"]["gap_percent"]
        share = [100 * (1 - i / (len(quantiles) - 1)) for i in range(len(quantiles))]
        broken = group.records[0]["evaluation"]["infeasible"] > 0
        dashes = "--" if broken else "-"
        gaps = [max(gap, LEAST) for gap in quantiles]
        ax.plot(gaps, share, label=_short_title(group), color=COLOURS[group.method], linestyle=dashes)
    ax.set_xscale("log")
    ax.set_xlabel("Gap to the optimum (%)")
    ax.set_ylabel("Samples (%)")
    figure.legend(loc="outside right upper")
    return figure


def loss_by_epoch(groups: list[Group]) -> Figure | None:
    """The training loss by epoch, with the penalty of soft rows. Not over seconds: the runs shared machines."""
    shown = [group for group in groups if group.method not in (*UNTRAINED, "post-hoc")]
    shown = [group for group in shown if group.records[0]["training"]["history"]["epoch"]]
    if not shown:
        return None
    keep = [group for group in shown if not breaks_rows(group)]
    lowest = min(lowest_losses(keep or shown).values())
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    ax = figure.subplots()
    for group in shown:
        history = group.records[0]["training"]["history"]
        pairs = zip(history["epoch"], history["loss"], strict=True)
        points = [(epoch + 1, loss - lowest) for epoch, loss in pairs if is_number(loss)]
        above = [(epoch, loss) for epoch, loss in points if loss > LEAST_LOSS]
        if not above:  # below the reference from the first epoch on: the rows are broken
            continue
        dashes = "--" if breaks_rows(group) else "-"
        alone = "o" if len(above) == 1 else None
        line = {"color": COLOURS[group.method], "linestyle": dashes, "marker": alone}
        ax.plot(*zip(*above, strict=True), label=_short_title(group), **line)
    ax.set_yscale("log")
    ax.set_xlabel("Epoch")
    ax.set_ylabel("Training loss above the lowest")
    figure.legend(loc="outside right upper")
    return figure


def dispatched_flows(groups: list[Group]) -> Figure | None:
    """Binding lines: those at -1 or 1."""
    curves = {group.method: group.records[0]["curves"].get("flows") for group in groups}
    best = curves.get("direction") or curves.get("highs")
    shown = [
        group for group in groups if group.method in ("nn", "dc3", "orthogonal", "direction") and curves[group.method]
    ]
    if best is None or not shown:
        return None
    order = sorted(range(len(best)), key=lambda i: best[i])
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    ax = figure.subplots()
    for limit in (-1, 1):
        ax.axhline(limit, color="black", linewidth=0.8, linestyle=":")
    for group in shown:
        values = [curves[group.method][i] for i in order]
        ax.plot(values, ".", color=COLOURS[group.method], label=_short_title(group), markersize=4)
    ax.set_xlabel("Branch")
    ax.set_ylabel("Flow within its limits")
    figure.legend(loc="outside right upper")
    return figure


def forecasts(groups: list[Group]) -> Figure | None:
    """Base forecasts, MinT, and what keeps the signs."""
    shown = [group for group in groups if group.method in ("base", "mint", "minimiser", "orthogonal")]
    shown = [group for group in shown if "forecast" in group.records[0]["curves"]]
    if not shown:
        return None
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    ax = figure.subplots()
    ax.axhline(0, color="black", linewidth=0.8, linestyle=":")
    ax.plot(shown[0].records[0]["curves"]["target"], color="black", linewidth=1.0, label="actual values")
    for group in shown:
        style = DASHED["hardnet"] if group.method == "mint" else "-"
        values = group.records[0]["curves"]["forecast"]
        ax.plot(values, color=COLOURS[group.method], label=_short_title(group), linestyle=style, linewidth=1.1)
    ax.set_xlabel("Time in the test")
    ax.set_ylabel("Value")
    figure.legend(loc="outside right upper")
    return figure


def paths(groups: list[Group]) -> Figure | None:
    """The plane with the ellipses."""
    shown = [group for group in groups if group.method in ("base", "minimiser", "nn", "orthogonal")]
    shown = [group for group in shown if "paths" in group.records[0]["curves"]]
    if not shown:
        return None
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    ax = figure.subplots()
    for x, y, width, height in ELLIPSES:
        ax.add_patch(Ellipse((x, y), 2 * width, 2 * height, facecolor="#BDBDBD", edgecolor="#777777"))
    for group in shown:
        for i, path in enumerate(group.records[0]["curves"]["paths"]):
            label = _short_title(group) if i == 0 else None
            ax.plot(*zip(*path, strict=True), color=COLOURS[group.method], label=label, linewidth=0.9)
    ax.set_aspect("equal")
    ax.set_xlabel("$p_x$ (m)")
    ax.set_ylabel("$p_y$ (m)")
    figure.legend(loc="outside right upper")
    return figure


def _short_title(group: Group) -> str:
    """The title without the sentence that explains it."""
    short = {"minimiser": "minimiser, projected", "sequential": "50 projections"}
    short |= {"minimiser": "CBF-QP"} if group.task in DRIVES else {}
    short |= {"minimiser": "non-negative MinT"} if group.task in FORECASTS else {}
    return short.get(group.method, title_of(group.task, group.method).removeprefix("No learning: "))
