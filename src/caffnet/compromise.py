"""The rest of the paper's Γ: choices of dependent rows.

The pseudo-inverse of such a choice gives the point of least squares between its rows, the one nearest to ``f + w``.
Where the rows agree, it lies on the flat of fewer rows, which the search has seen. Where they contradict each other, it
is a compromise that lies on no face: ω = 0 for ``ω <= 0.5`` and ``ω >= -0.5``. If it is feasible and nearer to `f`
than every candidate on a face, the paper's layer answers with it.

No guarantee needs these points, and they depend on the units in which a row is written. But a network that is trained
with them becomes another, so the paper's numbers need them: ``search="paper"``. Without `w` none of them is nearer than
the projection.
"""

from __future__ import annotations

import torch
from torch import Tensor

from caffnet import compiled, tolerance
from caffnet.certificate import exactly_satisfies
from caffnet.constraints import BOTH, EQUAL, FREE, LOWER, UPPER
from caffnet.problem import Options, Problem, Solution, Status
from caffnet.rows import Rows, pick_rows, product, scale_rows, times_power
from caffnet.search import enumeration
from caffnet.search.contract import Choice, distance
from caffnet.search.enumeration import Enumeration, Table
from caffnet.search.faces import factor
from caffnet.search.flat import flat_point

_ENDS = {UPPER: (UPPER,), LOWER: (LOWER,), BOTH: (LOWER, UPPER), EQUAL: (EQUAL,), FREE: ()}


def with_compromises(problem: Problem, solution: Solution, options: Options) -> Solution:
    """The solution with compromises where they are nearer; they hold no row.

    Args:
        problem: the data, with their graph.
        solution: the nearest candidates on faces, differentiable.
        options: norm, strict and budget.
    """
    p = problem
    if p.w is None:
        return solution
    with torch.no_grad():
        rows = scale_rows(p.A.detach(), p.lower.detach(), p.upper.detach())
        samples, choice, point = _search(rows, p.sides, p.f, p.f + p.w, solution, options)
        if samples.numel() == 0:
            return solution
        some = rows.take(samples)
        exceeded = (some.excess(point) > 0).any(-1)
        status = torch.where(exceeded, Status.WITHIN_TOL, Status.PROJECTED).to(solution.status.dtype)
    value = _least_squares(p, samples, some, choice)
    value = value + (point - value).detach()
    return Solution(
        solution.value.index_copy(0, samples, value),
        solution.status.index_copy(0, samples, status),
        solution.held.index_fill(0, samples, 0),
        None,
    )


def _least_squares(problem: Problem, samples: Tensor, rows: Rows, choice: Choice) -> Tensor:
    """The points ``A_γ⁺ b_γ + (I - A_γ⁺A_γ) g`` in differentiable operations.

    The derivative of the pseudo-inverse is the one along matrices of the same rank; across, it jumps and has none.
    """
    p, used = problem, choice.sides != 0
    # Scaled as a whole, not row by row: least squares in the user's units.
    exponent = _in_slots(rows.exponent.amin(-1, keepdim=True), rows, choice)
    A = pick_rows(p.A if p.A.ndim == 2 else p.A[samples], choice.rows)
    A = torch.where(used.unsqueeze(-1), times_power(A, exponent.unsqueeze(-1)), 0.0)
    lower, upper = (t[samples].gather(-1, choice.rows) for t in (p.lower, p.upper))
    bound = torch.where(choice.sides > 0, upper, lower)
    bound = times_power(torch.where(used, bound, 0.0), exponent)
    assert p.w is not None
    g = p.f[samples] + p.w[samples]
    pinv = torch.linalg.pinv(A, rtol=tolerance.rank(rows.dtype, rows.n))
    return g - product(pinv, product(A, g) - bound)


def _in_slots(of_rows: Tensor, rows: Rows, choice: Choice) -> Tensor:
    """Numbers of the rows, ``(m,)`` or ``(B, m)``, for the rows that were chosen, ``(B, k)``."""
    return of_rows.expand_as(rows.lower).gather(-1, choice.rows)


# ------------------------------------------------------------------------------------------------- the search


def _search(
    rows: Rows, sides: tuple[str, ...], f: Tensor, g: Tensor, solution: Solution, options: Options
) -> tuple[Tensor, Choice, Tensor]:
    """The samples for which a compromise is nearer than the solution, their choices and their points."""
    answered = (solution.status == Status.PROJECTED) | (solution.status == Status.WITHIN_TOL)
    # Rows that agree give the point that was found before, up to rounding.
    limit = distance(solution.value - f, options.norm) * (1 - tolerance.tie(rows.dtype, rows.n))
    limit = torch.where(answered, limit, 0.0)
    choice = _nearest(rows, sides, f, g, limit, options)
    samples = choice.found.nonzero().squeeze(-1)
    if samples.numel() == 0:
        return samples, choice, g
    rows, choice = rows.take(samples), choice.take(samples)
    weight = _in_slots(enumeration.weights(rows), rows, choice)
    faces = factor(pick_rows(rows.A, choice.rows), choice.sides != 0, sides.count(EQUAL), rows.dtype, weight)
    choice = choice._replace(pinv=faces.pinv)
    point = flat_point(rows, choice, g[samples])
    wins = rows.accepts(point, point) & (distance(point - f[samples], options.norm) < limit[samples])
    if options.strict:
        wins = wins & exactly_satisfies(rows.A, rows.lower, rows.upper, point, rows.lower == rows.upper)
    wins = wins.nonzero().squeeze(-1)
    return samples[wins], choice.take(wins), point[wins]


def _nearest(rows: Rows, sides: tuple[str, ...], f: Tensor, g: Tensor, limit: Tensor, options: Options) -> Choice:
    """The nearest feasible compromise of each sample, where there is one below the limit."""
    ends = tuple((row, end) for row, side in enumerate(sides) for end in _ENDS[side])
    if compiled.ENABLED and f.device.type == "cpu":
        return compiled.nearest_compromise(rows, ends, f, g, limit, options.norm)
    # Without the kernel all of them are listed; then only samples that were projected matter.
    some = (limit > 0).nonzero().squeeze(-1)
    plan = Enumeration(list_choices(ends, rows.n, options.budget, f.device), None, None, options.budget)
    found = enumeration.choose(rows.take(some), plan, f[some], g[some], options.norm)
    return Choice.nothing(f.shape[0], rows.n, f).put(some, found)


def list_choices(ends: tuple[tuple[int, str], ...], n: int, budget: int, device: torch.device) -> Table:
    """All choices of some of these sides (both of one row among them) with all equalities, at most ``n`` together."""
    kinds = tuple(end for _, end in ends)
    sizes = tuple(range(1, n - kinds.count(EQUAL) + 1))
    table = enumeration.list_subsets(kinds, sizes, budget, device)
    place = torch.tensor([row for row, _ in ends], dtype=torch.long, device=device)
    return Table(place[table.rows], table.sides, table.equalities, dependent=True)
