"""Tables of the yardsticks: each task beside what is published, seed by seed comparisons, and the goals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from caffnet_lab.experiments.config import UNTRAINED, resolve
from caffnet_lab.experiments.records import RecordError
from caffnet_lab.experiments.report.formats import number
from caffnet_lab.experiments.report.groups import TITLES, Group, commands, full_runs, mean_and_spread, title_of
from caffnet_lab.experiments.report.tables import EMPTY, Cell, Table
from caffnet_lab.experiments.report.yardstick_numbers import GOALS, PUBLISHED, Goal, Row
from caffnet_lab.experiments.shape import COUNTED
from caffnet_lab.experiments.yardsticks.tasks import DRIVES, FORECASTS, OPTIMISED

NAMES = {
    "dc3-simple": "DC3's convex program",
    "dc3-nonconvex": "DC3's non-convex program",
    "hardnet-opt": "HardNet's non-convex program",
    "snarenet-noncvx": "SnareNet's non-convex program",
    "dcopf-14": "Dispatch, 14 buses",
    "dcopf-30": "Dispatch, 30 buses",
    "dcopf-89": "Dispatch, 89 buses",
    "dcopf-118": "Dispatch, 118 buses",
    "dcopf-300": "Dispatch, 300 buses",
    "dcopf-118-n1": "Dispatch, 118 buses, secure against the loss of any branch",
    "hardnet-cbf": "HardNet's safe control",
    "forecast-tourismsmall": "Coherent forecasts: Australian tourism",
    "forecast-labour": "Coherent forecasts: Australian labour",
    "forecast-wiki2": "Coherent forecasts: Wikipedia views",
}
INTRODUCTION = (
    "Public benchmarks for networks with hard constraints. `caffnet report` writes this page from the records. Rows in "
    "italics are published numbers, from other machines. All methods have the same network (three hidden layers), the "
    "same data and the same number of epochs; only CAffNet with w has a second network. Settings were chosen with seed "
    "0 on the validation inputs. NN is trained with a soft penalty, 100 times the squared violations (HardNet's drive: "
    "once). HardNet is exact for independent rows only; the grids have more rows than outputs, so there it breaks "
    "some. RAYEN is trained without the learned map of its paper.",
    "",
    "**Without learning.** Convex and linear tasks need no network: a convex program is one projection in the metric "
    "of its objective, a linear program one projection of a point far away, and both take less time than a trained "
    "network. A non-convex program takes some fifty projections without a network, or one after training. So what a "
    "network learns counts in the non-convex programs, and where the layer does not know the cost (driving, "
    "forecasts). Every table has rows called “no learning”.",
    "",
    "- **dc3-simple, dc3-nonconvex, hardnet-opt, snarenet-noncvx**: `min ½ y'Qy + p'y` or `p'sin(y)` with 100 "
    "variables, 50 equalities whose right-hand side is the input, 50 inequalities.",
    "- **dcopf**: the cheapest dispatch of PGLib's grids for random loads, with power balance, limits of generators "
    "and of line flows. The DC model includes shunts, phase shifters and angle limits, not tap ratios; all costs are "
    "linear. dcopf-118-n1 has 32 931 rows with two sides.",
    "- **hardnet-cbf**: drive a unicycle past two ellipses, with barrier functions as rows; “base” is the nominal "
    "controller, its projection in every step the usual quadratic program.",
    "- **forecast**: forecasts of series that add up and cannot be negative; the projection, in the metric of the "
    "base forecasts' errors, is non-negative MinT. A network learns a correction of the base forecasts.",
)
MEASURES = (
    "In the tables: mean over seeds, sample standard deviation in brackets. “Gap” is the distance to the optimiser's "
    "objective: of the means in percent, and of the worst sample of all seeds in percent of its own optimum; it means "
    "little where a method is infeasible. “Infeasible” is the share of test samples that break some row by more than "
    "1e-6 (for forecasts: that do not add up or are negative); “true max” is the largest violation of all rows, "
    "samples and seeds. “Error” is the squared error of all series over that of the last known value. T_train is the "
    "time of an epoch, T_test that of the whole test set. The runs shared a busy machine: compare speeds in the table "
    "of speeds."
)
_TIMES = (("train_ms", "T_train (ms)"), ("test_ms", "T_test (ms)"))
_OPTIMISED: tuple[tuple[str, str], ...] = (
    ("objective", "Objective"),
    ("gap.percent", "Gap (%)"),
    ("gap.max_percent", "worst gap (%)"),
    ("gap.geometric", "Gap, geometric mean"),
    ("gap.max", "worst gap"),
    ("infeasible", "Infeasible (%)"),
    ("inequality.max", "ineq. true max"),
    ("equality.max", "eq. true max"),
    *_TIMES,
)
_FORECAST = (
    ("score", "Error"),
    ("incoherence", "sums apart by"),
    ("negative", "Negative (%)"),
    ("infeasible", "Infeasible (%)"),
    ("inequality.max", "sign true max"),
    *_TIMES,
)
_DRIVEN = (
    ("cost", "Cost"),
    ("collided", "Collided (%)"),
    ("clearance", "Clearance"),
    ("inequality.max", "rows true max"),
    *_TIMES,
)
COLUMNS: dict[str, tuple[tuple[str, str], ...]] = {
    **dict.fromkeys(OPTIMISED, _OPTIMISED),
    **dict.fromkeys(FORECASTS, _FORECAST),
    **dict.fromkeys(DRIVES, _DRIVEN),
}
#: What methods are compared by, seed by seed.
JUDGED = {
    **dict.fromkeys(OPTIMISED, ("gap.percent", "Gap above ours (points)")),
    **dict.fromkeys(FORECASTS, ("score", "Error above ours")),
    **dict.fromkeys(DRIVES, ("cost", "Cost above ours")),
}
#: Optima of the same samples differ by less, whatever the solver.
SAME_DATA = 1e-6
LARGEST = ("gap.max_percent", "gap.max", "inequality.max", "equality.max", "incoherence", "collided")
#: Half of the 95 % interval of a mean in standard errors, for 1, 2, ... degrees of freedom (Student).
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
REFERENCE = "orthogonal"


def yardstick_tables(groups: Sequence[Group], task: str) -> list[Table]:
    """Results, the comparison seed by seed, and the goals."""
    mine = [group for group in groups if group.task == task]
    if not mine:
        return []
    _refuse_other_data(mine, task)
    found = [results_table(mine, task), paired_table(mine, task), goals_table(mine, task)]
    return [table for table in found if table is not None]


def _refuse_other_data(groups: list[Group], task: str) -> None:
    """Compare the mean optimum of the test samples: records of other samples have another."""
    if task not in OPTIMISED:
        return
    found = {record["name"]: record["evaluation"]["optimum"] for group in groups for record in group.records}
    usual = statistics.median_low(found.values())
    others = [name for name, optimum in found.items() if not math.isclose(optimum, usual, rel_tol=SAME_DATA)]
    if others:
        raise RecordError(
            f"{len(others)} of {len(found)} records of {task} were tested on other samples, their mean optimum is not "
            f"{usual:.10g}: {', '.join(others[:5])}{', ...' if len(others) > 5 else ''}. "
            "Move them away and run them again."
        )


def results_table(groups: list[Group], task: str) -> Table:
    """One row per method and setting, then the published rows."""
    rows = [_measured(group) for group in groups]
    published = [_published(row, task) for row in PUBLISHED.get(task, ())]
    quiet = frozenset(range(len(rows), len(rows) + len(published)))
    usual = resolve(task, REFERENCE, 1, "ours")
    note = (
        f"Networks {usual.hidden} wide, batches of {usual.batch}, Adam from {usual.learning_rate:g} to zero in "
        f"{usual.epochs} epochs, tangent gradient; differences are in square brackets."
    )
    labels = ("Method", "Seeds", "Epochs", *(label for _, label in COLUMNS[task]))
    return Table(task, f"{NAMES[task]} ({task})", note, labels, (*rows, *published), quiet, commands(groups))


def _measured(group: Group) -> tuple[Cell, ...]:
    trained = group.method not in UNTRAINED
    seeds = Cell(text=" ".join(map(str, group.seeds))) if trained else EMPTY
    cells = [Cell(text=group.title), seeds, Cell(text=str(group.epochs)) if trained else EMPTY]
    for key, _ in COLUMNS[group.task]:
        values = group.values(key)
        cells.append(Cell(max(values, default=None)) if key in LARGEST else Cell(*mean_and_spread(values)))
    return tuple(cells)


def _published(row: Row, task: str) -> tuple[Cell, ...]:
    return (Cell(text=row.name), EMPTY, EMPTY, *(Cell(row.values.get(key)) for key, _ in COLUMNS[task]))


def paired_table(groups: list[Group], task: str) -> Table | None:
    """Excess of each method's figure over that of CAffNet without w, on the seeds that both have."""
    column, label = JUDGED[task]
    ours = next((g for g in full_runs(groups) if g.method == REFERENCE and not g.changes), None)
    if ours is None:
        return None
    mine = dict(zip(ours.seeds, ours.values(column), strict=True))
    rows = []
    for group in full_runs(groups):
        if group is ours or group.method in UNTRAINED:
            continue
        theirs = dict(zip(group.seeds, group.values(column), strict=True))
        apart = [theirs[seed] - mine[seed] for seed in sorted(mine.keys() & theirs.keys())]
        if apart:
            mean, interval, verdict = paired(apart)
            verdict = Cell(text="it breaks rows") if breaks_rows(group) else verdict
            rows.append((Cell(text=group.title), Cell(text=str(len(apart))), mean, interval, verdict))
    if not rows:
        return None
    columns = ("Method", "Seeds", label, "95 % interval", "Verdict")
    note = (
        f"Differences between runs with the same seed: the figure of each method minus that of {TITLES[REFERENCE]}, "
        "with Student's interval over the seeds. A method that breaks rows can have a smaller figure for that reason, "
        "so it gets no verdict."
    )
    return Table(f"{task}-paired", f"Seed by seed ({task})", note, columns, tuple(rows))


def breaks_rows(group: Group) -> bool:
    """Check whether some answer is infeasible, some drive ends in an obstacle, or some step of it breaks a row."""
    broken = any(value > 0 for column in ("infeasible", "collided") for value in group.values(column))
    return broken or any(value > COUNTED for value in group.values("inequality.max"))


def paired(apart: list[float]) -> tuple[Cell, Cell, Cell]:
    """Mean, 95 % interval and verdict of paired differences.

    >>> [cell.text for cell in paired([1.0, 1.2, 0.8])[1:]]
    ['0.5031 to 1.4969', 'ours is better']
    """
    mean = statistics.fmean(apart)
    if len(apart) < 2:
        return Cell(mean), EMPTY, Cell(text="open: one seed")
    half = STUDENT[min(len(apart) - 1, len(STUDENT)) - 1] * statistics.stdev(apart) / math.sqrt(len(apart))
    verdict = "ours is better" if mean - half > 0 else "ours is worse" if mean + half < 0 else "undecided"
    return Cell(mean), Cell(text=f"{number(mean - half)} to {number(mean + half)}"), Cell(text=verdict)


def goals_table(groups: list[Group], task: str) -> Table | None:
    """Goals of the task, judged by the protocol's own runs."""
    runs = {group.method: group for group in reversed(full_runs(groups)) if not group.changes}
    rows = tuple((Cell(text=goal.text), Cell(text=judge_goal(goal, runs))) for goal in GOALS.get(task, ()))
    if not rows:
        return None
    note = "A goal holds if every seed reaches it. “so far”: some seeds are missing."
    return Table(f"{task}-goals", f"Goals ({task})", note, ("The goal", "The records"), rows, prose=True)


def judge_goal(goal: Goal, runs: dict[str, Group]) -> str:
    """Check whether the runs reach a goal, with the figures that decide."""
    parts, holds, complete = [], True, True
    for method in goal.methods:
        group = runs.get(method)
        if group is None:
            return f"open: no full runs of {TITLES[method]}"
        complete = complete and (method in UNTRAINED or group.complete)
        for column, limit in goal.limits.items():
            worst, beside = max(group.values(column), default=math.inf), ""
            if isinstance(limit, str):
                if limit not in runs:
                    return f"open: no full runs of {title_of(group.task, limit)}"
                limit = max(runs[limit].values(column))
                beside = f" against {number(limit)}"
            holds = holds and worst <= limit
            parts.append(f"{dict(COLUMNS[group.task])[column]} {number(worst)}{beside}")
    return f"{'' if complete else 'so far '}{'holds' if holds else 'does not hold'}: {', '.join(parts)}"
