"""The projection and its derivative.

The set is ``S = {y : lower <= A y <= upper}``, `f` the raw output, `w` the null-space vector. A sub-constraint γ is
a choice of rows, each at one of its bounds, with candidate

    P_γ = f - A_γ⁺(A_γ f - b_γ) + (I - A_γ⁺A_γ) w  =  A_γ⁺ b_γ + (I - A_γ⁺A_γ)(f + w),

the orthogonal projection of ``g = f + w`` on the flat ``{A_γ y = b_γ}``. The layer returns `f` where `f` is feasible,
else the feasible candidate nearest to `f`. It works in two stages: a search, which needs no gradient, finds γ; and
the closed form on γ is differentiated. Both are done by the kernel in `caffnet._kernel`, one sample at a time.

**The derivative.** On a fixed γ, `y` and the multipliers λ solve a symmetric linear system,

    [ I    A_γᵀ ] [ y ]   [ g   ]
    [ A_γ  0    ] [ λ ] = [ b_γ ].

So the backward pass solves the same system with the incoming gradient (v, 0) in place of (g, b): call its solution
(p, q). Then ``∂g = p = N v`` (the gradient projected on the face), ``∂b = q = (A_γ⁺)ᵀ v`` and, from the matrix,
``∂A = -(λ pᵀ + q yᵀ)``.

**The tangent gradient.** ``N v`` is zero at a vertex, and on a face it never moves the answer back inside. With
``gradient="tangent"`` f gets ``-d`` instead, where ``d`` is the projection of ``-v`` on the tangent cone of S at y, the
directions in which the active rows allow a small step. So f moves inward until the rows are no longer active. w keeps
the exact gradient ``N v``: a part of w across the face has no effect now, but would grow in training and appear as a
jump once f is inside.

**The path of a call**::

    project -> solve_checked: validate, choose the search, flatten        projection.py
      -> answer: attach the gradient                                      _solve/gradient.py
        -> solve: the kernel, the GPU, or one operation for graphs        _solve/run.py
          -> native.solve: one struct of addresses, threads               _kernel/native.py
            -> caffnet_solve: every sample of the batch                   _kernel/entry.c
              -> decide: accept f, project, approach, strict, write       _kernel/decide.c
    backward -> caffnet_gradient -> differentiate                         _kernel/gradient.c
    derivatives of derivatives -> the closed form in plain torch          _solve/gradient.py

**Soft rows.** Rows with a weight have slacks, which are outputs of their own: the same map with more of them
(`_solve/slack.py`). Rows without a weight are rows like the others while the set has a point. Where it has none, they
are relaxed by the least level t at which it has one, and the answer is the projection on the rows relaxed by t. Its
closed form is that of ``(y, t)`` on rows ``(a_i, -side_i)``, so its derivative is the same again (`_kernel/soft.c`).
"""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from caffnet._solve import gradient as differentiable
from caffnet._solve import graph, run, slack, sparse, stationary
from caffnet._solve.prepare import Prepared, choose_search, set_of
from caffnet._solve.problem import Answer, Options, Problem, Status, check_options, has_answer
from caffnet._solve.tracing import (
    are_concrete,
    is_compiling,
    is_exporting,
    is_exporting_plain,
    is_jit_tracing,
    may_branch,
    remember,
)
from caffnet.constraints import (
    HARD,
    SOFT,
    SOFT_IF_NEAREST,
    WEIGHTED,
    AffineSet,
    ArrayLike,
    broadcasts,
    in_place_of,
    is_kind,
    joint_axes,
)
from caffnet.errors import ConstraintError, DtypeError
from caffnet.optimality import Residuals, residuals


@dataclasses.dataclass(frozen=True)
class Projection:
    """The result of a projection, with diagnostics.

    Attributes:
        value: the point, ``(..., n)``.
        status: one `Status` per sample, ``(...)``.
        active: the sub-constraint γ that the point was put on, ``(..., m)``: -1 lower bound, +1 upper bound, else 0.
            The point may touch other rows too: `binding` has all of them. A compromise of ``search="paper"`` lies
            between its rows and has none. Where soft rows gave way, the rows in conflict are included.
        search: the search that ran.
        goal: f, if the answer is the nearest point to it; None with w, another norm, lite or paper.
    """

    value: Tensor
    status: Tensor
    active: Tensor
    search: str
    set: AffineSet = dataclasses.field(repr=False)
    goal: Tensor | None = dataclasses.field(default=None, repr=False)

    def __repr__(self) -> str:
        """Return the count of each status; the numbers are in the attributes."""
        if not are_concrete((self.status,)):
            return f"{type(self).__name__}({tuple(self.value.shape)}, search={self.search!r})"
        counts = self.status.reshape(-1).to(torch.int64).bincount().tolist()
        said = ", ".join(f"{count} {Status(code).name}" for code, count in enumerate(counts) if count)
        return f"{type(self).__name__}({tuple(self.value.shape)}: {said or 'no samples'}; search={self.search!r})"

    @property
    def answered(self) -> Tensor:
        """Mask ``(...)`` of the samples with an answer: all but INFEASIBLE, INVALID and UNBOUNDED ones."""
        return has_answer(self.status)

    @functools.cached_property
    def multipliers(self) -> Tensor:
        """The price λ of every row, ``(..., m)``, in the user's units.

        ``y = f - M⁻¹ Aᵀ λ``, with λ >= 0 at upper bounds, <= 0 at lower ones, of any sign at equalities and 0 at rows
        that are not active. λ is the amount by which half the squared distance falls per unit that a bound moves
        outward. If several λ satisfy this, one of them is returned. A soft row with a weight has λ = weight · slack.
        NaN for samples without an answer, and where soft rows without a weight gave way. Differentiable; computed at
        the first access.

        Raises:
            ConstraintError: the answer is not the nearest point to f: with w, another norm, lite or paper.
        """
        return shaped(stationary.multipliers(*self._flat()), self.value.shape[:-1])

    def residuals(self) -> Residuals:
        """Measure from the data how well the conditions of the nearest point hold."""
        problem, answer = self._flat()
        p, found = problem.detach(), self.multipliers.detach().reshape(answer.active.shape)
        y = answer.value.detach()  # with the slacks of rows that have a weight
        Q = y.new_ones(1, y.shape[-1]) if p.metric is None else p.metric
        rows = AffineSet.from_parts(p.A, p.lower, p.upper, None, p.row_kinds)
        missed = residuals(y, found, rows, Q, -stationary.apply(Q, p.f))
        return Residuals(*(shaped(t, self.value.shape[:-1]) for t in (missed.primal, missed.dual, missed.gap)))

    def _flat(self) -> tuple[Problem, Answer]:
        """Return the problem and its answer with one batch axis."""
        if self.goal is None:
            raise ConstraintError(
                "Only the nearest point to f has multipliers: project without w, with norm=2 and a search other than "
                '"lite" and "paper". With w, the answer lies on the face that is nearest to f, where multipliers may '
                "have any sign."
            )
        batch, set = self.value.shape[:-1], self.set
        if sparse.is_sparse(set.A):
            raise ConstraintError("Multipliers need rows in full, and these are sparse: project on set.to_dense().")
        problem = flatten(set, self.goal, None, batch)
        if not are_concrete(problem.tensors):
            raise ConstraintError("Multipliers are computed outside of compiled graphs and torch.func transforms.")
        lines = len(problem.f)
        value, active = (t.reshape(lines, t.shape[-1]) for t in (self.value, self.active))
        status = self.status.reshape(lines)
        if set.softness is not None and set.slacks:
            rows = _weighted_rows(set, value.device)
            value = torch.cat([value, slack.at(problem, rows, value.detach())], -1)
            problem = price_slacks(problem, set, batch)
            if all(kind in HARD + WEIGHTED for kind in set.softness.kinds):  # with its slacks the point is in the set
                status = torch.where(status == int(Status.RELAXED), int(Status.PROJECTED), status)
        return problem, Answer(value, status, active)

    def names_of_binding(self) -> list[tuple[str, ...]]:
        """Return the names of the rows that each sample touches, with their side: one tuple per sample.

        >>> s = AffineSet.box(0.0, 1.0, dim=2, names=["left", "right"])
        >>> project(torch.tensor([2.0, 0.5]), s).names_of_binding()
        [('left (upper bound)',)]
        """
        names, equal = self.set.names, "="
        sides = {1: " (upper bound)", -1: " (lower bound)"}
        return [
            tuple(
                names[i] + ("" if self.set.row_kinds[i] == equal else sides[side])
                for i, side in enumerate(line)
                if side
            )
            for line in self.binding.reshape(self.status.numel(), self.set.m).tolist()
        ]

    @property
    def violation(self) -> Tensor:
        """The largest violation of each sample, ``(...)``, measured from the data in the user's units."""
        # Without gradients to the set as well: compiled graphs multiply an answer of NaN by a gradient of zero.
        A, lower, upper = (t.detach() for t in (self.set.A, self.set.lower, self.set.upper))
        rows = AffineSet.from_parts(A, lower, upper, None, self.set.row_kinds).violation(self.value.detach())
        return rows.amax(-1) if rows.shape[-1] else rows.new_zeros(rows.shape[:-1])

    @property
    def binding(self) -> Tensor:
        """All rows that the point touches up to rounding, ``(..., m)``: -1 lower bound, +1 upper bound, else 0.

        An equality counts as +1. These are the rows of γ and any others that go through the point.
        """
        set, y = self.set, self.value.detach()
        value = sparse.product(set.A.detach(), y)
        lower, upper = set.lower.detach(), set.upper.detach()
        room = 2 * stationary.room_at(set.A.detach(), y, value)
        above, below = (value - upper).abs() <= room, (value - lower).abs() <= room
        touching = torch.where(above, 1, torch.where(below, -1, 0)).to(torch.int8)
        return torch.where(self.active != 0, self.active, touching)

    @property
    def at_vertex(self) -> Tensor:
        """Mask ``(...)`` of the samples whose γ fixes all outputs: their exact gradient in f and w is zero.

        Rows with a weight give way and fix no output. Rows in conflict depend on each other, so their rank counts.
        """
        held, n = self.active != 0, self.value.shape[-1]
        if self.set.softness is None:
            return held.sum(-1) == n
        held = held & ~is_kind(self.set.softness.kinds, WEIGHTED, held.device)
        rows = torch.nn.functional.normalize(self.set.A.detach(), dim=-1)
        return torch.linalg.matrix_rank(torch.where(held.unsqueeze(-1), rows, 0.0)) == n


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
    start: Tensor | str | None = None,
    metric: ArrayLike | None = None,
) -> Projection:
    r"""Apply the CAffine map $P^*$: return `f` if it is feasible, else the feasible candidate nearest to `f`.

    $$P^* = \arg\min_{\gamma \in \Gamma,\; P_\gamma \in S} \|P_\gamma - f\|_p,
      \qquad P_\gamma = \arg\min_{A_\gamma y = b_\gamma} \|y - (f + w)\|_2 .$$

    With ``w = None`` and ``norm=2`` this is the Euclidean projection of `f` on the set, for every search except lite.

    Args:
        f: raw output, ``(..., n)``, float32 or float64.
        set: the constraints, or a `Prepared` set; its batch axes broadcast with those of `f`.
        w: null-space vector, ``(..., n)``; None for zero.
        search: ``"full"`` looks at every sub-constraint; ``"lite"`` at single rows and minimal faces; ``"active"``
            finds the sub-constraint of the Euclidean projection in polynomial time, at any size; ``"auto"`` is full
            while that is cheap, else active; ``"paper"`` is full with the least-squares compromises of linearly
            dependent rows, as in the paper. `Projection.search` names the search that ran.
        norm: the p of the distance, in [1, inf].
        strict: move the answer inside by a few units in the last place, so that every inequality holds in exact
            arithmetic. The status is WITHIN_TOL where no such point was found: the set has no interior, or one thinner
            than rounding.
        on_infeasible: for an empty set, ``"raise"`` an `InfeasibleError` that names the rows in conflict, return the
            ``"nearest"`` point (least violation), or return ``"nan"``. The last two also mark samples with NaN or
            infinite data INVALID instead of raising an error. `Projection.status` has the outcome. A sample whose soft
            rows give way (`AffineSet.soft`) has an answer, RELAXED; this option then applies only if hard rows exclude
            each other.
        gradient: ``"exact"``, or ``"tangent"``: f receives the part of the gradient whose descent stays in the
            set. It agrees with the exact gradient along the face and does not vanish at vertices; gradients
            of w, A and the bounds are exact either way.
        budget: how many sub-constraints ``"full"``, ``"lite"`` and ``"paper"`` may look at, as the bytes that a list of
            them would take; 256 MiB if None.
        start: rows to begin the search with, ``(..., m)``, for example `Projection.active` of an earlier call: a warm
            start, faster when few rows change. Or ``"first"``: the first sample of the batch is solved, and all others
            begin with its rows: for a batch of samples that mostly meet the same rows. The answer is the same to
            rounding; with `w` and ``search="active"``, where more rows than needed meet in a point, it may be another
            candidate.
        metric: measure distances by ``‖y - f‖_M`` instead of the Euclidean norm: a positive definite matrix
            ``(..., n, n)``, or its diagonal ``(n,)``; short for `AffineSet.with_metric`.

    Returns:
        A `Projection`.

    Raises:
        ConstraintError: shapes, number types or devices do not fit, or the data are not finite.
        InfeasibleError: no point satisfies the rows of some sample.
        BudgetError: there are more sub-constraints than the budget allows.

    >>> s = AffineSet.inequality([[1.0, 1.0]], [1.0]) & AffineSet.box(0.0, None, dim=2)
    >>> project(torch.tensor([[1.0, 1.0], [0.2, 0.3], [3.0, -1.0]]), s).value
    tensor([[0.5000, 0.5000],
            [0.2000, 0.3000],
            [1.0000, 0.0000]])
    """
    if isinstance(set, Prepared) and search == "auto":
        search = set.search
    if metric is not None and isinstance(set, AffineSet | Prepared):
        takes_any_type, set = set_of(set).weak, set.with_metric(metric)
        if takes_any_type and isinstance(f, Tensor) and not set_of(set).weak and set_of(set).dtype != f.dtype:
            raise DtypeError(f"The metric is {set_of(set).dtype}, f is {f.dtype}: convert the metric to the type of f.")
    options = check_options(search, norm, strict, on_infeasible, gradient, budget)
    return project_checked(f, set, w, options, start)


def project_checked(
    f: Tensor, set: AffineSet | Prepared, w: Tensor | None, options: Options, start: Tensor | str | None = None
) -> Projection:
    """Do the same as `project`, with options that have been checked."""
    return Projection(*solve_checked(f, set, w, options, start))


def solve_checked(
    f: Tensor,
    set: AffineSet | Prepared,
    w: Tensor | None,
    options: Options,
    start: Tensor | str | None = None,
    value_only: bool = False,
) -> tuple[Tensor, Tensor, Tensor, str, AffineSet, Tensor | None]:
    """Return the fields of a `Projection`. With `value_only` the status and the active rows may be missing."""
    constraints, batch = validate(f, set, w, options)
    slacks = constraints.slacks
    if is_exporting_plain():
        search = graph.check(constraints, options)
    elif isinstance(set, Prepared):
        search = set.search
    else:
        search = choose_search(constraints, options.search, options.budget)
    options = options.searching(search)
    problem = flatten(constraints, f, w, batch, soft_rows(constraints, options))
    if slacks:
        problem = price_slacks(problem, constraints, batch)
    if isinstance(start, str) and start == "first":
        start = run.rows_of_first(problem, options)
    elif start is not None:
        start = start_lines(start, batch, constraints.m, problem.f.is_meta)
    value, status, active, _ = differentiable.answer(problem, options, start, value_only and not slacks)
    if slacks:
        value, given = value[..., : constraints.n], value[..., constraints.n :].detach()
        status = torch.where(has_answer(status) & (given != 0).any(-1), int(Status.RELAXED), status).to(torch.int8)
    if len(batch) != 1:
        value = shaped(value, batch)
        if not value_only:
            status, active = shaped(status, batch), shaped(active, batch)
    nearest = w is None and options.norm == 2 and search in ("full", "active")
    return value, status, active, search, constraints, f if nearest else None


def shaped(t: Tensor, batch: torch.Size) -> Tensor:
    """Restore the batch axes of the user, from samples with one batch axis."""
    if len(batch) == 1:
        return t
    return t.reshape(*batch, *t.shape[1:]) if batch else t[0]


# ------------------------------------------------------------------------------------------------- checks


def validate(
    f: Tensor, set: AffineSet | Prepared, w: Tensor | None, options: Options, name: str = "f"
) -> tuple[AffineSet, torch.Size]:
    """Check types, shapes and devices. Return the set in the type of f, and the batch axes of the answer.

    `name` is the name of f in messages.
    """
    constraints = set_of(set)
    if not isinstance(constraints, AffineSet):
        write = in_place_of(set)
        if isinstance(f, AffineSet | Prepared):
            write = "The order is project(f, set)."
        elif callable(set):
            write = "Call the function, project(f, constraint(x)), or give it to a layer, CAffine(constraint)."
        raise ConstraintError(f"The constraints must be an AffineSet, got {type(set).__name__}. {write}")
    _check_point(name, f, constraints)
    if isinstance(set, Prepared):
        if constraints.dtype != f.dtype:
            raise DtypeError(f"The set was prepared in {constraints.dtype}, f is {f.dtype}: prepare set.to({f.dtype}).")
        if options.search != set.search:
            raise ConstraintError(f"The set was prepared for search={set.search!r}, not {options.search!r}.")
    fitting = constraints.like(f, name)
    batch = _batch_shape(f, fitting)
    if w is not None:
        _check_point("w", w, constraints)
        if w.dtype != f.dtype or w.device != f.device:
            raise DtypeError(f"w must match f ({f.dtype} on {f.device}), got {w.dtype} on {w.device}.")
        if w.shape[:-1] != batch and not broadcasts(w.shape[:-1], batch):
            raise ConstraintError(f"w must have the shape of f {tuple(f.shape)}, got {tuple(w.shape)}.")
    if is_jit_tracing():
        raise ConstraintError(
            "torch.jit.trace would record the search for its one example: use torch.export, or torch.onnx.export with "
            "dynamo=True."
        )
    if fitting.metric is not None and (options.norm != 2 or options.search == "paper"):
        raise ConstraintError(
            f"A metric says which point is nearest: with norm={options.norm:g} and search={options.search!r} it cannot "
            'be combined. Use norm=2 and search="full", or a set without a metric.'
        )
    if fitting.slacks and (options.norm != 2 or options.search == "paper"):
        raise ConstraintError(
            f"The weight of a soft row prices a squared distance: with norm={options.norm:g} and "
            f"search={options.search!r} it cannot be combined. Use norm=2 and another search, or soft rows without a "
            "weight."
        )
    if sparse.is_sparse(fitting.A):
        _check_sparse(fitting, options)
    if options.search == "paper" and not (is_exporting() or may_branch(f, w, fitting.A, fitting.lower, fitting.upper)):
        raise ConstraintError(
            'search="paper" repeats the paper\'s training and is not made for graphs: compile and map search="full".'
        )
    return fitting, batch


def _check_sparse(set: AffineSet, options: Options) -> None:
    """Refuse options that need the matrix in full."""
    reason = None
    if options.search not in ("auto", "active"):
        reason = f'search={options.search!r} looks at whole rows: use search="active" or'
    elif set.metric is not None:
        reason = "a metric needs whole rows:"
    elif set.softness is not None:
        reason = "soft rows need whole rows:"
    elif is_compiling() or not may_branch(set.A):
        reason = "compiled and exported graphs and transforms (torch.func) hold whole rows only:"
    if reason is not None:
        raise ConstraintError(f"The rows are sparse, and {reason} write set.to_dense() if its size permits.")


def _check_point(name: str, t: Tensor, constraints: AffineSet) -> None:
    """Refuse an f or w that is not a dense float32 or float64 tensor of the right length."""
    if not isinstance(t, Tensor):
        raise ConstraintError(f"{name} must be a tensor, got {type(t).__name__}: write torch.as_tensor({name}).")
    if t.dtype not in (torch.float32, torch.float64):
        raise DtypeError(
            f"{name} is {t.dtype}; the layer works in float32 or float64: write {name}.float() "
            "(under autocast, layers do this, `project` does not)."
        )
    if t.layout != torch.strided or t.is_nested:
        kind = "nested" if t.is_nested else "sparse"
        raise ConstraintError(f"{name} must be a dense tensor, got a {kind} one: write {name}.to_dense().")
    shape = t.shape
    if not shape or shape[-1] != constraints.n:
        joined = len(shape) > 1 and shape[-2] * shape[-1] == constraints.n
        hint = f" {name}.flatten(-2) joins its last two axes." if joined else ""
        raise ConstraintError(
            f"{name} must have shape (..., {constraints.n}) to match {constraints}, got {tuple(shape)}.{hint}"
        )


def _batch_shape(f: Tensor, set: AffineSet) -> torch.Size:
    """Return the batch axes of the answer. A set may not add axes to a batched `f`: that is nearly always a mistake."""
    axes, mine = set.batch_shape, f.shape[:-1]
    if not axes:
        return mine
    whole = joint_axes("f", mine, "the constraints", axes)
    if mine and len(axes) > len(mine):
        raise ConstraintError(
            f"The constraints have more batch axes {tuple(axes)} than f {tuple(mine)}: "
            "a stray axis of size 1 in A or a bound? Add axes to f if this is meant."
        )
    return whole


def start_lines(start: Tensor | str, batch: torch.Size, m: int, meta: bool = False) -> Tensor:
    """The rows to begin with, one sample per line; without numbers if `meta`."""
    got = repr(start) if isinstance(start, str) else type(start).__name__  # a list may be long
    if isinstance(start, Tensor):
        got = tuple(start.shape)
    if isinstance(start, Tensor) and got == (*batch, m):
        if start.layout == torch.strided and not start.is_complex() and (meta or not start.is_meta):
            return start.sign().to(torch.int8).reshape(batch.numel(), m)
        got = f"{start.dtype} in {start.layout} on {start.device}"
    raise ConstraintError(f"start must have shape {(*batch, m)}, one side per row as in Projection.active, got {got}.")


def soft_rows(set: AffineSet, options: Options) -> str:
    """Return `Problem.soft`: marks for the rows that give way where the set is empty."""
    return "" if set.softness is None else _yielding(set.softness.kinds, options.on_infeasible)


@remember
def _yielding(kinds: str, on_infeasible: str) -> str:
    yielding = SOFT + SOFT_IF_NEAREST if on_infeasible == "nearest" else SOFT
    marks = "".join(SOFT if kind in yielding else HARD for kind in kinds)
    return marks if SOFT in marks else ""


def price_slacks(problem: Problem, set: AffineSet, batch: torch.Size) -> Problem:
    """Return the problem with a slack for each row with a weight."""
    assert set.softness is not None
    assert set.softness.weight is not None
    weight = set.softness.weight
    if weight.ndim > 1:
        k = weight.shape[-1]
        weight = weight.expand(*batch, k).reshape(batch.numel() if 0 in batch else -1, k)
    return slack.widen(problem, _weighted_rows(set, problem.f.device), weight)


def _weighted_rows(set: AffineSet, device: torch.device) -> Tensor:
    """Return the indices of the rows with a weight, ``(k,)``."""
    assert set.softness is not None
    return torch.tensor([i for i, kind in enumerate(set.softness.kinds) if kind == WEIGHTED], device=device)


def flatten(set: AffineSet, f: Tensor, w: Tensor | None, batch: torch.Size, soft: str = "") -> Problem:
    """Flatten the batch axes to one; data that all samples share stay shared. `soft` is that of `Problem`."""
    A, lower, upper, metric = set.A, set.lower, set.upper, set.metric
    return Problem(
        _lines(f, batch, 1),
        None if w is None else _lines(w, batch, 1),
        A if A.ndim == 2 else _lines(A, batch, 2),
        lower if lower.ndim == 1 else _lines(lower, batch, 1),
        upper if upper.ndim == 1 else _lines(upper, batch, 1),
        metric if metric is None or metric.ndim == 2 else _lines(metric, batch, 2),
        set.row_kinds,
        set.labels,
        tuple(batch),
        soft,
    )


def _lines(t: Tensor, batch: torch.Size, core: int) -> Tensor:
    """Flatten the batch axes to one; the last `core` axes belong to a sample."""
    if not batch:
        return t.unsqueeze(0)
    if len(batch) == 1 and t.ndim == 1 + core and t.shape[0] == batch[0]:
        return t
    axes = t.shape[-core:]
    # -1 keeps the batch size open while a graph is traced; it is ambiguous for empty tensors only.
    return t.expand(*batch, *axes).reshape(batch.numel() if 0 in (*axes, *batch) else -1, *axes)
