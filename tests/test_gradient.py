"""Gradients: against finite differences, the closed form and the oracle; finite at kinks; the tangent cone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

from caffnet import AffineSet, Status, project
from helpers import data_module, needs_data

DOUBLE = torch.float64


def faces(n: int, k: int, e: int, shared: bool, samples: int = 2):
    """Data for which every sample lands on a face with exactly k inequalities and e equalities, far from a kink.

    The face is chosen first: ``y`` satisfies its rows with equality and all others with room; ``f`` leaves along
    positive multiples of the rows, so that y is its projection.
    """
    random = torch.Generator().manual_seed(100 * n + 10 * k + e)
    batch = () if shared else (samples,)
    A = torch.randn(*batch, n + 2, n, generator=random, dtype=DOUBLE)
    C = torch.randn(*batch, e, n, generator=random, dtype=DOUBLE)
    y = torch.randn(n, generator=random, dtype=DOUBLE).expand(samples, n)
    value = (A @ y.unsqueeze(-1)).squeeze(-1)
    upper = value + 1 + torch.rand(samples, n + 2, generator=random, dtype=DOUBLE)
    lower = value - 1 - torch.rand(samples, n + 2, generator=random, dtype=DOUBLE)
    side = torch.where(torch.arange(n + 2) % 2 == 0, 1.0, -1.0)[:k].to(DOUBLE)
    upper[:, :k] = torch.where(side > 0, value[:, :k], upper[:, :k])
    lower[:, :k] = torch.where(side < 0, value[:, :k], lower[:, :k])
    weight = side * (1 + torch.rand(samples, k, generator=random, dtype=DOUBLE))
    f = y + (A[..., :k, :].mT @ weight.unsqueeze(-1)).squeeze(-1)
    f = f + (C.mT @ torch.randn(samples, e, 1, generator=random, dtype=DOUBLE)).squeeze(-1)
    d = (C @ y.unsqueeze(-1)).squeeze(-1)
    w = 0.01 * torch.randn(samples, n, generator=random, dtype=DOUBLE)
    return [t.clone().requires_grad_() for t in (f, w, A, lower, upper, C, d)]


def layer(search: str):
    def call(f, w, A, lower, upper, C, d):
        set = AffineSet(A, lower, upper)
        if C.shape[-2]:
            set = set & AffineSet.equality(C, d)
        return project(f, set, w, search=search).value

    return call


FACES = [(1, 1, 0), (2, 1, 0), (2, 2, 0), (3, 1, 1), (3, 2, 0), (3, 2, 1), (4, 0, 2), (4, 1, 2), (4, 3, 0), (4, 4, 0)]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("search", ["full", "active"])
@pytest.mark.parametrize(("n", "k", "e"), FACES)
def test_first_and_second_derivatives_on_faces_of_every_dimension(n: int, k: int, e: int, search: str, shared: bool):
    inputs = faces(n, k, e, shared)
    f, w, A, lower, upper, C, d = inputs
    set = AffineSet(A, lower, upper) & AffineSet.equality(C, d)
    answer = project(f, set, w, search=search)
    assert ((answer.active != 0).sum(-1) == k + e).all()
    assert gradcheck(layer(search), inputs, check_batched_grad=True)
    if not shared:
        assert gradgradcheck(layer(search), inputs)


def test_inside_only_f_has_a_gradient():
    f, w = (torch.randn(5, 3, dtype=DOUBLE, requires_grad=True) for _ in range(2))
    A, b = torch.randn(4, 3, dtype=DOUBLE, requires_grad=True), torch.full((4,), 1e3, dtype=DOUBLE, requires_grad=True)
    answer = project(f, AffineSet.inequality(A, b), w)
    assert (answer.status == Status.INSIDE).all()
    v = torch.randn(5, 3, dtype=DOUBLE)
    grads = torch.autograd.grad(answer.value, (f, w, A, b), v)
    assert torch.equal(grads[0], v)
    assert all((g == 0).all() for g in grads[1:])


@pytest.mark.parametrize("search", ["full", "active"])
def test_the_jacobian_is_the_projector_on_the_face(search: str):
    f, w, A, lower, upper, C, d = faces(4, 2, 1, True)
    set = AffineSet(A, lower[0], upper[0]) & AffineSet.equality(C, d[0])
    jacobian = torch.func.jacrev(lambda f: project(f, set, w[0], search=search).value)(f[0])
    rows = torch.cat([A[:2], C])
    closed = torch.eye(4, dtype=DOUBLE) - torch.linalg.pinv(rows) @ rows
    torch.testing.assert_close(jacobian, closed, rtol=1e-10, atol=1e-12)


KINKS = {
    "f on a face": ([1.0, 0.0], [[1.0, 0.0]], [1.0]),
    "f at a vertex": ([1.0, 1.0], [[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0]),
    "degenerate vertex": ([3.0, 3.0], [[1.0, 0], [0, 1], [1, 1]], [1.0, 1, 2]),
    "duplicate active rows": ([3.0, 0.5], [[1.0, 0], [1, 0], [2, 0]], [1.0, 1, 2]),
    "opposite rows": ([3.0, 0.0], [[1.0, 1], [-1, -1]], [1.0, -1]),
    "zero row": ([3.0, 0.0], [[0.0, 0], [1, 1]], [0.0, 1]),
    "two faces equally near": ([1.0, 1.0], [[1.0, 0], [0, 1]], [0.0, 0.0]),
}


@pytest.mark.parametrize("gradient", ["exact", "tangent"])
@pytest.mark.parametrize("search", ["full", "active"])
@pytest.mark.parametrize("case", KINKS)
def test_gradients_are_finite_at_kinks(case: str, search: str, gradient: str):
    numbers = [torch.tensor(t, dtype=DOUBLE, requires_grad=True) for t in KINKS[case]]
    f, A, b = numbers
    w = torch.zeros(2, dtype=DOUBLE, requires_grad=True)
    value = project(f, AffineSet.inequality(A, b), w, search=search, gradient=gradient).value
    grads = torch.autograd.grad((value**2).sum(), (f, w, A, b))
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("mode", ["nan", "nearest"])
def test_a_sample_without_an_answer_does_not_spoil_the_gradient_of_the_others(mode: str):
    A = torch.tensor([[[1.0], [-1.0]], [[1.0], [-1.0]]], requires_grad=True)
    b = torch.tensor([[0.0, -1.0], [1.0, 1.0]])  # the first set is empty
    f = torch.tensor([[0.3], [3.0]], requires_grad=True)
    answer = project(f, AffineSet.inequality(A, b), on_infeasible=mode)
    assert answer.status.tolist() == [Status.INFEASIBLE, Status.PROJECTED]
    answer.value[1].sum().backward()
    assert f.grad is not None and f.grad.isfinite().all()
    assert A.grad is not None and A.grad.isfinite().all()
    assert A.grad[1, 0] == -1.0  # y = b / a


@pytest.mark.parametrize("gradient", ["exact", "tangent"])
@pytest.mark.parametrize("measure", ["euclidean", "diagonal", "full"])
@pytest.mark.parametrize("seed", range(3))
def test_the_kernel_and_the_closed_form_have_the_same_gradients(seed: int, measure: str, gradient: str):
    """The closed form is what torch differentiates again. Feasible, projected, empty and NaN samples in one batch."""
    stream = torch.Generator().manual_seed(seed)

    def normal(*shape: int):
        return torch.randn(*shape, dtype=DOUBLE, generator=stream)

    n, m = 4, 7
    f, A, v, root = 2 * normal(6, n), normal(6, m, n), normal(6, n), normal(n, n)
    middle = (A @ normal(6, n, 1)).squeeze(-1)
    lower, upper = middle - normal(6, m).abs(), middle + normal(6, m).abs()
    lower[:, 1] = upper[:, 1] = middle[:, 1]
    lower[1, 0], upper[1, 0] = upper[1, 0] + 0.4, lower[1, 0].clone()  # empty: the bounds of a row cross
    A[2, 3], upper[2, 3] = -A[2, 2], -upper[2, 2] - 0.7  # empty: two rows exclude each other
    lower[2, 2:4] = -math.inf
    f[3, 0] = math.nan
    metric = {"euclidean": None, "diagonal": root.diagonal().abs() + 1, "full": root @ root.mT + torch.eye(n)}[measure]
    leaves = [t.requires_grad_() for t in (f, A, upper, *(() if metric is None else (metric,)))]
    set = AffineSet(A, lower, upper)
    set = set if metric is None else set.with_metric(metric)
    answer = project(f, set, gradient=gradient, on_infeasible="nearest")
    assert answer.status.tolist()[1:4] == [Status.INFEASIBLE, Status.INFEASIBLE, Status.INVALID]
    first, again = (torch.autograd.grad(answer.value, leaves, v, retain_graph=True, create_graph=c) for c in (0, 1))
    for one, other in zip(first, again, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("search", ["full", "active"])
def test_rows_of_zeros_that_cannot_hold_leave_the_gradient_to_f_and_w(search: str):
    """The violation is the same at every point, so the answer is f + w."""
    set = AffineSet.inequality(torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=DOUBLE), [-1.0, 0.5])
    f, w = (torch.tensor([t], dtype=DOUBLE, requires_grad=True) for t in ([1.0, 2.0], [0.25, 0.5]))
    answer = project(f, set, w, search=search, on_infeasible="nearest")
    assert answer.status == Status.INFEASIBLE and answer.value.tolist() == [[1.25, 2.5]]
    for again in (False, True):
        slopes = torch.autograd.grad(answer.value.sum(), (f, w), retain_graph=True, create_graph=again)
        assert all(t.tolist() == [[1.0, 1.0]] for t in slopes)
    nothing = project(f, set, w, search=search, on_infeasible="nan").value
    assert not any(t.any() for t in torch.autograd.grad(nothing.sum(), (f, w)))


# ------------------------------------------------------------------------------------------------ tangent


def tangent(f, set, v, search="auto"):
    """The gradient that f receives for the loss ``v y``."""
    leaf = f.clone().requires_grad_()
    (project(leaf, set, search=search, gradient="tangent").value * v).sum().backward()
    return leaf.grad


@needs_data
@pytest.mark.parametrize("search", ["full", "active"])
def test_the_tangent_gradient_is_the_exact_projection_on_the_cone(search: str):
    """Against rational arithmetic: the oracle projects -v on {d : a_i d <= 0 for the rows active at y}."""
    oracle = data_module("exact_oracle")
    random = np.random.default_rng(0)
    checked = 0
    for _ in range(60):
        n, m = int(random.integers(1, 4)), int(random.integers(1, 6))
        A = random.integers(-3, 4, (m, n)).astype(float)
        f, v = 4 * random.normal(size=n), random.normal(size=n)
        set = AffineSet.inequality(torch.as_tensor(A), torch.ones(m, dtype=DOUBLE))
        y = project(torch.as_tensor(f), set, search=search)
        if y.status == Status.INSIDE:
            continue
        active = np.abs(A @ y.value.numpy() - 1) < 1e-9
        empty, free = np.zeros((0, n)), np.full(n, np.inf)
        told, d, _ = oracle.project(A[active], np.zeros(active.sum()), empty, np.zeros(0), -free, free, -v)
        assert told == "proven_exact"
        passed = tangent(torch.as_tensor(f), set, torch.as_tensor(v), search)
        np.testing.assert_allclose(passed.numpy(), -d, rtol=1e-9, atol=1e-12)
        checked += 1
    assert checked > 30


def test_a_step_along_the_tangent_gradient_never_increases_a_linear_loss():
    random = torch.Generator().manual_seed(2)
    A, f, v = (torch.randn(*s, generator=random, dtype=DOUBLE) for s in ((200, 6, 3), (200, 3), (200, 3)))
    set = AffineSet.inequality(A, torch.ones(200, 6, dtype=DOUBLE))
    y = project(5 * f, set).value
    step = -tangent(5 * f, set, v)
    assert ((step * v).sum(-1) <= 1e-12).all()
    slack = torch.where(set.A @ y.unsqueeze(-1) >= 1 - 1e-9, (set.A @ step.unsqueeze(-1)), -1.0)
    assert (slack <= 1e-9).all()  # and the step stays in the set


def test_the_tangent_gradient_lives_where_the_exact_one_dies():
    """At a vertex the exact gradient is zero; descent that points back inside gets through, outward does not."""
    set, f = AffineSet.box(0.0, 1.0, dim=2), torch.tensor([3.0, 3.0])
    inward, outward = torch.tensor([1.0, 2.0]), torch.tensor([-1.0, -2.0])
    assert torch.equal(tangent(f, set, inward), inward)  # the loss falls towards 0: inside
    assert torch.equal(tangent(f, set, outward), torch.zeros(2))
    leaf = f.clone().requires_grad_()
    (project(leaf, set).value * inward).sum().backward()
    assert torch.equal(leaf.grad, torch.zeros(2))


def test_with_the_tangent_option_the_gradients_of_w_and_of_the_constraints_stay_exact():
    f, w, A, lower, upper, *_ = faces(3, 2, 0, False)
    grads = []
    for gradient in ("exact", "tangent"):
        value = project(f, AffineSet(A, lower, upper), w, gradient=gradient).value
        grads.append(torch.autograd.grad((value**3).sum(), (w, A, lower, upper)))
    for exact, other in zip(*grads, strict=True):
        assert torch.equal(exact, other)


def test_what_pulls_f_inside_does_not_pull_w():
    """y lies on y₂ = 0, the loss falls inwards: f enters; w, which would only matter once it has, stays."""
    set = AffineSet.inequality([[0.0, 1.0]], [0.0])
    f, w = torch.tensor([0.3, 2.0], requires_grad=True), torch.tensor([0.1, 0.0], requires_grad=True)
    project(f, set, w, gradient="tangent").value.backward(torch.tensor([1.0, 1.0]))
    assert f.grad is not None and torch.equal(f.grad, torch.tensor([1.0, 1.0]))
    assert w.grad is not None and torch.equal(w.grad, torch.tensor([1.0, 0.0]))


def test_the_tangent_gradient_equals_the_exact_one_along_the_face():
    """For a gradient within the face both agree."""
    set, f = AffineSet.inequality([[0.0, 1.0]], [0.0]), torch.tensor([0.3, 2.0])
    v = torch.tensor([1.5, 0.0])
    assert torch.equal(tangent(f, set, v), v)


def test_the_tangent_gradient_respects_the_rows_of_a_strict_point():
    set, f = AffineSet.inequality([[1.0, 1.0]], [1.0]), torch.tensor([3.0, 0.7], requires_grad=True)
    answer = project(f, set, gradient="tangent", strict=True)
    (answer.value * torch.tensor([-1.0, -1.0])).sum().backward()
    torch.testing.assert_close(f.grad, torch.zeros(2))


@pytest.mark.parametrize("mode", ["nan", "nearest"])
def test_the_tangent_gradient_survives_samples_without_an_answer(mode: str):
    A = torch.tensor([[[1.0, 1.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, 2.0]], [[float("nan"), 1.0], [1.0, 2.0]]])
    f = torch.full((3, 2), 2.0, requires_grad=True)
    answer = project(f, AffineSet.equality(A, torch.tensor([0.0, 1.0])), gradient="tangent", on_infeasible=mode)
    assert answer.status.tolist() == [Status.INFEASIBLE, Status.PROJECTED, Status.INVALID]
    answer.value[1].sum().backward()
    assert f.grad is not None and f.grad.isfinite().all()


def test_a_gradient_that_is_no_number_passes():
    f = torch.full((2, 2), 2.0, requires_grad=True)
    y = project(f, AffineSet.box(0.0, 1.0, dim=2), gradient="tangent").value
    y.backward(torch.tensor([[float("nan"), 1.0], [1.0, 1.0]]))
    assert f.grad is not None and f.grad[0].isnan().any() and f.grad[1].isfinite().all()


def test_the_value_does_not_depend_on_whether_gradients_are_wanted():
    set = AffineSet.inequality([[0.0, 0.0], [1.0, 0.0]], [-1.0, 5.0])
    f, w = torch.tensor([6.0, 2.0]), torch.tensor([-3.0, 1.0])
    plain = project(f, set, w, on_infeasible="nearest").value
    assert torch.equal(project(f.clone().requires_grad_(), set, w, on_infeasible="nearest").value, plain)


def test_checkpoints_save_memory():
    """`torch.utils.checkpoint` computes the answer again in the backward pass, first and second."""
    set = (AffineSet.inequality([[1.0, 1.0, 1.0]], [1.0]) & AffineSet.box(-1.0, 1.0, dim=3)).to(DOUBLE)
    f = (3 * torch.randn(5, 3, dtype=DOUBLE)).requires_grad_()

    def answer(f: torch.Tensor) -> torch.Tensor:
        return project(f, set).value.square()

    once, again = answer(f).sum(), checkpoint(answer, f, use_reentrant=False).sum()
    slopes = [torch.autograd.grad(out, f, create_graph=True)[0] for out in (once, again)]
    assert torch.equal(*slopes)
    assert torch.equal(*(torch.autograd.grad(slope.sum(), f)[0] for slope in slopes))
