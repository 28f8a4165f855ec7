"""The choice of the search, before the outputs are known, and its budget."""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any

import torch
from torch import Tensor

from caffnet._solve import sparse
from caffnet._solve.problem import check_options
from caffnet._solve.tracing import constant, remember
from caffnet.constraints import BOTH, EQUAL, FREE, LOWER, UPPER, AffineSet, ArrayLike
from caffnet.errors import BudgetError, ConstraintError

# `auto` looks at every sub-constraint while that is cheaper than a few active-set steps: multiply-adds per sample.
_CHEAP = 200_000


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A set with its search chosen. `project`, `solve_qp`, layers and constraint functions take it like an `AffineSet`.

    Attributes:
        set: the set itself.
        search: the search that will run: ``"full"``, ``"lite"``, ``"active"`` or ``"paper"``.
    """

    set: AffineSet
    search: str

    def __getitem__(self, index: Any) -> Prepared:
        """The prepared sets at these places of the batch."""
        return Prepared(self.set[index], self.search)

    def __bool__(self) -> bool:
        return bool(self.set)

    def __contains__(self, y: object) -> bool:
        return y in self.set

    def __and__(self, other: AffineSet | Prepared) -> AffineSet:
        """The intersection, which is not prepared."""
        return self.set & set_of(other)

    def __rand__(self, other: AffineSet) -> AffineSet:
        return other & self.set

    def contains(self, y: ArrayLike) -> Tensor:
        """As `AffineSet.contains`."""
        return self.set.contains(y)

    def violation(self, y: ArrayLike) -> Tensor:
        """As `AffineSet.violation`."""
        return self.set.violation(y)

    def with_bounds(self, lower: ArrayLike | None = None, upper: ArrayLike | None = None) -> Prepared:
        """The same rows with other bounds ``(..., m)``, as `AffineSet.with_bounds`.

        >>> ready = prepare(AffineSet.inequality(torch.ones(1, 2), [1.0]))
        >>> ready.with_bounds(upper=torch.zeros(5, 1)).set
        AffineSet(1 row in R^2, batch (5,))
        """
        return Prepared(self.set.with_bounds(lower, upper), self.search)

    def with_metric(self, metric: ArrayLike, *, diagonal: bool | None = None) -> Prepared:
        """The same rows in another metric, as `AffineSet.with_metric`."""
        return Prepared(self.set.with_metric(metric, diagonal=diagonal), self.search)

    def __repr__(self) -> str:
        return f"Prepared({self.set}, search={self.search!r})"


def set_of(constraints: AffineSet | Prepared) -> AffineSet:
    """The set itself, prepared or not."""
    return constraints.set if isinstance(constraints, Prepared) else constraints


def prepare(set: AffineSet, search: str = "auto", *, budget: int | None = None) -> Prepared:
    """Choose the search of a set once for many projections.

    Args:
        set: the constraints. A set written in plain lists takes torch's default number type.
        search: as in `project`.
        budget: as in `project`.

    Returns:
        A `Prepared` set. Its `search` says what ``"auto"`` has chosen.

    Raises:
        BudgetError: the sub-constraints of ``"full"``, ``"lite"`` or ``"paper"`` do not fit into the budget.

    >>> prepare(AffineSet.box(0.0, 1.0, dim=3))
    Prepared(AffineSet(3 rows in R^3), search='full')
    """
    if not isinstance(set, AffineSet):
        raise ConstraintError(f"Only an AffineSet can be prepared, got {type(set).__name__}.")
    options = check_options(search=search, budget=budget)
    fixed = set.to(torch.get_default_dtype()) if set.weak else set
    return Prepared(fixed, choose_search(fixed, search, options.budget))


# ------------------------------------------------------------------------------------------------- which search


def choose_search(set: AffineSet, search: str, budget: int) -> str:
    """The search that runs, never ``"auto"``.

    Raises:
        BudgetError: the search named does not fit into the budget.
    """
    if search == "auto" and sparse.is_sparse(set.A):
        return "active"  # the others look at whole rows
    return _choose(set.row_kinds, set.n + set.slacks, search, budget)


@remember
def _choose(row_kinds: str, n: int, search: str, budget: int) -> str:
    """`choose_search` for rows in full."""
    n = operator.index(n)  # in graphs it may be a symbol
    if search == "active" or (search == "auto" and n * (n + len(row_kinds)) > _CHEAP):
        return "active"
    sizes = subset_sizes(row_kinds, n, search == "lite")
    count = count_subsets(row_kinds, sizes)
    if search == "auto":
        return "full" if count * n * (n + len(row_kinds)) <= _CHEAP else "active"
    slots = row_kinds.count(EQUAL) + max(sizes, default=0)
    if count * slots * 9 > budget:  # a row number (8 bytes) and a side (1 byte) in each slot
        raise BudgetError(
            f"search={search!r} would look at {count:.3g} sub-constraints, {count * slots * 9 / 2**20:.3g} MiB as a "
            f'list; the budget is {budget / 2**20:.3g} MiB. Use search="active", which needs no list, '
            "or raise budget= (bytes)."
        )
    return search


@constant
def subset_sizes(row_kinds: str, n: int, lite: bool) -> tuple[int, ...]:
    """The sizes of sub-constraints beside the equalities.

    Size 0 is the flat of the equalities alone; without equalities it is no constraint at all and not a candidate.
    """
    rows = len(row_kinds) - row_kinds.count(EQUAL) - row_kinds.count(FREE)
    top = max(min(n - row_kinds.count(EQUAL), rows), 0)
    smallest = 0 if EQUAL in row_kinds else 1
    return tuple(sorted({0, 1, top} - set(range(smallest))) if lite else range(smallest, top + 1))


@constant
def count_subsets(row_kinds: str, sizes: tuple[int, ...]) -> int:
    """Count the sub-constraints of the given sizes. None of them has both sides of one row."""
    two = row_kinds.count(BOTH)
    one = row_kinds.count(UPPER) + row_kinds.count(LOWER)
    return sum(math.comb(two, k) * 2**k * math.comb(one, size - k) for size in sizes for k in range(min(two, size) + 1))
