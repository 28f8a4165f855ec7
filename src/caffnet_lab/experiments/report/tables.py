"""The paper's tables from groups of records. A table is plain data; `formats` writes it."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from typing import Any

from caffnet_lab.experiments.config import EPOCHS, METHODS, TIMED_ONLY
from caffnet_lab.experiments.report.groups import TITLES, Group, commands, mean_and_spread, title_of
from caffnet_lab.experiments.report.published import PAPER


@dataclasses.dataclass(frozen=True)
class Cell:
    """A number with its spread and a remark, or a text."""

    mean: float | None = None
    spread: float | None = None
    text: str | None = None
    remark: str = ""


EMPTY = Cell()


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of cells under columns; the first cell of a row is its name.

    Attributes:
        name: for file names.
        title: above it.
        note: what the reader must know.
        columns: one label per cell.
        rows: the cells.
        quiet: rows that are the paper's, set apart by the formats.
        commands: what to type for the same.
        prose: the cells are sentences.
    """

    name: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    quiet: frozenset[int] = frozenset()
    commands: tuple[str, ...] = ()
    prose: bool = False


VIOLATION = (
    ("max", "{} true max"),
    ("mean_of_max", "{} mean of max"),
    ("mean", "{} mean"),
    ("percent", "{} > 1e-6 (%)"),
)


def _violations(kind: str, label: str, without: str = "") -> list[tuple[str, str]]:
    return [(f"{kind}.{key}", text.format(label)) for key, text in VIOLATION if key != without]


COLUMNS: dict[str, list[tuple[str, str]]] = {
    "pwc": [
        ("mse", "MSE"),
        *_violations("inequality", "viol.", without="percent"),
        ("strict.exact_inequality.max", "true max, strict"),
        ("train_ms", "T_train (ms)"),
        ("test_ms", "T_test (ms)"),
    ],
    "opt": [
        ("objective", "Objective"),
        *_violations("inequality", "ineq."),
        *_violations("equality", "eq."),
        ("strict.exact_inequality.max", "ineq. true max, strict"),
        ("train_ms", "T_train (ms)"),
        ("test_ms", "T_test (ms)"),
    ],
    "cbf": [
        ("cost", "Cost"),
        ("collided", "Collided"),
        ("arrived", "Arrived"),
        ("fresh.safe", "Fresh starts: safe (%)"),
        ("fresh.arrived", "arrived (%)"),
        ("fresh.cost", "cost"),
        *_violations("inequality", "viol."),
        ("strict.exact_inequality.max", "true max, strict"),
        ("final_distance", "Final distance (m)"),
        ("arrival_time", "Arrival (s)"),
        ("train_ms", "T_train (ms)"),
        ("test_ms", "T_test (ms)"),
    ],
}

#: Columns that count the seeds of which they are true.
COUNTED = ("arrived", "collided")

NAMES = {
    "pwc": "Learning a function between piecewise bounds",
    "opt": "Learning an optimisation solver",
    "cbf": "Learning a safe control policy",
}
PROTOCOL_NOTES = {
    "paper": "The paper's protocol; soft rows are trained with the squared penalty of the authors' code (the paper's "
    "text has a linear one), and the paper's times are of a V100 GPU.",
    "ours": "Plain networks of equal parameter counts, CAffNet without a null-space head, tangent-cone gradient, the "
    "best weights by training loss.",
}
#: Where ours differs from what the authors ran.
PAPER_NOTES = {
    "opt": "IPOPT is casadi's, one solver for all samples; the paper started a process for each, which is most of its "
    "time. The notebook with the authors' code has other feed-forward rows than the paper: NN -0.1755, HardNet "
    "-0.3183, CAffNet-FF -0.3433.",
    "cbf": "A seed has the authors' initial states, which a GPU drew, and their weights; “draws=native” has others. "
    "CAffNet looks at choices of dependent rows too, as in the paper: their compromise (ω = 0 for ω <= 0.5 and ω >= "
    "-0.5) counts where it is feasible and nearest; “search=full” leaves them out. The notebook with the authors' "
    "code has other costs than the paper: NN 4.380e+05, HardNet 4.507e+05, CAffNet-FF 8.620e+05 (2.290e+05). Why "
    "three of five CAffNets get stuck: after 5 s they stand at obstacle 3 with the largest speed that its row allows, "
    "under 1e-4 m/s, and the turn rate jumps from one limit to the other in every step, so that the heading swings by "
    "0.05 rad and leads nowhere. Our reading, not measured: little is learned from there, as the speed is on its "
    "bound, where the exact gradient of f is zero, and the heading has no effect on a robot that stands. The last "
    "training losses, over 300 other starts, are 5.8e8 to 7.2e8; those of the other two seeds are 5.4e8 and 6.0e8. "
    "Protocol “ours” has the tangent gradient, no w that jumps, and limits on the gradients of trajectories "
    "that are stuck.",
}
OUR_NOTES = {
    "pwc": "Feed-forward networks are smooth (SiLU).",
    "opt": "Learning rate 1e-3, going to zero; batches of 100. “Repaired by w”: the soft network stays as it is, and "
    "only w is trained.",
    "cbf": "Learning rate 2e-3, going to zero; batches of 50; limited gradients; a goal of 0.05 m while training.",
}
#: What the columns of all tables mean.
MEASURES = (
    "In the tables: mean over seeds, sample standard deviation in brackets. “Mean of max” is what the paper calls "
    "“Max”: the mean over samples of the largest row; “true max” is the largest of all rows, samples and seeds, "
    "“strict” with strict=True and in exact arithmetic; “exactly 0” counts the rows, over all samples and seeds, that "
    "are not violated at all. Times are warm and synchronised, but several long runs shared the machine: compare "
    "methods in the table of speeds. T_train is per epoch, T_test for the whole test set."
)
DRIVES = (
    "“Arrived”: within 0.1 m of the goal in the 10 s of the test; “arrival” is the mean time of the seeds that arrive "
    "within 15 s, the horizon of training. A robot that reaches the goal is put on it and stays: its final distance "
    "is 0. Fresh starts are 200 random safe states, the same for all runs, that no network was trained on and no "
    "setting was chosen on, driven for 15 s: “safe” never enter an obstacle, “arrived” come within 0.1 m of the goal, "
    "the cost is the mean."
)

#: Of the rows that are optimisers the one that others are compared with comes first.
SOLVERS = ("ipopt", "daqp", "highs-warm", "highs")
DROPOUT = "The paper's feed-forward rows were measured with dropout still on."


def results_table(groups: list[Group], task: str, protocol: str) -> Table:
    """One row per method, each followed by the paper's row where there is one."""
    columns = COLUMNS[task]
    rows: list[tuple[Cell, ...]] = []
    quiet: set[int] = set()
    published: set[str] = set()
    for group in groups:
        rows.append(_measured(group, columns))
        if group.values("dropout_on.objective"):
            rows.append(_measured(group, columns, "dropout_on."))
        if group.method in PAPER[task] and group.method not in published:
            published.add(group.method)
            quiet.add(len(rows))
            rows.append(_published(task, group.method, columns))
    by_task = {"paper": PAPER_NOTES, "ours": OUR_NOTES}.get(protocol, {})
    notes = [PROTOCOL_NOTES[protocol], by_task.get(task, "")]
    notes += [DRIVES] if task == "cbf" else []
    notes += [DROPOUT] if any(group.values("dropout_on.objective") for group in groups) else []
    note = " ".join(filter(None, notes))
    title = f"{NAMES[task]} ({task}, protocol “{protocol}”)"
    return Table(f"{task}-{protocol}", title, note, _labels(task), tuple(rows), frozenset(quiet), commands(groups))


def variants_table(groups: list[Group], task: str, protocol: str) -> Table | None:
    """Runs of the same methods with other settings, without a counterpart in the paper."""
    if not groups:
        return None
    rows = tuple(_measured(group, COLUMNS[task]) for group in groups)
    title = f"Other settings ({task}, protocol “{protocol}”)"
    note = "The same columns for runs that differ from the protocol more than those above; the brackets say how."
    return Table(f"{task}-{protocol}-variants", title, note, _labels(task), rows, commands=commands(groups))


def _labels(task: str) -> tuple[str, ...]:
    return ("Method", "Seeds", "Epochs", *(label for _, label in COLUMNS[task]), "Exactly 0")


def _measured(group: Group, columns: list[tuple[str, str]], variant: str = "") -> tuple[Cell, ...]:
    title = group.title + (", dropout on" if variant else "")
    seeds = Cell(text=" ".join(map(str, group.seeds)))
    epochs = EMPTY if group.method == "ipopt" else Cell(text=str(group.epochs))
    cells = [Cell(text=title), seeds, epochs]
    for key, _ in columns:
        values = group.values(key if key == "train_ms" else variant + key)
        if key in COUNTED:
            cells.append(Cell(text=f"{sum(values):.0f}/{len(group.records)}"))
        else:
            cells.append(Cell(max(values, default=None)) if key.endswith(".max") else Cell(*mean_and_spread(values)))
    kinds = [kind for kind in ("inequality", "equality") if group.values(f"{variant}{kind}.entries")]
    zeros = sum(sum(group.values(f"{variant}{kind}.exact_zeros")) for kind in kinds)
    entries = sum(sum(group.values(f"{variant}{kind}.entries")) for kind in kinds)
    return (*cells, Cell(text=f"{zeros:.0f}/{entries:.0f}"))


def _published(task: str, method: str, columns: list[tuple[str, str]]) -> tuple[Cell, ...]:
    known = PAPER[task][method]
    cells = [Cell(text=f"{TITLES[method]}, paper"), Cell(text="five"), _published_epochs(task, method)]
    cells += [Cell(*known[key]) if key in known else EMPTY for key, _ in columns]
    return (*cells, EMPTY)


def _published_epochs(task: str, method: str) -> Cell:
    return EMPTY if method == "ipopt" else Cell(text=str(EPOCHS[task]))


def gap_table(groups: list[Group], protocol: str) -> Table | None:
    """opt, per seed: a seed changes the problem, so methods are compared within it."""
    optimum = optima(groups)
    if not optimum:
        return None
    seeds = sorted(optimum)
    rows = [(Cell(text="IPOPT"), *(Cell(optimum[seed]) for seed in seeds), EMPTY)]
    for group in groups:
        if (group.task, group.protocol) != ("opt", protocol) or group.method == "ipopt":
            continue
        mine = dict(zip(group.seeds, group.values("objective"), strict=True))
        gaps = [mine[seed] - optimum[seed] for seed in seeds if seed in mine]
        if gaps:
            values = (Cell(mine[seed]) if seed in mine else EMPTY for seed in seeds)
            rows.append((Cell(text=group.title), *values, Cell(max(map(abs, gaps)))))
    if len(rows) < 2:
        return None
    columns = ("Method", *(f"seed {seed}" for seed in seeds), "largest gap")
    note = (
        "Mean objective on the test set, seed by seed. A gap below zero is possible only for methods that violate "
        "constraints, or where IPOPT stopped in a local optimum. Dropout is off here, as in use."
    )
    return Table(
        f"opt-{protocol}-seeds", f"Objective per seed (opt, protocol “{protocol}”)", note, columns, tuple(rows)
    )


def optima(groups: list[Group]) -> dict[int, float]:
    """IPOPT's mean objective of each seed, from whatever protocol it was run under."""
    found: dict[int, float] = {}
    for group in groups:
        if group.method == "ipopt":
            found = dict(zip(group.seeds, group.values("objective"), strict=True)) | found  # float64 comes first
    return found


def speed_table(timings: Sequence[dict[str, Any]], page: str = "report") -> Table | None:
    """The times of all methods, measured side by side, and their ratios to those of the NN and the solver."""
    rows = []
    for timing in timings:
        methods = timing["methods"]
        plain = methods.get("nn", {}).get("train_ms")
        solver = next((methods[name]["test_ms"] for name in SOLVERS if name in methods), None)
        for name, times in methods.items():
            train, test = times["train_ms"], times["test_ms"]
            slower = train / plain if train and plain else None
            faster = solver / test if solver else None
            where = "" if timing.get("device", "cpu") == "cpu" else f" on {timing['device']}"
            title = f"{timing['task']} {timing['protocol']}{where}: {title_of(timing['task'], name)}"
            rows.append((Cell(text=title), Cell(train), Cell(slower), Cell(test), Cell(faster)))
    if not rows:
        return None
    solvers = [TITLES[name] for name in SOLVERS if any(name in timing["methods"] for timing in timings)] or ["IPOPT"]
    columns = ("Run", "T_train (ms)", "times the NN's", "T_test (ms)", f"times faster than {' or '.join(solvers)}")
    note = "Medians, one epoch or test of every method in turn: the ratios hold on a busy machine too."
    if page == "report":
        note += " IPOPT is casadi's, one parametric solver. T_test of cbf is a whole drive of 100 calls."
    else:
        note += (
            " HiGHS begins each program with the basis of the one before; a layer without w begins all samples of a "
            'batch with the rows of the first (`warm_start="first"`).'
        )
    name = "speed" if page == "report" else f"{page}-speed"
    return Table(name, "Speed", note, columns, tuple(rows), commands=tuple(map(_timing_command, timings)))


def _timing_command(timing: dict[str, Any]) -> str:
    """Command for the same times."""
    words = ["caffnet", "time", timing["task"], "--protocol", timing["protocol"]]
    if set(timing["methods"]) != {*METHODS[timing["task"]], *TIMED_ONLY.get(timing["task"], ())} - {"post-hoc"}:
        words += [word for method in timing["methods"] for word in ("--method", method)]
    words += ["--rounds", str(timing.get("rounds", 7))]
    words += ["--device", timing["device"]] if timing.get("device", "cpu") != "cpu" else []
    threads = timing.get("machine", {}).get("threads", 1)
    words += ["--threads", str(threads)] if threads != 1 else []
    return shlex.join(words)
