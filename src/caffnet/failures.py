"""Samples that cannot be answered: data that are no numbers, and sets that are empty."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet.certificate import conflict_of
from caffnet.errors import ConstraintError, InfeasibleError
from caffnet.problem import Options, Problem
from caffnet.rows import Rows, times_power
from caffnet.search import dual
from caffnet.search.active import from_active
from caffnet.search.contract import Choice
from caffnet.search.flat import polish


def screen(problem: Problem, options: Options) -> tuple[Problem, Tensor | None]:
    """Set aside samples with NaN or infinite data: raise, or replace them by a harmless sample and mark them."""
    p = problem
    bad = {"f": ~p.f.isfinite(), "A": ~p.A.isfinite(), "lower": p.lower.isnan(), "upper": p.upper.isnan()}
    if p.w is not None:
        bad["w"] = ~p.w.isfinite() | ~(p.f + p.w).isfinite()
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


def report(
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

    Rows relaxed by ``t`` have a common point exactly when no conflict is left, and a conflict with multipliers μ ends
    at ``t = -Σ μ_i b_i / Σ |μ_i|``. So t climbs from conflict to conflict (Newton's method on a convex piecewise linear
    function: it ends after finitely many) until the relaxed rows meet.
    """
    unit = times_power(torch.ones_like(rows.lower), rows.exponent.expand_as(rows.lower))  # one user's unit, scaled
    # A row whose own bounds cross needs half of the gap.
    relax = ((rows.lower - rows.upper) / (2 * unit)).amax(-1, keepdim=True).clamp_min(0)
    wider = _relaxed(rows, relax * unit)
    outcome = dual.project(wider, g)
    for _ in range(50):
        if outcome.found.all() or not relax.isfinite().all():
            break
        multiplier = outcome.conflict.to(g.dtype)
        bound = torch.where(multiplier > 0, rows.upper, rows.lower)
        gap = torch.where(multiplier != 0, multiplier * bound, 0.0).sum(-1, keepdim=True)
        weight = (multiplier.abs() * unit).sum(-1, keepdim=True)
        needed = torch.where(weight > 0, -gap / torch.where(weight > 0, weight, 1.0), 0.0)
        relax = torch.maximum(relax, needed * (1 + tolerance.feasibility(rows.dtype, rows.n)))
        wider = _relaxed(rows, relax * unit)
        outcome = dual.project(wider, g)
    option = from_active(wider, outcome.active, outcome.found)
    point, _ = polish(wider, option, g)
    known = outcome.found & relax.squeeze(-1).isfinite()
    return torch.where(known.unsqueeze(-1), point, math.nan), option


def _relaxed(rows: Rows, amount: Tensor) -> Rows:
    return rows.moved(rows.lower - amount, rows.upper + amount)


_EXPLAINED = 5  # exact certificates cost milliseconds each; nobody reads a thousand


def _error(problem: Problem, rows: Rows, lost: Tensor, conflict: Tensor) -> InfeasibleError:
    """The exception: which samples, and which of their rows exclude each other."""
    units = times_power(conflict, rows.exponent if rows.shared else rows.exponent[lost])
    samples = [sample_index(i, problem.batch_shape) for i in lost.tolist()]
    conflicts = []
    for i, multipliers in zip(lost[:_EXPLAINED].tolist(), units, strict=False):
        A = problem.A if problem.A.ndim == 2 else problem.A[i]
        conflicts.append(conflict_of(A, problem.lower[i], problem.upper[i], multipliers, problem.names))
    lines = [f"  sample {index or '()'}: {told}" for index, told in zip(samples, conflicts, strict=False)]
    more = f"\n  ... and {len(samples) - len(conflicts)} more" if len(samples) > len(conflicts) else ""
    return InfeasibleError(
        f"No point satisfies the constraints of {len(samples)} of {problem.f.shape[0]} samples:\n"
        + "\n".join(lines)
        + more
        + '\nRelax one of the named rows, or pass on_infeasible="nearest" (least violation) or "nan".',
        samples,
        conflicts,
    )
