"""PID control, and the paper's nominal controller of the unicycle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from caffnet.control.fused import fused
from caffnet.control.systems.base import check_states
from caffnet.control.systems.vehicles import wrap_angle
from caffnet.errors import ConstraintError

#: Which commands of (ahead, side, heading) make up the speed and the turn rate.
_INPUTS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)


class PID:
    r"""$K_p e + K_i \int e + K_d \dot e$ per component, for a batch of errors.

    The integral is a sum of rectangles that includes the present error; the derivative is a backward difference, with
    0 as the error before the first. The memory is not differentiated: gradients flow through the present error only.

    Args:
        kp: proportional gains, one per component.
        ki: integral gains.
        kd: derivative gains.
        dt: time between calls.

    >>> pid = PID([2.0], [1.0], [0.5], dt=0.1)
    >>> pid(torch.tensor([1.0]))     # 2 + 0.1 + 0.5 * 10
    tensor([7.1000])
    """

    def __init__(self, kp: Sequence[float], ki: Sequence[float], kd: Sequence[float], dt: float):
        for name, gains in (("kp", kp), ("ki", ki), ("kd", kd)):
            if np.ndim(gains) != 1:
                raise ConstraintError(f"{name} must be a list with one gain per component, got {gains!r}.")
        if not len(kp) == len(ki) == len(kd):
            raise ConstraintError(f"Each component needs three gains, got {len(kp)}, {len(ki)} and {len(kd)} of them.")
        if not 0 < dt < math.inf:
            raise ConstraintError(f"dt must be positive and finite, got {dt!r}.")
        self.gains = torch.tensor([list(kp), list(ki), list(kd)], dtype=torch.float64)
        if not self.gains.isfinite().all():
            raise ConstraintError(f"The gains must be finite numbers, got {self.gains.tolist()}.")
        self.dt = dt
        present, past, change = self.gains
        self._factors = torch.stack([present + change / dt, past, -change / dt])
        self._memory: tuple[Tensor, Tensor] | None = None

    def reset(self) -> None:
        """Forget the integral and the last error: call before every rollout."""
        self._memory = None

    def __call__(self, error: Tensor) -> Tensor:
        """The command ``(..., k)`` for the error ``(..., k)``."""
        check_states("error", error, self.gains.shape[-1])
        now = error.detach()
        total, last = (torch.zeros_like(now),) * 2 if self._memory is None else self._memory
        if last.shape != now.shape:
            raise ConstraintError(
                f"The error has shape {tuple(now.shape)}, the one before {tuple(last.shape)}: "
                "call reset() before another rollout."
            )
        total = total + self.dt * now
        self._memory = (total, now)
        # The factor of the present error, and the terms of the past.
        by_error, by_total, by_last = self._factors.to(error).unbind()
        return torch.addcmul(torch.addcmul(by_total * total, by_last, last), by_error, error)


class UnicyclePID:
    """Drives a unicycle to a place: speed from the error ahead, turn rate from the errors to the side and of heading.

    The gains are the paper's unless given.

    Args:
        goal: ``(p_x, p_y, θ)``.
        dt: time between calls.
        kp: gains on (ahead, side, heading).
        ki: integral gains.
        kd: derivative gains.

    >>> UnicyclePID()(torch.tensor([-1.0, 0.0, 0.0]))     # one metre ahead: 0.01 + 0.05 * 0.1
    tensor([0.0150, 0.0000])
    """

    def __init__(
        self,
        goal: Sequence[float] = (0.0, 0.0, 0.0),
        dt: float = 0.1,
        kp: Sequence[float] = (0.01, 0.2, 0.0),
        ki: Sequence[float] = (0.05, 0.005, 0.0),
        kd: Sequence[float] = (0.0, 0.01, 0.0),
    ):
        self.goal = torch.tensor(list(goal), dtype=torch.float64)
        self.pid = PID(kp, ki, kd, dt)

    def reset(self) -> None:
        """Forget the past: call before every rollout."""
        self.pid.reset()

    def __call__(self, x: Tensor) -> Tensor:
        """The input ``(v, ω)``, ``(..., 2)``, at states ``(..., 3)``; not saturated."""
        check_states("x", x, 3)
        command = self.pid(body_frame_error(x, self.goal.to(x)))
        return command @ _INPUTS.to(command)


def body_frame_error(x: Tensor, goal: Tensor) -> Tensor:
    """``goal - x`` seen from the robot: (ahead, to the left, heading in [-π, π)), ``(..., 3)``."""
    if goal.requires_grad:
        return _turn(x, goal)[0][0]
    return fused(partial(_turn, goal=goal), _turn_back, x)[0]


def _turn(x: Tensor, goal: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    heading, (right, up, angle) = x[..., 2], (goal - x).unbind(-1)
    cos, sin = torch.cos(heading), torch.sin(heading)
    ahead, side = torch.addcmul(cos * right, sin, up), torch.addcmul(cos * up, sin, right, value=-1)
    return (torch.stack([ahead, side, wrap_angle(angle)], -1),), (cos, sin, ahead, side)


def _turn_back(kept: tuple[Tensor, ...], g: Tensor) -> tuple[Tensor]:
    (cos, sin, ahead, side), (by_ahead, by_side, by_angle) = kept, g.unbind(-1)
    right = torch.addcmul(by_side * sin, by_ahead, cos, value=-1)
    up = -torch.addcmul(by_side * cos, by_ahead, sin)
    bent = torch.addcmul(by_ahead * side, by_side, ahead, value=-1) - by_angle
    return (torch.stack([right, up, bent], -1),)
