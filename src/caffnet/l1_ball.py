"""The nearest point in an l1 ball.

The ball ``|y - c|_1 <= r`` has 2^n rows, one for every choice of signs. But the nearest point to f lies in the orthant
of ``f - c``: up to these signs it is the projection of ``|f - c|`` on ``{z >= 0, sum z <= r}``, one row beside bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from caffnet.constraints import AffineSet
from caffnet.constraints.reading import read_array
from caffnet.errors import ConstraintError
from caffnet.projection import project


def project_l1(
    f: Tensor, radius: Tensor | float, center: Tensor | Sequence[float] | float = 0.0, **options: Any
) -> Tensor:
    r"""$\arg\min_y \|y - f\|_2$ subject to $\|y - c\|_1 \le r$, differentiable in f, r and c.

    Args:
        f: points, ``(..., n)``.
        radius: r, a number or ``(...)``, not negative.
        center: c, a number or ``(..., n)``.
        **options: ``strict``, ``gradient`` and ``on_infeasible``, as in `project`.

    Returns:
        The nearest points, ``(..., n)``.

    >>> project_l1(torch.tensor([3.0, -2.0, 2.0]), 4.0)
    tensor([ 2., -1.,  1.])
    """
    if not isinstance(f, Tensor) or f.ndim == 0:
        raise ConstraintError(f"f must be a tensor (..., n), got {f!r}.")
    if not isinstance(center, Tensor | int | float):
        center = read_array(center, "center").to(f.device, f.dtype)
    if isinstance(center, Tensor) and center.ndim and center.shape[-1] not in (1, f.shape[-1]):
        raise ConstraintError(f"center must be a number or have shape (..., {f.shape[-1]}), got {tuple(center.shape)}.")
    away = f - center
    sign = torch.where(away.detach() < 0, -1.0, 1.0).to(f.dtype)
    limit = torch.as_tensor(radius, dtype=f.dtype, device=f.device).unsqueeze(-1)
    n = f.shape[-1]
    corner = AffineSet.inequality(f.new_ones(1, n), limit, names=["radius"]) & AffineSet.box(f.new_zeros(n), None)
    return center + sign * project(sign * away, corner, **options).value
