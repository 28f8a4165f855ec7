"""The multipliers of a projection: their signs and units, degenerate faces, gradients, other solvers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from caffnet import AffineSet, ConstraintError, Status, project, residuals
from helpers import nasty_cases, needs_data, random_problem, set_of

DOUBLE = torch.float64
INF = float("inf")


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def polytope(seed: int, batch: int = 8, n: int = 4, m: int = 6) -> tuple[AffineSet, Tensor, Tensor]:
    """Sets with an equality and a point inside, an f for each, mostly outside, and a metric."""
    A, C, inside = normal(seed, batch, m, n), normal(seed + 5, batch, 1, n), normal(seed + 1, batch, n)
    value = (A @ inside.unsqueeze(-1)).squeeze(-1)
    root = normal(seed + 3, batch, n, n)
    set = AffineSet(A, value - 1 - normal(seed + 6, batch, m).abs(), value + normal(seed + 2, batch, m).abs())
    set = set & AffineSet.equality(C, (C @ inside.unsqueeze(-1)).squeeze(-1))
    return set, inside + 3 * normal(seed + 4, batch, n), root @ root.mT + 0.2 * torch.eye(n)


def half_distance(f: Tensor, set: AffineSet, metric: Tensor | None) -> Tensor:
    apart = f - project(f, set, metric=metric).value
    stretched = apart if metric is None else (metric @ apart.unsqueeze(-1)).squeeze(-1)
    return (apart * stretched).sum(-1) / 2


# ------------------------------------------------------------------------------------------------ what they are


def test_sign_and_unit_of_a_row():
    """One row held at its upper bound, one at its lower, in the user's units, whatever the scale of the row."""
    f = torch.tensor([5.0, -7.0], dtype=DOUBLE)
    set = AffineSet([[1000.0, 0.0], [0.0, 0.5]], [-1.0, -1.0], [1000.0, 1.0]).to(DOUBLE)
    answer = project(f, set)
    torch.testing.assert_close(answer.multipliers, torch.tensor([4 / 1000, -5 / 0.5], dtype=DOUBLE))
    torch.testing.assert_close(answer.value, f - set.A.mT @ answer.multipliers)
    inside = project(torch.tensor([0.5, 0.0], dtype=DOUBLE), set)
    assert inside.status == Status.INSIDE and not inside.multipliers.any()


@pytest.mark.parametrize("measured", [False, True], ids=["euclidean", "metric"])
def test_they_are_the_slope_of_half_the_squared_distance(measured: bool):
    set, f, M = polytope(10)
    metric = M if measured else None
    found = project(f, set, metric=metric).multipliers
    step = 1e-5
    for i in range(set.m):
        move = step * torch.nn.functional.one_hot(torch.tensor(i), set.m)
        sides = [(move, move)] if set.row_kinds[i] == "=" else [(move, 0 * move), (0 * move, move)]
        total = torch.zeros_like(f[:, 0])
        for low, high in sides:
            wider, tighter = (
                AffineSet.from_parts(set.A, set.lower + t * low, set.upper + t * high, None, set.row_kinds)
                for t in (1.0, -1.0)
            )
            total += (half_distance(f, wider, metric) - half_distance(f, tighter, metric)) / (2 * step)
        torch.testing.assert_close(found[:, i], -total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=["single", "double"])
@pytest.mark.parametrize("measured", [False, True], ids=["euclidean", "metric"])
def test_degenerate_faces_have_multipliers_of_the_right_sign(dtype: torch.dtype, measured: bool):
    """Duplicates, rank loss, rows through one point: stationarity to rounding, no λ on a side without a bound."""
    eps = torch.finfo(dtype).eps
    for seed in range(250):
        set, f, _ = random_problem(seed, dtype)
        root = normal(seed, set.n, set.n)
        M = (root @ root.mT + 0.1 * torch.eye(set.n)).to(dtype) if measured else torch.eye(set.n, dtype=dtype)
        answer = project(f, set, metric=M if measured else None, search="active" if seed % 2 else "full")
        found, left = answer.multipliers, answer.residuals()
        size = (M.abs() @ (f.abs() + answer.value.abs()) + set.A.abs().mT @ found.abs()).amax()
        assert left.dual <= 100 * eps * size, seed
        reach = f.abs().amax() + answer.value.abs().amax() + 1
        assert left.gap <= 1000 * eps * reach * size, seed
        assert not found[answer.binding == 0].any(), seed
        free = set.lower != set.upper
        assert (found[free & (answer.active > 0)] >= 0).all() and (found[free & (answer.active < 0)] <= 0).all(), seed


@needs_data
def test_bounds_that_cross_by_rounding_have_multipliers_too():
    """The face is that of the compromise between both bounds; the multipliers come from the cone of both."""
    case = next(c for c in nasty_cases() if c["name"] == "l_greater_u_1ulp")
    set, f = set_of(case), torch.as_tensor(case["f"])
    answer = project(f, set)
    assert answer.multipliers.isfinite().all()
    assert answer.residuals().dual <= 1e-15 * f.abs().amax()


def test_they_equal_the_duals_of_another_solver():
    daqp = pytest.importorskip("daqp")
    set, f, M = polytope(20, batch=16, n=6, m=12)
    found = project(f, set, metric=M).multipliers
    sense = np.array([5 if kind == "=" else 0 for kind in set.row_kinds], dtype=np.int32)
    for i in range(len(f)):
        A, low, high = (t[i].numpy().copy() for t in (set.A, set.lower, set.upper))
        _, _, flag, info = daqp.solve(M[i].numpy().copy(), -(M[i] @ f[i]).numpy(), A, high, low, sense)
        assert flag > 0
        torch.testing.assert_close(found[i], torch.as_tensor(np.array(info["lam"])), rtol=1e-6, atol=1e-8)


# ------------------------------------------------------------------------------------------------ the gradient


@pytest.mark.parametrize("kind", ["euclidean", "matrix", "diagonal", "shared"])
def test_gradients(kind: str):
    set, f, M = polytope(30, batch=4, n=3, m=4)
    C, d = set.A[:, -1:], set.upper[:, -1:]
    A, upper = set.A[:, :-1], set.upper[:, :-1]
    metric = {"matrix": M, "shared": M[0], "diagonal": M.diagonal(dim1=-2, dim2=-1)}.get(kind)
    inputs = [t.clone().requires_grad_() for t in (f, A, upper, C, d, *(() if metric is None else (metric,)))]

    def value(f: Tensor, A: Tensor, b: Tensor, C: Tensor, d: Tensor, M: Tensor | None = None) -> Tensor:
        rows = AffineSet.inequality(A, b) & AffineSet.equality(C, d)
        return project(f, rows if M is None else rows.with_metric(M, diagonal=kind == "diagonal")).multipliers

    assert torch.autograd.gradcheck(value, inputs)
    assert torch.autograd.gradgradcheck(value, inputs)


def test_a_box_needs_no_factors_and_has_gradients():
    f = (3 * normal(1, 5, 4)).requires_grad_()
    upper = (normal(2, 4).abs() + 0.1).requires_grad_()
    value = lambda f, b: project(f, AffineSet.box(-1.0, b)).multipliers  # noqa: E731
    assert torch.autograd.gradcheck(value, (f, upper))
    found = value(f, upper).detach()
    torch.testing.assert_close(found, f.detach() - f.detach().clamp(torch.tensor(-1.0), upper.detach()))


@pytest.mark.parametrize("diagonal", [False, True], ids=["matrix", "diagonal"])
def test_a_nan_in_one_sample_leaves_the_gradient_of_a_shared_metric(diagonal: bool):
    set, f, M = polytope(30, batch=3, n=3, m=4)
    metric = (M[0].diagonal() if diagonal else M[0]).clone().requires_grad_()
    f[1, 0] = torch.nan
    answer = project(f, set, metric=metric, on_infeasible="nan")
    (slope,) = torch.autograd.grad(answer.multipliers[[0, 2]].sum(), metric)
    alone = project(
        f[[0, 2]],
        AffineSet.from_parts(set.A[[0, 2]], set.lower[[0, 2]], set.upper[[0, 2]], None, set.row_kinds),
        metric=metric,
    )
    assert slope.any()
    torch.testing.assert_close(slope, torch.autograd.grad(alone.multipliers.sum(), metric)[0])


def test_residuals_of_a_sample_without_multipliers_are_nan():
    """The gap too: it was that of the other terms."""
    set = AffineSet.inequality([[1.0, 0.0], [-1.0, 0.0]], [0.0, -1.0])
    left = project(torch.tensor([2.0, 0.0]), set, on_infeasible="nearest").residuals()
    assert left.dual.isnan() and left.gap.isnan()
    torch.testing.assert_close(left.primal, torch.tensor(0.5))


# ------------------------------------------------------------------------------------------------ around them


def test_shapes_names_and_samples_without_an_answer():
    set = AffineSet.inequality([[1.0, 1.0]], [1.0], names=["total"]) & AffineSet.box(0.0, None, dim=2)
    f = torch.tensor([[[3.0, 1.0], [0.2, 0.1]], [[0.0, -1.0], [2.0, 0.0]]])
    answer = project(f, set)
    assert answer.multipliers.shape == (2, 2, 3)
    assert answer.residuals().gap.shape == (2, 2)
    assert answer.names_of_binding() == [
        ("total (upper bound)", "row 2 (lower bound)"),
        (),
        ("row 1 (lower bound)", "row 2 (lower bound)"),
        ("total (upper bound)", "row 2 (lower bound)"),
    ]
    one = project(f[0, 0], set)
    assert torch.equal(one.multipliers, answer.multipliers[0, 0])
    empty = AffineSet([[1.0]], torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [1.0]]))
    lost = project(torch.tensor([[2.0], [2.0]]), empty, on_infeasible="nearest")
    assert lost.multipliers[0].isnan().all() and lost.multipliers[1] == 1.0


def test_where_they_do_not_exist():
    set, f, _ = polytope(40)
    for options in ({"w": f}, {"norm": 1}, {"search": "lite"}):
        with pytest.raises(ConstraintError, match="Only the nearest point"):
            _ = project(f, set, **options).multipliers


@pytest.mark.parametrize("exponent", [600, -600])
def test_where_rows_meet_far_beyond_the_squares_of_numbers(exponent: int):
    """Beside an equality, a row nearly parallel to it holds the point; the face has another row that touches it."""
    unit = 2.0**exponent
    beside = [float.fromhex("-0x1.fffffefc1866dp+0"), float.fromhex("-0x1.0000008588949p+1")]
    A = torch.tensor([[-2.0, -2.0], [-1.0, 2.0], beside], dtype=DOUBLE)
    upper = torch.tensor([-2.0, 5.0, -2.000000184876553], dtype=DOUBLE)
    lower = torch.tensor([-2.0, -INF, -INF], dtype=DOUBLE)
    f = torch.tensor([4.0, -1.0], dtype=DOUBLE)
    answer = project(f * unit, AffineSet(A, lower * unit, upper * unit))
    assert answer.active.tolist() == [1, 1, 0]
    torch.testing.assert_close(answer.multipliers @ A / unit, f - answer.value / unit, rtol=1e-8, atol=1e-8)


def test_second_derivatives_beside_samples_without_multipliers():
    """The rows in conflict of the first sample depend on each other; the second one does not notice."""
    upper = torch.tensor([[-2.0], [2.0]], dtype=DOUBLE)
    weak = AffineSet.inequality(torch.tensor([[1.0, 0.0]], dtype=DOUBLE), upper).soft()
    set = AffineSet.box(-1.0, 1.0, dim=2) & weak
    f = torch.tensor([[3.0, 0.0], [3.0, 0.0]], dtype=DOUBLE, requires_grad=True)
    answer = project(f, set)
    assert answer.status.tolist() == [Status.RELAXED, Status.PROJECTED]
    (slope,) = torch.autograd.grad(answer.multipliers[1].square().sum(), f, create_graph=True)
    assert slope.tolist() == [[0.0, 0.0], [4.0, 0.0]]
    assert torch.autograd.grad(slope.sum(), f)[0].tolist() == [[0.0, 0.0], [2.0, 0.0]]


def test_residuals_see_what_is_wrong():
    """A point off its row, a multiplier of the wrong size, one on a side without a bound."""
    set = AffineSet.inequality([[1.0, 0.0]], [1.0]).to(DOUBLE)
    Q, q = torch.ones(1, 2, dtype=DOUBLE), torch.tensor([-3.0, 0.0], dtype=DOUBLE)
    y, one = torch.tensor([1.0, 0.0], dtype=DOUBLE), torch.tensor([2.0], dtype=DOUBLE)
    good = residuals(y, one, set, Q, q)
    assert good.primal == good.dual == good.gap == 0
    assert residuals(2 * y, one, set, Q, q).primal == 1
    assert residuals(y, 2 * one, set, Q, q).dual == 2
    assert residuals(y, 2 * one, set, Q, q).gap == 2
    assert residuals(y, -one, set, Q, q).dual >= 2


def test_residuals_of_rows_with_a_weight_count_their_slacks():
    """At the optimum a row with a weight is exceeded, at its price: no residual."""
    weak = AffineSet.inequality([[1.0, 1.0]], [-1.5]).soft(weight=2.0)
    set = (AffineSet.box(-1.0, 1.0, dim=2) & weak).to(DOUBLE)
    for f in (torch.tensor([0.5, 0.6], dtype=DOUBLE), 2 * normal(7, 3, 4, 2)):
        answer = project(f, set)
        found = answer.residuals()
        assert answer.violation.max() > 0.1
        assert found.gap.shape == f.shape[:-1]
        assert max(float(part.max()) for part in (found.primal, found.dual, found.gap)) < 1e-14
