"""The pseudo-inverse of a sub-constraint, in plain arithmetic.

Rows are added one at a time. With ``N`` the projector on the null space of the rows so far, a new row ``a`` leaves
the remainder ``r = N a``. If ``r`` vanishes, the row depends on the others. Else

    c  = r / (a r),      A⁺ <- [A⁺ - c (a A⁺),  c],      N <- N - r rᵀ / |r|²

which is Gram-Schmidt for ``N`` and Greville's update for ``A⁺``. ``r`` is orthogonalised twice: once more is all it
takes to be accurate to rounding even when ``a`` is nearly dependent. Only products, sums and comparisons are
used, so the same code is traced, exported and converted to ONNX.

A dependent row ``a = e A`` with ``e = a A⁺`` leaves ``N`` as it is. Greville's update for it,

    c = A⁺ eᵀ / (1 + |e|²),

makes ``A⁺ b`` the point of least squares between rows that may contradict each other. Such a point depends on the size
of the rows. For ``min Σ ω_j (a_j y - b_j)²`` and a new row of weight ω, ``e_j`` in ``c`` becomes ``e_j ω / ω_j`` and
``|e|²`` becomes ``Σ e_j² ω / ω_j``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet.rows import dot, product


class Faces(NamedTuple):
    """Pseudo-inverses of many sub-constraints of ``k`` slots each.

    Attributes:
        pinv: ``A_γ⁺``, ``(..., n, k)``, zero in the slots that are not used.
        null: ``I - A_γ⁺ A_γ``, ``(..., n, n)``.
        used: which slots carry a row, ``(..., k)``.
        independent: whether all rows that had to be independent are, ``(...)``.
        rows: ``A_γ``, ``(..., k, n)``, zero in the slots that are not used.
    """

    pinv: Tensor
    null: Tensor
    used: Tensor
    independent: Tensor
    rows: Tensor


def factor(rows: Tensor, filled: Tensor, optional: int, dtype: torch.dtype, exponent: Tensor | None = None) -> Faces:
    """Faces of the sub-constraints with the given rows.

    Args:
        rows: ``(..., k, n)``.
        filled: which slots hold a row, ``(..., k)``.
        optional: the first so many slots may depend on each other (equalities): a dependent one is left out.
        dtype: the number type whose rounding decides about dependence.
        exponent: the power of two that each row was multiplied with, ``(..., k)``. If given, dependent rows take part,
            by least squares between the rows as they were before.
    """
    *batch, k, n = rows.shape
    cut = tolerance.rank(dtype, n) ** 2
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
    return Faces(pinv, null, mask, independent, rows * mask.unsqueeze(-1))


def numerical_rank(A: Tensor, dtype: torch.dtype) -> Tensor:
    """The number of independent rows of each matrix ``(..., m, n)``, as the factorisation counts them."""
    filled = torch.ones(A.shape[:-1], dtype=torch.bool, device=A.device)
    return factor(A, filled, A.shape[-2], dtype).used.sum(-1)
