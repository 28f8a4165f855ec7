"""Sets and networks that the tests of several methods share."""

from __future__ import annotations

import pytest
import torch

from caffnet import AffineSet


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def polytope() -> AffineSet:
    """Twelve tangent planes of the unit ball in R^3, one of them twice: m > n, dependent rows, an interior."""
    rows = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    rows = rows / rows.norm(dim=-1, keepdim=True)
    rows = torch.cat([rows, -rows[:3], rows[:1]])
    return AffineSet.inequality(rows, torch.ones(len(rows), dtype=torch.float64))


@pytest.fixture
def mixed() -> AffineSet:
    """The optimisation task's shape: 5 inequalities and 3 equalities on 5 outputs; feasible."""
    g = torch.Generator().manual_seed(0)
    G, C = (torch.randn(*s, dtype=torch.float64, generator=g) for s in ((5, 5), (3, 5)))
    h = (G @ torch.linalg.pinv(C)).abs().sum(-1)
    return AffineSet.inequality(G, h) & AffineSet.equality(C, 0.5 * torch.ones(3, dtype=torch.float64))
