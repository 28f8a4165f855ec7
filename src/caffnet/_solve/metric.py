"""Another metric in plain torch operations: with ``M = L Lᵀ`` and ``z = Lᵀ y``, ``|y - f|_M`` is ``|z - Lᵀ f|_2``.

So a problem with a metric is the problem with rows ``A L⁻ᵀ``, ``Lᵀ f`` and ``Lᵀ w`` in the Euclidean one. The kernel
does the same (metric.c, where the closed form and its derivative stand); torch differentiates these operations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from caffnet._solve.face import product
from caffnet._solve.problem import Problem, is_diagonal


class White:
    """The change of outputs that makes a metric the Euclidean one."""

    def __init__(self, metric: Tensor):
        self.diagonal = is_diagonal(metric)
        self.root = metric.sqrt() if self.diagonal else torch.linalg.cholesky((metric + metric.mT) / 2)

    def point(self, y: Tensor) -> Tensor:
        """``z = Lᵀ y``, ``(B, n)``."""
        return y * self.root.squeeze(-2) if self.diagonal else product(self.root.mT, y)

    def rows(self, A: Tensor) -> Tensor:
        """``A L⁻ᵀ``, ``(..., m, n)``."""
        return A / self.root if self.diagonal else torch.linalg.solve_triangular(self.root, A.mT, upper=False).mT

    def back(self, z: Tensor) -> Tensor:
        """``y = L⁻ᵀ z``, ``(B, n)``."""
        if self.diagonal:
            return z / self.root.squeeze(-2)
        return torch.linalg.solve_triangular(self.root.mT, z.unsqueeze(-1), upper=True).squeeze(-1)

    def problem(self, p: Problem) -> Problem:
        """The problem in z, without a metric."""
        w = None if p.w is None else self.point(p.w)
        return p.replace_tensors(self.point(p.f), w, self.rows(p.A), p.lower, p.upper, None)
