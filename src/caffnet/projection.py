"""What is computed, and how it is differentiated.

The set is ``S = {y : lower <= A y <= upper}``, `f` the raw output, `w` the null-space vector. A sub-constraint γ is
a choice of rows, each at one of its bounds, with candidate

    P_γ = f - A_γ⁺(A_γ f - b_γ) + (I - A_γ⁺A_γ) w  =  A_γ⁺ b_γ + (I - A_γ⁺A_γ)(f + w),

the orthogonal projection of ``g = f + w`` on the flat ``{A_γ y = b_γ}``. The layer returns `f` where `f` is feasible,
else the feasible candidate nearest to `f`. It works in two stages: a search, which needs no gradient, finds γ; and
the closed form on γ is differentiated.

**The derivative.** On a fixed γ, `y` and the multipliers λ solve a symmetric linear system,

    [ I    A_γᵀ ] [ y ]   [ g   ]
    [ A_γ  0    ] [ λ ] = [ b_γ ].

So the backward pass solves the same system with the incoming gradients (v, τ) in place of (g, b): call its solution
(p, q). Then ``∂g = p``, ``∂b = q`` and, from the matrix, ``∂A = -(λ pᵀ + q yᵀ)``. With τ = 0 that is ``p = N v`` (the
gradient projected on the face), ``q = (A_γ⁺)ᵀ v``. As the backward pass is again this function, it can be
differentiated any number of times.

**The tangent gradient.** ``N v`` dies at a vertex, and on a face it never lets the answer back inside. With
``gradient="tangent"`` f gets ``-d`` instead, where ``d`` is the projection of ``-v`` on the tangent cone of S at y, the
directions in which the active rows allow a small step. So f moves inward until the rows let go of it. w keeps ``N v``:
what it would gather across the face changes nothing while the answer lies there, and comes out as a jump when f enters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from caffnet import compiled
from caffnet.compromise import Compromise, differentiate, least_squares, nearer_compromises
from caffnet.constraints import EQUAL, AffineSet, has_numbers, in_transform, joint_shape
from caffnet.dispatch import answer
from caffnet.errors import ConstraintError, DtypeError
from caffnet.preparation import SEARCHES, Prepared, prepare_search
from caffnet.problem import Options, Problem, Solution
from caffnet.rows import apply, pick_rows, product, scale_rows, times_power, unit_exponent
from caffnet.search import enumeration
from caffnet.search.enumeration import Enumeration
from caffnet.solve import factorised

ON_INFEASIBLE = ("raise", "nearest", "nan")
GRADIENTS = ("exact", "tangent")


@dataclasses.dataclass(frozen=True)
class Projection:
    """The answer with its evidence.

    Attributes:
        value: the point, ``(..., n)``.
        status: one `Status` per sample, ``(...)``.
        active: the rows of the sub-constraint the point lies on, ``(..., m)``: -1 lower bound, +1 upper bound, else 0.
            Those of a compromise (``search="paper"``), which lies between its rows, are not told.
        search: the search that ran.
    """

    value: Tensor
    status: Tensor
    active: Tensor
    search: str
    set: AffineSet = dataclasses.field(repr=False)

    @property
    def violation(self) -> Tensor:
        """The largest violation of each sample, ``(...)``, measured from the data in the user's units."""
        rows = self.set.violation(self.value.detach())
        return rows.amax(-1) if rows.shape[-1] else rows.new_zeros(rows.shape[:-1])

    @property
    def at_vertex(self) -> Tensor:
        """Samples whose γ fixes all outputs, ``(...)``: their exact gradient with respect to f and w is zero."""
        return (self.active != 0).sum(-1) == self.value.shape[-1]


def project(
    f: Tensor,
    set: AffineSet | Prepared,
    w: Tensor | None = None,
    *,
    search: str = "auto",
    norm: float = 2,
    strict: bool = False,
    on_infeasible: str = "raise",
    gradient: str = "exact",
    budget: int | None = None,
    start: Tensor | None = None,
) -> Projection:
    r"""The CAffine map $P^*$: `f` where it is feasible, else the feasible candidate nearest to `f`.

    $$P^* = \arg\min_{\gamma \in \Gamma,\; P_\gamma \in S} \|P_\gamma - f\|_p,
      \qquad P_\gamma = \arg\min_{A_\gamma y = b_\gamma} \|y - (f + w)\|_2 .$$

    With ``w = None`` and ``norm=2`` this is the Euclidean projection of `f` on the set, with every search but lite.

    Args:
        f: raw output, ``(..., n)``, float32 or float64.
        set: the constraints, or a `Prepared` set; its batch axes broadcast with those of `f`.
        w: null-space vector, ``(..., n)``; None for zero.
        search: ``"full"`` looks at every sub-constraint; ``"lite"`` at single rows and minimal faces; ``"active"``
            finds the sub-constraint of the Euclidean projection in polynomial time, at any size; ``"auto"`` is full
            while that is cheap, else active; ``"paper"`` is full and the least-squares compromises of linearly
            dependent rows, as in the paper. `Projection.search` tells which ran.
        norm: the p of the distance, in [1, inf].
        strict: aim inside by a few units in the last place, so that every inequality holds in exact arithmetic
            wherever the set has an interior.
        on_infeasible: ``"raise"`` an `InfeasibleError` that names the rows in conflict, return the ``"nearest"`` point
            (least violation), or ``"nan"``. The last two also mark samples with NaN or infinite data INVALID
            instead of raising. `Projection.status` tells.
        gradient: ``"exact"``, or ``"tangent"``: f receives the part of the gradient whose descent stays in the
            set. It agrees with the exact gradient along the face and does not vanish at vertices; gradients
            of w, A and the bounds are exact either way.
        budget: bytes of working memory for the enumeration; 256 MiB if None.
        start: rows to begin the search with, ``(..., m)``, as the `Projection.active` of a call before: a warm start,
            faster when few rows change. The answer is the same to rounding.

    Returns:
        A `Projection`.

    Raises:
        ConstraintError: shapes, number types or devices do not fit, or the data are not finite.
        InfeasibleError: no point satisfies the rows of some sample.
        BudgetError: the sub-constraints cannot be listed within the budget.

    >>> s = AffineSet.inequality([[1.0, 1.0]], [1.0]) & AffineSet.box(0.0, None, dim=2)
    >>> project(torch.tensor([[1.0, 1.0], [0.2, 0.3], [3.0, -1.0]]), s).value
    tensor([[0.5000, 0.5000],
            [0.2000, 0.3000],
            [1.0000, 0.0000]])
    """
    if isinstance(set, Prepared) and search == "auto":
        search = set.search
    options = check_options(search, norm, strict, on_infeasible, gradient, budget)
    prepared, batch = _gate(f, set, w, options)
    paper = prepared.search == "paper"
    options = dataclasses.replace(options, search="full" if paper else prepared.search)
    if paper and w is None and norm != 2:  # in other norms a compromise may be nearer than every face, even so
        w = torch.zeros_like(f)
    with no_autocast(f.device.type):
        problem = _flatten(prepared.set, f, w, batch)
        if start is not None:
            start = _start_lines(start, batch, prepared.set.m)
        solution = answer(problem, options, prepared.plan, start)
        value = _differentiable(problem, solution, gradient, options, prepared.plan)
        status, held = solution.status, solution.held
        if paper:
            value, status, held = _with_compromises(problem, solution, value, options)
    if len(batch) != 1:
        value, status = value.reshape(*batch, value.shape[-1]), status.reshape(batch)
        held = held.reshape(*batch, held.shape[-1])
    return Projection(value, status, held, prepared.search, prepared.set)


# ------------------------------------------------------------------------------------------------- the gate


def check_options(
    search: str = "auto",
    norm: float = 2,
    strict: bool = False,
    on_infeasible: str = "raise",
    gradient: str = "exact",
    budget: int | None = None,
) -> Options:
    """The options of `project`, checked."""
    for name, value, known in (
        ("search", search, SEARCHES),
        ("on_infeasible", on_infeasible, ON_INFEASIBLE),
        ("gradient", gradient, GRADIENTS),
    ):
        if value not in known:
            raise ConstraintError(f"{name} must be one of {', '.join(known)}, got {value!r}.")
    if search == "paper" and gradient != "exact":
        raise ConstraintError('search="paper" has the exact gradient, as the paper: use search="full" for the tangent.')
    if not isinstance(norm, int | float) or not norm >= 1:
        raise ConstraintError(f"norm must be a p in [1, inf], got {norm!r}.")
    budget = enumeration.DEFAULT_BUDGET if budget is None else budget
    if not isinstance(budget, int) or budget <= 0:
        raise ConstraintError(f"budget must be a positive number of bytes, got {budget!r}.")
    return Options(search, float(norm), strict, on_infeasible, budget)


def _gate(f: Tensor, set: AffineSet | Prepared, w: Tensor | None, options: Options) -> tuple[Prepared, torch.Size]:
    """All checks that need no number, in one place: the set made ready, and the batch axes of the answer."""
    constraints = set.set if isinstance(set, Prepared) else set
    if not isinstance(constraints, AffineSet):
        raise ConstraintError(
            f"The constraints must be an AffineSet, got {type(set).__name__}. "
            "Write AffineSet.inequality(A, b), .equality(C, d) or .box(lower, upper)."
        )
    for name, tensor in (("f", f), ("w", w)):
        if tensor is None and name == "w":
            continue
        if not isinstance(tensor, Tensor):
            raise ConstraintError(
                f"{name} must be a tensor, got {type(tensor).__name__}: write torch.as_tensor({name})."
            )
        if tensor.dtype not in (torch.float32, torch.float64):
            raise DtypeError(
                f"{name} is {tensor.dtype}; the layer works in float32 or float64: write {name}.float() "
                "(under autocast, call the layer on the float32 output)."
            )
        if tensor.ndim == 0 or tensor.shape[-1] != constraints.n:
            raise ConstraintError(
                f"{name} must have shape (..., {constraints.n}) to meet {constraints}, got {tuple(tensor.shape)}."
            )
    if isinstance(set, Prepared):
        if constraints.dtype != f.dtype:
            raise DtypeError(f"The set was prepared in {constraints.dtype}, f is {f.dtype}: prepare set.to({f.dtype}).")
        if options.search != set.search:
            raise ConstraintError(f"The set was prepared for search={set.search!r}, not {options.search!r}.")
    fitting = constraints.like(f, "f")
    batch = _batch_shape(f, fitting)
    if w is not None:
        if w.dtype != f.dtype or w.device != f.device:
            raise DtypeError(f"w must match f ({f.dtype} on {f.device}), got {w.dtype} on {w.device}.")
        if not _broadcasts(w.shape[:-1], batch):
            raise ConstraintError(f"w must have the shape of f {tuple(f.shape)}, got {tuple(w.shape)}.")
    if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        raise ConstraintError(
            "torch.jit.trace would keep the search of its one example: use torch.export, or torch.onnx.export with "
            "dynamo=True."
        )
    tracing = torch.compiler.is_exporting()
    if tracing and options.strict:
        raise ConstraintError(
            "strict=True decides in exact arithmetic, which a graph cannot hold: export with strict=False."
        )
    if options.search == "paper" and not _looks_at_numbers(f, w, fitting.A, fitting.lower, fitting.upper):
        raise ConstraintError(
            'search="paper" repeats the paper\'s training and is not made for graphs: compile, export and map '
            'search="full".'
        )
    if isinstance(set, Prepared):
        ready = set.expand(batch)
    elif not tracing and (torch.compiler.is_compiling() or not has_numbers(fitting.A)):
        ready = Prepared(fitting.expand(batch), options.search, None)  # prepared inside the opaque operation
    else:
        ready = prepare_search(fitting.expand(batch), options.search, options.budget, tracing)
    if tracing and ready.plan is None:
        raise ConstraintError('Only the enumeration can be exported: use search="full" or "lite".')
    return ready, batch


def _looks_at_numbers(*tensors: Tensor | None) -> bool:
    """Whether code may branch on these numbers: not in a graph, nor under a transform."""
    in_graph = torch.compiler.is_compiling() or torch.compiler.is_exporting() or in_transform()
    return not in_graph and all(t is None or has_numbers(t) for t in tensors)


def _batch_shape(f: Tensor, set: AffineSet) -> torch.Size:
    """The batch axes of the answer. A set may not add axes to a batched `f`: that is nearly always a mistake."""
    axes, mine = set.batch_shape, f.shape[:-1]
    try:
        whole = joint_shape(axes, mine)
    except RuntimeError:
        raise ConstraintError(
            f"The batch axes of f {tuple(mine)} and of the constraints {tuple(axes)} do not broadcast."
        ) from None
    if mine and len(axes) > len(mine):
        raise ConstraintError(
            f"The constraints have more batch axes {tuple(axes)} than f {tuple(mine)}: "
            "a stray axis of size 1 in A or a bound? Add axes to f if this is meant."
        )
    return whole


def _start_lines(start: Tensor, batch: torch.Size, m: int) -> Tensor:
    """The rows to begin with, one sample per line."""
    if not isinstance(start, Tensor) or start.shape != (*batch, m):
        shape = tuple(start.shape) if isinstance(start, Tensor) else type(start).__name__
        raise ConstraintError(
            f"start must have shape {(*batch, m)}, one side per row as in Projection.active, got {shape}."
        )
    return start.sign().to(torch.int8).reshape(batch.numel(), m)


def _broadcasts(shape: torch.Size, batch: torch.Size) -> bool:
    try:
        return joint_shape(shape, batch) == batch
    except RuntimeError:
        return False


def _flatten(set: AffineSet, f: Tensor, w: Tensor | None, batch: torch.Size) -> Problem:
    """One sample per line; `A` stays shared if it was."""
    n, m = set.n, set.m

    def lines(t: Tensor, *core: int) -> Tensor:
        if len(batch) == 1 and t.ndim == 1 + len(core) and t.shape == (*batch, *core):
            return t
        # -1 keeps the batch size open while a graph is traced; it is ambiguous for empty tensors only.
        return t.expand(*batch, *core).reshape(batch.numel() if 0 in core else -1, *core)

    A = set.A if set.A.ndim == 2 else lines(set.A, m, n)
    w = None if w is None else lines(w, n)
    return Problem(lines(f, n), w, A, lines(set.lower, m), lines(set.upper, m), set.sides, set.labels, tuple(batch))


def no_autocast(device: str) -> contextlib.AbstractContextManager:
    """Half precision would move ``A y`` by a part in a hundred."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else contextlib.nullcontext()


# ------------------------------------------------------------------------------------------------- the gradient


def _solve_flat(g: Tensor, A: Tensor, b: Tensor, pinv: Tensor) -> tuple[Tensor, Tensor]:
    """(y, λ) of the symmetric system above. Rows of unused slots are zero."""
    y = product(pinv, b) + (g - product(pinv, product(A, g)))
    return y, product(pinv.mT, g - y)


class _Flat(torch.autograd.Function):
    """`_solve_flat` with its derivatives; `value`, where given, is its y, polished by the search."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        f: Tensor, w: Tensor | None, A: Tensor, b: Tensor, pinv: Tensor, value: Tensor | None, cone: _Cone | None
    ):
        g = f if w is None else f + w
        if value is None:
            return _solve_flat(g, A, b, pinv)
        return value.clone(), product(pinv.mT, g - value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        _, w, A, _, pinv, _, ctx.cone = inputs
        ctx.has_w = w is not None
        ctx.save_for_backward(A, pinv, *output)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor):
        A, pinv, y, multiplier = ctx.saved_tensors
        v, tau = incoming
        p, q = _Flat.apply(v, None, A, tau, pinv, None, None)
        slope = -(multiplier.unsqueeze(-1) * p.unsqueeze(-2) + q.unsqueeze(-1) * y.unsqueeze(-2))
        direction = p if ctx.cone is None else ctx.cone.reachable(v)
        return direction, p if ctx.has_w else None, slope, q, None, None, None


def _forward_flat(g: Tensor, A: Tensor, b: Tensor, used: Tensor, value: Tensor) -> Tensor:
    """The same point in plain operations, for forward-mode derivatives (of any order): ``g - Aᵀ (A Aᵀ)⁻¹ (A g - b)``.

    (A compiled graph cannot hold an autograd function that has a rule for forward mode.)
    """
    gram = A @ A.mT + torch.diag_embed((~used).to(A.dtype))
    y = g - product(A.mT, torch.linalg.solve(gram, product(A, g) - b))
    return y + (value - y).detach()


def _differentiable(
    problem: Problem, solution: Solution, gradient: str, options: Options, plan: Enumeration | None
) -> Tensor:
    """The value of the solution, with its gradient attached."""
    p = problem
    forward = torch.autograd.forward_ad._current_level >= 0  # torch.func.jvp enters it too
    if not forward:
        data = (p.f, p.w, p.A, p.lower, p.upper)
        if not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in data)):
            return solution.value
        if solution.choice is None and not in_transform():
            told = (p.sides, p.labels, p.batch_shape)
            return _Compiled.apply(*data, solution, told, gradient, options, plan)
    return _on_flat(p, solution, gradient, options, plan, forward)


class _Compiled(torch.autograd.Function):
    """The value found by the kernel; the kernel also differentiates it.

    A backward pass that is itself differentiated goes through `_on_flat`, which has derivatives of any order.
    """

    @staticmethod
    def forward(ctx: Any, f: Tensor, w: Any, A: Tensor, lower: Tensor, upper: Tensor, *more: Any) -> Tensor:
        solution, ctx.told, ctx.gradient, ctx.options, ctx.plan = more
        ctx.save_for_backward(f, w, A, lower, upper, solution.value, solution.held)
        ctx.status = solution.status
        return solution.value.clone()

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor):
        (v,) = incoming
        *data, value, held = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:5]
        if not torch.is_grad_enabled() and has_numbers(v):
            found = compiled.differentiate(v, Problem(*data, *ctx.told), value, held, ctx.gradient == "tangent", wanted)
            if found is not None:
                return *found, *(None,) * 5
        solution = Solution(value, ctx.status, held, None)
        found = _differentiated_again(
            lambda *own: _on_flat(Problem(*own, *ctx.told), solution, ctx.gradient, ctx.options, ctx.plan, False),
            data,
            wanted,
            v,
        )
        return *found, *(None,) * 5


def _differentiated_again(
    value: Callable[..., Tensor], data: Sequence[Tensor | None], wanted: Sequence[bool], v: Tensor
) -> list[Tensor | None]:
    """The gradients of a differentiable function, differentiable in their turn where that is asked for."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views: two inputs may be one tensor, or depend on each other, and each is asked for its own part only.
        own: list[Any] = [None if t is None else t.view_as(t) for t in data]
        inputs = [t for t, want in zip(own, wanted, strict=True) if want]
        found = iter(torch.autograd.grad(value(*own), inputs, v, create_graph=again, allow_unused=True))
    return [next(found) if want else None for want in wanted]


def _with_compromises(
    problem: Problem, solution: Solution, value: Tensor, options: Options
) -> tuple[Tensor, Tensor, Tensor]:
    """The differentiable value, status and rows, with compromises of dependent rows where they are nearer."""
    p, found = problem, nearer_compromises(problem, solution, options)
    if found is None:
        return value, solution.status, solution.held
    if compiled.serves(p.f, options) and torch.autograd.forward_ad._current_level < 0:
        point = _Compromised.apply(p.f, p.w, p.A, p.lower, p.upper, found, (p.sides, p.labels, p.batch_shape))
    else:
        point = least_squares(p, found)
    status = solution.status.index_copy(0, found.samples, found.status)
    return value.index_copy(0, found.samples, point), status, solution.held.index_fill(0, found.samples, 0)


class _Compromised(torch.autograd.Function):
    """Compromises, differentiated by the kernel; by torch, where the backward pass itself is differentiated."""

    @staticmethod
    def forward(
        ctx: Any, f: Tensor, w: Tensor, A: Tensor, lower: Tensor, upper: Tensor, found: Compromise, told: tuple
    ) -> Tensor:
        ctx.save_for_backward(f, w, A, lower, upper)
        ctx.found, ctx.told = found, told
        return found.value.clone()

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor):
        (v,) = incoming
        data = ctx.saved_tensors
        if not torch.is_grad_enabled() and has_numbers(v):
            return *differentiate(v, Problem(*data, *ctx.told), ctx.found), None, None
        again = _differentiated_again(
            lambda *own: least_squares(Problem(*own, *ctx.told), ctx.found), data, ctx.needs_input_grad[:5], v
        )
        return *again, None, None


def _on_flat(
    problem: Problem, solution: Solution, gradient: str, options: Options, plan: Enumeration | None, forward: bool
) -> Tensor:
    """The value as a differentiable function of the data, on the flats of the solution."""
    p = problem
    with torch.no_grad():
        choice = factorised(p, solution)
    # A sample lies on a flat if it has one; an accepted f and a sample without an answer have none.
    moved = (choice.sides != 0).any(-1, keepdim=True) & solution.value.isfinite().all(-1, keepdim=True)
    used = (choice.sides != 0) & moved
    A = pick_rows(p.A, choice.rows)
    exponent = unit_exponent(A.detach())
    A = torch.where(used.unsqueeze(-1), times_power(A, exponent.unsqueeze(-1)), 0.0)
    upper, lower = p.upper.gather(-1, choice.rows), p.lower.gather(-1, choice.rows)
    bound = times_power(torch.where(choice.sides > 0, upper, lower), exponent)
    bound = torch.where(used & bound.isfinite(), bound, 0.0)
    # Samples that lie on no flat take no part in the system: zeros in, zeros out.
    value = torch.where(moved, solution.value, 0.0)
    pinv = torch.where(moved.unsqueeze(-1), choice.pinv.to(p.f.dtype), 0.0)
    f, w = torch.where(moved, p.f, 0.0), None if p.w is None else torch.where(moved, p.w, 0.0)
    if forward:
        y = _forward_flat(f if w is None else f + w, A, bound, used, value)
    else:
        cone = _Cone.at(value, p, solution, options, plan) if gradient == "tangent" else None
        y, _ = _Flat.apply(f, w, A, bound, pinv, value, cone)
    unchanged = (solution.value == p.f).all(-1, keepdim=True)
    return torch.where(moved, y, torch.where(unchanged, p.f, solution.value))


@dataclasses.dataclass(frozen=True)
class _Cone:
    """The tangent cone of the set at `y`: the directions ``d`` in which the active rows allow a small step.

    For an incoming gradient `v` the descent direction ``-v`` is projected on the cone, and the opposite of the
    result is passed on: what points back inside gets through, what points out does not. It is the same search, on the
    active rows with all bounds 0.
    """

    set: AffineSet
    plan: Enumeration | None
    budget: int

    @classmethod
    def at(cls, y: Tensor, p: Problem, solution: Solution, options: Options, plan: Enumeration | None) -> _Cone:
        held = solution.held
        here = (held != 0).any(-1, keepdim=True) & solution.value.isfinite().all(-1, keepdim=True)
        A, lower, upper = (t.detach() for t in (p.A, p.lower, p.upper))
        # A sample without an answer may have rows that are no numbers.
        A = torch.where(here.unsqueeze(-1), A, 0.0) if A.ndim == 3 else A.nan_to_num(0.0, 0.0, 0.0)
        rows = scale_rows(A, lower, upper)
        value, allowed = apply(rows.A, y), rows.allowance(y, y)
        # The rows of γ are active whatever the distance: `strict` stops short of them.
        fixed = torch.tensor([side == EQUAL for side in p.sides], dtype=torch.bool, device=y.device)
        equal = fixed | (rows.lower == rows.upper)
        at_lower = equal | ((((value - rows.lower).abs() <= allowed) | (held < 0)) & here)
        at_upper = equal | ((((value - rows.upper).abs() <= allowed) | (held > 0)) & here)
        low, high = torch.where(at_lower, 0.0, -math.inf), torch.where(at_upper, 0.0, math.inf)
        cone = AffineSet.from_parts(A, low.to(A.dtype), high.to(A.dtype), None, p.sides)
        # Lite lists too few faces for an exact projection on the cone.
        return cls(cone, plan if plan is None or plan.minimal is None else None, options.budget)

    def reachable(self, v: Tensor) -> Tensor:
        """``-Proj_cone(-v)``; a gradient that is no number passes as it is."""
        known = v.isfinite().all(-1, keepdim=True)
        prepared = Prepared(self.set, "active" if self.plan is None else "full", self.plan)
        step = project(torch.where(known, -v, 0.0), prepared, budget=self.budget).value
        return torch.where(known, -step, v)
