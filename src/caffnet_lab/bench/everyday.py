"""The layer as people call it: written as a function, one sample at a time, float32, and on a bad day.

Every line is a ratio of two calls that take turns in one run, so a disturbance of the machine hits both; the figure is
the ratio of their medians. As in `measure`, a turn is a block of calls, and one that is not timed comes before it: what
the other call left in the caches does not count. With one thread the processor's time counts: other programs do not
lengthen it. The limits are what the library promises for the ordinary way of writing the code.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from caffnet import AffineSet, CAffine, FeedForward, prepare, project
from caffnet_lab.bench.claims import Claim, Figure
from caffnet_lab.bench.tasks import SEED, TASKS, Task

NAME = "everyday"  # as a task of `caffnet bench`
Call = Callable[[], object]

_BLOCK = 5e-3  # seconds of a block of calls

_COLD_START = """
import resource, time, torch
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
import caffnet
caffnet.project(torch.ones(3, 2), caffnet.AffineSet.inequality(torch.ones(1, 2), [1.0]))
print(time.perf_counter() - start, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def measure(quick: bool = False, announce: Callable[[str], None] = lambda line: None) -> list[Claim]:
    """Measure all lines; `announce` is called with each before it is measured."""
    claims = []
    for line, limits, calls in _lines():
        announce(line)
        forward, train = (
            Figure(_ratio(*pair, rounds=15 if quick else 60), limit) if pair and limit is not None else None
            for pair, limit in zip(calls, limits, strict=True)
        )
        claims.append(Claim(line, forward, train))
    announce("cold start")
    return [*_cold_start(), *claims]


def _ratio(one: Call, other: Call, rounds: int) -> float:
    """Median time of the first call over that of the second; short calls are repeated within a round."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def block(call: Call, count: int) -> float:
        call()
        begin = clock()
        for _ in range(count):
            call()
        return (clock() - begin) / count

    calls, times = (one, other), ([], [])
    repeats = [max(1, min(200, int(_BLOCK / max(block(call, 3), 1e-7)))) for call in calls]
    for _ in range(rounds):
        for call, count, mine in zip(calls, repeats, times, strict=True):
            mine.append(block(call, count))
    return statistics.median(times[0]) / statistics.median(times[1])


def _cold_start() -> list[Claim]:
    """Seconds and memory of a new process, beyond those of ``import torch``."""
    done = subprocess.run([sys.executable, "-c", _COLD_START], capture_output=True, text=True, check=True)
    seconds, megabytes = (float(word) for word in done.stdout.split())
    return [
        Claim("new process: import and first projection, seconds", Figure(seconds, 0.3), None),
        Claim("new process: import and first projection, MB", Figure(megabytes, 10.0), None),
    ]


# ------------------------------------------------------------------------------------------------- the lines


Line = tuple[str, tuple[float | None, float | None], tuple[tuple[Call, Call] | None, tuple[Call, Call] | None]]


def _forward(call: Call) -> Call:
    def run() -> object:
        with torch.no_grad():
            return call()

    return run


def _train(call: Callable[[], Tensor], *inputs: Tensor) -> Call:
    return lambda: torch.autograd.grad(call().sum(), inputs)


def _lines() -> Iterator[Line]:
    yield from _single_sample()
    for dtype in (torch.float64, torch.float32):
        yield from _optimisation(dtype)
    for n in (2, 8, 32):
        yield from _bad_day(n)
    yield from _strict()
    yield from _with_null()
    yield from _compiled()
    yield from _box()


def _single_sample() -> Iterator[Line]:
    task = TASKS["cbf-1"]()
    A, upper = task.set.A[0], task.set.upper.reshape(-1, task.set.m)[0]
    layer, net = CAffine(AffineSet.inequality(A, upper)), FeedForward(task.x.shape[-1], task.n).double()
    call = (_forward(lambda: layer(task.f)), _forward(lambda: net(task.x)))
    yield "batch 1, fixed set, n = 2, m = 13: layer / backbone", (0.5, None), (call, None)


def _opt_data(dtype: torch.dtype) -> tuple[Callable[[Tensor], AffineSet], Tensor, Tensor, Tensor]:
    """The paper's opt as a user writes it: a function of x with a shared A."""
    task = TASKS["opt"]()
    rows = task.set.row_kinds
    equal = torch.tensor([kind == "=" for kind in rows])
    G, C = task.set.A[~equal].to(dtype), task.set.A[equal].to(dtype)
    h = task.set.upper.expand(task.batch, -1)[0, ~equal].to(dtype)
    d = task.set.upper.expand(task.batch, -1)[:, equal].to(dtype)
    w = torch.randn(task.f.shape, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)

    def limits(right: Tensor) -> AffineSet:
        return AffineSet.inequality(G, h) & AffineSet.equality(C, right)

    return limits, d, task.f.to(dtype), w.to(dtype)


def _optimisation(dtype: torch.dtype) -> Iterator[Line]:
    limits, d, f, w = _opt_data(dtype)
    single = dtype == torch.float32
    name, layer = "float32 opt" if single else "opt", CAffine(limits)
    if not single:
        for batch in (1, len(f)):
            x, y = d[:batch], f[:batch]
            ready = prepare(limits(x))

            def fixed_and_function(x: Tensor = x, y: Tensor = y, ready=ready) -> object:
                return limits(x), project(y, ready).value

            calls = _forward(lambda x=x, y=y: layer(y, x=x)), _forward(fixed_and_function)
            line = f"opt, batch {batch}, callable: layer / (prepared layer + the function itself)"
            yield line, (1.2, None), (calls, None)
    net = FeedForward(d.shape[-1], f.shape[-1]).to(dtype)
    leaf, null, weights = f.clone().requires_grad_(), w.clone().requires_grad_(), list(net.parameters())
    train = _train(lambda: net(d), *weights)
    for with_w, limit in (
        (False, (0.5, None) if single else (0.2, 0.2)),
        (True, (0.8, None) if single else (0.35, 0.3)),
    ):
        forward = _forward(lambda with_w=with_w: layer(f, w if with_w else None, x=d)), _forward(lambda: net(d))
        inputs = (leaf, null) if with_w else (leaf,)
        both = _train(lambda with_w=with_w: layer(leaf, null if with_w else None, x=d), *inputs), train
        kind = "with w" if with_w else "w = None"
        yield f"{name}, batch 1000, callable, {kind}: layer / backbone", limit, (forward, both)


def _bad_day(n: int) -> Iterator[Line]:
    task = TASKS[f"growth-{n}"]()
    A, b, f = task.set.A.clone(), task.set.upper.clone(), task.f
    A[100, -1], b[100, -1] = -A[100, 0], -b[100, 0] - 1  # one sample of 256 has no point
    empty, spoiled = AffineSet.inequality(A, b), f.clone()
    spoiled[7, 0] = math.nan

    def solve(f: Tensor, set: AffineSet, mode: str) -> Call:
        return _forward(lambda: project(f, set, search="active", on_infeasible=mode))

    good = solve(f, task.set, "nan")
    yield f"n = {n}, 1 of 256 infeasible, nan / all feasible", (2.0, None), ((solve(f, empty, "nan"), good), None)
    yield (
        f"n = {n}, 1 of 256 infeasible, nearest / all feasible",
        (3.0, None),
        ((solve(f, empty, "nearest"), good), None),
    )
    yield f"n = {n}, 1 of 256 NaN / none", (1.2, None), ((solve(spoiled, task.set, "nan"), good), None)
    vertex = (task.set.A @ task.f.flip(0).unsqueeze(-1)).squeeze(-1)  # all rows meet in one point
    double = AffineSet.inequality(task.set.A, vertex)
    calls = solve(f.float(), double.to(torch.float32), "nan"), solve(f, double, "nan")
    yield f"n = {n}, all rows meet in one point: float32 / float64", (2.0, None), (calls, None)


def _strict() -> Iterator[Line]:
    for name in ("pwc", "opt", "cbf-300", "growth-8"):
        task = TASKS[name]()
        calls = _forward(lambda t=task: project(t.f, t.set, strict=True)), _forward(lambda t=task: project(t.f, t.set))
        yield f"{name}: strict / default", (2.0, None), (calls, None)


def _with_null() -> Iterator[Line]:
    for n in (8, 16, 32, 64):
        task = TASKS[f"growth-{n}"]()
        w = torch.randn(task.f.shape, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
        calls = (
            _forward(lambda t=task, w=w: project(t.f, t.set, w, search="active")),
            _forward(lambda t=task: project(t.f, t.set, search="active")),
        )
        yield f"growth-{n}: with w / without", (2.0, None), (calls, None)


def _compiled() -> Iterator[Line]:
    limits, d, f, _ = _opt_data(torch.float64)
    fixed: Task = TASKS["dc3-200"]()
    for name, layer, y, x in (
        ("opt, callable", CAffine(limits), f, d),
        ("dc3, fixed A", CAffine(lambda x: fixed.set), fixed.f, fixed.x),
    ):
        quick, leaf = torch.compile(layer), y.clone().requires_grad_()
        forward = _forward(lambda q=quick, y=y, x=x: q(y, x=x)), _forward(lambda q=layer, y=y, x=x: q(y, x=x))
        both = (
            _train(lambda q=quick, y=leaf, x=x: q(y, x=x), leaf),
            _train(lambda q=layer, y=leaf, x=x: q(y, x=x), leaf),
        )
        yield f"{name}: torch.compile / eager", (1.1, 1.1), (forward, both)


def _box() -> Iterator[Line]:
    stream = torch.Generator().manual_seed(SEED)
    f, w = (2 * torch.randn(64, 1000, generator=stream, dtype=torch.float64) for _ in range(2))
    box = AffineSet.box(-1.0, 1.0, dim=1000).to(torch.float64)
    plain = _forward(lambda: project(f, box))
    yield "box, n = 1000: with w / without", (2.0, None), ((_forward(lambda: project(f, box, w)), plain), None)
    leaf = f.clone().requires_grad_()
    value = project(leaf, box).value
    back = (lambda: torch.autograd.grad(value, leaf, f, retain_graph=True)), plain
    yield "box, n = 1000: backward / forward", (2.0, None), (back, None)
