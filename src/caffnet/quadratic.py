"""Quadratic and linear programs as a layer: ``argmin y'Qy/2 + q'y`` over a set, differentiable in all its data."""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from caffnet._solve import proximal, sparse, stationary
from caffnet._solve.infeasible import report, sample_index
from caffnet._solve.prepare import Prepared, set_of
from caffnet._solve.problem import Options, Problem, Status, check_options
from caffnet._solve.tracing import in_forward_mode, may_branch
from caffnet.constraints import EQUAL, UPPER, AffineSet, ArrayLike
from caffnet.constraints.reading import read_array, read_bound, read_rows
from caffnet.errors import ConstraintError, DtypeError, UnboundedError
from caffnet.optimality import Residuals, residuals
from caffnet.projection import Projection, flatten, shaped, start_lines, validate

#: Largest number of entries of rows that are written in full: 256 MB, and as much again as working memory.
LARGEST = 2**25


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Solution(Projection):
    """The minimum of a quadratic program with diagnostics: a `Projection` with more attributes.

    Attributes:
        multipliers: the price λ of every row, ``(..., m)``: the amount by which the minimum falls per unit that a bound
            moves outward. ``Qy + q + Aᵀλ = 0``, λ >= 0 at upper bounds, <= 0 at lower ones, of any sign at equalities,
            0 at rows that are not active; NaN where there is no minimum. Differentiable.
        Q: ``(..., n, n)``, or ``(..., 1, n)`` if diagonal; None for zero.
        q: ``(..., n)``.
        status: INSIDE and PROJECTED are proven minima; WITHIN_TOL is a point of the set for which no proof was found.
        ray: for UNBOUNDED samples a direction in which the objective falls without end, ``(..., n)``, with largest
            entry 1; else zero.
    """

    multipliers: Tensor = dataclasses.field(repr=False)  # pyright: ignore[reportIncompatibleVariableOverride]
    Q: Tensor | None = dataclasses.field(repr=False)
    q: Tensor = dataclasses.field(repr=False)
    ray: Tensor = dataclasses.field(repr=False)

    @property
    def objective(self) -> Tensor:
        """``y'Qy/2 + q'y``, ``(...)``; NaN where there is no minimum."""
        # NaN is added at the end: in the terms, it would reach the gradients of data that samples share.
        known = self.value.isfinite().all(-1, keepdim=True)
        y, q = (torch.where(known, t, 0.0) for t in (self.value, self.q))
        found = (q * y).sum(-1)
        if self.Q is not None:
            Q = self.Q if self.Q.ndim == 2 else torch.where(known.unsqueeze(-1), self.Q, 0.0)
            found = found + (stationary.apply(Q, y) * y).sum(-1) / 2
        return torch.where(known.squeeze(-1), found, torch.nan)

    def residuals(self) -> Residuals:
        """Measure from the data how well the conditions of the minimum hold."""
        Q = None if self.Q is None else self.Q.detach()
        return residuals(self.value.detach(), self.multipliers.detach(), self.set, Q, self.q.detach())


def solve_qp(
    Q: ArrayLike | None,
    q: ArrayLike | None,
    set: AffineSet | Prepared | None = None,
    *,
    G: ArrayLike | None = None,
    h: ArrayLike | None = None,
    A: ArrayLike | None = None,
    b: ArrayLike | None = None,
    lb: ArrayLike | None = None,
    ub: ArrayLike | None = None,
    on_infeasible: str = "raise",
    start: Tensor | None = None,
) -> Solution:
    r"""Minimise a quadratic or linear function on a set, exactly and differentiably in all its data.

    $$\arg\min_y\; \tfrac12 y^T Q y + q^T y \quad\text{subject to}\quad y \in S .$$

    With a positive definite Q this is a projection in the metric Q, solved by the same kernel. With a singular or zero
    Q, a sequence of such projections ends at the minimum itself, with a proof: multipliers whose residual is rounding.
    If there are many minima, one of them is returned, and directions along them get no gradient.

    Args:
        Q: positive semidefinite, ``(..., n, n)``, only its symmetric part counts; or a diagonal, ``(n,)`` or
            ``(..., 1, n)``; None or 0 for a linear program.
        q: ``(..., n)``, float32 or float64; a list takes torch's default type. None for zero.
        set: the constraints; or write them as in other solvers, with the next six arguments.
        G: rows of inequalities ``G y <= h``, ``(..., p, n)``.
        h: ``(..., p)``.
        A: rows of equalities ``A y = b``, ``(..., e, n)``.
        b: ``(..., e)``.
        lb: lower bounds of y, ``(..., n)`` or a number.
        ub: upper bounds of y.
        on_infeasible: ``"raise"``, or mark samples without a minimum in `status`: ``"nan"``, or ``"nearest"`` for the
            point of least violation. UNBOUNDED samples are NaN either way.
        start: rows to begin with, ``(..., m)``, for example `active` of an earlier solution.

    Returns:
        A `Solution`. Rows are in the order of `set`, or of G, A and the bounds.

    Raises:
        ConstraintError: shapes or number types do not fit, the data are not finite, or Q has a negative eigenvalue.
        InfeasibleError: no point satisfies the rows of some sample.
        UnboundedError: the objective of some sample falls without end.

    >>> s = AffineSet.inequality([[1.0, 1.0]], [1.0]) & AffineSet.box(0.0, None, dim=2)
    >>> best = solve_qp(torch.eye(2), torch.tensor([-2.0, -2.5]), s)
    >>> best.value, best.multipliers
    (tensor([0.2500, 0.7500]), tensor([1.7500, 0.0000, 0.0000]))
    >>> solve_qp(None, torch.tensor([-1.0, -2.0]), s).objective
    tensor(-2.)
    """
    options = check_options("active", 2, False, on_infeasible)
    for name, given in (("Q", Q), ("q", q)):
        if isinstance(given, AffineSet | Prepared):
            raise ConstraintError(
                f"{name} must be an array of numbers or None, got {type(given).__name__}: the order is "
                "solve_qp(Q, q, set)."
            )
    if q is None:
        if Q is None or (isinstance(Q, int | float) and Q == 0):
            raise ConstraintError("solve_qp needs an objective: Q, q or both. For any point of the set, write project.")
        Q = _read(Q, "Q")
        if Q.dtype not in (torch.float32, torch.float64):
            raise DtypeError(f"Q is {Q.dtype}; without a q it must be in float32 or float64.")
        q = torch.zeros(Q.shape[-1:], dtype=Q.dtype, device=Q.device)  # dense, even if Q is sparse
    q = _read(q, "q")
    if q.shape[-1:] == (0,):
        raise ConstraintError(f"q must have an entry for each output, got the shape {tuple(q.shape)}.")
    rows = _rows(q, set, {"G": G, "h": h, "A": A, "b": b, "lb": lb, "ub": ub})
    constraints, batch = validate(q, _with_objective(rows, Q, q), None, options, "q")
    problem = flatten(constraints, q, None, batch)
    if not may_branch(*problem.tensors) or in_forward_mode():
        raise ConstraintError(
            "solve_qp has no forward mode and cannot be mapped or traced: give q, Q and the set batch axes instead of "
            "vmap, and call it outside of compiled functions."
        )
    if start is not None:
        start = start_lines(start, batch, constraints.m)
    with torch.no_grad():
        found = proximal.minimise(problem.detach(), on_infeasible == "nearest", start)
        answer = found.answer
        if on_infeasible == "raise" and (answer.status > Status.WITHIN_TOL).any():
            _complain(problem.detach(), found, options)
        known = torch.where(found.multipliers.isfinite(), found.multipliers, 0.0)
    lost = (answer.status > Status.WITHIN_TOL).unsqueeze(-1)
    value, multipliers = stationary.attach(problem, answer, known, singular=not found.definite)
    multipliers = torch.where(lost, torch.nan, multipliers) if on_infeasible != "raise" else multipliers
    value, status, active, multipliers, ray = (
        shaped(t, batch) for t in (value, answer.status, answer.active, multipliers, found.ray)
    )
    plain = AffineSet.from_parts(
        constraints.A, constraints.lower, constraints.upper, constraints.labels, constraints.row_kinds
    )
    return Solution(
        value, status, active, "active", plain, None, multipliers=multipliers, Q=constraints.metric, q=q, ray=ray
    )


# ------------------------------------------------------------------------------------------------- what is given


def _read(given: ArrayLike, name: str) -> Tensor:
    """Return a part of the objective; lists and scalars take torch's default type."""
    if isinstance(given, Tensor):
        return given
    found = read_array(given, name)
    return found.to(torch.get_default_dtype()) if isinstance(given, int | float | list | tuple) else found


def _rows(q: Tensor, set: AffineSet | Prepared | None, parts: dict[str, ArrayLike | None]) -> AffineSet:
    """Return the constraints, from a set or from G, h, A, b, lb and ub."""
    given = [name for name, part in parts.items() if part is not None]
    if set is not None:
        if given:
            raise ConstraintError(f"Give a set, or {' and '.join(given)}: not both. Sets are joined by `&`.")
        whole = set_of(set)
        if not isinstance(whole, AffineSet):
            return whole  # `validate` raises the error
        if whole.metric is not None:
            raise ConstraintError("The set has a metric, but solve_qp measures by Q: give it the set without one.")
        if whole.softness is not None:
            raise ConstraintError(
                "The set has soft rows, which solve_qp does not take: give each a slack of its own, one more output "
                "with its price in Q or q."
            )
        return _in_full(whole)
    found = []
    for left, right, kind in (("G", "h", UPPER), ("A", "b", EQUAL)):
        rows, bounds = parts[left], parts[right]
        if (rows is None) != (bounds is None):
            lone, other = (left, right) if bounds is None else (right, left)
            raise ConstraintError(f"{lone} is given without {other}: rows and their right sides belong together.")
        if rows is not None and bounds is not None:
            matrix, upper, weak = read_rows(rows, bounds, left, right)
            lower = upper if kind == EQUAL else read_bound(None, matrix, "lower")
            found.append(AffineSet.from_parts(matrix, lower, upper, None, kind * matrix.shape[-2], weak=weak))
    if parts["lb"] is not None or parts["ub"] is not None:
        found.append(AffineSet.box(parts["lb"], parts["ub"], dim=q.shape[-1] if q.ndim else None))
    if not found:
        raise ConstraintError("solve_qp needs constraints: a set, or G and h, A and b, lb or ub.")
    return _in_full(functools.reduce(lambda a, b: a & b, found))


def _in_full(set: AffineSet) -> AffineSet:
    """Return the set with its rows in full, as the kernel needs them here; refuse a set that is too large."""
    if not sparse.is_sparse(set.A):
        return set
    if set.m * set.n > LARGEST:
        raise ConstraintError(
            f"The rows are sparse, and solve_qp needs all {set.m} x {set.n} numbers of them, which is more than "
            f"{LARGEST}: leave out bounds that are infinite, or divide the problem."
        )
    return set.to_dense()


def _with_objective(rows: AffineSet, Q: ArrayLike | None, q: Tensor) -> AffineSet:
    """Return the set with Q as its metric, or None if Q is None or the number 0."""
    if not isinstance(rows, AffineSet):
        return rows  # `validate` raises the error
    if Q is None or (isinstance(Q, int | float) and Q == 0):
        return rows
    matrix = Q if isinstance(Q, Tensor) else read_array(Q, "Q").to(q.device, q.dtype)
    if matrix.dtype != q.dtype or matrix.device != q.device:
        raise ConstraintError(f"Q is {matrix.dtype} on {matrix.device}, q is {q.dtype} on {q.device}: convert one.")
    matrix = matrix if matrix.layout == torch.strided else matrix.to_dense()
    matrix = matrix.unsqueeze(-2) if matrix.ndim == 1 else matrix
    n = rows.n
    if matrix.ndim < 2 or matrix.shape[-1] != n or matrix.shape[-2] not in (1, n):
        raise ConstraintError(
            f"Q must have shape (..., {n}, {n}), or (..., 1, {n}) or ({n},) for a diagonal, got {tuple(matrix.shape)}."
        )
    here = rows.like(q, "q")
    return AffineSet.from_parts(here.A, here.lower, here.upper, here.labels, here.row_kinds, matrix)


# ------------------------------------------------------------------------------------------------- no minimum


def _complain(problem: Problem, found: proximal.Minimum, options: Options) -> None:
    """Raise an error for samples without a minimum."""
    answer, Q = found.answer, problem.metric
    if (answer.status == Status.INVALID).any():
        for name, data in (("q", problem.f), ("Q", Q)):
            if data is not None and not data.isfinite().all():
                place = (~data.isfinite()).nonzero()[0].tolist()
                raise ConstraintError(f"{name} must be finite, got {data[tuple(place)].item()} at {name}{place}.")
        wrong = ~proximal.convex(problem)
        if Q is not None and wrong.any():
            sample = int(wrong.nonzero()[0])
            least = torch.linalg.eigvalsh(stationary.full(Q, problem.f))
            least = float(least[0] if least.ndim == 1 else least[sample, 0])
            raise ConstraintError(
                f"Q must be positive semidefinite; its smallest eigenvalue at sample "
                f"{sample_index(sample, problem.batch_shape) or '()'} is {least:.4g}, so the problem is not convex."
            )
    endless = (answer.status == Status.UNBOUNDED).nonzero().squeeze(-1)
    if len(endless):
        samples = [sample_index(i, problem.batch_shape) for i in endless.tolist()]
        raise UnboundedError(
            f"The objective of {len(samples)} of {len(answer.status)} samples falls without end, first in sample "
            f"{samples[0] or '()'}: along the direction {_short(found.ray[endless[0]])} no row stops it and Q does not "
            'curve. Bound the outputs, or pass on_infeasible="nan" to mark such samples UNBOUNDED and continue.',
            samples,
            found.ray[endless],
        )
    # From the origin, where `proximal` asked for a point: q may be so large that rounding hides the conflict.
    report(problem._replace(f=torch.zeros_like(problem.f), metric=None), answer, options)


def _short(direction: Tensor) -> str:
    entries = [f"{x:.3g}" for x in direction[:6].tolist()]
    return f"({', '.join(entries)}{', ...' if len(direction) > 6 else ''})"
