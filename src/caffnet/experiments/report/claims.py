"""What the paper says about its experiments, and whether the records agree.

A claim is a function from the runs of one protocol to a verdict: whether it holds, and the figure that decides it. It
raises `Missing` while a run that it speaks of is not there, and is then left open.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from caffnet.experiments.config import PROTOCOLS
from caffnet.experiments.report.formats import number
from caffnet.experiments.report.groups import TITLES, Group, main_groups
from caffnet.experiments.report.tables import EMPTY, Cell, Table, optima

SATISFIED = 1e-12  # rounding of values of order one, many times over; soft methods are ten orders of magnitude above
ARRIVED_NEAR = 0.5  # metres from the goal that still count as its vicinity
LOSS_EPOCH = 4000  # where the paper's figure of the training loss ends


class Missing(Exception):
    """A run that a claim speaks of is not among the records."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The runs of one experiment under one protocol, and the times measured side by side."""

    groups: dict[str, Group]
    optima: dict[int, float]
    times: dict[str, dict[str, float | None]]

    def values(self, method: str, column: str) -> list[float]:
        """A metric of all seeds of a method."""
        found = self.groups[method].values(column) if method in self.groups else []
        if not found:
            raise Missing(method)
        return found

    def mse(self, method: str) -> float:
        """The mean squared error, over seeds."""
        return statistics.fmean(self.values(method, "mse"))

    def loss(self, method: str, epoch: int) -> float:
        """The median training loss at an epoch, or at the last one stored before it."""
        if method not in self.groups:
            raise Missing(method)
        found = []
        for record in self.groups[method].records:
            history = record["training"]["history"]
            at = max(i for i, e in enumerate(history["epoch"]) if e <= epoch)
            found.append(history["loss"][at])
        return statistics.median(found)

    def gap(self, method: str) -> float:
        """Mean distance of the objective from IPOPT's."""
        values = self.values(method, "objective")
        mine = dict(zip(self.groups[method].seeds, values, strict=True))
        if not set(mine) <= set(self.optima):
            raise Missing("ipopt")
        return statistics.fmean(abs(value - self.optima[seed]) for seed, value in mine.items())

    def time(self, method: str, kind: str) -> float:
        """Milliseconds of a method in the run that timed all of them."""
        found = self.times.get(method, {}).get(kind)
        if found is None:
            raise Missing("caffnet time")
        return found


Verdict = tuple[bool, str]
Claim = Callable[[Evidence], Verdict]


def _satisfied(*methods: str) -> Claim:
    def check(seen: Evidence) -> Verdict:
        inequalities = [max(seen.values(method, "inequality.max")) for method in methods]
        equalities = [max(seen.groups[method].values("equality.max"), default=0.0) for method in methods]
        worst = max(*inequalities, *equalities)
        return worst <= SATISFIED, f"largest violation {number(worst)}"

    return check


def _violated(*methods: str) -> Claim:
    """Each of the methods, with each seed."""

    def check(seen: Evidence) -> Verdict:
        least = {}
        for method in methods:
            kinds = [seen.values(method, "inequality.max"), seen.groups[method].values("equality.max")]
            least[method] = min(max(of_seed) for of_seed in zip(*[kind for kind in kinds if kind], strict=True))
        told = ", ".join(f"{TITLES[method]} at least {number(value)}" for method, value in least.items())
        return min(least.values()) > SATISFIED, f"true max {told}"

    return check


def _lowest(method: str, others: Sequence[str], figure: Callable[[Evidence, str], float]) -> Claim:
    """The figure of one method is below that of the others."""

    def check(seen: Evidence) -> Verdict:
        found = {name: figure(seen, name) for name in (method, *others)}
        told = ", ".join(f"{TITLES[name]} {number(value)}" for name, value in found.items())
        return found[method] < min(found[name] for name in others), told

    return check


def _both_lower(epoch: int) -> Claim:
    """Both CAffNets have a lower training loss than both others."""

    def check(seen: Evidence) -> Verdict:
        ours = {name: seen.loss(name, epoch) for name in ("caffnet-ff", "caffnet-tf")}
        others = {name: seen.loss(name, epoch) for name in ("nn", "hardnet")}
        told = ", ".join(f"{TITLES[name]} {number(value)}" for name, value in (ours | others).items())
        return max(ours.values()) < min(others.values()), told

    return check


def _equalities_broken(seen: Evidence) -> Verdict:
    shares = {name: min(seen.values(name, "equality.percent")) for name in ("nn", "hardnet")}
    told = ", ".join(f"{TITLES[name]} at least {number(value)} %" for name, value in shares.items())
    return min(shares.values()) > 90.0, told


def _lite_equals_full(seen: Evidence) -> Verdict:
    full, lite = (seen.groups.get(name) for name in ("caffnet-ff", "caffnet-ff-lite"))
    if full is None or lite is None or full.seeds != lite.seeds:
        raise Missing("caffnet-ff-lite")
    apart = max(abs(a - b) for a, b in zip(full.values("objective"), lite.values("objective"), strict=True))
    return apart < 5e-5, f"objectives at most {number(apart)} apart"  # the paper's four decimals


def _lite_saves_time(seen: Evidence) -> Verdict:
    saved = {kind: 1 - seen.time("caffnet-ff-lite", kind) / seen.time("caffnet-ff", kind) for kind in _TIMES}
    told = ", ".join(f"{_TIMES[kind]} {100 * share:.0f} %" for kind, share in saved.items())
    return all(0.35 < share < 0.55 for share in saved.values()), f"saved: {told}"


_TIMES = {"train_ms": "T_train", "test_ms": "T_test"}


def _faster_than_ipopt(seen: Evidence) -> Verdict:
    ratios = {name: seen.time("ipopt", "test_ms") / seen.time(name, "test_ms") for name in ("caffnet-ff", "caffnet-tf")}
    told = ", ".join(f"{TITLES[name]} {value:.0f} times" for name, value in ratios.items())
    return min(ratios.values()) > 1, told


def _count(seen: Evidence, method: str, column: str) -> tuple[int, int]:
    values = seen.values(method, column)
    return int(sum(values)), len(values)


def _arrives_safely(seen: Evidence) -> Verdict:
    arrived, runs = _count(seen, "caffnet-ff", "arrived")
    collided, _ = _count(seen, "caffnet-ff", "collided")
    worst = max(seen.values("caffnet-ff", "inequality.max"))
    holds = arrived == runs and not collided and worst <= SATISFIED
    return holds, f"{arrived} of {runs} arrived, {collided} collided, largest violation {number(worst)}"


def _collide(seen: Evidence) -> Verdict:
    counts = {name: _count(seen, name, "collided") for name in ("nn", "hardnet")}
    told = ", ".join(f"{TITLES[name]} {hit} of {runs}" for name, (hit, runs) in counts.items())
    return all(hit == runs for hit, runs in counts.values()), told


def _near_goal(method: str, expected: bool) -> Claim:
    def check(seen: Evidence) -> Verdict:
        distances = seen.values(method, "final_distance")
        holds = max(distances) <= ARRIVED_NEAR if expected else min(distances) > ARRIVED_NEAR
        return holds, "final distance " + ", ".join(f"{number(d)} m" for d in distances)

    return check


#: By experiment: what the paper says, and how it is decided.
CLAIMS: dict[str, tuple[tuple[str, Claim], ...]] = {
    "pwc": (
        ("Both CAffNets satisfy all constraints.", _satisfied("caffnet-ff", "caffnet-tf")),
        ("NN and HardNet violate them.", _violated("nn", "hardnet")),
        ("CAffNet-TF has the lowest MSE.", _lowest("caffnet-tf", ("nn", "hardnet", "caffnet-ff"), Evidence.mse)),
        ("The CAffNets start with a lower loss.", _both_lower(0)),
        (f"The CAffNets converge faster (loss at epoch {LOSS_EPOCH}).", _both_lower(LOSS_EPOCH)),
    ),
    "opt": (
        ("All CAffNets satisfy all constraints.", _satisfied("caffnet-ff", "caffnet-ff-lite", "caffnet-tf")),
        ("NN and HardNet violate them.", _violated("nn", "hardnet")),
        ("NN and HardNet break almost all equalities.", _equalities_broken),
        ("CAffNet-FF is nearest to IPOPT.", _lowest("caffnet-ff", ("nn", "hardnet", "caffnet-tf"), Evidence.gap)),
        ("Lite is as good as the full search.", _lite_equals_full),
        ("Lite takes about 45 % less time.", _lite_saves_time),
        ("CAffNet answers faster than IPOPT.", _faster_than_ipopt),
    ),
    "cbf": (
        ("CAffNet-FF arrives, without a collision or a violation.", _arrives_safely),
        ("NN and HardNet collide.", _collide),
        ("HardNet comes near the goal.", _near_goal("hardnet", True)),
        ("NN ends far from the goal.", _near_goal("nn", False)),
        ("A soft network that is projected afterwards gets stuck.", _near_goal("post-hoc", False)),
    ),
}


def claims_table(groups: list[Group], timings: Sequence[dict[str, Any]], task: str) -> Table | None:
    """One row per claim, one column per protocol that has records."""
    protocols = [p for p in PROTOCOLS if any((g.task, g.protocol) == (task, p) for g in groups)]
    evidence = [_evidence(groups, timings, task, protocol) for protocol in protocols]
    rows = []
    for text, claim in CLAIMS[task]:
        cells = [_judge(claim, seen) for seen in evidence]
        if any(cell != EMPTY for cell in cells):
            rows.append((Cell(text=text), *cells))
    if not rows:
        return None
    note = "Each with the figure that decides it; open where a run that it speaks of is not among the records."
    columns = ("The paper says", *(f"protocol “{protocol}”" for protocol in protocols))
    return Table(f"{task}-claims", f"Claims of the paper ({task})", note, columns, tuple(rows), prose=True)


def _evidence(groups: list[Group], timings: Sequence[dict[str, Any]], task: str, protocol: str) -> Evidence:
    runs = {group.method: group for group in main_groups(groups, task, protocol)}
    times = [t["methods"] for t in timings if (t["task"], t["protocol"]) == (task, protocol)]
    return Evidence(runs, optima(groups), times[-1] if times else {})


def _judge(claim: Claim, seen: Evidence) -> Cell:
    try:
        holds, figure = claim(seen)
    except Missing:
        return EMPTY
    return Cell(text=f"{'holds' if holds else 'does not hold'}: {figure}")
