"""The search in plain operations, for graphs without opaque calls: every sub-constraint is a candidate.

`full` lists the complete set Γ: every choice of linearly independent rows, each at one of its sides, with the
equalities. `lite` lists single rows and minimal faces, which have as many rows as are independent. The list depends on
the shape of the problem alone; the numbers are plain arithmetic. A graph cannot raise errors and proves nothing: a
sample without a candidate is NaN and INFEASIBLE, a sample with NaN or infinite data is INVALID.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from caffnet import tolerance
from caffnet._solve.face import factor, pick_rows, product, times, times_power, unit_exponent
from caffnet._solve.metric import White
from caffnet._solve.prepare import count_subsets, subset_sizes
from caffnet._solve.problem import Answer, Options, Problem, Status
from caffnet._solve.sparse import largest, sizes_at
from caffnet._solve.tracing import remember
from caffnet.constraints import BOTH, EQUAL, FREE, SOFT, UPPER, AffineSet, is_kind
from caffnet.errors import BudgetError, ConstraintError

_COPIES = 256  # measured bytes that a runtime needs per number of a candidate, to load and run it


class _Rows(NamedTuple):
    """Scaled rows: A ``(m, n)`` or ``(B, m, n)``, bounds ``(B, m)``."""

    A: Tensor
    lower: Tensor
    upper: Tensor


def check(set: AffineSet, options: Options) -> str:
    """The search of an exported graph, once it is sure that plain operations can carry out what is asked.

    Raises:
        ConstraintError: the graph would behave in another way than the layer in Python.
        BudgetError: it would be too large.
    """
    if options.strict:
        raise ConstraintError(
            "strict=True decides in exact arithmetic, which plain operations cannot hold: export with strict=False, or "
            "with the operator of the library (caffnet.deploy)."
        )
    if options.on_infeasible != "nan":
        what = "raise" if options.on_infeasible == "raise" else "find the point of least violation"
        raise ConstraintError(
            f"on_infeasible={options.on_infeasible!r}: plain operations cannot {what}. Export a layer with "
            'on_infeasible="nan" and look at the status, or export with the operator of the library (caffnet.deploy).'
        )
    if set.softness is not None and SOFT in set.softness.kinds:
        raise ConstraintError(
            "Rows that are soft without a weight cannot be exported as plain operations: export with the operator of "
            "the library (caffnet.deploy), or give them a weight."
        )
    search = "full" if options.search == "auto" else options.search
    if search not in ("full", "lite"):
        raise ConstraintError(
            f'search={search!r} cannot be exported as plain operations: use search="full" or "lite" for a set of few '
            "rows, or export with the operator of the library (caffnet.deploy)."
        )
    n, row_kinds = set.n + set.slacks, set.row_kinds
    sizes = subset_sizes(row_kinds, n, search == "lite")
    count, k = count_subsets(row_kinds, sizes), row_kinds.count(EQUAL) + max(sizes, default=0)
    needed = count * n * (n + k + len(row_kinds)) * 8 * _COPIES
    if needed > options.budget:
        raise BudgetError(
            f"The exported graph would hold {count:.3g} sub-constraints and need about {needed / 2**20:.3g} MiB; the "
            f"budget is {options.budget / 2**20:.3g} MiB. Export with the operator of the library "
            "(caffnet.deploy), use fewer rows, or raise budget= (bytes)."
        )
    return search


def solve(problem: Problem, options: Options) -> Answer:
    """Answer every sample. An exported graph has no gradient."""
    if problem.metric is not None:
        white = White(problem.metric)
        found = solve(white.problem(problem), options)
        inside = (found.status == Status.INSIDE).unsqueeze(-1)
        return found._replace(value=torch.where(inside, problem.f, white.back(found.value)))
    if not problem.row_kinds:  # a row that always holds: ONNX Runtime fails on arithmetic with empty tensors
        f = problem.f
        never = f.new_full((1,), math.inf)
        free = problem._replace(A=f.new_zeros(1, f.shape[-1]), lower=-never, upper=never, row_kinds=FREE)
        found = solve(free, options)
        return found._replace(active=found.active[:, :0])
    p = problem
    samples, m = p.f.shape[0], p.A.shape[-2]
    exponent = unit_exponent(p.A)
    lower, upper = (times_power(t.expand(samples, m), exponent) for t in (p.lower, p.upper))
    rows = _Rows(times_power(p.A, exponent.unsqueeze(-1)), lower, upper)
    f, g = p.f, p.f if p.w is None else p.f + p.w
    inside = _accepts(rows, f) & _within_box(rows, f)
    chosen, sides, found = _choose(rows, p.row_kinds, options, f, g)
    # Without candidates nothing is found; ONNX Runtime fails on arithmetic with empty tensors.
    y = _polish(rows, chosen, sides, p.row_kinds, g) if chosen.shape[-1] else f
    good = found & _accepts(rows, y, g)
    status = torch.where(inside, Status.INSIDE, torch.where(good, Status.PROJECTED, Status.INFEASIBLE))
    sound = _is_sound(p)
    status, good, inside = torch.where(sound, status, Status.INVALID), good & sound, inside & sound
    value = torch.where(inside.unsqueeze(-1), f, torch.where(good.unsqueeze(-1), y, math.nan))
    active = torch.zeros(samples, m, dtype=torch.int8, device=f.device)
    active = active.scatter_add(-1, chosen, sides) if chosen.shape[-1] else active
    held = good & ~inside
    return Answer(value, status.to(torch.int8), torch.where(held.unsqueeze(-1), active, 0))


def _is_sound(p: Problem) -> Tensor:
    """Samples with usable data, ``(B,)``: no NaN, and infinities only as missing bounds of inequalities."""
    equal = is_kind(p.row_kinds, EQUAL, p.f.device)
    rows = p.A.isfinite().all(-1) & ~p.lower.isnan() & ~p.upper.isnan() & ~(equal & p.upper.isinf())
    outputs = p.f.isfinite() if p.w is None else p.f.isfinite() & (p.f + p.w).isfinite()
    return outputs.all(-1) & rows.all(-1)


# ------------------------------------------------------------------------------------------------- the list


@remember
def _list_subsets(row_kinds: str, sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Rows and sides ``(K, k)`` of all sub-constraints: equalities first, then the chosen rows; 0 in empty slots."""
    count = count_subsets(row_kinds, sizes)
    equalities = [i for i, kind in enumerate(row_kinds) if kind == EQUAL]
    slots = len(equalities) + max(sizes, default=0)
    free = np.array([row for row, kind in enumerate(row_kinds) if kind not in (EQUAL, FREE)], dtype=np.int64)
    two_sided = np.array([kind == BOTH for kind in row_kinds], dtype=bool)
    first_sign = np.array([1 if kind == UPPER else -1 for kind in row_kinds], dtype=np.int8)
    rows, signs = np.zeros((count, slots), dtype=np.int64), np.zeros((count, slots), dtype=np.int8)
    rows[:, : len(equalities)] = equalities
    signs[:, : len(equalities)] = 1
    place = 0
    for k in sizes:
        combinations = itertools.combinations(free, k)
        total = math.comb(len(free), k) * k
        chosen = np.fromiter(itertools.chain.from_iterable(combinations), np.int64, total)
        chosen = chosen.reshape(-1, k) if k else np.zeros((1, 0), dtype=np.int64)
        sign = first_sign[chosen]
        for slot in range(k):  # a two-sided row takes part twice: once at each side
            twice = two_sided[chosen[:, slot]]
            copies = np.repeat(np.arange(len(chosen)), 1 + twice)
            second = np.zeros(len(copies), dtype=bool)
            second[1:] = copies[1:] == copies[:-1]
            chosen, sign = chosen[copies], sign[copies]
            sign[second, slot] = 1
        part = slice(place, place + len(chosen))
        rows[part, len(equalities) : len(equalities) + k] = chosen
        signs[part, len(equalities) : len(equalities) + k] = sign
        place = part.stop
    return rows, signs


# ------------------------------------------------------------------------------------------------- the candidates


def _choose(rows: _Rows, row_kinds: str, options: Options, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per sample the rows ``(B, k)`` and sides of the nearest feasible candidate, and whether there is one."""
    n, m = rows.A.shape[-1], rows.A.shape[-2]
    lite = options.search == "lite"
    # While a graph is traced no rank is known: minimal faces of every size are listed, and the size decides in it.
    sizes = subset_sizes(row_kinds, n, lite=False)
    listed, signs = (torch.from_numpy(t).to(f.device) for t in _list_subsets(row_kinds, sizes))
    equalities, total = row_kinds.count(EQUAL), listed.shape[0]
    if total == 0:
        return (
            f.new_zeros(f.shape[0], 0).long(),
            f.new_zeros(f.shape[0], 0).to(torch.int8),
            f.new_zeros(f.shape[0]).bool(),
        )
    chosen = rows.A[..., listed.reshape(-1), :].reshape(*rows.A.shape[:-2], *listed.shape, n)
    face = factor(chosen, (signs != 0).expand(chosen.shape[:-1]), equalities)
    bounds = torch.cat([rows.lower, rows.upper], -1)  # (B, 2m): the side picks the half
    place = listed + m * (signs >= 0)
    target = bounds[:, place.reshape(-1)].reshape(f.shape[0], *place.shape)  # b_γ, (B, K, k)
    finite = target.abs() < math.inf
    known = (finite | ~face.used).all(-1)
    target = torch.where(finite, target, 0.0)
    # One letter for the sample where the faces have one: a shared A is never copied for the batch.
    each = "b" if face.pinv.ndim == 4 else ""
    y = torch.einsum(f"{each}knr,bkr->bkn", face.pinv, target) + torch.einsum(f"{each}kni,bi->bkn", face.null, g)
    # Rounding leaves eps |g| of g in the directions that the rows fix; far away that would look like a violation.
    left = torch.einsum(f"{each}krn,bkn->bkr", face.rows, y) - torch.where(face.used, target, 0.0)
    y = y - torch.einsum(f"{each}knr,bkr->bkn", face.pinv, left)
    value = y @ rows.A.mT  # (B, K, m)
    share = tolerance.feasibility(f.dtype, n)
    above = value - (rows.upper + share * rows.upper.abs()).unsqueeze(1)
    below = (rows.lower - share * rows.lower.abs()).unsqueeze(1) - value
    worst = torch.maximum(above, below).amax(-1)
    allowed = share * (largest(y) + largest(f).unsqueeze(1)).squeeze(-1) + tolerance.underflow(f.dtype)
    valid = (worst <= allowed) & known & face.independent
    if lite:
        size = (signs[:, equalities:] != 0).sum(-1)
        valid = valid & ((size <= 1) | (size == _independent_rows(rows, row_kinds).unsqueeze(-1)))
    lengths = torch.where(valid, _distance(y - f.unsqueeze(1), options.norm), math.inf)
    # The first candidate whose distance is the smallest up to rounding. Not an argmin, which may choose any of
    # several equal entries and returns 0 if all are infinite.
    best = lengths.amin(-1)
    limit = best * (1 + tolerance.tie(f.dtype, n))
    order = torch.arange(total, device=f.device)
    winner = torch.where(lengths <= limit.unsqueeze(-1), order, total - 1).amin(-1)
    used = face.used[winner] if face.used.ndim == 2 else _pick(face.used, winner)
    return listed[winner], torch.where(used, signs[winner], 0), best < math.inf


def _pick(t: Tensor, winner: Tensor) -> Tensor:
    return t.gather(1, winner[:, None, None].expand(-1, 1, t.shape[-1])).squeeze(1)


def _independent_rows(rows: _Rows, row_kinds: str) -> Tensor:
    """The number of independent rows beside the equalities: one number or ``(B,)``."""
    chosen = [[i for i, kind in enumerate(row_kinds) if kind == EQUAL]]
    chosen.append(chosen[0] + [i for i, kind in enumerate(row_kinds) if kind not in (EQUAL, FREE)])
    ranks = []
    for some in chosen:
        if not some:  # no sum over an empty axis: ONNX Runtime fails on it
            ranks.append(torch.zeros(rows.A.shape[:-2], dtype=torch.long, device=rows.A.device))
            continue
        A = rows.A[..., some, :]
        filled = torch.ones(A.shape[:-1], dtype=torch.bool, device=A.device)
        ranks.append(factor(A, filled, len(some)).used.sum(-1))
    return ranks[1] - ranks[0]


def _polish(rows: _Rows, chosen: Tensor, sides: Tensor, row_kinds: str, g: Tensor) -> Tensor:
    """The closed form on the chosen rows, refined once, within plain bounds where that keeps the other rows.

    A vertex at the origin is computed as rounding noise, which no relative tolerance accepts, so it is set to zero.
    """
    A = pick_rows(rows.A, chosen) * (sides != 0).unsqueeze(-1)
    pinv = factor(A, sides != 0, row_kinds.count(EQUAL)).pinv
    bound = torch.where(sides > 0, rows.upper.gather(-1, chosen), rows.lower.gather(-1, chosen))
    bound = torch.where((sides != 0) & bound.isfinite(), bound, 0.0)
    y = product(pinv, bound) + (g - product(pinv, product(A, g)))
    y = y - product(pinv, product(A, y) - bound)
    accepted = _accepts(rows, y, y)
    clamped = _clamp(rows, y)
    keeps = _accepts(rows, clamped, clamped)
    y = torch.where((keeps | ~accepted).unsqueeze(-1), clamped, y)
    noise = (largest(y) <= tolerance.feasibility(y.dtype, y.shape[-1]) * largest(g)).squeeze(-1)
    zero = torch.zeros_like(y)
    snap = noise & ~(accepted | keeps) & _accepts(rows, zero, zero)
    return torch.where(snap.unsqueeze(-1), zero, y)


# ------------------------------------------------------------------------------------------------- tests of a point


def _accepts(rows: _Rows, y: Tensor, start: Tensor | None = None) -> Tensor:
    """Check whether `y` satisfies every row up to rounding, ``(B,)``.

    Of a `y` that was computed from `start`, in the user's type here, the rounding of one output reaches all others.
    """
    share = tolerance.feasibility(y.dtype, y.shape[-1])
    value = times(rows.A, y)
    above = value - rows.upper - share * rows.upper.abs()
    below = rows.lower - value - share * rows.lower.abs()
    size = sizes_at(rows.A, y, 2 * largest(y)) if start is None else largest(y) + largest(start)
    allowed = share * size + tolerance.underflow(y.dtype)
    return (torch.maximum(above, below) <= allowed).all(-1)


def _clamp(rows: _Rows, y: Tensor) -> Tensor:
    """`y` moved into its plain bounds, where they do not cross."""
    low, high = _box_limits(rows)
    return torch.where(low <= high, torch.minimum(torch.maximum(y, low), high), y)


def _within_box(rows: _Rows, y: Tensor) -> Tensor:
    """Check whether rows of the form ``± y_j`` hold exactly, ``(B,)``."""
    low, high = _box_limits(rows)
    return ((low > high) | ((low <= y) & (y <= high))).all(-1)


def _box_limits(rows: _Rows) -> tuple[Tensor, Tensor]:
    """The bounds that rows of the form ``± y_j`` put on the outputs, ``(B, n)`` each."""
    samples, m, n = rows.lower.shape[0], rows.A.shape[-2], rows.A.shape[-1]
    low, high = rows.lower.new_full((samples, n), -math.inf), rows.lower.new_full((samples, n), math.inf)
    if m == 0 or n == 0:
        return low, high
    size = rows.A.abs()
    top, column = size.max(-1)
    plain = (top == 1) & ((size != 0).sum(-1) == 1)
    sign = rows.A.sum(-1)  # of a plain row: of its one entry
    lower = torch.where(sign > 0, rows.lower, -rows.upper)
    upper = torch.where(sign > 0, rows.upper, -rows.lower)
    column = column.expand(samples, m)
    low = low.scatter_reduce(-1, column, torch.where(plain, lower, -math.inf), "amax")
    high = high.scatter_reduce(-1, column, torch.where(plain, upper, math.inf), "amin")
    return low, high


def _distance(difference: Tensor, norm: float) -> Tensor:
    """The p-norm over the last axis, safe from overflow."""
    size = difference.abs()
    top = size.amax(-1)
    if norm == math.inf:
        return top
    if norm == 1:
        return size.sum(-1)
    unit = torch.where(top > 0, top, 1.0)
    ratio = size / unit.unsqueeze(-1)
    total = (ratio * ratio).sum(-1).sqrt() if norm == 2 else ratio.pow(norm).sum(-1).pow(1 / norm)
    return unit * torch.where(top > 0, total, 0.0)
