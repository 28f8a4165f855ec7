"""Double description: the generators of the cone ``{y : A y <= 0, C y = 0}``.

A cone is kept as lines (both directions) and rays. It starts as the whole space, n lines; the rows cut it one by one.
If some line crosses the row, that line becomes a ray on the right side and all other generators are pushed along it
onto the row. Else the rays on the wrong side go, and each adjacent pair of a good and a bad ray leaves the ray where
their face meets the row. Two rays are adjacent when no third one satisfies with equality all the rows that both do.
"""

from __future__ import annotations

import numpy as np

#: Coefficients below this are zero: rows and rays have length one.
ZERO = 1e-10


def generators(A: np.ndarray, C: np.ndarray) -> np.ndarray:
    """The rays of the cone, ``(count, n)``, at length one; a line is given as two opposite rays.

    >>> generators(np.array([[-1.0, 0.0], [0.0, -1.0]]), np.zeros((0, 2)))  # the quadrant y >= 0
    array([[1., 0.],
           [0., 1.]])
    """
    n = A.shape[1]
    lines, rays = np.eye(n), np.zeros((0, n))
    done = np.zeros((0, n))  # the inequalities so far
    rows = [(row, True) for row in C] + [(row, False) for row in A]
    for row, equality in rows:
        length = np.linalg.norm(row)
        if length == 0:
            continue
        row = row / length
        lines, rays = _cut(lines, rays, row, equality, done)
        if not equality:
            done = np.vstack([done, row])
    return _unique(_unit(np.vstack([rays, lines, -lines])))


def _cut(
    lines: np.ndarray, rays: np.ndarray, row: np.ndarray, equality: bool, done: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The generators after one more row ``row y <= 0`` (or ``= 0``)."""
    along, value = _rounded(lines @ row), _rounded(rays @ row)
    if along.any():
        crossing = int(np.abs(along).argmax())
        line = -lines[crossing] * np.sign(along[crossing])  # its value is negative: the right side
        slope = line @ row
        others = np.delete(lines, crossing, axis=0)
        lines = _unit(others - np.outer(others @ row / slope, line))
        rays = _unit(rays - np.outer(value / slope, line))
        return lines, rays if equality else np.vstack([rays, line])
    bad, good, on = value > 0, value < 0, value == 0
    kept = rays[on] if equality else rays[~bad]
    tight = _rounded(rays @ done.T) == 0 if len(done) else np.zeros((len(rays), 0), dtype=bool)
    made = [
        value[p] * rays[q] - value[q] * rays[p]  # value zero, positive weights
        for p in np.flatnonzero(bad)
        for q in np.flatnonzero(good)
        if _adjacent(tight, p, q)
    ]
    return lines, _unique(_unit(np.vstack([kept, *made])))


def _adjacent(tight: np.ndarray, p: np.intp, q: np.intp) -> bool:
    common = tight[p] & tight[q]
    holders = (tight[:, common]).all(axis=1)
    return int(holders.sum()) == 2


def _rounded(values: np.ndarray) -> np.ndarray:
    return np.where(np.abs(values) <= ZERO, 0.0, values)


def _unit(rows: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0)


def _unique(rows: np.ndarray) -> np.ndarray:
    kept: list[np.ndarray] = []
    for row in rows:
        if not any(np.abs(row - other).max() <= 1e-9 for other in kept):
            kept.append(row)
    return np.array(kept).reshape(-1, rows.shape[1])
