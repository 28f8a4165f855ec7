"""The memory that the kernel works in: scratch for each thread, and pieces kept for large matrices that come again.

What the kernel computes from a matrix alone (scaled rows, their structure, the factors of equalities) stays in a kept
piece from call to call, with a copy of the matrix. Address and sizes are the key. A wrong hit is harmless: the kernel
compares every bit in every call, and computes again if one differs.
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
    """Check whether this thread has seen a matrix before; one that is used only once gets no memory of its own."""
    seen: dict[tuple[int, ...], None] = _own.__dict__.setdefault("seen", {})
    if key in seen:
        return True
    if len(seen) >= _RECENT:
        del seen[next(iter(seen))]
    seen[key] = None
    return False


def kept(key: tuple[int, ...], size: int) -> int:
    """The address of memory of this thread for this key; its first bytes are 0 at first."""
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
