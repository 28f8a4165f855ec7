"""Tables and a figure from the records of `simulate` and `rl`. Reads records, computes nothing but means."""

from __future__ import annotations

import math
import statistics
from itertools import groupby
from pathlib import Path
from typing import Any

from caffnet_lab.markup import markdown_row
from caffnet_lab.safe_control.records import read
from caffnet_lab.safe_control.scenarios import SCENARIOS

HEAD = """# Safe control, measured

Made by `caffnet control-report` from the records of `caffnet simulate` and `caffnet rl`.
"""


def report(folder: Path, markdown: Path, figure: Path) -> list[Path]:
    """Write the page and the figure; returns their paths, none if there are no records."""
    simulations, runs, times = read(folder)
    if not (simulations or runs or times):
        return []
    parts = [HEAD]
    written = [markdown]
    parts += [step_table(record["microseconds"]) for record in times]
    if simulations:
        parts.append(simulation_table(simulations))
    if runs:
        figure.parent.mkdir(parents=True, exist_ok=True)
        draw(runs, figure)
        written.append(figure)
        parts.append(agent_table(runs))
        place = Path(*[".."] * len(markdown.parent.parts), figure) if not figure.is_absolute() else figure
        place = figure.relative_to(markdown.parent) if figure.is_relative_to(markdown.parent) else place
        parts.append(f"![Returns of the agents over the steps of training]({place.as_posix()})\n")
    markdown.parent.mkdir(parents=True, exist_ok=True)
    markdown.write_text("\n".join(parts), encoding="utf-8")
    return written


def step_table(times: dict[str, float]) -> str:
    """The time of one step at batch 1."""
    backbone, bare = times["cbf backbone"], times["Pendulum bare"]
    rows = [
        ("cbf: backbone", backbone, "1.0 x"),
        ("cbf: constraint", times["cbf constraint"], f"{times['cbf constraint'] / backbone:.1f} x the backbone"),
        ("cbf: whole step", times["cbf step"], f"{times['cbf step'] / backbone:.1f} x the backbone"),
        ("`HighOrder.evaluate`, 2 circles", times["HighOrder.evaluate"], ""),
        ("Pendulum, bare", bare, ""),
        (
            "... `SafeActions`, a fixed set",
            times["Pendulum, fixed set"],
            f"+{times['Pendulum, fixed set'] - bare:.0f} µs",
        ),
        ("... `SafeActions`, a barrier", times["Pendulum, barrier"], f"+{times['Pendulum, barrier'] - bare:.0f} µs"),
    ]
    lines = ["## One step\n", "At batch 1, without gradients, single calls in turn (lower quartile).\n"]
    lines += [markdown_row(["step", "µs", ""]), markdown_row(["---"] * 3)]
    return "\n".join([*lines, *(markdown_row([name, f"{t:.0f}", note]) for name, t, note in rows), ""])


def simulation_table(records: list[dict[str, Any]]) -> str:
    """One row per scenario."""
    order = list(SCENARIOS)
    lines = [
        "## Simulations\n",
        "A reckless driver from many safe states, inputs held for dt, 20 substeps between, disturbances where given.",
        "The smallest value of what must stay >= 0, over all substeps of all paths. Provoked: from states of a box",
        "twice as large, where many cannot be saved; the inputs stay within the limits.\n",
        markdown_row(
            [
                "system",
                "starts",
                "dt",
                "disturbed",
                "smallest h",
                "without filter",
                "crash without",
                "infeasible",
                "provoked",
            ]
        ),
        markdown_row(["---"] * 9),
    ]
    for r in sorted(records, key=lambda r: order.index(r["scenario"])):
        beyond = max(r["beyond_limits"], r["provoked_beyond_limits"])
        lines.append(
            markdown_row(
                [
                    r["scenario"],
                    str(r["starts"]),
                    f"{r['dt']:g} s",
                    "yes" if any(r["wind"]) else "no",
                    f"{r['smallest']:.1e}",
                    f"{r['smallest_without']:.2g}",
                    f"{100 * r['crashed_without']:.0f} %",
                    f"{r['infeasible_states']} of {r['states']}",
                    f"{r['provoked_infeasible']} infeasible, {beyond:.0e} beyond limits",
                ]
            )
        )
    return "\n".join([*lines, ""])


def agent_table(runs: list[dict[str, Any]]) -> str:
    """One row per task and agent: mean and standard deviation over seeds."""
    lines = [
        "## Action-constrained reinforcement learning\n",
        "Rows that depend on the state (Kasaura et al. 2023). Every agent acts through `SafeActions`. `filter`: its",
        "policy ignores the rows; `project`: the projection is its last layer; `interior`: the bijection into",
        "the inside, for SAC with exact log-probabilities. Changed: the share of its actions, without noise, that the",
        "filter had to change (float32 rounding included). Short runs on one busy core: read them as a comparison.\n",
        markdown_row(["task", "agent", "seeds", "steps", "return", "changed", "violated", "training", "per action"]),
        markdown_row(["---"] * 9),
    ]
    for (task, agent), some in _grouped(runs):
        returns = [r["return"] for r in some]
        lines.append(
            markdown_row(
                [
                    task,
                    agent,
                    str(len(some)),
                    str(some[0]["steps"]),
                    f"{statistics.fmean(returns):.1f} ± {statistics.pstdev(returns):.1f}",
                    f"{100 * statistics.fmean(r['changed'] for r in some):.1f} %",
                    f"{sum(r['violated_steps'] for r in some)} of {sum(r['counted_steps'] for r in some)}",
                    f"{statistics.median(r['training_seconds'] for r in some):.0f} s",
                    f"{statistics.median(r['acting_microseconds'] for r in some):.0f} µs",
                ]
            )
        )
    return "\n".join([*lines, ""])


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """The return over the steps of training, a panel per task: mean over seeds, and their range."""
    from matplotlib.figure import Figure

    tasks = sorted({r["task"] for r in runs})
    picture = Figure((3.4 * len(tasks), 3.6), layout="constrained")
    panels = picture.subplots(1, len(tasks), squeeze=False)[0]
    for panel, task in zip(panels, tasks, strict=True):
        for (name, agent), some in _grouped(runs):
            if name != task:
                continue
            steps = [point[0] for point in some[0]["curve"]]
            values = list(zip(*([point[1] for point in r["curve"]] for r in some), strict=True))
            panel.plot(steps, [statistics.fmean(v) for v in values], marker="o", ms=3, label=agent)
            panel.fill_between(steps, [min(v) for v in values], [max(v) for v in values], alpha=0.15)
        panel.set_title(task)
        panel.set_xlabel("steps of training")
        panel.locator_params(axis="x", nbins=4)
    panels[0].set_ylabel("return per episode")
    picture.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    picture.savefig(path, dpi=150)


def _grouped(runs: list[dict[str, Any]]) -> list[tuple[tuple[str, str], list[dict[str, Any]]]]:
    """Runs of one task and agent, of the length that most of them have."""

    def key(r: dict[str, Any]) -> tuple[str, str]:
        return r["task"], r["agent"]

    found = []
    for pair, some in groupby(sorted(runs, key=key), key):
        every = list(some)
        steps = statistics.mode(r["steps"] for r in every)
        found.append((pair, [r for r in every if r["steps"] == steps and math.isfinite(r["return"])]))
    return found
