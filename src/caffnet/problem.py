"""What goes into a projection and what comes out, one sample per line."""

from __future__ import annotations

import dataclasses
import enum

from torch import Tensor

from caffnet.constraints import Labels, row_names
from caffnet.search.contract import Choice
from caffnet.search.enumeration import DEFAULT_BUDGET


class Status(enum.IntEnum):
    """How a sample was answered."""

    INSIDE = 0  #: `f` satisfied every row and came back bit for bit
    PROJECTED = 1  #: the nearest feasible candidate
    WITHIN_TOL = (
        2  #: satisfied up to rounding only: a row the point was not put on is exceeded, by less than the tolerance
    )
    INFEASIBLE = 3  #: no point satisfies the rows of this sample
    INVALID = 4  #: the data of this sample contain NaN or infinities


@dataclasses.dataclass(frozen=True)
class Options:
    """How to answer; the meaning of each is told in `caffnet.project`."""

    search: str = "auto"
    norm: float = 2
    strict: bool = False
    on_infeasible: str = "raise"
    budget: int = DEFAULT_BUDGET


@dataclasses.dataclass(frozen=True)
class Problem:
    """The data of a batch: f ``(B, n)``, w ``(B, n)`` or None, A ``(m, n)`` or ``(B, m, n)``, bounds ``(B, m)``."""

    f: Tensor
    w: Tensor | None
    A: Tensor
    lower: Tensor
    upper: Tensor
    sides: tuple[str, ...]
    labels: Labels
    batch_shape: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What messages call the rows."""
        return row_names(self.labels, len(self.sides))


@dataclasses.dataclass(frozen=True)
class Solution:
    """One answer per sample.

    Attributes:
        value: the point, ``(B, n)``.
        status: a `Status`, ``(B,)``.
        held: the sub-constraint the point lies on, by the side of every row: -1, 0 or +1; ``(B, m)``, int8.
        choice: the same with its pseudo-inverse, where the search has made one.
    """

    value: Tensor
    status: Tensor
    held: Tensor
    choice: Choice | None
