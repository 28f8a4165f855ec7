"""Compromises of dependent rows, compiled: the walk through the choices, sample by sample, and the derivative.

What is looked for is told in `compromise`, the updates of the pseudo-inverse in `search.faces`. The walk is depth
first: depth ``d`` keeps ``A⁺``, ``N = I - A⁺A`` and the point of the first ``d`` rows. One more row ``a y = b`` moves
the point by ``c (b - a y)``, c the new column of ``A⁺``: a choice costs one update, and its last row not even that.

(Some short functions are like those of `kernel`. They are not shared, because the compiler's cache on disk does not
notice when another file changes.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from caffnet.kernel import PROJECTED, WITHIN_TOL, compile_allocation, compile_entry, compile_function, compile_inline

_HUGE = np.finfo(np.float64).max


class Scaled(NamedTuple):
    """The rows of one sample, each times a power of two so that ``1 <= |a|_1 < 2``, as in `rows`."""

    A: np.ndarray  # (m, n)
    lower: np.ndarray  # (m,)
    upper: np.ndarray  # (m,)
    size: np.ndarray  # (m,) what the row was divided by
    plain: np.ndarray  # (m,) the column of a row ± y_j, else -1


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


@compile_allocation
def _allocate_rows(m, n):
    return Scaled(np.zeros((m, n)), np.zeros(m), np.zeros(m), np.zeros(m), np.zeros(m, np.int64))


@compile_inline
def _scale(A, lower, upper, b, row, s):
    """Fill one row of `s` with that of sample `b`; what all samples share has one line."""
    own = b if A.shape[0] > 1 else 0
    below, above = b if lower.shape[0] > 1 else 0, b if upper.shape[0] > 1 else 0
    total, top, column = 0.0, 0.0, 0
    for i in range(s.A.shape[1]):
        entry = abs(A[own, row, i])
        total += entry
        if entry > top:
            top, column = entry, i
    total = min(total, _HUGE)
    shift = 1 - math.frexp(total)[1] if total > 0.0 else 0
    for i in range(s.A.shape[1]):
        s.A[row, i] = math.ldexp(A[own, row, i], shift)
    s.lower[row], s.upper[row] = math.ldexp(lower[below, row], shift), math.ldexp(upper[above, row], shift)
    s.size[row] = math.ldexp(1.0, -shift)
    s.plain[row] = column if total == top == s.size[row] else -1


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
    along, base = 0.0, size
    for i in range(n):
        c[i] = 0.0
        along += a[i] * r[i]
    for j in range(d):
        e[j] = 0.0
        for i in range(n):
            e[j] += a[i] * pinv[d, i, j]
        if e[j] != 0.0:
            base = min(base, work.sizes[j])
    length = (base / size) ** 2  # weights relative to the heaviest: squares of sizes leave the range of numbers
    for j in range(d):
        shared = e[j] * min(base / work.sizes[j], 1.0) ** 2
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
def _feasible(s, y, start, share, underflow):
    """Whether every row holds up to rounding at `y`, when it was computed from numbers of size `start`."""
    n = y.shape[0]
    size = start
    for i in range(n):
        size = max(size, start + abs(y[i]))
    allowed = share * size + underflow
    for row in range(s.A.shape[0]):
        value = 0.0
        for i in range(n):
            value += s.A[row, i] * y[i]
        if not value <= s.upper[row] + share * abs(s.upper[row]) + allowed:
            return False
        if not value >= s.lower[row] - share * abs(s.lower[row]) - allowed:
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
def _rebuild(s, rows, sides, line, cut, work, y):
    """The point on the rows chosen in this line from ``y = g``, refined once; returns how many rows there are."""
    n = y.shape[0]
    k = 0
    while k < n and sides[line, k] != 0:
        row = rows[line, k]
        gap = s.upper[row] if sides[line, k] > 0 else s.lower[row]
        for i in range(n):
            work.a[i] = s.A[row, i]
            gap -= work.a[i] * y[i]
        adds = _independent(work, k, cut)
        _column(work, s.size[row], k, adds)
        for i in range(n):
            y[i] += work.c[i] * gap
        _push(work, s.size[row], k, adds)
        k += 1
    left = work.e
    for j in range(k):
        row = rows[line, j]
        left[j] = s.upper[row] if sides[line, j] > 0 else s.lower[row]
        for i in range(n):
            left[j] -= s.A[row, i] * y[i]
    for i in range(n):
        for j in range(k):
            y[i] += work.pinv[k, i, j] * left[j]
    return k


@compile_function
def _clamp(s, y, low, high):
    """Move `y` into its plain bounds, where they do not cross."""
    for i in range(y.shape[0]):
        low[i], high[i] = -math.inf, math.inf
    for row in range(s.plain.shape[0]):
        i = s.plain[row]
        if i >= 0:
            up = s.A[row, i] > 0.0
            low[i] = max(low[i], s.lower[row] if up else -s.upper[row])
            high[i] = min(high[i], s.upper[row] if up else -s.lower[row])
    for i in range(y.shape[0]):
        if low[i] <= high[i]:
            y[i] = min(max(y[i], low[i]), high[i])


@compile_function
def _status(s, y, rows, sides, line, share, underflow):
    """What `y` is worth: 0 if a row is exceeded by more than rounding explains.

    WITHIN_TOL if a row outside the choice is exceeded at all.
    """
    n = y.shape[0]
    top, state = 0.0, PROJECTED
    for i in range(n):
        top = max(top, abs(y[i]))
    for row in range(s.A.shape[0]):
        value, bound = 0.0, 0.0
        for i in range(n):
            value += s.A[row, i] * y[i]
        for end in (s.lower[row], s.upper[row]):
            if abs(end) < math.inf:
                bound = max(bound, abs(end))
        excess = max(value - s.upper[row], s.lower[row] - value)
        if not excess <= 2.0 * share * top + share * bound + underflow:
            return 0
        if excess > 0.0:
            chosen = False
            for j in range(n):
                chosen = chosen or (sides[line, j] != 0 and rows[line, j] == row)
            if not chosen:
                state = WITHIN_TOL
    return state


@compile_entry
def nearest(A, lower, upper, f, w, before, status, ends, kinds, equalities, norm, single, t, rows, sides, value, state):
    """The nearest feasible compromise of each projected sample, where it is nearer than the point before.

    Args:
        A: in the user's units, ``(B, m, n)``, or ``(1, m, n)`` for all.
        lower: ``(B, m)``, or ``(1, m)`` for all.
        upper: likewise.
        f: ``(B, n)``.
        w: ``(B, n)``.
        before: the answers so far, ``(B, n)``.
        status: theirs, ``(B,)``.
        ends: the row of every side that can be chosen; the equalities first.
        kinds: which side, +1 or -1.
        equalities: how many those are; they are in every choice.
        norm: of the distance.
        single: whether the answer is rounded to float32.
        t: the tolerances: feasibility, squared rank, underflow, tie.
        rows: of the answer, ``(B, n)``.
        sides: of the answer, 0 in empty slots, ``(B, n)``; both may be filled where `state` is 0.
        value: the answer, ``(B, n)``, where there is one.
        state: its status, ``(B,)``; 0 where there is none.
    """
    share, cut, underflow, tie = t
    samples, n = f.shape
    s, work = _allocate_rows(A.shape[1], n), _allocate(n)
    points, y = np.zeros((n + 1, n)), np.zeros(n)
    place, after, dependent = np.zeros(n, np.int64), np.zeros(n + 1, np.int64), np.zeros(n + 1, np.bool_)
    for b in range(samples):
        for i in range(n):
            rows[b, i], sides[b, i] = 0, 0
        state[b] = 0
        if status[b] != PROJECTED and status[b] != WITHIN_TOL:
            continue
        for row in range(A.shape[1]):
            _scale(A, lower, upper, b, row, s)
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
            bound = s.upper[row] if kinds[option] > 0 else s.lower[row]
            if abs(bound) == math.inf:
                continue
            gap = bound
            for i in range(n):
                work.a[i] = s.A[row, i]
                gap -= work.a[i] * points[depth, i]
            adds = _independent(work, depth, cut)
            here = depth + 1
            dependent[here] = dependent[depth] or (depth >= equalities and not adds)
            if here == n and not dependent[here]:
                continue
            _column(work, s.size[row], depth, adds)
            for i in range(n):
                y[i] = points[depth, i] + work.c[i] * gap
            place[depth] = option
            if dependent[here]:
                distance = _distance(y, f, b, norm, best)
                if distance < best and _feasible(s, y, start, share, underflow):
                    best = distance * (1.0 - tie)
                    for i in range(n):
                        rows[b, i] = ends[place[i]] if i < here else 0
                        sides[b, i] = kinds[place[i]] if i < here else 0
            if here < n:
                for i in range(n):
                    points[here, i] = y[i]
                _push(work, s.size[row], depth, adds)
                depth = here
                after[depth] = option + 1
        if sides[b, 0] != 0:
            for i in range(n):
                y[i] = points[0, i]
            _rebuild(s, rows, sides, b, cut, work, y)
            for i in range(n):
                y[i] = np.float64(np.float32(y[i])) if single else y[i]
            _clamp(s, y, work.r, work.c)
            state[b] = _status(s, y, rows, sides, b, share, underflow)
            for i in range(n):
                value[b, i] = y[i]


@compile_entry
def differentiate(v, samples, A, lower, upper, f, w, rows, sides, value, cut, df, dA, dlower, dupper):
    """Gradients of compromises in the user's units; the formula is in `compromise`.

    Args:
        v: incoming gradients, ``(S, n)``.
        samples: their places in the batch, ``(S,)``.
        A: ``(B, m, n)`` or ``(1, m, n)``, as in `nearest`.
        lower: ``(B, m)`` or ``(1, m)``.
        upper: likewise.
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
    s, work = _allocate_rows(A.shape[1], n), _allocate(n)
    pinv, null = work.pinv, work.null
    y, p, q = np.zeros(n), np.zeros(n), np.zeros(n)
    for line in range(samples.shape[0]):
        b = samples[line]
        own = b if A.shape[0] > 1 else 0
        for i in range(n):
            y[i] = f[b, i] + w[b, i]
        for j in range(rows.shape[1]):
            _scale(A, lower, upper, b, rows[line, j], s)
        k = _rebuild(s, rows, sides, line, cut, work, y)
        for i in range(n):
            p[i] = 0.0
            for j in range(n):
                p[i] += null[k, i, j] * v[line, j]
            df[b, i] += p[i]
        for j in range(k):
            q[j] = 0.0
            for i in range(n):
                q[j] += pinv[k, i, j] * v[line, i]
        for j in range(k):
            row = rows[line, j]
            residual, multiplier = s.upper[row] if sides[line, j] > 0 else s.lower[row], 0.0
            for i in range(n):
                residual -= s.A[row, i] * value[line, i]
                multiplier += pinv[k, i, j] * (f[b, i] + w[b, i] - value[line, i])
            for i in range(n):
                mean = 0.0  # of A⁺ W⁻¹ q, times the weight of this row
                for other in range(k):
                    ratio = work.sizes[j] / work.sizes[other]
                    mean += pinv[k, i, other] * q[other] * ratio * ratio
                # Where the square of a ratio overflows, the larger row has its way: nothing of it is left over.
                lean = residual * mean if math.isfinite(mean) else 0.0
                dA[own, row, i] += (lean - multiplier * p[i] - q[j] * value[line, i]) / s.size[row]
            if sides[line, j] > 0:
                dupper[b, row] += q[j] / s.size[row]
            else:
                dlower[b, row] += q[j] / s.size[row]
