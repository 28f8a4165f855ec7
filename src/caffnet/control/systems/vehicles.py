"""Vehicles in the plane: `Unicycle`, `Bicycle`; and `wrap_angle` for their headings."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from caffnet.control.systems.base import ControlAffine, check_positive


class Unicycle(ControlAffine):
    """State ``(p_x, p_y, θ)``, input ``(v, ω)``: ``dp/dt = v (cos θ, sin θ)``, ``dθ/dt = ω``.

    The products with g are written out: g is mostly zeros.

    >>> Unicycle().velocity(torch.tensor([3.0, 4.0, 0.0]), torch.tensor([0.5, 0.1]))
    tensor([0.5000, 0.0000, 0.1000])
    """

    def __init__(self):
        super().__init__(3, 2, None, self._actuation)

    def _actuation(self, x: Tensor) -> Tensor:
        cos, sin = torch.cos(x[..., 2]), torch.sin(x[..., 2])
        zero, one = torch.zeros_like(cos), torch.ones_like(cos)
        return torch.stack([cos, zero, sin, zero, zero, one], -1).unflatten(-1, (3, 2))

    def velocity(self, x: Tensor, u: Tensor) -> Tensor:
        """``dx/dt``, ``(..., 3)``."""
        self._check(x, u)
        u = u.to(x)
        heading, speed, turn = x[..., 2], u[..., 0], u[..., 1]
        return torch.stack([speed * torch.cos(heading), speed * torch.sin(heading), turn], -1)

    def along_input(self, gradient: Tensor, x: Tensor) -> Tensor:
        """``(∂h/∂p_x cos θ + ∂h/∂p_y sin θ, ∂h/∂θ)``, ``(..., k, 2)``."""
        heading, (along, across, turn) = x[..., 2:3], gradient.unbind(-1)
        return torch.stack([torch.addcmul(along * torch.cos(heading), across, torch.sin(heading)), turn], -1)


class Bicycle(ControlAffine):
    """A car: state ``(p_x, p_y, θ, v, δ)``, input ``(dv/dt, dδ/dt)``.

    ``dp/dt = v (cos θ, sin θ)``, ``dθ/dt = v tan δ / wheelbase``, of the rear axle. With the steering angle δ as a
    state the system is affine in its input, and both inputs reach a position at the second and third derivative.

    >>> Bicycle(2.0).velocity(torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0]), torch.tensor([0.5, 0.1]))
    tensor([1.0000, 0.0000, 0.0000, 0.5000, 0.1000])
    """

    def __init__(self, wheelbase: float = 2.5):
        check_positive(wheelbase=wheelbase)
        self.wheelbase = float(wheelbase)
        super().__init__(5, 2, self._drift, self._actuation, self._jacobian)

    def _drift(self, x: Tensor) -> Tensor:
        _, _, heading, speed, steer = x.unbind(-1)
        zero = torch.zeros_like(speed)
        turn = speed * torch.tan(steer) / self.wheelbase
        return torch.stack([speed * torch.cos(heading), speed * torch.sin(heading), turn, zero, zero], -1)

    def _actuation(self, x: Tensor) -> Tensor:
        return torch.eye(5, dtype=x.dtype, device=x.device)[:, 3:]

    def _jacobian(self, x: Tensor) -> Tensor:
        _, _, heading, speed, steer = x.unbind(-1)
        cos, sin, tan, zero = torch.cos(heading), torch.sin(heading), torch.tan(steer), torch.zeros_like(speed)
        rows = [
            [zero, zero, -speed * sin, cos, zero],
            [zero, zero, speed * cos, sin, zero],
            [zero, zero, zero, tan / self.wheelbase, speed * (1 + tan.square()) / self.wheelbase],
        ]
        moving = torch.stack([entry for row in rows for entry in row], -1).unflatten(-1, (3, 5))
        return torch.nn.functional.pad(moving, (0, 0, 0, 2))

    def along_input(self, gradient: Tensor, x: Tensor) -> Tensor:
        """``(∂h/∂v, ∂h/∂δ)``, ``(..., k, 2)``."""
        return gradient[..., 3:]


def wrap_angle(angle: Tensor) -> Tensor:
    """The same angle in ``[-π, π)``, to rounding at its ends; between them unchanged. The derivative is 1.

    >>> wrap_angle(torch.tensor([3.5, -4.0]))
    tensor([-2.7832,  2.2832])
    """
    return angle - 2 * math.pi * torch.floor((angle + math.pi) / (2 * math.pi))
