"""Properties of rows other than their numbers: the sides that can bind, and their names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Sized
from typing import TypeAlias

import torch
from torch import Tensor

from caffnet._solve.tracing import is_compiling, is_concrete, remember
from caffnet.errors import ConstraintError

Labels: TypeAlias = tuple[str | None, ...] | None

# The kind of a row: which of its sides can bind. Known from the constructor, not from the numbers, so that it is still
# known while a graph is traced. One character each: the kinds of a set are a string.
EQUAL, UPPER, LOWER, BOTH, FREE = "=", "<", ">", "B", "-"

_KIND_OF = bytes.maketrans(bytes(range(5)), "".join((FREE, UPPER, LOWER, BOTH, EQUAL)).encode())


def inspect_kinds(lower: Tensor, upper: Tensor) -> str:
    """Return the kinds of the rows, from their bounds: a side counts if it can bind in at least one sample.

    While a graph is traced the numbers are not known, and every side counts.
    """
    m = lower.shape[-1]
    if is_compiling() or not all(is_concrete(t) for t in (lower, upper)):
        return BOTH * m
    with torch.no_grad():
        lower, upper = (torch.atleast_2d(t) for t in torch.broadcast_tensors(lower, upper))
        axes = tuple(range(lower.ndim - 1))
        below = ~(lower == -math.inf).all(axes)
        above = ~(upper == math.inf).all(axes)
        # Two equal infinite bounds are not an equality but a row that can never hold; it stays two-sided.
        equal = ((lower == upper) & lower.isfinite()).all(axes)
        code = torch.where(equal, 4, below.byte() * 2 + above.byte()).to(torch.uint8)
    return bytes(code.cpu().numpy()).translate(_KIND_OF).decode()


@remember
def is_kind(row_kinds: str, kinds: str, device: torch.device) -> Tensor:
    """Return a mask ``(m,)`` of the rows of these kinds."""
    return torch.tensor([kind in kinds for kind in row_kinds], dtype=torch.bool, device=device)


def join_kinds(kinds: Sequence[str]) -> str:
    """Return the kind of a row whose kind in each sample is one of these."""
    if set(kinds) == {EQUAL}:
        return EQUAL
    below, above = (any(kind in sides + BOTH + EQUAL for kind in kinds) for sides in (LOWER, UPPER))
    return (FREE, UPPER, LOWER, BOTH)[2 * below + above]


def check_kinds(lower: Tensor, upper: Tensor, kinds: str, labels: Labels) -> None:
    """Refuse bounds on sides that rows of these kinds do not have."""
    if is_compiling() or not (is_concrete(lower) and is_concrete(upper)) or not kinds:
        return
    device = lower.device
    with torch.no_grad():
        wrong = (is_kind(kinds, UPPER + FREE, device) & (lower > -math.inf)).long()
        wrong = wrong + 2 * (is_kind(kinds, LOWER + FREE, device) & (upper < math.inf)).long()
        wrong = wrong + 4 * (is_kind(kinds, EQUAL, device) & (lower != upper)).long()
        if not wrong.any():
            return
        place = wrong.reshape(-1, len(kinds)).amax(0)
    row = int(place.nonzero()[0])
    what = {1: "a lower bound", 2: "an upper bound", 3: "both bounds", 4: "two different bounds"}[int(place[row])]
    name = row_names(labels, len(kinds))[row]
    raise ConstraintError(f"{name} has the kind {kinds[row]!r} and got {what}: build the set with both sides.")


def read_labels(names: Sequence[str | None] | None, m: int) -> Labels:
    """Names of the m rows as users give them, checked."""
    sized = isinstance(names, Sized) and getattr(names, "ndim", 1) > 0  # arrays without axes have no length
    if names is not None and (isinstance(names, str) or not sized or len(names) != m):
        given = f"the text {names!r}" if isinstance(names, str) else type(names).__name__
        given = f"{len(names)} names" if sized and not isinstance(names, str) else given
        hint = ""
        if isinstance(names, str):
            hint = f": write [{names!r}]" if m == 1 else f': write [f"{names} {{i}}" for i in range({m})]'
        elif isinstance(names, Iterator):
            hint = ": write list(names)"
        elif not sized:
            hint = ": for rows with two sides write AffineSet(A, lower, upper)"
        raise ConstraintError(f"names must be a list with one name for each of the {m} rows, got {given}{hint}.")
    if names is None:
        return None
    for name in names:
        if not (name is None or isinstance(name, str)):
            raise ConstraintError(
                f"names must be texts, got {type(name).__name__} {name!r}: for rows with two sides write "
                "AffineSet(A, lower, upper)."
            )
    return tuple(None if name is None else str(name) for name in names)  # as numpy has texts of its own


#: The same for names that come again and again.
read_labels_again = remember(read_labels)


def row_names(labels: Labels, m: int) -> tuple[str, ...]:
    """Return the names of the m rows in messages: their labels, or ``row i``."""
    return tuple(f"row {i}" if label is None else label for i, label in enumerate(labels or (None,) * m))
