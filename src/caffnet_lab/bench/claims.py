"""Goals of the layer, as ratios within one run; each line gets a verdict from the records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from caffnet._solve.problem import DEFAULT_BUDGET
from caffnet_lab.bench.contestants import BACKBONE, LAYER, LITERAL, RAW
from caffnet_lab.bench.measure import Record, Timing

PASS, MISS, ABSENT, BUDGET = "pass", "MISS", "not measured", "budget"

#: A rival is of equal accuracy up to this distance, relative to the data's size. Generous: all were asked for 1e-9,
#: interior-point methods reach about 1e-6, and the layer itself is at 1e-14.
EQUAL = 1e-5
SAME_ANSWERS = 1e-10
MEMORY_TIMES = 4
EXPONENT_FROM, EXPONENT_LIMIT = 16, 3.0
BACKBONE_LIMITS = {"pwc": (0.25, 0.35), "opt": (0.25, 0.35), "cbf-300": (0.5, 0.6), "cbf-1": (2.0, None)}
LITERAL_LIMITS = (1000.0, 500.0)
RAW_LIMIT, RIVAL_LIMIT = 1.3, 3.0
SIZES = ("growth-8", "growth-16", "growth-32", "growth-64", "dc3-200", "dc3-1000")
DIRECTIONS = ("forward", "train")


@dataclasses.dataclass(frozen=True)
class Figure:
    """A measured number with its limit.

    Attributes:
        value: None where something was not measured.
        limit: what it must not pass.
        above: whether the value must be at least the limit (else at most).
        refused: a condition that failed, whatever the number.
        excused: a value beyond the limit is no miss, because the search stayed within the user's budget.
    """

    value: float | None
    limit: float
    above: bool = False
    refused: bool = False
    excused: bool = False

    @property
    def verdict(self) -> str:
        """``pass``, ``MISS``, ``not measured``, or ``budget`` where only the budget was kept."""
        if self.value is None:
            return ABSENT
        good = self.value >= self.limit if self.above else self.value <= self.limit
        if good and not self.refused:
            return PASS
        return BUDGET if self.excused else MISS


@dataclasses.dataclass(frozen=True)
class Claim:
    """One line: forward, forward + backward (None where nothing is claimed), and what a reader should know."""

    line: str
    forward: Figure | None
    train: Figure | None
    note: str = ""


class Table:
    """The records by task and contestant."""

    def __init__(self, facts: Sequence[dict[str, Any]], records: Sequence[Record]):
        self.facts = {fact["name"]: fact for fact in facts}
        self.records = {(r.task, r.contestant): r for r in records}

    def get(self, task: str, contestant: str) -> Record | None:
        """The record, if there is one."""
        return self.records.get((task, contestant))

    def seconds(self, task: str, contestant: str, direction: str) -> float | None:
        """The median, if it was measured."""
        record = self.get(task, contestant)
        timing: Timing | None = getattr(record, direction) if record else None
        return timing.median if timing else None

    def ratio(self, task: str, one: str, other: str, direction: str) -> float | None:
        """Time of one contestant over that of another."""
        a, b = (self.seconds(task, name, direction) for name in (one, other))
        return None if a is None or b is None else a / b

    def growth(self, contestant: str, direction: str) -> list[tuple[int, float]]:
        """``(n, seconds)`` of the growth tasks."""
        found = []
        for name, fact in self.facts.items():
            seconds = self.seconds(name, contestant, direction)
            if fact["family"] == "growth" and seconds is not None:
                found.append((fact["n"], seconds))
        return sorted(found)

    def exponent(self, contestant: str, direction: str, start: int = EXPONENT_FROM) -> float | None:
        """The slope of log time over log n, from n = `start`; None with fewer than three sizes."""
        points = [(math.log(n), math.log(t)) for n, t in self.growth(contestant, direction) if n >= start]
        if len(points) < 3:
            return None
        mean_x, mean_y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
        across = sum((x - mean_x) ** 2 for x, _ in points)
        return sum((x - mean_x) * (y - mean_y) for x, y in points) / across

    def equals(self, task: str, direction: str) -> list[tuple[float, str]]:
        """Differentiable rivals of equal accuracy on a task, fastest first: ``(seconds, name)``."""
        found = []
        for (where, name), record in self.records.items():
            if where != task or record.kind != "differentiable" or record.distance is None:
                continue
            seconds = self.seconds(task, name, direction)
            if seconds is not None and record.distance <= EQUAL * self.facts[task]["size"]:
                found.append((seconds, name))
        return sorted(found)


def judge(facts: Sequence[dict[str, Any]], records: Sequence[Record]) -> list[Claim]:
    """Every line of the table, for the tasks that were run."""
    table = Table(facts, records)
    claims = []
    for task, limits in BACKBONE_LIMITS.items():
        if task in table.facts:
            forward, train = (_against(table, task, BACKBONE, d, limits) for d in DIRECTIONS)
            claims.append(Claim(f"{task}: layer / backbone", forward, train))
    if "opt" in table.facts:
        claims.append(_literal(table))
    present = [task for task in SIZES if task in table.facts]
    for task in present:
        claims.append(
            Claim(f"{task}: layer / raw DAQP loop", _against(table, task, RAW, "forward", (RAW_LIMIT,)), None)
        )
    claims += [_rival(table, task) for task in present]
    if any(fact["family"] == "growth" for fact in facts):
        forward, train = (Figure(table.exponent(LAYER, d), EXPONENT_LIMIT) for d in DIRECTIONS)
        sizes = [n for n, _ in table.growth(LAYER, "forward") if n >= EXPONENT_FROM]
        note = f"n = {', '.join(map(str, sizes))}" if sizes else ""
        claims.append(
            Claim(f"growth from n = {EXPONENT_FROM}: exponent of the layer's time in n", forward, train, note)
        )
    for task, fact in table.facts.items():
        if fact["family"] in ("opt", "growth"):
            claims.append(_memory(table, task))
    return claims


def _against(table: Table, task: str, other: str, direction: str, limits: Sequence[float | None]) -> Figure | None:
    limit = limits[DIRECTIONS.index(direction)]
    return None if limit is None else Figure(table.ratio(task, LAYER, other, direction), limit)


def _literal(table: Table) -> Claim:
    far = [r.distance for r in (table.get("opt", LITERAL), table.get("opt", LAYER)) if r and r.distance is not None]
    apart = sum(far) if len(far) == 2 else None
    forward, train = (
        Figure(table.ratio("opt", LITERAL, LAYER, d), limit, above=True, refused=apart is None or apart > SAME_ANSWERS)
        for d, limit in zip(DIRECTIONS, LITERAL_LIMITS, strict=True)
    )
    note = "" if apart is None else f"answers at most {apart:.0e} apart"
    return Claim("opt: literal enumeration / layer", forward, train, note)


def _rival(table: Table, task: str) -> Claim:
    figures, notes = [], []
    for direction in DIRECTIONS:
        mine, others = table.seconds(task, LAYER, direction), table.equals(task, direction)
        value = others[0][0] / mine if others and mine else None
        figures.append(Figure(value, RIVAL_LIMIT, above=True))
        notes.append(others[0][1] if others else "none of equal accuracy")
    record = table.get(task, notes[1])
    note = " / ".join(dict.fromkeys(notes))
    if record and record.gradient is not None:
        note += f", gradient off by {record.gradient:.0e}"
    return Claim(f"{task}: fastest rival of equal accuracy / layer", figures[0], figures[1], note)


def _memory(table: Table, task: str) -> Claim:
    record = table.get(task, LAYER)
    peak = record.memory.get("peak") if record and record.memory else None
    inputs = table.facts[task]["input_bytes"]
    note = (
        ""
        if peak is None
        else f"{peak / 2**20:.1f} of {inputs / 2**20:.2f} MiB, budget {DEFAULT_BUDGET / 2**20:.0f} MiB"
    )
    value = None if peak is None else peak / inputs
    figure = Figure(value, MEMORY_TIMES, excused=peak is not None and peak <= DEFAULT_BUDGET)
    return Claim(f"{task}: peak extra memory / inputs", None, figure, note)
