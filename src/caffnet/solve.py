"""From the data of a batch to one verified sub-constraint per sample. No gradients here.

screen      samples with NaN or infinite data are set aside
scale       every row to unit size, exactly
accept      `f` itself, if it satisfies the rows up to rounding: returned bit for bit
search      the sub-constraint γ of every other sample
polish      the closed form on γ, refined once, clamped to plain bounds
verify      every row, from the data; near misses are projected again, failures are proven infeasible

On the CPU the compiled kernel does these steps first, one sample at a time. What it cannot verify comes here.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from caffnet import compiled, tolerance
from caffnet.certificate import conflict_of, exactly_satisfies, surely_satisfies
from caffnet.failures import report, screen
from caffnet.problem import Options, Problem, Solution, Status
from caffnet.rows import Rows, apply, largest, scale_rows
from caffnet.search import active, enumeration
from caffnet.search.contract import Choice
from caffnet.search.flat import polish, within_box


def solve(
    problem: Problem, options: Options, plan: enumeration.Enumeration | None, start: Tensor | None = None
) -> Solution:
    """Answer every sample.

    Args:
        problem: tensors without a graph.
        options: with a definite search.
        plan: the prepared enumeration; None for the active-set search, or to list the sub-constraints here if needed.
        start: the rows that the kernel begins with, ``(B, m)`` as `Solution.held`.
    """
    quick = None
    if compiled.serves(problem.f, options):
        quick, undecided = compiled.solve(problem, options, start)
        if not undecided:
            return quick
    problem, invalid = screen(problem, options)
    rows = scale_rows(problem.A, problem.lower, problem.upper)
    f = problem.f
    g = f if problem.w is None else f + problem.w
    samples = f.shape[0]
    equal = (problem.lower == problem.upper) & problem.lower.isfinite()
    inside = rows.accepts(f, f) & within_box(rows, f)
    if options.strict:
        inside = inside & exactly_satisfies(rows.A, rows.lower, rows.upper, f, equal)
    status = torch.where((rows.excess(f) > 0).any(-1), Status.WITHIN_TOL, Status.INSIDE)
    value, choice = f, Choice.nothing(samples, rows.n, f)
    if quick is not None:
        decided = quick.status >= 0
        status = torch.where(decided, quick.status, status)
        value = torch.where(decided.unsqueeze(-1), quick.value, value)
        choice = _factorise(rows, torch.where(decided.unsqueeze(-1), quick.held, 0))
        inside = inside | decided
    todo = (~inside).nonzero().squeeze(-1)
    if todo.numel():
        some = rows.take(todo)
        if plan is not None:
            plan = plan.take(todo)
        elif options.search != "active":
            plan = enumeration.prepare(some, problem.sides, options.search == "lite", options.budget)
        answer = _project(some, plan, f[todo], g[todo], options, equal[todo])
        value = value.index_copy(0, todo, answer.value)
        status = status.index_copy(0, todo, answer.status.to(status.dtype))
        choice = choice.put(todo, answer.choice)
        lost = todo[answer.status == Status.INFEASIBLE]
        if lost.numel():
            value, choice = report(
                problem, rows, lost, answer.conflict[answer.status == Status.INFEASIBLE], value, choice, options
            )
    if invalid is not None:
        status = torch.where(invalid, Status.INVALID, status)
        value = torch.where(invalid.unsqueeze(-1), math.nan, value)
    value = f.clone() if value is f else value  # never the caller's own tensor
    return Solution(value, status.to(torch.int8), choice.held(rows.m), choice)


def factorised(problem: Problem, solution: Solution) -> Choice:
    """The sub-constraints of a solution with their pseudo-inverses; the kernel does not keep them."""
    if solution.choice is not None:
        return solution.choice
    return _factorise(scale_rows(problem.A, problem.lower, problem.upper), solution.held)


def _factorise(rows: Rows, held: Tensor) -> Choice:
    """The choice of the rows that are marked; samples without a mark lie on no flat."""
    choice = Choice.nothing(held.shape[0], rows.n, rows.lower)
    moved = (held != 0).any(-1).nonzero().squeeze(-1)
    if moved.numel() == 0:
        return choice
    found = torch.ones_like(moved, dtype=torch.bool)
    return choice.put(moved, active.from_active(rows.take(moved), held[moved], found))


def trace(problem: Problem, options: Options, plan: enumeration.Enumeration) -> Solution:
    """`solve` as plain arithmetic for a graph to be exported. Nothing can raise there: no answer is NaN."""
    rows = scale_rows(problem.A, problem.lower, problem.upper)
    f = problem.f
    g = f if problem.w is None else f + problem.w
    inside = rows.accepts(f, f) & within_box(rows, f)
    choice = enumeration.choose_at_once(rows, plan, f, g, options.norm, len(plan.table))
    y, _ = polish(rows, choice, g)
    good = choice.found & rows.accepts(y, g)
    status = torch.where(inside, Status.INSIDE, torch.where(good, Status.PROJECTED, Status.INFEASIBLE))
    value = torch.where(inside.unsqueeze(-1), f, torch.where(good.unsqueeze(-1), y, math.nan))
    return Solution(value, status.to(torch.int8), choice.held(rows.m), choice)


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
    choice = active.choose(rows, f, g, norm) if plan is None else enumeration.choose(rows, plan, f, g, norm)
    y, accepted = polish(rows, choice, g)
    conflict = rows.lower.new_zeros(rows.lower.shape)
    doubtful = (~(choice.found & accepted)).nonzero().squeeze(-1)
    missing = torch.zeros_like(accepted)
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
    option, point, exact, usable, blame = _project_again(some, start, goal)
    for _ in range(2):
        if (exact | ~usable).all():
            break
        start = torch.where((usable & ~exact).unsqueeze(-1), point, start)
        option, point, exact, usable, blame = _project_again(some, start, goal)
    # Where the second projection failed, a near miss still keeps the promise, whose tolerance counts |f|.
    kept = near & ~exact
    y = y.index_copy(0, doubtful, torch.where(kept.unsqueeze(-1), y[doubtful], point))
    replaced = (~kept).nonzero().squeeze(-1)
    choice = choice.put(doubtful[replaced], option.take(replaced))
    missing[doubtful] = ~(usable | near)
    conflict = conflict.index_copy(0, doubtful, blame.to(conflict.dtype))
    return y, choice, missing, conflict


def _project_again(rows: Rows, start: Tensor, goal: Tensor) -> tuple[Choice, Tensor, Tensor, Tensor, Tensor]:
    """The projection of `start` by the dual method: γ, the point, and whether it passes, alone and seen from `goal`."""
    option, blame = active.by_dual(rows, start)
    option = active.never_empty(rows.to(torch.float64), option, start.double())
    point, accepted = polish(rows, option, start)
    exact = option.found & accepted
    usable = option.found & rows.accepts(point, goal)
    return option, point, exact, usable, blame


def _quality(rows: Rows, choice: Choice, y: Tensor) -> Tensor:
    """PROJECTED, or WITHIN_TOL where a bound that is not in γ is exceeded (by rounding, or an emptiness that small)."""
    held = choice.held(rows.m)
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
        keep = fixed | (some.A == 0).all(-1)  # an equality has no inside, a zero row no rounding
        low = torch.where(keep | some.lower.isinf(), some.lower, low)
        high = torch.where(keep | some.upper.isinf(), some.upper, high)
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
        conflict = conflict_of(A, rows.lower[i], rows.upper[i], answer.conflict[i], names=("",) * rows.m)
        answer.status[i] = Status.INFEASIBLE if conflict.proven else Status.WITHIN_TOL
    return answer
