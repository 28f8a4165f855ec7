"""Convex hulls of points in the plane: obstacles from their corners."""

from __future__ import annotations

import torch
from torch import Tensor

from caffnet.constraints import ArrayLike
from caffnet.control.barriers.shapes import constant
from caffnet.errors import ConstraintError


def hull_corners(points: ArrayLike) -> Tensor:
    """The corners of the convex hull of points ``(v, 2)`` in the plane, counter-clockwise, ``(m, 2)``, float64.

    >>> hull_corners([[0, 0], [1, 0], [0, 1], [1, 1], [0.5, 0.5]]).tolist()
    [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
    """
    given = constant("points", points)
    if given.ndim != 2 or given.shape[1] != 2:
        raise ConstraintError(f"points must have shape (v, 2), points in the plane, got {tuple(given.shape)}.")
    ordered = sorted((a, b) for a, b in given.tolist())

    def chain(way: list[tuple[float, float]]) -> list[tuple[float, float]]:
        kept: list[tuple[float, float]] = []
        for p in way:
            while len(kept) > 1 and _turn(kept[-2], kept[-1], p) <= 0:
                kept.pop()
            kept.append(p)
        return kept[:-1]

    corners = chain(ordered) + chain(ordered[::-1])
    if len(corners) < 3:
        raise ConstraintError(
            f"The hull of {len(ordered)} points has no inside: three points not on a line are needed."
        )
    return torch.tensor(corners, dtype=torch.float64)


def hull_rows(points: ArrayLike) -> tuple[Tensor, Tensor]:
    """The convex hull of points in the plane as ``{p : A p <= b}`` with unit outward rows.

    Args:
        points: ``(v, 2)``, in any order; points inside the hull are ignored.

    Returns:
        ``A`` ``(m, 2)`` and ``b`` ``(m,)``, float64, counter-clockwise.

    >>> hull_rows([[0, 0], [1, 0], [0, 1], [1, 1], [0.5, 0.5]])[1]
    tensor([0., 1., 1., 0.], dtype=torch.float64)
    """
    corners = hull_corners(points)
    edge = corners.roll(-1, 0) - corners
    normal = torch.stack([edge[:, 1], -edge[:, 0]], 1) / edge.norm(dim=1, keepdim=True)
    return normal, (normal * corners).sum(1)


def _turn(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    """Positive if the way a -> b -> c turns left."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
