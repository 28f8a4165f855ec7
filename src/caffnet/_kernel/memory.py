"""The working memory of the kernel: scratch for each thread, and memory kept for large matrices that are used again.

Results that depend on a matrix alone (scaled rows, their structure, the factors of equalities) are kept between calls,
with a copy of the matrix. The key is the address and the sizes. A wrong hit is harmless: the kernel compares every bit
in every call, and computes again if one differs.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

WORTH = 2**12  # numbers in a matrix: below, reading them again is as fast
_MOST = 2**27  # bytes kept for one thread, the last piece aside
_RECENT = 64  # matrices that one thread remembers to have seen once

_own = threading.local()


def scratch(size: int) -> int:
    """The address of memory that belongs to this thread until it asks again."""
    if getattr(_own, "size", -1) < size:
        _own.scratch, _own.size = torch.empty(size, dtype=torch.uint8), size
        _own.address = _aligned(_own.scratch)
    return _own.address


def comes_again(key: tuple[int, ...]) -> bool:
    """Return True if this thread has seen a matrix before; a matrix that is used only once gets no memory."""
    seen: dict[tuple[int, ...], None] = _own.__dict__.setdefault("seen", {})
    if key in seen:
        return True
    if len(seen) >= _RECENT:
        del seen[next(iter(seen))]
    seen[key] = None
    return False


def kept(key: tuple[int, ...], size: int) -> int:
    """Return the address of memory of this thread for this key; in new memory the first bytes are 0."""
    pieces: dict[tuple[int, ...], Tensor] = _own.__dict__.setdefault("kept", {})
    piece = pieces.pop(key, None)
    if piece is None or piece.numel() < size + 64:
        piece = torch.empty(size + 64, dtype=torch.uint8)
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
