"""Conditions of the minimum of ``y'Qy/2 + q'y`` on a set, measured from the data alone."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from caffnet._solve.stationary import apply, pull
from caffnet.constraints import AffineSet


@dataclasses.dataclass(frozen=True)
class Residuals:
    """Errors of a point and its multipliers in the conditions of a minimum, each ``(...)``, in the user's units.

    All three are zero at a minimum, and only there.

    Attributes:
        primal: the largest violation of a row.
        dual: the largest entry of ``Qy + q + Aᵀλ``, or of a λ on a side that has no bound.
        gap: ``|y'Qy + q'y + Σ λ b|``, the difference of the objective and its dual; b is the bound that the sign of λ
            selects.
    """

    primal: Tensor
    dual: Tensor
    gap: Tensor


def residuals(y: Tensor, multipliers: Tensor, set: AffineSet, Q: Tensor | None, q: Tensor) -> Residuals:
    """Measure how well a point ``(..., n)`` and its multipliers ``(..., m)`` satisfy the conditions of a minimum.

    Args:
        y: the point.
        multipliers: λ, positive for upper bounds, negative for lower ones.
        set: the constraints.
        Q: in the form of `AffineSet.metric`: ``(..., n, n)``, or ``(..., 1, n)`` if diagonal; None for zero.
        q: ``(..., n)``.
    """
    rows = set.violation(y)
    primal = rows.amax(-1) if rows.shape[-1] else rows.new_zeros(rows.shape[:-1])
    curved = torch.zeros_like(y) if Q is None else apply(Q, y)
    miss = (curved + q + pull(set.A, multipliers)).abs()
    above, below = multipliers.clamp_min(0.0), multipliers.clamp_max(0.0)
    stray = torch.where(set.upper == torch.inf, above, 0.0) - torch.where(set.lower == -torch.inf, below, 0.0)
    dual = torch.cat([miss, stray], -1).amax(-1) if miss.shape[-1] + stray.shape[-1] else primal
    paid = torch.where(above == 0, 0.0, above * set.upper) + torch.where(below == 0, 0.0, below * set.lower)
    finite = torch.where(paid.isinf(), 0.0, paid)  # `dual` counts multipliers of missing bounds
    gap = ((curved + q) * y).sum(-1) + finite.sum(-1)
    return Residuals(primal, dual, gap.abs())
