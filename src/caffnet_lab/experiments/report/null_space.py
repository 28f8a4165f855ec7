"""The effect of the null-space vector w: the same runs without it, from zero, from a random start, and alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from caffnet_lab.experiments.config import PAPER_TASKS, PROTOCOLS
from caffnet_lab.experiments.report.groups import TITLES, Group, full_runs, mean_and_spread
from caffnet_lab.experiments.report.tables import EMPTY, Cell, Table, optima
from caffnet_lab.experiments.report.yardsticks import JUDGED

STARTS = ("none", "zero", "random")
OTHERS = ("caffnet-ff-each", "post-hoc", "repair")
#: Settings that go with w: how fast it learns, and widths, so that one network is as large as two.
OF_W = ("null_rate", "hidden", "feedforward")
DIVERGED = 1e3  # times the best seed: a figure beyond that is no result of training
NOTE = (
    "Lower is better. opt: the largest distance of the mean objective to IPOPT's over the seeds; pwc: the mean MSE; "
    "cbf: the largest cost; with the number of seeds, and in square brackets how the sizes of the networks and the "
    "rate of w differ from the protocol's. “A w for every choice of rows” follows a remark of the paper, by "
    "enumeration and with the exact gradient. In the last two columns f is a soft network, trained and then frozen: "
    "projected as it is, or with w trained alone (`caffnet run opt --protocol ours --method repair`). Rows of the "
    "yardsticks: the mean of the main figure of the task (gap in percent, error, cost), with the tangent gradient, "
    "over the seeds that did not diverge; the tables seed by seed say whether a difference is significant."
)


def null_space_table(groups: Sequence[Group]) -> Table | None:
    """One row per task, protocol and network that has runs with and without w."""
    known = full_runs(groups)
    rows = [*_paper_rows(known), *_yardstick_rows(known)]
    if not rows:
        return None
    columns = ("Runs", "without w", "w from zero", "w from random", "a w for every choice of rows")
    columns += ("f frozen, projected", "f frozen, only w trained")
    return Table("null-space", "With and without w", NOTE, columns, tuple(rows))


def _paper_rows(groups: list[Group]) -> list[tuple[Cell, ...]]:
    """Runs are compared with those whose other settings are the same: a row for each, the protocol's own first."""
    best = optima(list(groups))
    rows = []
    for task, protocol in ((task, protocol) for task in PAPER_TASKS for protocol in PROTOCOLS):
        mine = [group for group in groups if (group.task, group.protocol) == (task, protocol)]
        for rest in sorted({_split(group)[1] for group in mine}):
            same = [group for group in mine if _split(group)[1] == rest]
            for method in ("caffnet-ff", "caffnet-tf"):
                found = {_start(group): group for group in reversed(same) if group.method == method}
                others = [next((g for g in same if g.method == name), None) for name in OTHERS]
                if method == "caffnet-tf":
                    others = [None] * len(OTHERS)
                shown = [found.get(start) for start in STARTS] + others
                without = [
                    group for group in shown if group and (group.method == "post-hoc" or _start(group) == "none")
                ]
                if not without or len(without) == sum(group is not None for group in shown):
                    continue
                title = f"{task} {protocol}: {TITLES[method]}" + (f" [{rest}]" if rest else "")
                rows.append((Cell(text=title), *(_figure(group, best) for group in shown)))
    return rows


def _start(group: Group) -> str:
    """Start of w."""
    return group.records[0]["config"]["null_start"]


def _split(group: Group) -> tuple[str, str]:
    """Differences from the protocol: the settings that go with w, without its start, and all others."""
    changes = [change for change in group.changes.split(", ") if change and not change.startswith("null_start=")]
    of_w = [change for change in changes if change.partition("=")[0] in OF_W]
    return ", ".join(of_w), ", ".join(change for change in changes if change not in of_w)


def _figure(group: Group | None, best: dict[int, float]) -> Cell:
    """Figure by which a group is compared, over its seeds."""
    if group is None:
        return EMPTY
    if group.task == "opt":
        pairs = zip(group.seeds, group.values("objective"), strict=True)
        values = [abs(value - best[seed]) for seed, value in pairs if seed in best]
    else:
        values = group.values({"pwc": "mse", "cbf": "cost"}[group.task])
    if not values:
        return EMPTY
    of_w, _ = _split(group)
    size = f" [{of_w}]" if of_w else ""
    figure = statistics.fmean(values) if group.task == "pwc" else max(values)
    return Cell(figure, remark=f", {len(values)} seed{'s' * (len(values) > 1)}{size}")


def _over_seeds(values: list[float]) -> Cell:
    """Mean and deviation of a figure, and how many seeds diverged: these are not in the mean.

    >>> cell = _over_seeds([0.5, 0.7, 3e9])
    >>> cell.mean, cell.remark
    (0.6, ', 1 of 3 seeds diverged')
    """
    kept = [value for value in values if value <= max(1.0, abs(min(values))) * DIVERGED]
    lost = len(values) - len(kept)
    return Cell(*mean_and_spread(kept), remark=f", {lost} of {len(values)} seeds diverged" if lost else "")


def _yardstick_rows(groups: list[Group]) -> list[tuple[Cell, ...]]:
    rows = []
    for task, (column, _) in JUDGED.items():
        plain = {g.method: g for g in reversed(groups) if g.task == task and not g.changes}
        if "orthogonal" in plain and "caffnet-ff" in plain:
            cells = [_over_seeds(plain[name].values(column)) for name in ("orthogonal", "caffnet-ff")]
            rows.append((Cell(text=f"{task}: CAffNet-FF"), *cells, EMPTY, EMPTY, EMPTY, EMPTY))
    return rows
