"""The point on a chosen flat: the closed form, refined, and clamped to plain bounds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet.rows import Rows, largest, pick_rows, product
from caffnet.search.contract import Choice


def polish(rows: Rows, choice: Choice, g: Tensor) -> tuple[Tensor, Tensor]:
    """The closed form on γ, and whether it satisfies every row: the point ``(B, n)`` and ``(B,)``.

    Where that keeps the other rows, it is clamped so that plain bounds hold exactly. A vertex at the origin comes out
    as rounding noise of size ``eps |g|``, which no relative tolerance accepts (and no further refinement ends): it is
    set to zero.
    """
    y = flat_point(rows, choice, g)
    accepted = rows.accepts(y, y)
    clamped = clamp_to_bounds(rows, y)
    if _possible(clamped != y):
        keeps = rows.accepts(clamped, clamped)
        y = torch.where((keeps | ~accepted).unsqueeze(-1), clamped, y)
        accepted = accepted | keeps
    noise = (largest(y) <= tolerance.feasibility(rows.dtype, rows.n) * largest(g)).squeeze(-1) & ~accepted
    if _possible(noise):
        zero = torch.zeros_like(y)
        snap = noise & rows.accepts(zero, zero)
        y = torch.where(snap.unsqueeze(-1), zero, y)
        accepted = accepted | snap
    return y, accepted


def _possible(mask: Tensor) -> bool:
    """Whether a case occurs in the batch; while a graph is traced, every case may."""
    return torch.compiler.is_compiling() or bool(mask.any())


def flat_point(rows: Rows, choice: Choice, g: Tensor) -> Tensor:
    """The projection of `g` on the chosen flat, ``y = A_γ⁺ b_γ + (I - A_γ⁺ A_γ) g``, with one refinement.

    Not ``g - A_γ⁺(A_γ g - b_γ)``: that loses ``b`` when ``g`` is far away. The refinement removes what rounding left
    of ``g`` in the directions that the rows fix. Computed in the type of ``A_γ⁺``, returned in that of `g`.
    """
    kind, rows, g = g.dtype, rows.to(choice.pinv.dtype), g.to(choice.pinv.dtype)
    chosen = pick_rows(rows.A, choice.rows) * (choice.sides != 0).unsqueeze(-1)
    target = targets(rows, choice)
    y = product(choice.pinv, target) + (g - product(choice.pinv, product(chosen, g)))
    return (y - product(choice.pinv, product(chosen, y) - target)).to(kind)


def targets(rows: Rows, choice: Choice) -> Tensor:
    """The bound that each slot is held at, ``(B, k)``."""
    bound = torch.where(choice.sides > 0, rows.upper.gather(-1, choice.rows), rows.lower.gather(-1, choice.rows))
    return torch.where((choice.sides != 0) & bound.isfinite(), bound, 0.0)


def clamp_to_bounds(rows: Rows, y: Tensor) -> Tensor:
    """`y` moved into its plain bounds, where they do not cross."""
    low, high = box_limits(rows)
    return torch.where(low <= high, torch.minimum(torch.maximum(y, low), high), y)


def within_box(rows: Rows, y: Tensor) -> Tensor:
    """Whether rows of the form ``± y_j`` hold exactly, ``(B,)``; bounds that cross are left to the other test."""
    low, high = box_limits(rows)
    return ((low > high) | ((low <= y) & (y <= high))).all(-1)


def box_limits(rows: Rows) -> tuple[Tensor, Tensor]:
    """The bounds that rows of the form ``± y_j`` put on the outputs, ``(B, n)`` each."""
    samples, n = rows.lower.shape[0], rows.n
    size = rows.A.abs()
    low, high = rows.lower.new_full((samples, n), -math.inf), rows.lower.new_full((samples, n), math.inf)
    if rows.m == 0 or n == 0:
        return low, high
    top, column = size.max(-1)
    plain = (top == 1) & (size.sum(-1) == 1)
    if not _possible(plain):
        return low, high
    sign = rows.A.gather(-1, column.unsqueeze(-1)).squeeze(-1)
    lower = torch.where(sign > 0, rows.lower, -rows.upper)
    upper = torch.where(sign > 0, rows.upper, -rows.lower)
    column = column.expand(samples, rows.m)
    low = low.scatter_reduce(-1, column, torch.where(plain, lower, -math.inf), "amax")
    high = high.scatter_reduce(-1, column, torch.where(plain, upper, math.inf), "amin")
    return low, high
