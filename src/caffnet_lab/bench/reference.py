"""The exact answer and its gradient, found and proved without the layer.

DAQP proposes the active rows; the projection on their flat is then computed with a pseudo-inverse and *checked* against
the optimality conditions of ``min |y - f|²  s.t.  G y <= h, C y = d``, which are sufficient: the problem is convex. A
sample that does not pass is left out of every comparison, and counted.
"""

from __future__ import annotations

import dataclasses

import daqp
import numpy as np
import torch
from torch import Tensor

from caffnet_lab.bench.tasks import Task

# Relative to the size of the data: two orders of magnitude below the finest claim (1e-10 on opt).
PROOF = 1e-12
_KINK = 1e-7  # rows and multipliers nearer to zero than this may be active or not: the gradient may jump there
_INFINITE, _EQUALITY = 1e30, 5


@dataclasses.dataclass(frozen=True)
class Reference:
    """The right answers.

    Attributes:
        y: the projections, ``(B, n)``.
        gradient: of ``v · y`` with respect to f, ``(B, n)``.
        proved: where y passed the optimality conditions, ``(B,)``.
        smooth: where the map is differentiable with room to spare, ``(B,)``.
    """

    y: Tensor
    gradient: Tensor
    proved: Tensor
    smooth: Tensor


def solve(task: Task) -> Reference:
    """The exact answers of a task."""
    s = task.standard()
    G, h, C, d = (t.numpy() for t in (s.G, s.h, s.C, s.d))
    f, v = task.f.numpy(), task.v.numpy()
    y, gradient = np.empty_like(f), np.empty_like(f)
    proved, smooth = np.zeros(task.batch, bool), np.zeros(task.batch, bool)
    for i in range(task.batch):
        rows = (G, C) if task.shared else (G[i], C[i])
        y[i], gradient[i], proved[i], smooth[i] = _sample(f[i], v[i], rows[0], h[i], rows[1], d[i])
    return Reference(*(torch.from_numpy(t) for t in (y, gradient, proved, smooth)))


def _sample(
    f: np.ndarray, v: np.ndarray, G: np.ndarray, h: np.ndarray, C: np.ndarray, d: np.ndarray
) -> tuple[np.ndarray, np.ndarray, bool, bool]:
    n, m, e = len(f), len(h), len(d)
    rows, upper = np.concatenate([G, C]), np.concatenate([h, d])
    lower = np.concatenate([np.full(m, -_INFINITE), d])
    sense = np.array([0] * m + [_EQUALITY] * e, dtype=np.int32)
    shift = rows @ f
    low = np.where(lower <= -_INFINITE, -_INFINITE, lower - shift)
    _, _, _, info = daqp.solve(
        np.eye(n), np.zeros(n), np.ascontiguousarray(rows), upper - shift, low, sense, primal_tol=1e-13, dual_tol=1e-13
    )
    multiplier = np.asarray(info["lam"])
    active = np.flatnonzero((multiplier > 0) | (sense == _EQUALITY))
    flat, bound = rows[active], upper[active]
    inverse = np.linalg.pinv(flat) if len(active) else np.zeros((n, 0))
    y = inverse @ bound + f - inverse @ (flat @ f)
    y = y - inverse @ (flat @ y - bound)
    # The conditions: y is feasible; f - y is a combination of active rows, those of inequalities with weights >= 0.
    size = 1 + np.abs(f).max() + np.abs(upper).max()
    force = inverse.T @ (f - y)
    slack = upper - rows @ y
    unequal = active < m
    proved = (
        (slack[:m] >= -PROOF * size).all()
        and (np.abs(slack[m:]) <= PROOF * size).all()
        and (force[unequal] >= -PROOF * size).all()
        and np.abs(flat.T @ force - (f - y)).max(initial=0.0) <= PROOF * size
    )
    # Differentiable: every row that touches y lies in the span of rows that push with a clear weight.
    clear = active[~unequal | (force > _KINK * size)]
    touching = np.flatnonzero(slack <= _KINK * size)
    onto = np.linalg.pinv(rows[clear]) @ rows[clear] if len(clear) else np.zeros((n, n))
    rest = rows[touching] - rows[touching] @ onto
    smooth = proved and np.abs(rest).max(initial=0.0) <= _KINK * (1 + np.abs(rows).max())
    return y, v - onto @ v, bool(proved), bool(smooth)
