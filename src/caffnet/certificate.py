"""Proofs in exact arithmetic.

Floating-point numbers are rational, so two questions that rounding blurs have an exact answer: does a point satisfy a
row, and do some rows exclude each other? For the second, Farkas' lemma: if numbers ``μ_i`` (positive: for the upper
bound of row ``i``, negative: for the lower) make the left side of

    Σ μ_i a_i y  <=  Σ μ_i b_i,    b_i the bound that the sign of μ_i selects,

vanish for every ``y`` while the right side is negative, then no ``y`` satisfies all rows.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from caffnet import tolerance
from caffnet.rows import apply


@dataclasses.dataclass(frozen=True)
class Conflict:
    """Rows that exclude each other.

    Attributes:
        rows: their indices.
        names: their labels.
        multipliers: one per row; positive for its upper bound, negative for its lower; ``Σ μ_i a_i = 0``.
        gap: ``Σ μ_i b_i``, negative: by how much the weighted rows miss each other.
        proven: True if both facts hold exactly, in rational arithmetic, for some multipliers that round to these.
    """

    rows: tuple[int, ...]
    names: tuple[str, ...]
    multipliers: tuple[float, ...]
    gap: float
    proven: bool

    def __str__(self) -> str:
        if not self.rows:
            return "no point was found within the iteration limit"
        parts = ", ".join(
            f"{name} ({'upper' if mu > 0 else 'lower'} bound, multiplier {abs(mu):.4g})"
            for name, mu in zip(self.names, self.multipliers, strict=True)
        )
        return f"{parts}: together they miss by {-self.gap:.4g}" + ("" if self.proven else " (up to rounding)")


def conflict_of(A: Tensor, lower: Tensor, upper: Tensor, multipliers: Tensor, names: tuple[str, ...]) -> Conflict:
    """Turn approximate multipliers ``(m,)`` of one sample, in the user's units, into a checked certificate.

    The rows with a non-zero multiplier are taken as they are, in rationals; their exact linear dependence replaces the
    rounded multipliers, and signs and gap are then checked exactly.
    """
    return _conflict_of(*(t.detach().double().cpu().numpy() for t in (A, lower, upper, multipliers)), names=names)


def _conflict_of(
    A: np.ndarray, lower: np.ndarray, upper: np.ndarray, multipliers: np.ndarray, *, names: tuple[str, ...]
) -> Conflict:
    rows = [int(i) for i in np.flatnonzero(multipliers)]
    if not rows:
        return Conflict((), (), (), 0.0, False)
    signs = [1 if multipliers[i] > 0 else -1 for i in rows]
    bounds = [upper[i] if s > 0 else lower[i] for i, s in zip(rows, signs, strict=True)]
    equal = [lower[i] == upper[i] for i in rows]
    never = [i for i, b, s in zip(rows, bounds, signs, strict=True) if b == -s * np.inf]
    if never:  # a bound at the wrong infinity excludes every point on its own
        sign = signs[rows.index(never[0])]
        return Conflict((never[0],), (names[never[0]],), (float(sign),), -np.inf, True)
    crossed = [i for i in rows if lower[i] > upper[i]]
    if crossed:  # one row is enough if its own bounds cross
        i, gap = crossed[0], float(upper[crossed[0]] - lower[crossed[0]])
        return Conflict((i, i), (names[i], names[i]), (1.0, -1.0), gap, True)
    exact = _dependence([[Fraction(float(v)) for v in A[i]] for i in rows])
    if exact is not None:
        # The dependence is unique up to its sign: the sign is the one that makes the gap negative.
        gap = sum((mu * Fraction(float(b)) for mu, b in zip(exact, bounds, strict=True)), Fraction(0))
        if gap > 0:
            exact, gap = [-mu for mu in exact], -gap
        fits = all(e or mu * s >= 0 for mu, s, e in zip(exact, signs, equal, strict=True))
        if fits and gap < 0:
            largest = max(abs(mu) for mu in exact)
            kept = [(i, mu / largest) for i, mu in zip(rows, exact, strict=True) if mu]
            return Conflict(
                tuple(i for i, _ in kept),
                tuple(names[i] for i, _ in kept),
                tuple(float(mu) for _, mu in kept),
                float(gap / largest),
                True,
            )
    values = [float(multipliers[i]) for i in rows]
    gap = float(sum(mu * b for mu, b in zip(values, bounds, strict=True)))
    return Conflict(tuple(rows), tuple(names[i] for i in rows), tuple(values), gap, False)


def _dependence(rows: list[list[Fraction]]) -> list[Fraction] | None:
    """The numbers ``μ`` with ``Σ μ_i row_i = 0`` when they are unique up to a factor, else None (exact elimination)."""
    count, width = len(rows), len(rows[0])
    table = [list(row) + [Fraction(int(i == j)) for j in range(count)] for i, row in enumerate(rows)]
    done: list[list[Fraction]] = []
    relations = []
    for row in table:
        for pivot_row in done:
            column = next(j for j in range(width) if pivot_row[j])
            if row[column]:
                factor = row[column] / pivot_row[column]
                row = [v - factor * p if p else v for v, p in zip(row, pivot_row, strict=True)]
        if any(row[:width]):
            done.append(row)
        else:
            relations.append(row[width:])
    return relations[0] if len(relations) == 1 else None


def surely_satisfies(A: Tensor, lower: Tensor, upper: Tensor, y: Tensor, skip: Tensor) -> Tensor:
    """Whether a rigorous error bound proves ``lower <= A y <= upper``, ``(B,)``, for y ``(B, n)``.

    Rows in ``skip (B, m)`` are not asked. A point exactly on a bound is usually not proven: see `exactly_satisfies`.
    """
    broken, unsure = _judge(A, lower, upper, y, skip)
    return ~(broken | unsure).any(-1)


def exactly_satisfies(A: Tensor, lower: Tensor, upper: Tensor, y: Tensor, skip: Tensor) -> Tensor:
    """Whether ``lower <= A y <= upper`` holds exactly, ``(B,)``: what the bound leaves open is done in rationals."""
    broken, unsure = _judge(A, lower, upper, y, skip)
    answer = ~broken.any(-1)
    for b, i in (unsure & answer.unsqueeze(-1)).nonzero().tolist():
        row = A[i] if A.ndim == 2 else A[b, i]
        total = sum((Fraction(p) * Fraction(q) for p, q in zip(row.tolist(), y[b].tolist(), strict=True)), Fraction(0))
        low, high = float(lower[b, i]), float(upper[b, i])
        if (high < np.inf and total > Fraction(high)) or (low > -np.inf and total < Fraction(low)):
            answer[b] = False
    return answer


def _judge(A: Tensor, lower: Tensor, upper: Tensor, y: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows ``(B, m)`` are surely broken, and which rounding leaves undecided."""
    value, size = apply(A, y), apply(A.abs(), y.abs())
    bound = tolerance.rounding(y.dtype, y.shape[-1])
    exact = (A == 0).all(-1)  # 0 <= b needs no arithmetic
    known = A.isfinite().all(-1) & y.isfinite().all(-1, keepdim=True)
    unsure, broken = torch.zeros_like(skip), ~known & torch.ones_like(skip)
    for excess, edge in ((value - upper, upper), (lower - value, lower)):
        error = bound * (size + torch.where(edge.isfinite(), edge.abs(), 0.0)) + tolerance.underflow(y.dtype)
        broken = broken | (excess > torch.where(exact, 0.0, error))
        # Not <=: where products of huge numbers overflow, neither the excess nor its error is a number.
        unsure = unsure | (~(excess.abs() > error) & ~exact & known)
    return broken & ~skip, unsure & ~skip
