"""HardNet-Aff (Min and Azizan, 2025): parallel projection with the pseudo-inverse of all rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from caffnet.constraints import AffineSet
from caffnet.methods.base import (
    Guarantee,
    Method,
    Supports,
    matvec,
    numbers_only,
    row_rank,
    signed_violation,
    times_power,
    unit_exponent,
)
from caffnet.methods.penalty import Penalty


class HardNet(Method):
    r"""$y = f - A^+ \left( ReLU(A f - upper) - ReLU(lower - A f) \right)$.

    If A has full row rank, ``A A⁺ = I``: a satisfied row keeps its value ``a_i f``, a violated row lands on its bound,
    and the output is feasible. Otherwise, with more rows than outputs or with linearly dependent rows, the formula
    guarantees nothing and the output may leave the set.

    Independent rows are first scaled to one size by powers of two: ``A⁺ = (S A)⁺ S``, so the unit of a row does not
    decide whether its direction counts. For dependent rows ``(S A)⁺ S`` is another compromise than ``A⁺``, in which the
    size of a row is its weight; they are not scaled.

    Args:
        backbone: any module ``x -> f``.
        constraint: an `AffineSet`, or any function ``x -> AffineSet``.
        check: refuse rows that are not of full rank (for rows A(x) this computes a rank in every call). False computes
            the formula anyway, as the published code and the CAffNet paper's comparisons do.
        soft_epochs: number of first epochs without the projection (published: 100 for the optimisation task, else 0).
        penalty: the soft term, in all epochs; published: squared, weight 10, summed.

    >>> HardNet(nn.Identity(), AffineSet.inequality([[1.0, 1.0]], [1.0]))(torch.tensor([[2.0, 1.0]]))
    tensor([[1., 0.]])
    """

    name = "hardnet"
    title = "HardNet-Aff"
    guarantee = Guarantee.EXACT
    closed_form = True
    supports = Supports(more_rows=False, dependent_rows=False, empty_interior=False)

    inverse: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        constraint: AffineSet | Callable[[Any], AffineSet],
        *,
        check: bool = True,
        soft_epochs: int = 0,
        penalty: Penalty | None = Penalty(10.0, power=2, batch="sum"),  # noqa: B008  (immutable)
    ):
        super().__init__(backbone, constraint, penalty=penalty)
        self.check = check
        self.soft_epochs = soft_epochs
        self.enabled = True
        if self.constraint is None:
            self.register_buffer("inverse", self._inverse(self.A))

    def _independent(self, A: Tensor) -> Tensor:
        """Return ``(...)``, True where the rows of a sample have full rank; with `check`, refuse other rows."""
        if self.check:
            self.check_rank(A)
        m, n = A.shape[-2:]
        known = self.check or m > n  # no singular values are needed
        return A.new_full(A.shape[:-2], m <= n, dtype=torch.bool) if known else row_rank(A) == m

    def _inverse(self, A: Tensor) -> Tensor:
        """Return the pseudo-inverse ``(..., n, m)``, computed in float64."""
        independent = self._independent(A)
        exponent = torch.where(independent.unsqueeze(-1), unit_exponent(A), 0.0).double()
        # Independent rows have no zero singular value. Otherwise the precision of the data decides which values are
        # zero.
        rtol = torch.where(independent, 0.0, max(A.shape[-2:]) * torch.finfo(A.dtype).eps).double()
        inverse = torch.linalg.pinv(times_power(A.double(), exponent.unsqueeze(-1)), rtol=rtol)
        return times_power(inverse, exponent.unsqueeze(-2)).to(A.dtype)

    def start_epoch(self, epoch: int) -> None:
        """Leave the projection out of training for the first `soft_epochs`."""
        self.enabled = epoch >= self.soft_epochs

    @numbers_only
    def enforce(self, f: Tensor, set: AffineSet) -> Tensor:
        """The closed form above."""
        if self.training and not self.enabled:
            return f
        excess = signed_violation(set, f)  # (..., m)
        if self.constraint is None:
            return f - matvec(self.inverse, excess)
        if set.A.ndim == 2 and not set.A.requires_grad:  # shared by all samples
            return f - matvec(self._inverse(set.A), excess)
        # The published code solves instead of inverting when A differs between samples.
        A = set.A.expand(*excess.shape[:-1], set.m, set.n)
        rcond = None  # torch omits directions that are rounding noise
        if set.m <= set.n or self.check:
            independent = self._independent(set.A if self.check else A)
            exponent = torch.where(independent.unsqueeze(-1), unit_exponent(A), 0.0)
            A, excess = times_power(A, exponent.unsqueeze(-1)), times_power(excess, exponent)
            rcond = 0.0 if bool(independent.all()) else None  # independent rows have no direction to leave out
        return f - torch.linalg.lstsq(A, excess.unsqueeze(-1), rcond=rcond).solution.squeeze(-1)
