"""One run: every contestant on every task, timed side by side and compared with the exact answer.

The clock turns in rounds: in each round every contestant runs one block of calls, so a disturbance of the machine hits
all of them, and the median over the rounds drops it. A block is long enough for the clock (a call at batch 1 is
repeated many times), and a call that is not timed comes before it. `forward` is without gradient, `train` is forward
and backward with the same upstream gradient for all.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import statistics
import time
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from caffnet_lab.bench import contestants as who
from caffnet_lab.bench import memory, reference
from caffnet_lab.bench.ready import Limits, Ready, Refused
from caffnet_lab.bench.reference import Reference
from caffnet_lab.bench.tasks import TASKS, Task

LONG = 2  # times the seconds of an effort: measured by a single call
GROWS_LIKE = 3  # a contestant's time is expected to grow at least like n³; skipped sizes are reported


@dataclasses.dataclass(frozen=True)
class Effort:
    """Length of a measurement.

    Attributes:
        seconds: per contestant, task and direction; slow ones get `least` rounds anyway.
        least: rounds at least; a call that alone takes more than twice `seconds` is timed once.
        most: rounds at most.
        block_seconds: calls are repeated within a block until it takes about this long.
    """

    seconds: float = 1.0
    least: int = 5
    most: int = 200
    block_seconds: float = 2e-3


QUICK = Effort(seconds=0.3, least=3, most=30)


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds per call: median and quartiles over the rounds.

    Attributes:
        median: the figure that is compared.
        low: first quartile.
        high: third quartile.
        rounds: blocks that were timed.
        calls: calls per block.
    """

    median: float
    low: float
    high: float
    rounds: int
    calls: int


@dataclasses.dataclass(frozen=True)
class Record:
    """Measurements of one contestant on one task; None where there are none.

    Attributes:
        violation: the largest, measured from the data in the user's units.
        distance: the largest distance of an entry of y to the exact answer.
        wrong: the share of samples farther than 1e-6 of the data's size.
        gradient: the largest error of an entry of the gradient of f, away from kinks.
        memory: bytes beyond the inputs at the peak of one forward and backward.
        skipped: the reason why it did not take part, or stopped.
    """

    task: str
    contestant: str
    kind: str
    forward: Timing | None = None
    train: Timing | None = None
    violation: float | None = None
    distance: float | None = None
    wrong: float | None = None
    gradient: float | None = None
    memory: dict[str, Any] | None = None
    skipped: str | None = None


Progress = Callable[[str, str], None]


def run(
    tasks: list[str],
    names: list[str],
    limits: Limits,
    effort: Effort,
    memory_of: Collection[str] = (),
    progress: Progress | None = None,
    after_task: Callable[[list[dict[str, Any]], list[Record]], object] | None = None,
) -> tuple[list[dict[str, Any]], list[Record]]:
    """Measure; the facts about each task, and the records in the order of tasks and contestants.

    Peak memory is measured for the contestants in `memory_of`. `after_task` gets what there is so far: a run that is
    stopped keeps its finished tasks.
    """
    torch.set_num_threads(limits.threads)
    facts: list[dict[str, Any]] = []
    records: list[Record] = []
    slowest: dict[tuple[str, str], tuple[int, float]] = {}
    for name in tasks:
        task = TASKS[name]()
        exact = reference.solve(task)
        facts.append(describe(task, exact))
        found = measure_task(task, exact, names, limits, effort, slowest, progress)
        took_part = [n for n, r in found.items() if r.skipped is None and n in memory_of]
        if took_part:
            if progress:
                progress(name, "memory")
            for n, peak in memory.measure(name, took_part, limits).items():
                found[n] = dataclasses.replace(found[n], memory=peak)
        records += found.values()
        if after_task:
            after_task(facts, records)
    return facts, records


def describe(task: Task, exact: Reference) -> dict[str, Any]:
    """The facts about a task that its figures must be read with."""
    return {
        "name": task.name,
        "family": task.family,
        "n": task.n,
        "inequalities": task.inequalities,
        "equalities": task.equalities,
        "batch": task.batch,
        "shared_A": task.shared,
        "dtype": str(task.f.dtype).removeprefix("torch."),
        "input_bytes": task.input_bytes,
        "size": 1 + task.f.abs().max().item(),
        "unproved": int((~exact.proved).sum()),
        "at_kinks": int((~exact.smooth).sum()),
    }


def measure_task(
    task: Task,
    exact: Reference,
    names: list[str],
    limits: Limits,
    effort: Effort,
    slowest: dict[tuple[str, str], tuple[int, float]] | None = None,
    progress: Progress | None = None,
) -> dict[str, Record]:
    """All contestants on one task. `slowest` remembers per family what took how long at which n."""
    slowest = {} if slowest is None else slowest
    ready: dict[str, Ready] = {}
    found: dict[str, Record] = {}
    for name in names:
        contestant = who.CONTESTANTS[name]
        record = Record(task.name, name, contestant.kind)
        if progress:
            progress(task.name, name)
        try:
            _expect(slowest.get((name, task.family)), task.n, limits)
            if contestant.missing:
                raise Refused(f"not installed: {', '.join(contestant.missing)}")
            calls = contestant.build(task, limits)
            record = compare(record, calls, task, exact)
            ready[name] = calls
        except Refused as reason:
            record = dataclasses.replace(record, skipped=str(reason))
        except Exception as error:  # a rival that fails is a result, not the end of the run
            record = dataclasses.replace(record, skipped=f"failed: {type(error).__name__}: {str(error)[:200]}")
        found[name] = record
    if progress:
        progress(task.name, "timing")
    for direction in ("forward", "train"):
        calls = {name: getattr(one, direction) for name, one in ready.items() if getattr(one, direction) is not None}
        timed = race(calls, effort)
        for name, timing in timed.items():
            found[name] = dataclasses.replace(found[name], **{direction: timing})
            before = slowest.get((name, task.family), (task.n, 0.0))
            slowest[name, task.family] = (task.n, max(timing.median, before[1] if before[0] == task.n else 0.0))
    return found


def _expect(before: tuple[int, float] | None, n: int, limits: Limits) -> None:
    """Refuse a contestant that would exceed the time limit, judged by its time at a smaller n."""
    if before is None:
        return
    size, seconds = before
    expected = seconds * (n / size) ** GROWS_LIKE
    if expected > limits.seconds and n > size:
        raise Refused(f"took {seconds:.2g} s at n = {size}; at n = {n} it would pass the limit of {limits.seconds:g} s")


def compare(record: Record, calls: Ready, task: Task, exact: Reference) -> Record:
    """Add the accuracy of the answers to a record: violation, distance, gradient. Also the first warm-up."""
    y = calls.forward()
    gradient: Tensor | None = None
    if calls.train is not None:
        trained, gradient = calls.train()
        if not torch.allclose(trained, y, rtol=1e-6, atol=1e-6, equal_nan=True):
            raise Refused("failed: forward with and without gradient disagree")
    figures: dict[str, float] = {}
    if calls.constrained:
        figures["violation"] = _largest(task.set.violation(y))
    if calls.euclidean:
        far = (y - exact.y).abs()[exact.proved]
        size = 1 + task.f.abs().max()
        figures["distance"] = _largest(far)
        figures["wrong"] = (~(far <= 1e-6 * size)).any(-1).double().mean().item()
        if gradient is not None:
            figures["gradient"] = _largest((gradient - exact.gradient).abs()[exact.smooth])
    return dataclasses.replace(record, **figures)


def _largest(values: Tensor) -> float:
    """The largest entry; infinite if any is not a number."""
    return values.nan_to_num(nan=math.inf).max().item() if values.numel() else 0.0


def race(
    calls: dict[str, Callable[[], Any]], effort: Effort, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Timing]:
    """Time all calls in turns."""
    plan: dict[str, tuple[int, int]] = {}
    seen: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        once = _block(call, 1, False, clock)
        plan[name] = _plan(once, effort)
        if once > LONG * effort.seconds:
            seen[name].append(once)  # warm already, by the comparison of its answers
    total = max((rounds for rounds, _ in plan.values()), default=0)
    order = list(calls)
    for turn in range(total):
        order = order[1:] + order[:1]  # so that no contestant always follows the same one
        for name in order:
            rounds, repeats = plan[name]
            # Slow ones run in fewer rounds, spread over all.
            if turn * rounds // total != (turn - 1) * rounds // total:
                seen[name].append(_block(calls[name], repeats, repeats > 1 or rounds > effort.least, clock))
    return {name: _summary(values, plan[name][1]) for name, values in seen.items()}


def _plan(once: float, effort: Effort) -> tuple[int, int]:
    """Rounds and calls per block, for a call that takes `once`; no rounds for one that takes very long."""
    if once > LONG * effort.seconds:
        return 0, 1
    repeats = max(1, math.ceil(effort.block_seconds / max(once, 1e-7)))
    rounds = int(effort.seconds / max(once * (repeats + 1), 1e-7))
    return min(max(rounds, effort.least), effort.most), repeats


def _block(call: Callable[[], Any], repeats: int, warm: bool, clock: Callable[[], float]) -> float:
    if warm:
        call()
    collected = gc.isenabled()
    gc.disable()
    try:
        start = clock()
        for _ in range(repeats):
            call()
        return (clock() - start) / repeats
    finally:
        if collected:
            gc.enable()


def _summary(values: list[float], calls: int) -> Timing:
    low, high = values[0], values[0]
    if len(values) > 1:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(statistics.median(values), low, high, len(values), calls)
