from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from caffnet import AffineSet, FeedForward, InfeasibleError
from caffnet.methods import RAYEN
from caffnet.methods.linear_programs import implicit_equalities, interior_point, irredundant, one_sided
from caffnet.methods.rayen import presolve


def test_it_is_always_inside(polytope: AffineSet):
    for size in (0.0, 1e-3, 1.0, 1e6):
        y = RAYEN(nn.Identity(), polytope, create_map=False)(size * torch.randn(1000, 3, dtype=torch.float64))
        assert polytope.violation(y).max() < 1e-14


def test_it_reaches_the_boundary_in_every_direction(polytope: AffineSet):
    method = RAYEN(nn.Identity(), polytope, create_map=False)
    y = method(1e3 * torch.randn(1000, 3, dtype=torch.float64))
    slack = (polytope.upper - y @ polytope.A.T).amin(-1)
    assert slack.abs().max() < 1e-12


def test_the_formula_is_the_published_one(polytope: AffineSet):
    method = RAYEN(nn.Identity(), polytope, create_map=False)
    f = 2 * torch.randn(200, 3, dtype=torch.float64)
    q = (f - method.y_0) @ method.N
    length = q.norm(dim=-1, keepdim=True)
    kappa = torch.relu((q / length @ method.D.T).amax(-1, keepdim=True))
    z = torch.minimum(1 / kappa, length) * q / length
    torch.testing.assert_close(method(f), method.y_0 + z @ method.N.T)


def test_a_raw_output_in_the_set_stays(polytope: AffineSet):
    f = 0.9 * torch.nn.functional.normalize(torch.randn(100, 3, dtype=torch.float64), dim=-1)
    torch.testing.assert_close(RAYEN(nn.Identity(), polytope, create_map=False)(f), f)


def test_the_map_of_the_published_layer_is_trained(polytope: AffineSet, dtype: torch.dtype):
    method = RAYEN(FeedForward(2, 3, hidden=8).to(dtype), polytope.to(dtype))
    y = method(torch.zeros(4, 2, dtype=dtype))
    y.sum().backward()
    assert method.map is not None
    assert method.map.weight.grad is not None
    assert method.map.weight.grad.isfinite().all()


def test_equalities_are_solved_by_coordinates(mixed: AffineSet):
    y = RAYEN(nn.Identity(), mixed, create_map=False)(10 * torch.randn(500, 5, dtype=torch.float64))
    assert mixed.violation(y).max() < 1e-13


def test_an_empty_interior_becomes_an_equality():
    # y0 + y1 <= 1 and >= 1 as two rows, y0 >= 0, y1 >= 0: a segment in the plane
    limits = AffineSet.inequality([[1.0, 1.0], [-1.0, -1.0], [-1.0, 0.0], [0.0, -1.0]], [1.0, -1.0, 0.0, 0.0])
    inside = presolve(limits)
    assert inside.N.shape == (2, 1)
    y = RAYEN(nn.Identity(), limits, create_map=False)(5 * torch.randn(200, 2))
    assert limits.violation(y).max() < 1e-6


def test_a_single_point_is_found():
    limits = AffineSet.box(0.0, None, dim=2) & AffineSet.inequality([[1.0, 1.0]], [0.0])
    y = RAYEN(nn.Identity(), limits)(torch.randn(5, 2))
    torch.testing.assert_close(y, torch.zeros(5, 2))


def test_redundant_rows_are_dropped():
    A, b, C, d = one_sided(AffineSet.box(0.0, 1.0, dim=2) & AffineSet.inequality([[1.0, 1.0], [2.0, 0.0]], [5.0, 2.0]))
    kept, _ = irredundant(A, b, C, d)
    assert len(A) == 6
    assert len(kept) == 4


def test_implicit_equalities_and_middle():
    A, b = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]), np.array([1.0, -1.0, 4.0])
    none = np.zeros((0, 2)), np.zeros(0)
    assert implicit_equalities(A, b, *none).tolist() == [True, True, False]
    point, room = interior_point(np.array([[1.0], [-1.0]]), np.array([0.3, 0.1]))
    assert point == pytest.approx([0.1], abs=0.01)  # of the points nearly that deep, the one nearest to the origin
    assert room == pytest.approx(0.2, abs=0.01)
    point, _ = interior_point(np.array([[1.0, 0.0]]), np.array([4.0]))  # a half plane is entered near the origin
    assert np.abs(point).max() < 1e-9


def test_an_empty_set_is_refused():
    with pytest.raises(InfeasibleError, match="The feasible set is empty: a linear program proves it"):
        RAYEN(nn.Identity(), AffineSet.inequality([[1.0], [-1.0]], [0.0, -1.0]))
    with pytest.raises(InfeasibleError, match="a row of zeros excludes every point"):
        RAYEN(nn.Identity(), AffineSet.inequality([[0.0, 0.0]], [-1.0]))


def test_rows_parallel_but_for_rounding_do_not_send_the_middle_away():
    # four rows of rank two in float32: in exact arithmetic they are independent, by 1e-8
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        A = torch.randn(4, 2, generator=g) @ torch.randn(2, 4, generator=g)
        A = A / A.norm(dim=-1, keepdim=True)
        limits = AffineSet.inequality(A, A @ torch.randn(4, generator=g) + 0.3)
        method = RAYEN(nn.Identity(), limits, create_map=False)
        assert method.y_0.norm() < 100
        assert limits.violation(method(5 * torch.randn(100, 4, generator=g))).max() < 1e-5
