"""Vehicles in the plane: `Unicycle`, `Bicycle`; and `wrap_angle` for their headings."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from caffnet.control.fused import fused
from caffnet.control.systems.base import ControlAffine, check_positive

#: Simpson's rule for a step of length 1: times and weights.
_SIMPSON = torch.tensor([[0.0, 0.5, 1.0], [1 / 6, 4 / 6, 1 / 6]], dtype=torch.float64)


class Unicycle(ControlAffine):
    """State ``(p_x, p_y, θ)``, input ``(v, ω)``: ``dp/dt = v (cos θ, sin θ)``, ``dθ/dt = ω``.

    The products with g have formulas, as g is mostly zeros.

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
        return fused(_project, _project_back, gradient, x)[0]

    def held(self, x: Tensor, u: Tensor, dt: float) -> Tensor | None:
        """The classical Runge-Kutta step: Simpson's rule, as the heading grows evenly and no velocity depends on p."""
        if type(self).velocity is not Unicycle.velocity:
            return None
        self._check(x, u)
        rule = (dt * _SIMPSON.to(x)).unbind()
        return fused(partial(_drive, rule=rule), partial(_drive_back, rule=rule), x, u.to(x))[0]


def _project(gradient: Tensor, x: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """``∇h g``, ``(..., k, 2)``."""
    heading, (along, across, turn) = x[..., 2:3], gradient.unbind(-1)
    cos, sin = torch.cos(heading), torch.sin(heading)
    return (torch.stack([torch.addcmul(along * cos, across, sin), turn], -1),), (cos, sin, along, across)


def _project_back(kept: tuple[Tensor, ...], g: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin, along, across = kept
    ahead, turn = g.unbind(-1)
    bent = (ahead * (across * cos - along * sin)).sum(-1, keepdim=True)
    by_x = bent.new_zeros(*bent.shape[:-1], 3)
    by_x[..., 2:] = bent
    return torch.stack([ahead * cos, ahead * sin, turn], -1), by_x


def _drive(x: Tensor, u: Tensor, rule: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The state after a step in which the headings at the times ``rule[0]`` count by the weights ``rule[1]``."""
    times, weights = rule
    speed, turn = u[..., :1], u[..., 1:]
    headings = torch.addcmul(x[..., 2:], turn, times)
    cos, sin = torch.cos(headings), torch.sin(headings)
    way = torch.stack([cos @ weights, sin @ weights], -1)
    return (x + torch.cat([speed * way, turn * times[2]], -1),), (cos, sin, way, speed)


def _drive_back(kept: tuple[Tensor, ...], g: Tensor, rule: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    (cos, sin, way, speed), (times, weights) = kept, rule
    place, turned = g[..., :2], g[..., 2:]
    bent = weights * speed * (place[..., 1:] * cos - place[..., :1] * sin)  # by each of the headings
    by_x = torch.cat([place, turned + bent.sum(-1, keepdim=True)], -1)
    faster = (place * way).sum(-1, keepdim=True)
    return by_x, torch.cat([faster, torch.addcmul((bent @ times).unsqueeze(-1), turned, times[2])], -1)


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
    return angle - 2 * math.pi * torch.floor((angle.detach() + math.pi) / (2 * math.pi))
