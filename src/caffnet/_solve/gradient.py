"""Derivatives of an answer.

The kernel differentiates its answers (`run.gradient`; the formula is in projection.py). For second derivatives, forward
mode and vmap, the answer is written as the closed form on its known face in plain operations (`on_face`), which torch
differentiates in any mode and any number of times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet._solve import run, sparse
from caffnet._solve.face import dot, factor, pick_rows, product, times_power, unit_exponent
from caffnet._solve.metric import White
from caffnet._solve.problem import CORES, Answer, Options, Problem, Status, is_diagonal
from caffnet._solve.tracing import in_forward_mode, in_transform, is_compiling, is_concrete, is_exporting, no_autocast
from caffnet.constraints import SOFT, is_kind
from caffnet.errors import ConstraintError


def answer(problem: Problem, options: Options, start: Tensor | None = None, value_only: bool = False) -> Answer:
    """Solve every sample, with the gradient attached to the value; `value_only` as in `run.solve`."""
    if is_compiling():
        if is_exporting():  # an exported graph has no gradient
            return run.solve(problem, options)
    elif in_forward_mode() or in_transform():
        if in_forward_mode() and options.gradient == "tangent":
            raise ConstraintError(
                'gradient="tangent" is a rule for gradients in reverse mode: with forward mode (jvp, jacfwd, hessian) '
                'use gradient="exact".'
            )
        with torch.no_grad():
            found = run.solve(problem.detach(), options, start)
        return found._replace(value=on_face(problem, found, options))
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in problem.tensors):
        return Answer(*_Solved.apply(*problem, options, start))
    return run.solve(problem, options, start, value_only)


class _Solved(torch.autograd.Function):
    """The answer of the kernel, differentiated by the kernel; by `on_face` where that is differentiated again."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        *data, ctx.options, start = given
        found = run.solve(Problem(*data), ctx.options, start)
        ctx.rows = data[6:]
        ctx.save_for_backward(*data[:6], *found)
        ctx.mark_non_differentiable(*(t for t in found[1:] if t is not None))
        return tuple(found)  # pyright: ignore[reportReturnType]

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor):
        v, saved = incoming[0], ctx.saved_tensors  # read once: torch.utils.checkpoint allows no more
        problem = Problem(*saved[:6], *ctx.rows)
        found, wanted = Answer(*saved[6:]), ctx.needs_input_grad[:6]
        slopes: Sequence[Tensor | None]
        if is_compiling() or not (
            torch.is_grad_enabled() or in_transform() or not is_concrete(v) or _has_many_levels(problem, found)
        ):
            slopes = run.gradient(v, problem, found, ctx.options, wanted)
        else:
            slopes = _again(problem, found, ctx.options, wanted, v)
        return *(t if want else None for t, want in zip(slopes, wanted, strict=True)), *(None,) * 6


def _has_many_levels(problem: Problem, found: Answer) -> bool:
    """Return True if more soft rows give way in a sample than the kernel distinguishes (LEVELS of internal.h)."""
    if not problem.soft:
        return False
    giving = (found.active != 0) & is_kind(problem.soft, SOFT, found.active.device) & _relaxed(found)
    return bool((giving.sum(-1) > (64 if giving.is_cpu else 16)).any())


def _again(problem: Problem, found: Answer, options: Options, wanted: Sequence[bool], v: Tensor) -> list[Tensor | None]:
    """Return the gradients of `on_face`, differentiable if `create_graph` is set."""
    create = torch.is_grad_enabled()
    _refuse_sparse(problem)
    with torch.enable_grad():
        # Views: two inputs may be one tensor, or depend on each other, and each is asked for its own part only.
        own: list[Any] = [None if t is None else t.view_as(t) for t in problem.tensors]
        inputs = [t for t, want in zip(own, wanted, strict=True) if want]
        value = on_face(problem.replace_tensors(*own), found, options)
        slopes = iter(torch.autograd.grad(value, inputs, v, create_graph=create, allow_unused=True))
    return [next(slopes) if want else None for want in wanted]


def _refuse_sparse(problem: Problem) -> None:
    """Plain operations need whole rows."""
    if sparse.is_sparse(problem.A):
        raise ConstraintError(
            "Sparse rows have first derivatives in reverse mode only: write set.to_dense() for others, "
            "if its size permits."
        )


# ------------------------------------------------------------------------------------------------- the closed form


def on_face(problem: Problem, found: Answer, options: Options) -> Tensor:
    """The value as ``A_γ⁺ b_γ + (I - A_γ⁺ A_γ)(f + w)`` in plain operations, on the face that was found."""
    _refuse_sparse(problem)
    with no_autocast(problem.f.device.type):
        if problem.metric is None:
            return _on_face(problem, found, options, problem.f)
        known = found.value.isfinite().all(-1, keepdim=True)
        problem, metric = _harmless(problem, problem.metric, known)
        value, white = torch.where(known, found.value, 0.0), White(metric)
        # The tangent gradient is a rule for f alone: the metric that takes f to white coordinates gets the exact one.
        there, inward = found._replace(value=white.point(value).detach()), White(metric.detach()).point(problem.f)
        y = white.back(torch.where(known, _on_face(white.problem(problem), there, options, inward), 0.0))
        return torch.where(known, y + (value - y).detach(), found.value)


def _harmless(p: Problem, metric: Tensor, known: Tensor) -> tuple[Problem, Tensor]:
    """The problem and its metric with harmless numbers in samples without an answer, whose NaN would reach the metric.

    Args:
        p: the problem.
        metric: its metric.
        known: mask of the samples with an answer, ``(B, 1)``.
    """
    unit = torch.ones_like(metric) if is_diagonal(metric) else torch.eye(metric.shape[-1]).to(metric)
    parts: list[Any] = []
    for t, core, instead in zip(p.tensors, CORES, (0.0, 0.0, 0.0, 0.0, 0.0, unit), strict=True):
        if t is not None:
            t = torch.where(known.any() if t.ndim == core else known.unsqueeze(-1) if core == 2 else known, t, instead)
        parts.append(t)
    return p.replace_tensors(*parts), parts[-1]


def _on_face(p: Problem, found: Answer, options: Options, inward: Tensor) -> Tensor:
    """`on_face` without a metric; `inward` gets the tangent gradient of f."""
    rows, sides = _slots(p, found)
    # A feasible f and a sample without an answer lie on no flat.
    moved = (sides != 0).any(-1, keepdim=True) & found.value.isfinite().all(-1, keepdim=True)
    used = (sides != 0) & moved
    A = full = pick_rows(p.A, rows)
    exponent = unit_exponent(A.detach())
    A = torch.where(used.unsqueeze(-1), times_power(A, exponent.unsqueeze(-1)), 0.0)
    lower, upper = (t.expand(p.f.shape[0], t.shape[-1]).gather(-1, rows) for t in (p.lower, p.upper))
    # The point of least violation lies on rows moved by that violation, which counts as a constant; of an equality, the
    # upper bound counts.
    missed = used & (found.status == int(Status.INFEASIBLE)).unsqueeze(-1)
    from_above = (sides > 0) | (missed & (lower == upper))
    chosen = torch.where(from_above, upper, lower)
    chosen = chosen + torch.where(missed, dot(full, found.value.unsqueeze(-2)) - chosen, 0.0).detach()
    levels = None
    if p.soft:
        giving = is_kind(p.soft, SOFT, rows.device)[rows] & used & _relaxed(found)
        goal = (p.f if p.w is None else p.f + p.w).detach()
        y, goal = (torch.where(moved, t, 0.0) for t in (found.value, goal))
        parts = factor(A.detach(), used)
        giving, level, room = _exceeded(giving, sides, full.detach(), chosen.detach(), y, goal)
        group = _groups(giving, level, room, A.detach() @ parts.pinv)
        levels = _Levels(giving, sides, lower, upper, group, level - room, parts.independent.unsqueeze(-1))
        chosen = chosen + sides * levels.crossed
    bound = times_power(chosen, exponent)
    bound = torch.where(used & bound.isfinite(), bound, 0.0)
    # Samples that lie on no flat take no part: zeros in, zeros out.
    f, w = torch.where(moved, p.f, 0.0), None if p.w is None else torch.where(moved, p.w, 0.0)
    tangent = options.gradient == "tangent"
    if tangent:
        inward = torch.where(moved, inward, 0.0)
        g = f + (inward.detach() - inward)  # without the gradient of f; that of a metric stays
    else:
        g = f
    g = g if w is None else g + w
    if levels is not None:
        A, g = levels.widen(A, exponent, g)
    pinv = factor(A, used, exponent=exponent if found.choice is not None else None).pinv
    y = product(pinv, bound) + (g - product(pinv, product(A, g)))
    y = y[..., : f.shape[-1]]
    y = y + (torch.where(moved, found.value, 0.0) - y).detach()
    if tangent:
        y = y + _Inward.apply(inward, *_cone(p, found, moved), p.row_kinds, options)
    rest = torch.where((found.value == p.f).all(-1, keepdim=True), p.f, found.value)
    # Where the violation is the same at every point, the answer is f + w.
    broken = _relaxed(found)
    if options.on_infeasible == "nearest":
        broken = broken | (found.status == int(Status.INFEASIBLE)).unsqueeze(-1)
    g = p.f if p.w is None else p.f + p.w
    rest = torch.where(broken, g + (found.value - g).detach(), rest)
    return torch.where(moved, y, rest)


class _Levels:
    """The amounts by which soft rows of RELAXED samples give way, as additional outputs t that do not count in
    distances.

    A row at its relaxed bound reads ``a_i y - side_i t_l = b_i`` with l its level. Rows of a conflict depend on each
    other and fix t_l, so the closed form of (y, t) is that of y (`_kernel/soft.c`). Two levels are known beforehand:
    half the gap between the bounds of a row that cross, and that of a row whose violation is the same everywhere.

    Args:
        giving: mask of the rows in the slots that give way, ``(B, k)``.
        sides: the sides of these rows.
        lower: their lower bounds.
        upper: their upper bounds.
        group: the slot that represents the level of each row, ``(B, k)``.
        least: the least amount by which each row gives way, ``(B, k)``.
        independent: True if the rows of all slots are independent, ``(B, 1)``.
    """

    def __init__(
        self,
        giving: Tensor,
        sides: Tensor,
        lower: Tensor,
        upper: Tensor,
        group: Tensor,
        least: Tensor,
        independent: Tensor,
    ):
        same = giving.unsqueeze(-1) & giving.unsqueeze(-2) & (group.unsqueeze(-1) == group.unsqueeze(-2))
        miss = torch.where(giving & (lower > upper), (lower - upper) / 2, 0.0)
        top = torch.where(same, miss.unsqueeze(-2), 0.0)
        top = top.amax(-1) if top.shape[-1] else miss
        known = giving & (independent | (top > least))
        self.crossed = torch.where(known, top, 0.0)
        self.free, self.sides, self.group = giving & ~known, sides, group

    def widen(self, A: Tensor, exponent: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Scaled rows and g with one more entry for each level, in units of the smallest row that has it."""
        k = self.group.shape[-1]
        unit = torch.where(self.free, -exponent, math.inf).amin(-1, keepdim=True) if k else exponent
        unit = torch.where(self.free, times_power(torch.ones_like(exponent), exponent + unit), 0.0)
        # Not one_hot: it looks at the numbers, which vmap does not allow.
        place = self.group.unsqueeze(-1) == torch.arange(k, device=self.group.device)
        columns = torch.where(place, torch.where(self.free, -self.sides * unit, 0.0).unsqueeze(-1), 0.0)
        return torch.cat([A, columns], -1), torch.nn.functional.pad(g, (0, k))


def _exceeded(
    giving: Tensor, sides: Tensor, rows: Tensor, chosen: Tensor, y: Tensor, goal: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a mask of the rows that give way at the points y, the amounts, and their rounding errors: each ``(B, k)``.

    Args:
        giving: mask of the rows that may give way, ``(B, k)``.
        sides: the sides of the rows.
        rows: the rows, ``(B, k, n)``, not scaled.
        chosen: their bounds.
        y: the points, ``(B, n)``.
        goal: the points to which y is nearest, ``(B, n)``: their size determines the rounding.
    """
    level = torch.where(giving, sides * (dot(rows, y.unsqueeze(-2)) - chosen), 0.0)
    everything = rows.abs().sum(-1) * (sparse.largest(y) + sparse.largest(goal))
    size = sparse.sizes_at(rows, y, everything) + chosen.abs()
    room = 4 * (tolerance.feasibility(y.dtype, y.shape[-1]) * size + tolerance.underflow(y.dtype))
    giving = giving & (level > room)
    level = torch.where(giving, level, 0.0)
    return giving, level, room + tolerance.optimal(y.dtype) * level  # of the rounding of all rows of a conflict


def _groups(giving: Tensor, level: Tensor, room: Tensor, coefficients: Tensor) -> Tensor:
    """Return the first slot among the rows of the same level, ``(B, k)``.

    Rows have the same level if they depend on each other and are exceeded by the same amount; separate conflicts have
    separate levels.

    Args:
        giving: mask of the rows that give way, ``(B, k)``.
        level: the amounts.
        room: their rounding errors.
        coefficients: coefficients of each row on the independent ones, ``(B, k, k)``.
    """
    k = giving.shape[-1]
    if k == 0:
        return giving.long()
    own = torch.eye(k, dtype=torch.bool, device=giving.device)
    noise = tolerance.fine_rank(k) * coefficients.abs().amax(-1, keepdim=True).clamp_min(1.0)
    tied = (coefficients.abs() > noise) | own
    tied = tied | tied.mT
    for _ in range(k.bit_length()):  # ties of ties
        tied = tied.to(level.dtype) @ tied.to(level.dtype) > 0
    equal = (level.unsqueeze(-1) - level.unsqueeze(-2)).abs() <= room.unsqueeze(-1) + room.unsqueeze(-2)
    same = (tied & equal & giving.unsqueeze(-1) & giving.unsqueeze(-2)) | own
    return same.to(torch.int8).argmax(-1)


def _relaxed(found: Answer) -> Tensor:
    """Samples whose soft rows gave way, ``(B, 1)``."""
    return (found.status == int(Status.RELAXED)).unsqueeze(-1)


def _slots(p: Problem, found: Answer) -> tuple[Tensor, Tensor]:
    """The rows of each face and their sides, ``(B, k)``; side 0 in empty slots."""
    active = found.active
    n, m = p.f.shape[-1], active.shape[-1]
    slots = m if p.soft else min(n, m)  # more rows than outputs where the levels of soft rows are outputs too
    if is_concrete(active) and not in_transform():
        slots = int((active != 0).sum(-1).amax()) if active.numel() else 0
    rows = (active == 0).to(torch.int8).argsort(dim=-1, stable=True)[..., :slots]
    sides = active.gather(-1, rows)
    rows = torch.where(sides != 0, rows, 0)
    if found.choice is None:
        return rows, sides
    code = found.choice.long() - 1
    chosen, side = torch.where(code >= 0, code // 2, 0), torch.where(code >= 0, 2 * (code % 2) - 1, 0)
    width = max(slots, n)
    rows, sides = (torch.nn.functional.pad(t.long(), (0, width - slots)) for t in (rows, sides))
    chosen, side = (torch.nn.functional.pad(t, (0, width - n)) for t in (chosen, side))
    compromise = found.choice[:, :1] != 0
    return torch.where(compromise, chosen, rows), torch.where(compromise, side, sides)


# ------------------------------------------------------------------------------------------------- the tangent


def _cone(p: Problem, found: Answer, here: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tangent cone of the set at the value: A and the bounds, 0 at the rows that the value touches."""
    A, lower, upper = (t.detach() for t in (p.A, p.lower, p.upper))
    # A sample without an answer may have NaN in its rows.
    A = torch.where(here.unsqueeze(-1), A, 0.0) if A.ndim == 3 else A.nan_to_num(0.0, 0.0, 0.0)
    y = torch.where(here, found.value, 0.0)
    exponent = unit_exponent(A)
    scaled = times_power(A, exponent.unsqueeze(-1))
    lower, upper = times_power(lower, exponent), times_power(upper, exponent)
    value = dot(scaled, y.unsqueeze(-2))
    share = tolerance.feasibility(y.dtype, y.shape[-1])
    size = sparse.sizes_at(scaled, y, (2 * sparse.largest(y)).expand_as(value))
    allowed = share * size + tolerance.underflow(y.dtype)
    broken = (found.status == int(Status.INFEASIBLE)).unsqueeze(-1) & (found.active == 0)
    equal = (lower == upper) & ~broken
    if p.soft:  # an equality that gave way has one side
        equal = equal & ~(is_kind(p.soft, SOFT, y.device) & _relaxed(found))
    # The rows of γ are active whatever the distance: `strict` stops short of them.
    below = equal | ((value - lower).abs() - share * lower.abs() <= allowed) | (found.active < 0)
    above = equal | ((value - upper).abs() - share * upper.abs() <= allowed) | (found.active > 0)
    zero = torch.zeros_like(value)
    return A, torch.where(below, zero, -math.inf), torch.where(above, zero, math.inf)


class _Inward(torch.autograd.Function):
    """Zero, with the tangent gradient: ``-d`` with ``d`` the projection of ``-v`` on the cone."""

    generate_vmap_rule = True

    @staticmethod
    def forward(f: Tensor, A: Tensor, lower: Tensor, upper: Tensor, row_kinds: str, options: Options) -> Tensor:
        return torch.zeros_like(f)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _, A, lower, upper, ctx.row_kinds, _ = inputs
        ctx.save_for_backward(A, lower, upper)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor):
        (v,) = incoming
        known = v.isfinite().all(-1, keepdim=True)
        goal = torch.where(known, -v, 0.0)
        # The cone decides the kinds of the rows; they are read from its bounds.
        A, lower, upper = ctx.saved_tensors
        problem = Problem(goal, None, A, lower, upper, None, "B" * len(ctx.row_kinds), None, (goal.shape[0],))
        step = answer(problem, Options(search="active", on_infeasible="nearest")).value
        return torch.where(known, -step, v), None, None, None, None, None
