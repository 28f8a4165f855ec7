"""Broadcasting of batch axes."""

from __future__ import annotations

import torch
from torch import Tensor

from caffnet._solve.tracing import is_compiling
from caffnet.errors import ConstraintError

NO_AXES = torch.Size(())


def joint_shape(*shapes: torch.Size) -> torch.Size:
    """`torch.broadcast_shapes`, which takes longer than a small projection, only where shapes differ."""
    if is_compiling():
        return torch.broadcast_shapes(*shapes)
    first = NO_AXES
    for shape in shapes:
        if shape and shape != first:
            if first:
                return torch.broadcast_shapes(*shapes)
            first = shape
    return first


def joint_axes(first: str, axes: torch.Size, second: str, others: torch.Size) -> torch.Size:
    """Return the joint batch axes of two things, named for the message; refuse those that do not broadcast."""
    try:
        return joint_shape(axes, others)
    except RuntimeError:
        short, long = sorted((tuple(axes), tuple(others)), key=len)
        hint = ""
        if len(short) < len(long) and long[: len(short)] == short:
            missing = len(long) - len(short)
            hint = (
                " Axes are matched from the last one: give the shorter one the axes "
                f"{(*short, *(1,) * missing)}, a bound by {'.'.join(['unsqueeze(-2)'] * missing)}."
            )
        raise ConstraintError(
            f"The batch axes of {first} {tuple(axes)} and of {second} {tuple(others)} do not broadcast.{hint}"
        ) from None


def broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    """Check whether a tensor of this shape can be expanded to another shape."""
    try:
        return joint_shape(shape, to) == to
    except RuntimeError:
        return False


def stack_bounds(a: Tensor, b: Tensor) -> Tensor:
    """Concatenate the entries ``(..., k)`` of both, with broadcast batch axes."""
    if a.ndim == 1 and b.ndim == 1:
        return torch.cat([a, b])
    batch = joint_shape(a.shape[:-1], b.shape[:-1])
    return torch.cat([a.expand(*batch, a.shape[-1]), b.expand(*batch, b.shape[-1])], -1)
