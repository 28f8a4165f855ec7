from __future__ import annotations

import pytest
import torch
from torch import nn

from caffnet import AffineSet
from caffnet.methods import Penalty, Soft, fit


def test_the_output_is_the_raw_output():
    f = torch.randn(4, 2)
    assert torch.equal(Soft(nn.Identity(), AffineSet.box(0.0, 0.1, dim=2))(f), f)


def test_the_loss_is_the_papers():
    A, b = torch.randn(5, 3), torch.randn(5)
    method = Soft(nn.Identity(), AffineSet.inequality(A, b))
    output = method.run(torch.randn(7, 3))
    expected = 2.0 + 100 * torch.relu(output.y @ A.T - b).sum(-1).mean()
    torch.testing.assert_close(method.loss(torch.tensor(2.0), output), expected)


def test_the_loss_is_that_of_the_papers_code():
    A, b, C, d = torch.randn(5, 3), torch.randn(5), torch.randn(1, 3), torch.randn(1)
    limits = AffineSet.inequality(A, b) & AffineSet.equality(C, d)
    method = Soft(nn.Identity(), limits, penalty=Penalty(100.0, power=2, batch="sum"))
    output = method.run(torch.randn(7, 3))
    rows, right = torch.cat([A, C, -C]), torch.cat([b, d, -d])
    expected = 100 * torch.relu(output.y @ rows.T - right).square().sum()
    torch.testing.assert_close(method.loss(torch.tensor(0.0), output), expected)


def test_the_penalty_pulls_the_output_into_the_set():
    limits = AffineSet.box(0.0, 1.0, dim=2)
    x = torch.linspace(-1, 1, 20).unsqueeze(-1)
    worst = []
    for weight in (0.0, 1.0, 100.0):
        method = Soft(nn.Linear(1, 2), limits, penalty=Penalty(weight, power=2))
        fit(method, x, lambda y, _: (y - 2).square().sum(-1).mean(), epochs=300, lr=0.05)
        worst.append(float(limits.violation(method(x).detach()).max()))
    # the minimum of (y - 2)² + weight (y - 1)² is at y = 1 + 1 / (1 + weight): a price, not a wall
    assert worst == pytest.approx([1.0, 0.5, 1 / 101], abs=0.02)
    assert worst[-1] > 0
