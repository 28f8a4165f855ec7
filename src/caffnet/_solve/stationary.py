"""Multipliers, and the derivative of a minimum together with them.

The minimum of ``y'Qy/2 + q'y`` on a set is a projection in the metric Q, and every projection is such a minimum:
``q = -M f``. On its face γ, the point and the multipliers λ solve

    [ Q    A_γᵀ ] [ y ]   [ -q  ]
    [ A_γ  0    ] [ λ ] = [ b_γ ],          λ >= 0 at upper bounds, <= 0 at lower ones, any sign at equalities.

With (v, u) the incoming gradient of (y, λ), let (p, s) be the solution for the right side (v, u). Then

    ∂q = -p,   ∂b = s,   ∂A = -(λ pᵀ + s yᵀ),   ∂Q = -(p yᵀ + y pᵀ) / 2.

**A singular Q** cannot be factorised. On the face, ``Q + A_γᵀ D A_γ`` gives the same p, and s is its s plus ``D u``.
It is positive definite if the system has a unique solution. If it is not, there are many minima, and the directions
between them get no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet._solve import run
from caffnet._solve.face import dot, product, times, times_power, unit_exponent
from caffnet._solve.problem import Answer, Options, Problem, Status, is_diagonal
from caffnet._solve.sparse import largest, row_sizes, sizes_at


def apply(Q: Tensor | None, y: Tensor) -> Tensor:
    """``Q y``, ``(B, n)``; Q as the metric of a `Problem`, None for the identity."""
    if Q is None:
        return y
    return y * Q.squeeze(-2) if is_diagonal(Q) else product((Q + Q.mT) / 2, y)


def pull(A: Tensor, multipliers: Tensor) -> Tensor:
    """``Aᵀ λ``, ``(B, n)``."""
    return multipliers @ A if A.ndim == 2 else (multipliers.unsqueeze(-2) @ A).squeeze(-2)


# ------------------------------------------------------------------------------------------------- of a projection


def multipliers(problem: Problem, answer: Answer) -> Tensor:
    """Those of the nearest points to f, ``(B, m)``; NaN where there is no answer. Differentiable.

    ``M (f - y) = Aᵀ λ``: the coefficients on the rows of the face, which are independent. Where rounding chose a face
    whose coefficients have a wrong sign, as between bounds that cross, the cone of the touching rows has the right
    ones: λ are also the multipliers of the point of ``{a_i x <= 0}`` that is nearest to ``f - y``, which is 0.
    """
    with torch.no_grad():
        p = problem.detach()
        apart = apply(p.metric, p.f - answer.value)
        nothing = p._replace(f=torch.zeros_like(p.f), w=None)
        found = run.solve_system(nothing, answer, apart, None)[1]
        wrong = _wrong_side(p, answer, found) > tolerance.tie(p.f.dtype, p.f.shape[-1]) * largest(found)
        found = torch.where(_wrong_side(p, answer, found) > 0, 0.0, found)
        lost = (answer.status > Status.WITHIN_TOL).unsqueeze(-1)
        again = wrong.any(-1) & ~lost.squeeze(-1)
        if again.any():
            found[again] = _on_cone(p, answer, apart, again)
        found = torch.where(lost, torch.nan, found)
    # Samples without an answer may be NaN, which must not reach the gradient of a metric that others share.
    f, metric = torch.where(lost, 0.0, problem.f), problem.metric
    if metric is not None and metric.ndim == 3:
        metric = torch.where(lost.unsqueeze(-1), 0.0, metric)
    q = -apply(metric, f)
    known = torch.where(found.isfinite(), found, 0.0)
    # Rows in conflict depend on each other: their system has no solution, and nothing asks for one.
    answer = answer._replace(active=torch.where(lost, 0, answer.active))
    attached = attach(problem._replace(f=q, w=None), answer, known, singular=False)[1]
    return torch.where(lost, torch.nan, attached)


def _wrong_side(p: Problem, answer: Answer, found: Tensor) -> Tensor:
    """The size of each multiplier whose sign its bound does not allow, else 0; 0 for an equality."""
    side = torch.where(p.lower == p.upper, 0, answer.active).to(found.dtype)
    return (-side * found).clamp_min(0.0)


def room_at(A: Tensor, y: Tensor, value: Tensor) -> Tensor:
    """The rounding of a row whose value at `y` is `value`, and of its bound, ``(..., m)``: twice that is "touched"."""
    size = sizes_at(A, y, 2 * row_sizes(A) * largest(y)) + 2 * value.abs()
    return tolerance.feasibility(y.dtype, A.shape[-1]) * size + tolerance.underflow(y.dtype)


def _on_cone(p: Problem, answer: Answer, apart: Tensor, which: Tensor) -> Tensor:
    """Multipliers from the cone of all rows that the point touches."""
    n = p.f.shape[-1]
    _, _, A, lower, upper, metric = p.at(which).tensors
    y, active = answer.value[which], answer.active[which]
    value = times(A, y)
    room = 2 * room_at(A, y, value)
    free = torch.full_like(value, torch.inf)
    high = torch.where((active > 0) | (value - upper >= -room), 0.0, free)
    low = torch.where((active < 0) | (lower - value >= -room), 0.0, -free)
    low, high = (torch.where(lower == upper, 0.0, t) for t in (low, high))
    metric = y.new_ones(1, n) if metric is None else metric
    # A cone has no unit: in that of f - y, no product leaves the range of numbers.
    apart = apart[which]
    exponent = unit_exponent(apart).unsqueeze(-1)
    goal = -times_power(apart, exponent)
    cone = Problem(goal, None, A, low, high, metric, "B" * A.shape[-2], None, (len(y),))
    found = run.minimise(cone, Options(search="active", on_infeasible="nan"))[1]
    return times_power(torch.where(found.isfinite(), found, 0.0), -exponent)


# ------------------------------------------------------------------------------------------------- the derivative


def attach(problem: Problem, answer: Answer, multipliers: Tensor, singular: bool) -> tuple[Tensor, Tensor]:
    """The value of a minimum and its multipliers, with the gradient by q (in place of f), A, the bounds and Q.

    Args:
        problem: f is q, the metric is Q; None for the identity, or zero if `singular`.
        answer: the minimum; its active rows are independent.
        multipliers: ``(B, m)``.
        singular: whether Q may be singular.
    """
    data = problem.f, problem.A, problem.lower, problem.upper, problem.metric
    if not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in data)):
        return answer.value, multipliers
    given = answer.value, multipliers, answer.status, answer.active, problem.row_kinds, singular
    return _Attached.apply(*data, *given)


class _Attached(torch.autograd.Function):
    """A minimum and its multipliers, differentiated on their face."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        *data, value, multipliers, status, active, ctx.row_kinds, ctx.singular = given
        ctx.save_for_backward(*data, value, multipliers, status, active)
        return value.view_as(value), multipliers.view_as(multipliers)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor):
        q, A, lower, upper, Q, value, multipliers, status, active = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:5]
        problem = Problem(q, None, A, lower, upper, Q, ctx.row_kinds, None, (len(value),))
        answer = Answer(value, status, active)
        v, u = incoming
        if torch.is_grad_enabled():
            slopes = _again(problem, answer, wanted, v, u, ctx.singular)
        else:
            p, s = _solve(problem, answer, v, u, ctx.singular)
            slopes = _slopes(problem, answer, multipliers, p, s, wanted)
        return *slopes, *(None,) * 6


def _slopes(
    problem: Problem, answer: Answer, multipliers: Tensor, p: Tensor, s: Tensor, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of q, A, the bounds and Q from the solution (p, s) of the system."""
    y, side = answer.value, answer.active
    held = _has_face(answer)
    y, multipliers, p, s = (torch.where(held, t, 0.0) for t in (y, multipliers, p, s))
    Q, A = problem.metric, problem.A
    slopes: list[Tensor | None] = [-p if wanted[0] else None, None, None, None, None]
    if wanted[1]:
        slopes[1] = -(outer(multipliers, p, A.ndim == 2) + outer(s, y, A.ndim == 2))
    for place, bound, part in ((2, problem.lower, side < 0), (3, problem.upper, side > 0)):
        if wanted[place]:
            one = torch.where(part, s, 0.0)
            slopes[place] = one.sum(0) if bound.ndim == 1 else one
    if wanted[4] and Q is not None:
        shared = Q.ndim == 2
        if is_diagonal(Q):
            one = -(p * y).unsqueeze(-2)
            slopes[4] = one.sum(0) if shared else one
        else:
            one = outer(p, y, shared)
            slopes[4] = -(one + one.mT) / 2
    return slopes


def outer(a: Tensor, b: Tensor, summed: bool) -> Tensor:
    """``a bᵀ`` of every sample, or their sum."""
    return a.mT @ b if summed else a.unsqueeze(-1) * b.unsqueeze(-2)


def _solve(problem: Problem, answer: Answer, v: Tensor, u: Tensor, singular: bool) -> tuple[Tensor, Tensor]:
    """(p, s) by the kernel."""
    problem = problem.detach()
    if singular:
        return _solve_stiff(problem, answer, v, u)
    p, s = run.solve_system(problem, answer, v, u)
    # The kernel factorises Q, which costs digits where Q is nearly singular, though rows hold the point.
    if problem.metric is not None and v.shape[-1] and (missed := _missed(problem, answer, v, u, p, s)).any():
        bad = missed.nonzero().squeeze(-1)
        p[bad], s[bad] = _solve_stiff(problem.at(bad), Answer(*(t[bad] for t in answer[:3])), v[bad], u[bad])
    return p, s


def _missed(problem: Problem, answer: Answer, v: Tensor, u: Tensor, p: Tensor, s: Tensor) -> Tensor:
    """Mask ``(B,)`` of the samples in which (p, s) misses the system by more than half of the digits."""
    Q, A, share = problem.metric, problem.A, tolerance.optimal(v.dtype)
    curved, pulled = apply(Q, p), pull(A, s)
    size = torch.maximum(torch.maximum(curved.abs(), pulled.abs()), v.abs())
    missed = (curved + pulled - v).abs().amax(-1) > share * size.amax(-1)
    moved = (times(A, p) - u).abs() > share * (A.abs().sum(-1) * p.abs().amax(-1, keepdim=True) + u.abs())
    return missed | (moved & (answer.active != 0)).any(-1)


def _solve_stiff(problem: Problem, answer: Answer, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    whole, weight, loose = _stiff(problem, answer)
    p, s = run.solve_system(problem._replace(metric=whole), answer, v - product(loose, v), u)
    return p, s + weight * u


def _has_face(answer: Answer) -> Tensor:
    """Mask ``(B, 1)`` of the samples with a point on a face; the data of the others may be NaN."""
    return ((answer.active != 0).any(-1) | (answer.status <= Status.WITHIN_TOL)).unsqueeze(-1)


def _stiff(problem: Problem, answer: Answer) -> tuple[Tensor, Tensor, Tensor]:
    """A definite matrix in place of a singular Q, the weights D of the rows in it, and the directions it makes up for.

    Those are the directions without curvature that no row holds, in which the minimum is not unique: the projector on
    them, ``(B, n, n)``.
    """
    y, used = answer.value, answer.active != 0
    n, tiny = y.shape[-1], torch.finfo(y.dtype).tiny
    A = torch.where(used.unsqueeze(-1), problem.A, 0.0)  # other rows may be NaN, as may Q where there is no minimum
    Q = torch.where(_has_face(answer).unsqueeze(-1), full(problem.metric, A), 0.0)
    size = Q.abs().amax((-1, -2))
    size = torch.where(size > 0, size, 1.0).unsqueeze(-1)
    weight = used.to(y.dtype) / dot(A, A).clamp_min(tiny) * size
    sizes, along = torch.linalg.eigh(Q + A.mT @ (weight.unsqueeze(-1) * A))
    none = sizes <= tolerance.flat(y.dtype, n) * sizes.amax(-1, keepdim=True).clamp_min(tiny)
    whole = (along * torch.where(none, size, sizes).unsqueeze(-2)) @ along.mT
    return whole, weight, (along * none.unsqueeze(-2)) @ along.mT


def full(Q: Tensor | None, like: Tensor) -> Tensor:
    """Q as a matrix; zeros for None."""
    n = like.shape[-1]
    if Q is None:
        return like.new_zeros(n, n)
    return torch.diag_embed(Q.squeeze(-2)) if is_diagonal(Q) else (Q + Q.mT) / 2


def _again(
    problem: Problem, answer: Answer, wanted: Sequence[bool], v: Tensor, u: Tensor, singular: bool
) -> list[Tensor | None]:
    """The gradients of the closed form in plain operations, to be differentiated in their turn."""
    with torch.enable_grad():
        # Views: two inputs may be one tensor, and each is asked for its own part only.
        q, A, lower, upper = (t.view_as(t) for t in (problem.f, problem.A, problem.lower, problem.upper))
        Q = None if problem.metric is None else problem.metric.view_as(problem.metric)
        active, n, there = answer.active, q.shape[-1], _has_face(answer)
        used = active != 0
        held = torch.where(used.unsqueeze(-1), A, 0.0)
        none = torch.diag_embed((~used).to(q.dtype))
        one = torch.eye(n).to(q)
        # Samples without a point: a system that has a solution, whatever their data, and no incoming gradient.
        curved = one if Q is None and not singular else full(Q, q)
        curved, right = torch.where(there.unsqueeze(-1), curved, one), torch.where(there, -q, 0.0)
        v, u = (torch.where(there, t, 0.0) for t in (v, u))
        if singular:  # where the minimum is not unique, it stays where it is
            with torch.no_grad():
                whole, _, loose = _stiff(problem, answer)
                more = whole @ loose
                stay = product(more, torch.where(there, answer.value, 0.0))
            curved, right, v = curved + more, right + stay, v - product(loose, v)
        system = torch.cat([torch.cat([curved, held.mT], -1), torch.cat([held, none], -1)], -2)
        bound = torch.where(active > 0, upper, torch.where(active < 0, lower, 0.0))
        both = torch.linalg.solve(system, torch.cat([right, torch.where(used, bound, 0.0)], -1))
        inputs = [t for t, want in zip((q, A, lower, upper, Q), wanted, strict=True) if want and t is not None]
        incoming = torch.cat([v, u], -1)
        slopes = iter(torch.autograd.grad(both, inputs, incoming, create_graph=True, allow_unused=True))
    return [next(slopes) if want else None for want in wanted]
