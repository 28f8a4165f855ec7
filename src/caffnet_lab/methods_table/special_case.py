"""The paper's remark that HardNet is a special case, measured.

It says: if ``m = n``, `A` has full rank and f violates every row, then γ = all rows is one of the choices, it leaves no
null space, and the projection coincides with HardNet's point, the vertex ``f - A⁻¹ (A f - b)``. That point is a
candidate indeed. But the layer returns the *nearest* feasible candidate, and one on fewer rows may be feasible and
nearer: with rows ``(1, 0)`` and ``(.9, .1)``, ``b = 0`` and ``f = (1, -.5)`` it is ``(0, -.5)``, and HardNet's is ``(0,
0)``.
"""

from __future__ import annotations

import torch
from torch import nn

from caffnet import AffineSet, project
from caffnet.methods import HardNet

AGREE = 1e-9  # of points of order one


def share_that_agrees(n: int, draws: int = 2000, seed: int = 0) -> float:
    """The share of random problems with n rows, all violated, on which the layer (w = 0) returns HardNet's point.

    Rows, bounds and f are normal; a row that holds is turned round, so that every row is violated.

    >>> share_that_agrees(1)
    1.0
    """
    stream = torch.Generator().manual_seed(seed)
    A = torch.randn(draws, n, n, dtype=torch.float64, generator=stream)
    b = torch.randn(draws, n, dtype=torch.float64, generator=stream)
    f = torch.randn(draws, n, dtype=torch.float64, generator=stream)
    side = torch.where((A @ f.unsqueeze(-1)).squeeze(-1) > b, 1.0, -1.0)
    rows = AffineSet.inequality(A * side.unsqueeze(-1), b * side)
    theirs = HardNet(nn.Identity(), rows)(f)
    apart = (project(f, rows).value - theirs).norm(dim=-1) / (1 + theirs.norm(dim=-1))
    return float((apart < AGREE).double().mean())
