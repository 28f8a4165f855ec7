"""Linear programs about polyhedra, through scipy's HiGHS: emptiness, flat rows, redundant rows, and a middle.

All sets here are ``{y : A y <= b}`` in numpy, float64, with rows of length one; ``b - A y`` are then distances.

HiGHS has absolute tolerances only, so every program is written in units of the set, and its answer is checked: a point
by its measured distances to the rows, a proof by its multipliers and the data. Differences that are too small to decide
are compared with the rounding of the data, ``noise``, in the same units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from caffnet._install import install_command
from caffnet.constraints import AffineSet
from caffnet.errors import InfeasibleError

#: The smallest tolerance that HiGHS accepts.
HIGHS = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}

#: Room above this value is certain: ten thousand times the tolerance of HiGHS.
CLEAR = 1e-6

#: Below CLEAR, a program is written again around the point found, in units finer by this (a power of two, near CLEAR).
FINER = 2.0**-20

#: Right sides beyond this, in those finer units, are brought nearer: the rows are far away in any case.
FAR = 2.0**30

#: A bound from here on usually stands for none (HiGHS reads it so); it sets no unit where there are others.
NO_BOUND = 1e20

#: The middle of a set need not be farther from its rows than this, in units of the set (published: 0.5).
MOST = 0.5


def one_sided(set: AffineSet) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The rows of a set without batch axes as ``A y <= b`` and ``C y = d``, each row at length one.

    Rows of zeros do not depend on y: a row that holds is dropped, and a row that cannot hold makes the set empty.
    """
    rows, lower, upper = (t.detach().double().cpu().numpy() for t in (set.A, set.lower, set.upper))
    zero = ~rows.any(axis=-1)
    if ((lower > 0) | (upper < 0))[zero].any():
        raise empty("a row of zeros excludes every point")
    rows, lower, upper = rows[~zero], lower[~zero], upper[~zero]
    equal = (lower == upper) & np.isfinite(upper)
    # A power of two first: squares of very small or large entries under- or overflow. A bound may then overflow.
    exponent = np.frexp(np.abs(rows).max(axis=-1, initial=0.0))[1]
    with np.errstate(over="ignore"):
        rows, lower, upper = np.ldexp(rows, -exponent[:, None]), np.ldexp(lower, -exponent), np.ldexp(upper, -exponent)
    if (lower == np.inf).any() or (upper == -np.inf).any():
        raise empty("a lower bound is +inf or an upper one -inf")
    length = np.linalg.norm(rows, axis=-1)
    rows, lower, upper = rows / length[:, None], lower / length, upper / length
    above, below = ~equal & np.isfinite(upper), ~equal & np.isfinite(lower)
    A, b = np.vstack([rows[above], -rows[below]]), np.concatenate([upper[above], -lower[below]])
    return A, b, rows[equal], upper[equal]


def without_repeats(A: np.ndarray, b: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Keep only the tightest of rows of length one that are equal up to rounding to `eps`.

    Writing a row in another unit rounds each entry, and so does its length: two such rows differ by at most 4 eps.
    """
    kept: list[int] = []
    for i, row in enumerate(A):
        same = np.flatnonzero(np.abs(A[kept] - row).max(axis=1, initial=0.0) <= 4 * eps)
        if not len(same):
            kept.append(i)
        elif b[i] <= b[kept[same[0]]]:
            kept[same[0]] = i
    kept.sort()
    return A[kept], b[kept]


# ---------------------------------------------------------------------------------------------------- room inside


@dataclasses.dataclass(frozen=True)
class Deepest:
    """The point of ``{A y <= b}`` farthest from all rows.

    Attributes:
        point: the point, ``(n,)``.
        room: its measured distance to the nearest row, or less if that is enough.
        unit: the size of the set's data.
        flat: the rows that hold with equality at every point, up to rounding, ``(m,)``.
    """

    point: np.ndarray
    room: float
    unit: float
    flat: np.ndarray


def deepest(A: np.ndarray, b: np.ndarray, noise: Callable[[np.ndarray], np.ndarray], parallel: float = 0.0) -> Deepest:
    """Look for a point with room; else find the rows that leave no room, or prove that there is no point.

    The program is ``max t`` subject to ``A y + t <= b``. Its multipliers are weights ``w >= 0`` of sum one with
    ``w A = 0``, so the weighted distances ``w (b - A y)`` add up to the same ``w b`` at every point: negative, there is
    no point in the set; zero, every row with a weight holds with equality; positive, there may be room.

    The first try stays near the origin: rows that are parallel but for rounding also meet, very far away. There
    weights with ``|w A| <= parallel`` show that rows hold with equality, up to the rounding of the data; they do
    not show that there is no point.

    Args:
        A: rows of length one.
        b: right sides.
        noise: how large a distance rounding can explain at a point, ``(n,) -> (m,)``.
        parallel: how long a weighted sum of rows rounding can explain.
    """
    m, n = A.shape
    point, flat = np.zeros(n), np.zeros(m, dtype=bool)
    size = unit = typical_size(b, noise(point))
    if not m:
        return Deepest(point, MOST * size, size, flat)
    near = 10 * (1 + np.abs(b / unit).max())
    for reach in (near, None, None, None, None):
        slack = b - A @ point
        right = slack / unit if unit == size else np.minimum(slack / unit, FAR)
        found = _deepest_program(A, right, reach, min(MOST * size / unit, FAR))
        if found is not None:
            step, weights = found
            if (b - A @ (point + unit * step)).min() > slack.min():
                point = point + unit * step
            room = (b - A @ point).min()
            if room > CLEAR * unit and (b - A @ point > noise(point)).all():
                break
            weights = _balanced(A, weights) if reach is None else weights * (np.abs(weights @ A).max() <= parallel)
            distances, doubt = weights @ (b - A @ point), weights @ noise(point)
            if weights.any() and abs(distances) <= doubt:
                flat = weights >= 0.1 * weights.max()  # rows with less weight are found next time
                break
            if reach is None and distances < -doubt:
                raise empty("a linear program proves it")
        if reach is None:
            unit *= FINER
    return Deepest(point, float((b - A @ point).min().clip(max=MOST * size)), size, flat)


def _deepest_program(
    A: np.ndarray, right: np.ndarray, reach: float | None, most: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a step ``(n,)`` and weights ``(m,)``, or None if HiGHS finds no answer."""
    m, n = A.shape
    bounds = [(reach and -reach, reach)] * n + [(None, most)]
    solved = _solve(np.append(np.zeros(n), -1.0), np.hstack([A, np.ones((m, 1))]), right, bounds)
    if solved.status != 0:
        return None
    weights = np.clip(-solved.ineqlin.marginals, 0.0, None)
    return solved.x[:n], weights / (weights.sum() or 1.0)


def _balanced(A: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the nearest weights with ``w A = 0`` and sum one, or zeros if there are none.

    HiGHS satisfies ``w A = 0`` to its own tolerance only, which is not a proof. Left singular vectors beyond the rank
    satisfy it to the last digits; a remainder of ``w A`` below a hundred roundings counts as zero.
    """
    eps = np.finfo(float).eps
    holding = weights > 0
    u, size, _ = np.linalg.svd(A[holding])
    null = u[:, int((size > 8 * A.shape[1] ** 0.5 * eps * size.max(initial=0.0)).sum()) :]
    exact = np.zeros_like(weights)
    exact[holding] = np.clip(null @ (null.T @ weights[holding]), 0.0, None)
    total = exact.sum()
    return exact / total if np.abs(exact @ A).max(initial=0.0) <= 100 * eps * total and total > 0 else 0 * exact


def nearest_deep_point(A: np.ndarray, b: np.ndarray, found: Deepest, N: np.ndarray, y_p: np.ndarray) -> np.ndarray:
    """Return the point z with the smallest ``|N z + y_p|_inf`` among those nearly as deep as the deepest.

    In an unbounded set the deepest point could be anywhere. (The published code maximises the slack ``b - A y`` of the
    user's rows, which changes with their units, and leaves the rest to its solver.)
    """
    m, n = A.shape
    if not m or found.room <= CLEAR * found.unit:  # less room than the tolerance of HiGHS
        return found.point
    inside = np.hstack([A, np.zeros((m, 1))])
    box = np.vstack([np.hstack([sign * N, -np.ones((len(N), 1))]) for sign in (1, -1)])  # |(N z + y_p)_i| <= t
    right = np.concatenate([b - 0.99 * found.room, -y_p, y_p]) / found.unit
    solved = _solve(np.append(np.zeros(n), 1.0), np.vstack([inside, box]), right, (None, None))
    if solved.status != 0:
        return found.point
    point = solved.x[:n] * found.unit
    return point if (b - A @ point).min() >= 0.9 * found.room else found.point


def typical_size(b: np.ndarray, noise: np.ndarray) -> float:
    """The median right side of those that are not zero, in size: the unit of a program; 1 for a cone, which has none.

    The median, because a bound may be zero up to rounding, or so large that no answer comes near it.
    """
    sizes = np.sort(np.abs(b)[np.abs(b) > noise])
    sizes = sizes[: np.count_nonzero(sizes < NO_BOUND) or None]
    return float(sizes[(len(sizes) - 1) // 2]) if len(sizes) else 1.0


# ---------------------------------------------------------------------------------------------------- which rows


def irredundant(A: np.ndarray, slack: np.ndarray) -> np.ndarray:
    """Return a mask ``(m,)`` of the rows of ``{A z <= slack}`` that are needed; rows have length one, 0 is inside.

    Row i is not needed if it is a sum ``a_i = w A`` of others with weights ``w >= 0``, and ``w slack <= slack_i``:
    then they imply it. A linear program, ``max a_i z`` over the others, proposes the rows to sum; without a proof the
    row is kept, which costs a little time and does not change the set.

    The program has the rows ``D_i = a_i / slack_i`` in coordinates in which ``Dᵀ D = I``: the set then has about the
    same width in all directions, whatever its size and shape, and HiGHS's tolerances mean the same in all of them.
    """
    keep = np.ones(len(A), dtype=bool)
    D = A / slack[:, None]
    rows = np.linalg.svd(D / np.abs(D).max(initial=0.0), full_matrices=False)[0] if D.size else D
    for i in range(len(A)):
        others = np.flatnonzero(keep & (np.arange(len(A)) != i))
        relaxed = np.append(np.ones(len(others)), 2.0)
        solved = _solve(-rows[i], np.vstack([rows[others], rows[i]]), relaxed, (None, None))
        if solved.status == 0 and -solved.fun <= 1 + CLEAR:
            summed = others[solved.ineqlin.marginals[:-1] < 0]
            keep[i] = not _implied(A[i], slack[i], A[summed], slack[summed])
    return keep


def _implied(row: np.ndarray, slack: float, others: np.ndarray, their_slack: np.ndarray) -> bool:
    """Return True if ``row z <= slack`` is a sum of the others with weights >= 0, up to rounding."""
    from scipy.optimize import nnls

    if not len(others):
        return False
    share = 8 * max(others.shape) ** 0.5 * np.finfo(float).eps  # rounding errors add up like a random walk
    weights, off = nnls(others.T, row)
    return bool(off <= share and weights @ their_slack <= (1 + share) * slack)


def _solve(c: np.ndarray, A: np.ndarray, b: np.ndarray, bounds: Any) -> Any:
    try:
        from scipy.optimize import linprog
    except ImportError as error:  # imported here, as scipy belongs to an extra
        raise ImportError(f"This method solves linear programs: {install_command('methods')}.") from error
    return linprog(c, A, b, bounds=bounds, method="highs", options=HIGHS)


def empty(why: str) -> InfeasibleError:
    """Return the error for an empty set."""
    return InfeasibleError(f"The feasible set is empty: {why}. Relax a bound, or drop a row.", [()], [])
