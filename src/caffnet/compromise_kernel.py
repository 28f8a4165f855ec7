"""The walk through the choices of dependent rows, compiled, one sample after the other.

What is looked for is told in `compromise`, the updates of the pseudo-inverse in `search.faces`. The walk is depth
first: depth ``d`` keeps ``A⁺``, ``N = I - A⁺A`` and the point of the first ``d`` rows. One more row ``a y = b`` moves
the point by ``c (b - a y)``, c the new column of ``A⁺``: a choice costs one update, and its last row not even that.
"""

from __future__ import annotations

import math

import numba
import numpy as np

# Without reference counts (_nrt): they cost more than the arithmetic. So no slices here, but whole arrays and places.
_options = {"nogil": True, "error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_compile = numba.njit(**_options)


def _compile_entry(function):
    """With the machine code kept on disk, where there is a place for it."""
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # a read-only installation without a home: compile in every process
        return numba.njit(nogil=True, error_model="numpy")(function)


@_compile
def _independent(a, d, null, cut, r, half):
    """Whether something is left of the row at depth `d`: ``r = N a``, or ``N N a`` where that is small."""
    n = a.shape[0]
    size, squared = 0.0, 0.0
    for i in range(n):
        r[i] = 0.0
        for j in range(n):
            r[i] += null[d, i, j] * a[j]
        size += a[i] * a[i]
        squared += r[i] * r[i]
    if squared > 0.5 * size:
        return True
    for i in range(n):
        half[i] = r[i]
    squared = 0.0
    for i in range(n):
        r[i] = 0.0
        for j in range(n):
            r[i] += null[d, i, j] * half[j]
        squared += r[i] * r[i]
    return squared > cut * size


@_compile
def _column(a, weight, d, adds, r, pinv, weights, e, c):
    """The new column `c` of ``A⁺``, and ``e = a A⁺``."""
    n = a.shape[0]
    along, length = 0.0, 1.0
    for i in range(n):
        c[i] = 0.0
        along += a[i] * r[i]
    for j in range(d):
        e[j] = 0.0
        for i in range(n):
            e[j] += a[i] * pinv[d, i, j]
        shared = e[j] * weight / weights[j]
        length += e[j] * shared
        for i in range(n):
            c[i] += pinv[d, i, j] * shared
    for i in range(n):
        c[i] = r[i] / along if adds else c[i] / length


@_compile
def _push(d, adds, r, e, c, pinv, null):
    """Fill depth ``d + 1``."""
    n = c.shape[0]
    squared = 0.0
    for i in range(n):
        squared += r[i] * r[i]
    for i in range(n):
        for j in range(d):
            pinv[d + 1, i, j] = pinv[d, i, j] - c[i] * e[j]
        pinv[d + 1, i, d] = c[i]
        for j in range(n):
            null[d + 1, i, j] = null[d, i, j] - (r[i] * r[j] / squared if adds else 0.0)


@_compile
def _feasible(A, own, lower, upper, b, y, start, share, underflow):
    n = y.shape[0]
    size = start
    for i in range(n):
        size = max(size, start + abs(y[i]))
    allowed = share * size + underflow
    for row in range(A.shape[1]):
        value = 0.0
        for i in range(n):
            value += A[own, row, i] * y[i]
        if not value <= upper[b, row] + share * abs(upper[b, row]) + allowed:
            return False
        if not value >= lower[b, row] - share * abs(lower[b, row]) - allowed:
            return False
    return True


@_compile
def _distance(y, f, b, norm, reach):
    """``|y - f|_p``; infinite if the largest component alone is beyond `reach`."""
    top = 0.0
    for i in range(y.shape[0]):
        top = max(top, abs(y[i] - f[b, i]))
    if not top < reach:
        return math.inf
    if norm == math.inf or top == 0.0:
        return top
    total = 0.0
    for i in range(y.shape[0]):
        ratio = abs(y[i] - f[b, i]) / top
        total += ratio * ratio if norm == 2.0 else ratio**norm
    return top * (math.sqrt(total) if norm == 2.0 else total ** (1.0 / norm))


@_compile_entry
def nearest(A, lower, upper, weight, f, g, limit, ends, sides, equalities, norm, t, chosen):
    """The nearest feasible compromise of each sample that is nearer than its `limit`.

    Args:
        A: scaled rows, ``(B, m, n)``, or ``(1, m, n)`` for all.
        lower: ``(B, m)``.
        upper: ``(B, m)``.
        weight: of the rows in a sum of squares, ``(B, m)`` or ``(1, m)``.
        f: ``(B, n)``.
        g: ``(B, n)``.
        limit: ``(B,)``; samples whose limit is 0 are passed over.
        ends: the row of every side that can be chosen; the equalities first.
        sides: which side, +1 or -1.
        equalities: how many those are; they are in every choice.
        norm: of the distance.
        t: the tolerances: feasibility, squared rank, underflow, tie.
        chosen: places in `ends` of the answer, -1 in empty slots, ``(B, n)``; all -1 if there is none.
    """
    share, cut, underflow, tie = t
    samples, n = f.shape
    pinv, null, points = np.zeros((n + 1, n, n)), np.zeros((n + 1, n, n)), np.zeros((n + 1, n))
    place, after = np.zeros(n, np.int64), np.zeros(n + 1, np.int64)
    dependent = np.zeros(n + 1, np.bool_)
    weights, e, c, a = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    y, r, half = np.zeros(n), np.zeros(n), np.zeros(n)
    chosen[:] = -1
    for i in range(n):
        null[0, i, i] = 1.0
    for b in range(samples):
        best = limit[b]
        if not best > 0.0:
            continue
        own = b if A.shape[0] > 1 else 0
        start = 0.0
        for i in range(n):
            start = max(start, abs(f[b, i]))
            points[0, i] = g[b, i]
        depth = 0
        after[0] = 0
        while depth >= 0:
            option = after[depth]
            # Every choice begins with all equalities, in order.
            if option >= ends.shape[0] or depth >= n or (depth < equalities and option > depth):
                depth -= 1
                continue
            after[depth] = option + 1
            row = ends[option]
            bound = upper[b, row] if sides[option] > 0 else lower[b, row]
            if abs(bound) == math.inf:
                continue
            gap = bound
            for i in range(n):
                a[i] = A[own, row, i]
                gap -= a[i] * points[depth, i]
            adds = _independent(a, depth, null, cut, r, half)
            here = depth + 1
            dependent[here] = dependent[depth] or (depth >= equalities and not adds)
            if here == n and not dependent[here]:
                continue
            _column(a, weight[own, row], depth, adds, r, pinv, weights, e, c)
            for i in range(n):
                y[i] = points[depth, i] + c[i] * gap
            place[depth] = option
            if dependent[here]:
                reach = best * (1.0 - tie)
                distance = _distance(y, f, b, norm, reach)
                if distance < reach and _feasible(A, own, lower, upper, b, y, start, share, underflow):
                    best = distance
                    for i in range(n):
                        chosen[b, i] = place[i] if i < here else -1
            if here < n:
                for i in range(n):
                    points[here, i] = y[i]
                weights[depth] = weight[own, row]
                _push(depth, adds, r, e, c, pinv, null)
                depth = here
                after[depth] = option + 1
