"""The memory that the kernel works in: scratch for each thread, and pieces kept for large matrices that come again.

What the kernel computes from a matrix alone (scaled rows, their structure, the factors of equalities) stays in a kept
piece from call to call. A matrix comes again if it is the same tensor, neither changed nor moved: its version says so.
Memory that others write to unseen (numpy's, or another process's) is read anew in every call.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import NamedTuple

import torch
from torch import Tensor

from caffnet._solve import sparse

_WORTH = 2**12  # numbers in a matrix: below, reading them again is as fast
_MOST = 2**27  # bytes kept for one thread, the last piece aside

_own = threading.local()
_numbers = itertools.count(1)


class _Seen(NamedTuple):
    matrix: weakref.ref
    state: tuple[int, int]
    key: int


_seen: dict[int, _Seen] = {}


def scratch(size: int) -> int:
    """The address of memory that belongs to this thread until it asks again."""
    held = getattr(_own, "scratch", None)
    if held is None or held.numel() < size:
        held = _own.scratch = torch.empty(size, dtype=torch.uint8)
    return _aligned(held)


def key_of(A: Tensor) -> int:
    """A number for a matrix that has been here before, as it is now; 0 for others, and for small ones."""
    values = sparse.numbers(A)
    if values.numel() < _WORTH or values.is_inference() or values.is_shared():
        return 0
    if not values.untyped_storage().resizable():  # memory that torch does not own
        return 0
    seen, state = _seen.get(id(A)), (values._version, values.data_ptr())
    if seen is not None and seen.matrix() is A and seen.state == state:
        return seen.key
    _seen[id(A)] = _Seen(weakref.ref(A, _forget), state, next(_numbers))
    return 0


def _forget(matrix: weakref.ref) -> None:
    for place, seen in list(_seen.items()):
        if seen.matrix is matrix:
            del _seen[place]


def kept(key: tuple[int, ...], size: int) -> int:
    """The address of memory of this thread that is used with this key only; its first bytes are 0 at first."""
    pieces: dict[tuple[int, ...], Tensor] = _own.__dict__.setdefault("kept", {})
    piece = pieces.pop(key, None)
    if piece is None:
        piece = torch.empty(size, dtype=torch.uint8)
        piece[:128] = 0
    room = _MOST - piece.numel()
    for other in list(reversed(pieces)):  # the last used first
        room -= pieces[other].numel()
        if room < 0:
            del pieces[other]
    pieces[key] = piece
    return _aligned(piece)


def _aligned(memory: Tensor) -> int:
    return (memory.data_ptr() + 63) & ~63
