"""KKT-hPINN (Chen et al., 2024): orthogonal projection on linear equalities, from their KKT conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from caffnet.constraints import AffineSet
from caffnet.methods.base import Guarantee, Method, Supports, matvec, numbers_only, times_power, unit_exponent
from caffnet.methods.penalty import Penalty


class KKTHPINN(Method):
    r"""The nearest point of $\{y : B y = d(x)\}$: $\; y = (I - K B) f + K d(x)$ with $K = B^T (B B^T)^{-1}$.

    The KKT conditions of $\min \|y - f\|^2$ subject to $B y = d$ are ``y - f + Bᵀλ = 0`` and ``B y = d``; inserting
    the first into the second gives ``λ = (B Bᵀ)⁻¹ (B f - d)``. In the paper ``d(x) = b - A x``, and both maps are
    frozen linear layers. Here ``K = Q R⁻ᵀ`` from ``Bᵀ = Q R``: the same matrix, without squaring the condition of B.

    Args:
        backbone: any module ``x -> f``.
        constraint: equalities: an `AffineSet`, or a function ``x -> AffineSet`` whose A is the same for all x.
        penalty: the soft term, none in the paper.

    >>> KKTHPINN(nn.Identity(), AffineSet.equality([[1.0, 1.0]], [1.0]))(torch.tensor([[2.0, 1.0]]))
    tensor([[1., 0.]])
    """

    name = "kkt_hpinn"
    title = "KKT-hPINN"
    guarantee = Guarantee.EXACT
    closed_form = True
    supports = Supports(
        input_dependent_A=False, inequality=False, more_rows=False, dependent_rows=False, empty_interior=False
    )

    K: Tensor
    null: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        constraint: AffineSet | Callable[[Any], AffineSet],
        *,
        penalty: Penalty | None = None,
    ):
        super().__init__(backbone, constraint, penalty=penalty)
        if self.constraint is None:
            K, null = self._layers(self.shared_A(self.set_at()))
            self.register_buffer("K", K)
            self.register_buffer("null", null)

    def _layers(self, B: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``K`` and ``I - K B``, computed in float64."""
        self.check_rank(B)
        exponent = unit_exponent(B).double()  # rows of one size: K = K' S for the rows S B
        rows = times_power(B.double(), exponent.unsqueeze(-1))
        Q, R = torch.linalg.qr(rows.mT)  # (n, m), (m, m)
        K = torch.linalg.solve_triangular(R.mT, Q, upper=False, left=False)  # Q R⁻ᵀ
        null = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device) - Q @ Q.mT
        return times_power(K, exponent.unsqueeze(-2)).to(B.dtype), null.to(B.dtype)

    @numbers_only
    def enforce(self, f: Tensor, set: AffineSet) -> Tensor:
        """The two frozen linear maps."""
        if not f.numel():  # without a sample there are no rows
            return f
        K, null = (self.K, self.null) if self.constraint is None else self._layers(self.shared_A(set))
        return matvec(null, f) + matvec(K, set.upper)
