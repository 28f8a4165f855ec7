from __future__ import annotations

import pytest
import torch
from torch import nn

from caffnet import AffineSet, FeedForward
from caffnet.methods import HardNet, UnsupportedError, fit


def test_it_is_its_closed_form(dtype: torch.dtype):
    A = torch.randn(3, 5, dtype=dtype)
    lower, upper = -torch.rand(3, dtype=dtype), torch.rand(3, dtype=dtype)
    f = 3 * torch.randn(50, 5, dtype=dtype)
    y = HardNet(nn.Identity(), AffineSet(A, lower, upper))(f)
    value = f @ A.T
    expected = f + (torch.relu(lower - value) - torch.relu(value - upper)) @ torch.linalg.pinv(A).T
    torch.testing.assert_close(y, expected)
    # violated rows land on their bound, the others keep their value
    torch.testing.assert_close(y @ A.T, value.clamp(lower, upper), atol=1e-4, rtol=1e-4)


def test_rows_of_the_input_give_the_same_formula():
    net = FeedForward(4, 3, hidden=8, layers=1).double()
    x = torch.randn(20, 4, dtype=torch.float64)
    A, b = torch.randn(20, 2, 3, dtype=torch.float64), torch.randn(20, 2, dtype=torch.float64)
    method = HardNet(net, lambda _: AffineSet.inequality(A, b))
    f = net(x)
    excess = torch.relu((A @ f.unsqueeze(-1)).squeeze(-1) - b).unsqueeze(-1)
    torch.testing.assert_close(method(x), f - (torch.linalg.pinv(A) @ excess).squeeze(-1))
    assert method.set_at(x).violation(method(x)).max() < 1e-12
    method(x).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_a_sample_that_is_no_number_stays_without_an_answer_and_harms_no_other():
    A, b, f = torch.randn(4, 1, 3), torch.randn(4, 1), torch.randn(4, 3)
    expected = HardNet(nn.Identity(), lambda _: AffineSet.inequality(A, b))(f)
    A_broken, f_broken = A.clone(), f.clone()
    A_broken[1, 0, 0], f_broken[2, 0] = torch.nan, torch.inf
    y = HardNet(nn.Identity(), lambda _: AffineSet.inequality(A_broken, b), check=False)(f_broken)
    assert y[1:3].isnan().all()
    # Not to the last bit: LAPACK's sums depend on where in memory an operand happens to lie.
    torch.testing.assert_close(y[[0, 3]], expected[[0, 3]])


def test_infinite_bounds_have_finite_gradients():
    f = torch.randn(4, 2, requires_grad=True)
    HardNet(nn.Identity(), AffineSet(torch.eye(2), None, torch.tensor([0.0, float("inf")])))(f).sum().backward()
    assert f.grad is not None
    assert f.grad.isfinite().all()


def test_it_leaves_the_set_on_dependent_rows_as_the_paper_says():
    # Two parallel half-planes, y1 <= 1 and y1 <= 0: the pseudo-inverse lands between them.
    limits = AffineSet.inequality([[1.0, 0.0], [1.0, 0.0]], [1.0, 0.0])
    with pytest.raises(UnsupportedError, match=r"rows of A are linearly dependent; it needs rows of full rank. Use .*"):
        HardNet(nn.Identity(), limits)
    y = HardNet(nn.Identity(), limits, check=False)(torch.tensor([[2.0, 0.0]]))
    torch.testing.assert_close(y, torch.tensor([[0.5, 0.0]]))
    assert limits.violation(y).max() == 0.5


def test_it_leaves_the_set_with_more_rows_than_outputs(polytope: AffineSet):
    with pytest.raises(UnsupportedError, match="16 rows for 3 outputs; it needs at most as many rows as outputs"):
        HardNet(nn.Identity(), polytope)
    y = HardNet(nn.Identity(), polytope, check=False)(3 * torch.randn(500, 3, dtype=torch.float64))
    assert (polytope.violation(y).amax(-1) > 0.1).double().mean() > 0.3


def test_dependent_rows_of_the_input_are_refused_when_they_come():
    method = HardNet(nn.Identity(), lambda x: AffineSet.inequality(torch.ones(2, 2), x))
    with pytest.raises(UnsupportedError, match="linearly dependent"):
        method(torch.zeros(1, 2))


def test_the_first_epochs_are_soft():
    limits = AffineSet.box(0.0, 1.0, dim=2)
    method = HardNet(nn.Linear(2, 2), limits, soft_epochs=2)
    x = 5 * torch.randn(30, 2)
    method.start_epoch(1)
    assert limits.violation(method.train()(x)).max() > 0
    assert limits.violation(method.eval()(x)).max() < 1e-6  # evaluation always has it
    method.start_epoch(2)
    assert limits.violation(method.train()(x)).max() < 1e-6
    fit(method, x, lambda y, _: y.square().mean(), epochs=3)
    assert method.enabled


def test_rank_is_judged_by_the_precision_of_the_data():
    A = torch.randn(4, 2) @ torch.randn(2, 4)  # rank two, up to float32 rounding
    method = HardNet(nn.Identity(), AffineSet.inequality(A, torch.zeros(4)), check=False)
    torch.testing.assert_close(method.inverse, torch.linalg.pinv(A), atol=1e-4, rtol=1e-3)
    with pytest.raises(UnsupportedError, match="linearly dependent"):
        HardNet(nn.Identity(), AffineSet.inequality(A, torch.zeros(4)))


SIZES = {torch.float32: (1e-15, 1e-7, 1.0, 1e7, 1e15), torch.float64: (1e-30, 1e-16, 1.0, 1e16, 1e30)}


def relative_violation(limits: AffineSet, y: torch.Tensor) -> float:
    """The largest violation in units of what rounding can explain: ``eps (|a|_1 |y|_inf + |b|)``."""
    size = limits.A.abs().sum(-1) * y.abs().amax(-1, keepdim=True) + limits.upper.abs()
    return float((limits.violation(y) / (torch.finfo(y.dtype).eps * size)).max())


@pytest.mark.parametrize("of_x", [False, True], ids=["fixed", "of x"])
@pytest.mark.parametrize("check", [True, False])
def test_the_unit_of_a_row_does_not_matter(dtype: torch.dtype, of_x: bool, check: bool):
    g = torch.Generator().manual_seed(1)
    A, b = torch.randn(5, 6, dtype=dtype, generator=g), torch.randn(5, dtype=dtype, generator=g)
    f = 3 * torch.randn(50, 6, dtype=dtype, generator=g)

    def answer(size: torch.Tensor) -> tuple[AffineSet, torch.Tensor]:
        limits = AffineSet.inequality(size.unsqueeze(-1) * A, size * b)
        return limits, HardNet(nn.Identity(), (lambda _: limits) if of_x else limits, check=check)(f)

    _, expected = answer(torch.ones(5, dtype=dtype))
    for shift in range(5):
        limits, y = answer(torch.tensor(SIZES[dtype], dtype=dtype).roll(shift))
        assert relative_violation(limits, y) < 50
        torch.testing.assert_close(y, expected)


def test_rows_at_the_end_of_the_numbers_are_judged_like_others(dtype: torch.dtype):
    tiny, huge = torch.finfo(dtype).tiny, torch.finfo(dtype).max / 8
    A = torch.tensor([[tiny, 0.0, 2 * tiny], [0.0, huge, huge]], dtype=dtype)
    f = torch.randn(20, 3, dtype=dtype)
    y = HardNet(nn.Identity(), AffineSet.inequality(A, torch.zeros(2, dtype=dtype)))(f)
    unit = AffineSet.inequality(torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]], dtype=dtype), 0.0)
    assert unit.violation(y).max() < 100 * torch.finfo(dtype).eps
    with pytest.raises(UnsupportedError, match="linearly dependent"):
        HardNet(nn.Identity(), AffineSet.inequality(torch.stack([A[0], 3 * A[0]]), torch.zeros(2, dtype=dtype)))


def test_the_size_of_a_dependent_row_stays_its_weight():
    """The published formula: with dependent rows the larger one wins, so there the rows are not scaled."""
    limits = AffineSet.inequality([[3.0, 0.0], [1.0, 0.0]], [0.0, -1.0])  # y0 <= 0 and y0 <= -1
    for constraint in (limits, lambda _: limits.to(torch.float32)):
        y = HardNet(nn.Identity(), constraint, check=False)(torch.tensor([[0.0, 5.0]]))
        torch.testing.assert_close(y, torch.tensor([[-0.1, 5.0]]))
