"""The compiled kernel decides by itself, agrees with torch alone, and keeps its own promises."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from caffnet import AffineSet, CAffine, Status, compiled, prepare, project
from caffnet.problem import Options, Problem
from helpers import needs_data, random_problem, set_of, stored_index, stored_problem

TYPES = [torch.float64, torch.float32]
FEASIBLE = [name for name, entry in stored_index().items() if entry["feasible"]]


def batch_of_sets(seed: int, samples: int, m: int, n: int, dtype: torch.dtype = torch.float64):
    """Sets with a common interior point, so that none is empty; one-sided, two-sided and equal rows."""
    stream = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=stream)

    A, centre = normal(samples, m, n), normal(samples, 1, n)
    at = (A * centre).sum(-1)
    lower, upper = at - normal(samples, m).abs(), at + normal(samples, m).abs()
    lower[:, ::3] = -torch.inf
    if n > 2:
        lower[:, 1] = upper[:, 1] = at[:, 1]
    parts = (t.to(dtype) for t in (A, lower, upper, 2 * normal(samples, n), normal(samples, n), normal(samples, n)))
    A, lower, upper, f, w, v = parts
    return AffineSet(A, lower, upper), f, w, v


def both_ways(monkeypatch: pytest.MonkeyPatch, call):
    answers = []
    for enabled in (True, False):
        monkeypatch.setattr(compiled, "ENABLED", enabled)
        answers.append(call())
    return answers


def undecided(f: Tensor, set: AffineSet, w: Tensor | None = None, search: str = "active", norm: float = 2.0) -> int:
    """How many samples the kernel leaves to torch."""
    batch = f.shape[:1]
    lower, upper = (t.expand(*batch, set.m) for t in (set.lower, set.upper))
    problem = Problem(f, w, set.A, lower, upper, set.sides, None, tuple(batch))
    return compiled.solve(problem, Options(search=search, norm=norm))[1]


# ------------------------------------------------------------------------------------------------ agreement


@pytest.mark.parametrize("norm", [1, 2, 3, float("inf")])
@pytest.mark.parametrize("search", ["full", "lite", "active"])
@pytest.mark.parametrize(("m", "n"), [(5, 1), (7, 2), (6, 3), (7, 4)])
def test_the_same_answers_as_torch(m: int, n: int, search: str, norm: float, monkeypatch: pytest.MonkeyPatch):
    set, f, w, v = batch_of_sets(m + n, 40, m, n)
    inputs = [t.requires_grad_() for t in (f, w, set.A, set.lower.clone(), set.upper.clone())]

    def call():
        here = AffineSet.from_parts(inputs[2], inputs[3], inputs[4], None, set.sides)
        answer = project(inputs[0], here, inputs[1], search=search, norm=norm)
        return answer, torch.autograd.grad(answer.value, inputs, v, allow_unused=True)

    (one, gradients), (other, expected) = both_ways(monkeypatch, call)
    torch.testing.assert_close(one.value, other.value, rtol=1e-10, atol=1e-10)
    assert torch.equal(one.active, other.active)
    assert torch.equal(one.status, other.status)
    for gradient, right in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("gradient", ["exact", "tangent"])
@pytest.mark.parametrize("dtype", TYPES)
def test_the_same_gradients_as_torch_with_a_shared_matrix(
    dtype: torch.dtype, gradient: str, monkeypatch: pytest.MonkeyPatch
):
    set, f, w, v = batch_of_sets(3, 50, 6, 3, dtype)
    inputs = [t.requires_grad_() for t in (f, w, set.A[0].clone(), set.lower[0].clone(), set.upper[0].clone())]

    def call():
        here = AffineSet.from_parts(inputs[2], inputs[3], inputs[4], None, set.sides)
        answer = project(inputs[0], here, inputs[1], gradient=gradient)
        return torch.autograd.grad(answer.value, inputs, v, allow_unused=True)

    found, expected = both_ways(monkeypatch, call)
    share = 1e-9 if dtype == torch.float64 else 2e-4
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one, other, rtol=share, atol=share)


@needs_data
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", FEASIBLE)
def test_the_same_face_on_the_real_problems(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    problem = stored_problem(name)
    set, f = set_of(problem, dtype), torch.as_tensor(problem["F"]).to(dtype)
    one, other = both_ways(monkeypatch, lambda: project(f, set, search="active", on_infeasible="nan"))
    known = (one.status <= Status.WITHIN_TOL) & (other.status <= Status.WITHIN_TOL)
    share = 1e-9 if dtype == torch.float64 else 1e-4
    size = 1 + other.value[known].abs().amax() if known.any() else 1
    assert ((one.value - other.value)[known].abs() <= share * size).all()
    same = (one.active == other.active).all(-1)
    # Another γ is right only where several describe the same point.
    for i in (known & ~same).nonzero().flatten().tolist():
        for answer in (one, other):
            value = (set.A @ answer.value[i]).double()
            bound = torch.where(answer.active[i] > 0, set.upper, set.lower).double()
            gap = torch.where(answer.active[i] != 0, (value - bound).abs(), torch.zeros_like(value))
            assert (gap <= 1e3 * share * size).all()


# ------------------------------------------------------------------------------------------------ it decides


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("m", "n"), [(13, 2), (20, 5), (64, 16), (128, 32)])
def test_ordinary_samples_are_decided_by_the_kernel(m: int, n: int, dtype: torch.dtype):
    set, f, w, _ = batch_of_sets(1, 100, m, n, dtype)
    assert undecided(f, set) == 0
    assert undecided(f, set, w) == 0


def test_degenerate_problems_are_mostly_decided_by_the_kernel():
    left = 0
    for seed in range(300):
        set, f, w = random_problem(seed)
        left += undecided(f.reshape(-1, set.n)[:1], set, w.reshape(-1, set.n)[:1], "full") if set.A.ndim == 2 else 0
    assert left <= 15


def test_bad_samples_are_left_to_torch_and_the_others_are_not():
    set = AffineSet.box(-1.0, 1.0, dim=2).to(torch.float64)
    f = torch.tensor([[3.0, 0.0], [torch.nan, 0.0], [1e200, 0.0], [0.5, 0.5]], dtype=torch.float64)
    assert undecided(f, set) == 2
    crossed = AffineSet(torch.eye(2, dtype=torch.float64), torch.tensor([1.0, 0.0]).double(), torch.zeros(2).double())
    assert undecided(f[:1], crossed) == 1


# ------------------------------------------------------------------------------------------------ structure


def test_zeros_are_skipped_without_changing_the_answer(monkeypatch: pytest.MonkeyPatch):
    stream = torch.Generator().manual_seed(0)
    n = 24
    A = torch.zeros(30, n, dtype=torch.float64)
    for i in range(30):
        A[i, torch.randperm(n, generator=stream)[:3]] = torch.randn(3, dtype=torch.float64, generator=stream)
    set = AffineSet(A, -torch.rand(30, generator=stream).double(), 1.0) & AffineSet.box(-0.5, 0.5, dim=n)
    f = 2 * torch.randn(60, n, dtype=torch.float64, generator=stream)
    one, other = both_ways(monkeypatch, lambda: project(f, set, search="active"))
    torch.testing.assert_close(one.value, other.value, rtol=1e-11, atol=1e-11)
    assert torch.equal(one.active, other.active)
    assert (one.value.abs() <= 0.5).all()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_a_sparse_matrix_is_accepted():
    dense = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    f = torch.tensor([[3.0, 2.0, 1.0]], dtype=torch.float64)
    expected = project(f, AffineSet.inequality(dense, [1.0, 1.0])).value
    for sparse in (dense.to_sparse(), dense.to_sparse_csr()):
        assert torch.equal(project(f, AffineSet.inequality(sparse, [1.0, 1.0])).value, expected)


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


def test_a_start_of_the_wrong_shape_is_refused():
    set, f, *_ = batch_of_sets(5, 4, 7, 4)
    with pytest.raises(ValueError, match=r"start must have shape \(4, 7\)"):
        project(f, set, start=torch.zeros(3, 7))


def test_a_layer_can_start_warm():
    set, f, *_ = batch_of_sets(6, 30, 40, 12)
    layer, plain = CAffine(lambda x: set, search="active", warm_start=True), CAffine(lambda x: set, search="active")
    for step in range(3):
        here = f + 0.05 * step
        torch.testing.assert_close(layer(here, x=0), plain(here, x=0), rtol=1e-11, atol=1e-11)
    few = CAffine(lambda x: set[:x], search="active", warm_start=True)
    few(f, x=30)
    torch.testing.assert_close(few(f[:7], x=7), plain(f, x=0)[:7], rtol=1e-11, atol=1e-11)  # another batch starts cold


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
    monkeypatch.setattr(compiled, "_WORTH_A_THREAD", 1)
    torch.set_num_threads(3)
    try:
        several = project(f, set, w, search="active")
        assert torch.equal(several.value, whole.value) and torch.equal(several.active, whole.active)
        assert torch.equal(torch.autograd.grad(several.value, f, v)[0], slope)
    finally:
        torch.set_num_threads(1)


def test_calls_from_many_threads_do_not_meet():
    set, f, w, _ = batch_of_sets(8, 32, 12, 4)
    right = project(f, set, w).value
    with ThreadPoolExecutor(8) as pool:
        for answer in pool.map(lambda _: project(f, set, w).value, range(64)):
            assert torch.equal(answer, right)


def test_a_forked_process_makes_its_own_threads(monkeypatch: pytest.MonkeyPatch):
    code = (
        "import torch, os, caffnet\n"
        "from caffnet import AffineSet, project, compiled\n"
        "compiled._WORTH_A_THREAD = 1\n"
        "torch.set_num_threads(2)\n"
        "f, s = 3 * torch.ones(8, 2), AffineSet.box(-1.0, 1.0, dim=2)\n"
        "project(f, s)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if (project(f, s).value == 1).all() else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-500:]


def test_the_inputs_are_untouched():
    set, f, w, v = batch_of_sets(9, 20, 9, 3)
    before = [t.clone() for t in (set.A, set.lower, set.upper, f, w, v)]
    f.requires_grad_()
    torch.autograd.grad(project(f, set, w, gradient="tangent").value, f, v)
    for now, then in zip((set.A, set.lower, set.upper, f.detach(), w, v), before, strict=True):
        assert torch.equal(now, then)


def test_the_kernel_can_be_switched_off():
    code = "import sys, torch, caffnet; caffnet.project(torch.ones(1, 2), caffnet.AffineSet.box(0.0, 0.5, dim=2)); "
    code += "sys.exit('numba' in sys.modules)"
    environment = {**os.environ, "CAFFNET_KERNEL": "0"}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


def test_importing_the_library_compiles_nothing():
    code = "import sys, caffnet; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_compiled_code_is_kept_on_disk(tmp_path: Path):
    project(torch.ones(1, 2), AffineSet.box(0.0, 0.5, dim=2))
    from caffnet import kernel

    assert kernel.solve._cache.cache_path and list(Path(kernel.solve._cache.cache_path).glob("kernel.solve*"))


@pytest.mark.parametrize("norm", [1, 2, 4])
@pytest.mark.parametrize("n", [1, 3, 50])
def test_a_box_is_a_clamp(n: int, norm: float, monkeypatch: pytest.MonkeyPatch):
    stream = torch.Generator().manual_seed(n)
    low = -torch.rand(n, dtype=torch.float64, generator=stream)
    high = torch.rand(n, dtype=torch.float64, generator=stream)
    high[0] = low[0]
    f = 2 * torch.randn(30, n, dtype=torch.float64, generator=stream)
    bounds = [low.clone().requires_grad_(), high.clone().requires_grad_()]

    def call():
        answer = project(f, AffineSet.box(*bounds), norm=norm)
        return answer, torch.autograd.grad(answer.value.sum(), bounds)

    (one, slopes), (other, expected) = both_ways(monkeypatch, call)
    assert torch.equal(one.value, f.clamp(low, high)) and torch.equal(other.value, one.value)
    assert undecided(f, AffineSet.box(low, high), search="full", norm=float(norm)) == 0
    assert ((one.active != 0) == (other.active != 0)).all()
    assert torch.allclose(slopes[0] + slopes[1], expected[0] + expected[1])
    assert torch.allclose((slopes[0] + slopes[1])[1:], (f < low).sum(0)[1:] + (f > high).sum(0)[1:].double())


def test_bounds_of_single_outputs_are_not_factorised(monkeypatch: pytest.MonkeyPatch):
    """A box around a simplex: all but one row fix an output; rows are dropped and come back on the way."""
    stream = torch.Generator().manual_seed(2)
    n = 40
    set = AffineSet.equality(torch.ones(1, n, dtype=torch.float64), [1.0]) & AffineSet.box(0.0, 0.1, dim=n)
    set = set & AffineSet.inequality(torch.randn(5, n, dtype=torch.float64, generator=stream), 0.3)
    f = torch.randn(80, n, dtype=torch.float64, generator=stream)
    one, other = both_ways(monkeypatch, lambda: project(f, set, search="active"))
    torch.testing.assert_close(one.value, other.value, rtol=1e-11, atol=1e-11)
    assert torch.equal(one.active, other.active)
    assert ((one.value >= 0) & (one.value <= 0.1)).all()


# ------------------------------------------------------------------------------------------------ found by attack


def test_an_entry_that_vanishes_in_scaling():
    A = torch.zeros(1, 8, dtype=torch.float64)
    A[0, 0], A[0, 5] = 1e300, 1e-300
    f = torch.arange(1.0, 9.0, dtype=torch.float64)
    assert torch.equal(project(f / 10, AffineSet.inequality(A, [1e300])).value, f / 10)
    assert project(2 * f, AffineSet.inequality(A, [1e300])).value[0] == 1


@pytest.mark.parametrize("shared", ["w is f", "w depends on f", "upper depends on f", "lower is upper"])
def test_inputs_that_are_one_tensor_count_once_in_a_differentiable_backward(shared: str):
    f = torch.tensor([[2.0, 1.0], [0.3, 2.0]], dtype=torch.float64, requires_grad=True)
    d = torch.ones(2, 1, dtype=torch.float64, requires_grad=True)
    ones = torch.ones(2, 1, 2, dtype=torch.float64)

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
def test_high_norms_of_small_and_large_numbers(norm: float, size: float, monkeypatch: pytest.MonkeyPatch):
    stream = torch.Generator().manual_seed(4)
    A = torch.randn(20, 3, 2, dtype=torch.float64, generator=stream)
    f, w = (size * torch.randn(20, 2, dtype=torch.float64, generator=stream) for _ in range(2))
    set = AffineSet.inequality(A, 0.0)
    one, other = both_ways(monkeypatch, lambda: project(f, set, w, norm=norm, search="full"))
    lengths = [(answer.value - f).abs().amax(-1) for answer in (one, other)]
    torch.testing.assert_close(lengths[0], lengths[1], rtol=1e-6, atol=0)


def test_a_warm_start_with_a_row_that_does_not_pull():
    set = AffineSet.inequality(torch.tensor([[1.0, 0, 0], [1, 1, 0]], dtype=torch.float64), [0.0, 0.0])
    f = torch.tensor([[1.0, 0, 2]], dtype=torch.float64)
    w = torch.tensor([[0.5, -1, 1]], dtype=torch.float64)
    cold = project(f, set, w, search="active")
    warm = project(f, set, w, search="active", start=torch.tensor([[1, 5]]))
    assert torch.equal(cold.value, warm.value) and torch.equal(cold.active, warm.active)


def test_a_map_over_something_else():
    set = AffineSet.inequality(torch.ones(1, 2, dtype=torch.float64), [1.0])
    f = torch.ones(1, 2, dtype=torch.float64, requires_grad=True)
    scaled = torch.func.vmap(lambda x: x * project(f, set).value)(torch.ones(2, 1, 2, dtype=torch.float64))
    assert torch.allclose(scaled, torch.full_like(scaled, 0.5))


def test_a_warm_layer_survives_a_map():
    layer = CAffine(AffineSet.inequality(torch.ones(1, 2, dtype=torch.float64), [1.0]), warm_start=True)
    torch.func.vmap(layer)(torch.ones(3, 2, dtype=torch.float64))
    assert torch.allclose(layer(torch.ones(2, dtype=torch.float64)), torch.full((2,), 0.5, dtype=torch.float64))


@pytest.mark.parametrize("enabled", [True, False])
def test_bounds_on_sides_that_were_not_prepared_are_refused(enabled: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiled, "ENABLED", enabled)
    ones = torch.ones(1, 2, dtype=torch.float64)
    one_sided = prepare(AffineSet.inequality(ones, [1.0], names=["total"]))
    with pytest.raises(ValueError, match="total was prepared as '<=' and got a lower bound"):
        one_sided.with_bounds(lower=torch.zeros(1, dtype=torch.float64))
    with pytest.raises(ValueError, match="two different bounds"):
        prepare(AffineSet.equality(ones, [1.0])).with_bounds(
            lower=torch.zeros(1, dtype=torch.float64), upper=torch.ones(1, dtype=torch.float64)
        )


@pytest.mark.parametrize("gradient", ["exact", "tangent"])
@pytest.mark.parametrize("enabled", [True, False])
def test_no_rows_have_a_gradient_and_their_own_memory(enabled: bool, gradient: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiled, "ENABLED", enabled)
    set = AffineSet.inequality(torch.zeros(0, 2, dtype=torch.float64), torch.zeros(0, dtype=torch.float64))
    f = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    value = project(f, set, gradient=gradient).value
    assert torch.equal(torch.autograd.grad(value.sum(), f, create_graph=True)[0], torch.ones_like(f))
    assert prepare(set).with_bounds(upper=torch.zeros(0, dtype=torch.float64)).set.m == 0
    plain = f.detach().clone()
    project(plain, set).value.add_(5)
    assert torch.equal(plain, f)


def test_an_installation_without_a_place_for_a_cache():
    code = (
        "import numba, torch\n"
        "from numba.core import caching\n"
        "caching.FunctionCache._impl_class._locator_classes = []\n"
        "caching.CodeLibraryCacheImpl._locator_classes = []\n"
        "from caffnet import kernel\n"
        "assert kernel.solve is not None\n"
    )
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-800:]


def test_lite_with_one_minimal_face_of_many_rows():
    """Forty rows, all independent: forty single rows and one face, not 2 ** 40 beginnings of it."""
    stream = torch.Generator().manual_seed(3)
    A = torch.randn(2, 40, 40, dtype=torch.float64, generator=stream)
    f = torch.randn(2, 40, dtype=torch.float64, generator=stream)
    set = AffineSet.inequality(A, (A @ f.unsqueeze(-1)).squeeze(-1) - 1)  # every row is violated
    answer = project(f, set, search="lite")
    torch.testing.assert_close((A @ answer.value.unsqueeze(-1)).squeeze(-1), set.upper)
