"""Soft rows of a set, and the price of their violation."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from caffnet.constraints.shapes import stack_bounds

# Whether a row may give way: never; where the set is empty; there, if the nearest point is asked for; at a price.
HARD, SOFT, SOFT_IF_NEAREST, WEIGHTED = ".", "s", "n", "w"


class Softness(NamedTuple):
    """The soft rows of a set: rows that may give way.

    Attributes:
        kinds: one character per row: ``"."`` hard; ``"s"`` gives way where the set is empty; ``"n"`` does so if
            ``on_infeasible="nearest"``, else it is hard; ``"w"`` gives way at the price of its weight.
        weight: the weights of the rows ``"w"`` in their order, ``(..., k)``; None if there are none.
    """

    kinds: str
    weight: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Softness:
        """Return the same soft rows with a function applied to their weights."""
        return self if self.weight is None else Softness(self.kinds, change(self.weight))


def join_softness(first: Softness, second: Softness) -> Softness:
    """Return the soft rows of an intersection."""
    parts = (first, second)
    weights = [part.weight for part in parts if part.weight is not None]
    weight = stack_bounds(*weights) if len(weights) == 2 else weights[0] if weights else None
    return Softness(parts[0].kinds + parts[1].kinds, weight)
