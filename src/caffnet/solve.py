"""From the data of a batch to one verified sub-constraint per sample. No gradients here.

    screen      samples with NaN or infinite data are set aside
    scale       every row to unit size, exactly
    accept      `f` itself, if it satisfies the rows up to rounding: returned bit for bit
    search      the sub-constraint γ of every other sample
    polish      the closed form on γ, refined once, clamped to plain bounds
    verify      every row, from the data; near misses are projected again, failures are proven infeasible
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet.certificate import conflict_of, exactly_satisfies, surely_satisfies
from caffnet.errors import ConstraintError, InfeasibleError
from caffnet.rows import Rows, apply, largest, scale_rows, times_power
from caffnet.search import active, dual, enumeration
from caffnet.search.active import flat_point, from_active
from caffnet.search.contract import Choice


class Status(enum.IntEnum):
    """How a sample was answered."""

    INSIDE = 0  #: `f` satisfied every row and came back bit for bit
    PROJECTED = 1  #: the nearest feasible candidate
    WITHIN_TOL = 2  #: satisfied up to rounding only: a row the point was not put on is exceeded, by less than the tolerance
    INFEASIBLE = 3  #: no point satisfies the rows of this sample
    INVALID = 4  #: the data of this sample contain NaN or infinities


@dataclasses.dataclass(frozen=True)
class Options:
    """How to answer; the meaning of each is told in `caffnet.project`."""

    search: str = "auto"
    norm: float = 2
    strict: bool = False
    on_infeasible: str = "raise"
    budget: int = enumeration.DEFAULT_BUDGET


@dataclasses.dataclass(frozen=True)
class Problem:
    """The data of a batch: f ``(B, n)``, w ``(B, n)`` or None, A ``(m, n)`` or ``(B, m, n)``, bounds ``(B, m)``."""

    f: Tensor
    w: Tensor | None
    A: Tensor
    lower: Tensor
    upper: Tensor
    sides: tuple[str, ...]
    names: tuple[str, ...]
    batch_shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Solution:
    """One answer per sample: the point, its status and the sub-constraint it lies on."""

    value: Tensor
    status: Tensor
    choice: Choice


def solve(problem: Problem, options: Options, plan: enumeration.Enumeration | None) -> Solution:
    """Answer every sample. `plan` is the prepared enumeration, or None for the active-set search."""
    problem, invalid = _screen(problem, options)
    rows = scale_rows(problem.A, problem.lower, problem.upper)
    f = problem.f
    g = f if problem.w is None else f + problem.w
    samples = f.shape[0]
    equal = (problem.lower == problem.upper) & problem.lower.isfinite()
    inside = rows.accepts(f, f)
    if options.strict:
        inside = inside & exactly_satisfies(rows.A, rows.lower, rows.upper, f, equal)
    status = torch.where((rows.excess(f) > 0).any(-1), Status.WITHIN_TOL, Status.INSIDE)
    value, choice = f, Choice.nothing(samples, rows.n, f)
    todo = (~inside).nonzero().squeeze(-1)
    if todo.numel():
        answer = _project(rows.take(todo), plan.take(todo) if plan else None, f[todo], g[todo], options, equal[todo])
        value = f.index_copy(0, todo, answer.value)
        status = status.index_copy(0, todo, answer.status.to(status.dtype))
        choice = choice.put(todo, answer.choice)
        lost = todo[answer.status == Status.INFEASIBLE]
        if lost.numel():
            value, choice = _report(problem, rows, lost, answer.conflict[answer.status == Status.INFEASIBLE], value, choice, options)
    if invalid is not None:
        status = torch.where(invalid, Status.INVALID, status)
        value = torch.where(invalid.unsqueeze(-1), math.nan, value)
    return Solution(value, status.to(torch.int8), choice)


def trace(problem: Problem, options: Options, plan: enumeration.Enumeration) -> Solution:
    """`solve` as plain arithmetic for a graph to be exported. Nothing can raise there: no answer is NaN."""
    rows = scale_rows(problem.A, problem.lower, problem.upper)
    f = problem.f
    g = f if problem.w is None else f + problem.w
    inside = rows.accepts(f, f)
    choice = enumeration.choose_at_once(rows, plan, f, g, options.norm, len(plan.table))
    y = polish(rows, choice, g)
    good = choice.found & rows.accepts(y, g)
    status = torch.where(inside, Status.INSIDE, torch.where(good, Status.PROJECTED, Status.INFEASIBLE))
    value = torch.where(inside.unsqueeze(-1), f, torch.where(good.unsqueeze(-1), y, math.nan))
    return Solution(value, status.to(torch.int8), choice)


# ------------------------------------------------------------------------------------------------- one batch outside


@dataclasses.dataclass
class _Answer:
    value: Tensor
    status: Tensor
    choice: Choice
    conflict: Tensor  # (B, m): multipliers of rows that exclude each other, where there is no point


def _project(
    rows: Rows, plan: enumeration.Enumeration | None, f: Tensor, g: Tensor, options: Options, equal: Tensor
) -> _Answer:
    answer = _nearest(rows, plan, f, g, options.norm)
    if options.strict:
        answer = _step_inside(rows, plan, f, g, options.norm, equal, answer)
    return answer


def _nearest(rows: Rows, plan: enumeration.Enumeration | None, f: Tensor, g: Tensor, norm: float) -> _Answer:
    """The nearest feasible candidate of every sample, verified."""
    if plan is None:
        choice = active.choose(rows, f, g, norm)
    else:
        choice = enumeration.choose(rows, plan, f, g, norm)
    y = polish(rows, choice, g)
    conflict = rows.lower.new_zeros(rows.lower.shape)
    good = choice.found & rows.accepts(y, y)
    doubtful = (~good).nonzero().squeeze(-1)
    missing = torch.zeros_like(good)
    if doubtful.numel():
        y, choice, missing, conflict = _rescue(rows, g, y, choice, doubtful, conflict)
    return _Answer(y, torch.where(missing, Status.INFEASIBLE, _quality(rows, choice, y)), choice, conflict)


def _rescue(
    rows: Rows, g: Tensor, y: Tensor, choice: Choice, doubtful: Tensor, conflict: Tensor
) -> tuple[Tensor, Choice, Tensor, Tensor]:
    """Samples whose candidate fails a row by more than rounding at `y` explains, or that have none.

    A far `g` leaves an error of ``eps |g|`` along the flat, which may carry `y` over another row. Projecting the near
    miss itself puts that right, and makes the layer return its own answers bit for bit. A sample without any
    candidate is decided by the dual method, starting from `g`.
    """
    some, goal = rows.take(doubtful), g[doubtful]
    near = choice.found[doubtful] & some.accepts(y[doubtful], goal)
    start = torch.where(near.unsqueeze(-1), y[doubtful], goal)
    missing = torch.zeros(rows.lower.shape[0], dtype=torch.bool, device=g.device)
    for _ in range(3):
        option, blame = active.by_dual(some, start)
        option = active.never_empty(some.to(torch.float64), option, start.double())
        point = polish(some, option, start)
        exact = option.found & some.accepts(point, point)
        usable = option.found & some.accepts(point, goal)
        if (exact | ~usable).all():
            break
        start = torch.where((usable & ~exact).unsqueeze(-1), point, start)
    # Where the second projection failed, a near miss still keeps the promise, whose tolerance counts |f|.
    kept = near & ~exact
    y = y.index_copy(0, doubtful, torch.where(kept.unsqueeze(-1), y[doubtful], point))
    replaced = (~kept).nonzero().squeeze(-1)
    choice = choice.put(doubtful[replaced], option.take(replaced))
    missing[doubtful] = ~(usable | near)
    conflict = conflict.index_copy(0, doubtful, blame.to(conflict.dtype))
    return y, choice, missing, conflict


def polish(rows: Rows, choice: Choice, g: Tensor) -> Tensor:
    """The closed form on γ; where it keeps the other rows, clamped so that plain bounds hold exactly.

    A vertex at the origin comes out as rounding noise of size ``eps |g|``, which no relative tolerance accepts (and
    no further refinement ends): it is set to zero.
    """
    y = flat_point(rows, choice, g)
    low, high = box_limits(rows)
    clamped = torch.where(low <= high, torch.minimum(torch.maximum(y, low), high), y)
    keeps = rows.accepts(clamped, clamped) | ~rows.accepts(y, y)
    y = torch.where(keeps.unsqueeze(-1), clamped, y)
    zero = torch.zeros_like(y)
    noise = (largest(y) <= tolerance.feasibility(rows.dtype, rows.n) * largest(g)).squeeze(-1)
    snap = noise & ~rows.accepts(y, y) & rows.accepts(zero, zero)
    return torch.where(snap.unsqueeze(-1), zero, y)


def box_limits(rows: Rows) -> tuple[Tensor, Tensor]:
    """The bounds that rows of the form ``± y_j`` put on the outputs, ``(B, n)`` each."""
    samples, n = rows.lower.shape[0], rows.n
    size = rows.A.abs()
    low, high = rows.lower.new_full((samples, n), -math.inf), rows.lower.new_full((samples, n), math.inf)
    if rows.m == 0 or n == 0:
        return low, high
    top, column = size.max(-1)
    plain = ((size != 0).sum(-1) == 1) & (top == 1)
    sign = rows.A.gather(-1, column.unsqueeze(-1)).squeeze(-1)
    lower = torch.where(sign > 0, rows.lower, -rows.upper)
    upper = torch.where(sign > 0, rows.upper, -rows.lower)
    column = column.expand(samples, rows.m)
    low = low.scatter_reduce(-1, column, torch.where(plain, lower, -math.inf), "amax")
    high = high.scatter_reduce(-1, column, torch.where(plain, upper, math.inf), "amin")
    return low, high


def _quality(rows: Rows, choice: Choice, y: Tensor) -> Tensor:
    """PROJECTED, or WITHIN_TOL where a bound that is not in γ is exceeded (by rounding, or an emptiness that small)."""
    held = torch.zeros_like(rows.lower, dtype=torch.int8)
    held = held.scatter(-1, choice.rows, choice.sides) if choice.rows.shape[-1] else held
    value = apply(rows.A, y)
    equal = (rows.lower == rows.upper) & (held != 0)
    beyond = ((value > rows.upper) & (held <= 0)) | ((value < rows.lower) & (held >= 0))
    return torch.where((beyond & ~equal).any(-1), Status.WITHIN_TOL, Status.PROJECTED)


# ------------------------------------------------------------------------------------------------- strict


def _step_inside(
    rows: Rows,
    plan: enumeration.Enumeration | None,
    f: Tensor,
    g: Tensor,
    norm: float,
    equal: Tensor,
    answer: _Answer,
) -> _Answer:
    """Aim inside by a few units in the last place, so that every inequality holds in exact arithmetic.

    The bounds are drawn in by a margin that covers the rounding of the point, and the batch is projected on the smaller
    set. Where that set is empty (no interior, or one thinner than rounding), the ordinary answer stays; it is
    WITHIN_TOL unless it happens to satisfy every row exactly, and INFEASIBLE if the set is proven to be empty.
    """
    share = tolerance.strict_margin(rows.dtype, rows.n)
    size = largest(answer.value)
    unproven = answer.status != Status.INFEASIBLE
    for factor in (1, 4, 16):
        todo = unproven.nonzero().squeeze(-1)
        if todo.numel() == 0:
            return answer
        some, fixed = rows.take(todo), equal[todo]
        low = some.lower + factor * share * (size[todo] + some.lower.abs())
        high = some.upper - factor * share * (size[todo] + some.upper.abs())
        low = torch.where(fixed | some.lower.isinf(), some.lower, low)
        high = torch.where(fixed | some.upper.isinf(), some.upper, high)
        inner = _nearest(some.moved(low, high), plan.take(todo) if plan else None, f[todo], g[todo], norm)
        holds = inner.status != Status.INFEASIBLE
        holds = holds & some.accepts(inner.value, inner.value)
        holds = holds & surely_satisfies(some.A, some.lower, some.upper, inner.value, fixed)
        settled, picked = todo[holds], holds.nonzero().squeeze(-1)
        answer = _Answer(
            answer.value.index_copy(0, settled, inner.value[picked]),
            answer.status.index_fill(0, settled, Status.PROJECTED),
            answer.choice.put(settled, inner.choice.take(picked)),
            answer.conflict.index_copy(0, todo, inner.conflict),
        )
        unproven = unproven.index_fill(0, settled, False)
    for i in unproven.nonzero().squeeze(-1).tolist():
        here = rows.take(torch.tensor([i], device=f.device))
        value = answer.value[i : i + 1]
        if exactly_satisfies(here.A, here.lower, here.upper, value, equal[i : i + 1]):
            answer.status[i] = Status.PROJECTED
            continue
        A = rows.A if rows.shared else rows.A[i]
        data = (t.double().cpu().numpy() for t in (A, rows.lower[i], rows.upper[i], answer.conflict[i]))
        empty = conflict_of(*data, names=("",) * rows.m).proven
        answer.status[i] = Status.INFEASIBLE if empty else Status.WITHIN_TOL
    return answer


# ------------------------------------------------------------------------------------------------- bad samples


def _screen(problem: Problem, options: Options) -> tuple[Problem, Tensor | None]:
    """Set aside samples with NaN or infinite data: raise, or replace them by a harmless sample and mark them."""
    p = problem
    bad = {"f": ~p.f.isfinite(), "A": ~p.A.isfinite(), "lower": p.lower.isnan(), "upper": p.upper.isnan()}
    if p.w is not None:
        bad["w"] = ~p.w.isfinite()
    equality = torch.tensor([side == "=" for side in p.sides], dtype=torch.bool, device=p.f.device)
    bad["upper"] = bad["upper"] | (p.upper.isinf() & equality)
    if not any(mask.any() for mask in bad.values()):
        return p, None
    if options.on_infeasible == "raise":
        name, mask = next((name, mask) for name, mask in bad.items() if mask.any())
        place = mask.nonzero()[0].tolist()
        number = getattr(p, name)[tuple(place)].item()
        raise ConstraintError(
            f"{name} must be finite, got {number} {_where(p, name, place)}. "
            'Find out where it comes from, or pass on_infeasible="nan" to mark such samples INVALID and go on.'
        )
    invalid = torch.zeros(p.f.shape[0], dtype=torch.bool, device=p.f.device)
    for name, mask in bad.items():
        shared = name == "A" and p.A.ndim == 2
        invalid = invalid | (mask.any() if shared else mask.flatten(1).any(-1))
    line = invalid.unsqueeze(-1)
    A = torch.where(line.unsqueeze(-1), 0.0, p.A) if p.A.ndim == 3 else p.A.nan_to_num(0.0, 0.0, 0.0)
    return (
        dataclasses.replace(
            p,
            f=torch.where(line, 0.0, p.f),
            w=None if p.w is None else torch.where(line, 0.0, p.w),
            A=A,
            lower=torch.where(line, -math.inf, p.lower),
            upper=torch.where(line, math.inf, p.upper),
        ),
        invalid,
    )


def _where(p: Problem, name: str, place: Sequence[int]) -> str:
    """Names an entry in the user's own indices."""
    core = place[-2:] if name == "A" else place[-1:]
    row = f" ({p.names[core[0]]})" if name in ("A", "lower", "upper") else ""
    sample = sample_index(place[0], p.batch_shape) if len(place) > len(core) else ()
    return f"at {name}[{', '.join(map(str, (*sample, *core)))}]{row}"


def sample_index(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The place of a sample in the user's batch axes."""
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def _report(
    problem: Problem, rows: Rows, lost: Tensor, conflict: Tensor, value: Tensor, choice: Choice, options: Options
) -> tuple[Tensor, Choice]:
    """What happens to samples without a feasible point: the error, NaN, or the point of least violation."""
    if options.on_infeasible == "raise":
        raise _error(problem, rows, lost, conflict)
    if options.on_infeasible == "nan":
        blank = Choice.nothing(lost.shape[0], rows.n, value).widen(choice.rows.shape[-1])
        return value.index_fill(0, lost, math.nan), choice.put(lost, blank)
    some = rows.take(lost)
    start = problem.f[lost] if problem.w is None else problem.f[lost] + problem.w[lost]
    point, option = least_violation(some, start)
    return value.index_copy(0, lost, point), choice.put(lost, option)


def least_violation(rows: Rows, g: Tensor) -> tuple[Tensor, Choice]:
    """The point nearest to `g` among those whose largest violation, in the user's units, is least.

    Rows relaxed by ``t`` have a common point exactly when no conflict is left, and a conflict with multipliers μ ends at
    ``t = -Σ μ_i b_i / Σ |μ_i|``. So t climbs from conflict to conflict (Newton's method on a convex piecewise linear
    function: it ends after finitely many) until the relaxed rows meet.
    """
    unit = times_power(torch.ones_like(rows.lower), rows.exponent.expand_as(rows.lower))  # one user's unit, scaled
    # A row whose own bounds cross needs half of the gap.
    relax = ((rows.lower - rows.upper) / (2 * unit)).amax(-1, keepdim=True).clamp_min(0)
    for _ in range(50):
        wider = rows.moved(rows.lower - relax * unit, rows.upper + relax * unit)
        outcome = dual.project(wider, g)
        if outcome.found.all() or not relax.isfinite().all():
            break
        multiplier = outcome.conflict.to(g.dtype)
        bound = torch.where(multiplier > 0, rows.upper, rows.lower)
        gap = torch.where(multiplier != 0, multiplier * bound, 0.0).sum(-1, keepdim=True)
        weight = (multiplier.abs() * unit).sum(-1, keepdim=True)
        needed = torch.where(weight > 0, -gap / torch.where(weight > 0, weight, 1.0), 0.0)
        relax = torch.maximum(relax, needed * (1 + tolerance.feasibility(rows.dtype, rows.n)))
    option = from_active(wider, outcome.active, outcome.found)
    point = polish(wider, option, g)
    known = outcome.found & relax.squeeze(-1).isfinite()
    return torch.where(known.unsqueeze(-1), point, math.nan), option


def _error(problem: Problem, rows: Rows, lost: Tensor, conflict: Tensor) -> InfeasibleError:
    """The exception: which samples, and which of their rows exclude each other."""
    units = times_power(conflict, (rows.exponent if rows.shared else rows.exponent[lost]))
    samples, conflicts = [], []
    for place, i in enumerate(lost.tolist()):
        A = problem.A if problem.A.ndim == 2 else problem.A[i]
        data = (t.detach().double().cpu().numpy() for t in (A, problem.lower[i], problem.upper[i], units[place]))
        conflicts.append(conflict_of(*data, problem.names))
        samples.append(sample_index(i, problem.batch_shape))
    lines = [f"  sample {index or '()'}: {conflict}" for index, conflict in zip(samples[:5], conflicts[:5], strict=True)]
    more = f"\n  ... and {len(samples) - 5} more" if len(samples) > 5 else ""
    return InfeasibleError(
        f"No point satisfies the constraints of {len(samples)} of {problem.f.shape[0]} samples:\n"
        + "\n".join(lines)
        + more
        + '\nRelax one of the named rows, or pass on_infeasible="nearest" (least violation) or "nan".',
        samples,
        conflicts,
    )
