"""Chains of integrators: a mass moved by its velocity, acceleration, jerk, ..."""

from __future__ import annotations

import torch
from torch import Tensor

from caffnet.control.systems.base import ControlAffine
from caffnet.errors import ConstraintError


class Integrator(ControlAffine):
    """A point in ``axes`` dimensions: state ``(p, dp/dt, ...)``, input the derivative of the given order.

    The products with f, g and ∂f/∂x have formulas: they only shift entries.

    Args:
        axes: number of dimensions.
        order: 1 is moved by its velocity, 2 by its acceleration, 3 by its jerk.

    >>> Integrator(1, order=3).velocity(torch.tensor([5.0, 2.0, 1.0]), torch.tensor([0.5]))
    tensor([2.0000, 1.0000, 0.5000])
    """

    def __init__(self, axes: int = 2, order: int = 2):
        if axes < 1 or order < 1:
            raise ConstraintError(f"An integrator needs axes >= 1 and order >= 1, got {axes!r} and {order!r}.")
        self.axes, self.order = axes, order
        super().__init__(order * axes, axes, self._drift if order > 1 else None, self._actuation)

    def _drift(self, x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x[..., self.axes :], (0, self.axes))

    def _actuation(self, x: Tensor) -> Tensor:
        return torch.eye(self.n_x, dtype=x.dtype, device=x.device)[:, self.n_x - self.axes :]

    def velocity(self, x: Tensor, u: Tensor) -> Tensor:
        """``dx/dt``, ``(..., n_x)``."""
        self._check(x, u)
        u = u.to(x).expand(*x.shape[:-1], self.axes)
        return torch.cat([x[..., self.axes :], u], -1)

    def along_input(self, gradient: Tensor, x: Tensor) -> Tensor:
        """The gradient over the last derivative, ``(..., k, axes)``."""
        return gradient[..., self.n_x - self.axes :]

    def pull_back(self, gradient: Tensor, x: Tensor) -> Tensor:
        """The gradient, moved from each derivative to the next, ``(..., k, n_x)``."""
        return torch.nn.functional.pad(gradient[..., : self.n_x - self.axes], (self.axes, 0))

    def push(self, x: Tensor, w: Tensor) -> Tensor:
        """The drift at w: it is linear."""
        return self._drift(w)

    def bend(self, gradient: Tensor, x: Tensor, w: Tensor) -> Tensor:
        """Zero: the drift is linear."""
        return torch.zeros_like(gradient)


class DoubleIntegrator(Integrator):
    """A mass in ``axes`` dimensions: state ``(p, v)``, input the acceleration.

    >>> DoubleIntegrator(1).velocity(torch.tensor([5.0, 2.0]), torch.tensor([0.5]))
    tensor([2.0000, 0.5000])
    """

    def __init__(self, axes: int = 2):
        super().__init__(axes, order=2)
