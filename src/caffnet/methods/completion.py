"""Solving equalities for some of the outputs, given the others: what ACnet and DC3 both do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from caffnet.constraints import EQUAL, AffineSet
from caffnet.methods.base import matvec


class Completion:
    r"""The equalities $C y = d$ of a set, solved for the `dependent` outputs: $C_D y_D = d - C_F y_F$.

    Args:
        set: the constraints; rows that are not equalities are left aside.
        dependent: the outputs D to solve for, one per equality; the others are the free ones F.
    """

    def __init__(self, set: AffineSet, dependent: Sequence[int]):
        device = set.device
        equal = [side == EQUAL for side in set.row_kinds]
        self.equal = torch.tensor([i for i, e in enumerate(equal) if e], dtype=torch.long, device=device)
        self.other = torch.tensor([i for i, e in enumerate(equal) if not e], dtype=torch.long, device=device)
        self.dependent = torch.tensor(list(dependent), dtype=torch.long, device=device)
        free = [j for j in range(set.n) if j not in dependent]
        self.free = torch.tensor(free, dtype=torch.long, device=device)
        C = set.A[..., self.equal, :]
        self.d = set.upper[..., self.equal]
        self.square, self.rest = C[..., self.dependent], C[..., self.free]

    def solve(self, right: Tensor, transpose: bool = False) -> Tensor:
        """``C_D⁻¹ right``, or ``C_D⁻ᵀ right``, for right ``(..., q)``."""
        square = self.square.mT if transpose else self.square
        return torch.linalg.solve(square, right.unsqueeze(-1)).squeeze(-1) if len(self.dependent) else right

    def complete(self, free: Tensor) -> Tensor:
        """The whole output ``(..., n)`` from its free part ``(..., n - q)``."""
        return self.join(free, self.solve(self.d - matvec(self.rest, free)))

    def follow(self, step: Tensor) -> Tensor:
        """The move ``(..., n)`` of the whole output, along the equalities, when the free part moves by `step`."""
        return self.join(step, -self.solve(matvec(self.rest, step)))

    def transpose_follow(self, gradient: Tensor) -> Tensor:
        """The gradient ``(..., n - q)`` with respect to the free part, from that with respect to the whole output."""
        multiplier = self.solve(gradient[..., self.dependent], transpose=True)  # C_D⁻ᵀ of the dependent part
        return gradient[..., self.free] - matvec(self.rest.mT, multiplier)

    def join(self, free: Tensor, dependent: Tensor) -> Tensor:
        """Both parts, each output in its place."""
        order = torch.cat([self.free, self.dependent]).argsort()
        return torch.cat([free, dependent], -1)[..., order]

    def pivot(self) -> Tensor:
        """``|det C_D|`` of each sample, with the rows at length one."""
        length = torch.linalg.vector_norm(torch.cat([self.square, self.rest], -1), dim=-1, keepdim=True)
        return torch.linalg.det(self.square / torch.where(length > 0, length, 1.0)).abs()
