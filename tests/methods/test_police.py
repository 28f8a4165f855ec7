from __future__ import annotations

import pytest
import torch
from torch import nn

from caffnet import AffineSet, ConstraintError, FeedForward, Transformer
from caffnet.methods import POLICE, AffineOn, UnsupportedError
from caffnet.methods.police import Abs


def hull(vertices: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    weights = torch.distributions.Dirichlet(torch.ones(len(vertices), dtype=vertices.dtype)).sample(torch.Size([count]))
    return weights, weights @ vertices


@pytest.mark.parametrize("hinge", [nn.ReLU(), nn.LeakyReLU(0.2), Abs()], ids=["relu", "leaky", "abs"])
def test_the_map_is_affine_on_the_region(hinge: nn.Module):
    net = nn.Sequential(nn.Linear(2, 64), hinge, nn.Linear(64, 64), hinge, nn.Linear(64, 3)).double()
    vertices = torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 1.0], [0.5, 2.0], [-1.0, 1.0]], dtype=torch.float64)
    method = POLICE(net, AffineOn(vertices))
    weights, inside = hull(vertices, 1000)
    at_vertices = method(vertices)
    torch.testing.assert_close(method(inside), weights @ at_vertices, atol=1e-11, rtol=0)
    assert (net(inside) - weights @ net(vertices)).abs().max() > 1e-3  # the network alone is not
    # an affine map has the same derivative everywhere on the region
    jacobian = [torch.autograd.functional.jacobian(lambda x: method(x[None])[0], point) for point in inside[:5]]
    for other in jacobian[1:]:
        torch.testing.assert_close(other, jacobian[0])


def test_outside_it_is_still_a_curved_network():
    net = FeedForward(2, 1, hidden=64).double()
    method = POLICE(net, AffineOn(torch.eye(3, 2, dtype=torch.float64)))
    far = torch.tensor([[-5.0, -5.0], [-4.0, -6.0]], dtype=torch.float64)
    middle = method(far.mean(0, keepdim=True)) - method(far).mean(0)
    assert middle.abs() > 1e-9


def test_it_stays_affine_while_it_learns():
    net = FeedForward(2, 1, hidden=32, layers=2).double()
    vertices = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    method = POLICE(net, AffineOn(vertices))
    optimizer = torch.optim.AdamW(method.parameters(), lr=1e-3, weight_decay=1e-5)
    x = 4 * torch.rand(200, 2, dtype=torch.float64) - 2
    losses = []
    for _ in range(50):
        loss = (method(x) - x.square().sum(-1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    weights, inside = hull(vertices, 100)
    torch.testing.assert_close(method(inside), weights @ method(vertices), atol=1e-12, rtol=0)


def test_a_unit_with_one_sign_is_left_alone():
    first = nn.Linear(1, 1)
    nn.init.constant_(first.bias, 100.0)
    net = nn.Sequential(first, nn.ReLU(), nn.Linear(1, 1))
    method = POLICE(net, AffineOn(torch.tensor([[-1.0], [1.0]])))
    x = torch.linspace(-1, 1, 5).unsqueeze(-1)
    assert torch.equal(method(x), net(x))


def test_a_set_is_refused():
    with pytest.raises(
        UnsupportedError, match=r"got AffineSet, a condition on the outputs; it needs AffineOn\(vertices\)"
    ):
        POLICE(FeedForward(2, 2), AffineSet.box(0.0, 1.0, dim=2))  # pyright: ignore[reportArgumentType]


def test_other_networks_are_refused():
    with pytest.raises(ConstraintError, match=r"nn.Sequential of Linear, ReLU, LeakyReLU, .* got Transformer"):
        POLICE(Transformer(2, 2), AffineOn(torch.eye(3, 2)))
    with pytest.raises(ConstraintError, match=r"at least one nn\.Linear"):
        POLICE(nn.Sequential(nn.ReLU()), AffineOn(torch.eye(3, 2)))


def test_units_without_a_hinge_are_not_shifted():
    linear, region, x = nn.Linear(2, 3), AffineOn(torch.randn(4, 2)), torch.randn(5, 2)
    for layers in ([linear], [linear, nn.Identity()]):
        torch.testing.assert_close(POLICE(nn.Sequential(*layers), region)(x), linear(x))


@pytest.mark.parametrize("vertices", [torch.zeros(3, 5), torch.zeros(2), torch.zeros(0, 2), [[0.0, 0.0]]])
def test_vertices_are_points_of_the_input(vertices):
    with pytest.raises(ConstraintError, match=r"vertices as a tensor of shape \(v, 2\), v at least 1, got"):
        POLICE(nn.Sequential(nn.Linear(2, 3)), AffineOn(vertices))
