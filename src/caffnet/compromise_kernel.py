"""Compromises of dependent rows, compiled: the walk through the choices, sample by sample, and the derivative.

What is looked for is told in `compromise`, the updates of the pseudo-inverse in `search.faces`. The walk is depth
first: depth ``d`` keeps ``A⁺``, ``N = I - A⁺A`` and the point of the first ``d`` rows. One more row ``a y = b`` moves
the point by ``c (b - a y)``, c the new column of ``A⁺``: a choice costs one update, and its last row not even that.
"""

from __future__ import annotations

import math

import numpy as np

from caffnet.kernel import PROJECTED, WITHIN_TOL, compile_allocation, compile_entry, compile_function


@compile_function
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


@compile_function
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


@compile_function
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


@compile_function
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


@compile_function
def _exceeds(A, own, lower, upper, b, y, rows, sides):
    """Whether `y` exceeds a row that was not chosen, be it by rounding."""
    n = y.shape[0]
    for row in range(A.shape[1]):
        value, chosen = 0.0, False
        for i in range(n):
            value += A[own, row, i] * y[i]
            chosen = chosen or (sides[b, i] != 0 and rows[b, i] == row)
        if not chosen and (value > upper[b, row] or value < lower[b, row]):
            return True
    return False


@compile_function
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
def _rebuild(A, lower, upper, weight, b, rows, sides, place, cut, work, y):
    """The point on chosen rows from ``y = g``, refined once; returns how many rows there are."""
    pinv, null, weights, e, c, a, r, half = work
    n = y.shape[0]
    own = b if A.shape[0] > 1 else 0
    k = 0
    while k < n and sides[place, k] != 0:
        row = rows[place, k]
        gap = upper[b, row] if sides[place, k] > 0 else lower[b, row]
        for i in range(n):
            a[i] = A[own, row, i]
            gap -= a[i] * y[i]
        adds = _independent(a, k, null, cut, r, half)
        _column(a, weight[own, row], k, adds, r, pinv, weights, e, c)
        for i in range(n):
            y[i] += c[i] * gap
        weights[k] = weight[own, row]
        _push(k, adds, r, e, c, pinv, null)
        k += 1
    for j in range(k):
        row = rows[place, j]
        e[j] = upper[b, row] if sides[place, j] > 0 else lower[b, row]
        for i in range(n):
            e[j] -= A[own, row, i] * y[i]
    for i in range(n):
        for j in range(k):
            y[i] += pinv[k, i, j] * e[j]
    return k


@compile_allocation
def _allocate(n):
    pinv, null = np.zeros((n + 1, n, n)), np.zeros((n + 1, n, n))
    for i in range(n):
        null[0, i, i] = 1.0
    return pinv, null, np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)


@compile_entry
def nearest(A, lower, upper, weight, f, w, before, status, ends, kinds, equalities, norm, t, rows, sides, value):
    """The nearest feasible compromise of each sample, where it is nearer than the point before; how many there are.

    Args:
        A: scaled rows, ``(B, m, n)``, or ``(1, m, n)`` for all.
        lower: ``(B, m)``.
        upper: ``(B, m)``.
        weight: of the rows in a sum of squares, ``(B, m)`` or ``(1, m)``.
        f: ``(B, n)``.
        w: ``(B, n)``.
        before: the answers so far, ``(B, n)``.
        status: theirs, ``(B,)``; of the compromises on return.
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
    pinv, null, weights, e, c, a, r, half = work
    points, y = np.zeros((n + 1, n)), np.zeros(n)
    place, after, dependent = np.zeros(n, np.int64), np.zeros(n + 1, np.int64), np.zeros(n + 1, np.bool_)
    count = 0
    for b in range(samples):
        for i in range(n):
            rows[b, i], sides[b, i] = 0, 0
        if status[b] != PROJECTED and status[b] != WITHIN_TOL:
            continue
        own = b if A.shape[0] > 1 else 0
        start = 0.0
        for i in range(n):
            start = max(start, abs(f[b, i]))
            points[0, i] = f[b, i] + w[b, i]
            y[i] = before[b, i]
        limit = _distance(y, f, b, norm, math.inf) * (1.0 - tie)
        best = limit
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
                distance = _distance(y, f, b, norm, best)
                if distance < best and _feasible(A, own, lower, upper, b, y, start, share, underflow):
                    best = distance * (1.0 - tie)
                    for i in range(n):
                        rows[b, i] = ends[place[i]] if i < here else 0
                        sides[b, i] = kinds[place[i]] if i < here else 0
            if here < n:
                for i in range(n):
                    points[here, i] = y[i]
                weights[depth] = weight[own, row]
                _push(depth, adds, r, e, c, pinv, null)
                depth = here
                after[depth] = option + 1
        if sides[b, 0] == 0:
            continue
        size = 0.0
        for i in range(n):
            y[i] = f[b, i] + w[b, i]
        _rebuild(A, lower, upper, weight, b, rows, sides, b, cut, work, y)
        for i in range(n):
            value[b, i] = y[i]
            size = max(size, abs(y[i]))
        if _distance(y, f, b, norm, math.inf) < limit and _feasible(A, own, lower, upper, b, y, size, share, underflow):
            count += 1
            status[b] = WITHIN_TOL if _exceeds(A, own, lower, upper, b, y, rows, sides) else PROJECTED
        else:
            for i in range(n):
                sides[b, i] = 0
    return count


@compile_entry
def differentiate(v, samples, A, lower, upper, weight, factor, f, w, rows, sides, value, cut, df, dA, dlower, dupper):
    """Gradients of compromises in the user's units; the formula is in `compromise`.

    Args:
        v: incoming gradients, ``(S, n)``.
        samples: their places in the batch, ``(S,)``.
        A: as in `nearest`; lower, upper, weight, f and w too.
        lower: ``(B, m)``.
        upper: ``(B, m)``.
        weight: ``(B, m)`` or ``(1, m)``.
        factor: what every row was multiplied with, ``(B, m)`` or ``(1, m)``.
        f: ``(B, n)``.
        w: ``(B, n)``.
        rows: chosen, ``(S, n)``.
        sides: chosen, ``(S, n)``.
        value: the compromises, ``(S, n)``.
        cut: the tolerance for dependence, squared.
        df: for f and for w, ``(B, n)``; adds to what is there, as the others.
        dA: ``(B, m, n)`` or ``(1, m, n)``.
        dlower: ``(B, m)``.
        dupper: ``(B, m)``.
    """
    n = v.shape[1]
    work = _allocate(n)
    pinv, null = work[0], work[1]
    y, p, q, multiplier, residual, mean = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    for s in range(samples.shape[0]):
        b = samples[s]
        own = b if A.shape[0] > 1 else 0
        for i in range(n):
            y[i] = f[b, i] + w[b, i]
        k = _rebuild(A, lower, upper, weight, b, rows, sides, s, cut, work, y)
        for i in range(n):
            p[i], mean[i] = 0.0, 0.0
            for j in range(n):
                p[i] += null[k, i, j] * v[s, j]
        for j in range(k):
            row = rows[s, j]
            q[j], multiplier[j] = 0.0, 0.0
            residual[j] = upper[b, row] if sides[s, j] > 0 else lower[b, row]
            for i in range(n):
                q[j] += pinv[k, i, j] * v[s, i]
                multiplier[j] += pinv[k, i, j] * (f[b, i] + w[b, i] - value[s, i])
                residual[j] -= A[own, row, i] * value[s, i]
            residual[j] *= weight[own, row]
            for i in range(n):
                mean[i] += pinv[k, i, j] * q[j] / weight[own, row]
        for i in range(n):
            df[b, i] += p[i]
        for j in range(k):
            row = rows[s, j]
            for i in range(n):
                slope = residual[j] * mean[i] - multiplier[j] * p[i] - q[j] * value[s, i]
                dA[own, row, i] += factor[own, row] * slope
            if sides[s, j] > 0:
                dupper[b, row] += factor[own, row] * q[j]
            else:
                dlower[b, row] += factor[own, row] * q[j]
