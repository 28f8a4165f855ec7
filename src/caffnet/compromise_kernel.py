"""Compromises of dependent rows, compiled: the walk through the choices, sample by sample, and the derivative.

What is looked for is told in `compromise`, the updates of the pseudo-inverse in `search.faces`. The walk is depth
first: depth ``d`` keeps ``A⁺``, ``N = I - A⁺A`` and the point of the first ``d`` rows. One more row ``a y = b`` moves
the point by ``c (b - a y)``, c the new column of ``A⁺``: a choice costs one update, and its last row not even that.

(Two short functions are like some of `kernel`. They are not shared, because the compiler's cache on disk does not
notice when another file changes.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from caffnet.kernel import PROJECTED, WITHIN_TOL, compile_allocation, compile_entry, compile_function, compile_inline


class Work(NamedTuple):
    """The first ``d`` rows of a choice, for every depth ``d``, and what it takes to add one."""

    pinv: np.ndarray  # (n + 1, n, n) A⁺
    null: np.ndarray  # (n + 1, n, n) N
    sizes: np.ndarray  # (n,) of the rows
    a: np.ndarray  # (n,) the new row
    r: np.ndarray  # (n,) what N leaves of it
    e: np.ndarray  # (n,) a A⁺
    c: np.ndarray  # (n,) the new column of A⁺
    spare: np.ndarray  # (n,)


@compile_allocation
def _allocate(n):
    null = np.zeros((n + 1, n, n))
    for i in range(n):
        null[0, i, i] = 1.0
    pinv = np.zeros((n + 1, n, n))
    return Work(pinv, null, np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n))


@compile_inline
def _independent(work, d, cut):
    """Whether something is left of the new row at depth `d`: ``r = N a``, or ``N N a`` where that is small."""
    null, a, r, once = work.null, work.a, work.r, work.spare
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
        once[i] = r[i]
    squared = 0.0
    for i in range(n):
        r[i] = 0.0
        for j in range(n):
            r[i] += null[d, i, j] * once[j]
        squared += r[i] * r[i]
    return squared > cut * size


@compile_inline
def _column(work, size, d, adds):
    """The new column of ``A⁺``."""
    pinv, a, r, e, c = work.pinv, work.a, work.r, work.e, work.c
    n = a.shape[0]
    along, length = 0.0, 1.0
    for i in range(n):
        c[i] = 0.0
        along += a[i] * r[i]
    for j in range(d):
        e[j] = 0.0
        for i in range(n):
            e[j] += a[i] * pinv[d, i, j]
        ratio = size / work.sizes[j]
        shared = e[j] * ratio * ratio
        length += e[j] * shared
        for i in range(n):
            c[i] += pinv[d, i, j] * shared
    for i in range(n):
        c[i] = r[i] / along if adds else c[i] / length


@compile_inline
def _push(work, size, d, adds):
    """Fill depth ``d + 1``."""
    pinv, null, r, e, c = work.pinv, work.null, work.r, work.e, work.c
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
    work.sizes[d] = size


@compile_inline
def _feasible(A, own, lower, upper, b, y, start, share, underflow):
    """Whether every row holds up to rounding at `y`, when it was computed from numbers of size `start`."""
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


@compile_inline
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


@compile_function
def _rebuild(A, lower, upper, size, b, rows, sides, line, cut, work, y):
    """The point on the rows chosen in this line from ``y = g``, refined once; returns how many rows there are."""
    n = y.shape[0]
    own = b if A.shape[0] > 1 else 0
    k = 0
    while k < n and sides[line, k] != 0:
        row = rows[line, k]
        gap = upper[b, row] if sides[line, k] > 0 else lower[b, row]
        for i in range(n):
            work.a[i] = A[own, row, i]
            gap -= work.a[i] * y[i]
        adds = _independent(work, k, cut)
        _column(work, size[own, row], k, adds)
        for i in range(n):
            y[i] += work.c[i] * gap
        _push(work, size[own, row], k, adds)
        k += 1
    left = work.e
    for j in range(k):
        row = rows[line, j]
        left[j] = upper[b, row] if sides[line, j] > 0 else lower[b, row]
        for i in range(n):
            left[j] -= A[own, row, i] * y[i]
    for i in range(n):
        for j in range(k):
            y[i] += work.pinv[k, i, j] * left[j]
    return k


@compile_entry
def nearest(A, lower, upper, size, f, w, before, status, ends, kinds, equalities, norm, t, rows, sides, value):
    """The nearest feasible compromise of each projected sample, where it is nearer than the point before.

    Args:
        A: scaled rows, ``(B, m, n)``, or ``(1, m, n)`` for all.
        lower: ``(B, m)``.
        upper: ``(B, m)``.
        size: what the rows were divided by, ``(B, m)`` or ``(1, m)``.
        f: ``(B, n)``.
        w: ``(B, n)``.
        before: the answers so far, ``(B, n)``.
        status: theirs, ``(B,)``.
        ends: the row of every side that can be chosen; the equalities first.
        kinds: which side, +1 or -1.
        equalities: how many those are; they are in every choice.
        norm: of the distance.
        t: the tolerances: feasibility, squared rank, underflow, tie.
        rows: of the answer, ``(B, n)``.
        sides: of the answer, 0 in empty slots, ``(B, n)``; all 0 if there is none.
        value: the answer, ``(B, n)``, where there is one.
    """
    share, cut, underflow, tie = t
    samples, n = f.shape
    work = _allocate(n)
    points, y = np.zeros((n + 1, n)), np.zeros(n)
    place, after, dependent = np.zeros(n, np.int64), np.zeros(n + 1, np.int64), np.zeros(n + 1, np.bool_)
    for b in range(samples):
        for i in range(n):
            rows[b, i], sides[b, i] = 0, 0
        if status[b] != PROJECTED and status[b] != WITHIN_TOL:
            continue
        own = b if A.shape[0] > 1 else 0
        start = 0.0
        for i in range(n):
            points[0, i] = f[b, i] + w[b, i]
            start = max(start, abs(f[b, i]), abs(points[0, i]))
            y[i] = before[b, i]
        best = _distance(y, f, b, norm, math.inf) * (1.0 - tie)
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
            bound = upper[b, row] if kinds[option] > 0 else lower[b, row]
            if abs(bound) == math.inf:
                continue
            gap = bound
            for i in range(n):
                work.a[i] = A[own, row, i]
                gap -= work.a[i] * points[depth, i]
            adds = _independent(work, depth, cut)
            here = depth + 1
            dependent[here] = dependent[depth] or (depth >= equalities and not adds)
            if here == n and not dependent[here]:
                continue
            _column(work, size[own, row], depth, adds)
            for i in range(n):
                y[i] = points[depth, i] + work.c[i] * gap
            place[depth] = option
            if dependent[here]:
                distance = _distance(y, f, b, norm, best)
                if distance < best and _feasible(A, own, lower, upper, b, y, start, share, underflow):
                    best = distance * (1.0 - tie)
                    for i in range(n):
                        rows[b, i] = ends[place[i]] if i < here else 0
                        sides[b, i] = kinds[place[i]] if i < here else 0
            if here < n:
                for i in range(n):
                    points[here, i] = y[i]
                _push(work, size[own, row], depth, adds)
                depth = here
                after[depth] = option + 1
        if sides[b, 0] != 0:
            for i in range(n):
                y[i] = points[0, i]
            _rebuild(A, lower, upper, size, b, rows, sides, b, cut, work, y)
            for i in range(n):
                value[b, i] = y[i]


@compile_entry
def differentiate(v, samples, A, lower, upper, size, f, w, rows, sides, value, cut, df, dA, dlower, dupper):
    """Gradients of compromises in the user's units; the formula is in `compromise`.

    Args:
        v: incoming gradients, ``(S, n)``.
        samples: their places in the batch, ``(S,)``.
        A: ``(B, m, n)`` or ``(1, m, n)``, as in `nearest`.
        lower: ``(B, m)``.
        upper: ``(B, m)``.
        size: ``(B, m)`` or ``(1, m)``.
        f: ``(B, n)``.
        w: ``(B, n)``.
        rows: chosen, ``(S, k)``.
        sides: chosen, ``(S, k)``.
        value: the compromises, ``(S, n)``.
        cut: the tolerance for dependence, squared.
        df: for f and for w, ``(B, n)``; all gradients are added to what is there.
        dA: ``(B, m, n)`` or ``(1, m, n)``.
        dlower: ``(B, m)``.
        dupper: ``(B, m)``.
    """
    n = v.shape[1]
    work = _allocate(n)
    pinv, null = work.pinv, work.null
    y, p, q = np.zeros(n), np.zeros(n), np.zeros(n)
    for s in range(samples.shape[0]):
        b = samples[s]
        own = b if A.shape[0] > 1 else 0
        for i in range(n):
            y[i] = f[b, i] + w[b, i]
        k = _rebuild(A, lower, upper, size, b, rows, sides, s, cut, work, y)
        for i in range(n):
            p[i] = 0.0
            for j in range(n):
                p[i] += null[k, i, j] * v[s, j]
            df[b, i] += p[i]
        for j in range(k):
            q[j] = 0.0
            for i in range(n):
                q[j] += pinv[k, i, j] * v[s, i]
        for j in range(k):
            row = rows[s, j]
            residual, multiplier = upper[b, row] if sides[s, j] > 0 else lower[b, row], 0.0
            for i in range(n):
                residual -= A[own, row, i] * value[s, i]
                multiplier += pinv[k, i, j] * (f[b, i] + w[b, i] - value[s, i])
            for i in range(n):
                mean = 0.0  # of A⁺ W⁻¹ q, times the weight of this row
                for other in range(k):
                    ratio = work.sizes[j] / work.sizes[other]
                    mean += pinv[k, i, other] * q[other] * ratio * ratio
                # Where the square of a ratio overflows, the larger row has its way: nothing of it is left over.
                lean = residual * mean if math.isfinite(mean) else 0.0
                dA[own, row, i] += (lean - multiplier * p[i] - q[j] * value[s, i]) / size[own, row]
            if sides[s, j] > 0:
                dupper[b, row] += q[j] / size[own, row]
            else:
                dlower[b, row] += q[j] / size[own, row]
