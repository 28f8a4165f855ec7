"""Figures of the yardsticks: how the gaps are distributed, and how the loss falls over time."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure

from caffnet_lab.experiments.config import UNTRAINED
from caffnet_lab.experiments.report.figures import COLOURS, DASHED, STYLE, lowest_losses
from caffnet_lab.experiments.report.groups import TITLES, Group, main_groups
from caffnet_lab.experiments.shape import is_number

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
                "Share of the test samples whose gap to the optimum is at least so large, first seed; dashed: methods "
                f"that break some row by more than 1e-6. Gaps below {LEAST:g} % are drawn there."
            )
            drawn["gaps"] = (caption, gaps)
        losses = loss_over_time(groups)
        if losses is not None:
            caption = "Training loss above the lowest of all methods, over the seconds of training, first seed."
            drawn["loss"] = (caption, losses)
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
        style = {"color": COLOURS[group.method], "linestyle": "--" if broken else "-"}
        ax.plot([max(gap, LEAST) for gap in quantiles], share, label=_short_title(group), **style)
    ax.set_xscale("log")
    ax.set_xlabel("Gap to the optimum (%)")
    ax.set_ylabel("Samples (%)")
    figure.legend(loc="outside right upper")
    return figure


def loss_over_time(groups: list[Group]) -> Figure | None:
    """The training loss, in which soft rows have their penalty, against the time that its epochs took."""
    shown = [group for group in groups if group.method not in (*UNTRAINED, "post-hoc")]
    shown = [group for group in shown if group.records[0]["training"]["history"]["epoch"]]
    if not shown:
        return None
    lowest = min(lowest_losses(shown).values())
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    ax = figure.subplots()
    for group in shown:
        training = group.records[0]["training"]
        each = training["seconds"] / max(group.epochs, 1)
        pairs = zip(training["history"]["epoch"], training["history"]["loss"], strict=True)
        points = [((epoch + 1) * each, loss - lowest) for epoch, loss in pairs if is_number(loss)]
        above = [(seconds, loss) for seconds, loss in points if loss > LEAST_LOSS]
        dashes = DASHED.get(group.method, "-")
        ax.plot(*zip(*above, strict=True), color=COLOURS[group.method], label=_short_title(group), linestyle=dashes)
    ax.set_yscale("log")
    ax.set_xscale("log")
    ax.set_xlabel("Seconds")
    ax.set_ylabel("Training loss above the lowest")
    figure.legend(loc="outside right upper")
    return figure


def _short_title(group: Group) -> str:
    """The title without the sentence that explains it."""
    return {"minimiser": "minimiser, projected", "sequential": "50 projections"}.get(
        group.method, TITLES[group.method].removeprefix("No learning: ")
    )
