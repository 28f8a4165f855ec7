from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from caffnet import AffineSet, FeedForward
from caffnet.methods import Frerix, UnsupportedError
from caffnet.methods.cone import generators


def cone(m: int, n: int, seed: int) -> np.ndarray:
    """Random rows that a random direction satisfies strictly: a cone with an interior."""
    rng = np.random.default_rng(seed)
    direction, rows = rng.normal(size=n), rng.normal(size=(m, n))
    return np.where((rows @ direction > 0)[:, None], -rows, rows)


@pytest.mark.parametrize(("m", "n"), [(1, 3), (2, 3), (3, 3), (6, 3), (8, 4), (10, 5), (16, 6)])
def test_outputs_are_in_the_cone(m: int, n: int):
    limits = AffineSet.inequality(torch.as_tensor(cone(m, n, seed=m)), torch.zeros(m, dtype=torch.float64))
    method = Frerix(FeedForward(2, n, hidden=8).double(), limits)
    for training in (True, False):
        y = method.train(training)(10 * torch.randn(300, 2, dtype=torch.float64))
        assert limits.violation(y).max() < 1e-12


@pytest.mark.parametrize(("m", "n"), [(3, 3), (6, 3), (8, 4), (10, 5)])
def test_the_rays_are_all_extreme_rays(m: int, n: int):
    scipy = pytest.importorskip("scipy.optimize")
    A = cone(m, n, seed=10 * m)
    rays = generators(A, np.zeros((0, n)))
    assert (rays @ A.T).max() < 1e-12
    # an extreme ray holds n - 1 independent rows with equality
    for ray in rays:
        assert np.linalg.matrix_rank(A[np.abs(A @ ray) < 1e-9]) == n - 1
    # none is missing: every point of the cone is a combination of the rays
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(2000):
        y = rng.normal(size=n)
        if (A @ y <= 0).all():
            found += 1
            assert scipy.nnls(rays.T, y)[1] < 1e-9
    middle = rays.sum(0)
    assert found or (A @ middle < 0).all()


@pytest.mark.parametrize(
    ("A", "C", "expected"),
    [
        ([], [], [[1, 0], [0, 1], [-1, 0], [0, -1]]),  # the whole plane: two lines
        ([[0, 1]], [], [[0, -1], [1, 0], [-1, 0]]),  # a half plane
        ([], [[0, 1]], [[1, 0], [-1, 0]]),  # a line
        ([[1, 0]], [[0, 1]], [[-1, 0]]),  # half of it
        ([[1, 0], [-1, 0]], [], [[0, 1], [0, -1]]),  # two opposite inequalities: no interior
        ([[1, 0], [2, 0], [0, 1], [1, 1]], [], [[-1, 0], [0, -1]]),  # dependent and redundant rows
    ],
)
def test_known_cones(A: list, C: list, expected: list):
    rays = generators(np.array(A, float).reshape(-1, 2), np.array(C, float).reshape(-1, 2))
    assert sorted(map(tuple, rays.round(9) + 0.0)) == sorted(map(tuple, np.array(expected, float)))


def test_the_box_keeps_the_cone():
    limits = AffineSet.inequality(torch.as_tensor(cone(6, 3, 0)), torch.zeros(6, dtype=torch.float64))
    method = Frerix(nn.Identity(), limits, normalise=False, box=True)
    f = 100 * torch.randn(50, 3, dtype=torch.float64)
    method.start_epoch(0)
    assert method.train()(f).abs().max() > 1
    for y in (method.eval()(f), (method.start_epoch(25), method.train()(f))[1]):
        assert y.abs().max() <= 1
        assert limits.violation(y).max() < 1e-12


def test_the_map_starts_as_described():
    method = Frerix(nn.Identity(), AffineSet.inequality(-torch.eye(4), 0.0))
    assert method.map.weight.abs().max() < 1 / 4
    assert (method.map.bias == 0).all()


def test_what_is_no_cone_is_refused():
    with pytest.raises(UnsupportedError, match=r"a bound is not zero; it needs a cone, all bounds zero. Use .*rayen"):
        Frerix(nn.Identity(), AffineSet.box(0.0, 1.0, dim=2))
    with pytest.raises(UnsupportedError, match="the only point of the cone is the origin"):
        Frerix(nn.Identity(), AffineSet.inequality([[1.0], [-1.0]], 0.0))


@pytest.mark.parametrize("width", [1.0, 1e-6, 1e-9, 1e-12, 1e-30])
def test_a_narrow_cone_is_no_ray(width: float):
    # 0 <= y1 <= width y0
    rays = generators(np.array([[0.0, -1.0], [-width, 1.0]]), np.zeros((0, 2)))
    np.testing.assert_allclose(rays[np.argsort(rays[:, 1])], [[1, 0], np.array([1, width]) / np.hypot(1, width)])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("narrow", [1e-3, 1e-8])
def test_outputs_in_other_units_have_the_same_rays(seed: int, narrow: float):
    A, unit = cone(8, 4, seed), narrow ** np.arange(4)
    expected = generators(A, np.zeros((0, 4)))
    rays = generators(A / unit, np.zeros((0, 4))) / unit
    np.testing.assert_allclose(rays / np.linalg.norm(rays, axis=1, keepdims=True), expected, atol=1e-10)


def test_what_is_dependent_but_for_rounding_stays_so(dtype: torch.dtype):
    rows = torch.tensor([[0.1, 0.7, 0.3], [0.2, 0.6, -0.5]], dtype=dtype)
    rows = torch.cat([rows, rows.sum(0, keepdim=True)])
    for limits in (
        AffineSet.equality(rows, torch.zeros(3, dtype=dtype)),
        AffineSet.inequality(rows * torch.tensor([[1.0], [1.0], [-1.0]], dtype=dtype), torch.zeros(3, dtype=dtype)),
    ):
        rays = Frerix(nn.Identity(), limits).rays  # both directions of one line
        assert rays.shape == (2, 3)
        torch.testing.assert_close(rays[0], -rays[1])
        assert (rays @ rows.mT).abs().max() < 10 * torch.finfo(dtype).eps


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_the_unit_of_a_row_does_not_matter(size: float):
    A = cone(8, 4, 0)
    units = np.where(np.arange(8) % 2, size, 1.0)[:, None]
    limits = [AffineSet.inequality(torch.as_tensor(rows), torch.zeros(8).double()) for rows in (A, units * A)]
    first, second = (Frerix(nn.Identity(), each).rays for each in limits)
    torch.testing.assert_close(first, second)
