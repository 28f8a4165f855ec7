"""The kernel against independent ways to the same answer, and the promises that are its own.

Independent are: the enumeration in plain operations (`caffnet._solve.graph`), the paper's equations (helpers.py), the
solver DAQP, the conditions of optimality, and the closed form that torch differentiates (`gradient.on_face`).
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import caffnet
from caffnet import AffineSet, CAffine, KernelError, Status, prepare, project
from caffnet._kernel import build, native
from caffnet._solve import graph
from caffnet._solve.problem import Answer, Options, Problem
from helpers import (
    length,
    literal_candidates,
    needs_data,
    random_problem,
    satisfies,
    set_of,
    stored_index,
    stored_problem,
)

DOUBLE = torch.float64
TYPES = [torch.float64, torch.float32]
FEASIBLE = [name for name, entry in stored_index().items() if entry["feasible"]]
PACKAGE = Path(caffnet.__file__).parent
COMPILER = build.find_compiler()

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")


def batch_of_sets(seed: int, samples: int, m: int, n: int, dtype: torch.dtype = DOUBLE):
    """Sets with a common interior point, so that none is empty; one-sided, two-sided and equal rows."""
    stream = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=DOUBLE, generator=stream)

    A, centre = normal(samples, m, n), normal(samples, 1, n)
    at = (A * centre).sum(-1)
    lower, upper = at - normal(samples, m).abs(), at + normal(samples, m).abs()
    lower[:, ::3] = -torch.inf
    if n > 2:
        lower[:, 1] = upper[:, 1] = at[:, 1]
    parts = (t.to(dtype) for t in (A, lower, upper, 2 * normal(samples, n), normal(samples, n), normal(samples, n)))
    A, lower, upper, f, w, v = parts
    return AffineSet(A, lower, upper), f, w, v


def problem_of(f: Tensor, set: AffineSet, w: Tensor | None = None) -> Problem:
    """The data of a batch as the kernel and the enumeration take them."""
    return Problem(f, w, set.A, set.lower, set.upper, set.metric, set.row_kinds, None, tuple(f.shape[:-1]))


# ------------------------------------------------------------------------------------------------ the enumeration


@pytest.mark.parametrize("norm", [1, 2, 3, float("inf")])
@pytest.mark.parametrize("search", ["full", "lite"])
@pytest.mark.parametrize(("m", "n"), [(5, 1), (7, 2), (6, 3), (7, 4)])
def test_the_answers_are_those_of_plain_enumeration(m: int, n: int, search: str, norm: float):
    set, f, w, _ = batch_of_sets(m + n, 40, m, n)
    for null in (None, w):
        answer = project(f, set, null, search=search, norm=norm)
        expected = graph.solve(problem_of(f, set, null), Options(search=search, norm=float(norm)))
        torch.testing.assert_close(answer.value, expected.value, rtol=1e-11, atol=1e-11)
        assert torch.equal(answer.active, expected.active)
        assert torch.equal(answer.status, expected.status)


@pytest.mark.parametrize("search", ["full", "lite"])
def test_the_points_are_those_of_plain_enumeration_where_rows_depend_on_each_other(search: str):
    """Degenerate sets: several γ describe one point, and another row may be exceeded by rounding. The point is one."""
    for seed in range(300):
        set, f, w = random_problem(seed)
        answer = project(f, set, w, search=search)
        expected = graph.solve(problem_of(f[None], set, w[None]), Options(search=search))
        torch.testing.assert_close(answer.value, expected.value[0], rtol=1e-9, atol=1e-9, msg=f"seed {seed}")
        assert (answer.status == Status.INSIDE) == (expected.status[0] == Status.INSIDE), seed


@pytest.mark.parametrize("search", ["full", "active"])
def test_with_w_the_answers_satisfy_the_equations_of_the_paper(search: str):
    """The point is one of the feasible candidates of the literal equations, for `full` the nearest."""
    for i, seed in enumerate(range(1000, 1080)):
        set, f, w = random_problem(seed)
        norm = (1.0, 2.0, 4.0, np.inf)[i % 4]
        answer = project(f, set, w, search=search, norm=norm).value.numpy()
        if satisfies(set, f.numpy(), f.numpy()):
            continue
        candidates = [y for y, _ in literal_candidates(set, f.numpy(), w.numpy())]
        scale = 1 + f.abs().max().item() + w.abs().max().item()
        assert min(np.abs(answer - y).max() for y in candidates) <= 1e-9 * scale, seed
        best = min(length(y - f.numpy(), norm) for y in candidates)
        mine = length(answer - f.numpy(), norm)
        assert mine <= best + 1e-9 * scale if search == "full" else mine >= best - 1e-9 * scale, seed


# ------------------------------------------------------------------------------------------------ the projection


def by_daqp(f: Tensor, set: AffineSet) -> Tensor:
    """The Euclidean projections of a batch by DAQP, in the variable ``y - f``."""
    daqp = pytest.importorskip("daqp")
    samples = len(f)
    A = set.A.expand(samples, set.m, set.n)
    at = (A @ f.unsqueeze(-1)).squeeze(-1)
    lower, upper = ((t.expand(samples, set.m) - at).clamp(-1e30, 1e30).numpy() for t in (set.lower, set.upper))
    steps = []
    for i in range(samples):
        kinds = np.where(lower[i] == upper[i], 5, 0).astype(np.int32)  # 5: an equality
        rows = np.ascontiguousarray(A[i].numpy())
        step, _, told, _ = daqp.solve(
            np.eye(set.n), np.zeros(set.n), rows, upper[i], lower[i], kinds, primal_tol=1e-11, dual_tol=1e-13
        )
        assert told == 1, told
        steps.append(torch.as_tensor(step))
    return f + torch.stack(steps)


def assert_projections(f: Tensor, set: AffineSet, answer, share: float) -> None:
    """The conditions of optimality: `f - y` is a sum of active rows, each pulling to its own side; y is in the set."""
    samples, size = len(f), 1 + f.abs().amax().double() + answer.value.abs().amax().double()
    A, lower, upper, y = (t.double() for t in (set.A, set.lower, set.upper, answer.value))
    assert (answer.violation.double() <= share * size * (1 + set.A.abs().sum(-1).amax().double())).all()
    for i in range(samples):
        active = answer.active[i]
        chosen = (active != 0).nonzero().flatten()
        rows = (A if A.ndim == 2 else A[i])[chosen]
        equal = (lower == upper if lower.ndim == 1 else lower[i] == upper[i])[chosen]
        rows = rows / rows.norm(dim=-1, keepdim=True)
        away = f[i].double() - y[i]
        if answer.status[i] == Status.INSIDE:
            assert not active.any() and torch.equal(answer.value[i], f[i])
            continue
        pull = torch.linalg.lstsq(rows.mT, away.unsqueeze(-1), driver="gelsd").solution.squeeze(-1)
        torch.testing.assert_close(rows.mT @ pull, away, rtol=0, atol=float(share * size))
        assert ((pull * active[chosen] >= -share * size) | equal).all()


@pytest.mark.parametrize(("m", "n"), [(16, 8), (40, 12), (60, 20), (48, 32), (120, 40)])
def test_the_projection_is_that_of_a_quadratic_programme_solver(m: int, n: int):
    set, f, *_ = batch_of_sets(n, 30, m, n)
    answer = project(f, set, search="active")
    torch.testing.assert_close(answer.value, by_daqp(f, set), rtol=1e-8, atol=1e-8)
    assert_projections(f, set, answer, 1e-11)
    assert ((answer.active != 0).sum(-1) > 1).any()  # more than the equality binds


def test_the_projection_with_many_equalities_is_that_of_a_quadratic_programme_solver():
    stream = torch.Generator().manual_seed(11)
    C, A = (torch.randn(k, 30, dtype=DOUBLE, generator=stream) for k in (12, 40))
    inner, f = (torch.randn(k, 30, dtype=DOUBLE, generator=stream) for k in (1, 25))
    room = torch.rand(40, dtype=DOUBLE, generator=stream)
    set = AffineSet(A, A @ inner[0] - room, A @ inner[0] + room) & AffineSet.equality(C, C @ inner[0])
    answer = project(3 * f, set, search="active")
    torch.testing.assert_close(answer.value, by_daqp(3 * f, set), rtol=1e-8, atol=1e-8)
    assert_projections(3 * f, set, answer, 1e-11)
    assert (answer.active[:, 40:] == 1).all()


@needs_data
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", FEASIBLE)
def test_the_rows_of_the_real_problems_prove_their_answers(name: str, dtype: torch.dtype):
    problem = stored_problem(name)
    set, f = set_of(problem, dtype), torch.as_tensor(problem["F"]).to(dtype)[:25]
    answer = project(f, set, search="active", on_infeasible="nan")
    known = answer.status <= Status.WITHIN_TOL
    assert known.all() or dtype == torch.float32
    if known.all():
        assert_projections(f, set, answer, 1e-9 if dtype == DOUBLE else 2e-4)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("m", "n"), [(13, 2), (20, 5), (64, 16), (128, 32)])
def test_every_ordinary_sample_has_an_answer(m: int, n: int, dtype: torch.dtype):
    set, f, w, _ = batch_of_sets(1, 100, m, n, dtype)
    for null in (None, w):
        answer = project(f, set, null, search="active", on_infeasible="nan")
        assert (answer.status <= Status.PROJECTED).all() and set.contains(answer.value).all()


def test_bad_samples_are_marked_and_the_others_are_answered():
    set = AffineSet.box(-1.0, 1.0, dim=2).to(DOUBLE)
    f = torch.tensor([[3.0, 0.0], [torch.nan, 0.0], [1e200, 0.0], [0.5, 0.5]], dtype=DOUBLE)
    answer = project(f, set, on_infeasible="nan")
    assert answer.status.tolist() == [Status.PROJECTED, Status.INVALID, Status.PROJECTED, Status.INSIDE]
    assert answer.value[0].tolist() == answer.value[2].tolist() == [1.0, 0.0] and answer.value[1].isnan().all()
    crossed = AffineSet(torch.eye(2, dtype=DOUBLE), torch.tensor([1.0, 0.0]).double(), torch.zeros(2).double())
    assert project(f[:1], crossed, on_infeasible="nan").status == Status.INFEASIBLE


@pytest.mark.parametrize("block", range(4))
def test_the_least_violation_is_least(block: int):
    """Against a linear programme; and the rows named in the conflict prove that no point has less."""
    optimize = pytest.importorskip("scipy.optimize")
    for seed in range(block, 60, 4):
        random = np.random.default_rng(seed)
        n, m = int(random.integers(1, 7)), int(random.integers(3, 13))
        A = random.normal(size=(m, n)) * 10.0 ** random.integers(-2, 3, (m, 1))
        value = A @ random.normal(size=n)
        upper = value - np.abs(random.normal(size=m)) * (1 + np.abs(A).sum(1))
        lower = np.where(random.random(m) < 0.4, upper - random.random(m), -np.inf)
        signs = random.choice([-1.0, 1.0], m)[:, None]
        A = np.concatenate([A, -signs * A])  # rows that pull against each other
        lower, upper = (np.concatenate([t, t[::-1]]) for t in (lower, upper))
        finite = np.isfinite(lower)
        rows = np.concatenate([np.c_[A, -np.ones(2 * m)], np.c_[-A[finite], -np.ones(finite.sum())]])
        bounds = [*[(None, None)] * n, (0, None)]
        programme = optimize.linprog(np.r_[np.zeros(n), 1.0], rows, np.r_[upper, -lower[finite]], bounds=bounds)
        assert programme.status == 0
        set = AffineSet(*(torch.as_tensor(t) for t in (A, lower, upper)))
        answer = project(torch.as_tensor(random.normal(size=n)), set, on_infeasible="nearest", search="active")
        if programme.fun > 1e-6:
            assert answer.status == Status.INFEASIBLE, seed
        assert abs(float(answer.violation) - programme.fun) <= 1e-8 * (1 + abs(programme.fun)), seed


@pytest.mark.parametrize("kind", ["integers", "copies", "low rank", "sizes"])
def test_the_least_violation_of_degenerate_rows_is_least(kind: str):
    """Many rows through one point, copies of rows, rows that depend on each other, rows of sizes 1e-3 to 1e3."""
    optimize = pytest.importorskip("scipy.optimize")
    empty, fine = 0, {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    for seed in range(40_000, 40_030):
        random = np.random.default_rng(seed)
        n = int(random.integers(1, 13))
        m = int(random.integers(n + 1, 4 * n + 4))
        A, upper = random.normal(size=(m, n)), random.normal(size=m) - 1
        if kind == "integers":
            A, upper = random.integers(-2, 3, (m, n)).astype(float), random.integers(-4, 2, m).astype(float)
        elif kind == "copies":
            A = A[random.integers(0, max(1, m // 3), m)] * random.choice([1.0, -1.0, 2.0, 0.5, 10.0], (m, 1))
        elif kind == "low rank":
            A = random.normal(size=(m, max(1, n // 2))) @ random.normal(size=(max(1, n // 2), n))
        else:
            size = 10.0 ** random.integers(-3, 4, m)
            A, upper = A * size[:, None], upper * size
        lower = np.where(random.random(m) < 0.4, upper - random.integers(0, 3, m), -np.inf)
        finite = np.isfinite(lower)
        rows = np.concatenate([np.c_[A, -np.ones(m)], np.c_[-A[finite], -np.ones(finite.sum())]])
        cost, bounds = np.r_[np.zeros(n), 1.0], [*[(None, None)] * n, (0, None)]
        programme = optimize.linprog(cost, rows, np.r_[upper, -lower[finite]], bounds=bounds, options=fine)
        assert programme.status == 0
        set = AffineSet(*(torch.as_tensor(t) for t in (A, lower, upper)))
        f = torch.as_tensor(random.normal(size=n) * 10.0 ** random.integers(-1, 3))
        answer = project(f, set, on_infeasible="nearest", search="active")
        empty += int(answer.status == Status.INFEASIBLE)
        assert abs(float(answer.violation) - programme.fun) <= 1e-9 * (1 + programme.fun), seed
    assert empty > 20


# ------------------------------------------------------------------------------------------------ gradients


def both_gradients(call, inputs: list[Tensor], v: Tensor):
    """By the kernel, and by torch through the closed form, which a gradient that can be differentiated again is."""
    value = call()
    plain = torch.autograd.grad(value, inputs, v, allow_unused=True, retain_graph=True)
    again = torch.autograd.grad(value, inputs, v, allow_unused=True, create_graph=True)
    return plain, again


@pytest.mark.parametrize("gradient", ["exact", "tangent"])
@pytest.mark.parametrize("search", ["full", "lite", "active"])
@pytest.mark.parametrize(("m", "n"), [(5, 1), (7, 2), (6, 3), (7, 4)])
def test_gradients_are_those_of_the_closed_form(m: int, n: int, search: str, gradient: str):
    set, f, w, v = batch_of_sets(m + n, 40, m, n)
    inputs = [t.requires_grad_() for t in (f, w, set.A, set.lower.clone(), set.upper.clone())]

    def call() -> Tensor:
        here = AffineSet.from_parts(inputs[2], inputs[3], inputs[4], None, set.row_kinds)
        return project(f, here, w, search=search, gradient=gradient).value

    for one, other in zip(*both_gradients(call, inputs, v), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("gradient", ["exact", "tangent"])
@pytest.mark.parametrize("dtype", TYPES)
def test_gradients_of_a_shared_set_are_sums_over_the_batch(dtype: torch.dtype, gradient: str):
    set, f, w, v = batch_of_sets(3, 50, 6, 3, dtype)
    inputs = [t.requires_grad_() for t in (f, w, set.A[0].clone(), set.lower[0].clone(), set.upper[0].clone())]

    def call() -> Tensor:
        here = AffineSet.from_parts(inputs[2], inputs[3], inputs[4], None, set.row_kinds)
        return project(f, here, w, gradient=gradient, on_infeasible="nearest").value

    share = 1e-9 if dtype == DOUBLE else 2e-4
    for one, other in zip(*both_gradients(call, inputs, v), strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one, other, rtol=share, atol=share)


@pytest.mark.parametrize("gradient", ["exact", "tangent"])
@pytest.mark.parametrize("kind", ["box", "box and rows", "many rows", "shared rows, own bounds"])
def test_gradients_of_larger_sets_are_those_of_the_closed_form(kind: str, gradient: str):
    set, f, w, v = batch_of_sets(14, 20, 30, 12)
    f, w = f.requires_grad_(), w.requires_grad_()
    low, high = (-0.5 * torch.ones(20, 12, dtype=DOUBLE)).requires_grad_(), torch.rand(12).double().requires_grad_()
    A, lower, upper = (t.clone().requires_grad_() for t in (set.A, set.lower, set.upper))
    inputs = [f, w, low, high] if kind == "box" else [f, w, A, lower, upper]

    def call() -> Tensor:
        if kind == "box":
            made = AffineSet.box(low, high)
        elif kind == "box and rows":
            made = AffineSet(A[..., 2:9, :] * 0.1, None, 1.0) & AffineSet.box(low.detach(), high.detach())
        elif kind == "many rows":
            made = AffineSet.from_parts(A, lower, upper, None, set.row_kinds)
        else:
            made = AffineSet(A[0, 2:9] * 0.1, None, upper[:, 2:9].abs())
        return project(f, made, w, search="active", gradient=gradient).value

    for one, other in zip(*both_gradients(call, inputs, v), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-150, 1e-30, 1e30, 1e150])
def test_gradients_do_not_depend_on_the_size_of_the_numbers(scale: float):
    """f, w and the bounds of another size: the slopes of f, w and the bounds are the same, those of A scale along."""
    set, f, w, v = batch_of_sets(21, 10, 6, 3)
    found = []
    for size in (1.0, scale):
        inputs = [(t * size).requires_grad_() for t in (f, w, set.lower, set.upper)] + [set.A.clone().requires_grad_()]
        here = AffineSet.from_parts(inputs[4], inputs[2], inputs[3], None, set.row_kinds)
        found.append(torch.autograd.grad(project(inputs[0], here, inputs[1]).value, inputs, v))
    for one, other in zip(found[0][:4], found[1][:4], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found[0][4], found[1][4] / scale, rtol=1e-10, atol=1e-10)


# ------------------------------------------------------------------------------------------------ structure


def test_zeros_are_skipped_without_changing_the_answer():
    stream = torch.Generator().manual_seed(0)
    n = 24
    A = torch.zeros(30, n, dtype=DOUBLE)
    for i in range(30):
        A[i, torch.randperm(n, generator=stream)[:3]] = torch.randn(3, dtype=DOUBLE, generator=stream)
    set = AffineSet(A, -torch.rand(30, generator=stream).double(), 1.0) & AffineSet.box(-0.5, 0.5, dim=n)
    f = 2 * torch.randn(60, n, dtype=DOUBLE, generator=stream)
    answer = project(f, set, search="active")
    torch.testing.assert_close(answer.value, by_daqp(f, set), rtol=1e-9, atol=1e-9)
    assert_projections(f, set, answer, 1e-11)
    assert (answer.value.abs() <= 0.5).all()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_a_sparse_matrix_is_accepted():
    dense = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]], dtype=DOUBLE)
    f = torch.tensor([[3.0, 2.0, 1.0]], dtype=DOUBLE)
    expected = project(f, AffineSet.inequality(dense, [1.0, 1.0])).value
    for sparse in (dense.to_sparse(), dense.to_sparse_csr()):
        assert torch.equal(project(f, AffineSet.inequality(sparse, [1.0, 1.0])).value, expected)


@pytest.mark.parametrize("norm", [1, 2, 4])
@pytest.mark.parametrize("n", [1, 3, 50])
def test_a_box_is_a_clamp(n: int, norm: float):
    stream = torch.Generator().manual_seed(n)
    low, high = (sign * torch.rand(n, dtype=DOUBLE, generator=stream) for sign in (-1, 1))
    high[0] = low[0]
    f = 2 * torch.randn(30, n, dtype=DOUBLE, generator=stream)
    bounds = [low.clone().requires_grad_(), high.clone().requires_grad_()]
    for search in ("full", "active"):
        if search == "full" and n == 50:
            continue
        answer = project(f, AffineSet.box(*bounds), norm=norm, search=search)
        slopes = torch.autograd.grad(answer.value.sum(), bounds)
        assert torch.equal(answer.value, f.clamp(low, high))
        outside = (f < low).int() - (f > high).int()
        assert torch.equal(answer.active[:, 1:], -outside[:, 1:].to(torch.int8)) and (answer.active[:, 0] != 0).all()
        assert torch.equal(slopes[0][1:], (f < low).sum(0)[1:].double())
        assert torch.equal(slopes[1][1:], (f > high).sum(0)[1:].double())
        assert slopes[0][0] + slopes[1][0] == 30  # an equality: its bounds move together


def test_bounds_of_single_outputs_are_not_factorised():
    """A box around a simplex: all but one row fix an output; rows are dropped and come back on the way."""
    stream = torch.Generator().manual_seed(2)
    n = 40
    set = AffineSet.equality(torch.ones(1, n, dtype=DOUBLE), [1.0]) & AffineSet.box(0.0, 0.1, dim=n)
    set = set & AffineSet.inequality(torch.randn(5, n, dtype=DOUBLE, generator=stream), 0.3)
    f = torch.randn(80, n, dtype=DOUBLE, generator=stream)
    answer = project(f, set, search="active")
    torch.testing.assert_close(answer.value, by_daqp(f, set), rtol=1e-9, atol=1e-9)
    assert_projections(f, set, answer, 1e-11)
    assert ((answer.value >= 0) & (answer.value <= 0.1)).all()


def test_lite_with_one_minimal_face_of_many_rows():
    """Forty rows, all independent: forty single rows and one face, not 2 ** 40 beginnings of it."""
    stream = torch.Generator().manual_seed(3)
    A = torch.randn(2, 40, 40, dtype=DOUBLE, generator=stream)
    f = torch.randn(2, 40, dtype=DOUBLE, generator=stream)
    set = AffineSet.inequality(A, (A @ f.unsqueeze(-1)).squeeze(-1) - 1)  # every row is violated
    answer = project(f, set, search="lite")
    torch.testing.assert_close((A @ answer.value.unsqueeze(-1)).squeeze(-1), set.upper)


# ------------------------------------------------------------------------------------------------ warm start


@pytest.mark.parametrize("search", ["full", "active"])
def test_a_warm_start_does_not_change_the_answer(search: str):
    set, f, w, _ = batch_of_sets(5, 60, 7, 4)
    cold = project(f, set, w, search=search)
    stream = torch.Generator().manual_seed(1)
    anything = torch.randint(-1, 2, cold.active.shape, generator=stream)
    for start in (cold.active, anything, -cold.active):
        warm = project(f, set, w, search=search, start=start)
        torch.testing.assert_close(warm.value, cold.value, rtol=1e-11, atol=1e-11)
        assert torch.equal(warm.active, cold.active)


def test_a_warm_start_does_not_change_the_answer_of_a_large_set():
    set, f, *_ = batch_of_sets(6, 20, 90, 30)
    cold = project(f, set, search="active")
    stream = torch.Generator().manual_seed(1)
    anything = torch.randint(-1, 2, cold.active.shape, generator=stream)
    for start in (cold.active, anything, -cold.active):
        warm = project(f, set, search="active", start=start)
        torch.testing.assert_close(warm.value, cold.value, rtol=1e-10, atol=1e-10)
        assert torch.equal(warm.active, cold.active)


@pytest.mark.parametrize("spoiled", [None, "nan", "empty"])
def test_all_samples_can_begin_with_the_rows_of_the_first(spoiled: str | None):
    set, f, *_ = batch_of_sets(6, 20, 90, 30)
    if spoiled == "nan":
        f[0, 0] = torch.nan
    if spoiled == "empty":
        A, upper = set.A.clone(), set.upper.clone()
        A[0, 3], upper[0, 3] = -A[0, 0], -upper[0, 0] - 1
        set = AffineSet.from_parts(A, set.lower, upper, None, set.row_kinds)
    cold = project(f, set, search="active", on_infeasible="nan")
    warm = project(f, set, search="active", on_infeasible="nan", start="first")
    assert int(cold.status[0]) == {None: 1, "nan": 4, "empty": 3}[spoiled]
    torch.testing.assert_close(warm.value, cold.value, rtol=1e-10, atol=1e-10, equal_nan=True)
    assert torch.equal(warm.active[1:], cold.active[1:]) and torch.equal(warm.status, cold.status)


def test_the_rows_of_the_first_sample_reach_the_kernel(monkeypatch: pytest.MonkeyPatch):
    given = []
    kernel = native.solve

    def watched(problem, options, start=None, value_only=False):
        given.append(start)
        return kernel(problem, options, start, value_only)

    monkeypatch.setattr(native, "solve", watched)
    set, f, *_ = batch_of_sets(6, 20, 40, 12)
    layer = CAffine(lambda x: set[:x], search="active", warm_start="first")
    layer(f.requires_grad_(), x=20).sum().backward()
    alone, rest = given
    assert alone is None and torch.equal(rest, project(f, set, search="active").active[:1].expand(20, -1))
    given.clear()
    layer(f[:1], x=1)
    assert given == [None]  # one sample has no other to help


def test_a_start_of_the_wrong_shape_is_refused():
    set, f, *_ = batch_of_sets(5, 4, 7, 4)
    with pytest.raises(ValueError, match=r"start must have shape \(4, 7\)"):
        project(f, set, start=torch.zeros(3, 7))
    with pytest.raises(ValueError, match=r"start must have shape \(4, 7\).* got 'frist'"):
        project(f, set, start="frist")
    with pytest.raises(ValueError, match="warm_start must be True, False or 'first', got 'frist'"):
        CAffine(set, warm_start="frist")


def test_a_layer_can_start_warm():
    set, f, *_ = batch_of_sets(6, 30, 40, 12)
    layer, plain = CAffine(lambda x: set, search="active", warm_start=True), CAffine(lambda x: set, search="active")
    for step in range(3):
        here = f + 0.05 * step
        torch.testing.assert_close(layer(here, x=0), plain(here, x=0), rtol=1e-11, atol=1e-11)
    few = CAffine(lambda x: set[:x], search="active", warm_start=True)
    few(f, x=30)
    torch.testing.assert_close(few(f[:7], x=7), plain(f, x=0)[:7], rtol=1e-11, atol=1e-11)  # another batch starts cold


def test_a_warm_start_with_a_row_that_does_not_pull():
    set = AffineSet.inequality(torch.tensor([[1.0, 0, 0], [1, 1, 0]], dtype=DOUBLE), [0.0, 0.0])
    f = torch.tensor([[1.0, 0, 2]], dtype=DOUBLE)
    w = torch.tensor([[0.5, -1, 1]], dtype=DOUBLE)
    cold = project(f, set, w, search="active")
    warm = project(f, set, w, search="active", start=torch.tensor([[1, 5]]))
    assert torch.equal(cold.value, warm.value) and torch.equal(cold.active, warm.active)


def test_a_warm_layer_survives_a_map():
    layer = CAffine(AffineSet.inequality(torch.ones(1, 2, dtype=DOUBLE), [1.0]), warm_start=True)
    torch.func.vmap(layer)(torch.ones(3, 2, dtype=DOUBLE))
    assert torch.allclose(layer(torch.ones(2, dtype=DOUBLE)), torch.full((2,), 0.5, dtype=DOUBLE))


# ------------------------------------------------------------------------------------------------ as a citizen


@pytest.mark.parametrize("n", [3, 12, 40])
def test_a_sample_has_the_same_bits_in_every_batch_and_thread(n: int, monkeypatch: pytest.MonkeyPatch):
    set, f, w, v = batch_of_sets(7, 64, 4 * n, n)
    f.requires_grad_()
    whole = project(f, set, w, search="active")
    (slope,) = torch.autograd.grad(whole.value, f, v)
    for i in (0, 17, 63):
        alone = project(f[i : i + 1], set[i : i + 1], w[i : i + 1], search="active")
        assert torch.equal(alone.value, whole.value[i : i + 1])
    monkeypatch.setattr(native, "_WORTH_A_THREAD", 1)
    torch.set_num_threads(3)
    try:
        several = project(f, set, w, search="active")
        assert torch.equal(several.value, whole.value) and torch.equal(several.active, whole.active)
        assert torch.equal(torch.autograd.grad(several.value, f, v)[0], slope)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("search", ["full", "active"])
def test_a_sample_has_the_same_bits_beside_others_that_share_its_rows(search: str):
    """Factors of equalities are kept from sample to sample; the samples before must not be seen in the bits."""
    set, f, w, v = batch_of_sets(17, 24, 7, 4)
    shared = AffineSet(set.A[0], set.lower, set.upper) & AffineSet.equality(set.A[1, :2], [0.1, -0.1])
    bad = f.clone()
    bad[::5] = torch.nan
    f.requires_grad_()
    whole = project(f, shared, w, search=search, on_infeasible="nearest")
    (slopes,) = torch.autograd.grad(whole.value, f, v)
    disturbed = project(bad, shared, w, search=search, on_infeasible="nearest")
    for i in range(24):
        one = f[i : i + 1].detach().requires_grad_()
        alone = project(one, shared[i : i + 1], w[i : i + 1], search=search, on_infeasible="nearest")
        assert torch.equal(alone.value[0], whole.value[i]) and torch.equal(alone.active[0], whole.active[i])
        assert torch.equal(torch.autograd.grad(alone.value, one, v[i : i + 1])[0][0], slopes[i])
        assert i % 5 == 0 or torch.equal(disturbed.value[i], whole.value[i])


def test_calls_from_many_threads_do_not_meet():
    set, f, w, _ = batch_of_sets(8, 32, 12, 4)
    right = project(f, set, w).value
    with ThreadPoolExecutor(8) as pool:
        for answer in pool.map(lambda _: project(f, set, w).value, range(64)):
            assert torch.equal(answer, right)


def run_python(
    code: str, path: Path | None = None, timeout: float = 300, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a few lines in a process of their own, with the package in `path` if that is given."""
    settings = {**os.environ, **environment, **({"PYTHONPATH": str(path)} if path else {})}
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=timeout)


def test_a_forked_process_makes_its_own_threads():
    done = run_python(
        "import torch, os, caffnet\n"
        "from caffnet import AffineSet, project\n"
        "from caffnet._kernel import native\n"
        "native._WORTH_A_THREAD = 1\n"
        "torch.set_num_threads(2)\n"
        "f, s = 3 * torch.ones(8, 2), AffineSet.box(-1.0, 1.0, dim=2)\n"
        "project(f, s)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if (project(f, s).value == 1).all() else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert done.returncode == 0, done.stderr[-500:]


def test_a_long_search_can_be_interrupted():
    """Ctrl-C ends an enumeration that would take days, and the next call works."""
    code = (
        "import torch\n"
        "from caffnet import AffineSet, project\n"
        "torch.manual_seed(0)\n"
        "f, w, A = 1e-3 * torch.randn(4, 24), 100 * torch.randn(4, 24), torch.randn(4, 60, 24)\n"
        "set = AffineSet.inequality(A, (A @ (f - 1e-3).unsqueeze(-1)).squeeze(-1) + 1e-4)\n"
        "print('begins', flush=True)\n"
        "try:\n"
        "    project(f, set, w, search='full', budget=2**80, on_infeasible='nan')\n"
        "except KeyboardInterrupt:\n"
        "    assert project(torch.ones(2), AffineSet.box(0.0, 0.5, dim=2)).value.tolist() == [0.5, 0.5]\n"
        "    print('stopped', flush=True)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline().strip() == "begins"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=60)
        assert told.strip() == "stopped" and process.returncode == 0
    finally:
        process.kill()


def test_the_inputs_are_untouched():
    set, f, w, v = batch_of_sets(9, 20, 9, 3)
    before = [t.clone() for t in (set.A, set.lower, set.upper, f, w, v)]
    f.requires_grad_()
    for options in ({}, {"gradient": "tangent"}, {"strict": True}, {"search": "active", "start": torch.ones(20, 9)}):
        torch.autograd.grad(project(f, set, w, **options).value, f, v)
    for now, then in zip((set.A, set.lower, set.upper, f.detach(), w, v), before, strict=True):
        assert torch.equal(now, then)


@pytest.mark.parametrize("gradient", ["exact", "tangent"])
def test_no_rows_have_a_gradient_and_their_own_memory(gradient: str):
    set = AffineSet.inequality(torch.zeros(0, 2, dtype=DOUBLE), torch.zeros(0, dtype=DOUBLE))
    f = torch.ones(3, 2, dtype=DOUBLE, requires_grad=True)
    value = project(f, set, gradient=gradient).value
    assert torch.equal(torch.autograd.grad(value.sum(), f, create_graph=True)[0], torch.ones_like(f))
    assert prepare(set).with_bounds(upper=torch.zeros(0, dtype=DOUBLE)).set.m == 0
    plain = f.detach().clone()
    project(plain, set).value.add_(5)
    assert torch.equal(plain, f)


def test_bounds_on_sides_that_were_not_prepared_are_refused():
    ones = torch.ones(1, 2, dtype=DOUBLE)
    one_sided = prepare(AffineSet.inequality(ones, [1.0], names=["total"]))
    with pytest.raises(ValueError, match="total has the kind '<' and got a lower bound"):
        one_sided.with_bounds(lower=torch.zeros(1, dtype=DOUBLE))
    with pytest.raises(ValueError, match="two different bounds"):
        prepare(AffineSet.equality(ones, [1.0])).with_bounds(
            lower=torch.zeros(1, dtype=DOUBLE), upper=torch.ones(1, dtype=DOUBLE)
        )


def test_a_map_over_something_else():
    set = AffineSet.inequality(torch.ones(1, 2, dtype=DOUBLE), [1.0])
    f = torch.ones(1, 2, dtype=DOUBLE, requires_grad=True)
    scaled = torch.func.vmap(lambda x: x * project(f, set).value)(torch.ones(2, 1, 2, dtype=DOUBLE))
    assert torch.allclose(scaled, torch.full_like(scaled, 0.5))


# ------------------------------------------------------------------------------------------------ found by attack


def test_an_entry_that_vanishes_in_scaling():
    A = torch.zeros(1, 8, dtype=DOUBLE)
    A[0, 0], A[0, 5] = 1e300, 1e-300
    f = torch.arange(1.0, 9.0, dtype=DOUBLE)
    assert torch.equal(project(f / 10, AffineSet.inequality(A, [1e300])).value, f / 10)
    assert project(2 * f, AffineSet.inequality(A, [1e300])).value[0] == 1


@pytest.mark.parametrize("shared", ["w is f", "w depends on f", "upper depends on f", "lower is upper"])
def test_inputs_that_are_one_tensor_count_once_in_a_differentiable_backward(shared: str):
    f = torch.tensor([[2.0, 1.0], [0.3, 2.0]], dtype=DOUBLE, requires_grad=True)
    d = torch.ones(2, 1, dtype=DOUBLE, requires_grad=True)
    ones = torch.ones(2, 1, 2, dtype=DOUBLE)

    def value() -> Tensor:
        if shared == "w is f":
            return project(f, AffineSet.inequality(ones, d), f).value
        if shared == "w depends on f":
            return project(f, AffineSet.inequality(ones, d), 3 * f).value
        if shared == "upper depends on f":
            return project(f, AffineSet.inequality(ones, 0.5 * f[:, :1])).value
        return project(f, AffineSet.equality(ones, d)).value

    inputs = [f, d]
    plain = torch.autograd.grad(value()[:, 0].sum(), inputs, allow_unused=True)
    again = torch.autograd.grad(value()[:, 0].sum(), inputs, create_graph=True, allow_unused=True)
    for one, other in zip(plain, again, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other)


@pytest.mark.parametrize("norm", [50.0, 100.0, 300.0])
@pytest.mark.parametrize("size", [1e-6, 1e3, 1e6])
def test_high_norms_of_small_and_large_numbers(norm: float, size: float):
    stream = torch.Generator().manual_seed(4)
    A = torch.randn(20, 3, 2, dtype=DOUBLE, generator=stream)
    f, w = (size * torch.randn(20, 2, dtype=DOUBLE, generator=stream) for _ in range(2))
    set = AffineSet.inequality(A, 0.0)
    answer = project(f, set, w, norm=norm, search="full")
    bounds = set.upper.expand(20, 3)
    problem = Problem(f, w, set.A, torch.full_like(bounds, -torch.inf), bounds, None, set.row_kinds, None, (20,))
    expected = graph.solve(problem, Options(search="full", norm=norm))
    lengths = [(found.value - f).abs().amax(-1) for found in (answer, expected)]
    torch.testing.assert_close(lengths[0], lengths[1], rtol=1e-6, atol=0)


@pytest.mark.parametrize("search", ["full", "active"])
@pytest.mark.parametrize("power", [8, 16, 18, 30, 100])
def test_a_far_f_ends_at_the_vertex(power: int, search: str):
    """The rows that are told as active are those that the point lies on, however far f is."""
    A, b = torch.tensor([[1.0, 0.3], [0.2, 1.0]], dtype=DOUBLE), torch.ones(2, dtype=DOUBLE)
    answer = project(10.0**power * torch.ones(2, dtype=DOUBLE), AffineSet.inequality(A, b), search=search)
    assert answer.active.tolist() == [1, 1]
    torch.testing.assert_close(answer.value, torch.linalg.solve(A, b), rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", [1e100, 1e200, 1e300])
def test_a_huge_f_beside_ordinary_rows_is_answered(size: float):
    """Squares of what is left after scaling vanish. In a process of its own: a search without end cannot be stopped."""
    done = run_python(
        "import torch, caffnet\n"
        "A = torch.tensor([[0.32, 0.106], [0.765, -0.9], [-0.684, -0.921], [-0.925, -0.488], [-0.072, -1.796],\n"
        "    [-0.0616, 1.8], [0.532, -0.67], [0.923, 0.0247]], dtype=torch.float64)\n"
        "lower = [-1.07, 0.356, 0.563, 0.66, 2.394, -torch.inf, -torch.inf, -1.02]\n"
        "upper = [0.19, 0.845, 1.755, 1.786, 3.449, -0.523, 0.65, 0.137]\n"
        f"f = {size!r} * torch.tensor([1.4, -0.248], dtype=torch.float64)\n"
        "for search in ('full', 'lite', 'active'):\n"
        "    answer = caffnet.project(f, caffnet.AffineSet(A, lower, upper), search=search)\n"
        "    assert answer.value.isfinite().all() and answer.violation <= 100 * 2**-52 * f.abs().amax(), answer\n",
        timeout=40,
    )
    assert done.returncode == 0, done.stderr[-500:]


# ------------------------------------------------------------------------------------------------ the library


ANSWER = (
    "import torch\n"
    "from caffnet import AffineSet, KernelError, project\n"
    "try:\n"
    "    print(project(torch.ones(2), AffineSet.box(0.0, 0.5, dim=2)).value.tolist())\n"
    "except KernelError as error:\n"
    "    print('KernelError:', error)\n"
)


def copy_package(folder: Path) -> Path:
    """The package in another folder; its kernel there."""
    shutil.copytree(PACKAGE, folder / "caffnet", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "caffnet" / "_kernel"


def half_of(library: Path) -> None:
    os.truncate(library, library.stat().st_size // 2)


SPOILED = {
    "missing": lambda kernel: (kernel / build.LIBRARY.name).unlink(),
    "of text": lambda kernel: (kernel / build.LIBRARY.name).write_text("not a library"),
    "empty": lambda kernel: (kernel / build.LIBRARY.name).write_bytes(b""),
    "cut in half": lambda kernel: half_of(kernel / build.LIBRARY.name),
    "another library": lambda kernel: shutil.copy(__import__("_ctypes").__file__, kernel / build.LIBRARY.name),
    "compiled from other C files": lambda kernel: (kernel / "box.c").write_text("/* another version */\n"),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_library_that_cannot_be_used_is_named_with_a_remedy(how: str, tmp_path: Path):
    SPOILED[how](copy_package(tmp_path))
    done = run_python(ANSWER, tmp_path)
    assert done.returncode == 0, f"{done.returncode} {done.stderr[-500:]}"
    assert done.stdout.startswith("KernelError: The compiled kernel") and str(tmp_path) in done.stdout
    assert "pip install --force-reinstall" in done.stdout


def test_a_missing_library_does_not_keep_the_package_from_being_imported(tmp_path: Path):
    (copy_package(tmp_path) / build.LIBRARY.name).unlink()
    done = run_python("import caffnet; caffnet.AffineSet.box(0.0, 1.0, dim=2)", tmp_path)
    assert done.returncode == 0, done.stderr[-500:]


@needs_compiler
@pytest.mark.parametrize("how", ["missing", "compiled from other C files"])
def test_in_a_clone_the_library_is_compiled_when_it_is_needed(how: str, tmp_path: Path):
    """At once, in the process that found the change."""
    (tmp_path / "src").mkdir()
    (tmp_path / "pyproject.toml").touch()
    kernel = copy_package(tmp_path / "src")
    if how == "missing":
        (kernel / build.LIBRARY.name).unlink()
    else:
        with open(kernel / "box.c", "a") as file:
            file.write("/* another version */\n")
    done = run_python(ANSWER, tmp_path / "src", CFLAGS="-O0")
    assert done.stdout.strip() == "[0.5, 0.5]", done.stdout + done.stderr[-500:]


def test_in_a_clone_without_a_compiler_the_remedy_is_to_compile(tmp_path: Path):
    (tmp_path / "src").mkdir()
    (tmp_path / "pyproject.toml").touch()
    (copy_package(tmp_path / "src") / build.LIBRARY.name).unlink()
    done = run_python(ANSWER, tmp_path / "src", CC="/no/compiler/here")
    assert done.stdout.startswith("KernelError: The compiled kernel"), done.stdout + done.stderr[-500:]
    assert "/no/compiler/here" in done.stdout and "Compile it with `python " in done.stdout


def test_a_kernel_error_is_not_an_error_of_the_constraints():
    assert issubclass(KernelError, RuntimeError) and not issubclass(KernelError, ValueError)


@needs_compiler
def test_a_function_that_is_nowhere_defined_stops_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kernel = tmp_path / "kernel"
    shutil.copytree(PACKAGE / "_kernel", kernel, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    monkeypatch.setattr(build, "HERE", kernel)
    with (kernel / "onnx.c").open("a") as file:
        file.write(
            "int caffnet_nowhere(void);\n__attribute__((used)) static int ask(void) { return caffnet_nowhere(); }\n"
        )
    with pytest.raises(build.BuildError, match="caffnet_nowhere"):
        build.build(tmp_path / build.LIBRARY.name)
    assert not (tmp_path / build.LIBRARY.name).exists()


def test_importing_and_projecting_load_no_compiler_of_python():
    done = run_python(ANSWER + "import sys\nprint({'numba', 'llvmlite'} & set(sys.modules))")
    assert done.stdout.split("\n")[:2] == ["[0.5, 0.5]", "set()"], done.stdout + done.stderr[-500:]


# ------------------------------------------------------------------------------------------------ memory


def read_structs() -> dict[str, list[tuple[str, str]]]:
    """The fields of every struct in kernel.h, in order: name, and "d" for a double, "q" for an integer or address."""
    text = re.sub(r"/\*.*?\*/", "", (PACKAGE / "_kernel" / "kernel.h").read_text(), flags=re.DOTALL)
    structs: dict[str, list[tuple[str, str]]] = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", text, flags=re.DOTALL):
        structs[name] = []
        for line in body.split(";"):
            kind, _, names = line.strip().partition(" ")
            if kind in structs:
                structs[name] += [(f"{names}.{field}", letter) for field, letter in structs[kind]]
                continue
            for word in re.sub(r"^(?:(?:const|volatile|void|char|double|int\w+) )*", "", names).split(","):
                double = kind == "double" and "*" not in names
                structs[name] += [(word.strip(" *"), "d" if double else "q")] if word.strip() else []
    return structs


@needs_compiler
def test_the_structs_of_python_and_c_are_the_same(tmp_path: Path):
    """Eight bytes for every field of kernel.h, in the order of the letters that native.py packs."""
    structs = read_structs()
    lines = [f'printf("%d\\n", (int)sizeof({name}));' for name in structs]
    for name, fields in structs.items():
        lines += [f'printf("%d\\n", (int)offsetof({name}, {field}));' for field, _ in fields]
    source = tmp_path / "sizes.c"
    start = '#include <stddef.h>\n#include <stdio.h>\n#include "kernel.h"\nint main(void) {\n'
    source.write_text(start + "\n".join(lines) + "\nreturn 0;\n}\n")
    assert COMPILER is not None
    subprocess.run([*COMPILER, f"-I{PACKAGE / '_kernel'}", str(source), "-o", str(tmp_path / "sizes")], check=True)
    told = [int(line) for line in subprocess.check_output([str(tmp_path / "sizes")], text=True).split()]
    sizes, offsets = dict(zip(structs, told[: len(structs)], strict=True)), told[len(structs) :]
    assert offsets == [8 * i for fields in structs.values() for i in range(len(fields))]
    packed = {
        "CaffnetBatch": native._BATCH,
        "CaffnetGradients": native._GRADIENTS,
        "CaffnetSystem": native._SYSTEM,
        "CaffnetProof": struct.Struct("2d"),  # two numbers of an array
    }
    assert set(structs) == {*packed, "CaffnetTolerances"}
    for name, form in packed.items():
        letters = "".join(letter for _, letter in structs[name])
        assert sizes[name] == form.size == 8 * len(letters)
        written = re.sub(r"(\d+)(\w)", lambda group: int(group[1]) * group[2], form.format)
        assert written == letters, name
    assert sizes["CaffnetTolerances"] == 8 * len(native.tolerances(DOUBLE, 3))


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """The types of the entry points, as native.py has them."""
    for name in ("caffnet_workspace", "caffnet_solve", "caffnet_gradient", "caffnet_conflict"):
        known = getattr(native._library(), name)
        getattr(library, name).argtypes, getattr(library, name).restype = known.argtypes, known.restype
    return library


def compile_kernel(folder: Path, *changes: tuple[str, str, str]) -> ctypes.CDLL:
    """The kernel alone, without vector instructions or optimisation, with lines of its files replaced."""
    shutil.copytree(PACKAGE / "_kernel", folder / "kernel", ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in changes:
        path = folder / "kernel" / file
        text = path.read_text()
        assert text.count(old) == 1, f"not in {file} once: {old}"
        path.write_text(text.replace(old, new))
    assert COMPILER is not None
    target = folder / "alone.so"
    flags = ["-std=c11", "-O0", "-ffp-contract=off", "-fPIC", "-shared"]
    subprocess.run([*COMPILER, *flags, str(folder / "kernel" / "kernel.c"), "-o", str(target), "-lm"], check=True)
    return declare(ctypes.CDLL(str(target)))


def random_call(seed: int, metrics: bool = True) -> tuple[Problem, Options, Tensor | None, Tensor]:
    """A small batch of any kind: every search and option, equalities, boxes, copies of rows, empty sets, NaN."""
    random = np.random.default_rng(seed)
    search = str(random.choice(["full", "lite", "active", "paper"]))
    largest = {"full": (5, 8), "lite": (6, 9), "active": (20, 30), "paper": (3, 6)}[search]
    n, m, samples = int(random.integers(0, largest[0] + 1)), int(random.integers(0, largest[1] + 1)), 3
    dtype = TYPES[int(random.integers(2))]
    A = random.normal(size=(samples, m, n)) if random.random() < 0.6 else random.integers(-2, 3, (samples, m, n)) * 1.0
    if random.random() < 0.3 and n:  # bounds of single outputs
        few = random.random((samples, m)) < random.choice([0.5, 1.0])
        A = np.where(few[..., None], np.eye(n)[random.integers(0, n, (samples, m))], A)
    if m > 1 and random.random() < 0.3:
        A[:, -1] = -2 * A[:, 0]
    inner = random.normal(size=(samples, n, 1))
    room = np.abs(random.normal(size=(2, samples, m))) * (random.random((2, samples, m)) < 0.8)
    upper, lower = (A @ inner)[..., 0] + room[0], (A @ inner)[..., 0] - room[1]
    lower[:, random.random(m) < 0.5] = -np.inf
    equal = random.random(m) < 0.15
    lower[:, equal] = upper[:, equal]
    if random.random() < 0.3:  # empty sets
        upper = upper - 3 * np.abs(random.normal(size=upper.shape))
    f, w, v = (random.choice([1.0, 1e3, 1e-200, 1e200]) * random.normal(size=(samples, n)) for _ in range(3))
    if dtype == torch.float32:
        f, w, v = (np.clip(t, -1e30, 1e30) for t in (f, w, v))
    if random.random() < 0.1 and n:
        f[0, 0] = np.nan
    tensors = [torch.as_tensor(t).to(dtype) for t in (f, w, A, lower, upper)]
    if random.random() < 0.3:
        tensors[2:] = [t[0].clone() for t in tensors[2:]]
    if random.random() < 0.4:
        tensors[1] = None
    kinds = "".join("=" if same else "B" for same in equal) if random.random() < 0.7 else "B" * m
    gradient = "exact" if search == "paper" else str(random.choice(["exact", "tangent"]))
    norm = float(random.choice([1.0, 2.0, 2.0, 3.0, np.inf]))
    told = str(random.choice(["nearest", "nan"]))
    options = Options(search, norm, bool(random.random() < 0.4), told, gradient)
    start = torch.as_tensor(random.integers(-1, 2, (samples, m)), dtype=torch.int8) if random.random() < 0.3 else None
    metric = None
    if metrics and search != "paper" and norm == 2 and random.random() < 0.5:
        root = random.normal(size=(samples, n, n))
        metric = torch.as_tensor(root @ root.swapaxes(1, 2) + 0.1 * np.eye(n)).to(dtype)
        metric = metric if random.random() < 0.6 else metric.diagonal(dim1=-2, dim2=-1).unsqueeze(-2).contiguous()
        metric = metric if random.random() < 0.5 else metric[0].clone()
    return Problem(*tensors, metric, kinds, None, (samples,)), options, start, torch.as_tensor(v).to(dtype)


def call_everything(library: ctypes.CDLL, seed: int, memory: int, metrics: bool = True) -> list[Tensor]:
    """Every entry point on the same random batch; all that they write."""
    problem, options, start, v = random_call(seed, metrics)
    samples, n = problem.f.shape
    m = problem.A.shape[-2]
    answer = native.empty_answer(problem.f, m, options.search)
    batch = native.Batch(problem, options, answer, start, None)
    library.caffnet_solve(batch.packed, 0, samples, memory)
    to_f, to_w = (torch.zeros(samples, n, dtype=v.dtype) for _ in range(2))
    metric = torch.zeros(1, 1) if problem.metric is None else problem.metric
    sums = [torch.zeros(t.shape, dtype=DOUBLE) for t in (problem.A, problem.lower, problem.upper, metric)]
    steps = [0 if t.ndim == core else t.stride(0) for t, core in zip(sums, (2, 1, 1, 2), strict=True)]
    addresses = [t.data_ptr() for t in (to_f, to_w, *sums)]
    library.caffnet_gradient(
        batch.packed, native._GRADIENTS.pack(v.data_ptr(), v.stride(0), *addresses, *steps), 0, samples, memory
    )
    kept = Answer(
        *(None if t is None else t.clone() for t in (answer.value, answer.status, answer.active, answer.choice))
    )
    multipliers, proof = torch.zeros(m, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE)
    library.caffnet_conflict(batch.packed, samples - 1, multipliers.data_ptr(), proof.data_ptr(), memory)
    choice = torch.zeros(0) if kept.choice is None else kept.choice
    return [kept.value, kept.status, kept.active, choice, to_f, to_w, *sums, multipliers, proof]


CALLS = range(400)
_MARK = 0xA5


def test_the_kernel_stays_within_its_workspace():
    """A buffer of exactly the size asked for, at the least aligned address, and marks behind it."""
    library = native._library()
    for seed in CALLS:
        problem, options, *_ = random_call(seed)
        n, m, search = problem.f.shape[-1], problem.A.shape[-2], native.SEARCHES[options.search]
        size = library.caffnet_workspace(n, m, search, problem.metric is not None)
        held = torch.full((size + 4096 + 128,), _MARK, dtype=torch.uint8)
        begin = -held.data_ptr() % 64 + 1  # one byte after a multiple of 64: the next is where the kernel begins
        address = (held.data_ptr() + begin + 63) & ~63
        call_everything(library, seed, address)
        assert (held[:begin] == _MARK).all(), seed
        assert (held[begin + size :] == _MARK).all(), seed


@needs_compiler
def test_no_array_of_the_workspace_is_written_beyond_its_end(tmp_path: Path):
    """A kernel with a gap behind every array: the marks in the gaps stay."""
    library = compile_kernel(
        tmp_path,
        (
            "entry.c",
            "FN void *take(Pool *pool",
            "int64_t gap_from[256], gap_to[256], gaps = 0;\nFN void *take(Pool *pool",
        ),
        (
            "entry.c",
            "    pool->used += (count * size + 63) / 64 * 64;",
            "    size_t end = pool->used + count * size;\n"
            "    if (pool->used == 0) gaps = 0;\n"
            "    pool->used = (end + 63) / 64 * 64 + 256;\n"
            "    gap_from[gaps] = (int64_t)end;\n"
            "    gap_to[gaps++] = (int64_t)pool->used;",
        ),
    )
    first, last = ((ctypes.c_int64 * 256).in_dll(library, name) for name in ("gap_from", "gap_to"))
    for seed in CALLS:
        problem, options, *_ = random_call(seed, metrics=False)
        n, m, search = problem.f.shape[-1], problem.A.shape[-2], native.SEARCHES[options.search]
        size = library.caffnet_workspace(n, m, search, 0)
        held = torch.full((size + 4096,), _MARK, dtype=torch.uint8)
        address = (held.data_ptr() + 63) & ~63
        call_everything(library, seed, address, metrics=False)
        begin = address - held.data_ptr()
        count = ctypes.c_int64.in_dll(library, "gaps").value
        assert count > 40
        for i in range(count):
            assert (held[begin + first[i] : begin + last[i]] == _MARK).all(), f"seed {seed}, array {i}"


@needs_compiler
def test_the_bits_do_not_depend_on_the_compiler_or_the_instructions(tmp_path: Path):
    """The kernel without optimisation or vectors against the one in use."""
    other, memory = compile_kernel(tmp_path), torch.empty(2**20, dtype=torch.uint8)
    address = (memory.data_ptr() + 63) & ~63
    for seed in CALLS:
        found = [call_everything(library, seed, address) for library in (native._library(), other)]
        for i, (one, two) in enumerate(zip(*found, strict=True)):
            assert torch.equal(one.nan_to_num(7.0), two.nan_to_num(7.0)), f"seed {seed}, output {i}"


def test_a_row_may_be_an_equality_for_one_sample_only():
    """Shared rows, bounds of their own: what is factorised for one sample is not taken for the next."""
    rows = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 2.0], [3.0, 0.0, 1.0]], dtype=torch.float64)
    upper = torch.tensor([[1.0, 2.0, 1.0]], dtype=torch.float64).expand(4, 3)
    lower = upper.clone()
    lower[1, 0], lower[2], lower[3, 1] = -5.0, -5.0, -5.0
    f = torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64).expand(4, 3)
    whole = project(f, AffineSet(rows, lower, upper), search="active").value
    for i in range(4):
        assert torch.equal(project(f[i], AffineSet(rows, lower[i], upper[i]), search="active").value, whole[i])
    assert torch.equal(whole[2], f[2])
