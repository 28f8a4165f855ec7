"""Double description: the generators of the cone ``{y : A y <= 0, C y = 0}``.

A cone is stored as lines (both directions) and rays. It starts as the whole space, n lines; the rows cut it one by one.
If some line crosses the row, that line becomes a ray on the right side and all other generators are moved along it
onto the row. Else the rays on the wrong side are removed, and each adjacent pair of a right and a wrong ray adds the
ray where their face meets the row. Two rays are adjacent if no third ray satisfies with equality all rows that both do.

The rows that a ray satisfies with equality follow from its construction: the common rows of its parents, and the new
row. Only the side of a new row on which it lies is computed; all numbers have bounds of their rounding errors, which
start with the rounding of the data, and a value within its bound is zero. So a cone may be very narrow.
"""

from __future__ import annotations

import dataclasses

import numpy as np

#: The arithmetic here is float64.
EPS = float(np.finfo(float).eps)


@dataclasses.dataclass(frozen=True)
class Vectors:
    """Directions ``(count, n)`` at length one, with a bound of the error of each entry, and the rows they lie on.

    Attributes:
        entries: the numbers.
        error: the bounds, of the same shape.
        tight: mask ``(count, rows)`` of the inequalities so far that hold with equality.
    """

    entries: np.ndarray
    error: np.ndarray
    tight: np.ndarray

    def take(self, index: np.ndarray) -> Vectors:
        """Select some of the vectors."""
        return Vectors(self.entries[index], self.error[index], self.tight[index])

    def on_row(self, tight: np.ndarray | bool) -> Vectors:
        """Add one inequality, with a mask of the vectors on it (or True for all)."""
        more = np.broadcast_to(tight, len(self.entries))
        return dataclasses.replace(self, tight=np.column_stack([self.tight, more]))

    def values(self, row: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
        """``row y`` of each, zero where that is within the bound of its error, and these bounds."""
        size = np.abs(self.entries) @ np.abs(row)
        bound = self.error @ np.abs(row) + (share + len(row) * EPS) * size
        value = self.entries @ row
        return np.where(np.abs(value) <= bound, 0.0, value), bound


def generators(A: np.ndarray, C: np.ndarray, share: float = 8 * EPS) -> np.ndarray:
    """The rays of the cone, ``(count, n)``, at length one; a line is given as two opposite rays.

    Args:
        A: rows of inequalities.
        C: rows of equalities.
        share: relative rounding of the data.

    >>> generators(np.array([[-1.0, 0.0], [0.0, -1.0]]), np.zeros((0, 2)))  # the quadrant y >= 0
    array([[1., 0.],
           [0., 1.]])
    """
    n = A.shape[1]
    lines = Vectors(np.eye(n), np.zeros((n, n)), np.ones((n, 0), dtype=bool))
    rays = lines.take(np.arange(0))
    rows = [(row, True) for row in C] + [(row, False) for row in A]
    for row, equality in rows:
        length = np.linalg.norm(row)
        if length > 0:
            lines, rays = _cut(lines, rays, row / length, equality, share)
    return np.vstack([rays.entries, lines.entries, -lines.entries])


def _cut(lines: Vectors, rays: Vectors, row: np.ndarray, equality: bool, share: float) -> tuple[Vectors, Vectors]:
    """The generators after one more row ``row y <= 0`` (or ``= 0``)."""
    along, along_bound = lines.values(row, share)
    value, bound = rays.values(row, share)
    if along.any():
        crossing = int(np.abs(along).argmax())
        line = lines.take(np.array([crossing]))
        sign = -np.sign(along[crossing])  # with it the value is negative: the right side
        line = Vectors(sign * line.entries, line.error, line.tight)
        slope = (-np.abs(along[crossing]), along_bound[crossing])
        others = np.delete(np.arange(len(along)), crossing)
        lines = _pushed(lines.take(others), along[others], along_bound[others], line, slope)
        rays = _pushed(rays, value, bound, line, slope)
        if equality:
            return lines, rays
        return lines.on_row(True), _joined(rays.on_row(True), line.on_row(False))
    bad, good, on = value > 0, value < 0, value == 0
    kept = rays.take(np.flatnonzero(on if equality else ~bad))
    pairs = [(p, q) for p in np.flatnonzero(bad) for q in np.flatnonzero(good) if _adjacent(rays.tight, p, q)]
    p, q = np.array(pairs, dtype=int).reshape(-1, 2).T
    # value zero, positive weights
    made = _combined(rays.take(q), value[p], bound[p], rays.take(p), -value[q], bound[q])
    made = dataclasses.replace(made, tight=rays.tight[p] & rays.tight[q])
    if not equality:
        lines, kept, made = lines.on_row(True), kept.on_row(value[~bad] == 0), made.on_row(True)
    return lines, _joined(kept, made)


def _pushed(v: Vectors, value: np.ndarray, bound: np.ndarray, line: Vectors, slope: tuple[float, float]) -> Vectors:
    """Vectors moved along the line onto the row: ``v - (value / slope) line``, times ``-slope``, which is positive."""
    count = len(v.entries)
    along = line.take(np.zeros(count, dtype=int))
    moved = _combined(v, np.full(count, -slope[0]), np.full(count, slope[1]), along, value, bound)
    stays = (value == 0)[:, None]
    return Vectors(np.where(stays, v.entries, moved.entries), np.where(stays, v.error, moved.error), v.tight)


def _combined(
    v: Vectors, a: np.ndarray, a_bound: np.ndarray, w: Vectors, b: np.ndarray, b_bound: np.ndarray
) -> Vectors:
    """``a v + b w`` at length one, line by line; entries within the bound of their error are zero."""
    a, a_bound, b, b_bound = (x[:, None] for x in (a, a_bound, b, b_bound))
    entries = a * v.entries + b * w.entries
    size_v, size_w = np.abs(v.entries), np.abs(w.entries)
    error = np.abs(a) * v.error + np.abs(b) * w.error + a_bound * size_v + b_bound * size_w
    error += 2 * EPS * (np.abs(a) * size_v + np.abs(b) * size_w)
    noise = np.abs(entries) <= error
    entries, error = np.where(noise, 0.0, entries), np.where(noise, 0.0, error)
    length = np.linalg.norm(entries, axis=1, keepdims=True)
    length = np.where(length > 0, length, 1.0)
    return Vectors(entries / length, error / length + 2 * EPS * np.abs(entries / length), v.tight)


def _adjacent(tight: np.ndarray, p: np.intp, q: np.intp) -> bool:
    common = tight[p] & tight[q]
    holders = (tight[:, common]).all(axis=1)
    return int(holders.sum()) == 2


def _joined(first: Vectors, second: Vectors) -> Vectors:
    return Vectors(
        np.vstack([first.entries, second.entries]),
        np.vstack([first.error, second.error]),
        np.vstack([first.tight, second.tight]),
    )
