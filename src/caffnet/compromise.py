"""The rest of the paper's Γ: choices of dependent rows.

The pseudo-inverse of such a choice gives the point of least squares between its rows, the one nearest to ``g = f + w``.
Where the rows agree, it lies on the flat of fewer rows, which the search has seen. Where they contradict each other, it
is a compromise between them: ω = 0 for ``ω <= 0.5`` and ``ω >= -0.5``. If it is feasible and nearer to `f` than every
candidate on a face, the paper's layer answers with it.

No guarantee needs these points, and they depend on the units in which a row is written. But a network that is trained
with them becomes another, so the paper's numbers need them: ``search="paper"``. In the Euclidean norm and without `w`
none of them is nearer than the projection.

**The derivative.** The rows are scaled, so least squares in the user's units have weights, the diagonal of ``W``. With
residuals ``ρ = b_γ - A_γ y`` the normal equations are ``A_γᵀ W ρ = 0``. Differentiated along matrices of the same rank
(across, the pseudo-inverse jumps), they add one term to the derivative that `projection` has for a point on its rows:

    ∂A = -(λ pᵀ + q yᵀ) + W ρ (A_γ⁺ W⁻¹ q)ᵀ,    p = ∂g = N v,  q = ∂b = (A_γ⁺)ᵀ v,  λ = (A_γ⁺)ᵀ (g - y).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from caffnet import compiled, tolerance
from caffnet.certificate import exactly_satisfies
from caffnet.compiled import array, once
from caffnet.constraints import BOTH, EQUAL, FREE, LOWER, UPPER
from caffnet.problem import Options, Problem, Solution, Status
from caffnet.rows import pick_rows, product, scale_rows, times_power, unit_exponent
from caffnet.search import enumeration
from caffnet.search.contract import distance
from caffnet.search.enumeration import Enumeration, Table
from caffnet.search.faces import factor
from caffnet.search.flat import clamp_to_bounds, flat_point

_ENDS = {UPPER: (UPPER,), LOWER: (LOWER,), BOTH: (LOWER, UPPER), EQUAL: (EQUAL,), FREE: ()}


class Compromise(NamedTuple):
    """Compromises for ``S`` samples of a batch.

    Attributes:
        samples: their places in the batch, ``(S,)``.
        rows: the row in each slot, ``(S, k)``; 0 in empty slots.
        sides: +1 upper, -1 lower, 0 empty, ``(S, k)``.
        value: the points, ``(S, n)``.
        status: ``(S,)``, int8.
    """

    samples: Tensor
    rows: Tensor
    sides: Tensor
    value: Tensor
    status: Tensor

    def only(self, those: Tensor) -> Compromise:
        """Those of the samples for which the mask is true."""
        return self if those.all() else Compromise(*(t[those] for t in self))


def nearer_compromises(problem: Problem, solution: Solution, options: Options) -> Compromise | None:
    """The feasible compromises that are nearer to `f` than the solution; None if there are none.

    With `strict` only those that hold exactly.
    """
    p = problem
    if p.w is None or p.f.numel() == 0 or p.A.shape[-2] == 0:
        return None
    with torch.no_grad():
        search = _walk if compiled.ENABLED and p.f.device.type == "cpu" else _enumerate
        found = search(p, solution, options)
        if options.strict:
            A, lower, upper = (
                p.A if p.A.ndim == 2 else p.A[found.samples],
                p.lower[found.samples],
                p.upper[found.samples],
            )
            found = found.only(exactly_satisfies(A, lower, upper, found.value, lower == upper))
    return found if found.samples.numel() else None


def least_squares(problem: Problem, found: Compromise) -> Tensor:
    """The points ``A_γ⁺ b_γ + (I - A_γ⁺A_γ) g`` in differentiable operations, ``(S, n)``."""
    p, samples, used = problem, found.samples, found.sides != 0
    A = pick_rows(p.A if p.A.ndim == 2 else p.A[samples], found.rows)
    exponent = unit_exponent(A.detach())
    A = torch.where(used.unsqueeze(-1), times_power(A, exponent.unsqueeze(-1)), 0.0)
    lower, upper = (t[samples].gather(-1, found.rows) for t in (p.lower, p.upper))
    bound = times_power(torch.where(found.sides > 0, upper, torch.where(used, lower, 0.0)), exponent)
    assert p.w is not None
    g = p.f[samples] + p.w[samples]
    pinv = factor(A, used, 0, A.dtype, exponent).pinv
    y = product(pinv, bound) + (g - product(pinv, product(A, g)))
    return y + (found.value - y).detach()


# ------------------------------------------------------------------------------------------------- any device


def _enumerate(problem: Problem, solution: Solution, options: Options) -> Compromise:
    """The nearest feasible compromise, where it is nearer; all choices are listed."""
    p = problem
    answered = (solution.status == Status.PROJECTED) | (solution.status == Status.WITHIN_TOL)
    samples = answered.nonzero().squeeze(-1)
    rows = scale_rows(p.A.detach(), p.lower.detach(), p.upper.detach()).take(samples)
    f, before = p.f[samples], solution.value[samples]
    assert p.w is not None
    g = f + p.w[samples]
    plan = Enumeration(_list_choices(p.sides, rows.n, options.budget, f.device), None, None, options.budget)
    choice = enumeration.choose(rows, plan, f, g, options.norm)
    point = flat_point(rows, choice, g)
    # Rows that agree give the point that was found before, up to rounding.
    limit = distance(before - f, options.norm) * (1 - tolerance.tie(rows.dtype, rows.n))
    wins = (choice.found & (distance(point - f, options.norm) < limit)).nonzero().squeeze(-1)
    rows, choice = rows.take(wins), choice.take(wins)
    value = clamp_to_bounds(rows, point[wins])
    excess = rows.excess(value)
    exceeded = ((excess > 0) & (choice.held(rows.m) == 0)).any(-1)
    status = torch.where(exceeded, Status.WITHIN_TOL, Status.PROJECTED).to(torch.int8)
    holds = (excess <= rows.allowance(value, value)).all(-1)
    return Compromise(samples[wins], choice.rows, choice.sides, value, status).only(holds)


def _list_choices(sides: tuple[str, ...], n: int, budget: int, device: torch.device) -> Table:
    """All choices of sides, both of one row among them: at most ``n``, as in the paper, with the equalities in each."""
    ends = _ends(sides)
    kinds = tuple(end for _, end in ends)
    sizes = tuple(range(1, n - kinds.count(EQUAL) + 1))
    table = enumeration.list_subsets(kinds, sizes, budget, device)
    place = torch.tensor([row for row, _ in ends], dtype=torch.long, device=device)
    return Table(place[table.rows], table.sides, table.equalities, dependent=True)


@functools.cache
def _ends(sides: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
    """Every row with every side it has; equalities first."""
    ends = [(row, end) for row, side in enumerate(sides) for end in _ENDS[side]]
    return tuple(sorted(ends, key=lambda end: end[1] != EQUAL))


# ------------------------------------------------------------------------------------------------- the kernel


def _walk(problem: Problem, solution: Solution, options: Options) -> Compromise:
    """As `_enumerate`, one choice after the other."""
    p = problem
    samples, n = p.f.shape
    kind = p.f.dtype
    assert p.w is not None
    chosen, sides = torch.empty(samples, n, dtype=torch.long), torch.empty(samples, n, dtype=torch.int8)
    value, state = torch.empty(samples, n, dtype=torch.float64), torch.empty(samples, dtype=torch.int8)
    limits = (
        tolerance.feasibility(kind, n),
        tolerance.rank(kind, n) ** 2,
        tolerance.underflow(kind),
        tolerance.tie(kind, n),
    )
    _kernel().nearest(
        *_arrays(p),
        *(array(t) for t in (p.f, p.w, solution.value)),
        solution.status.numpy(),
        *_places(p.sides),
        p.sides.count(EQUAL),
        options.norm,
        kind == torch.float32,
        limits,
        *(t.numpy() for t in (chosen, sides, value, state)),
    )
    here = state.nonzero().squeeze(-1)
    return Compromise(here, chosen[here], sides[here], value[here].to(kind), state[here])


def differentiate(v: Tensor, problem: Problem, found: Compromise) -> tuple[Tensor, ...]:
    """Gradients for f, w, A, lower and upper by the kernel.

    For A they agree with those of `least_squares` along matrices of equal rank, where there is a derivative.
    """
    p = problem
    n, m, kind = p.f.shape[-1], p.A.shape[-2], p.f.dtype
    assert p.w is not None
    shapes = (p.f.shape, (1 if p.A.ndim == 2 else len(p.A), m, n), p.lower.shape, p.upper.shape)
    grads = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
    _kernel().differentiate(
        array(v),
        found.samples.numpy(),
        *_arrays(p),
        *(array(t) for t in (p.f, p.w)),
        *(t.numpy() for t in (found.rows, found.sides)),
        array(found.value),
        tolerance.rank(kind, n) ** 2,
        *(t.numpy() for t in grads),
    )
    f, A, lower, upper = (t.to(kind) for t in grads)
    return f, f, A.reshape(p.A.shape), lower, upper


def _arrays(problem: Problem) -> tuple[np.ndarray, ...]:
    """A, lower and upper; what all samples share has one line."""
    p = problem
    return array(p.A if p.A.ndim == 3 else p.A.unsqueeze(0)), array(once(p.lower)), array(once(p.upper))


@functools.cache
def _places(sides: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The rows of all ends; and +1 for upper bounds and equalities, -1 for lower bounds."""
    rows, kinds = [row for row, _ in _ends(sides)], [-1 if end == LOWER else 1 for _, end in _ends(sides)]
    return np.array(rows, dtype=np.int64), np.array(kinds, dtype=np.int8)


@functools.cache
def _kernel() -> Any:
    from caffnet import compromise_kernel

    return compromise_kernel
