"""The projection in a metric, by a change of variables.

With ``M = diag(r)²`` the point of the set nearest to f in the norm ``yᵀMy`` is, for ``z = r y``, the nearest in the
plain norm: ``argmin |z - r f|  s.t.  lower <= (A / r) z <= upper``. So for ``½ yᵀQy + pᵀy`` with a diagonal Q the
projection of the unconstrained minimiser ``-p / Q`` in the metric Q is the optimum itself.
"""

from __future__ import annotations

from torch import Tensor

from caffnet import AffineSet, project


def project_in_metric(f: Tensor, set: AffineSet, root: Tensor) -> Tensor:
    """The point of the set nearest to f ``(..., n)`` in the metric ``diag(root)²``, root ``(n,)``: ``(..., n)``.

    >>> import torch
    >>> line = AffineSet.equality([[1.0, 1.0]], [2.0])
    >>> project_in_metric(torch.tensor([[0.0, 0.0]]), line, torch.tensor([1.0, 3.0]))
    tensor([[1.8000, 0.2000]])
    """
    set = set.like(f, "f")
    scaled = AffineSet.from_parts(set.A / root, set.lower, set.upper, set.labels, set.row_kinds)
    return project(root * f, scaled, search="active").value / root
