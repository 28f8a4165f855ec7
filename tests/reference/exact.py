"""Rational arithmetic: proofs that a point is the projection, and that a set is empty.

The floats of a problem are rationals, so a proof here is a proof about the very numbers that the library gets. No step
depends on the library, nor on how the active rows were found: a wrong guess fails the proof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

Vector = list[Fraction]


def solve(matrix: Sequence[Sequence[Fraction]], right: Sequence[Fraction]) -> Vector | None:
    """The solution of a square system by elimination; None if it is singular."""
    size = len(matrix)
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for c in range(size):
        pivot = next((i for i in range(c, size) if rows[i][c] != 0), None)
        if pivot is None:
            return None
        rows[c], rows[pivot] = rows[pivot], rows[c]
        rows[c] = [value / rows[c][c] for value in rows[c]]
        for i in range(size):
            if i != c and rows[i][c] != 0:
                factor = rows[i][c]
                rows[i] = [value - factor * top for value, top in zip(rows[i], rows[c], strict=True)]
    return [line[-1] for line in rows]


def dot(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    """The inner product."""
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


def prove_projection(
    A: Sequence[Sequence[float]],
    lower: Sequence[float],
    upper: Sequence[float],
    f: Sequence[float],
    active: Sequence[tuple[int, int]],
) -> Vector | None:
    """The projection of f, if these rows (index, side: +1 upper, -1 lower) prove it; else None.

    With the rows W held at their bounds, ``y = f - Wᵀ λ`` and ``W Wᵀ λ = W f - b``. It is the projection if all rows
    hold at y and each multiplier pulls inwards (Karush, Kuhn, Tucker: sufficient, as the problem is convex). Equalities
    may pull either way.
    """
    point = [Fraction(value) for value in f]
    held = [[Fraction(value) for value in A[i]] for i, _ in active]
    bounds = [Fraction(upper[i] if side > 0 else lower[i]) for i, side in active]
    gram = [[dot(a, b) for b in held] for a in held]
    multipliers = solve(gram, [dot(a, point) - b for a, b in zip(held, bounds, strict=True)])
    if multipliers is None:
        return None
    for (i, side), multiplier in zip(active, multipliers, strict=True):
        if multiplier * side < 0 and lower[i] != upper[i]:
            return None
    y = [
        value - sum((m * a[j] for m, a in zip(multipliers, held, strict=True)), Fraction(0))
        for j, value in enumerate(point)
    ]
    return y if holds(A, lower, upper, y) else None


def holds(
    A: Sequence[Sequence[float]], lower: Sequence[float], upper: Sequence[float], y: Sequence[Fraction | float]
) -> bool:
    """Whether every row holds at y, without rounding."""
    point = [Fraction(value) for value in y]
    for a, low, high in zip(A, lower, upper, strict=True):
        value = dot([Fraction(number) for number in a], point)
        if (math.isfinite(high) and value > Fraction(high)) or (math.isfinite(low) and value < Fraction(low)):
            return False
    return True


def conflict_gap(
    A: Sequence[Sequence[float]], lower: Sequence[float], upper: Sequence[float], multipliers: dict[int, Fraction]
) -> tuple[Vector, Fraction]:
    """``Σ μ_i a_i`` and ``Σ μ_i b_i``: zero and negative prove that no point satisfies the rows (Farkas)."""
    n = len(A[0])
    left = [sum((mu * Fraction(A[i][j]) for i, mu in multipliers.items()), Fraction(0)) for j in range(n)]
    gap = sum((mu * Fraction(upper[i] if mu > 0 else lower[i]) for i, mu in multipliers.items()), Fraction(0))
    return left, gap
