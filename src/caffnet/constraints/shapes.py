"""Batch axes of tensors that go together."""

from __future__ import annotations

import torch
from torch import Tensor

from caffnet._solve.tracing import is_compiling


def joint_shape(*shapes: torch.Size) -> torch.Size:
    """`torch.broadcast_shapes`, which takes longer than a small projection, only where shapes differ."""
    first = next((shape for shape in shapes if shape), torch.Size(()))
    if not is_compiling() and all(shape == first for shape in shapes if shape):
        return first
    return torch.broadcast_shapes(*shapes)


def stack_bounds(a: Tensor, b: Tensor) -> Tensor:
    """The entries of both, ``(..., k)``, batch axes broadcast."""
    batch = joint_shape(a.shape[:-1], b.shape[:-1])
    return torch.cat([a.expand(*batch, a.shape[-1]), b.expand(*batch, b.shape[-1])], -1)
