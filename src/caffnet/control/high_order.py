r"""Barriers of higher relative degree, with formulas for their gradients.

If ``L_g h = 0`` everywhere (a position limit on a mass that is moved by forces), the rows of h do not depend on the
input. But ``dh/dt = L_f h``, and keeping

    ψ(x) = L_f h(x) + α(h(x)) >= 0        keeps  h >= 0,

as ψ >= 0 is ``dh/dt >= -α(h)``. The input acts on ψ, or on the next ψ made from it. By the product rule

    ∇ψ = ∇²h f + ∇h ∂f/∂x + α'(h) ∇h,

three terms that the barrier (`evaluate_along`), the system (`pull_back`) and α (`slope`) compute: no automatic
differentiation for the shapes and systems of this package. The next order needs ``∇²ψ w`` (w the drift), by the product
rule again:

    ∇²ψ w = ∇³h f w + ∇²h (∂f/∂x w) + (∇²h w) ∂f/∂x + ∇h ∂²f/∂x² w + α''(h) (∇h w) ∇h + α'(h) ∇²h w.

From the fourth order on, automatic differentiation is used.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from caffnet.control.barriers.base import Barrier, as_barrier
from caffnet.control.class_k import ClassK, as_class_k
from caffnet.control.degree import check_not_reached
from caffnet.control.systems.base import ControlAffine, InTime, check_system
from caffnet.errors import ConstraintError


class HighOrder(Barrier):
    """A barrier that the input reaches only through the drift, raised by one order: ``L_f h + α(h)``.

    Use it in place of h, not beside it: the row of h is ``0 u <= ψ``, which every input satisfies or none. Start where
    h and ψ are both >= 0. If the input reaches h directly, ψ >= 0 does not bound ``dh/dt``: such an h is refused.

    Args:
        barrier: functions with ``L_g h = 0``. Stack other functions: ``Stack(HighOrder(position, system), speed)``.
        system: a system with drift.
        class_k: the α; `linear(1.0)` if None.
        samples: states ``(s, n_x)`` at which the relative degree is checked; random ones if None, an empty tensor for
            no check. With a moving barrier the states have the time as last entry.

    >>> from caffnet.control import DoubleIntegrator, InsideBox
    >>> wall = HighOrder(InsideBox([-torch.inf, -torch.inf], [1.0, torch.inf]), DoubleIntegrator(1))
    >>> wall(torch.tensor([0.0, 2.0]))     # 1 m to the wall at 2 m/s
    tensor([-1.])
    """

    def __init__(
        self, barrier: Barrier, system: ControlAffine, class_k: ClassK | None = None, samples: Tensor | None = None
    ):
        check_system(system, "HighOrder(barrier, system)")
        if system.drift is None:
            raise ConstraintError(f"{type(system).__name__} has no drift, so no order can be raised along it.")
        self.barrier = as_barrier(barrier)
        self.system = InTime(system) if barrier.moving else system
        self.class_k, self.names, self.moving = as_class_k(class_k), barrier.names, barrier.moving
        check_not_reached(self.barrier, self.system, samples)

    def __repr__(self) -> str:
        return f"HighOrder({self.barrier}, {self.system})"

    def __call__(self, x: Tensor) -> Tensor:
        """``L_f h + α(h)``, ``(..., k)``."""
        value, gradient = self.barrier.evaluate(x)
        drifting = self.system.along_drift(gradient, x)
        assert drifting is not None
        return drifting + self.class_k(value)

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``ψ`` and ``∇ψ``."""
        f = self.system.drift_at(x)
        value, gradient, change = self.barrier.evaluate_along(x, f)
        psi = (gradient @ f.unsqueeze(-1)).squeeze(-1) + self.class_k(value)
        slope = self.class_k.slope(value).unsqueeze(-1)
        return psi, torch.addcmul(change + self.system.pull_back(gradient, x), slope, gradient)

    def evaluate_along(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``ψ``, ``∇ψ`` and ``∇²ψ v``."""
        f = self.system.drift_at(x)
        value, gradient, by_f = self.barrier.evaluate_along(x, f)
        _, _, by_v = self.barrier.evaluate_along(x, v)
        _, _, by_push = self.barrier.evaluate_along(x, self.system.push(x, v))
        slope, curve = self.class_k.slope(value).unsqueeze(-1), self.class_k.curve(value).unsqueeze(-1)
        psi = (gradient @ f.unsqueeze(-1)).squeeze(-1) + self.class_k(value)
        first = torch.addcmul(by_f + self.system.pull_back(gradient, x), slope, gradient)
        change = self.barrier.third(x, f, v) + by_push + self.system.pull_back(by_v, x)
        change = change + self.system.bend(gradient, x, v) + curve * (gradient @ v.unsqueeze(-1)) * gradient
        return psi, first, torch.addcmul(change, slope, by_v)

    def lowered(self, margin: float) -> Barrier:
        """Return the barrier that keeps ``h >= margin``: the margin applies to the innermost h, not to ψ."""
        raised = copy.copy(self)  # checked already
        raised.barrier = self.barrier.lowered(margin)
        return raised
