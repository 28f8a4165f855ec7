"""What the null-space vector w is good for: the same runs without it, from zero, from a random start, and alone."""

from __future__ import annotations

from collections.abc import Sequence

from caffnet_lab.experiments.report.groups import TITLES, Group, full_runs, mean_and_spread
from caffnet_lab.experiments.report.tables import EMPTY, Cell, Table, optima
from caffnet_lab.experiments.report.yardsticks import JUDGED

STARTS = ("none", "zero", "random")
NOTE = (
    "Lower is better. opt: the largest distance of the mean objective to IPOPT's over the seeds, and how many seeds; "
    "in the last two columns f is a soft network, trained and then frozen: projected as it is, or with w trained alone "
    "(`caffnet run opt --protocol ours --method repair`). The yardsticks: the mean of the figure that methods are "
    "compared by (gap in percent, error, cost), with the tangent gradient; whether a difference is one stands in their "
    "tables."
)


def null_space_table(groups: Sequence[Group]) -> Table | None:
    """One row per task, protocol and network that has runs with and without w."""
    known = full_runs(groups)
    rows = [*_paper_rows(known), *_yardstick_rows(known)]
    if not rows:
        return None
    columns = ("Runs", "without w", "w from zero", "w from random", "f frozen, projected", "f frozen, only w trained")
    return Table("null-space", "With and without w", NOTE, columns, tuple(rows))


def _paper_rows(groups: list[Group]) -> list[tuple[Cell, ...]]:
    best = optima(list(groups))
    rows = []
    for protocol in ("paper", "ours"):
        mine = [group for group in groups if (group.task, group.protocol) == ("opt", protocol)]
        for method in ("caffnet-ff", "caffnet-tf"):
            found = {_start(group): group for group in reversed(mine) if group.method == method and _start(group)}
            if len(found) < 2:
                continue
            last = [
                next((g for g in mine if g.method == name and not g.changes), None) for name in ("post-hoc", "repair")
            ]
            shown = [found.get(start) for start in STARTS] + (last if method == "caffnet-ff" else [None, None])
            rows.append((Cell(text=f"opt {protocol}: {TITLES[method]}"), *(_largest_gap(g, best) for g in shown)))
    return rows


def _start(group: Group) -> str | None:
    """How w starts, where nothing else departs from the protocol."""
    others = [change for change in group.changes.split(", ") if change and not change.startswith("null_start=")]
    return None if others else group.records[0]["config"]["null_start"]


def _largest_gap(group: Group | None, best: dict[int, float]) -> Cell:
    if group is None:
        return EMPTY
    pairs = zip(group.seeds, group.values("objective"), strict=True)
    gaps = [abs(value - best[seed]) for seed, value in pairs if seed in best]
    return Cell(max(gaps), remark=f", {len(gaps)} seed{'s' * (len(gaps) > 1)}") if gaps else EMPTY


def _yardstick_rows(groups: list[Group]) -> list[tuple[Cell, ...]]:
    rows = []
    for task, (column, _) in JUDGED.items():
        plain = {g.method: g for g in reversed(groups) if g.task == task and not g.changes}
        if "orthogonal" in plain and "caffnet-ff" in plain:
            cells = [Cell(*mean_and_spread(plain[name].values(column))) for name in ("orthogonal", "caffnet-ff")]
            rows.append((Cell(text=f"{task}: CAffNet-FF"), *cells, EMPTY, EMPTY, EMPTY))
    return rows
