"""Linear programs about polyhedra, through scipy's HiGHS: empty? which rows are needed? where is the middle?

All sets here are ``{y : A y <= b, C y = d}`` in numpy, float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from caffnet.constraints import AffineSet
from caffnet.errors import InfeasibleError

#: What HiGHS is asked for (its finest), and what then counts as equal in an optimum.
HIGHS = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
LP_TOLERANCE = 1e-9


def one_sided(set: AffineSet) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The rows of a set without batch axes as ``A y <= b`` and ``C y = d``, each row at length one.

    Zero rows say nothing about y: one that holds is dropped, one that cannot hold empties the set.
    """
    rows, lower, upper = (t.detach().double().cpu().numpy() for t in (set.A, set.lower, set.upper))
    length = np.linalg.norm(rows, axis=-1)
    zero = length == 0
    if ((lower > 0) | (upper < 0))[zero].any():
        raise empty("a row of zeros excludes every point")
    rows, lower, upper, length = rows[~zero], lower[~zero], upper[~zero], length[~zero]
    rows, lower, upper = rows / length[:, None], lower / length, upper / length
    equal = lower == upper
    above, below = ~equal & np.isfinite(upper), ~equal & np.isfinite(lower)
    A, b = np.vstack([rows[above], -rows[below]]), np.concatenate([upper[above], -lower[below]])
    return A, b, rows[equal], upper[equal]


def irredundant(A: np.ndarray, b: np.ndarray, C: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The inequalities without those that the others imply.

    Row i is implied when ``max a_i y`` over the other rows, with row i itself relaxed by one, does not exceed ``b_i``.
    """
    if minimum(np.zeros(A.shape[1]), A, b, C, d) is None:
        raise empty("a linear program proves it")
    keep = list(range(len(A)))
    for i in range(len(A)):
        others = [j for j in keep if j != i]
        rows, right = A[[*others, i]], np.append(b[others], b[i] + 1)
        least = minimum(-A[i], rows, right, C, d)
        if least is not None and -least <= b[i] + LP_TOLERANCE * (1 + abs(b[i])):
            keep = others
    return A[keep], b[keep]


def implicit_equalities(A: np.ndarray, b: np.ndarray, C: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Which inequalities hold with equality at every point, ``(m,)``: those whose ``min a_i y`` is already ``b_i``."""
    always = np.zeros(len(A), dtype=bool)
    for i, (row, right) in enumerate(zip(A, b, strict=True)):
        least = minimum(row, A, b, C, d)
        always[i] = least is not None and least >= right - LP_TOLERANCE * (1 + abs(right))
    return always


def interior_point(A: np.ndarray, b: np.ndarray, most: float = 0.5) -> tuple[np.ndarray, float]:
    """A point of ``{A y <= b}`` far from every row, and its distance to the nearest one.

    The first program finds the largest possible distance, up to `most`, at the scale of the data: rows that are
    parallel but for rounding also meet, very far away. The second takes, of all points nearly that far from the rows,
    the one with the smallest ``|y|_inf``: an unbounded set would else be entered anywhere. (The published code
    maximises the slack ``b - A y``, which changes with the user's units, and leaves the rest to its solver.)
    """
    n = A.shape[1]
    if not len(A):
        return np.zeros(n), most
    length = np.linalg.norm(A, axis=1, keepdims=True)
    near = 10 * (1 + np.abs(b / length[:, 0]).max())
    for reach in (near, None):
        bounds = [(reach and -reach, reach)] * n + [(0, most)]
        deepest = _solve(np.append(np.zeros(n), -1.0), np.hstack([A, length]), b, bounds)
        if deepest.status == 0 and (reach is None or deepest.x[n] > 1e-6):
            break
    else:
        raise empty("a linear program proves it")
    inside = np.hstack([A, np.zeros_like(length)])
    box = np.vstack([np.hstack([sign * np.eye(n), -np.ones((n, 1))]) for sign in (1, -1)])  # |y_i| <= t
    right = np.concatenate([b - 0.99 * deepest.x[n] * length[:, 0], np.zeros(2 * n)])
    nearest = _solve(np.append(np.zeros(n), 1.0), np.vstack([inside, box]), right, (None, None))
    point = (nearest if nearest.status == 0 else deepest).x[:n]
    return point, float(((b - A @ point) / length[:, 0]).min().clip(max=most))


def minimum(c: np.ndarray, A: np.ndarray, b: np.ndarray, C: np.ndarray, d: np.ndarray) -> float | None:
    """``min c y`` over the set; ``-inf`` when unbounded, None when the set is empty."""
    solved = _solve(c, A, b, (None, None), C, d)
    if solved.status == 3 or (solved.status == 4 and c.any()):
        return -np.inf
    return None if solved.status != 0 else float(solved.fun)


def _solve(c: np.ndarray, A: np.ndarray, b: np.ndarray, bounds: Any, C: Any = None, d: Any = None) -> Any:
    try:
        from scipy.optimize import linprog
    except ImportError as error:  # an extra, so that the layer itself needs no scipy
        raise ImportError("This method solves linear programs: pip install 'caffnet[methods]'.") from error
    equal = (C, d) if C is not None and len(C) else (None, None)
    inequal = (A, b) if len(A) else (None, None)
    return linprog(c, *inequal, *equal, bounds=bounds, method="highs", options=HIGHS)


def empty(why: str) -> InfeasibleError:
    """The error for a set without points."""
    return InfeasibleError(f"The feasible set is empty: {why}. Relax a bound, or drop a row.", [()], [])
