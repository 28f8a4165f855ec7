"""Records of one method in one setting, over its seeds."""

from __future__ import annotations

import dataclasses
import math
import shlex
import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Any

from caffnet_lab.experiments.config import PROTOCOLS, QUICK_EPOCHS, SEEDS, TASKS, UNTRAINED, RunConfig, resolve
from caffnet_lab.experiments.yardsticks.tasks import FORECASTS

TITLES = {
    "ipopt": "IPOPT",
    "daqp": "DAQP",
    "highs": "HiGHS",
    "highs-warm": "HiGHS, warm",
    "base": "No learning: base forecasts",
    "mint": "No learning: MinT",
    "constant": "No learning: a constant, projected",
    "minimiser": "No learning: the unconstrained minimiser, projected in the metric of the objective",
    "sequential": "No learning: 50 projections of gradient steps",
    "direction": "No learning: -t c, projected",
    "nn": "NN",
    "hardnet": "HardNet",
    "dc3": "DC3",
    "fsnet": "FSNet",
    "rayen": "RAYEN",
    "orthogonal": "CAffNet without w",
    "caffnet-ff": "CAffNet-FF",
    "caffnet-ff-lite": "CAffNet-FF (Lite)",
    "caffnet-ff-each": "CAffNet-FF, a w for every choice of rows",
    "caffnet-tf": "CAffNet-TF",
    "post-hoc": "NN, projected afterwards",
    "repair": "NN, frozen, repaired by w",
    "enumeration": "The layer by plain enumeration",
    "enumeration-lite": "The layer by plain enumeration (Lite)",
}
#: Rows that are something else in some tasks.
TASK_TITLES = {
    ("hardnet-cbf", "base"): "No learning: the nominal controller",
    ("hardnet-cbf", "minimiser"): "No learning: the nominal controller, projected (CBF-QP)",
    **{(task, "minimiser"): "No learning: base forecasts, projected (non-negative MinT)" for task in FORECASTS},
}
ORDER = tuple(TITLES)
FIRST_EPOCHS = 4000  # what the paper shows of the training loss


def title_of(task: str, method: str) -> str:
    """The name of a row in the tables of a task.

    >>> title_of("opt", "nn"), title_of("hardnet-cbf", "base")
    ('NN', 'No learning: the nominal controller')
    """
    return TASK_TITLES.get((task, method), TITLES.get(method, method))


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only.

    Attributes:
        task: the experiment.
        protocol: where the settings came from.
        method: the row of the table.
        changes: settings that differ from the protocol's, as text; empty if none.
        records: one per seed, in order.
    """

    task: str
    protocol: str
    method: str
    changes: str
    records: tuple[dict[str, Any], ...]

    @property
    def title(self) -> str:
        """The name of the row."""
        return title_of(self.task, self.method) + (f" [{self.changes}]" if self.changes else "")

    @property
    def seeds(self) -> list[int]:
        """The seeds that have finished."""
        return [record["config"]["seed"] for record in self.records]

    @property
    def departs(self) -> bool:
        """Check whether a setting other than the number of epochs differs from the protocol's."""
        return any(not change.startswith("epochs=") for change in self.changes.split(", ") if change)

    @property
    def epochs(self) -> int:
        """Epochs of each run."""
        return self.records[0]["config"]["epochs"]

    @property
    def complete(self) -> bool:
        """Check whether all seeds of the paper are there, with all epochs of the protocol."""
        whole = resolve(self.task, self.method, self.seeds[0], self.protocol).epochs
        return set(self.seeds) >= set(SEEDS[self.task]) and (self.method in UNTRAINED or self.epochs >= whole)

    def values(self, column: str) -> list[float]:
        """A metric of every seed; empty if the runs do not have it. Dots go into groups: ``inequality.max``."""
        return [value for value in (_look_up(record, column) for record in self.records) if value is not None]


def _look_up(record: dict[str, Any], column: str) -> float | None:
    if column == "train_ms":
        return (record["training"] or {}).get("ms_per_epoch")
    found: Any = record["evaluation"]
    for part in column.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return None if found is None else float(found)


def group_records(records: Iterable[dict[str, Any]]) -> list[Group]:
    """Sort by task, protocol and the paper's order of rows; settings nearest to the protocol's come first."""
    found: dict[tuple[str, str, str, str], dict[int, dict[str, Any]]] = {}
    for record in sorted(records, key=lambda record: record["finished"]):
        config = record["config"]
        key = (config["task"], config["protocol"], config["method"], _changes(config))
        found.setdefault(key, {})[config["seed"]] = record  # of two equal runs the later
    groups = [Group(*key, tuple(members[seed] for seed in sorted(members))) for key, members in found.items()]
    return sorted(
        groups,
        key=lambda g: (
            TASKS.index(g.task),
            PROTOCOLS.index(g.protocol),
            ORDER.index(g.method),
            bool(g.changes),
            g.departs,
            -len(g.records),
            -g.epochs,
            g.changes,
        ),
    )


def full_runs(groups: Iterable[Group]) -> list[Group]:
    """The runs that count as evidence. Quick runs only show that everything works."""
    return [group for group in groups if group.method in UNTRAINED or group.epochs > QUICK_EPOCHS[group.task]]


def main_groups(groups: Iterable[Group], task: str, protocol: str) -> list[Group]:
    """One group per method: the protocol's own, else other epochs only, else the one with the most seeds."""
    chosen: dict[str, Group] = {}
    for group in groups:
        if (group.task, group.protocol) == (task, protocol):
            chosen.setdefault(group.method, group)
    return list(chosen.values())


def _changes(config: dict[str, Any]) -> str:
    """Settings that differ from the protocol."""
    if config["method"] in UNTRAINED:  # of all settings it has this one only
        return "" if config.get("dtype", "float64") == "float64" else f"dtype={config['dtype']}"
    usual = dataclasses.asdict(resolve(config["task"], config["method"], config["seed"], config["protocol"]))
    # A setting newer than the record had its default; a removed one was off, unless the record has a value.
    defaults = {f.name: f.default for f in dataclasses.fields(RunConfig) if f.default is not dataclasses.MISSING}
    whole = {**defaults, **config}
    different = {key: value for key, value in whole.items() if usual.get(key, 0) != value}
    return ", ".join(f"{key}={str(v).lower() if isinstance(v, bool) else v}" for key, v in different.items())


def commands(groups: Iterable[Group]) -> tuple[str, ...]:
    """Commands for these runs, methods with the same seeds and settings in one line.

    Runs with a setting that is gone are left out: they cannot be made again.
    """
    known = {field.name for field in dataclasses.fields(RunConfig)}
    together: dict[tuple[str, str, tuple[int, ...], str], list[str]] = {}
    for group in groups:
        if any(change.partition("=")[0] not in known for change in group.changes.split(", ") if change):
            continue
        together.setdefault((group.task, group.protocol, tuple(group.seeds), group.changes), []).append(group.method)
    lines = []
    for (task, protocol, seeds, changes), methods in together.items():
        words = ["caffnet", "run", task, "--protocol", protocol]
        words += [word for method in methods for word in ("--method", method)]
        words += [word for seed in seeds for word in ("--seed", str(seed))]
        words += [word for change in changes.split(", ") if change for word in ("--set", change)]
        lines.append(shlex.join(words))
    return tuple(lines)


def sources(records: Iterable[dict[str, Any]]) -> list[str]:
    """Origin of runs, or times: machines, software, commits."""
    machines: set[str] = set()
    software: set[str] = set()
    commits: Counter[str] = Counter()
    for record in records:
        machine, versions = record["machine"], dict(record["versions"])
        gpu = f", {machine['gpu']}" if machine.get("gpu") else ""
        machines.add(f"{machine['processor']}, {machine['threads']} thread(s) per run{gpu}")
        last = versions.pop("revision", "not noted")
        made_by = dict.fromkeys([*(record.get("training") or {}).get("revisions", ()), last])  # trained, then evaluated
        commits[", then ".join(made_by)] += 1
        software.add(", ".join(f"{name} {version}" for name, version in versions.items()))
    made = ", ".join(f"{name} ({runs} run{'s' * (runs > 1)})" for name, runs in sorted(commits.items()))
    return [*sorted(machines), *sorted(software), f"Commits: {made}"]


def mean_and_spread(values: list[float]) -> tuple[float | None, float | None]:
    """The mean and the *sample* standard deviation; None where there are too few values."""
    if not values:
        return None, None
    return math.fsum(values) / len(values), statistics.stdev(values) if len(values) > 1 else None
