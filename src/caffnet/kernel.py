"""The whole projection of one sample, compiled: scale, accept, search, polish, verify, and the derivative.

Torch spends microseconds on every operation and a projection of a small problem needs hundreds of them, so on the CPU
the samples are answered one by one in machine code. What is computed is told in `solve` (the same steps as batched
torch operations) and `projection` (the derivative); this file is those steps for one sample in float64, whatever
the user's type. It answers only what it can verify: a sample with bad data, without a feasible point, or at the edge
of rounding is marked `UNDECIDED` and left to `solve`.

A sub-constraint is kept as a *face*: orthonormal ``q_0 .. q_{k-1}`` and upper triangular ``R`` with
``a_{γ_j} = Σ_{i <= j} R_ij q_i``, so ``A_γ = Rᵀ Q`` and ``A_γ⁺ = Qᵀ R⁻ᵀ``. Rows are added by Gram-Schmidt (twice where
cancellation asks for it) and dropped by rotations.

All of it is one file because the compiler's cache on disk notices changes of the file it compiles, not of others.
Sums run in an order that depends on ``n`` alone: a sample has the same bits whatever batch it is in.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

UNDECIDED, INSIDE, PROJECTED, WITHIN_TOL = -1, 0, 1, 2
FULL, LITE, ACTIVE = 0, 1, 2

# Without reference counts (_nrt): they cost more than the arithmetic, and nothing here keeps or frees an array.
_options = {"nogil": True, "error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
compile_function = numba.njit(**_options)
compile_inline = numba.njit(forceinline=True, **_options)
# Sums of products may be reordered (for vector instructions) and fused; NaN and infinity keep their meaning.
_compile_sums = numba.njit(fastmath={"reassoc", "contract"}, forceinline=True, **_options)
compile_allocation = numba.njit(nogil=True)


def compile_entry(function):
    """For the functions that Python calls: their machine code is kept on disk, where there is a place for it."""
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # a read-only installation without a home: compile in every process
        return numba.njit(nogil=True, error_model="numpy")(function)


_NONE = np.int64(-1)  # typed: the compiler would make one more version of every function that sees the literal -1
_ZERO, _ONE = np.int64(0), np.int64(1)


class Tolerances(NamedTuple):
    """The numbers of `tolerance` for one type and one size."""

    feasibility: float
    search: float
    rank: float
    tie: float
    underflow: float
    smallest: float
    largest: float


class Scaled(NamedTuple):
    """The rows of one sample, each times a power of two so that ``1 <= |a|_1 < 2``."""

    A: np.ndarray  # (m, n)
    factor: np.ndarray  # (m,) the power of two
    squared: np.ndarray  # (m,) |a|_2²
    entries: np.ndarray  # (m,) how many entries of a row are looked at: n, or fewer where most are zero
    columns: np.ndarray  # (m, n) which ones, where they are fewer
    plain: np.ndarray  # (m,) the column of a row ± y_j, else -1
    low: np.ndarray  # (m,)
    high: np.ndarray  # (m,)
    size: np.ndarray  # (m,) the larger magnitude of the finite bounds
    equal: np.ndarray  # (m,) whether both bounds are the same


class Face(NamedTuple):
    """A sub-constraint, factorised; its length k is kept beside it."""

    Q: np.ndarray  # (n, n) one direction per line
    R: np.ndarray  # (n, n)
    rows: np.ndarray  # (n,)
    sides: np.ndarray  # (n,)
    multiplier: np.ndarray  # (n,)
    held: np.ndarray  # (m,) the side of every row: +1, -1, or 0
    z: np.ndarray  # (n,) a row, orthogonal to the face
    d: np.ndarray  # (n,) its coordinates on the face
    r: np.ndarray  # (n,) the same in terms of the rows of γ
    violated: np.ndarray  # (m,) rows that were violated when last looked at
    unit: np.ndarray  # (n,) the column where q_j is ± 1 and zero elsewhere, as a bound of one output makes it; else -1


class Walk(NamedTuple):
    """The state of the depth-first search over sub-constraints, and the best one so far."""

    f: np.ndarray  # (depth, n) f projected on the flat at every depth
    g: np.ndarray  # (depth, n) the same of g
    squared: np.ndarray  # (depth,) the squared distance of f to the flat
    option: np.ndarray  # (depth,) the next choice: 2 row + side
    last: np.ndarray  # (depth,) the row whose direction is in Q
    independent: np.ndarray  # (depth,)
    after: np.ndarray  # (m,) how many rows after this one can be chosen
    rows: np.ndarray  # the best γ
    sides: np.ndarray


@compile_allocation
def _allocate_scaled(m, n):
    return Scaled(
        np.empty((m, n)),
        np.empty(m),
        np.empty(m),
        np.empty(m, np.int64),
        np.empty((m, n), np.int32),
        np.empty(m, np.int64),
        np.empty(m),
        np.empty(m),
        np.empty(m),
        np.empty(m, np.bool_),
    )


@compile_allocation
def _allocate_face(m, n):
    return Face(
        np.empty((n, n)),
        np.empty((n, n)),
        np.empty(n, np.int64),
        np.empty(n, np.int8),
        np.empty(n),
        np.zeros(m, np.int8),
        np.empty(n),
        np.empty(n),
        np.empty(n),
        np.empty(m, np.int64),
        np.empty(n, np.int64),
    )


# ------------------------------------------------------------------------------------------------- vectors


@_compile_sums
def _dot(a, b):
    total = 0.0
    for j in range(a.shape[0]):
        total += a[j] * b[j]
    return total


@compile_inline
def _largest(y):
    top = 0.0
    for j in range(y.shape[0]):
        top = max(top, abs(y[j]))
    return top


@_compile_sums
def _along(Q, unit, j, y):
    """``q_j y``: one entry where q_j is a fixed output."""
    if unit[j] >= 0:
        return Q[j, unit[j]] * y[unit[j]]
    total = 0.0
    for c in range(y.shape[0]):
        total += Q[j, c] * y[c]
    return total


@_compile_sums
def _move(y, amount, Q, unit, j):
    """``y -= amount q_j``."""
    if unit[j] >= 0:
        y[unit[j]] -= amount * Q[j, unit[j]]
    elif amount != 0.0:
        for c in range(y.shape[0]):
            y[c] -= amount * Q[j, c]


@_compile_sums
def _value(A, entries, columns, i, y):
    """``a_i y``, where zeros are not looked at."""
    total = 0.0
    if entries[i] == y.shape[0]:
        for j in range(y.shape[0]):
            total += A[i, j] * y[j]
    else:
        for e in range(entries[i]):
            total += A[i, columns[i, e]] * y[columns[i, e]]
    return total


@compile_inline
def _rounded(number, single):
    """The number in the user's type."""
    return np.float64(np.float32(number)) if single else number


@compile_function
def _distance(y, f, norm):
    """``|y - f|_p``, relative to the largest entry: high powers leave the range of numbers."""
    top, total = 0.0, 0.0
    for j in range(y.shape[0]):
        top = max(top, abs(y[j] - f[j]))
    if norm == math.inf or top == 0.0:
        return top
    for j in range(y.shape[0]):
        share = abs(y[j] - f[j]) / top
        if norm == 2.0:
            total += share * share
        elif norm == 1.0:
            total += share
        else:
            total += share**norm
    return top * (math.sqrt(total) if norm == 2.0 else total ** (1.0 / norm))


# ------------------------------------------------------------------------------------------------- the rows


@compile_function
def _scale_matrix(source, line, s):
    """Fill `s` from the rows of one sample; False where they are no numbers or out of range."""
    A, factors, squares, entries, columns, plain = s.A, s.factor, s.squared, s.entries, s.columns, s.plain
    m, n = A.shape
    for i in range(m):
        size = 0.0
        for j in range(n):
            size += abs(source[line, i, j])
        if not size < math.inf:
            return False
        _, exponent = math.frexp(size)
        if abs(exponent) > 1000:
            return False
        factor = math.ldexp(1.0, 1 - exponent) if size > 0.0 else 1.0
        squared, count = 0.0, 0
        for j in range(n):
            entry = source[line, i, j] * factor
            A[i, j] = entry
            squared += entry * entry
            count += entry != 0.0  # after scaling: the smallest numbers beside the largest become zero
        factors[i], squares[i], entries[i], plain[i] = factor, squared, n, -1
        if 4 * count <= n or count == 1:
            place = 0
            for j in range(n):
                if A[i, j] != 0.0:
                    columns[i, place] = j
                    place += 1
            if 4 * count <= n:
                entries[i] = count
            if count == 1 and abs(A[i, columns[i, 0]]) == 1.0:
                plain[i] = columns[i, 0]
    return True


@compile_function
def _scale_bounds(lower, upper, b, s, t):
    """Fill the bounds of one sample; False where they are no numbers, cross, or are out of range."""
    factor, lows, highs, sizes, equal = s.factor, s.low, s.high, s.size, s.equal
    below, above = b if lower.shape[0] > 1 else 0, b if upper.shape[0] > 1 else 0
    for i in range(lower.shape[1]):
        low, high = lower[below, i], upper[above, i]
        if not low <= high or low == math.inf or high == -math.inf:
            return False
        low, high = low * factor[i], high * factor[i]
        size = 0.0
        if lower[below, i] > -math.inf:
            size = abs(low)
        if upper[above, i] < math.inf:
            size = max(size, abs(high))
        if not size <= t.largest:
            return False
        lows[i], highs[i], sizes[i], equal[i] = low, high, size, low == high
    return True


@compile_function
def _accepts(s, y, start, t):
    """Whether every row holds up to rounding at `y`, when it was computed from numbers of size `start`."""
    A, entries, columns, low, high, size = s.A, s.entries, s.columns, s.low, s.high, s.size
    share = t.feasibility
    free = share * _largest(y) + share * start + t.underflow
    for i in range(A.shape[0]):
        value = _value(A, entries, columns, i, y)
        if not max(value - high[i], low[i] - value) <= free + share * size[i]:
            return False
    return True


@compile_function
def _check(s, y, held, t):
    """What the point `y` is worth: UNDECIDED if a row is exceeded by more than rounding explains.

    Else INSIDE, or WITHIN_TOL if a bound that is not in γ is exceeded at all.
    """
    A, entries, columns, low, high, size = s.A, s.entries, s.columns, s.low, s.high, s.size
    equal, plain, share = s.equal, s.plain, t.feasibility
    free = 2.0 * share * _largest(y) + t.underflow
    state = INSIDE
    for i in range(A.shape[0]):
        value = _value(A, entries, columns, i, y)
        above, below = value - high[i], low[i] - value
        excess = max(above, below)
        if excess > 0.0:
            if not excess <= free + share * size[i] or plain[i] >= 0:  # plain bounds hold exactly
                return UNDECIDED
            side = 1 if above > 0.0 else -1
            if held[i] != side and not (equal[i] and held[i] != 0):
                state = WITHIN_TOL
        elif not excess <= 0.0:
            return UNDECIDED
    return state


# ------------------------------------------------------------------------------------------------- the face


@compile_inline
def _remainder(A, squared, i, Q, unit, k, z, d, more):
    """Split row `i` into its part ``d`` on the face and the rest ``z``; |z|²."""
    for j in range(z.shape[0]):
        z[j] = A[i, j]
    if k == 0:
        return squared[i]
    for j in range(k):  # all products before any subtraction: they do not wait for each other
        d[j] = _along(Q, unit, j, z)
    for j in range(k):
        _move(z, d[j], Q, unit, j)
    left = _dot(z, z)
    if left < 0.5 * squared[i]:  # cancellation: once more makes z orthogonal to rounding
        for j in range(k):
            more[j] = _along(Q, unit, j, z)
        for j in range(k):
            d[j] += more[j]
            _move(z, more[j], Q, unit, j)
        left = _dot(z, z)
    return left


@compile_inline
def _append(face, k, i, side, left):
    """Add the row that `_remainder` has just split."""
    Q, R, z, d = face.Q, face.R, face.z, face.d
    length = math.sqrt(left)
    entries, column = 0, _NONE
    for j in range(z.shape[0]):
        Q[k, j] = z[j] / length
        if z[j] != 0.0:
            entries, column = entries + 1, j
    face.unit[k] = column if entries == 1 else _NONE
    for j in range(k):
        R[j, k] = d[j]
    R[k, k] = length
    face.rows[k] = i
    face.sides[k] = side
    face.held[i] = side


@compile_function
def _add(s, i, side, face, k, t):
    """Add row `i` if it is independent of the face; the new k."""
    if k < face.Q.shape[0]:
        left = _remainder(s.A, s.squared, i, face.Q, face.unit, k, face.z, face.d, face.r)
        if left > t.rank * t.rank * s.squared[i]:
            _append(face, k, i, side, left)
            return k + 1
    return k


@compile_function
def _drop(face, k, place):
    """Remove the row in slot `place`: shift the columns of R, rotate its lines until it is triangular again."""
    Q, R, rows, sides, multiplier = face.Q, face.R, face.rows, face.sides, face.multiplier
    face.held[rows[place]] = 0
    for c in range(place, k - 1):
        rows[c] = rows[c + 1]
        sides[c] = sides[c + 1]
        multiplier[c] = multiplier[c + 1]
        for j in range(c + 2):
            R[j, c] = R[j, c + 1]
    for c in range(place, k - 1):
        # Orthogonal rows only change places; a rotation makes full vectors of what was one entry.
        first, second = face.unit[c], face.unit[c + 1]
        swapped = R[c, c] == 0.0
        face.unit[c], face.unit[c + 1] = (second, first) if swapped else (_NONE, _NONE)
        length = math.hypot(R[c, c], R[c + 1, c])
        cosine, sine = R[c, c] / length, R[c + 1, c] / length
        for j in range(c, k - 1):
            top, bottom = R[c, j], R[c + 1, j]
            R[c, j] = cosine * top + sine * bottom
            R[c + 1, j] = cosine * bottom - sine * top
        for j in range(Q.shape[1]):
            top, bottom = Q[c, j], Q[c + 1, j]
            Q[c, j] = cosine * top + sine * bottom
            Q[c + 1, j] = cosine * bottom - sine * top
    return k - 1


@_compile_sums
def _in_rows(R, first, k, d, r):
    """``r = R⁻¹ d`` from slot `first` on: coordinates on the q become coefficients of the rows."""
    for j in range(k - 1, first - 1, -1):
        total = d[j]
        for c in range(j + 1, k):
            total -= R[j, c] * r[c]
        r[j] = total / R[j, j]


@compile_inline
def _slide(s, face, first, k, y):
    """Move `y` onto the rows in slots first .. k-1, one after the other: ``q_j`` leaves the rows before j alone."""
    A, entries, columns, low, high, Q, R = s.A, s.entries, s.columns, s.low, s.high, face.Q, face.R
    rows, sides, unit = face.rows, face.sides, face.unit
    for j in range(first, k):
        i = rows[j]
        bound = high[i] if sides[j] > 0 else low[i]
        _move(y, (_value(A, entries, columns, i, y) - bound) / R[j, j], Q, unit, j)


@compile_function
def _flat_point(s, face, k, g, y):
    """``y = A_γ⁺ b_γ + (I - A_γ⁺ A_γ) g``, refined once."""
    Q, R, r, low, high, rows, sides = face.Q, face.R, face.r, s.low, s.high, face.rows, face.sides
    unit = face.unit
    for j in range(g.shape[0]):
        y[j] = g[j]
    for j in range(k):
        r[j] = _along(Q, unit, j, g)
    for j in range(k):
        _move(y, r[j], Q, unit, j)
    for j in range(k):  # Rᵀ c = b
        total = high[rows[j]] if sides[j] > 0 else low[rows[j]]
        for c in range(j):
            total -= R[c, j] * r[c]
        r[j] = total / R[j, j]
    for j in range(k):
        _move(y, -r[j], Q, unit, j)
    _slide(s, face, _ZERO, k, y)


@compile_function
def _clamp(s, y):
    """Put `y` within the rows ``± y_j``, exactly."""
    for i in range(s.plain.shape[0]):
        j = s.plain[i]
        if j >= 0:
            low, high = s.low[i], s.high[i]
            if s.A[i, j] < 0.0:
                low, high = -high, -low
            y[j] = min(max(y[j], low), high)


@compile_function
def _box_face(s, face, g, y):
    """The sub-constraint of ``y = clamp(g)`` in a box: equalities, and for every other output that moved one row.

    Of several rows that bound an output alike it is the first.
    """
    taken = face.unit
    for j in range(y.shape[0]):
        taken[j] = 0
    for i in range(s.plain.shape[0]):
        face.held[i] = 0
        if s.equal[i] and taken[s.plain[i]] == 0:
            face.held[i], taken[s.plain[i]] = 1, 1
    for i in range(s.plain.shape[0]):
        j = s.plain[i]
        if taken[j] == 0:
            value, before = s.A[i, j] * y[j], s.A[i, j] * g[j]
            if before > value == s.high[i]:
                face.held[i], taken[j] = 1, 1
            elif before < value == s.low[i]:
                face.held[i], taken[j] = -1, 1


@compile_function
def _equalities(s, face, t):
    """The face of the equalities alone; its k."""
    for i in range(face.held.shape[0]):
        face.held[i] = 0
    k = _ZERO
    for i in range(s.A.shape[0]):
        if s.equal[i] and s.squared[i] > 0.0:
            k = _add(s, i, _ONE, face, k, t)
    return k


@compile_function
def _restart(face, base):
    """Back to the first `base` rows, the equalities: what was added later has not touched their factors."""
    for i in range(face.held.shape[0]):
        face.held[i] = 0
    for j in range(base):
        face.held[face.rows[j]] = 1


# ------------------------------------------------------------------------------------------------- dual active set


@compile_function
def _warm(s, face, base, g, y, start, b, t):
    """Begin with the rows marked in line b of `start` that are independent and pull the right way; the new k."""
    k = base
    for i in range(s.A.shape[0]):
        side = np.int64(start[b, i])
        bounded = (side > 0 and s.high[i] < math.inf) or (side < 0 and s.low[i] > -math.inf)
        if bounded and not s.equal[i] and s.squared[i] > 0.0:
            k = _add(s, i, side, face, k, t)
    while True:
        _flat_point(s, face, k, g, y)
        for j in range(k):
            face.d[j] = _along(face.Q, face.unit, j, g) - _along(face.Q, face.unit, j, y)
        _in_rows(face.R, base, k, face.d, face.r)
        # A row that pulls by no more than rounding is left out, as a cold start would not have found it.
        worst, place = t.tie * (_largest(g) + _largest(y)), _NONE
        for j in range(base, k):
            face.multiplier[j] = face.r[j] * face.sides[j]
            if face.multiplier[j] < worst:
                worst, place = face.multiplier[j], j
        if place < 0:
            return k
        k = _drop(face, k, place)


@compile_function
def _dual(s, face, base, g, y, start, b, t):
    """The Euclidean projection of `g` by the dual method of Goldfarb and Idnani; k, or -1 where there is none.

    `y` is always the projection of g on the rows of the face, whose multipliers are positive. The row that `y`
    violates most is added; rows whose multiplier would turn negative on the way are dropped. The face begins with
    `base` equalities, which are never dropped. Every step raises the distance to g, so no face comes twice; the cap
    ends what rounding may make of that.
    """
    A, entries, columns, low, high, size = s.A, s.entries, s.columns, s.low, s.high, s.size
    squared, equal = s.squared, s.equal
    Q, R, unit, sides, multiplier, held = face.Q, face.R, face.unit, face.sides, face.multiplier, face.held
    z, d, r, violated = face.z, face.d, face.r, face.violated
    m, n = A.shape
    cut = t.rank * t.rank
    scale = _largest(g)
    if start.shape[0]:
        k = _warm(s, face, base, g, y, start, b, t)
    else:
        k = base
        _flat_point(s, face, k, g, y)
    waiting, all_seen = _ZERO, False
    for _ in range(10 * (m + n) + 100):
        free = t.search * (scale + _largest(y)) + t.underflow
        p, worst = _NONE, 0.0
        while p < 0 and not all_seen:
            # Rows that were violated before are looked at first; all of them only when none of those is any more.
            all_seen = waiting == 0
            left_over = _ZERO
            for e in range(m if all_seen else waiting):
                i = e if all_seen else violated[e]
                if held[i] == 0 and not equal[i]:
                    value = _value(A, entries, columns, i, y)
                    excess = max(value - high[i], low[i] - value)
                    if excess > free + t.search * size[i]:
                        if squared[i] == 0.0:
                            return _NONE
                        violated[left_over] = i
                        left_over += 1
                        excess *= excess
                        if excess > (1.0 + t.tie) * worst * squared[i]:  # of equal rows the first
                            p, worst = i, excess / squared[i]
            waiting = left_over
        if p < 0:
            return k
        all_seen = False
        side = _ONE if _value(A, entries, columns, p, y) > high[p] else _NONE
        bound = high[p] if side > 0 else low[p]
        gain = 0.0
        while True:
            left = _remainder(A, squared, p, Q, unit, k, z, d, r)
            independent = k < n and left > cut * squared[p]
            _in_rows(R, base, k, d, r)
            longest, place = math.inf, _NONE
            for j in range(base, k):
                rate = side * sides[j] * r[j]
                if rate > 0.0 and multiplier[j] < longest * rate:
                    longest, place = multiplier[j] / rate, j
            step = math.inf
            if independent:
                step = max(side * (_value(A, entries, columns, p, y) - bound), 0.0) / left
            if step == math.inf and place < 0:
                return -1
            length = min(step, longest)
            if independent:
                for j in range(n):
                    y[j] -= length * side * z[j]
            gain += length
            for j in range(base, k):
                multiplier[j] -= length * side * sides[j] * r[j]
            if step <= longest:
                _append(face, k, p, side, left)
                multiplier[k] = gain
                k += 1
                break
            k = _drop(face, k, place)
    return -1


@compile_function
def _nearest_plane(s, face, g, t):
    """For a `g` inside the set: the row whose plane is nearest, as a face of one row; its k, or -1."""
    best, row, side = math.inf, _NONE, _ZERO
    for i in range(s.A.shape[0]):
        if s.squared[i] > 0.0:
            value, length = _value(s.A, s.entries, s.columns, i, g), math.sqrt(s.squared[i])
            if (s.high[i] - value) / length < best:
                best, row, side = (s.high[i] - value) / length, i, _ONE
            if (value - s.low[i]) / length < best:
                best, row, side = (value - s.low[i]) / length, i, _NONE
    return -1 if row < 0 else _add(s, row, side, face, _ZERO, t)


@compile_function
def _nearest_face(s, face, base, g, y, start, b, t):
    """The face of the Euclidean projection of `g`, never empty; its k, or -1."""
    k = _dual(s, face, base, g, y, start, b, t)
    return _nearest_plane(s, face, g, t) if k == 0 else k


@compile_function
def _nearer_face(s, face, base, k, f, g, norm, y, kept, start, b, t):
    """The face of the projection of `f`, if its candidate is feasible and nearer to f than that of the face given."""
    distance = math.inf
    if k >= 0:
        _flat_point(s, face, k, g, y)
        distance = _distance(y, f, norm)
    for i in range(kept.shape[0]):
        kept[i] = face.held[i]
    _restart(face, base)
    other = _dual(s, face, base, f, y, start, b, t)
    if other > 0:
        _flat_point(s, face, other, g, y)
        if _distance(y, f, norm) < distance and _accepts(s, y, max(_largest(f), _largest(g)), t):
            return other
    if k < 0:
        return k
    _restart(face, base)
    k = base
    for i in range(kept.shape[0]):
        if kept[i] != 0 and not s.equal[i]:
            k = _add(s, i, np.int64(kept[i]), face, k, t)
    return k


# ------------------------------------------------------------------------------------------------- every sub-constraint


@compile_function
def _earlier(rows, sides, base, other_rows, other_sides, size):
    """The order of equally good sub-constraints of one size: by rows, then by sides."""
    for j in range(size):
        if rows[base + j] != other_rows[j]:
            return rows[base + j] < other_rows[j]
    for j in range(size):
        if sides[base + j] != other_sides[j]:
            return sides[base + j] < other_sides[j]
    return False


@compile_function
def _walk(s, face, base, f, g, norm, minimal, best, size, walk, y, t):
    """The nearest feasible candidate over all sub-constraints, depth first.

    Candidates of γ are at least as far from f as the flat of γ, and flats only move away when rows are added: a branch
    ends where ``dist(f, flat)`` passes the best distance. `best` and `size` describe a candidate known before, in
    ``walk.rows``. With `minimal` >= 0 only single rows and sub-constraints of that size are candidates (lite).

    Returns the size of the best γ beside the equalities, or n + 1 where there is none.
    """
    A, low, high, squares = s.A, s.low, s.high, s.squared
    Q, R, rows, sides = face.Q, face.R, face.rows, face.sides
    at_f, at_g = walk.f, walk.g
    m, n = A.shape
    top = n - base if minimal < 0 else max(minimal, 1)
    # The p-norm of a vector is at least this share of its length.
    share = 1.0 if norm <= 2.0 else n ** ((0.0 if norm == math.inf else 1.0 / norm) - 0.5)
    size_f = _largest(f)
    margin = t.feasibility * max(size_f, _largest(g))
    cut, tie = t.rank * t.rank, 1.0 + t.tie
    kept = best
    for j in range(n):
        y[j] = f[j]
    _slide(s, face, _ZERO, base, y)
    walk.squared[0] = _distance(y, f, 2.0) ** 2
    for j in range(n):
        at_f[0, j], y[j] = y[j], g[j]
    _slide(s, face, _ZERO, base, y)
    for j in range(n):
        at_g[0, j] = y[j]
    if base > 0:
        _slide(s, face, _ZERO, base, y)
        distance = _distance(y, f, norm)
        if distance <= best * tie and _accepts(s, y, size_f, t):
            best = min(best, distance)
            kept, size = distance, 0
    choices = 0
    for i in range(m - 1, -1, -1):
        walk.after[i] = choices
        choices += not s.equal[i] and squares[i] > 0.0 and (low[i] > -math.inf or high[i] < math.inf)
    depth = 0
    walk.option[0], walk.last[0] = 0, -1
    while depth >= 0:
        option = walk.option[depth]
        if option >= 2 * m or depth >= top:
            depth -= 1
            continue
        walk.option[depth] = option + 1
        i, side, k = option >> 1, 2 * (option & 1) - 1, base + depth
        bound = high[i] if side > 0 else low[i]
        if s.equal[i] or squares[i] == 0.0 or abs(bound) == math.inf:
            continue
        gap = -bound
        for j in range(n):
            gap += A[i, j] * at_f[depth, j]
        reach = best * tie + margin
        # The step along the flat is at least the distance to the plane of the row: often enough without a direction.
        if share * math.sqrt(walk.squared[depth] + gap * gap / squares[i]) > reach:
            continue
        if walk.last[depth] != i:
            walk.last[depth] = i
            left = _remainder(A, squares, i, Q, face.unit, k, face.z, face.d, face.r)
            walk.independent[depth] = left > cut * squares[i]
            if walk.independent[depth]:
                _append(face, k, i, side, left)
        if not walk.independent[depth]:
            continue
        sides[k] = side
        step = gap / R[k, k]
        squared = walk.squared[depth] + step * step
        if share * math.sqrt(squared) > reach:
            continue
        here = depth + 1
        walk.squared[here] = squared
        for j in range(n):
            at_f[here, j] = at_f[depth, j] - step * Q[k, j]
            y[j] = at_g[depth, j]
        _slide(s, face, k, k + 1, y)
        for j in range(n):
            at_g[here, j] = y[j]
        if minimal < 0 or here == 1 or here == minimal:
            _slide(s, face, _ZERO, k + 1, y)
            distance = _distance(y, f, norm)
            if distance <= best * tie and _accepts(s, y, size_f, t):
                best = min(best, distance)
                if (
                    kept > best * tie
                    or here < size
                    or (here == size and _earlier(rows, sides, base, walk.rows, walk.sides, here))
                ):
                    kept, size = distance, here
                    for j in range(here):
                        walk.rows[j], walk.sides[j] = rows[base + j], sides[base + j]
        # Lite looks at the deepest level only: no use in a branch that has too few rows left to get there.
        if here < top and (minimal < 0 or here + walk.after[i] >= minimal):
            depth = here
            walk.option[depth], walk.last[depth] = 2 * (i + 1), -1
    return size


@compile_function
def _enumerate(s, face, base, k, f, g, norm, lite, walk, y, t):
    """`enumeration.choose` for one sample; its k, or -1. The face given (of k rows, or -1) is the first bound."""
    m, n = s.A.shape
    best, size, minimal = math.inf, n + 1, _NONE
    if lite:  # a minimal face has as many rows as are independent
        minimal = base
        for i in range(m):
            if not s.equal[i] and (s.low[i] > -math.inf or s.high[i] < math.inf) and s.squared[i] > 0.0:
                minimal = _add(s, i, _ONE, face, minimal, t)
        minimal -= base
    elif k >= 0:
        _flat_point(s, face, k, g, y)
        if _accepts(s, y, _largest(f), t):
            best, size = _distance(y, f, norm), k - base
            for j in range(size):  # in order
                row, side, place = face.rows[base + j], face.sides[base + j], j
                while place > 0 and walk.rows[place - 1] > row:
                    walk.rows[place], walk.sides[place] = walk.rows[place - 1], walk.sides[place - 1]
                    place -= 1
                walk.rows[place], walk.sides[place] = row, side
    _restart(face, base)
    size = _walk(s, face, base, f, g, norm, minimal, best, size, walk, y, t)
    if size > n:
        return _NONE
    _restart(face, base)
    k = base
    for j in range(size):
        k = _add(s, walk.rows[j], np.int64(walk.sides[j]), face, k, t)
    return k


# ------------------------------------------------------------------------------------------------- the batch


@compile_entry
def solve(f, w, A, lower, upper, start, search, norm, single, t, first, last, value, status, held):
    """Answer samples first .. last-1: the point, its state and the side of every row.

    Args:
        f: ``(B, n)``.
        w: ``(B, n)``, or ``(0, n)`` for none.
        A: ``(B, m, n)``, or ``(1, m, n)`` where all samples share it; the bounds likewise.
        lower: ``(B, m)`` or ``(1, m)``.
        upper: ``(B, m)`` or ``(1, m)``.
        start: the sides of rows to begin with, ``(B, m)`` or ``(0, m)``.
        search: FULL, LITE or ACTIVE.
        norm: the p of the distance.
        single: the user's type is float32 (all arrays are float64).
        t: the tolerances.
        first: the first sample.
        last: one after the last.
        value: answers, ``(B, n)``.
        status: ``(B,)``.
        held: ``(B, m)``.

    Returns:
        How many are UNDECIDED.
    """
    n, m = f.shape[1], A.shape[1]
    s, face = _allocate_scaled(m, n), _allocate_face(m, n)
    point, goal, y, kept = np.empty(n), np.empty(n), np.empty(n), np.empty(m, np.int8)
    nothing = np.zeros(m, np.int8)
    deep = n + 1 if search != ACTIVE else 0
    walk = Walk(
        np.empty((deep, n)),
        np.empty((deep, n)),
        np.empty(deep),
        np.empty(deep, np.int64),
        np.empty(deep, np.int64),
        np.empty(deep, np.bool_),
        np.empty(m, np.int64),
        np.empty(deep, np.int64),
        np.empty(deep, np.int8),
    )
    bounds_vary = lower.shape[0] > 1 or upper.shape[0] > 1 or A.shape[0] > 1
    ready, fine, sound, boxed = False, False, False, False
    base, undecided = _ZERO, 0
    for b in range(first, last):
        status[b] = UNDECIDED
        undecided += 1
        if A.shape[0] > 1 or b == first:
            fine, ready, boxed = _scale_matrix(A, b if A.shape[0] > 1 else 0, s), False, m > 0
            for i in range(m):
                boxed = boxed and s.plain[i] >= 0
        if not fine:
            continue
        if bounds_vary or b == first:
            if ready:
                for i in range(m):  # the same equalities as before have the same factors
                    low, high = lower[b if lower.shape[0] > 1 else 0, i], upper[b if upper.shape[0] > 1 else 0, i]
                    ready = ready and s.equal[i] == (low == high)
            sound = _scale_bounds(lower, upper, b, s, t)
        if not sound:
            ready = False
            continue
        moved, size = False, 0.0
        for j in range(n):
            point[j] = f[b, j]
            goal[j] = point[j]
            if w.shape[0]:
                goal[j] = _rounded(f[b, j] + w[b, j], single)
                moved = moved or goal[j] != point[j]
            size = max(size, max(abs(point[j]), abs(goal[j])))
            if not abs(goal[j]) <= t.largest or not abs(point[j]) <= t.largest:
                size = math.inf
        if not size < math.inf:
            continue
        for i in range(m):
            held[b, i] = 0
        state = _check(s, point, nothing, t)
        if state != UNDECIDED:
            for j in range(n):
                value[b, j] = f[b, j]
            status[b] = state
            undecided -= 1
            continue
        if size < t.smallest:
            continue
        # In a box the nearest point is a clamp (in the maximum norm it is one of many).
        if boxed and not moved and search != LITE and norm < math.inf:
            for j in range(n):
                y[j] = goal[j]
            _clamp(s, y)
            _box_face(s, face, goal, y)
            ready = False
        else:
            if not ready:
                base, ready = _equalities(s, face, t), True
            else:
                _restart(face, base)
            k = _NONE
            if search != LITE:
                k = _nearest_face(s, face, base, goal, y, start, b, t)
            if search == ACTIVE and moved:
                k = _nearer_face(s, face, base, k, point, goal, norm, y, kept, start, b, t)
            if search == LITE or (search == FULL and (moved or norm != 2.0)):
                k = _enumerate(s, face, base, k, point, goal, norm, search == LITE, walk, y, t)
            if k < 0:
                continue
            _flat_point(s, face, k, goal, y)
            _clamp(s, y)  # plain bounds hold exactly
        for j in range(n):
            y[j] = _rounded(y[j], single)
            value[b, j] = y[j]
        state = _check(s, y, face.held, t)
        if state == UNDECIDED:
            continue
        status[b] = PROJECTED if state == INSIDE else WITHIN_TOL
        undecided -= 1
        for i in range(m):
            held[b, i] = face.held[i]
    return undecided


# ------------------------------------------------------------------------------------------------- the derivative


@compile_entry
def differentiate(
    v, f, w, A, lower, upper, value, held, tangent, single, t, first, last, to_f, to_w, to_A, to_lower, to_upper
):
    """The gradients of samples first .. last-1 for an incoming gradient `v`; False where the torch path must do it.

    ``p = N v`` for g, ``q = (A_γ⁺)ᵀ v`` for b, ``-(λ pᵀ + q yᵀ)`` for A, as derived in `projection`. With `tangent`, f
    gets ``-d`` with ``d`` the projection of ``-v`` on the tangent cone at y instead. Gradients that are not wanted
    have no lines; what is shared by the samples (``to_A (1, m, n)``) is summed.
    """
    n, m = f.shape[1], A.shape[1]
    s, face = _allocate_scaled(m, n), _allocate_face(m, n)
    low, high, marked = np.empty(m), np.empty(m), np.empty(m, np.int8)
    direction, p, y, away, q = np.empty(n), np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    cold, before = np.empty((0, m), np.int8), np.empty(m, np.bool_)
    known = False
    base, kept = _ZERO, False
    for b in range(first, last):
        moved = False
        for i in range(m):
            marked[i] = held[b, i]
            moved = moved or marked[i] != 0
        if not moved:
            for j in range(n):
                to_f[b, j] = v[b, j]
                if to_w.shape[0]:
                    to_w[b, j] = 0.0
            continue
        if A.shape[0] > 1 or not known:
            known = _scale_matrix(A, b if A.shape[0] > 1 else 0, s)
        _scale_bounds(lower, upper, b, s, t)
        size = 0.0
        for j in range(n):
            direction[j] = v[b, j]
            p[j] = direction[j]
            y[j] = value[b, j]
            goal = f[b, j]
            if w.shape[0]:
                goal = _rounded(f[b, j] + w[b, j], single)
            away[j] = goal - y[j]
            size = max(size, abs(direction[j]))
            if not abs(direction[j]) <= t.largest:
                return False
        # Equalities of a shared matrix are factorised once, as in `solve`; the tangent cone below writes over them.
        kept = kept and A.shape[0] == 1
        for i in range(m):
            kept = kept and before[i] == s.equal[i]
            before[i] = s.equal[i]
        if not kept:
            base = _equalities(s, face, t)
        _restart(face, base)
        kept, k = not tangent, base
        for i in range(m):
            if marked[i] != 0 and not s.equal[i]:
                k = _add(s, i, np.int64(marked[i]), face, k, t)
        for j in range(k):
            face.d[j] = _along(face.Q, face.unit, j, p)
        for j in range(k):
            _move(p, face.d[j], face.Q, face.unit, j)
        _in_rows(face.R, _ZERO, k, face.d, q)
        for j in range(k):
            face.d[j] = _along(face.Q, face.unit, j, away)
        _in_rows(face.R, _ZERO, k, face.d, face.r)
        for j in range(k):
            i, factor = face.rows[j], s.factor[face.rows[j]]
            if face.sides[j] > 0:
                if to_upper.shape[0]:
                    to_upper[b, i] += factor * q[j]
            elif to_lower.shape[0]:
                to_lower[b, i] += factor * q[j]
            if to_A.shape[0]:
                line = b if to_A.shape[0] > 1 else 0
                for c in range(n):
                    to_A[line, i, c] -= factor * (face.r[j] * p[c] + q[j] * y[c])
        for j in range(n):
            if to_w.shape[0]:
                to_w[b, j] = p[j]
        if tangent:
            # The same search on the rows that are active at y, with all bounds 0.
            free = 2 * t.feasibility * _largest(y) + t.underflow
            for i in range(m):
                at, slack = _value(s.A, s.entries, s.columns, i, y), free + t.feasibility * s.size[i]
                low[i] = 0.0 if s.equal[i] or marked[i] < 0 or abs(at - s.low[i]) <= slack else -math.inf
                high[i] = 0.0 if s.equal[i] or marked[i] > 0 or abs(at - s.high[i]) <= slack else math.inf
            for i in range(m):
                s.low[i], s.high[i], s.size[i], s.equal[i] = low[i], high[i], 0.0, low[i] == high[i]
            for j in range(n):
                direction[j] = -direction[j]
            k = _dual(s, face, _equalities(s, face, t), direction, p, cold, b, t)
            if k < 0:
                return False
            _flat_point(s, face, k, direction, p)
            if not _accepts(s, p, size, t):
                return False
            for j in range(n):
                p[j] = -p[j]
        for j in range(n):
            to_f[b, j] = p[j]
    return True
