"""The paper's claims about its experiments, judged by the records.

A claim names its methods, and is a function from their runs to a verdict: whether it holds, and the
figures that decide it. Methods are compared on the seeds that all of them have, and only under the same settings; a
claim is open while runs are missing. Where the paper measured networks with dropout still on, so do we here.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from caffnet_lab.experiments.config import PROTOCOLS, SEEDS
from caffnet_lab.experiments.report.formats import number
from caffnet_lab.experiments.report.groups import FIRST_EPOCHS, TITLES, Group, full_runs
from caffnet_lab.experiments.report.tables import Cell, Table, optima

SATISFIED = 1000  # machine epsilons: rounding of values of order one, many times over
LATELY = 100  # epochs
ARRIVED_NEAR = 0.5  # metres from the goal that still count as its vicinity


class Missing(Exception):
    """The records lack a method that a claim is about."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Runs of one experiment under one protocol, by method, and the times measured side by side.

    Attributes:
        runs: all runs of each method, those nearest to the protocol first.
        optima: IPOPT's objective of each seed of opt.
        times: of each method.
        dropout: a network that has dropout is judged with dropout on.
        groups: of the methods that a claim is about the runs that decide it, see `about`.
    """

    runs: dict[str, list[Group]]
    optima: dict[int, float]
    times: dict[str, dict[str, Any]]
    dropout: bool
    groups: dict[str, Group] = dataclasses.field(default_factory=dict)

    def about(self, methods: Sequence[str]) -> Evidence:
        """These methods alone, with settings and on seeds that all of them have."""
        absent = [TITLES[method] for method in methods if method not in self.runs]
        if absent:
            raise Missing(f"no full runs of {', '.join(absent)}")
        candidates = [{group.changes: group for group in self.runs[method]} for method in methods]
        settings = dict.fromkeys(changes for found in candidates for changes in found)
        common = next((changes for changes in settings if all(changes in found for found in candidates)), None)
        if methods and common is None:
            raise Missing("no runs with the same settings")
        chosen = [found[common] for found in candidates if common is not None]
        shared = set.intersection(*(set(group.seeds) for group in chosen)) if chosen else set()
        if chosen and not shared:
            raise Missing("no runs with the same seeds")
        return dataclasses.replace(self, groups={group.method: _with_seeds(group, shared) for group in chosen})

    @property
    def methods(self) -> list[str]:
        """In the order of the claim."""
        return list(self.groups)

    @property
    def seeds(self) -> list[int]:
        """Of all methods."""
        return next(iter(self.groups.values())).seeds

    @property
    def complete(self) -> bool:
        """Check whether no seed of the paper and no epoch of the protocol is missing."""
        return all(group.complete for group in self.groups.values())

    @property
    def remark(self) -> str:
        """Description of the runs, where they are not the protocol's own on the paper's seeds."""
        if not self.groups:
            return ""
        group = next(iter(self.groups.values()))
        plural = "s" * (len(group.seeds) > 1)
        seeds = "" if tuple(group.seeds) == SEEDS[group.task] else f"seed{plural} {' '.join(map(str, group.seeds))}"
        summary = ", ".join(part for part in (seeds, group.changes) if part)
        return f" ({summary})" if summary else ""

    @property
    def rounding(self) -> float:
        """The violation that still counts as none, in the number type of the runs."""
        config = next(iter(self.groups.values())).records[0]["config"]
        return SATISFIED * float(np.finfo(config.get("dtype", "float64")).eps)

    def values(self, method: str, column: str) -> list[float]:
        """A metric of all seeds of a method."""
        group = self.groups[method]
        found = (group.values(f"dropout_on.{column}") if self.dropout else []) or group.values(column)
        if not found:
            raise Missing(f"no {column} of {TITLES[method]}")
        return found

    def largest(self, method: str) -> list[float]:
        """The largest violation of each seed, of inequalities and equalities."""
        inequality = self.values(method, "inequality.max")
        equality = self.groups[method].values("equality.max") and self.values(method, "equality.max")
        return [max(pair) for pair in zip(inequality, equality or inequality, strict=True)]

    def mse(self, method: str) -> float:
        """The mean squared error, over seeds."""
        return statistics.fmean(self.values(method, "mse"))

    def gaps(self, method: str) -> list[float]:
        """Distance of the objective from IPOPT's, seed by seed."""
        if not set(self.seeds) <= set(self.optima):
            raise Missing("no runs of IPOPT with these seeds")
        values = self.values(method, "objective")
        return [abs(value - self.optima[seed]) for seed, value in zip(self.seeds, values, strict=True)]

    def mean_gap(self, method: str) -> float:
        """Mean distance of the objective from IPOPT's."""
        return statistics.fmean(self.gaps(method))

    def loss(self, method: str, epochs: int) -> float:
        """The median training loss after some epochs, over seeds and the last epochs before: one alone is noisy."""
        found = []
        for record in self.groups[method].records:
            if record["config"]["epochs"] < epochs:
                raise Missing(f"no runs of {epochs} epochs")
            history = record["training"]["history"]
            done = [pair for pair in zip(history["epoch"], history["loss"], strict=True) if pair[0] < epochs]
            if not done:
                raise Missing(f"no losses of the first {epochs} epochs")
            last = [loss for epoch, loss in done if epoch > done[-1][0] - LATELY]
            found.append(statistics.median(math.inf if loss is None else loss for loss in last))
        return statistics.median(found)

    def time(self, method: str, kind: str) -> float:
        """Milliseconds of a method in the run that timed all of them."""
        found = self.times.get(method, {}).get(kind)
        if found is None:
            raise Missing("no times, see caffnet time")
        return found

    def time_ratios(self, over: str, under: str, kind: str) -> list[float]:
        """Ratio of the times of two methods, round by round; none if the rounds were not kept."""
        rounds = [self.times.get(method, {}).get(f"{kind}_rounds") for method in (over, under)]
        return [longer / shorter for longer, shorter in zip(*rounds, strict=True)] if all(rounds) else []


Verdict = tuple[bool, str]


def _with_seeds(group: Group, seeds: set[int]) -> Group:
    return dataclasses.replace(group, records=tuple(r for r in group.records if r["config"]["seed"] in seeds))


def _list(figures: dict[str, Any], write: Callable[[Any], str] = number) -> str:
    return ", ".join(f"{TITLES[method]} {write(value)}" for method, value in figures.items())


# ---------------------------------------------------------------------------------------------------- kinds of claims


def _satisfied(seen: Evidence) -> Verdict:
    worst = max(max(seen.largest(method)) for method in seen.methods)
    return worst <= seen.rounding, f"largest violation {number(worst)}"


def _violated(seen: Evidence) -> Verdict:
    """Each of the methods, with each seed."""
    least = {method: min(seen.largest(method)) for method in seen.methods}
    return min(least.values()) > seen.rounding, f"largest violation, with the best seed: {_list(least)}"


def _first_is_lowest(figure: Callable[[Evidence, str], float]) -> Callable[[Evidence], Verdict]:
    def check(seen: Evidence) -> Verdict:
        found = {method: figure(seen, method) for method in seen.methods}
        first, *others = found.values()
        return first < min(others), _list(found)

    return check


def _reduced_by(share: float) -> Callable[[Evidence], Verdict]:
    """The mean MSE of the first method is lower than that of the second by at least a share of it."""

    def check(seen: Evidence) -> Verdict:
        ours, theirs = seen.methods
        pairs = list(zip(seen.values(ours, "mse"), seen.values(theirs, "mse"), strict=True))
        saved = 1 - seen.mse(ours) / seen.mse(theirs)
        better = sum(mine < other for mine, other in pairs)
        summary = f"{100 * saved:.2f} % lower in the mean over seeds; lower with {better} of {len(pairs)} seeds"
        return saved >= share, f"{summary}; {_list({m: seen.mse(m) for m in seen.methods})}"

    return check


def _caffnets_lower(epochs: int) -> Callable[[Evidence], Verdict]:
    """All CAffNets have a lower training loss than all others."""

    def check(seen: Evidence) -> Verdict:
        found = {method: seen.loss(method, epochs) for method in seen.methods}
        ours = [value for method, value in found.items() if method.startswith("caffnet")]
        others = [value for method, value in found.items() if not method.startswith("caffnet")]
        return max(ours) < min(others), _list(found)

    return check


def _equalities_broken(seen: Evidence) -> Verdict:
    shares = {method: min(seen.values(method, "equality.percent")) for method in seen.methods}
    return min(shares.values()) > 90.0, _list(shares, lambda v: f"at least {number(v)} %")


def _lite_equals_full(seen: Evidence) -> Verdict:
    """The means agree in the four decimals that the paper prints, or Lite's is lower."""
    full, lite = (statistics.fmean(seen.values(method, "objective")) for method in seen.methods)
    return round(lite, 4) <= round(full, 4), f"{number(full)} and {number(lite)}"


def _lite_saves_time(seen: Evidence) -> Verdict:
    kinds = {"train_ms": "T_train", "test_ms": "T_test"}
    saved = {kinds[kind]: 1 - seen.time("caffnet-ff-lite", kind) / seen.time("caffnet-ff", kind) for kind in kinds}
    if {"enumeration", "enumeration-lite"} <= seen.times.keys():
        plain = 1 - seen.time("enumeration-lite", "test_ms") / seen.time("enumeration", "test_ms")
        saved["by plain enumeration, 473 subsets instead of 1023, T_test"] = plain
    summary = {kind: f"{abs(100 * share):.0f} % {'less' if share > 0 else 'more'}" for kind, share in saved.items()}
    holds = min(saved[kind] for kind in kinds.values()) > 0.35
    return holds, ", ".join(f"{kind} {text}" for kind, text in summary.items())


def _faster_than_ipopt(seen: Evidence) -> Verdict:
    ratios = {name: seen.time("ipopt", "test_ms") / seen.time(name, "test_ms") for name in ("caffnet-ff", "caffnet-tf")}
    return min(ratios.values()) > 1, _list(ratios, lambda v: f"{v:.0f} times")


def _collide(seen: Evidence) -> Verdict:
    hits, runs = {method: int(sum(seen.values(method, "collided"))) for method in seen.methods}, len(seen.seeds)
    return min(hits.values()) == runs, _list(hits, lambda v: f"{v} of {runs}")


def _near_goal(seen: Evidence) -> Verdict:
    (method,) = seen.methods
    distances = seen.values(method, "final_distance")
    return max(distances) <= ARRIVED_NEAR, "final distance " + ", ".join(f"{number(d)} m" for d in distances)


def _near_goal_safely(seen: Evidence) -> Verdict:
    (method,) = seen.methods
    near, summary = _near_goal(seen)
    collided, worst = int(sum(seen.values(method, "collided"))), max(seen.largest(method))
    return (
        near and not collided and worst <= seen.rounding,
        f"{summary}; {collided} collided, largest violation {number(worst)}",
    )


def _far_from_goal(seen: Evidence) -> Verdict:
    _, summary = _near_goal(seen)
    return min(seen.values(seen.methods[0], "final_distance")) > ARRIVED_NEAR, summary


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim of the paper, the methods whose runs decide it, and how."""

    text: str
    methods: tuple[str, ...]
    check: Callable[[Evidence], Verdict]

    def judge(self, seen: Evidence) -> Cell:
        """A sentence: holds, does not hold, or open."""
        try:
            chosen = seen.about(self.methods)
            holds, figures = self.check(chosen)
        except Missing as missing:
            return Cell(text=f"open: {missing}")
        verdict = "so far " * (not chosen.complete) + ("holds" if holds else "does not hold")
        return Cell(text=f"{verdict}: {figures}{chosen.remark}")


BOTH, SOFT = ("caffnet-ff", "caffnet-tf"), ("nn", "hardnet")
CLAIMS: dict[str, tuple[Claim, ...]] = {
    "pwc": (
        Claim("Both CAffNets satisfy all constraints.", BOTH, _satisfied),
        Claim("NN and HardNet violate constraints.", SOFT, _violated),
        Claim("CAffNet-TF has the lowest MSE.", ("caffnet-tf", "caffnet-ff", *SOFT), _first_is_lowest(Evidence.mse)),
        Claim("CAffNet-TF reduces the MSE of the NN by 73.33 %.", ("caffnet-tf", "nn"), _reduced_by(0.7333)),
        Claim("The CAffNets start with a lower loss.", (*BOTH, *SOFT), _caffnets_lower(1)),
        Claim(
            f"The CAffNets converge faster (loss after {FIRST_EPOCHS} epochs).",
            (*BOTH, *SOFT),
            _caffnets_lower(FIRST_EPOCHS),
        ),
    ),
    "opt": (
        Claim("Both CAffNets satisfy all constraints.", BOTH, _satisfied),
        Claim("NN and HardNet violate constraints.", SOFT, _violated),
        Claim("NN and HardNet break almost all equalities.", SOFT, _equalities_broken),
        Claim(
            "CAffNet-FF is nearest to IPOPT.", ("caffnet-ff", "caffnet-tf", *SOFT), _first_is_lowest(Evidence.mean_gap)
        ),
        Claim("Lite is as good as the full search.", ("caffnet-ff", "caffnet-ff-lite"), _lite_equals_full),
        Claim("Lite takes about 45 % less time.", (), _lite_saves_time),
        Claim("The CAffNets answer faster than IPOPT.", (), _faster_than_ipopt),
    ),
    "cbf": (
        Claim(f"CAffNet-FF comes near the goal ({ARRIVED_NEAR} m), safely.", ("caffnet-ff",), _near_goal_safely),
        Claim("NN and HardNet collide.", SOFT, _collide),
        Claim(f"HardNet comes near the goal ({ARRIVED_NEAR} m).", ("hardnet",), _near_goal),
        Claim(f"NN ends far from the goal (more than {ARRIVED_NEAR} m).", ("nn",), _far_from_goal),
        Claim("A soft network that is projected afterwards gets stuck.", ("post-hoc",), _far_from_goal),
    ),
}


def claims_table(groups: list[Group], timings: Sequence[dict[str, Any]], task: str) -> Table | None:
    """Claims of the paper."""
    return judge(groups, timings, task, CLAIMS[task], "claims", "Claims of the paper", "The paper says", dropout=True)


def judge(
    groups: list[Group],
    timings: Sequence[dict[str, Any]],
    task: str,
    claims: Sequence[Claim],
    name: str,
    title: str,
    heading: str,
    dropout: bool,
) -> Table | None:
    """One row per claim, one column per protocol that has records."""
    protocols = [p for p in PROTOCOLS if any((g.task, g.protocol) == (task, p) for g in groups)]
    if not protocols:
        return None
    evidence = [_evidence(groups, timings, task, protocol, dropout) for protocol in protocols]
    rows = tuple((Cell(text=claim.text), *(claim.judge(seen) for seen in evidence)) for claim in claims)
    note = (
        "Each with the figures that decide it. Methods are compared on the seeds that all of them have, under the "
        "same settings; “open”: runs are missing (quick runs do not count); “so far”: seeds or epochs are missing."
    )
    if dropout and _any_dropout(groups, task):
        note += " Networks with dropout are judged as the paper measured them, with dropout on."
    columns = (heading, *(f"protocol “{protocol}”" for protocol in protocols))
    return Table(f"{task}-{name}", f"{title} ({task})", note, columns, rows, prose=True)


def _any_dropout(groups: Iterable[Group], task: str) -> bool:
    return any("dropout_on" in record["evaluation"] for g in groups if g.task == task for record in g.records)


def _evidence(
    groups: list[Group], timings: Sequence[dict[str, Any]], task: str, protocol: str, dropout: bool
) -> Evidence:
    runs: dict[str, list[Group]] = {}
    for group in full_runs(groups):
        if (group.task, group.protocol) == (task, protocol):
            runs.setdefault(group.method, []).append(group)
    times = [t for t in timings if (t["task"], t["protocol"]) == (task, protocol)]
    times.sort(key=lambda timing: timing.get("device", "cpu") != "cpu")  # the CPU's, where there are others too
    return Evidence(runs, optima(groups), times[0]["methods"] if times else {}, dropout)
