"""Where the search runs: directly, as one opaque operation for tracers, or as plain arithmetic to be exported.

`torch.compile` and `torch.func.vmap` cannot look into code that branches on numbers, so for them the search is one
operation: compiled graphs call it as it is (and it still raises), a mapped axis becomes more samples. An exported
graph has no Python behind it; there the enumeration is traced as plain arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from caffnet.constraints import AffineSet, has_numbers
from caffnet.errors import ConstraintError
from caffnet.preparation import prepare_search
from caffnet.problem import Options, Problem, Solution, Status
from caffnet.search.contract import Choice
from caffnet.search.enumeration import Enumeration
from caffnet.solve import factorised, solve, trace


def answer(problem: Problem, options: Options, plan: Enumeration | None, start: Tensor | None = None) -> Solution:
    """Run the search: directly, as one opaque operation (compile, vmap), or as plain arithmetic (export)."""
    p = problem
    with torch.no_grad():
        w = None if p.w is None else p.w.detach()
        A, lower, upper = p.A.detach(), p.lower.detach(), p.upper.detach()
        plain = Problem(p.f.detach(), w, A, lower, upper, p.sides, p.labels, p.batch_shape)
        if torch.compiler.is_exporting():
            assert plan is not None
            return trace(plain, options, plan)
        if torch.compiler.is_compiling() or not all(
            has_numbers(t) for t in (plain.f, w, A, lower, upper) if t is not None
        ):
            return _opaque(plain, options, plan)
        return solve(plain, options, plan, start)


def _opaque(p: Problem, options: Options, plan: Enumeration | None) -> Solution:
    tables = [] if plan is None else plan.tensors()
    numbers = [] if plan is None else [plan.table.equalities, int(plan.minimal is not None), plan.budget]
    told = ("\n".join(p.sides), "\n".join(p.names), list(p.batch_shape))
    chosen = (options.search, options.norm, options.strict, options.on_infeasible, options.budget)
    value, status, rows, sides, pinv = _solve_op(p.f, p.w, p.A, p.lower, p.upper, tables, numbers, *told, *chosen)
    choice = Choice(rows, sides, pinv, status <= Status.WITHIN_TOL.value)
    return Solution(value, status, choice.held(p.A.shape[-2]), choice)


def _slots(A: Tensor, tables: Sequence[Tensor]) -> int:
    """A number of slots that is enough whatever the answer: known without looking at numbers."""
    return max(sum(A.shape[-2:]), tables[0].shape[-1] if tables else 0)


@torch.library.custom_op("caffnet::solve", mutates_args=())
def _solve_op(
    f: Tensor,
    w: Tensor | None,
    A: Tensor,
    lower: Tensor,
    upper: Tensor,
    tables: Sequence[Tensor],
    numbers: Sequence[int],
    sides: str,
    names: str,
    batch_shape: Sequence[int],
    search: str,
    norm: float,
    strict: bool,
    on_infeasible: str,
    budget: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`solve` as one operation that tracers see from outside; the arguments are those of Problem and Options."""
    kinds, labels = tuple(sides.splitlines()), tuple(names.splitlines())
    if tables:
        equalities, lite, space = numbers
        plan = Enumeration.from_tensors(tables, equalities, bool(lite), space)
    else:
        prepared = prepare_search(AffineSet.from_parts(A, lower, upper, labels, kinds), search, budget, False)
        search, plan = prepared.search, prepared.plan
    problem = Problem(f, w, A, lower, upper, kinds, labels, tuple(batch_shape))
    solution = solve(problem, Options(search, norm, strict, on_infeasible, budget), plan)
    choice = factorised(problem, solution).widen(_slots(A, tables))
    return (
        solution.value,
        solution.status,
        choice.rows.clone(),
        choice.sides.clone(),
        choice.pinv.to(f.dtype, copy=True),
    )


@_solve_op.register_fake
def _(f: Tensor, w: Tensor | None, A: Tensor, lower: Tensor, upper: Tensor, tables: Sequence[Tensor], *told: Any):
    samples, n = f.shape
    slots = _slots(A, tables)
    status = f.new_empty(samples, dtype=torch.int8)
    rows = f.new_empty(samples, slots, dtype=torch.long)
    return torch.empty_like(f), status, rows, rows.to(torch.int8), f.new_empty(samples, n, slots)


@_solve_op.register_vmap
def _(info: Any, in_dims: Any, f: Tensor, w: Tensor | None, A: Tensor, lower: Tensor, upper: Tensor, *told: Any):
    """One more batch axis is more samples: fold it into the lines, and unfold the answers."""
    size, (tables, numbers, sides, names, batch_shape, *options) = info.batch_size, told
    given = {"f": (f, in_dims[0]), "w": (w, in_dims[1]), "lower": (lower, in_dims[3]), "upper": (upper, in_dims[4])}
    front = {name: _to_front(t, dim, size) for name, (t, dim) in given.items()}  # (V, B, ...)
    lines = front["f"].shape[1]
    if in_dims[2] is not None or A.ndim == 3:
        if tables:
            if in_dims[2] is not None:
                raise ConstraintError("A prepared set cannot be mapped over its rows: pass the AffineSet itself.")
            equalities, lite, space = numbers
            plan = Enumeration.from_tensors(tables, equalities, bool(lite), space)
            tables = plan.take(torch.arange(lines, device=A.device).repeat(size)).tensors()
        A = _to_front(A, in_dims[2], size)
        A = A if A.ndim == 4 else A.unsqueeze(1).expand(size, lines, *A.shape[1:])
        A = A.reshape(size * lines, *A.shape[2:])
    flat = {name: None if t is None else t.reshape(size * lines, t.shape[-1]) for name, t in front.items()}
    more = (tables, numbers, sides, names, [size, *batch_shape], *options)
    answers = _solve_op(flat["f"], flat["w"], A, flat["lower"], flat["upper"], *more)
    return tuple(t.reshape(size, lines, *t.shape[1:]) for t in answers), (0,) * 5


def _to_front(t: Any, dim: int | None, size: int) -> Any:
    if t is None:
        return None
    return t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
