from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from caffnet import AffineSet, ConstraintError, InfeasibleError, project
from caffnet.methods import IPOPT
from caffnet.methods.ipopt import least_squares

pytest.importorskip("casadi")

SAMPLES = 100  # of the task's 1000 test inputs

# The mean optimum over all 1000 test inputs of the paper's optimisation task, by seed.
KNOWN = {1: -0.13503, 7: -0.00125, 12: -1.21963}


def optimisation_task(seed: int):
    """The paper's task: min ½ yᵀQy + pᵀ sin y subject to G y <= h, C y = x; drawn as its code draws it."""
    draw = np.random.RandomState(seed)
    Q, p = np.diag(draw.uniform(size=5)), draw.uniform(size=5)
    G, C = draw.normal(size=(5, 5)), draw.normal(size=(3, 5))
    h = np.abs(G @ np.linalg.pinv(C)).sum(1)
    draw.uniform(-1, 1, (1000, 3, 1))
    draw.uniform(-1, 1, (10, 3, 1))
    x = draw.uniform(-1, 1, (1000, 3, 1))[..., 0]

    def limits(x: torch.Tensor) -> AffineSet:
        return AffineSet.inequality(G, h) & AffineSet.equality(C, x)

    return Q, p, limits, torch.as_tensor(x)


@pytest.mark.parametrize("seed", KNOWN)
def test_known_optima_of_the_papers_task(seed: int):
    Q, p, limits, x = optimisation_task(seed)

    def objective(casadi, y, f):
        return 0.5 * casadi.dot(y, Q @ y) + casadi.dot(p, casadi.sin(y))

    class Blank(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.new_zeros(*x.shape[:-1], 5)

    method = IPOPT(Blank(), limits, objective=objective, tol=1e-8)
    count = len(x) if seed == 12 else SAMPLES
    y = method(x[:count])
    value = 0.5 * (y**2 @ torch.tensor(np.diag(Q))) + torch.sin(y) @ torch.tensor(p)
    # the mean of a part of the samples differs from the mean of all by its standard error
    spread = 1e-5 if count == len(x) else 4 * float(value.std()) / count**0.5
    assert float(value.mean()) == pytest.approx(KNOWN[seed], abs=spread)
    assert limits(x[:count]).violation(y).max() < 1e-7


def test_the_default_objective_projects(mixed: AffineSet):
    f = 2 * torch.randn(20, 5, dtype=torch.float64)
    y = IPOPT(nn.Identity(), mixed, tol=1e-10)(f)
    torch.testing.assert_close(y, project(f, mixed).value, atol=1e-5, rtol=0)


@pytest.mark.parametrize("start", ["least_squares", "raw"])
def test_the_tolerance_is_what_it_promises(mixed: AffineSet, start: str):
    f = 2 * torch.randn(20, 5, dtype=torch.float64)
    assert mixed.violation(IPOPT(nn.Identity(), mixed, start=start)(f)).max() < 1e-4


def test_the_start_solves_equalities_in_any_units(dtype: torch.dtype):
    C, d = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]]), np.array([3.0, 1.0])
    expected = np.linalg.pinv(C) @ d
    for size in ([1.0, 1.0], [1.0, 1e-20], [1e30, 1e-30]):
        np.testing.assert_allclose(least_squares(np.c_[size] * C, size * d, dtype), expected, rtol=1e-6)
    # a row twice, but for the rounding of the data, is one row
    twice = torch.tensor([[0.1, 0.7, 0.3], [0.3, 2.1, 0.9]], dtype=dtype).double().numpy()
    assert np.abs(least_squares(twice, np.array([1.0, 3.0]), dtype)).max() < 2


def test_an_empty_set_is_said():
    limits = AffineSet.inequality([[1.0, 0.0], [-1.0, 0.0]], [0.0, -1.0])
    with pytest.raises(InfeasibleError, match=r"IPOPT stopped at sample \(0,\) with Infeasible_Problem_Detected"):
        IPOPT(nn.Identity(), limits)(torch.zeros(2, 2))


def test_other_failures_are_said():
    with pytest.raises(ConstraintError, match=r"with Maximum_Iterations_Exceeded. Pass another start, or options="):
        IPOPT(nn.Identity(), AffineSet.box(0.0, 1.0, dim=2), options={"max_iter": 1})(torch.full((1, 2), 9.0))
    with pytest.raises(ConstraintError, match="start must be 'least_squares' or 'raw', got 'zero'"):
        IPOPT(nn.Identity(), AffineSet.box(0.0, 1.0, dim=2), start="zero")


def test_it_has_no_gradient():
    y = IPOPT(nn.Linear(2, 2), AffineSet.box(0.0, 1.0, dim=2))(torch.zeros(1, 2))
    assert not y.requires_grad
