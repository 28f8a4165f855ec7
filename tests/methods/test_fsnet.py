from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from caffnet import AffineSet
from caffnet.methods import FSNet


def test_violation_decreases_with_the_iterations(mixed: AffineSet):
    f = 3 * torch.randn(100, 5, dtype=torch.float64)
    costs = [
        float(mixed.violation(FSNet(nn.Identity(), mixed, iterations=k).eval()(f)).square().sum())
        for k in (1, 3, 10, 50)
    ]
    assert all(later < earlier for earlier, later in pairwise(costs))
    assert costs[-1] / 100 < 1e-9  # its own stopping rule: the mean squared violation of a sample
    assert mixed.violation(FSNet(nn.Identity(), mixed).eval()(f)).max() > 0  # to a tolerance, not exactly


def test_a_feasible_raw_output_stays(polytope: AffineSet):
    f = 0.5 * torch.nn.functional.normalize(torch.randn(20, 3, dtype=torch.float64), dim=-1)
    assert torch.equal(FSNet(nn.Identity(), polytope)(f), f)


def test_the_first_move_is_the_described_one():
    # phi = 1000 (y - 1)^2 at y = 2: gradient 2000, direction -200, which backtracks until Armijo holds
    method = FSNet(nn.Identity(), AffineSet.inequality([[1.0]], [1.0]), iterations=1)
    y = method(torch.tensor([[2.0]], dtype=torch.float32))
    step = next(0.5**k for k in range(20) if max(2 - 200 * 0.5**k - 1, 0) ** 2 * 1000 <= 1000 - 1e-4 * 0.5**k * 400_000)
    torch.testing.assert_close(y, torch.tensor([[2 - 200 * step]]))


@pytest.mark.parametrize("unrolled", [0, 2, 50])
def test_backpropagation_is_truncated(unrolled: int, mixed: AffineSet):
    method = FSNet(nn.Identity(), mixed, iterations=12, unrolled=unrolled)
    f = 2 * torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    y = method(f)
    (gradient,) = torch.autograd.grad(y.sum(), f)
    assert gradient.isfinite().all()
    if unrolled == 0:  # the whole search is a constant
        assert torch.equal(gradient, torch.ones_like(f))


def test_the_loss_pays_for_the_move_and_rescues():
    method = FSNet(nn.Identity(), AffineSet.inequality(torch.ones(1, 1, dtype=torch.float64), 0.0))
    output = method.run(torch.tensor([[2.0]], dtype=torch.float64))
    moved = (output.y - output.raw).square().mean()
    torch.testing.assert_close(method.loss(torch.tensor(1.0, dtype=torch.float64), output), 1 + 5 * moved)
    far = method.run(torch.tensor([[100.0]], dtype=torch.float64))
    moved = (far.y - far.raw).square().mean()
    torch.testing.assert_close(method.loss(torch.zeros((), dtype=torch.float64), far), 5 * moved + 10 * 1e4)
