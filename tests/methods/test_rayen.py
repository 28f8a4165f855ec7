from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from caffnet import AffineSet, ConstraintError, FeedForward, InfeasibleError
from caffnet.methods import RAYEN
from caffnet.methods.linear_programs import (
    Deepest,
    deepest,
    irredundant,
    nearest_deep_point,
    one_sided,
    without_repeats,
)
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
    # a row far away, one that repeats y0 <= 1 in other units, and one that cuts off nothing but the corner (1, 1)
    more = AffineSet.inequality([[1.0, 2.0], [3.0, 0.0], [1.0, 1.0]], [5.0, 3.0, 2.0])
    A, b, _, _ = one_sided(AffineSet.box(0.0, 1.0, dim=2) & more)
    assert len(A) == 7
    A, b = without_repeats(A, b, 1e-15)
    assert len(A) == 6
    for point in ([0.5, 0.5], [0.9, 0.1]):
        assert irredundant(A, b - A @ np.array(point)).sum() == 4
    tighter = b - 1e-9 * (np.abs(A).min(axis=1) > 0.5)  # now it cuts off a part
    assert irredundant(A, tighter - A @ np.array([0.5, 0.5])).sum() == 5


def no_noise(y: np.ndarray) -> np.ndarray:
    return np.zeros(1)


def test_flat_rows_and_middle():
    A, b = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]), np.array([1.0, -1.0, 4.0])
    assert deepest(A, b, lambda y: np.full(3, 1e-15)).flat.tolist() == [True, True, False]
    A, b = np.array([[1.0], [-1.0]]), np.array([0.3, 0.1])
    found = deepest(A, b, no_noise)
    assert found.unit == 0.1
    assert found.room == pytest.approx(0.05)  # half a unit is enough
    # of the points nearly that deep, the one nearest to the origin
    assert nearest_deep_point(A, b, found, np.eye(1), np.zeros(1)) == pytest.approx([0.0])
    A, b = np.array([[1.0, 0.0]]), np.array([4.0])  # a half plane is entered near the origin
    point = nearest_deep_point(A, b, deepest(A, b, no_noise), np.eye(2), np.zeros(2))
    assert np.abs(point).max() < 1e-9


def test_an_empty_set_is_refused():
    with pytest.raises(InfeasibleError, match="The feasible set is empty: a linear program proves it"):
        RAYEN(nn.Identity(), AffineSet.inequality([[1.0], [-1.0]], [0.0, -1.0]))
    with pytest.raises(InfeasibleError, match="a row of zeros excludes every point"):
        RAYEN(nn.Identity(), AffineSet.inequality([[0.0, 0.0]], [-1.0]))
    with pytest.raises(InfeasibleError, match=r"a lower bound is \+inf or an upper one -inf"):
        RAYEN(nn.Identity(), AffineSet([[1.0]], float("inf"), float("inf")))
    with pytest.raises(InfeasibleError, match="the equalities contradict each other"):
        RAYEN(nn.Identity(), AffineSet.equality([[1.0, 2.0], [3.0, 6.0]], [1.0, 4.0]))
    line = AffineSet.equality([[1.0, 1.0]], [1.0])
    with pytest.raises(InfeasibleError, match="the equalities exclude the rest"):
        RAYEN(nn.Identity(), line & AffineSet.inequality([[-2.0, -2.0]], [-3.0]))


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


# ------------------------------------------------------------------------------------------- units, sizes and places

SIZES = {torch.float32: (1e-15, 1e-9, 1.0, 1e9, 1e15), torch.float64: (1e-30, 1e-16, 1e-9, 1.0, 1e9, 1e30)}


def cut_square(size: float, dtype: torch.dtype = torch.float64, at: tuple[float, float] = (0.0, 0.0)) -> AffineSet:
    """A square of half width `size` around `at`; the fifth row cuts off a corner, 1.25 % of it."""
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [1.0, 1.0]], dtype=dtype)
    right = size * torch.tensor([1.0, 1.0, 1.0, 1.0, 1.6838], dtype=dtype)
    return AffineSet.inequality(rows, right + rows @ torch.tensor(at, dtype=dtype))


def test_no_part_of_a_small_or_large_set_is_lost_and_none_is_added(dtype: torch.dtype):
    g = torch.Generator().manual_seed(0)
    f = 10 * torch.nn.functional.normalize(torch.randn(500, 2, dtype=dtype, generator=g), dim=-1)
    inside = 2 * torch.rand(500, 2, dtype=dtype, generator=g) - 1
    inside = inside[cut_square(1.0, dtype).contains(inside)]
    for size in SIZES[dtype]:
        limits = cut_square(size, dtype)
        method = RAYEN(nn.Identity(), limits, create_map=False)
        assert len(method.D) == 5
        y = method(size * f)
        slack = (limits.upper - y @ limits.A.mT).amin(-1) / size
        assert slack.abs().max() < 10 * torch.finfo(dtype).eps  # on the boundary, in every direction
        torch.testing.assert_close(method(size * inside) / size, inside)


def test_what_it_does_scales_with_the_set(polytope: AffineSet, dtype: torch.dtype):
    g = torch.Generator().manual_seed(0)
    # off the origin, with a row that is not needed and with an equality
    rows = torch.cat([polytope.A, torch.ones(1, 3, dtype=torch.float64)])
    right = torch.cat(
        [polytope.upper + polytope.A @ torch.tensor([0.3, -0.4, 0.2], dtype=torch.float64), torch.ones(1)]
    ).double()
    row = torch.tensor([[1.0, 2.0, 3.0]], dtype=dtype)
    f = 2 * torch.randn(200, 3, dtype=dtype, generator=g)

    def answer(size: float, units: torch.Tensor) -> tuple[torch.Tensor, int]:
        A, b = units.unsqueeze(-1) * rows.to(dtype), units * (size * right.to(dtype))
        limits = AffineSet.inequality(A, b) & AffineSet.equality(row, size * torch.tensor([0.2], dtype=dtype))
        method = RAYEN(nn.Identity(), limits, create_map=False)
        return method(size * f) / size, len(method.D)

    expected, count = answer(1.0, torch.ones(len(rows), dtype=dtype))
    wide = 20 if dtype == torch.float64 else 10
    for size in SIZES[dtype]:
        units = 10 ** (wide * torch.rand(len(rows), dtype=dtype, generator=g) - wide / 2)
        y, needed = answer(size, units)
        assert needed == count
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-4 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("size", [1e-4, 1e-7, 1e-9, 1e-11])
def test_a_small_set_far_from_the_origin(size: float):
    at = (1.0, -2.0)
    limits = cut_square(size, at=at)
    method = RAYEN(nn.Identity(), limits, create_map=False)
    around = torch.nn.functional.normalize(torch.randn(500, 2, dtype=torch.float64), dim=-1)
    y = method(torch.tensor(at, dtype=torch.float64) + 10 * size * around)
    slack = (limits.upper - y @ limits.A.mT).amin(-1)
    assert slack.abs().max() < 20 * torch.finfo(torch.float64).eps  # rounding of numbers near two
    assert len(method.D) == 5
    assert (limits.upper - limits.A @ method.y_0).min() > 0.5 * size


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("thin", [1e-3, 1e-6, 1e-9])
def test_thin_sets_are_not_taken_for_flat_or_empty_ones(seed: int, thin: float):
    g = torch.Generator().manual_seed(seed)
    A = torch.nn.functional.normalize(torch.randn(12, 3, dtype=torch.float64, generator=g), dim=-1)
    A = torch.cat([A, -A[:3]])  # tangent planes of the unit ball, which is then squeezed, turned and moved
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=g)).Q
    squeeze = turn @ torch.diag(torch.tensor([1.0, thin**0.5, thin], dtype=torch.float64))
    center = torch.randn(3, dtype=torch.float64, generator=g)
    rows = A @ torch.linalg.inv(squeeze)
    limits = AffineSet.inequality(rows, 1 + rows @ center)
    method = RAYEN(nn.Identity(), limits, create_map=False)
    assert method.N.shape == (3, 3)
    y = method(center + 1e3 * torch.randn(300, 3, dtype=torch.float64, generator=g) @ squeeze.T)
    slack = (limits.upper - y @ limits.A.mT).amin(-1)  # in units of the set
    assert slack.abs().max() < 100 * torch.finfo(torch.float64).eps / thin


@pytest.mark.parametrize("size", [1e-20, 1e-9, 1.0, 1e12])
@pytest.mark.parametrize("gap", [1.0, 1e-6, 1e-12])
def test_a_gap_is_seen_whatever_its_size(size: float, gap: float):
    rest = AffineSet.box(-torch.full((2,), size, dtype=torch.float64), size)
    row = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    # 0 <= a y <= 1e-12 is a strip, 1e-12 <= a y <= 0 is nothing, beside rows at 1
    strip = AffineSet(row, [-0.25 * gap * size], [0.25 * gap * size])
    assert presolve(rest & strip).N.shape == (2, 2)
    with pytest.raises(InfeasibleError, match="a linear program proves it"):
        presolve(rest & AffineSet.inequality(torch.cat([row, -row]), torch.full((2,), -0.25 * gap * size).to(row)))
    # what holds with equality is found, also when written as two inequalities in other units
    flat = AffineSet.inequality(torch.cat([row, -1e-7 * row]), [0.5 * size, -0.5e-7 * size])
    inside = presolve(rest & flat)
    assert inside.N.shape == (2, 1)
    assert inside.N.T @ row[0].numpy() == pytest.approx([0.0], abs=1e-15)


def test_rounding_makes_no_gap(dtype: torch.dtype):
    # 0.1 + 0.2 is not 0.3: an equality written as two inequalities, one of them as a sum of rounded rows
    rows = torch.tensor([[0.1, 0.7, 0.3], [0.2, 0.6, 0.5]], dtype=dtype)
    rows = torch.cat([rows, -rows.sum(0, keepdim=True)])
    limits = AffineSet.inequality(rows, rows @ torch.tensor([1.1, 0.3, 1.7], dtype=dtype))
    inside = presolve(limits)
    assert inside.N.shape == (3, 1)
    y = RAYEN(nn.Identity(), limits, create_map=False)(torch.randn(50, 3, dtype=dtype))
    assert limits.violation(y).max() < 50 * torch.finfo(dtype).eps


def test_bounds_that_stand_for_none_do_not_send_the_middle_away():
    limits = AffineSet.box(torch.full((3,), -1e20), 1e20) & AffineSet.inequality([[1.0, 1.0, 1.0]], [1.0])
    assert RAYEN(nn.Identity(), limits, create_map=False).y_0.abs().max() < 10


def test_one_row_far_from_the_others_is_reached():
    lower = torch.tensor([-1.0, -1.0, -1.0, 1e12], dtype=torch.float64)
    upper = torch.tensor([1.0, 1.0, 1.0, 1e13], dtype=torch.float64)
    y = RAYEN(nn.Identity(), AffineSet.box(lower, upper), create_map=False)(torch.zeros(1, 4, dtype=torch.float64))
    assert float(y[0, 3]) == pytest.approx(1e12)


def test_a_set_below_the_numbers_is_a_point():
    tiny = torch.finfo(torch.float64).tiny
    limits = AffineSet.box(torch.zeros(2, dtype=torch.float64), tiny)
    y = RAYEN(nn.Identity(), limits)(torch.randn(4, 2, dtype=torch.float64))
    assert y.abs().max() <= tiny


def test_too_little_room_is_said(monkeypatch: pytest.MonkeyPatch):
    found = Deepest(np.ones(2), 0.0, 1.0, np.zeros(4, dtype=bool))
    monkeypatch.setattr("caffnet.methods.rayen.deepest", lambda *_: found)
    with pytest.raises(
        ConstraintError, match=r"most room found is 0. The set is too thin .* use METHODS\['caffnet-ff'\]"
    ):
        presolve(AffineSet.box(0.0, 1.0, dim=2))


def test_rows_at_the_end_of_the_numbers():
    rows = torch.tensor([[1e-320, 0.0], [-1e-320, 0.0], [0.0, 1e300], [0.0, -1e300]], dtype=torch.float64)
    limits = AffineSet.inequality(rows, rows.abs().sum(-1))
    y = RAYEN(nn.Identity(), limits, create_map=False)(torch.tensor([[3.0, 1.0]], dtype=torch.float64))
    torch.testing.assert_close(y, torch.tensor([[1.0, 1 / 3]], dtype=torch.float64))
