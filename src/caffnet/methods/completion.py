"""Solving equalities for some of the outputs, given the others: the common part of ACnet and DC3."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet.constraints import EQUAL, AffineSet
from caffnet.errors import ConstraintError
from caffnet.methods.base import matvec, times_power, unit_exponent, unit_rows


class Completion:
    r"""The equalities $C y = d$ of a set, solved for the `dependent` outputs: $C_D y_D = d - C_F y_F$.

    The rows are first scaled to one size by powers of two, which changes neither set nor solution: else their units
    would determine the pivots of the elimination.

    Args:
        set: the constraints; rows that are not equalities are ignored.
        dependent: the outputs D to solve for, one per equality; the others are the free ones F.
    """

    def __init__(self, set: AffineSet, dependent: Sequence[int]):
        if not all(0 <= j < set.n for j in dependent):
            raise ConstraintError(f"The outputs to solve for must be among 0..{set.n - 1}, got {list(dependent)}.")
        device = set.device
        equal = [side == EQUAL for side in set.row_kinds]
        self.equal = torch.tensor([i for i, e in enumerate(equal) if e], dtype=torch.long, device=device)
        self.other = torch.tensor([i for i, e in enumerate(equal) if not e], dtype=torch.long, device=device)
        self.dependent = torch.tensor(list(dependent), dtype=torch.long, device=device)
        free = [j for j in range(set.n) if j not in dependent]
        self.free = torch.tensor(free, dtype=torch.long, device=device)
        C = set.A[..., self.equal, :]
        exponent = unit_exponent(C)
        C = times_power(C, exponent.unsqueeze(-1))
        self.d = times_power(set.upper[..., self.equal], exponent)
        self.square, self.rest = C[..., self.dependent], C[..., self.free]

    def solve(self, right: Tensor, transpose: bool = False) -> Tensor:
        """``C_D⁻¹ right``, or ``C_D⁻ᵀ right``, for right ``(..., q)``."""
        if not len(self.dependent):
            return right
        square = self.square.mT if transpose else self.square
        if square.ndim == 2:  # shared by all samples: one factorisation
            return torch.linalg.solve(square, right.reshape(-1, right.shape[-1]).mT).mT.reshape(right.shape)
        return torch.linalg.solve(square, right.unsqueeze(-1)).squeeze(-1)

    def complete(self, free: Tensor) -> Tensor:
        """Return the whole output ``(..., n)`` for its free part ``(..., n - q)``."""
        return self.join(free, self.solve(self.d - matvec(self.rest, free)))

    def follow(self, step: Tensor) -> Tensor:
        """Return the change ``(..., n)`` of the output, along the equalities, when the free part changes by `step`."""
        return self.join(step, -self.solve(matvec(self.rest, step)))

    def transpose_follow(self, gradient: Tensor) -> Tensor:
        """Return the gradient ``(..., n - q)`` in the free part, from the gradient in the whole output."""
        multiplier = self.solve(gradient[..., self.dependent], transpose=True)  # C_D⁻ᵀ of the dependent part
        return gradient[..., self.free] - matvec(self.rest.mT, multiplier)

    def join(self, free: Tensor, dependent: Tensor) -> Tensor:
        """Join both parts in the order of the outputs."""
        order = torch.cat([self.free, self.dependent]).argsort()
        return torch.cat([free, dependent], -1)[..., order]

    def solvable(self) -> Tensor:
        """Return ``(...)``, True where ``C_D`` has full rank, by its smallest singular value for rows of length one.

        The determinant, which costs less, decides most cases: the product of the other singular values is less than
        two, because the squares of all sum to at most q. It is not enough alone: for 90 well-conditioned rows it can be
        1e-20. Samples with NaN are ignored.
        """
        least = tolerance.rank(self.square.dtype, self.square.shape[-1] + self.rest.shape[-1])
        square = unit_rows(torch.cat([self.square, self.rest], -1).detach())[..., : len(self.dependent)]
        known = square.isfinite().all(-1).all(-1)
        enough = ~known | (torch.linalg.det(square).abs() > 2 * least)
        if bool(enough.all()):
            return enough
        return enough | (torch.linalg.svdvals(torch.where(known[..., None, None], square, 0.0))[..., -1] > least)


def outputs_to_solve_for(C: Tensor) -> tuple[int, ...] | None:
    """Choose one output for each of the equalities ``(..., q, n)``, the same for all samples, by QR with column
    pivoting.

    Each step takes the output whose column is longest after the directions of the columns chosen before are removed
    from it; with several samples, longest in the sample where it is shortest. One sample of full rank always has a
    choice. Several samples may have no choice in common, or the steps may miss it: then None is returned.
    """
    q, n = C.shape[-2:]
    # The longest of n columns is at least 1 / sqrt(n) of the smallest singular value, which exceeds the rank's share.
    least = tolerance.rank(C.dtype, n) / max(n, 1) ** 0.5
    columns = unit_rows(C.detach().double()).reshape(-1, q, n)
    taken: list[int] = []
    for _ in range(q):
        length = torch.linalg.vector_norm(columns, dim=-2)  # (samples, n)
        worst = length.amin(0)
        worst[taken] = -1.0
        best = int(worst.argmax())
        if not worst[best] > least:
            return None
        taken.append(best)
        direction = (columns[..., best] / length[:, best : best + 1]).unsqueeze(-1)  # (samples, q, 1)
        columns = columns - direction * (direction.mT @ columns)
    return tuple(sorted(taken))
