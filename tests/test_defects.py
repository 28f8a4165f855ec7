"""Defects that were found in use: export, several processes, Ctrl-C, the ends of the number range."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import caffnet
from caffnet import AffineSet, CAffine, ConstraintError, InfeasibleError, Status, project, solve_qp
from caffnet._solve.tracing import plain_operations
from helpers import nearest_exactly

INF = float("inf")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(caffnet.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


# ------------------------------------------------------------------------------------------------ export


def polytope(n: int = 5, m: int = 26, **options) -> CAffine:
    return CAffine(AffineSet.inequality(torch.randn(m, n), torch.ones(m)), **options).eval()


class Moving(torch.nn.Module):
    """A layer with a constraint function."""

    def __init__(self, set: AffineSet):
        super().__init__()
        self.layer = CAffine(lambda x: set, on_infeasible="nan")

    def forward(self, f: Tensor) -> Tensor:
        return self.layer(f, x=f)


def to_plain(layer: CAffine, args: tuple) -> None:
    with plain_operations():
        torch.export.export(layer, args)


def to_onnx(layer: CAffine, args: tuple) -> None:
    pytest.importorskip("onnxscript")
    torch.onnx.export(layer, args, dynamo=True, verbose=False)


@pytest.mark.parametrize("moving", [False, True], ids=["fixed", "moving"])
@pytest.mark.parametrize("export", [to_plain, to_onnx])
def test_a_graph_that_would_be_too_large_is_refused_before_it_is_built(export, moving: bool):
    """26 rows in R^5 have 83 681 sub-constraints, gigabytes in a graph: the message says so, and what works."""
    layer, f = polytope(on_infeasible="nan"), torch.randn(3, 5)
    if moving:
        layer = Moving(layer.set_at()).eval()
    start = time.perf_counter()
    with pytest.raises(Exception, match=r"8\.37e\+04 sub-constraints .* Export with the operator of the library"):
        export(layer, (f,))
    assert time.perf_counter() - start < 20


def test_a_small_graph_is_exported():
    f = torch.randn(3, 5)
    few = polytope(m=6, on_infeasible="nan")
    with plain_operations():
        exported = torch.export.export(few, (f,)).module()
    torch.testing.assert_close(exported(f), few(f))


def test_the_active_search_says_what_can_be_exported():
    with pytest.raises(Exception, match=r"search='active' cannot be exported .* search=\"full\" or \"lite\" for a set"):
        to_plain(polytope(search="active", on_infeasible="nan"), (torch.randn(3, 5),))


# ------------------------------------------------------------------------------------------------ several processes

WORKER = """
import sys, torch
from torch import nn
from caffnet import AffineSet, CAffNet
rank, file = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
limits = lambda x: AffineSet.box(torch.zeros_like(x), x)
net = nn.parallel.DistributedDataParallel(CAffNet(nn.Linear(2, 2), limits))
net(torch.ones(3, 2)).sum().backward()
net(torch.full((3, 2), -1.0 if rank else 1.0)).sum().backward()
"""


def test_an_infeasible_sample_names_its_process(tmp_path):
    """The others see a closed connection only; the message that matters begins with the rank."""
    command = [sys.executable, "-c", WORKER]
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meet")], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        told = [worker.communicate(timeout=120)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert "InfeasibleError: rank 1: No point satisfies the constraints of 3 of 3 samples" in told[1]
    assert "InfeasibleError" not in told[0]


def test_one_process_has_no_rank():
    with pytest.raises(InfeasibleError, match=r"^No point satisfies"):
        project(torch.zeros(1, 2), AffineSet.box([1.0, 1.0], [0.0, 0.0]))
    with pytest.raises(ConstraintError, match=r"^f must be finite"):
        project(torch.full((1, 2), INF), AffineSet.box(0.0, 1.0, dim=2))


def test_data_that_are_not_finite_name_their_process(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    with pytest.raises(ConstraintError, match=r"^rank 3: f must be finite, got inf at f\[0, 0\]"):
        project(torch.full((1, 2), INF), AffineSet.box(0.0, 1.0, dim=2))


# ------------------------------------------------------------------------------------------------ Ctrl-C

LONG = """
import signal, sys, time, torch
from caffnet import AffineSet, project
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started with Ctrl-C ignored
torch.set_num_threads(1)
n, m, samples = map(int, sys.argv[1:4])
A = torch.randn(m, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
f, w = (5 * torch.randn(samples, n, dtype=torch.float64) for _ in range(2))
limits = AffineSet.inequality(A, torch.ones(m, dtype=torch.float64))
project(f[:1, :], AffineSet.box(0.0, 1.0, dim=n))
print("ready", flush=True)
try:
    project(f, limits, w, search=sys.argv[4], budget=10**30)
    print("finished", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    print(project(torch.full((1, 2), 3.0), AffineSet.box(0.0, 1.0, dim=2)).value.tolist(), flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT is sent")
@pytest.mark.parametrize(
    "size",
    [("8", "30", "20000", "full"), ("14", "60", "1", "full"), ("100", "1000", "2000", "active")],
    ids=["many samples", "one sample", "active"],
)
def test_a_long_call_can_be_interrupted(size: tuple[str, ...]):
    """Within a second, and the next call works."""
    worker = subprocess.Popen([sys.executable, "-c", LONG, *size], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    try:
        assert worker.stdout.readline() == "ready\n"
        time.sleep(0.5)
        start = time.perf_counter()
        worker.send_signal(signal.SIGINT)
        said = worker.stdout.readline()
        waited = time.perf_counter() - start
        assert said == "interrupted\n" and waited < 1
        assert worker.stdout.readline() == "[[1.0, 1.0]]\n"
    finally:
        worker.kill()
        worker.communicate()


# ------------------------------------------------------------------------------------------------ huge outputs

HUGE = [(torch.float64, 1e308), (torch.float32, 3e38)]


def huge_outputs(dtype: torch.dtype, size: float, n: int) -> Tensor:
    """Outputs near the largest number: in every entry, in one, and of one sign."""
    f = torch.randn(30, n, dtype=dtype)
    f = f / f.abs().amax(-1, keepdim=True) * size
    one = torch.randn(30, n, dtype=dtype)
    one[:, 0] = size * one[:, 0].sign()
    return torch.cat([f, one, f.abs(), torch.full((1, n), size, dtype=dtype)])


def within_promise(set: AffineSet, y: Tensor, f: Tensor) -> Tensor:
    """a y - b <= 4 n eps (|a|_1 (|y| + |f|) + |b|), measured in double precision and scaled, lest it overflows."""
    shrink = 2.0**-60
    A, lower, upper, y, f = (t.double() for t in (set.A, set.lower, set.upper, y, f))
    lower, upper, y, f = shrink * lower, shrink * upper, shrink * y, shrink * f
    value = y @ A.mT
    excess = torch.maximum(value - upper, lower - value)
    size = A.abs().sum(-1) * (y.abs().amax(-1, keepdim=True) + f.abs().amax(-1, keepdim=True))
    bound = torch.maximum(*(torch.where(t.isfinite(), t.abs(), 0.0) for t in (lower, upper)))
    return (excess <= 4 * set.n * torch.finfo(set.dtype).eps * (size + bound)).all(-1)


def huge_sets(dtype: torch.dtype, size: float, n: int) -> dict[str, AffineSet]:
    rows, ones = torch.randn(2, n, dtype=dtype), torch.ones(1, n, dtype=dtype)
    return {
        "box": AffineSet.box(-1.0, 1.0, dim=n).to(dtype),
        "orthant": AffineSet.box(0.0, None, dim=n).to(dtype),
        "half-space": AffineSet.inequality(rows[:1], [1.0]),
        "wedge": AffineSet.inequality(rows, [1.0, 2.0]),
        "large rows": AffineSet.inequality(1e6 * rows, [1.0, 2.0]),
        "small rows": AffineSet.inequality(1e-6 * rows, [1.0, 2.0]),
        "polytope": AffineSet.inequality(torch.randn(6, n, dtype=dtype), [1.0] * 6),
        "simplex": AffineSet.equality(ones, [1.0]) & AffineSet.box(0.0, None, dim=n),
        "large box": AffineSet.inequality(rows[:1], [1.0]) & AffineSet.box(-size / 2, size / 2, dim=n),
    }


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("search", ["full", "active", "lite"])
@pytest.mark.parametrize(("dtype", "size"), HUGE, ids=["double", "single"])
def test_an_output_near_the_largest_number_is_answered(dtype: torch.dtype, size: float, search: str, strict: bool):
    """Feasible sets have an answer, whatever f is: products of f overflow, the answer does not."""
    for n in (1, 2, 5):
        f = huge_outputs(dtype, size, n)
        for name, set in huge_sets(dtype, size, n).items():
            for w in (None, torch.randn_like(f)):
                answer = project(f, set, w, search=search, strict=strict)
                assert (answer.status <= Status.WITHIN_TOL).all(), name
                assert answer.value.isfinite().all(), name
                assert within_promise(set, answer.value, f).all(), name


@pytest.mark.parametrize("search", ["full", "active", "lite"])
@pytest.mark.parametrize(("dtype", "size"), HUGE, ids=["double", "single"])
def test_an_equality_far_from_a_huge_output(dtype: torch.dtype, size: float, search: str):
    """Where the projection itself is a number; its entries are smaller than those of f if f has one sign."""
    for n in (2, 5):
        f = huge_outputs(dtype, size, n)[60:]
        for bound in (1.0, size):
            set = AffineSet.equality(torch.ones(1, n, dtype=dtype), [bound])
            answer = project(f, set, search=search)
            assert (answer.status <= Status.WITHIN_TOL).all() and answer.value.isfinite().all()
            assert within_promise(set, answer.value, f).all()


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 1.7e308), (torch.float32, 3e38)], ids=["double", "single"])
def test_a_projection_beyond_the_largest_number(dtype: torch.dtype, size: float, strict: bool):
    """The projection of (s, s, -s) on y_1 + y_2 + y_3 = 1 has the entry -4/3 s, which is no number; others are near."""
    f = torch.tensor([[size, size, -size]], dtype=dtype)
    set = AffineSet.equality(torch.ones(1, 3, dtype=dtype), [1.0])
    answer = project(f, set, strict=strict)
    assert answer.value.isfinite().all() and within_promise(set, answer.value, f).all()


# ------------------------------------------------------------------------------------------------ strict at the edge


def holds_exactly(set: AffineSet, y: Tensor) -> Tensor:
    """Every inequality of every sample, in fractions, ``(B,)``; equalities are not asked."""
    good = []
    for A, lower, upper, point in zip(*(t.tolist() for t in (set.A, set.lower, set.upper, y)), strict=True):
        holds = True
        for row, lo, hi in zip(A, lower, upper, strict=True):
            value = sum(Fraction(a) * Fraction(p) for a, p in zip(row, point, strict=True))
            inside = (hi == INF or value <= Fraction(hi)) and (lo == -INF or value >= Fraction(lo))
            holds = holds and (inside or lo == hi)
        good.append(holds)
    return torch.tensor(good)


@pytest.mark.parametrize("search", ["full", "active"])
@pytest.mark.parametrize("mixed", [False, True], ids=["all rows", "every other"])
@pytest.mark.parametrize(("dtype", "tiny"), [(torch.float64, 1e-310), (torch.float32, 1e-40)], ids=["double", "single"])
def test_strict_with_rows_of_subnormal_entries(dtype: torch.dtype, tiny: float, mixed: bool, search: str):
    samples, m, n = 150, 4, 3
    size = torch.full((m, 1), tiny, dtype=torch.float64)
    if mixed:
        size[::2] = 1.0
    A, centre = torch.randn(samples, m, n, dtype=torch.float64), torch.randn(samples, n, dtype=torch.float64)
    upper = (A @ centre.unsqueeze(-1)).squeeze(-1) + A.norm(dim=-1) * (0.1 + torch.rand(samples, m).double())
    rows, bounds = (A * size).to(dtype), (upper * size.squeeze(-1)).to(dtype)
    set = AffineSet(rows, torch.full_like(bounds, -INF), bounds)
    assert (rows[:, 1].abs() < torch.finfo(dtype).tiny).all()
    answer = project((centre + 3 * torch.randn_like(centre)).to(dtype), set, strict=True, search=search)
    assert (answer.status <= Status.PROJECTED).all() and (answer.status == Status.PROJECTED).any()
    assert holds_exactly(set, answer.value).all()


@pytest.mark.parametrize("search", ["full", "active"])
@pytest.mark.parametrize("width", [4, 16, 64, 512])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
def test_strict_in_sets_as_thin_as_rounding(dtype: torch.dtype, width: int, search: str):
    """Slabs of some epsilons around a point that is exactly inside. Below 16, one answer in twenty may be inexact."""
    samples, n, eps = 150, 3, torch.finfo(dtype).eps
    for m in (1, 2, 3):
        A, centre = torch.randn(samples, m, n, dtype=dtype), torch.randn(samples, n, dtype=dtype)
        value = (A.double() @ centre.double().unsqueeze(-1)).squeeze(-1)
        set = AffineSet(A, (value - width * eps / 2).to(dtype), (value + width * eps / 2).to(dtype))
        solvable = holds_exactly(set, centre)
        assert solvable.float().mean() > 0.9
        f = centre + 3 * torch.randn_like(centre)
        answer = project(f, set, strict=True, search=search, on_infeasible="nan")
        assert (answer.status[solvable] <= Status.WITHIN_TOL).all()
        exact = holds_exactly(set, answer.value.nan_to_num(1e9))
        assert (exact | (answer.status >= Status.WITHIN_TOL)).all()  # what is not exact says so
        assert exact[solvable].float().mean() >= (1.0 if width >= 16 else 0.95)


# ------------------------------------------------------------------------------------------------ what fuzzing found


@pytest.mark.parametrize("none", [1e20, 1e30, 1e300], ids=str)
def test_a_huge_bound_that_means_none_does_not_loosen_the_other_side(none: float):
    """1e20 is how solvers write "no bound": what rounding explains is judged by the bound that is exceeded."""
    set = AffineSet([[3.0, 1.0]], [0.5], [none])
    answer = project(torch.zeros(1, 2, dtype=torch.float64), set)
    torch.testing.assert_close(answer.value, torch.tensor([[0.15, 0.05]], dtype=torch.float64))
    assert not set.contains([0.0, 0.0]) and set.contains(answer.value)
    graph = torch.export.export(CAffine(set.to(torch.float64)), (torch.zeros(1, 2, dtype=torch.float64),)).module()
    torch.testing.assert_close(graph(torch.zeros(1, 2, dtype=torch.float64)), answer.value)


def test_a_row_with_one_large_and_one_tiny_entry_is_no_bound_of_one_output():
    """2^100 y_1 + y_4 = 0: the tiny entry is lost in |a|_1 and |a|_2, but it is there."""
    A = torch.tensor([[2.0**100, 0, 0, 1.0], [0, -4, -4, -4]], dtype=torch.float64)
    set = AffineSet(A, [0.0, -INF], [0.0, -1.0])
    value = project(torch.full((4,), -4.0, dtype=torch.float64), set).value
    torch.testing.assert_close(value[1:], torch.full((3,), 1 / 12, dtype=torch.float64))


def test_a_row_of_zeros_that_excludes_every_point_does_so_for_any_f():
    set = AffineSet.inequality([[0.0, 0.0]], [-1.0])
    with pytest.raises(InfeasibleError):
        project(torch.tensor([[1e62, 0.0]], dtype=torch.float64), set)


@pytest.mark.parametrize("A", [[[5e-324, 0.0]], [[5e-324, 5e-324]]], ids=["bound", "row"])
def test_a_set_that_begins_beyond_the_largest_number_is_infeasible_with_a_proof(A: list):
    with pytest.raises(InfeasibleError) as caught:
        project(torch.full((1, 2), -4.0, dtype=torch.float64), AffineSet(A, [1.0]))
    (conflict,) = caught.value.conflicts
    assert conflict.rows == (0,) and conflict.proven and conflict.radius > 1.7e308


def test_a_gap_below_the_smallest_number_is_no_gap_of_zero():
    """-8 y = 5e-324 and y >= 0."""
    set = AffineSet([[-8.0], [-4.0]], [5e-324, -INF], [5e-324, 0.0])
    with pytest.raises(InfeasibleError) as caught:
        project(torch.tensor([5e-324], dtype=torch.float64), set)
    (conflict,) = caught.value.conflicts
    assert sorted(conflict.rows) == [0, 1] and conflict.proven and conflict.gap < 0


def test_strict_is_no_excuse_for_equalities_that_contradict_each_other():
    third = 0.1 + 0.2  # not 3 * 0.1: parallel but for rounding, so there is no proof either
    set = AffineSet.equality([[-4.0, -4.0, 0.1], [-12.0, -12.0, third]], [0.0, 1.0])
    answer = project(torch.tensor([[0.0, 0.0, -4.0]], dtype=torch.float64), set, strict=True, on_infeasible="nearest")
    assert answer.violation.item() > 0.1 and answer.status.item() in (Status.WITHIN_TOL, Status.INFEASIBLE)


def test_an_exact_conflict_is_found_beside_rows_that_are_parallel_but_for_rounding():
    a = [0.1, -4.0, -4.0]
    set = AffineSet([a, a, [0.3, -12.0, -12.0]], [0.03125, -INF, -INF], [0.03125, 0.0, 0.0]).to(torch.float32)
    answer = project(torch.tensor([[-4.0, -4.0, 0.0]]), set, on_infeasible="nearest")
    assert answer.status.item() == Status.INFEASIBLE
    assert answer.violation.item() < 0.1 and answer.value.abs().max() < 100


@pytest.mark.parametrize("size", [1.0, 1e139, 1e308], ids=str)
@pytest.mark.parametrize("bound", [5e-324, 1e-310, 4e-248, 1e-200], ids=str)
def test_a_row_of_zeros_is_judged_the_same_at_every_size_of_the_sample(bound: float, size: float):
    """0 y >= 4e-248 has no point; 0 y >= 1e-310 may be underflow. Scaling makes neither 0 y >= 0."""
    set = AffineSet([[0.0, 0.0], [1.0, 0.0]], [bound, -INF], [INF, 4.0])
    answer = project(torch.tensor([[size, 0.0]], dtype=torch.float64), set, on_infeasible="nan")
    assert answer.status.item() == (Status.INFEASIBLE if bound > 1e-290 else Status.WITHIN_TOL)


def test_strict_does_not_leave_a_hard_equality_for_numbers_beyond_the_largest():
    """The soft row, -5e-324 y <= -1e139, asks for 1e462."""
    small = 7.6704585395276977e-93
    rows = torch.tensor([[1.0, small], [0.1, 7.6704585395276982e-94], [1.0, small]], dtype=torch.float64)
    hard = AffineSet(rows, [-INF, 0.0, -INF], [0.0, 0.0, -4.0])
    wish = AffineSet(torch.tensor([[0.0, -5e-324]], dtype=torch.float64), [0.0], [-1e139]).soft()
    answer = project(torch.tensor([2.7e300, 0.0], dtype=torch.float64), hard & wish, strict=True)
    for a, low, high in zip(rows.tolist(), hard.lower.tolist(), hard.upper.tolist(), strict=True):
        terms = [Fraction(c) * Fraction(y) for c, y in zip(a, answer.value.tolist(), strict=True)]
        excess = max(sum(terms) - Fraction(high), (Fraction(low) if low > -INF else sum(terms)) - sum(terms))
        assert excess <= sum(map(abs, terms)) * Fraction(2) ** -48 or answer.status == Status.WITHIN_TOL


def test_strict_does_not_write_a_point_beyond_the_largest_number():
    """Drawn-in rows meet at 3e309; cut to the largest number, that is not on the equality."""
    row = torch.tensor([0.0, 0.0, -2e-323, 15.875, -(2.0**-21), 0.0], dtype=torch.float64)
    A = torch.stack(
        [-row / 4, torch.tensor([-4.0, 0, 0, 0, 0, 0]).to(row), torch.tensor([0, 0, 0, 0.03125, 0, 0]).to(row), row]
    )
    set = AffineSet(A, [-INF, -INF, -INF, -63.5], [15.875, 4.0, 1e308, -63.5])
    f = torch.tensor([0.0, -4, -4, -4, -4, -4], dtype=torch.float64)
    w = torch.tensor([-4.0, 0, -4, 1.3789130657754968e216, 0, 0], dtype=torch.float64)
    value = project(f, set, w, search="full", strict=True).value
    value = value * 1e-20  # so that the sums are finite
    assert (value @ row + 63.5e-20).abs() <= 1e-12 * (value.abs() @ row.abs())


# ------------------------------------------------------------------------------------------------ corners and edges


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_tip_of_a_cone_is_the_origin(dtype: torch.dtype):
    """Rounding noise around the origin was returned, which no relative tolerance accepts."""
    stream, tips = torch.Generator().manual_seed(3), 0
    for _ in range(60):
        A = torch.randint(-3, 4, (7, 4), generator=stream).to(dtype)
        cone = AffineSet.inequality(A, torch.zeros(7, dtype=dtype))
        answer = project(torch.randn(20, 4, generator=stream).to(dtype), cone)
        assert cone.contains(answer.value).all()
        small = answer.value.abs().amax(-1) < 1e-12
        assert (answer.value[small] == 0).all()
        tips += int(small.sum())
    assert tips > 100


@pytest.mark.parametrize("width", [1.1, 1.2, 1.3])
def test_rows_that_lie_near_the_ones_before(width: float):
    """Each row keeps a tenth of its length beside those before: what one Gram-Schmidt step leaves must not grow."""
    at = torch.arange(64, dtype=torch.float64)
    A = torch.exp(-((at[:40, None] + 12 - at) ** 2) / (2 * width**2))
    stream = torch.Generator().manual_seed(0)
    inside, noise = (torch.randn(64, dtype=torch.float64, generator=stream) for _ in range(2))
    f = inside + 3 * noise
    answer = project(f, AffineSet.equality(A, A @ inside))
    nearest = f - torch.linalg.lstsq(A, A @ (f - inside), driver="gelsd").solution
    assert answer.status == Status.PROJECTED
    torch.testing.assert_close(answer.value, nearest, rtol=0, atol=1e-9)


def test_the_least_violation_beside_rows_that_only_rounding_tells_apart():
    """A point thrown far by such a row was taken for the size of the problem: the answer was f, violated by 0.9."""
    optimize = pytest.importorskip("scipy.optimize")
    draw = np.random.default_rng(9525)
    n = int(draw.integers(2, 30))
    m = int(draw.integers(1, 3 * n))
    A = draw.standard_normal((m, n))
    A[draw.random((m, n)) < 0.7] = 0
    inside = draw.standard_normal(n)
    value = A @ inside
    high = value + draw.exponential(1, m) * (draw.random(m) < 0.7)
    low = np.where(draw.random(m) < 0.5, -np.inf, value - draw.exponential(1, m))
    assert draw.random() < 0.2
    high = value - 0.01 * draw.random(m)
    low = np.minimum(low, high)
    if draw.random() < 0.4:
        count = int(draw.integers(0, n))
        equal = draw.choice(m, min(count, m), replace=False)
        low[equal] = high[equal] = value[equal]
    f = inside + 10.0 ** draw.integers(-2, 5) * draw.standard_normal((4, n))
    answer = project(torch.tensor(f), AffineSet(A, low, high), on_infeasible="nearest")
    below = np.isfinite(low)
    sides, bounds = np.vstack([A, -A[below]]), np.concatenate([high, -low[below]])
    rows = np.hstack([sides, -np.ones((len(bounds), 1))])
    free = [(None, None)] * n + [(0, None)]
    least = optimize.linprog(np.eye(n + 1)[-1], rows, bounds, bounds=free).fun
    assert least > 1e-3
    assert (answer.status == Status.INFEASIBLE).all()
    assert answer.violation.numpy() == pytest.approx(least, rel=1e-9)


def test_relaxed_never_stands_beside_a_broken_hard_row():
    """At the ends of the range of numbers, under strict, a hard row was exceeded by a quarter of its terms."""
    inf, big = float("inf"), 1.0000000000000001e300
    rows = [[0, 0, 1, big], [0, 0, 0.1, big / 10], [0, 0, 1, big], [0, 1, 0, 0], [0, 0, -4, -4 * big]]
    rows += [[1, 0, -3.9998779296875, 1], [1, 0.15625, 1, 5e-324]]
    low = torch.tensor([-inf, -4, 0, -inf, -inf, 0, -inf], dtype=torch.float64)
    high = torch.tensor([3.2e60, 4, 0, 4, 4, 0, 0], dtype=torch.float64)
    hard = AffineSet(torch.tensor(rows, dtype=torch.float64), low, high)
    goal = AffineSet(torch.tensor([[1.0, 0, 0, -4]], dtype=torch.float64), [3.2e60], [inf]).soft()
    f = torch.tensor([0.0, -4, -4, 0], dtype=torch.float64)
    answer = project(f, hard & goal, strict=True, on_infeasible="nearest")
    values = [sum(Fraction(a) * Fraction(y) for a, y in zip(row, answer.value.tolist(), strict=True)) for row in rows]
    sizes = [
        sum(abs(Fraction(a) * Fraction(y)) for a, y in zip(row, answer.value.tolist(), strict=True)) for row in rows
    ]
    holds = all(
        (bottom == -inf or v >= Fraction(bottom) - size / 10**9) and (top == inf or v <= Fraction(top) + size / 10**9)
        for v, size, bottom, top in zip(values, sizes, low.tolist(), high.tolist(), strict=True)
    )
    assert holds or answer.status == Status.WITHIN_TOL


def test_a_batch_without_samples_and_a_set_without_rows():
    rows = AffineSet.inequality(torch.ones(1, 3), [1.0])
    answer = project(torch.zeros(0, 3), rows)
    assert answer.multipliers.shape == (0, 1)
    assert answer.residuals().gap.shape == (0,)
    assert answer.names_of_binding() == []
    nothing = AffineSet(torch.zeros(0, 3), torch.zeros(0), torch.zeros(0))
    assert project(torch.zeros(2, 3), nothing).names_of_binding() == [(), ()]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_without_one_shape_or_numbers_are_named():
    ragged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    with pytest.raises(
        ConstraintError, match="A is a nested tensor; all samples of a set have the same number of rows"
    ):
        AffineSet(ragged, None, [1.0])
    with torch.device("meta"), pytest.raises(ConstraintError, match="tensors on the meta device have none"):
        CAffine(AffineSet.inequality(torch.ones(1, 3), torch.ones(1)))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_forward_mode_has_no_tangent_gradient():
    box = AffineSet.box(0.0, 1.0, dim=2)
    f, v = 2 * torch.ones(2), torch.ones(2)
    with pytest.raises(ConstraintError, match='gradient="tangent" is a rule for gradients in reverse mode'):
        torch.func.jvp(lambda f: project(f, box, gradient="tangent").value, (f,), (v,))
    slopes = torch.func.vmap(torch.func.grad(lambda f: project(f, box, gradient="tangent").value.sum()))(f.expand(3, 2))
    assert torch.equal(slopes, torch.ones(3, 2))


# ------------------------------------------------------------------------------------------------ sizes of outputs


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6])
@pytest.mark.parametrize(
    "options", [{}, {"strict": True}, {"search": "full"}, {"metric": torch.tensor([2.0, 1.0, 3.0])}]
)
def test_an_output_that_is_in_no_row_changes_nothing(size: float, options: dict):
    """Its rounding does not reach the others: an angle beside a power keeps its own limit."""
    rows = torch.tensor([[0.0, 0.3, 0.7], [0.0, 0.9, 0.1], [0.0, -1.0, 2.0]])
    set = AffineSet.inequality(rows, torch.tensor([1.0, 1.0, 0.5]))
    f = torch.cat([torch.full((200, 1), size), 3 * torch.randn(200, 2)], -1)
    g = torch.cat([torch.zeros(200, 1), f[:, 1:]], -1)
    found, alone = project(f, set, **options), project(g, set, **options)
    assert torch.equal(found.value[:, 0], f[:, 0])
    assert (found.value[:, 1:] - alone.value[:, 1:]).abs().max() < 2e-5
    assert torch.equal(found.status, alone.status)
    assert found.violation.max() < 1e-5
    assert set.contains(found.value).all()
    assert torch.equal(set.contains(f), set.contains(g))


def test_limits_of_angles_beside_powers():
    """Fifty powers in MW and fifty angles in rad: f broke a limit of 0.1 by half of it and came back as it was."""
    A = torch.zeros(49, 100)
    A[range(49), range(50, 99)], A[range(49), range(51, 100)] = 1.0, -1.0
    set = AffineSet(A, -0.1, 0.1)
    f = torch.cat([1000 * torch.rand(64, 50), 0.1 * torch.randn(64, 50)], -1)
    answer = project(f, set)
    assert not set.contains(f).any()
    assert answer.violation.max() < 1e-6
    assert set.contains(answer.value).all()


def test_a_program_counts_the_numbers_of_each_row():
    set = AffineSet.inequality([[0.0, 1.0, 1.0]], [1.0])
    found = caffnet.solve_qp(torch.ones(3), torch.tensor([-1e6, -3.0, -3.0]), set)
    assert found.value.tolist() == [1e6, 0.5, 0.5]
    assert abs(found.multipliers.item() - 2.5) < 1e-6


@pytest.mark.parametrize(
    "rows", [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]], [[1.0, 0.0], [0.0, 1.0], [0.5, 1.0]]]
)
@pytest.mark.parametrize("size", [1.0, 1e6])
def test_the_tangent_cone_has_the_rows_that_are_touched_in_their_own_numbers(rows: list, size: float):
    """y2 <= 1 is far away at y2 = 0.99, whatever y1; its gradient was cut off there."""
    set = AffineSet.inequality(torch.tensor(rows), torch.tensor([10.0 * size, 1.0, 20.0 * size][: len(rows)]))
    f = torch.tensor([11.0 * size, 0.99], requires_grad=True)
    project(f, set, gradient="tangent").value[1].neg().backward()
    assert f.grad is not None and f.grad.tolist() == [0.0, -1.0]


def test_float32_rows_that_miss_each_other_are_not_answered_far_away():
    """0.9 is not 3 * 0.3 in float32, so the rows meet at 4e6, where what they miss is less than their rounding."""
    set = AffineSet.equality([[0.1, 0.3], [0.3, 0.9]], [1.0, 3.1])
    with pytest.raises(InfeasibleError, match=r"row 0 .*row 1") as caught:
        project(torch.tensor([1.0, 2.0]), set)
    assert caught.value.conflicts[0].radius > 1e5
    nearest = project(torch.tensor([1.0, 2.0]), set, on_infeasible="nearest")
    assert nearest.value.abs().max() < 10 and nearest.violation < 0.03
    far = AffineSet.equality([[1.0, 0.0], [1.0, 1e-6]], [0.0, 1.0])  # small numbers in the row: a point like any other
    assert project(torch.tensor([1.0, 2.0]), far).value[1] > 9e5


def test_strict_stays_near_the_ordinary_answer():
    """Rows that nearly depend on each other meet anywhere once they are drawn in."""
    rows = torch.tensor([[0.7, 0.0, 0.4], [-0.1, -1.2, -0.6]])
    set = AffineSet.equality(rows, torch.tensor([-0.38, 2.76]))
    set &= AffineSet(torch.tensor([[-1.12, -1.68, -1.4]]), torch.tensor([4.436]), None)
    f = torch.tensor([0.83, 0.28, 1.29]) + torch.randn(300, 3)
    plain, strict = (project(f, set, strict=s, on_infeasible="nearest") for s in (False, True))
    assert (strict.value.abs().amax(-1) <= 3 * plain.value.abs().amax(-1) + f.abs().amax(-1)).all()
    assert (strict.violation <= 3 * plain.violation + 1e-4).all()


def test_an_output_at_its_bound_is_the_bound():
    """Not 1e-33: users count zeros."""
    rows = AffineSet.equality(torch.ones(1, 20), torch.tensor([1.0])) & AffineSet.inequality(
        torch.randn(4, 20), torch.ones(4)
    )
    set = rows & AffineSet.box(0.0, 0.1, dim=20)
    answer = project(torch.randn(256, 20), set, on_infeasible="nan")
    lower, upper = answer.active[:, -20:] < 0, answer.active[:, -20:] > 0
    assert lower.sum() > 500
    assert (answer.value[lower] == 0).all()
    assert (answer.value[upper] == torch.tensor(0.1)).all()


# -------------------------------------------------------------------------------- rows that contradict each other


def test_an_earlier_conflict_may_be_the_proof():
    """The rows that settle the least violation are parallel but for 1e-6: their proof does not reach far. That of the
    first conflict, y1 = y3, y2 + y3 = -1, -2 y1 + y2 + 3 y3 = 0, is exact."""
    rows = torch.tensor([[1.0, 0.0, -1.0], [0.0, 1.0, 1.0], [-1.9999980926513672, 0.0, 2.0], [-2.0, 1.0, 3.0]])
    hard = AffineSet(rows, [0.0, -1.0, -INF, 0.0], [0.0, -1.0, 0.0, 0.0])
    soft = AffineSet.inequality([[-2.0, 0.0, 2.0]], [0.0]).soft()
    for f in (torch.zeros(3), torch.full((3,), 0.5)):
        for set in (hard, hard & soft):
            assert project(f, set, on_infeasible="nan").status == Status.INFEASIBLE


def test_a_demand_equal_to_the_capacity_is_answered_whatever_f():
    """2.3 * 3.8 + 0.5 * 0.3 is 8.89, but for rounding in float32."""
    for row, cap, load in (([2.3, 0.5], [3.8, 0.3], 8.89), ([2.1, 0.1, 0.5, 2.6], [4.5, 1.5, 4.4, 3.2], 20.12)):
        set = AffineSet.equality([row], [load]) & AffineSet.box(0.0, cap)
        for soft in (None, AffineSet.inequality([[1.0] * len(cap)], [0.0]).soft()):
            whole = set if soft is None else set & soft
            answer = project(3 * torch.randn(1000, len(cap)), whole, on_infeasible="nearest")
            assert not (answer.status == Status.INFEASIBLE).any()
            assert set.contains(answer.value).all()
            assert set.violation(answer.value).max() < 4e-6


@pytest.mark.parametrize("strict", [False, True])
def test_equalities_that_imply_a_bound_keep_it(strict: bool):
    """2 * row 0 - row 1 says that y1 = 0, which is also a bound: rounding in rows of size 1000 made it -4e-12."""
    rows = torch.tensor([[-4.0, -4.0, 1000.0], [-8.0, -12.0, 2000.0], [-4.0, -8.0, 1000.0]], dtype=torch.float64)
    set = AffineSet(rows, [1000.0, 2000.0, -INF], [1000.0, 2000.0, 1000.0]) & AffineSet.box([-INF, 0.0, -INF], None)
    f = torch.tensor([0.0, 0.0, -4.0], dtype=torch.float64)
    answer = project(f + torch.randn(200, 3, dtype=torch.float64), set, strict=strict)
    assert (answer.value[:, 1] >= 0).all()
    assert set.contains(answer.value).all()


def test_a_soft_row_that_no_point_satisfies_hides_nothing():
    """0 <= -1 is given up; the hard rows keep their say."""
    never = AffineSet.inequality(torch.zeros(1, 2), [-1.0]).soft()
    w = torch.tensor([0.0, 1.0])
    hard = AffineSet(torch.tensor([[1.0, -4.0], [0.99999904632568359, -4.0]]), [0.0, 1.0], [0.0, 1.0])  # meet at 1e6
    assert project(torch.zeros(2), hard & never, w, on_infeasible="nan").status in (Status.RELAXED, Status.INFEASIBLE)
    answer = project(torch.ones(2), AffineSet.inequality([[1.0, 1.0]], [1.0]) & never, on_infeasible="nan")
    assert answer.status == Status.RELAXED and answer.value.tolist() == [0.5, 0.5]
    empty = AffineSet(torch.ones(1, 2), [2.0], [1.0]) & never
    assert project(torch.ones(2), empty, on_infeasible="nan").status == Status.INFEASIBLE


# ------------------------------------------------------------------------------------------------ the ends of the range


@pytest.mark.parametrize("power", [-1060, 450, 1010, 1020])
def test_gradients_are_linear_over_the_whole_range(power: int):
    f = torch.tensor([2.0, 1.0], dtype=torch.float64, requires_grad=True)
    value = project(f, AffineSet.inequality([[1.0, 1.0]], [1.0])).value
    value.backward(torch.tensor([2.0**power, 0.0], dtype=torch.float64))
    half = 2.0 ** (power - 1)
    assert f.grad is not None and f.grad.tolist() == pytest.approx([half, -half], rel=1e-14, abs=0)


def test_strict_moves_by_the_smallest_numbers_too():
    set = AffineSet.inequality([[-1.0, -2.0], [0.3, -1.0]], [-1e-34, 1.0])
    answer = project(torch.zeros(2), set, strict=True)
    assert answer.status == Status.PROJECTED
    value = [Fraction(y) for y in answer.value.tolist()]
    assert value[0] + 2 * value[1] >= Fraction(torch.tensor(1e-34).item())


def test_a_budget_counts_the_numbers_at_its_corner():
    """One output is fixed at 1e6 by its bounds and not in the row; the other eleven cannot sum up to 1."""
    row = torch.cat([torch.zeros(1), torch.ones(11)])[None]
    low, high = torch.zeros(12), torch.full((12,), 0.09)
    low[0] = high[0] = 1e6
    set = AffineSet.equality(row, [1.0]) & AffineSet.box(low, high)
    assert project(torch.randn(12), set, on_infeasible="nan").status == Status.INFEASIBLE


# ------------------------------------------------------------------------------- points that are made of rounding


def test_rows_that_depend_on_each_other_by_rounding_meet_nowhere():
    """Row 1 is row 0 but for 1.2e-6 y3, and y3 is fixed: a vertex at 7e15, found by dividing rounding by rounding, is
    none. The soft rows give way."""
    rows = torch.tensor([[5.0, 5, -2, 5, 2, 5], [5.0, 5, -1.9999988079071045, 5, 2, 5], [0.0, 0, 2, 0, 0, 0]])
    hard = AffineSet.equality(rows[:1], [17.0])
    soft = AffineSet(rows[1:], [3.0, 6.0], [3.0, 6.0000004768371582]).soft()
    f, w = torch.tensor([0.0, 0, 5, -3, 1, 3]), torch.tensor([-2.0, -3, 1, 0, -2, 5])
    for strict in (False, True):
        answer = project(f, hard & soft, w, strict=strict)
        assert answer.status == Status.RELAXED and answer.value.abs().max() < 100
        assert hard.violation(answer.value) < 1e-4


def test_an_answer_set_aside_comes_back_as_it_was():
    """The rows meet at 5e7. Whether they are parallel but for rounding is asked with another test of the rank, which
    must not leave its own point behind: it broke a row by 3."""
    big = -100000000.0
    rows = [
        [0.0, 0, 1, 0, 0],
        [0.0, 0, 1.0000000000000002, 0, 0],
        [1.2027592658996582, 1.9284019470214844, big, 1000, 3],
        [-3.0, 0.3, big, 1.0000001192092896, -3],
        [-6.0, 0.6, 2 * big, 2.0000002384185791, -6],
    ]
    low = [2.9999999900000001, 3.0000000000000009, -420275921.94716519, -INF, -5.7979999520778671]
    high = [INF, 3.0000000000000009, -420275921.94716519, -2.8989999760389331, -5.7979999520778671]
    f = torch.tensor([2.7474985122680664, 1.1920928955078125e-07, -1, -0.3, 0], dtype=torch.float64)
    set = AffineSet(torch.tensor(rows, dtype=torch.float64), low, high)
    for search in ("active", "full", "lite"):
        answer = project(f, set, search=search)
        assert answer.status == Status.PROJECTED and abs(answer.value[2] - 3) < 1e-6
        assert set.contains(answer.value).all()


def test_levels_beyond_the_largest_number_leave_hard_rows_alone():
    """The bounds of a soft row miss each other by 1e308 in a row of size 1e229, so that its level has no number."""
    soft = AffineSet(
        torch.tensor([[-0.47], [-0.94], [4.51e229], [4.51e229]], dtype=torch.float64),
        [-INF, 5.0, -INF, torch.finfo(torch.float64).max],
        [1000.0, INF, 1.0, -1e8],
    ).soft()
    rows = torch.tensor([[2.0**-23], [1.0]], dtype=torch.float64)
    hard = AffineSet(rows, [-1.0, 8.9e-132], [-1.0, 8.9e-132])
    f = torch.tensor([-1.39], dtype=torch.float64)
    assert project(f, soft & hard, on_infeasible="nan").status == Status.INFEASIBLE
    answer = project(f, soft & AffineSet.equality(rows[:1], [-1.0]), on_infeasible="nan")
    assert answer.status == Status.RELAXED and answer.value.item() == -(2.0**23)


# ----------------------------------------------------------------------------------- soft bounds of one output


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_soft_bound_gives_way_to_a_number_that_the_type_does_not_have(dtype: torch.dtype):
    """y1 >= s is soft; y1 <= h < s is hard, or soft too: the relaxed bound is h, or (h + s) / 2, up to rounding only.
    The closing row was missing from `active` then, gradients were 0, and in a metric the answer the Euclidean one."""
    metric = torch.tensor([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]], dtype=dtype)
    row, room = torch.tensor([[1.0, 0.0, 0.0]], dtype=dtype), 1e-6 if dtype == torch.float64 else 1e-3
    for _ in range(200):
        h = torch.rand(1, dtype=dtype, requires_grad=True)
        s, f = 1 + torch.rand(1, dtype=dtype), torch.randn(3, dtype=dtype)
        cap, floor = AffineSet.inequality(row, h), AffineSet(row, s, None).soft()
        for set, share in ((cap & floor, 1.0), (cap.soft() & floor, 0.5)):
            (slope,) = torch.autograd.grad(project(f, set).value[0], h)
            assert slope.item() == pytest.approx(share, abs=room)
            y = project(f, set.with_metric(metric)).value.tolist()
            assert y[0] == pytest.approx(share * h.item() + (1 - share) * s.item(), abs=room)
            assert y[1] == pytest.approx(f[1].item() - (y[0] - f[0].item()) / 2, abs=room)
        assert project(f, cap & floor).value[0] <= h


# ------------------------------------------------------------------------------------------- sets without a point


def test_the_gap_of_a_conflict_is_that_of_its_multipliers():
    """Nearly parallel rows in float32: the proof that is told is another one than the last."""
    rows = [
        [-1.1054705381393433, 0.5342361330986023, -0.544646680355072],
        [-3.3164117336273193, 1.6027129888534546, -1.6339446306228638],
    ]
    low = [-0.4339689314365387, -1.2401493787765503]
    set = AffineSet(torch.tensor(rows), low, [low[0], INF])
    with pytest.raises(InfeasibleError) as caught:
        project(torch.tensor([-0.5, -1.6, 0.4]), set)
    (conflict,) = caught.value.conflicts
    gap = sum(m * low[i] for i, m in zip(conflict.rows, conflict.multipliers, strict=True))
    assert conflict.gap == pytest.approx(gap, rel=1e-6)


def test_the_gradient_of_the_nearest_point_leaves_broken_equalities_out():
    """y1 and y2 are where rows 0 and 2 miss each other, beside row 1; an equality that is broken there has no say."""
    rows = torch.tensor([[2.0, -1.0], [2.0, 1.0], [2.0, -1.0]], dtype=torch.float64)
    low = torch.tensor([-INF, 2.0, 2.0], dtype=torch.float64)
    high = torch.tensor([-1.0, 2.0, 2.0], dtype=torch.float64)
    f = torch.tensor([[3.0, -1.0], [1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    for metric in (None, [2.0, 1.0]):
        alone = AffineSet(rows, low, high)
        whole = AffineSet(
            torch.stack([rows, rows.flip(0)]), torch.stack([low, low.flip(0)]), torch.stack([high, high.flip(0)])
        )
        if metric is not None:
            alone, whole = alone.with_metric(metric), whole.with_metric(metric)

        def value(f: torch.Tensor, set: AffineSet = alone) -> torch.Tensor:
            return project(f, set, on_infeasible="nearest").value.sum()

        (slope,) = torch.autograd.grad(value(f, whole), f)
        (same,) = torch.autograd.grad(value(f), f)
        assert torch.equal(slope[0], same[0])
        step = 1e-6 * torch.eye(2, dtype=torch.float64)
        found = [(value(f[0] + e) - value(f[0] - e)).item() / 2e-6 for e in step]
        assert same[0].tolist() == pytest.approx(found, abs=1e-6)


def test_a_metric_does_not_make_contradictions_soft():
    hard = AffineSet.equality([[-1.0]], [-3.0]) & AffineSet([[-1.0]], -1.0, None)
    set = hard & AffineSet.equality([[0.0]], [3.0]).soft()
    f = torch.tensor([4e20], dtype=torch.float64)
    other = AffineSet([[2.0], [-1.0], [-1.0]], [-1.0, -3.0, -1.0], [-1.0, -3.0, INF]).to(torch.float64)
    for given in (set, set.with_metric([2.0]), other & set, (other & set).with_metric([3.5])):
        assert project(f, given, on_infeasible="nearest").status == Status.INFEASIBLE


def test_rows_that_meet_far_away_by_rounding_exclude_each_other_in_a_metric_too():
    """Rows 0, 1 and 5 are parallel but for rounding: without a metric INFEASIBLE; in one, a point of 4e11 was taken."""
    rows = [
        [-0.3952220058551517, -1.165375813377058, -1.1942065589623516],
        [1.1856660175686922, 3.496127440127988, 3.5826196768903134],
        [-1.5027309660468473, -0.7065761641405777, -1.1511994475404428],
        [-0.03952220058551518, -0.11653758133770581, -0.11942065589623517],
        [-0.1137251523448417, -0.581085703798503, 0.578027747698546],
    ]
    weak = [
        [-1.1856660175686902, -3.496127440127994, -3.5826196768903134],
        [-0.07838414355001301, 1.574478909981427, 0.06863321076740247],
        [-0.37172125322120136, -1.0160410414242982, -0.6730465985779424],
    ]
    low = [1.6449469341427347, 0.1319768759675755, -INF, -INF, -INF]
    high = [1.6449469341427347, 0.19305853094084213, -1.1124522066441236, -0.4894540696276678, -0.20044227119154132]
    hard = AffineSet(torch.tensor(rows, dtype=torch.float64), low, high)
    soft = AffineSet(
        torch.tensor(weak, dtype=torch.float64),
        [-INF, 0.7489705362459034, -INF],
        [0.6452246248988689, INF, 0.33115214611639315],
    ).soft()
    set, f = hard & soft, torch.tensor([0.9625551211367049, 0.8606134677229611, -0.7090829161856489]).double()
    for given in (set, set.with_metric([[4.0, -2.0, -2.0], [-2.0, 5.0, 3.0], [-2.0, 3.0, 6.0]])):
        assert project(f, given, on_infeasible="nan").status == Status.INFEASIBLE


def test_a_compromise_that_rounding_moves_far_is_not_taken():
    """Row 0 and row 1 contradict each other by 1e600 in scaled numbers: the compromise was 1.8e308 and broke row 3."""
    A = [[5e-324, 0.0, 0.0], [-4.0, 0.0, 0.0], [0.0, -4.0, -3.875], [-1.0, 2.0, 1.0]]
    upper = [1e308, 0.0, 0.0, 1e308]
    set = AffineSet(torch.tensor(A, dtype=torch.float64), [-INF, -INF, -INF, -4.0], upper)
    f = torch.tensor([-4.0, -4.0, -4.0], dtype=torch.float64)
    w = torch.tensor([-4.0, 1.3789130657754968e216, 0.0], dtype=torch.float64)
    answer, full = (project(f, set, w, search=search) for search in ("paper", "full"))
    assert answer.status == Status.PROJECTED and set.contains(answer.value).all()
    assert (answer.value - f).abs().max() <= (full.value - f).abs().max()


NEARLY_PARALLEL = {
    "double": (
        torch.float64,
        [
            [-0.565235512325145, 1.200541762087252, -0.23158031337753862, 0.2897676486801132],
            [0.5655153958945824, -1.2004742390091754, 0.23159570838904675, -0.2897522629129372],
            [0.5650919176757533, -1.2006083868966333, 0.23136763168357588, -0.2895282395187515],
            [-0.56519844189635, 1.2005939163853625, -0.2313613308816692, 0.2897065876753945],
        ],
        [1.4417332079778558, -1.4418300239184587, -1.442396503604489, 1.4420526611026492],
        [-0.6304561113228221, 1.5475450783908977, 0.5836393073517305, -2.1995463797134938],
    ),
    "single": (
        torch.float32,
        [
            [-0.3734094798564911, -0.30015742778778076, -2.8084938526153564, -0.705109715461731],
            [0.373406320810318, 0.300162672996521, 2.8084943294525146, 0.7051143050193787],
            [0.3734147250652313, 0.30017247796058655, 2.808497905731201, 0.7051148414611816],
            [0.3733963370323181, 0.30015838146209717, 2.808493137359619, 0.7051066160202026],
            [-0.37340354919433594, -0.3001498281955719, -2.8085014820098877, -0.7051082253456116],
            [-0.7026854157447815, 1.2989674806594849, -1.1944751739501953, 0.14597702026367188],
        ],
        [
            0.3971043527126312,
            -0.3971109986305237,
            -0.39710330963134766,
            -0.39711421728134155,
            0.39710959792137146,
            -0.6597005724906921,
        ],
        [0.8830265402793884, 0.29771941900253296, 0.10964702069759369, -0.7095351219177246],
    ),
}


@pytest.mark.parametrize("name", NEARLY_PARALLEL)
def test_a_projected_point_is_the_nearest_one(name: str):
    """Double: rounding counts beside a short distance. Single: rows were exchanged for dependent ones."""
    dtype, A, upper, f = NEARLY_PARALLEL[name]
    goal = torch.tensor(f, dtype=dtype)
    answer = project(goal, AffineSet.inequality(torch.tensor(A, dtype=dtype), upper))
    exact = nearest_exactly(A, upper, f, np.eye(4).tolist())
    assert exact is not None
    least = sum((y - Fraction(x)) ** 2 for y, x in zip(exact, f, strict=True))
    found = sum((Fraction(y) - Fraction(x)) ** 2 for y, x in zip(answer.value.tolist(), f, strict=True))
    eps = torch.finfo(dtype).eps
    bound = float(least) ** 0.5 * (1 + eps**0.5) + 4 * eps * float(answer.value.norm() + goal.norm())
    assert answer.status == Status.WITHIN_TOL or float(found) ** 0.5 <= bound
    assert answer.status == (Status.PROJECTED if name == "double" else Status.WITHIN_TOL)


def test_a_conflict_has_no_row_that_is_noise():
    """Rows 2 and 3 are opposite; row 4, nearly parallel, was in the conflict with a multiplier of 6e-34."""
    A = [
        [0.20222753286361694, 1.0600520372390747],
        [-0.20222815871238708, -1.0600515604019165],
        [0.20222753286361694, 1.0600520372390747],
        [-0.20222753286361694, -1.0600520372390747],
        [0.202226459980011, 1.0600512027740479],
    ]
    upper = [-0.6269489526748657, 0.6735215187072754, -0.6735212206840515, 0.6735067367553711, -0.6735197305679321]
    with pytest.raises(InfeasibleError) as error:
        project(torch.tensor([-2.054448127746582, -1.494397759437561]), AffineSet.inequality(torch.tensor(A), upper))
    assert sorted(error.value.conflicts[0].rows) == [2, 3]


def test_the_tip_of_two_thin_cones_in_float32():
    """Rows 0 and 1 are parallel in float32; a point near f was returned that broke row 1 by half of it."""
    A = [
        [2.0, 0.0, 0.0],
        [-0.25, 8.024256259453466e-10, 0.0],
        [0.3369741141796112, -4.0, 0.0],
        [-0.19382667541503906, -0.10789713263511658, -9.925211050438882e-15],
        [-0.10379406064748764, -0.04540754482150078, 0.1947633922100067],
    ]
    set = AffineSet.inequality(torch.tensor(A), [0.0] * 5)
    answer = project(torch.tensor([-0.4137069284915924, 1.1075444221496582, -1.5327547788619995]), set)
    assert answer.status == Status.WITHIN_TOL and set.contains(answer.value)
    assert torch.equal(project(answer.value, set).value, answer.value)


def test_a_bound_of_one_output_holds_exactly_at_the_tip_of_a_thin_cone():
    """4 y_1 = 0 was met up to 2e-15, so the answer moved when it was projected again."""
    A = [
        [4.0, 0.0, 0.0, 0.0],
        [-4.0, 5.0274865440909675e-12, 0.0, 0.0],
        [1.8156705033404503, -1.3768311102195243, 3.002084111186687e-13, 7.309258697771771e-12],
        [-1.0803934078774609, -0.6527796688968429, -0.6277922796823365, 0.5639141417114807],
    ]
    set = AffineSet(torch.tensor(A, dtype=torch.float64), [0.0, -INF, -INF, -INF], 0.0)
    f = torch.tensor([-2.083049629924963, 0.5590209699469113, -1.0537452903967526, 1.914406496470878]).double()
    answer = project(f, set)
    assert answer.value[0] == 0.0 and set.contains(answer.value)
    assert torch.equal(project(answer.value, set).value, answer.value)


@pytest.mark.parametrize("options", [{}, {"strict": True}, {"search": "lite"}, {"norm": 1}, {"metric": [2.0, 1.0]}])
def test_a_bound_at_the_wrong_infinity_excludes_every_point(options: dict):
    """y_1 + y_2 <= -inf: the allowance for rounding was infinite too, so every f was accepted."""
    f = torch.tensor([[2.0, 0.5], [0.1, 0.2]])
    for set in (AffineSet.inequality([[1.0, 1.0]], [-INF]), AffineSet([[1.0, 1.0]], INF, INF)):
        answer = project(f, set, on_infeasible="nearest", **options)
        assert (answer.status == Status.INFEASIBLE).all() and answer.value.isfinite().all()
        with pytest.raises(InfeasibleError, match="row 0"):
            project(f, set, **options)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of torch's own forward mode
def test_soft_rows_that_give_way_have_derivatives_under_vmap():
    """`one_hot` looks at numbers, which vmap refuses."""
    S = AffineSet.inequality(torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64), [1.0, -2.0]).soft()
    f = torch.tensor([[2.0, 0.5], [0.1, 2.0]], dtype=torch.float64)
    alone = torch.stack([torch.autograd.functional.jacobian(lambda x: project(x, S).value, f[i]) for i in range(2)])
    assert (project(f, S).status == Status.RELAXED).all()
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(torch.func.vmap(jacobian(lambda x: project(x, S).value))(f), alone)
    slope = torch.func.vmap(torch.func.grad(lambda x: project(x, S, gradient="tangent").value.square().sum()))(f)
    leaf = f.clone().requires_grad_()
    project(leaf, S, gradient="tangent").value.square().sum().backward()
    torch.testing.assert_close(slope, leaf.grad)


@pytest.mark.parametrize("equal", [False, True])
def test_float32_sets_that_rounding_alone_makes_empty_have_an_answer(equal: bool):
    """0.9 in float32 is less than 3 times 0.3, by 1e-8: so it is for every f."""
    row = AffineSet.equality if equal else AffineSet.inequality
    set = AffineSet.box([0.3, 0.0], None) & row([[3.0, 2.0]], [0.9])
    f = 3 * torch.randn(500, 2, generator=torch.Generator().manual_seed(1))
    for search in ("full", "active"):
        answer = project(f, set, search=search)
        assert set.contains(answer.value).all()
        assert (answer.value >= torch.tensor([0.3, 0.0])).all()
        assert torch.equal(project(answer.value, set, search=search).value, answer.value)


def test_soft_rows_that_rounding_alone_breaks_are_kept():
    """float32: bounds of single outputs hold exactly, and a second projection moves nothing."""
    random = torch.Generator().manual_seed(0)
    moved = 0
    for _ in range(300):
        least = torch.randint(0, 10, (3,), generator=random) / 10.0
        a = torch.randint(1, 5, (3,), generator=random).float()
        most = (a.double() @ (10 * least.double()).round() / 10).float()
        hard = AffineSet.box([float(least[0]), -INF, -INF], None)
        wishes = AffineSet.box([-INF, *least[1:].tolist()], None) & AffineSet.inequality(a[None], most[None])
        answer = project(3 * torch.randn(3, generator=random), hard & wishes.soft())
        assert answer.status in (Status.PROJECTED, Status.WITHIN_TOL)
        assert (answer.value >= least).all()
        assert torch.equal(project(answer.value, hard & wishes.soft()).value, answer.value)
        moved += int(answer.status == Status.WITHIN_TOL)
    assert moved > 10


def test_rows_of_small_numbers_do_not_share_the_rounding_of_large_ones():
    """float32: 3 times 0.8 is not 2.4; the first output cannot take a part of that, as its row has no rounding."""
    A = [[0.0, 2.0], [1.0, 3.0], [-3.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    set = AffineSet(A, [1.6, 2.4000000000000004, 0.0, 0.0, 0.0], [1.6, 2.4000000000000004, 0.0, INF, INF])
    f = torch.randn(200, 2, generator=torch.Generator().manual_seed(1))
    answer = project(f, set)
    assert (answer.status == Status.WITHIN_TOL).all()
    assert (answer.value[:, 0].abs() < 1e-15).all()
    assert set.contains(answer.value).all()
    with pytest.raises(InfeasibleError):
        project(f, set & AffineSet.box([1e-3, 0.0], None))


def test_a_conflict_smaller_than_the_rounding_of_other_outputs_keeps_its_point_and_proof():
    """float32: y0 = 0 and y0 >= 1e-8 beside y1 = 0.8. The rows of y0 have no rounding to give way by."""
    set = AffineSet.equality([[-3.0, 0.0], [0.0, 1.0]], [0.0, 0.8]) & AffineSet.box([1e-8, 0.0], None)
    f = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InfeasibleError, match=r"row 2 \(lower bound, multiplier 0.75\), row 0") as caught:
        project(f, set)
    assert all(conflict.proven for conflict in caught.value.conflicts)
    nearest = project(f, set, on_infeasible="nearest")
    assert (nearest.status == Status.INFEASIBLE).all()
    torch.testing.assert_close(nearest.value, torch.tensor([2.5e-9, 0.8]).expand(4, 2), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("unit", [1.0, 1e3, 1e6, 1e9])
def test_the_units_of_wishes_with_a_weight_do_not_matter(dtype: torch.dtype, unit: float):
    """y >= 1 for 10 and y <= -2 for 40, both in other units: the minimum of a parabola."""
    weight = torch.tensor([10.0, 40.0], dtype=dtype, requires_grad=True)
    set = (AffineSet([[unit]], [unit], None) & AffineSet([[unit]], None, [-2 * unit])).soft(weight)
    answer = project(torch.zeros(1, dtype=dtype), set)
    low, high = 10 * unit**2, 40 * unit**2
    best, total = (low - 2 * high) / (1 + low + high), 1 + low + high
    torch.testing.assert_close(answer.value, torch.tensor([best], dtype=dtype))
    slopes = torch.tensor([unit**2 * (1 - best) / total, unit**2 * (-2 - best) / total], dtype=dtype)
    torch.testing.assert_close(torch.autograd.grad(answer.value.sum(), weight)[0], slopes)


@pytest.mark.parametrize("weight", [1e10, 3e12, 1e16])
def test_an_uneven_metric_has_the_nearest_point(weight: float):
    rows = torch.tensor([[1.0, -1.0, 0.0], [1.0, 0.0, -1.0]], dtype=torch.float64)
    set = AffineSet(rows, torch.tensor([1.0, -INF]).double(), torch.tensor([INF, -2.0]).double())
    answer = project(torch.zeros(3).double(), set, metric=torch.tensor([1.0, weight, 4 * weight]).double())
    assert answer.status == Status.PROJECTED
    torch.testing.assert_close(answer.value, torch.tensor([-1.4, -2.4, 0.6]).double(), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_programs_whose_minimum_is_the_tip_of_a_cone_are_proven(dtype: torch.dtype):
    random = torch.Generator().manual_seed(0)
    tips = 0
    for n in (1, 2, 3, 4) * 25:
        m = int(torch.randint(n, 2 * n + 2, (1,), generator=random))
        R, A, q = (torch.randint(-3, 4, shape, generator=random).to(dtype) for shape in ((n, n), (m, n), (n,)))
        best = solve_qp(R @ R.mT + torch.eye(n, dtype=dtype), q, AffineSet(A, None, 0.0))
        assert best.status in (Status.INSIDE, Status.PROJECTED)
        assert float(best.residuals().dual.max()) <= 1e3 * torch.finfo(dtype).eps
        tips += bool((best.value == 0).all())
    assert tips > 40


def test_arguments_of_the_wrong_kind_are_named():
    box, f = AffineSet.box(0.0, 1.0, dim=2), torch.tensor([[2.0, 0.5]])
    for name in ("search", "on_infeasible", "gradient"):
        with pytest.raises(ConstraintError, match=rf"^{name} must be one of"):
            project(f, box, **{name: ["full"]})
    assert torch.equal(project(f, box, norm=10**400).value, project(f, box, norm=INF).value)
    for start in (f.to(torch.complex64), f.to("meta"), f.to_sparse()):
        with pytest.raises(ConstraintError, match=r"^start must have shape"):
            project(f, box, start=start)
    with pytest.raises(ConstraintError, match=r"^names must be a list .* got generator"):
        AffineSet.box(0.0, 1.0, dim=2, names=(str(i) for i in range(2)))  # pyright: ignore
    with pytest.raises(ConstraintError, match=r"^A cannot be read"):
        AffineSet.inequality([[10**400]], [1.0])
    with pytest.raises(ConstraintError, match=r"^f \+ w must be finite, got inf at w\[0\]"):
        project(torch.full((2,), 3e38), box, torch.full((2,), 3e38))
    for measure in (box.violation, box.contains):
        with pytest.raises(ConstraintError, match=r"^y must be an array of numbers, got the text"):
            measure("x")
        with pytest.raises(ConstraintError, match=r"^y must be a dense tensor, got a sparse one"):
            measure(f.to_sparse())


def test_an_empty_set_of_one_sample_is_named_without_an_index():
    rows = AffineSet(torch.ones(2, 1), torch.tensor([1.0, -float("inf")]), torch.tensor([float("inf"), 0.0]))
    assert repr(rows) == "AffineSet(2 rows in R^1)"
    assert repr(AffineSet.box(0.0, 1.0, dim=1)) == "AffineSet(1 row in R^1)"
    with pytest.raises(InfeasibleError, match=r"1 of 1 samples:\n  row 0 \(lower bound"):
        project(torch.tensor([0.5]), rows)
    with pytest.raises(InfeasibleError, match=r"2 of 2 samples:\n  samples \(0,\), \(1,\): row 0"):
        project(torch.tensor([[0.5], [3.0]]), rows)
