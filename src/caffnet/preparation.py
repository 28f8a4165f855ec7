"""What can be done before the outputs are known: choose the search, list the sub-constraints, factorise them.

A set whose `A` all samples share is prepared once for the life of a layer. A set with one `A` per data point can be
prepared once for the data and indexed in every epoch; this is the look-up table of the paper.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import torch
from torch import Tensor

from caffnet import compiled
from caffnet.constraints import BOTH, EQUAL, FREE, LOWER, UPPER, AffineSet, has_numbers
from caffnet.errors import BudgetError, ConstraintError
from caffnet.rows import scale_rows
from caffnet.search import enumeration
from caffnet.search.enumeration import Enumeration

SEARCHES = ("auto", "full", "lite", "active", "paper")

# `auto` enumerates while that is cheaper than a few active-set steps: multiply-adds per sample, measured on a CPU.
# A shared A is factorised once, a per-sample A in every call.
_CHEAP_SHARED, _CHEAP_PER_SAMPLE = 200_000, 20_000


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A set with its search made ready. Use it wherever an `AffineSet` is expected.

    Attributes:
        set: the set itself.
        search: the search that will run: ``"full"``, ``"lite"``, ``"active"`` or ``"paper"``.
        plan: the listed and factorised sub-constraints; None for the active-set search, and for rows that differ
            from sample to sample on the CPU, where the compiled kernel walks through them without a list.
    """

    set: AffineSet
    search: str
    plan: Enumeration | None

    def __getitem__(self, index: Any) -> Prepared:
        """The prepared sets at these places of the batch."""
        some = self.set[index]
        place = torch.arange(self.set.batch_shape.numel(), device=self.set.device)
        place = place.reshape(self.set.batch_shape)[index]
        plan = self.plan
        if plan is not None and self.set.A.ndim > 2:
            plan = plan.only(place) if some.A.ndim == 2 else plan.take(place.reshape(-1))
        return Prepared(some, self.search, plan)

    def expand(self, batch: torch.Size) -> Prepared:
        """One prepared set per sample of the batch; a set that all samples share stays shared."""
        axes = self.set.batch_shape
        if self.plan is None or self.set.A.ndim == 2 or axes == batch:
            return Prepared(self.set.expand(batch), self.search, self.plan)
        place = torch.arange(axes.numel(), device=self.set.device).reshape(axes).expand(batch)
        return Prepared(self.set.expand(batch), self.search, self.plan.take(place.reshape(-1)))

    def with_bounds(self, lower: Tensor | None = None, upper: Tensor | None = None) -> Prepared:
        """The same rows with other bounds ``(..., m)``: what was prepared is used again.

        For bounds that depend on the input while `A` does not: ``x -> ready.with_bounds(upper=b(x))``. A bound that is
        left out stays; an equality takes whichever is given for both. Sides that were infinite when the set was
        prepared must stay so.

        >>> ready = prepare(AffineSet.inequality(torch.ones(1, 2), [1.0]))
        >>> ready.with_bounds(upper=torch.zeros(5, 1)).set
        AffineSet(1 rows in R^2, batch (5,))
        """
        old = self.set
        fresh = AffineSet(old.A, old.lower if lower is None else lower, old.upper if upper is None else upper)
        low, high = fresh.lower, fresh.upper  # checked: shapes and number types
        equal = torch.tensor([side == EQUAL for side in old.sides], dtype=torch.bool, device=old.device)
        if lower is None:
            low = torch.where(equal, high, low)
        elif upper is None:
            high = torch.where(equal, low, high)
        _check_sides(low, high, old)
        return Prepared(AffineSet.from_parts(old.A, low, high, old.labels, old.sides), self.search, self.plan)

    def __repr__(self) -> str:
        count = "" if self.plan is None else f", {len(self.plan.table)} sub-constraints"
        return f"Prepared({self.set}, search={self.search!r}{count})"


def _check_sides(lower: Tensor, upper: Tensor, old: AffineSet) -> None:
    """Refuse bounds on sides that were not prepared: no sub-constraint in the list is at them."""
    if torch.compiler.is_compiling() or not (has_numbers(lower) and has_numbers(upper)) or old.m == 0:
        return
    for row, side in enumerate(old.sides):
        if side == BOTH:
            continue
        low, high = lower[..., row], upper[..., row]
        if side == EQUAL:
            wrong = "two different bounds" if (low != high).any() else ""
        else:
            wrong = "a lower bound" if side in (UPPER, FREE) and (low > -math.inf).any() else ""
            wrong = "an upper bound" if side in (LOWER, FREE) and (high < math.inf).any() else wrong
        if wrong:
            raise ConstraintError(
                f"{old.names[row]} was prepared as {side!r} and got {wrong}: prepare a set that has both sides."
            )


def prepare(set: AffineSet, search: str = "auto", *, budget: int | None = None) -> Prepared:
    """Make a set ready for many projections.

    Args:
        set: the constraints; with batch axes on `A`, one problem per index is prepared. A set written in plain lists
            takes torch's default number type.
        search: as in `project`.
        budget: bytes of memory that the search may use; 256 MiB if None.

    Returns:
        A `Prepared` set. Its `search` says what ``"auto"`` has chosen.

    Raises:
        BudgetError: if the sub-constraints (of every search but ``"active"``) cannot be listed within the budget.

    >>> prepare(AffineSet.box(0.0, 1.0, dim=3))
    Prepared(AffineSet(3 rows in R^3), search='full', 26 sub-constraints)
    """
    if not isinstance(set, AffineSet):
        raise ConstraintError(f"Only an AffineSet can be prepared, got {type(set).__name__}.")
    fixed = set.to(torch.get_default_dtype()) if set.weak else set
    return prepare_search(fixed, search, enumeration.DEFAULT_BUDGET if budget is None else budget, tracing=False)


def prepare_search(set: AffineSet, search: str, budget: int, tracing: bool) -> Prepared:
    """`prepare`, also while a graph is traced and no number can be looked at."""
    if search not in SEARCHES:
        raise ConstraintError(f"search must be one of {', '.join(SEARCHES)}, got {search!r}.")
    if search == "active":
        return Prepared(set, "active", None)
    if search == "paper":  # dependent choices are listed when an answer of `full` is there to be improved
        return dataclasses.replace(prepare_search(set, "full", budget, tracing), search="paper")
    # The kernel walks through the sub-constraints of a set that changes from sample to sample: it needs no list.
    walks = set.A.ndim > 2 and set.device.type == "cpu" and compiled.ENABLED and not tracing
    if walks and EQUAL not in set.sides and (search != "lite" or _fits(set.sides, set.n, budget)):
        return Prepared(set, _without_list(set.sides, set.n, search, budget), None)
    with torch.no_grad():
        rows = scale_rows(*flat_data(set))
        if search == "auto":
            top = enumeration.independent_rows(rows, set.sides, tracing)
            search = "full" if tracing else _cheapest(set.sides, set.n, top, set.A.ndim == 2)
        if search == "active":
            return Prepared(set, "active", None)
        if walks:
            enumeration.check_list(set.sides, enumeration.sizes_to_list(rows, set.sides, search == "lite")[0], budget)
            return Prepared(set, search, None)
        return Prepared(set, search, enumeration.prepare(rows, set.sides, search == "lite", budget, tracing))


@functools.lru_cache(maxsize=256)
def _without_list(sides: tuple[str, ...], n: int, search: str, budget: int) -> str:
    """The search for rows that differ from sample to sample, none of them equalities."""
    chosen = _cheapest(sides, n, n, shared=False) if search == "auto" else search
    if chosen == "full":
        enumeration.check_list(sides, enumeration.subset_sizes(sides, n, lite=False), budget)
    return chosen


@functools.lru_cache(maxsize=256)
def _fits(sides: tuple[str, ...], n: int, budget: int) -> bool:
    """Whether even the list of all sub-constraints fits: then the ranks that decide the list of lite do not matter."""
    try:
        enumeration.check_list(sides, enumeration.subset_sizes(sides, n, lite=False), budget)
    except BudgetError:
        return False
    return True


def _cheapest(sides: tuple[str, ...], n: int, top: int, shared: bool) -> str:
    count = enumeration.count_subsets(sides, enumeration.subset_sizes(sides, top, lite=False))
    limit = _CHEAP_SHARED if shared else _CHEAP_PER_SAMPLE
    return "full" if count * n * (n + len(sides)) <= limit else "active"


def flat_data(set: AffineSet) -> tuple[Tensor, Tensor, Tensor]:
    """``A`` as ``(m, n)`` or ``(B, m, n)`` and the bounds as they are, for work that does not need the bounds."""
    A = set.A.detach()
    if A.ndim > 2:
        batch = set.batch_shape.numel() if 0 in (set.m, set.n) else -1
        A = A.expand(*set.batch_shape, set.m, set.n).reshape(batch, set.m, set.n)
    bound = A.new_zeros(A.shape[:-1])
    return A, bound, bound
