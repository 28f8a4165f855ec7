"""The paper's search: look at every sub-constraint, keep the feasible candidate nearest to `f`.

`full` looks at the complete set Γ: every choice of linearly independent rows, each at one of its sides. Equalities
are in every γ. (The paper also forms dependent choices. A consistent one repeats the flat of an independent choice; an
inconsistent one gives a least-squares compromise between faces, so neither adds a candidate that the
guarantee needs. `compromise` looks at them.)

`lite` looks at single rows and at minimal faces only. The paper takes ``k in {1, min(m, n)}``, which has no feasible
candidate when ``rank(A) < min(m, n)``; minimal faces have ``rank(A)`` independent rows, so that is used.

The list of sub-constraints depends on the shape of the problem alone; the numbers enter as plain arithmetic.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from caffnet import tolerance
from caffnet.constraints import BOTH, EQUAL, FREE, LOWER, UPPER
from caffnet.errors import BudgetError
from caffnet.rows import Rows, largest, pick_rows
from caffnet.search.contract import Choice, distance
from caffnet.search.faces import Faces, factor, numerical_rank

DEFAULT_BUDGET = 256 * 2**20  # bytes


@dataclasses.dataclass(frozen=True)
class Table:
    """A list of ``K`` sub-constraints in ``k`` slots: first the equalities, then the chosen rows.

    Attributes:
        rows: the row in each slot, ``(K, k)``; 0 in empty slots.
        sides: +1 upper, -1 lower, 0 empty, ``(K, k)``.
        equalities: how many leading slots hold equalities.
        dependent: whether the choices of dependent rows are meant, instead of those of independent ones.
    """

    rows: Tensor
    sides: Tensor
    equalities: int
    dependent: bool = False

    def __len__(self) -> int:
        return self.rows.shape[0]

    @property
    def sizes(self) -> Tensor:
        """How many inequalities each sub-constraint has, ``(K,)``."""
        return (self.sides[:, self.equalities :] != 0).sum(-1)

    def part(self, start: int, stop: int) -> Table:
        """Some of the sub-constraints."""
        return dataclasses.replace(self, rows=self.rows[start:stop], sides=self.sides[start:stop])


# ------------------------------------------------------------------------------------------------- which subsets


@functools.lru_cache(maxsize=256)
def count_subsets(sides: tuple[str, ...], sizes: tuple[int, ...]) -> int:
    """How many sub-constraints of the given sizes there are: never both sides of one row."""
    choices = [{UPPER: 1, LOWER: 1, BOTH: 2}[side] for side in sides if side not in (EQUAL, FREE)]
    # The coefficient of t^k in the product of (1 + choices_i t) counts the subsets of size k.
    top = min(max(sizes, default=0), len(choices))
    coefficients = [1] + [0] * top
    for options in choices:
        for k in range(top, 0, -1):
            coefficients[k] += options * coefficients[k - 1]
    return sum(coefficients[k] for k in set(sizes) if k <= top)


def subset_sizes(sides: tuple[str, ...], top: int, lite: bool) -> tuple[int, ...]:
    """The sizes of sub-constraints to list, when `top` more rows can be independent of the equalities.

    Size 0 is the flat of the equalities alone; without equalities it is no constraint at all and not a candidate.
    """
    rows = sum(side not in (EQUAL, FREE) for side in sides)
    top = min(top, rows)
    smallest = 0 if EQUAL in sides else 1
    return tuple(sorted({0, 1, top} - set(range(smallest))) if lite else range(smallest, top + 1))


def check_list(sides: tuple[str, ...], sizes: tuple[int, ...], budget: int) -> None:
    """Refuse a list that passes the budget.

    Raises:
        BudgetError: it does.
    """
    count = count_subsets(sides, sizes)
    slots = sides.count(EQUAL) + max(sizes, default=0)
    if count * slots * 9 > budget:  # a row number (8 bytes) and a side (1 byte) in each slot
        raise BudgetError(
            f"The search would list {count:.3g} sub-constraints, {count * slots * 9 / 2**20:.3g} MiB for the list "
            f'alone; the budget is {budget / 2**20:.3g} MiB. Use search="active", which needs no list, '
            'or search="auto", or raise budget= (bytes).'
        )


def list_subsets(sides: tuple[str, ...], sizes: tuple[int, ...], budget: int, device: torch.device) -> Table:
    """The table of all sub-constraints of these sizes, smallest first, each size in lexicographic order."""
    rows, signs = _list_subsets(sides, sizes, budget)
    return Table(torch.from_numpy(rows).to(device), torch.from_numpy(signs).to(device), sides.count(EQUAL))


# The list depends on the shape of the problem alone: a constraint that changes with the input has one for all calls.
@functools.lru_cache(maxsize=64)
def _list_subsets(sides: tuple[str, ...], sizes: tuple[int, ...], budget: int) -> tuple[np.ndarray, np.ndarray]:
    check_list(sides, sizes, budget)
    count = count_subsets(sides, sizes)
    equalities = [i for i, side in enumerate(sides) if side == EQUAL]
    slots = len(equalities) + max(sizes, default=0)
    free = np.array([row for row, side in enumerate(sides) if side not in (EQUAL, FREE)], dtype=np.int64)
    two_sided = np.array([side == BOTH for side in sides], dtype=bool)
    first_sign = np.array([1 if side == UPPER else -1 for side in sides], dtype=np.int8)
    rows, signs = np.zeros((count, slots), dtype=np.int64), np.zeros((count, slots), dtype=np.int8)
    rows[:, : len(equalities)] = equalities
    signs[:, : len(equalities)] = 1
    place = 0
    for k in sizes:
        combinations = itertools.combinations(free, k)
        total = math.comb(len(free), k) * k
        chosen = np.fromiter(itertools.chain.from_iterable(combinations), np.int64, total)
        chosen = chosen.reshape(-1, k) if k else np.zeros((1, 0), dtype=np.int64)
        sign = first_sign[chosen]
        for slot in range(k):  # a two-sided row takes part twice: once at each side
            twice = two_sided[chosen[:, slot]]
            copies = np.repeat(np.arange(len(chosen)), 1 + twice)
            second = np.zeros(len(copies), dtype=bool)
            second[1:] = copies[1:] == copies[:-1]
            chosen, sign = chosen[copies], sign[copies]
            sign[second, slot] = 1
        part = slice(place, place + len(chosen))
        rows[part, len(equalities) : len(equalities) + k] = chosen
        signs[part, len(equalities) : len(equalities) + k] = sign
        place = part.stop
    return rows, signs


# ------------------------------------------------------------------------------------------------- prepared lists


@dataclasses.dataclass(frozen=True)
class Enumeration:
    """Everything about an enumeration that does not depend on `f`, `w` or the bounds.

    Attributes:
        table: which sub-constraints.
        faces: their pseudo-inverses if they fit in the budget, else None (they are made chunk by chunk).
        minimal: how many rows (besides equalities) a minimal face has: a number, or ``(B,)``; `lite` only.
        budget: bytes that may be used for working memory.
    """

    table: Table
    faces: Faces | None
    minimal: Tensor | None
    budget: int

    def take(self, samples: Tensor) -> Enumeration:
        """Only these samples."""
        batched = self.faces is not None and self.faces.pinv.ndim == 4
        faces = Faces(*(t[samples] for t in self.faces)) if batched and self.faces is not None else self.faces
        minimal = self.minimal if self.minimal is None or self.minimal.ndim == 0 else self.minimal[samples]
        return dataclasses.replace(self, faces=faces, minimal=minimal)

    def only(self, sample: Tensor) -> Enumeration:
        """One sample, without the batch axis."""
        alone = self.take(sample.reshape(1))
        faces = None if alone.faces is None else Faces(*(t[0] for t in alone.faces))
        minimal = None if alone.minimal is None else alone.minimal.reshape(())
        return dataclasses.replace(alone, faces=faces, minimal=minimal)

    def tensors(self) -> list[Tensor]:
        """All tensors in a row; `from_tensors` is the inverse."""
        lite = [] if self.minimal is None else [self.minimal]
        return [self.table.rows, self.table.sides, *lite, *(self.faces or ())]

    @classmethod
    def from_tensors(cls, tensors: Sequence[Tensor], equalities: int, lite: bool, budget: int) -> Enumeration:
        """From `tensors` and the numbers that are not tensors."""
        rows, sides, *rest = tensors
        minimal = rest.pop(0) if lite else None
        return cls(Table(rows, sides, equalities), Faces(*rest) if rest else None, minimal, budget)


def equality_rank(rows: Rows, sides: Sequence[str]) -> Tensor:
    """The rank of the equality rows, a number or ``(B,)``."""
    chosen = [row for row, side in enumerate(sides) if side == EQUAL]
    return numerical_rank(rows.A[..., chosen, :], rows.dtype)


def independent_rows(rows: Rows, sides: tuple[str, ...], tracing: bool) -> int:
    """The most rows that can be independent of the equalities (and of each other), over the batch."""
    if tracing or EQUAL not in sides:
        return rows.n
    ranks = equality_rank(rows, sides)
    return rows.n - (int(ranks.min()) if ranks.numel() else 0)


def sizes_to_list(
    rows: Rows, sides: tuple[str, ...], lite: bool, tracing: bool = False
) -> tuple[tuple[int, ...], Tensor | None]:
    """The sizes of the sub-constraints that a search looks at; for `lite`, also the size of the minimal faces."""
    minimal = None
    if lite:
        free = torch.tensor([side == FREE for side in sides], dtype=torch.bool, device=rows.A.device)
        whole = numerical_rank(torch.where(free.unsqueeze(-1), 0.0, rows.A), rows.dtype)
        minimal = whole - equality_rank(rows, sides)
        if not tracing and minimal.numel():
            found = {k for r in minimal.unique().tolist() for k in subset_sizes(sides, r, True)}
            return tuple(sorted(found)), minimal
    return subset_sizes(sides, independent_rows(rows, sides, tracing), False), minimal


def prepare(rows: Rows, sides: tuple[str, ...], lite: bool, budget: int, tracing: bool = False) -> Enumeration:
    """List the sub-constraints and, when they fit, factorise them once for all."""
    sizes, minimal = sizes_to_list(rows, sides, lite, tracing)
    table = list_subsets(sides, sizes, budget, rows.A.device)
    fits = tracing or _face_bytes(rows, table) <= budget
    return Enumeration(table, face_list(rows, table) if fits else None, minimal, budget)


def _face_bytes(rows: Rows, table: Table) -> int:
    """What the factorisation of the whole list takes at its peak: what is kept, and two copies on the way."""
    copies = 1 if rows.shared else rows.A.shape[0]
    numbers = rows.n * (rows.n + 2 * table.rows.shape[-1])  # A_γ⁺, A_γ and the projector
    return 3 * copies * len(table) * numbers * rows.A.element_size()


def face_list(rows: Rows, table: Table) -> Faces:
    """The pseudo-inverses of the listed sub-constraints: ``(K, ...)``, or ``(B, K, ...)`` for per-sample rows."""
    chosen = rows.A[..., table.rows.reshape(-1), :].reshape(*rows.A.shape[:-2], *table.rows.shape, rows.n)
    filled = (table.sides != 0).expand(chosen.shape[:-1])
    exponent = rows.exponent[..., table.rows] if table.dependent else None
    return factor(chosen, filled, table.equalities, rows.dtype, exponent)


# ------------------------------------------------------------------------------------------------- choosing


def choose(rows: Rows, plan: Enumeration, f: Tensor, g: Tensor, norm: float) -> Choice:
    r"""Per sample the γ of ``argmin_γ |P_γ - f|_p`` over feasible candidates ``P_γ = A_γ⁺ b_γ + (I - A_γ⁺A_γ) g``."""
    samples, total = f.shape[0], len(plan.table)
    if total == 0 or samples == 0:
        return Choice.nothing(samples, rows.n, f)
    step, chunk = _chunks(rows, plan, samples)
    if step >= samples:
        return choose_at_once(rows, plan, f, g, norm, chunk)
    parts = []
    for start in range(0, samples, step):
        some = torch.arange(start, min(start + step, samples), device=f.device)
        parts.append(choose_at_once(rows.take(some), plan.take(some), f[some], g[some], norm, chunk))
    return Choice(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _chunks(rows: Rows, plan: Enumeration, samples: int) -> tuple[int, int]:
    """How many samples and how many sub-constraints at a time stay within the budget."""
    n, m, k = rows.n, rows.m, plan.table.rows.shape[-1]
    # Candidates, values, both residuals and their masks; and the faces, where they are made on the way.
    per_candidate = (6 * n + 6 * m + 4 * k) * rows.A.element_size()
    if plan.faces is None:
        per_candidate += 6 * n * (n + k) * rows.A.element_size()
    fit = max(plan.budget // max(per_candidate, 1), 1)
    # All distances of a sample are kept (the winner is chosen among all of them at once), so that the answer cannot
    # depend on the chunks.
    step = min(samples, max(min(fit // max(len(plan.table), 1), samples), 1))
    return step, max(fit // step, 1)


def choose_at_once(rows: Rows, plan: Enumeration, f: Tensor, g: Tensor, norm: float, chunk: int) -> Choice:
    """`choose` for one block of samples, `chunk` sub-constraints at a time."""
    table, faces = plan.table, plan.faces
    if chunk >= len(table):
        lengths = _lengths(rows, table, faces or face_list(rows, table), plan.minimal, f, g, norm)
    else:
        # One buffer, not a list of pieces: small pieces between large temporaries would pin the freed memory.
        lengths = f.new_empty(f.shape[0], len(table))
        for start in range(0, len(table), chunk):
            part = table.part(start, start + chunk)
            own = _part(rows, part, faces, start)
            lengths[:, start : start + chunk] = _lengths(rows, part, own, plan.minimal, f, g, norm)
    # The first candidate whose distance is the smallest up to rounding: never an argmin, which is free to choose
    # among equals and answers 0 when every entry is infinite.
    best = lengths.amin(-1)
    limit = best * (1 + tolerance.tie(rows.dtype, rows.n))
    order = torch.arange(len(table), device=f.device)
    winner = torch.where(lengths <= limit.unsqueeze(-1), order, len(table) - 1).amin(-1)
    chosen_rows, chosen_sides = table.rows[winner], table.sides[winner]
    if faces is None:
        exponent = rows.exponent.expand_as(rows.lower).gather(-1, chosen_rows) if table.dependent else None
        own = factor(pick_rows(rows.A, chosen_rows), chosen_sides != 0, table.equalities, rows.dtype, exponent)
        pinv, used = own.pinv, own.used
    elif faces.pinv.ndim == 3:
        pinv, used = faces.pinv[winner], faces.used[winner]
    else:
        each = torch.arange(f.shape[0], device=f.device)
        pinv, used = faces.pinv[each, winner], faces.used[each, winner]
    return Choice(chosen_rows, torch.where(used, chosen_sides, 0), pinv, best < math.inf)


def _part(rows: Rows, part: Table, faces: Faces | None, start: int) -> Faces:
    if faces is None:
        return face_list(rows, part)
    if faces.pinv.ndim == 3:
        return Faces(*(t[start : start + len(part)] for t in faces))
    return Faces(*(t[:, start : start + len(part)] for t in faces))


def _lengths(
    rows: Rows, table: Table, faces: Faces, minimal: Tensor | None, f: Tensor, g: Tensor, norm: float
) -> Tensor:
    """``|P_γ - f|_p`` for every sample and listed γ, infinite where ``P_γ`` is not a candidate; ``(B, K)``."""
    bounds = torch.cat([rows.lower, rows.upper], -1)  # (B, 2m): the side picks the half
    place = table.rows + rows.m * (table.sides >= 0)
    target = bounds[:, place.reshape(-1)].reshape(f.shape[0], *place.shape)  # b_γ, (B, K, k)
    finite = target.abs() < math.inf
    known = (finite | ~faces.used).all(-1)
    target = torch.where(finite, target, 0.0)
    # One letter for the sample where the faces have one: a shared A is never copied for the batch.
    each = "b" if faces.pinv.ndim == 4 else ""
    y = torch.einsum(f"{each}knr,bkr->bkn", faces.pinv, target) + torch.einsum(f"{each}kni,bi->bkn", faces.null, g)
    # Rounding leaves eps |g| of g in the directions that the rows fix; far away that would look like a violation.
    left = torch.einsum(f"{each}krn,bkn->bkr", faces.rows, y) - torch.where(faces.used, target, 0.0)
    y = y - torch.einsum(f"{each}knr,bkr->bkn", faces.pinv, left)
    value = y @ rows.A.mT  # (B, K, m)
    share = tolerance.feasibility(rows.dtype, rows.n)
    above = value - (rows.upper + share * rows.upper.abs()).unsqueeze(1)
    below = (rows.lower - share * rows.lower.abs()).unsqueeze(1) - value
    worst = torch.maximum(above, below).amax(-1)
    allowed = share * (largest(y) + largest(f).unsqueeze(1)).squeeze(-1) + tolerance.underflow(rows.dtype)
    valid = (worst <= allowed) & known & (faces.independent != table.dependent)
    if minimal is not None:
        sizes = table.sizes
        valid = valid & ((sizes <= 1) | (sizes == minimal.unsqueeze(-1)))
    return torch.where(valid, distance(y - f.unsqueeze(1), norm), math.inf)
