"""The input of a projection and its answer, one sample per line."""

from __future__ import annotations

import dataclasses
import enum
import math
import sys
from typing import NamedTuple

import numpy as np
from torch import Tensor

from caffnet._solve.tracing import remember
from caffnet.constraints import Labels, row_names
from caffnet.errors import ConstraintError

SEARCHES = ("auto", "full", "lite", "active", "paper")
ON_INFEASIBLE = ("raise", "nearest", "nan")
GRADIENTS = ("exact", "tangent")
DEFAULT_BUDGET = 256 * 2**20  # bytes


class Status(enum.IntEnum):
    """Outcome of a sample.

    INSIDE: `f` satisfied every row and is returned bit for bit.
    PROJECTED: the nearest feasible candidate.
    WITHIN_TOL: every row is satisfied up to rounding. Either the point was not proven to be the nearest, or a row that
        it was not put on is exceeded by less than the tolerance, as where rows exclude each other by rounding.
    INFEASIBLE: no point satisfies the rows of this sample, or its hard rows; proven in exact arithmetic.
    INVALID: this sample has NaN or infinite data.
    RELAXED: soft rows gave way. The hard rows hold as in a PROJECTED sample.
    UNBOUNDED: the objective of a quadratic program falls without end along a direction of the set.
    """

    INSIDE = 0
    PROJECTED = 1
    WITHIN_TOL = 2
    INFEASIBLE = 3
    INVALID = 4
    RELAXED = 5
    UNBOUNDED = 6


def has_answer(status: Tensor) -> Tensor:
    """Mask of the samples with an answer, from their `Status`."""
    return (status != int(Status.INFEASIBLE)) & (status != int(Status.INVALID)) & (status != int(Status.UNBOUNDED))


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a projection; `caffnet.project` documents each."""

    search: str = "auto"
    norm: float = 2.0
    strict: bool = False
    on_infeasible: str = "raise"
    gradient: str = "exact"
    budget: int = DEFAULT_BUDGET

    def searching(self, search: str) -> Options:
        """The same options with a definite search."""
        if search == self.search:
            return self
        return Options(search, self.norm, self.strict, self.on_infeasible, self.gradient, self.budget)


@remember
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
        if not isinstance(value, str) or value not in known:
            raise ConstraintError(f"{name} must be one of {', '.join(known)}, got {value!r}.")
    if search == "paper" and gradient != "exact":
        raise ConstraintError('search="paper" has the exact gradient, as the paper: use search="full" for the tangent.')
    if isinstance(norm, bool) or not isinstance(norm, int | float) or not norm >= 1:
        raise ConstraintError(f"norm must be a p in [1, inf], got {norm!r}.")
    if norm > sys.float_info.max:  # integers have no largest one
        norm = math.inf
    if not isinstance(strict, bool | np.bool_):
        raise ConstraintError(f"strict must be True or False, got {strict!r}.")
    budget = DEFAULT_BUDGET if budget is None else budget
    if isinstance(budget, bool) or not isinstance(budget, int) or budget <= 0:
        raise ConstraintError(f"budget must be a positive number of bytes, got {budget!r}.")
    return Options(search, float(norm), bool(strict), on_infeasible, gradient, budget)


CORES = (1, 1, 2, 1, 1, 2)  # the axes of one sample in f, w, A, lower, upper and the metric


class Problem(NamedTuple):
    """The data of a batch of B samples, checked and flattened.

    Attributes:
        f: ``(B, n)``.
        w: ``(B, n)`` or None.
        A: ``(B, m, n)``, or ``(m, n)`` for all samples.
        lower: ``(B, m)``, or ``(m,)`` for all samples.
        upper: likewise.
        metric: ``(B, n, n)``, or ``(n, n)`` for all samples; ``(B, 1, n)`` or ``(1, n)`` if it is diagonal; or None.
        row_kinds: one character per row, as in `AffineSet.row_kinds`.
        labels: the names of the rows, as in `AffineSet.labels`.
        batch_shape: the batch axes of the user, of B samples.
        soft: one character per row, ``s`` for rows that give way where the set is empty; empty if none does.
    """

    f: Tensor
    w: Tensor | None
    A: Tensor
    lower: Tensor
    upper: Tensor
    metric: Tensor | None
    row_kinds: str
    labels: Labels
    batch_shape: tuple[int, ...]
    soft: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rows in messages."""
        return row_names(self.labels, len(self.row_kinds))

    @property
    def tensors(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor, Tensor | None]:
        """The data that an answer can be differentiated by."""
        return self[:6]

    def detach(self) -> Problem:
        """The same problem without gradients."""
        return self.replace_tensors(*(None if t is None else t.detach() for t in self.tensors))  # pyright: ignore

    def at(self, places: Tensor | slice) -> Problem:
        """The samples at these places; what all samples share stays shared."""
        pairs = zip(self.tensors, CORES, strict=True)
        return self.replace_tensors(*(t if t is None or t.ndim == core else t[places] for t, core in pairs))  # pyright: ignore

    def replace_tensors(
        self, f: Tensor, w: Tensor | None, A: Tensor, lower: Tensor, upper: Tensor, metric: Tensor | None
    ) -> Problem:
        """The same problem with other data."""
        return Problem(f, w, A, lower, upper, metric, *self[6:])


def is_diagonal(metric: Tensor) -> bool:
    """Check whether a metric of a `Problem` has one number per output, ``(..., 1, n)``."""
    return metric.shape[-2] == 1


class Answer(NamedTuple):
    """One answer per sample.

    Attributes:
        value: the point, ``(B, n)``.
        status: a `Status`, ``(B,)``, int8.
        active: the sub-constraint the point was put on, by the side of every row: -1, 0 or +1; ``(B, m)``, int8.
        choice: ``search="paper"``: the rows of a compromise in slots, ``(B, n)``, int32. 0 is an empty slot, else
            ``1 + 2 row + (1 for the upper bound)``. None for the other searches.
    """

    value: Tensor
    status: Tensor
    active: Tensor
    choice: Tensor | None = None
