from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from caffnet import AffineSet, ConstraintError, InfeasibleError
from caffnet.errors import BudgetError
from caffnet.methods import CDGM


def test_it_is_right_where_the_public_code_violates_by_two():
    # y1 - y0 >= 4 and -2 y1 - y0 >= -10: feasible for y0 <= 2/3 only
    limits = AffineSet.inequality(torch.tensor([[1.0, -1.0], [1.0, 2.0]], dtype=torch.float64), [-4.0, 10.0])
    f = 10 * torch.randn(2000, 2, dtype=torch.float64)
    y = CDGM(nn.Identity(), limits)(f)
    assert limits.violation(y).max() < 1e-14
    assert y[:, 0].max() == pytest.approx(2 / 3)
    torch.testing.assert_close(y[:, 0], f[:, 0].clamp(max=2 / 3))
    # the forgotten factor: 2 (y0 - y1) <= 2 * (-4), added to y0 + 2 y1 <= 10, gives y0 <= 2/3; with -4 alone y0 <= 2
    wrong = f[:, 0].clamp(max=2.0)
    y1 = f[:, 1].clamp(min=wrong + 4).minimum((10 - wrong) / 2)
    assert limits.violation(torch.stack([wrong, y1], -1)).max() == pytest.approx(2.0)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_every_order_satisfies_many_rows(polytope: AffineSet, order: tuple[int, ...]):
    y = CDGM(nn.Identity(), polytope, order=order)(3 * torch.randn(500, 3, dtype=torch.float64))
    assert polytope.violation(y).max() < 1e-12


def test_outputs_are_moved_as_little_as_their_own_bounds_ask(polytope: AffineSet):
    f = torch.randn(200, 3, dtype=torch.float64)
    y = CDGM(nn.Identity(), polytope)(f)
    feasible = polytope.contains(f)
    assert feasible.any()
    torch.testing.assert_close(y[feasible], f[feasible])
    # the first output only obeys its range over the whole set
    low, high = (
        float(CDGM(nn.Identity(), polytope)(torch.full((1, 3), s, dtype=torch.float64))[0, 0]) for s in (-1e3, 1e3)
    )
    torch.testing.assert_close(y[:, 0], f[:, 0].clamp(low, high))


def test_equalities_are_two_inequalities(mixed: AffineSet):
    y = CDGM(nn.Identity(), mixed)(3 * torch.randn(300, 5, dtype=torch.float64))
    assert mixed.violation(y).max() < 1e-10


def test_gradients_are_those_of_clamping(polytope: AffineSet):
    f = torch.randn(10, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(CDGM(nn.Identity(), polytope), f)


def test_an_empty_set_is_refused():
    with pytest.raises(InfeasibleError, match="elimination ends in 0 <= a negative number"):
        CDGM(nn.Identity(), AffineSet.inequality([[1.0, 0.0], [-1.0, 0.0]], [0.0, -1.0]))
    with pytest.raises(InfeasibleError, match=r"a lower bound is \+inf or an upper one -inf"):
        CDGM(nn.Identity(), AffineSet([[1.0]], float("inf"), float("inf")))


def test_too_many_rows_are_refused(polytope: AffineSet):
    with pytest.raises(BudgetError, match=r"elimination of output 2 makes \d+ rows, at most 10 .*caffnet-ff"):
        CDGM(nn.Identity(), polytope, max_rows=10)


@pytest.mark.parametrize("order", ["alphabetic", [0, 0, 1], [0, 1]])
def test_an_order_is_a_permutation(polytope: AffineSet, order: object):
    with pytest.raises(ConstraintError, match=r"order must be 'given', 'random' or a permutation of 0..2, got"):
        CDGM(nn.Identity(), polytope, order=order)  # pyright: ignore[reportArgumentType]
    assert sorted(CDGM(nn.Identity(), polytope, order="random", seed=3).order) == [0, 1, 2]


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1.0, 1e12, 1e30])
def test_no_size_is_special(mixed: AffineSet, size: float):
    f = 3 * torch.randn(100, 5, dtype=torch.float64)
    g = torch.Generator().manual_seed(0)
    unit = 10 ** (60 * torch.rand(8, dtype=torch.float64, generator=g) - 30)
    lower, upper = size * unit * mixed.lower, size * unit * mixed.upper
    limits = AffineSet.from_parts(unit.unsqueeze(-1) * mixed.A, lower, upper, None, mixed.row_kinds)
    y = CDGM(nn.Identity(), limits)(size * f) / size
    torch.testing.assert_close(y, CDGM(nn.Identity(), mixed)(f), atol=1e-9, rtol=0)
    # a gap is one at any size, also beside rows of another
    for gap in (1.0, 1e-12):
        b = size * torch.tensor([1.0, 1.0, -gap, -gap], dtype=torch.float64)
        rows = torch.tensor([[0.0, 1.0], [0.0, -1.0], [1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
        with pytest.raises(InfeasibleError, match="elimination ends in 0 <= a negative number"):
            CDGM(nn.Identity(), AffineSet.inequality(rows, b))


def test_a_small_coefficient_is_no_noise(dtype: torch.dtype):
    # y0 >= 1e-13 y1 and y2 >= y0: eliminating y0 first leaves y2 >= 1e-13 y1, in which nothing cancelled
    rows = torch.tensor([[-1.0, 1e-13, 0.0], [1.0, 0.0, -1.0]], dtype=dtype)
    limits = AffineSet.inequality(rows, torch.zeros(2, dtype=dtype))
    y = CDGM(nn.Identity(), limits, order=[1, 2, 0])(torch.tensor([[0.0, 1e13, 0.0]], dtype=dtype))
    torch.testing.assert_close(y, torch.tensor([[1.0, 1e13, 1.0]], dtype=dtype))


def test_what_cancels_but_for_rounding_is_noise(dtype: torch.dtype):
    # 0.1 + 0.2 is not 0.3: the third row is the sum of the others but for rounding, and opposite to it
    rows = torch.tensor([[0.1, 0.7, 0.3], [0.2, 0.6, 0.5]], dtype=dtype)
    rows = torch.cat([rows, -rows.sum(0, keepdim=True)])
    limits = AffineSet.inequality(rows, rows @ torch.tensor([1.1, 0.3, 1.7], dtype=dtype))
    y = CDGM(nn.Identity(), limits)(torch.randn(50, 3, dtype=dtype))
    assert limits.violation(y).max() < 500 * torch.finfo(dtype).eps
