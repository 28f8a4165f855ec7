"""Common base of the methods: construction, call, training, and their properties.

A method is a module that turns a backbone's raw output ``f`` into an output ``y`` that should lie in the set ``S(x)``:

    method = METHODS["hardnet"](backbone, constraint, **hyperparameters)
    y = method(x)

    output = method.run(x)                              # the same y, with f and the set
    method.loss(objective(output.y), output).backward() # the task's loss and the terms of the method

so one training loop serves all of them (`caffnet.methods.training.fit`).
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, TypeVar, cast

import torch
from torch import Tensor, nn

from caffnet import tolerance
from caffnet.constraints import EQUAL, AffineSet, in_place_of
from caffnet.errors import ConstraintError
from caffnet.methods.penalty import Penalty

Enforce = TypeVar("Enforce", bound=Callable[..., Tensor])


class Guarantee(enum.StrEnum):
    """Properties of a method, in the words of the survey of hard-constrained learning."""

    EXACT = "exact_by_construction"
    SOLVER = "solver_tolerance_exactness"
    CERTIFIED = "certified_or_verified_feasibility"
    ASYMPTOTIC = "convergence_or_asymptotic"
    PROBABILISTIC = "probabilistic"
    EMPIRICAL = "empirical"
    NONE = "none"


@dataclasses.dataclass(frozen=True)
class Supports:
    """The constraints for which the guarantee of a method holds.

    Attributes:
        fixed: one set for all inputs.
        input_dependent_b: the bounds may change with the input.
        input_dependent_A: the rows may change with the input.
        equality: rows with ``lower == upper``.
        inequality: rows with room between the bounds.
        more_rows: more rows than outputs, m > n.
        dependent_rows: linearly dependent rows.
        empty_interior: inequalities that leave no interior point.
        inhomogeneous: bounds other than zero.
    """

    fixed: bool = True
    input_dependent_b: bool = True
    input_dependent_A: bool = True
    equality: bool = True
    inequality: bool = True
    more_rows: bool = True
    dependent_rows: bool = True
    empty_interior: bool = True
    inhomogeneous: bool = True


@dataclasses.dataclass(frozen=True)
class Output:
    """Result of a method for a batch: its output y and the raw output f, both ``(..., n)``, and the set."""

    y: Tensor
    raw: Tensor
    set: AffineSet


class UnsupportedError(ConstraintError):
    """The method cannot enforce this constraint."""


class Method(nn.Module, abc.ABC):
    """The common base of methods that put the output of `backbone` into a set.

    Args:
        backbone: any module ``x -> f``, ``(..., n)``.
        constraint: an `AffineSet`, or any function ``x -> AffineSet``.
        penalty: the soft term of the loss, None for none.

    A fixed set is kept in buffers; one written in plain lists takes torch's default number type.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    guarantee: ClassVar[Guarantee]
    closed_form: ClassVar[bool]
    differentiable: ClassVar[bool] = True
    supports: ClassVar[Supports] = Supports()
    instead: ClassVar[str] = "caffnet-ff"  #: the method that a refusal points to

    A: Tensor
    lower: Tensor
    upper: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        constraint: AffineSet | Callable[[Any], AffineSet],
        *,
        penalty: Penalty | None = None,
    ):
        super().__init__()
        self.backbone = backbone
        self.penalty = penalty
        self.constraint: Callable[[Any], AffineSet] | None = None
        self._keep(constraint)

    def _keep(self, constraint: AffineSet | Callable[[Any], AffineSet]) -> None:
        """Keep a fixed set in buffers, or a function as it is; refuse anything else."""
        if isinstance(constraint, AffineSet):
            fixed = in_full(constraint.to(torch.get_default_dtype()) if constraint.weak else constraint)
            if any(t.isnan().any() for t in (fixed.A, fixed.lower, fixed.upper)):
                raise ConstraintError("A fixed set must be made of numbers, got NaN in A, lower or upper.")
            self._check_structure(fixed)
            self._rows = (fixed.row_kinds, fixed.labels)
            for name in ("A", "lower", "upper"):
                self.register_buffer(name, getattr(fixed, name).detach().clone())
        elif callable(constraint):
            if not (self.supports.input_dependent_A or self.supports.input_dependent_b):
                self.refuse("got a function x -> AffineSet", "one AffineSet for all inputs")
            self.constraint = constraint
        else:
            raise ConstraintError(
                f"The constraint must be an AffineSet or a function x -> AffineSet, got {type(constraint).__name__}. "
                f"{in_place_of(constraint)}"
            )

    # ------------------------------------------------------------------------------------------------ calling

    def forward(self, x: Any, nominal: Tensor | None = None) -> Tensor:
        """The output ``(..., n)``. `nominal` is added to the raw output: the network then learns a correction."""
        return self.run(x, nominal).y

    def run(self, x: Any, nominal: Tensor | None = None) -> Output:
        """As `forward`, with the raw output and the set."""
        f = self.raw(x, nominal)
        set = self.set_at(x)
        self._check_outputs(f, set)
        set = set.like(f, "the raw output")
        return Output(self.enforce(f, set), f, set)

    def _check_outputs(self, f: Tensor, set: AffineSet) -> None:
        if f.shape[-1] != set.n:
            raise ConstraintError(f"The backbone must return (..., {set.n}) to match {set}, got {tuple(f.shape)}.")

    def raw(self, x: Any, nominal: Tensor | None = None) -> Tensor:
        """Return the output of the backbone, plus `nominal` if one is given."""
        return self.backbone(x) if nominal is None else self.backbone(x) + nominal

    @abc.abstractmethod
    def enforce(self, f: Tensor, set: AffineSet) -> Tensor:
        """Map the raw output f ``(..., n)`` to y ``(..., n)``."""

    def set_at(self, x: Any = None) -> AffineSet:
        """The constraints that hold for the input `x`."""
        if self.constraint is None:
            sides, labels = self._rows
            return AffineSet.from_parts(self.A, self.lower, self.upper, labels, sides)
        set = self.constraint(x)
        if not isinstance(set, AffineSet):
            raise ConstraintError(
                f"The constraint function must return an AffineSet, got {type(set).__name__}. {in_place_of(set)}"
            )
        self._check_structure(set)
        return in_full(set)

    # ------------------------------------------------------------------------------------------------ training

    def loss(self, objective: Tensor, output: Output) -> Tensor:
        """Return the training loss: the objective of the task, a scalar, plus the terms of the method."""
        return objective if self.penalty is None else objective + self.penalty(output.set, output.y)

    def start_epoch(self, epoch: int) -> None:
        """Called by the training loop before epoch 0, 1, 2, ...: methods with a schedule follow it here."""

    # ------------------------------------------------------------------------------------------------ refusing

    def refuse(self, came: str, expected: str, instead: str | None = None) -> NoReturn:
        """Raise an `UnsupportedError` that says what was given, what was expected and what to use instead."""
        instead = instead or f"METHODS[{self.instead!r}]"
        raise UnsupportedError(f"{self.title} cannot enforce this: {came}; it needs {expected}. Use {instead} instead.")

    def _check_structure(self, set: AffineSet) -> None:
        """Checks that need no numbers: types, shapes, kinds of rows."""
        equal = [name for name, side in zip(set.names, set.row_kinds, strict=True) if side == EQUAL]
        other = [name for name, side in zip(set.names, set.row_kinds, strict=True) if side != EQUAL]
        if equal and not self.supports.equality:
            self.refuse(f"{equal[0]!r} is an equality", "inequalities only")
        if other and not self.supports.inequality:
            self.refuse(f"{other[0]!r} is an inequality", "equalities only")
        if not self.supports.input_dependent_b and set.batch_shape:
            self.refuse(f"{set} differs between samples", "one AffineSet for all inputs")

    def check_rank(self, rows: Tensor) -> None:
        """Refuse rows ``(..., m, n)`` that are not linearly independent."""
        m, n = rows.shape[-2:]
        if m > n:
            self.refuse(f"{m} rows for {n} outputs", "at most as many rows as outputs")
        if bool((row_rank(rows) < m).any()):
            self.refuse("the rows of A are linearly dependent", "rows of full rank")

    def shared_A(self, set: AffineSet) -> Tensor:
        """Return the rows ``(m, n)`` that all samples share; refuse rows that differ between samples."""
        A = set.A
        if A.ndim == 2:
            return A
        first = A.reshape(-1, set.m, set.n)[0]
        if not bool((first == A).all()):
            self.refuse("the rows of A differ between samples", "one A for all inputs (the bounds may differ)")
        return first

    def extra_repr(self) -> str:
        """Shown by ``print(method)``."""
        return "input-dependent" if self.constraint is not None else f"{self.A.shape[-2]} rows in R^{self.A.shape[-1]}"


def numbers_only(enforce: Enforce) -> Enforce:
    """Let a method see only the samples that are made of numbers; the others are NaN.

    Factorisations, step lengths and gradients of shared rows would carry one NaN to all samples of the batch.
    """

    @functools.wraps(enforce)
    def known_only(self: Any, f: Tensor, set: AffineSet) -> Tensor:
        known = f.isfinite().all(-1) & set.A.isfinite().all(-1).all(-1)
        known = known & ~(set.lower.isnan() | set.upper.isnan()).any(-1)
        if bool(known.all()):
            return enforce(self, f, set)
        f = f.expand(*known.shape, set.n)
        y = torch.where(known.unsqueeze(-1), f, torch.nan)
        if bool(known.any()):
            A, lower, upper = (
                t if t.ndim == core else t.expand(*known.shape, *t.shape[-core:])[known]
                for t, core in ((set.A, 2), (set.lower, 1), (set.upper, 1))
            )
            some = AffineSet.from_parts(A, lower, upper, set.labels, set.row_kinds)
            y[known] = enforce(self, f[known], some)
        return y

    return cast(Enforce, known_only)


def unit_rows(rows: Tensor) -> Tensor:
    """Scale rows to length one (zero rows stay), so that the rank does not depend on the units of the user."""
    rows = times_power(rows, unit_exponent(rows).unsqueeze(-1))  # squares of 1e-30 underflow, of 1e30 overflow
    length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / torch.where(length > 0, length, 1.0)


def unit_exponent(rows: Tensor) -> Tensor:
    """The power of two, ``(..., m)``, that brings the largest entry of each row into [1/2, 1); 0 for a zero row."""
    if not rows.shape[-1]:
        return rows.new_zeros(rows.shape[:-1])
    size = rows.detach().abs().amax(-1)
    return -torch.frexp(torch.where(size.isfinite(), size, 0.0)).exponent.to(rows.dtype)


def times_power(t: Tensor, exponent: Tensor) -> Tensor:
    """``t * 2 ** exponent``, without rounding: in two steps, because ``2 ** 1030`` alone overflows."""
    half = (exponent / 2).floor()
    return t * half.exp2() * (exponent - half).exp2()


def row_rank(rows: Tensor) -> Tensor:
    """Return the rank ``(...)`` of rows ``(..., m, n)``, for rows of length one, in the precision of the data."""
    if not rows.shape[-2] or not rows.shape[-1]:
        return torch.zeros(rows.shape[:-2], dtype=torch.long, device=rows.device)
    rtol = tolerance.rank(rows.dtype, rows.shape[-1])
    return torch.linalg.matrix_rank(unit_rows(rows.detach()), rtol=rtol)


def matvec(matrix: Tensor, vector: Tensor) -> Tensor:
    """``matrix @ vector`` for every sample: ``(..., m, n)`` and ``(..., n)`` to ``(..., m)``."""
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def signed_violation(set: AffineSet, y: Tensor) -> Tensor:
    r"""The excess of each row: $ReLU(A y - upper) - ReLU(lower - A y)$, ``(..., m)``."""
    value = matvec(set.A, y)
    return torch.relu(value - set.upper) - torch.relu(set.lower - value)


def in_full(set: AffineSet) -> AffineSet:
    """Return the set with all numbers of its rows stored: the formulas of the methods need them."""
    return set.to_dense() if set.A.layout != torch.strided else set
