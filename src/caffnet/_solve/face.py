"""A sub-constraint in plain torch operations: its rows scaled, and their pseudo-inverse.

Row ``i`` is multiplied by a power of two so that ``1 <= |a_i|_1 < 2``; that is exact. The pseudo-inverse takes one row
at a time. With ``N`` the projector on the null space of the rows so far, a new row ``a`` leaves the remainder
``r = N a``. If ``r`` vanishes, the row depends on the others. Else

    c  = r / (a r),      A⁺ <- [A⁺ - c (a A⁺),  c],      N <- N - r rᵀ / |r|²

which is Gram-Schmidt for ``N`` and Greville's update for ``A⁺``. ``r`` is orthogonalised twice: that is enough to be
accurate to rounding even if ``a`` is nearly dependent. Only products, sums and comparisons are used, so the same code
can be traced, exported, mapped, and differentiated any number of times in any mode.

A dependent row ``a = e A`` with ``e = a A⁺`` leaves ``N`` as it is. Greville's update for it,

    c = A⁺ eᵀ / (1 + |e|²),

makes ``A⁺ b`` the point of least squares between rows that may contradict each other (``search="paper"``). Such a point
depends on the size of the rows. For ``min Σ ω_j (a_j y - b_j)²`` and a new row of weight ω, ``e_j`` in ``c`` becomes
``e_j ω / ω_j`` and ``|e|²`` becomes ``Σ e_j² ω / ω_j``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from caffnet import tolerance


class Face(NamedTuple):
    """Pseudo-inverses of sub-constraints of ``k`` slots each.

    Attributes:
        pinv: ``A_γ⁺``, ``(..., n, k)``, zero in the slots that are not used.
        null: ``I - A_γ⁺ A_γ``, ``(..., n, n)``.
        used: mask of the slots that have a row, ``(..., k)``.
        independent: True if all rows that must be independent are, ``(...)``.
        rows: ``A_γ``, ``(..., k, n)``, zero in the slots that are not used.
    """

    pinv: Tensor
    null: Tensor
    used: Tensor
    independent: Tensor
    rows: Tensor


def factor(rows: Tensor, filled: Tensor, optional: int = 0, exponent: Tensor | None = None) -> Face:
    """The faces of sub-constraints with the given rows.

    Args:
        rows: scaled, ``(..., k, n)``.
        filled: mask of the slots that have a row, ``(..., k)``.
        optional: number of first slots that may depend on each other (equalities): a dependent one is left out.
        exponent: the power of two that each row was multiplied with, ``(..., k)``. If given, dependent rows take part,
            by least squares between the rows as they were before.
    """
    *batch, k, n = rows.shape
    cut = tolerance.rank(rows.dtype, n) ** 2
    largest_exponent = math.frexp(torch.finfo(rows.dtype).max)[1] - 1
    null = torch.eye(n, dtype=rows.dtype, device=rows.device).expand(*batch, n, n)
    pinv = rows.new_zeros(*batch, n, 0)
    independent = torch.ones(batch, dtype=torch.bool, device=rows.device)
    used: list[Tensor] = []
    for j in range(k):
        a = rows[..., j, :]
        r = product(null, product(null, a))
        squared, size = dot(r, r), dot(a, a)
        adds = (squared > cut * size) & filled[..., j]
        if j >= optional:
            independent = independent & (adds | ~filled[..., j])
        inverse = torch.where(adds, 1 / torch.where(adds, dot(a, r), 1.0), 0.0)
        c, e = r * inverse.unsqueeze(-1), product(pinv.mT, a)
        if exponent is not None:
            # The weight of a row is 4 ** exponent, relative to the heaviest that takes part: squares of sizes leave the
            # range of numbers. (One that does not, e = 0, may be heavier; its weight is in the derivative only.)
            own, others = exponent[..., j : j + 1], exponent[..., :j]
            top = torch.cat([own, torch.where(e != 0, others, -math.inf)], -1).amax(-1, keepdim=True)
            shared = e * (2 * (others - top)).clamp(max=largest_exponent).exp2()
            mean = product(pinv, shared) / ((2 * (own - top)).exp2() + dot(e, shared).unsqueeze(-1))
            c = torch.where((filled[..., j] & ~adds).unsqueeze(-1), mean, c)
        pinv = torch.cat([pinv - c.unsqueeze(-1) * e.unsqueeze(-2), c.unsqueeze(-1)], -1)
        shrink = torch.where(adds, 1 / torch.where(adds, squared, 1.0), 0.0)
        null = null - shrink[..., None, None] * r.unsqueeze(-1) * r.unsqueeze(-2)
        used.append(adds)
    mask = torch.stack(used, -1) if used and exponent is None else filled
    return Face(pinv, null, mask, independent, rows * mask.unsqueeze(-1))


# ------------------------------------------------------------------------------------------------- rows


def unit_exponent(A: Tensor) -> Tensor:
    """The power of two that brings each row to ``1 <= |a|_1 < 2``; 0 for a zero row.

    (If the sum overflows, the largest number replaces it; the row is then below ``2 n``, which is good enough.)
    """
    size = A.abs().sum(-1).clamp(max=torch.finfo(A.dtype).max)
    positive = size > 0
    return -torch.where(positive, torch.where(positive, size, 1.0).log2().floor(), 0.0)


def times_power(t: Tensor, exponent: Tensor) -> Tensor:
    """``t * 2 ** exponent``, exact. In two steps: ``2 ** exponent`` alone may overflow, as ``2 ** 1030`` does."""
    half = (exponent / 2).floor()
    return t * half.exp2() * (exponent - half).exp2()


def pick_rows(A: Tensor, index: Tensor) -> Tensor:
    """The rows in each sample's slots: A ``(m, n)`` or ``(B, m, n)``, index ``(B, k)``, result ``(B, k, n)``."""
    return A[index] if A.ndim == 2 else A.gather(-2, index.unsqueeze(-1).expand(*index.shape, A.shape[-1]))


def product(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return ``matrix @ vector`` per sample, summed explicitly, so that a sample has the same bits in every batch."""
    return dot(matrix, vector.unsqueeze(-2))


def times(A: Tensor, y: Tensor) -> Tensor:
    """``A y`` of every sample, ``(B, m)``, for one A or one per sample."""
    return y @ A.mT if A.ndim == 2 else (A @ y.unsqueeze(-1)).squeeze(-1)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product over the last axis, with broadcasting."""
    return (a * b).sum(-1)
