"""All three experiments in one table: the paper's headline figures beside those of the records."""

from __future__ import annotations

from caffnet_lab.experiments.config import PAPER_TASKS, PROTOCOLS, SEEDS
from caffnet_lab.experiments.report.groups import ORDER, TITLES, Group, full_runs, main_groups, mean_and_spread
from caffnet_lab.experiments.report.published import PAPER
from caffnet_lab.experiments.report.tables import COLUMNS, EMPTY, Cell, Table

NOTE = (
    "Lower is better. Mean over the paper's seeds, or those that are stated, with the sample standard deviation in "
    "brackets; then the largest violation of any row, sample and seed. Settings that differ from the protocol's are in "
    "square brackets. Networks with dropout are measured as in the paper's table, with dropout on."
)


def summary_table(groups: list[Group]) -> Table | None:
    """One row per method of each experiment; for each protocol that has runs, the figure and the largest violation."""
    groups = full_runs(groups)
    protocols = [p for p in PROTOCOLS if any(group.protocol == p for group in groups)]
    rows = []
    for task in PAPER_TASKS:
        column, label = COLUMNS[task][0]
        runs = {p: {group.method: group for group in main_groups(groups, task, p)} for p in protocols}
        for method in (m for m in ORDER if any(m in found for found in runs.values())):
            published = PAPER[task].get(method, {}).get(column)
            name = f"{task} {label if label.isupper() else label.lower()}: {TITLES[method]}"
            cells = [Cell(text=name), Cell(*published) if published else EMPTY]
            for protocol in protocols:
                group = runs[protocol].get(method)
                cells += [EMPTY, EMPTY] if group is None else [_figure(group, column), _violation(group)]
            rows.append(tuple(cells))
    if not rows:
        return None
    columns = ["Experiment", "Paper"]
    for protocol in protocols:
        columns += [f"Protocol “{protocol}”", f"violation, “{protocol}”"]
    return Table("summary", "At a glance", NOTE, tuple(columns), tuple(rows))


def _variant(group: Group) -> str:
    """Figures with dropout on, for groups whose networks have dropout."""
    return "dropout_on." if group.values("dropout_on.inequality.max") else ""


def _figure(group: Group, column: str) -> Cell:
    mean, spread = mean_and_spread(group.values(_variant(group) + column))
    seeds = f"seed{'s' * (len(group.seeds) > 1)} {' '.join(map(str, group.seeds))}"
    remark = "" if tuple(group.seeds) == SEEDS[group.task] else f", {seeds}"
    return Cell(mean, spread, remark=remark + (f" [{group.changes}]" if group.changes else ""))


def _violation(group: Group) -> Cell:
    kinds = ("inequality", "equality")
    found = [value for kind in kinds for value in group.values(f"{_variant(group)}{kind}.max")]
    return Cell(max(found))
