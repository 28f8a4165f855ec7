"""The minimum of ``y'Qy/2 + q'y`` on a set where Q may be singular or zero: a linear or convex quadratic program.

If Q is positive definite the kernel finds and proves the minimum at once, and so it does for most linear programs. Else
a sequence of such problems ends at the minimum,

    y <- argmin  x'(Q + ε I)x/2 + (q - ε y)'x   over x in the set,

the proximal-point method. Every step is a projection; for ``Q = 0`` that of ``y - q/ε``. After each step the face is
tested: multipliers λ with ``Qy + q + Aᵀλ = 0`` and the right signs prove that the minimum is on it, and the sequence
ends there, exactly, not in a limit. For a linear program that takes finitely many steps (Rockafellar 1976), and one
step if ε is small enough. `_is_rounding` and `_holds` are the conditions of a proof. If Q is definite, but so nearly
singular that the kernel finds no proof, the problem is solved again in the distance from y, with smaller numbers.

**Units.** The steps are Euclidean, so they depend on the units of the outputs. The sequence runs in ``x = y / unit``:
powers of two in which the entries of each row, and the curvatures, are of like size. λ is the same there.

**Without a minimum.** The objective falls without end on a set that has a point if and only if a direction d has
``Qd = 0``, ``q'd < 0`` and stays inside: ``A d <= 0`` at upper bounds and ``>= 0`` at lower ones. These d are a cone.
Its point nearest to ``-q`` is such a direction, or 0 if there is none.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet._solve import run
from caffnet._solve.face import dot, times
from caffnet._solve.problem import Answer, Options, Problem, Status, is_diagonal
from caffnet._solve.stationary import apply, full, pull, room_at

_ROUNDS = 60
_ASKED_FOR_A_RAY = 2  # the round after which samples are tested for having no minimum
_RESTARTS = 4  # restarts of a nearly singular definite problem, before it is damped
_PATIENCE = 30  # rounds after which steps are made longer
_REFINED = 3  # refinements of multipliers before they are judged
_EVENED = 4  # rounds of scaling rows and outputs
_QUIET = Options(search="active", on_infeasible="nan")


@dataclasses.dataclass
class Minimum:
    """Result of `minimise`.

    Attributes:
        answer: the points.
        multipliers: ``(B, m)``; NaN where there is no minimum.
        ray: a direction in which the objective falls without end, ``(B, n)``, of largest entry 1; zero where there is
            none.
        definite: whether Q is positive definite in every sample.
    """

    answer: Answer
    multipliers: Tensor
    ray: Tensor
    definite: bool


def minimise(problem: Problem, nearest: bool, start: Tensor | None = None) -> Minimum:
    """Minimise over every sample; nothing is raised.

    Args:
        problem: q in place of f, Q as the metric; None for zero.
        nearest: return the point of least violation for empty sets, instead of NaN.
        start: rows to begin with, ``(B, m)``, int8.
    """
    options = Options(search="active", on_infeasible="nearest" if nearest else "nan")
    if problem.metric is not None and not problem.metric.any():
        problem = problem._replace(metric=None)  # a linear program
    samples, m = len(problem.f), problem.A.shape[-2]
    if start is None and samples > 1 and problem.A.ndim == 2 and problem.f.stride(0) == 0:
        # One objective and one A for all: the rows of the first minimum are a good guess for the others.
        first = minimise(problem.at(slice(0, 1)), nearest)
        start = first.answer.active.expand(samples, m)
    answer, multipliers = run.minimise(problem, options, start)
    open = multipliers.isnan().any(-1) if m else answer.status == Status.WITHIN_TOL
    unproven = (answer.status <= Status.WITHIN_TOL) & open
    singular = problem.metric is None
    found = Minimum(answer, multipliers, torch.zeros_like(answer.value), not singular)
    if unproven.any():
        _descend(problem, found, unproven.nonzero().squeeze(-1), singular, options)
    indefinite = answer.status == Status.INVALID
    if not singular and indefinite.any():
        found.definite = False
        answer.value[indefinite], answer.active[indefinite] = 0.0, 0
        convexly = indefinite & convex(problem)
        if convexly.any():
            _descend(problem, found, convexly.nonzero().squeeze(-1), True, options)
    empty = answer.status == Status.INFEASIBLE
    if empty.any():
        _allow_rounding(problem, found, empty.nonzero().squeeze(-1), options)
    if not singular and indefinite.any():
        answer.value[answer.status == Status.INVALID] = torch.nan
    return found


def _allow_rounding(problem: Problem, found: Minimum, places: Tensor, options: Options) -> None:
    """Minimise over those of the samples, marked INFEASIBLE, whose rows exclude each other by no more than rounding.

    Far away, or in double precision, that is a conflict: as of redundant equalities in float32. But the set has a point
    within the tolerance of the user's numbers, and the bounds give way by what it misses them.
    """
    answer, p = found.answer, problem.at(places)
    near = run.solve(p._replace(f=torch.zeros_like(p.f), metric=None), _QUIET)
    some = near.status <= Status.WITHIN_TOL
    if not some.any():
        return
    places = places[some]
    answer.value[places], answer.status[places], answer.active[places] = near.value[some], Status.WITHIN_TOL, 0
    _descend(problem, found, places, not found.definite, options, through=near.value[some].double())


def _descend(
    problem: Problem, found: Minimum, places: Tensor, damped: bool, options: Options, through: Tensor | None = None
) -> None:
    """Minimise over the samples at these places and write the results into `found`.

    Args:
        problem: of all samples.
        found: of all samples.
        places: those in question.
        damped: whether Q may be singular.
        options: for empty sets.
        through: points that the bounds are to let through; the minima are then WITHIN_TOL.
    """
    answer, p = found.answer, problem.at(places)
    p = p.replace_tensors(*(None if t is None else t.double() for t in p.tensors))  # pyright: ignore
    if through is not None:
        value = times(p.A, through)
        lower, upper = torch.minimum(p.lower, value), torch.maximum(p.upper, value)
        p = p._replace(lower=lower, upper=upper, row_kinds="B" * len(p.row_kinds))
    unit = _units(p)
    p = _in_units(p, unit)
    y, side, before = answer.value[places].double() / unit, answer.active[places], answer.status[places]
    for number in range(_ROUNDS):
        came_from = y
        if damped or number >= _RESTARTS:
            metric, ε = _damping(p, y, number)
            y, side, status = _step(p, y, side, metric, ε, before > Status.WITHIN_TOL if number == 0 else None)
        else:
            metric = p.metric
            y, side, status = _restart(p, y, side)
        y, multipliers, proven = _ask(p, y, side, metric)
        done = proven
        if number == 0:
            lost = (before > Status.WITHIN_TOL) & (status > Status.WITHIN_TOL)
            if lost.any():  # no point: nothing to minimise
                empty = problem.at(places[lost])
                none = run.solve(empty._replace(f=torch.zeros_like(empty.f), metric=None), options)
                # If the set has a point, rounding hid it (`_allow_rounding`), or the fault lies elsewhere in the data.
                state = torch.where(status[lost] == Status.INFEASIBLE, Status.INFEASIBLE, Status.INVALID)
                state = torch.where(none.status > Status.WITHIN_TOL, none.status, state).to(torch.int8)
                here, known = places[lost], (state != Status.INVALID).unsqueeze(-1)
                answer.value[here], answer.active[here] = none.value, torch.where(known, none.active, 0)
                answer.status[here] = state
                proven, done = proven & ~lost, proven | lost
        if number == _ASKED_FOR_A_RAY:
            ray = unit * _fall(p, ~done)
            size = ray.abs().amax(-1, keepdim=True)
            endless = size.squeeze(-1) > 0
            found.ray[places] = (ray / torch.where(size > 0, size, 1.0)).to(found.ray.dtype)
            answer.value[places[endless]], answer.active[places[endless]] = torch.nan, 0
            answer.status[places[endless]] = Status.UNBOUNDED
            done = done | endless
        ready = proven | ~done if number == _ROUNDS - 1 else proven
        if ready.any():
            sure = proven[ready] & (through is None)
            _finish(problem, found, places[ready], (unit * y)[ready], side[ready], multipliers[ready], sure)
        if done.all():
            return
        if p.metric is not None and number >= _PATIENCE:
            y = _farther(p, came_from, y)
        if done.any():
            keep = (~done).nonzero().squeeze(-1)
            places, p, y, side = places[keep], p.at(keep), y[keep], side[keep]
            unit = unit if unit.ndim == 1 else unit[keep]


def _units(p: Problem) -> Tensor:
    """A power of two for every output, ``(n,)``, or ``(B, n)`` where samples have rows or a Q of their own.

    Those in which the logarithms of the entries of all rows come nearest to one number per row (Curtis and Reid 1972).
    A row of one entry has no say; Q has one row, the roots of its curvatures, which are to come near to 1.
    """
    rows = torch.where((p.A != 0).sum(-1, keepdim=True) > 1, p.A, 0.0)
    free = torch.arange(rows.shape[-2] + (p.metric is not None), device=rows.device).unsqueeze(-1) < rows.shape[-2]
    if p.metric is not None:
        curvature = p.metric if is_diagonal(p.metric) else p.metric.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
        batch = torch.broadcast_shapes(rows.shape[:-2], curvature.shape[:-2])
        roots = curvature.clamp_min(0.0).sqrt()
        rows = torch.cat([t.expand(*batch, *t.shape[-2:]) for t in (rows, roots)], -2)
    there = rows != 0
    size = torch.where(there, torch.where(there, rows, 1.0).abs().log2(), 0.0)
    in_row, in_column = (there.sum(axis, keepdim=True).clamp_min(1) for axis in (-1, -2))
    column = torch.zeros_like(size[..., :1, :])
    for _ in range(_EVENED):
        row = torch.where(there & free, size - column, 0.0).sum(-1, keepdim=True) / in_row
        column = torch.where(there, size - row, 0.0).sum(-2, keepdim=True) / in_column
    return (-column.squeeze(-2)).round().exp2()


def _in_units(p: Problem, unit: Tensor) -> Problem:
    """The problem in ``x = y / unit``."""
    Q, wide = p.metric, unit.unsqueeze(-2)
    if Q is not None:
        Q = Q * wide * (wide if is_diagonal(Q) else wide.mT)
    return p.replace_tensors(p.f * unit, None, p.A * wide, p.lower, p.upper, Q)


def _finish(
    problem: Problem, found: Minimum, places: Tensor, y: Tensor, side: Tensor, multipliers: Tensor, proven: Tensor
) -> None:
    """Write points in the user's numbers, put onto their rows, with their multipliers."""
    own, answer = problem.at(places), found.answer
    near = run.solve(own._replace(f=y.to(own.f.dtype), metric=None), _QUIET)
    on_rows = (near.status <= Status.WITHIN_TOL).unsqueeze(-1)  # else they exclude each other by rounding
    status = torch.where((side == 0).all(-1), Status.INSIDE, Status.PROJECTED)
    answer.status[places] = torch.where(proven, status, Status.WITHIN_TOL).to(torch.int8)
    answer.value[places], answer.active[places] = torch.where(on_rows, near.value, y.to(own.f.dtype)), side
    found.multipliers[places] = multipliers.to(found.multipliers.dtype)


def convex(p: Problem) -> Tensor:
    """Check whether Q has no eigenvalue below zero, but for rounding, ``(B,)``."""
    if p.metric is None:
        return torch.ones(len(p.f), dtype=torch.bool, device=p.f.device)
    numbers = p.metric.isfinite().all((-1, -2))
    Q = torch.where(numbers[..., None, None], p.metric, 0.0)
    sizes = Q.squeeze(-2) if is_diagonal(Q) else torch.linalg.eigvalsh((Q + Q.mT) / 2)
    least = -tolerance.flat(Q.dtype, Q.shape[-1]) * sizes.abs().amax(-1)
    return (numbers & (sizes.amin(-1) >= least)).expand(len(p.f))


# ------------------------------------------------------------------------------------------------- one step


def _damping(p: Problem, y: Tensor, number: int) -> tuple[Tensor | None, Tensor]:
    """``Q + ε I``, or None where Q is zero, and ε, ``(B, 1)`` or ``(1, 1)`` for a Q that the batch shares."""
    # The room around y: the median distance to its rows, which far-away bounds do not change.
    value = times(p.A, y)
    distance = torch.minimum((p.upper - value).abs(), (value - p.lower).abs()) / torch.linalg.vector_norm(p.A, dim=-1)
    room = y.abs().amax(-1)
    if distance.shape[-1]:
        room = room + torch.where(distance.isfinite(), distance, torch.nan).nanmedian(-1).values.nan_to_num(0.0)
    steep = _slope(p, y).abs().amax(-1).clamp_min(torch.finfo(y.dtype).tiny)
    far = tolerance.PROXIMAL[number % len(tolerance.PROXIMAL)] * torch.where(room > 0, room, 1.0)
    Q = p.metric
    if Q is None:
        return None, (steep / far).unsqueeze(-1)
    top = Q.abs().amax((-1, -2))
    flat = torch.where(_slope(p, y).any(-1), steep / far, 1.0)  # what stands in for a Q of zeros
    least, most = (share * torch.where(top > 0, top, flat) for share in tolerance.DAMPING)
    straight = steep > top * room  # within this room curvature does not count: as for a linear program
    ε = torch.minimum(torch.maximum(steep / far, least), torch.where(straight, torch.inf, most))
    ε = ε if Q.ndim == 3 else ε.median()
    one = torch.ones_like(Q) if is_diagonal(Q) else torch.eye(Q.shape[-1]).to(Q)
    return Q + ε[..., None, None] * one, ε.reshape(-1, 1)


def _step(
    p: Problem, y: Tensor, side: Tensor, metric: Tensor | None, ε: Tensor, outside: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The next point, its rows, and how they were found; the same ones where rounding leads up instead of down.

    Samples that were `outside` of the set may go up.
    """
    if metric is None:
        found = run.solve(p._replace(f=y - p.f / ε), _QUIET, side)
    else:
        found, _ = run.minimise(p._replace(f=p.f - ε * y, metric=metric), _QUIET, side)
    before, now = _objective(p, y), _objective(p, found.value)
    down = now <= before + tolerance.optimal(y.dtype) * before.abs()
    down = down if outside is None else down | outside
    good = (down & (found.status <= Status.WITHIN_TOL)).unsqueeze(-1)
    return torch.where(good, found.value, y), torch.where(good, found.active, side), found.status


def _farther(p: Problem, start: Tensor, y: Tensor) -> Tensor:
    """The lowest point of the set on the line from `start` through y, no nearer than y.

    Where the objective is nearly flat, ε is large beside its slope, and the steps of the sequence are short.
    """
    along = y - start
    assert p.metric is not None
    fall, bend = -dot(_slope(p, y), along), dot(apply(p.metric, along), along)
    value, change = times(p.A, y), times(p.A, along)
    still = change.abs() <= room_at(p.A, y, value)  # rounding of a row that holds both points
    left = torch.where(change > 0, p.upper, p.lower) - value
    most = torch.where(still, torch.inf, left / torch.where(still, 1.0, change)).clamp_min(0.0)
    most = torch.cat([most, (fall / bend.clamp_min(torch.finfo(y.dtype).tiny)).unsqueeze(-1)], -1).amin(-1)
    length = torch.where((fall > 0) & (most > 0), most.clamp_max(tolerance.FARTHEST), 0.0)
    return y + length.unsqueeze(-1) * along


def _restart(p: Problem, y: Tensor, side: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The problem in ``x = y' - y``, whose numbers are smaller, solved from there."""
    value = times(p.A, y)
    here = p._replace(f=_slope(p, y), lower=p.lower - value, upper=p.upper - value)
    found, _ = run.minimise(here, _QUIET, side)
    good = (found.status <= Status.WITHIN_TOL).unsqueeze(-1)
    return torch.where(good, y + found.value, y), torch.where(good, found.active, side), found.status


def _objective(p: Problem, y: Tensor) -> Tensor:
    return dot(_slope(p, y) + p.f, y) / 2


def _slope(p: Problem, y: Tensor) -> Tensor:
    return p.f if p.metric is None else apply(p.metric, y) + p.f


# ------------------------------------------------------------------------------------------------- proofs


def _ask(p: Problem, y: Tensor, side: Tensor, metric: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the minimum on a face: the point, its multipliers, and a mask of samples for which they prove it.

    First only the multipliers are computed; where they do not prove the point, it is moved along its face as well.
    """
    face, system = Answer(y, side.new_zeros(len(y)), side), p._replace(f=torch.zeros_like(y), metric=metric)
    bound = torch.where(side > 0, p.upper, torch.where(side < 0, p.lower, 0.0))
    point, multipliers = y, torch.zeros_like(bound)
    proven = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    for moved in (False, True) if p.metric is not None else (False,):
        at, pulled, miss = y, torch.zeros_like(bound), -_slope(p, y)
        for _ in range(_REFINED):
            right = torch.where(side != 0, bound - times(p.A, at), 0.0) if moved else None
            step, more = run.solve_system(system, face, miss, right)
            pulled, at = pulled + more, at + step if moved else at
            signed = torch.where((p.lower == p.upper) | (pulled * side >= 0), pulled, 0.0)
            left, size = _balance(p, at, signed)
            now = _is_rounding(left, size) & _holds(p, at, side)
            taken = (~proven & now if moved else ~proven).unsqueeze(-1)
            point, multipliers = torch.where(taken, at, point), torch.where(taken, signed, multipliers)
            proven = proven | now
            miss = -(_slope(p, at) + pull(p.A, pulled))
            # An error in more than half of the digits is not rounding.
            near = miss.abs().amax(-1) <= tolerance.optimal(y.dtype) * size.amax(-1)
            if not (~proven & (near | moved)).any():
                break
        if proven.all():
            break
    return point, multipliers, proven


def _balance(p: Problem, y: Tensor, multipliers: Tensor) -> tuple[Tensor, Tensor]:
    """``Qy + q + Aᵀλ``, and the sum of the sizes of its terms, ``(B, n)``."""
    size = p.f.abs() + pull(p.A.abs(), multipliers.abs())
    if p.metric is not None:
        size = size + apply(p.metric.abs(), y.abs())
    return _slope(p, y) + pull(p.A, multipliers), size


def _is_rounding(miss: Tensor, size: Tensor) -> Tensor:
    """Return ``(B,)``, True where the residual is rounding of its terms, as the kernel requires of a proof."""
    # A multiplier that should vanish is of the size of the last place of the others.
    least = torch.finfo(miss.dtype).eps * size.amax(-1, keepdim=True) + tolerance.underflow(miss.dtype)
    return (miss.abs() <= tolerance.feasibility(miss.dtype, miss.shape[-1]) * size + least).all(-1)


def _holds(p: Problem, y: Tensor, side: Tensor) -> Tensor:
    """Check whether a point lies on the rows of its face and within the others, up to rounding, ``(B,)``."""
    value = times(p.A, y)
    room = room_at(p.A, y, value)
    high = torch.where(side < 0, p.lower, p.upper)
    low = torch.where(side > 0, p.upper, p.lower)
    return ((value <= high + room) & (value >= low - room)).all(-1)


def _fall(p: Problem, which: Tensor) -> Tensor:
    """A direction in which the objective falls without end, ``(B, n)``, of samples in question; else zero."""
    falls = torch.zeros_like(p.f)
    some = which.nonzero().squeeze(-1)
    p = p.at(some)
    n = p.f.shape[-1]
    A, low, high = p.A, torch.where(p.lower > -torch.inf, 0.0, p.lower), torch.where(p.upper < torch.inf, 0.0, p.upper)
    if p.metric is not None:  # the directions with curvature, as equalities
        sizes, along = torch.linalg.eigh(full(p.metric, p.A))
        curved = sizes > tolerance.flat(sizes.dtype, n) * sizes.amax(-1, keepdim=True)
        rows = torch.where(curved.unsqueeze(-1), along.mT, 0.0)
        batch = rows.shape[:-2] or A.shape[:-2]
        A = torch.cat([A.expand(*batch, *A.shape[-2:]), rows.expand(*batch, n, n)], -2)
        zero = low.new_zeros(n)
        low, high = (torch.cat([t, zero.expand(*t.shape[:-1], n)], -1) for t in (low, high))
    scale = p.f.abs().amax(-1, keepdim=True)
    goal = -p.f / torch.where(scale > 0, scale, 1.0)
    cone = Problem(goal, None, A, low, high, None, "B" * A.shape[-2], None, (len(goal),))
    d = run.solve(cone, _QUIET).value.nan_to_num(0.0)
    steep = d.abs().amax(-1, keepdim=True) > tolerance.RAY
    falls[some] = torch.where(steep, d, 0.0)
    return falls
