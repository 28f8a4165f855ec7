"""Batched, differentiable simulation."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import numbers
from collections.abc import Callable

import torch
from torch import Tensor

from caffnet.control.systems import ControlAffine, check_states
from caffnet.errors import ConstraintError


def rk4(system: ControlAffine, x: Tensor, u: Tensor, dt: float) -> Tensor:
    """One classical Runge-Kutta step of length `dt`, the input held constant: ``(..., n_x)``.

    >>> from caffnet.control import Unicycle
    >>> rk4(Unicycle(), torch.zeros(3), torch.tensor([1.0, 0.0]), 0.1)
    tensor([0.1000, 0.0000, 0.0000])
    """
    k1 = system.velocity(x, u)
    k2 = system.velocity(x + (dt / 2) * k1, u)
    k3 = system.velocity(x + (dt / 2) * k2, u)
    k4 = system.velocity(x + dt * k3, u)
    return x + (dt / 6) * (k1 + 2 * (k2 + k3) + k4)


def limit_gradient(x: Tensor, limit: float) -> Tensor:
    """The same states ``(..., n_x)``; going back, each one's gradient is shortened to at most `limit`.

    A rollout along constraints amplifies gradients now and then: at a contact the allowed speed is ``b(x)/a(x)``, and
    a → 0 as the motion becomes tangential. Over many steps such factors multiply, until a few trajectories outweigh
    all others. Limited at every step and for each trajectory alone, they keep their direction and the others their
    weight. The cost's own scale tells a limit: how much it changes when all later states move by one.

    >>> x = torch.tensor([[1.0, 0.0], [300.0, 400.0]], requires_grad=True)
    >>> limit_gradient(x, 5.0).square().sum().backward()
    >>> x.grad
    tensor([[2., 0.],
            [3., 4.]])
    """
    if not limit > 0:
        raise ConstraintError(f"limit must be positive, got {limit!r}.")
    if not x.requires_grad:
        return x
    x = x.view_as(x)
    x.register_hook(lambda g: _shortened(g, limit))
    return x


def _shortened(g: Tensor, limit: float) -> Tensor:
    """Gradients ``(..., n_x)`` of length at most `limit`; one that is no number teaches nothing and becomes zero."""
    largest = g.abs().amax(-1, keepdim=True)
    known = largest.isfinite()
    unit = torch.where(known & (largest > 0), g / largest, 0.0)  # of a length whose square does not overflow
    length = unit.norm(dim=-1, keepdim=True)
    return torch.where(known, torch.where(length * largest > limit, unit * (limit / length), g), 0.0)


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """What a rollout saw.

    Attributes:
        states: ``(..., steps + 1, n_x)``, the start first.
        inputs: ``(..., steps, n_u)``.
    """

    states: Tensor
    inputs: Tensor


def rollout(
    system: ControlAffine,
    policy: Callable[[Tensor], Tensor],
    start: Tensor,
    steps: int,
    dt: float,
    integrate: Callable[[ControlAffine, Tensor, Tensor, float], Tensor] = rk4,
    limit: float | None = None,
) -> Trajectory:
    """Follow a policy from many states at once; gradients flow through all steps.

    Args:
        system: the dynamics.
        policy: ``x -> u``; an input ``(n_u,)`` is that of all states. One with memory may have a ``reset()``, which is
            called first.
        start: initial states, ``(..., n_x)``.
        steps: number of inputs.
        dt: time between inputs.
        integrate: one step of the dynamics.
        limit: on the gradient with respect to each state that is passed on, see `limit_gradient`; None for none.

    >>> from caffnet.control import Unicycle
    >>> path = rollout(Unicycle(), lambda x: torch.ones(2), torch.zeros(5, 3), steps=10, dt=0.1)
    >>> path.states.shape, path.inputs.shape
    (torch.Size([5, 11, 3]), torch.Size([5, 10, 2]))
    """
    check_steps("A rollout", steps, dt)
    check_states("start", start, system.n_x)
    if hasattr(policy, "reset"):
        policy.reset()  # type: ignore[attr-defined]
    states, inputs = [start], []
    for _ in range(steps):
        x = states[-1] if limit is None else limit_gradient(states[-1], limit)
        u = _for_every_state(policy(x), x, system.n_u)
        inputs.append(u)
        states.append(integrate(system, x, u, dt))
    return Trajectory(torch.stack(states, -2), torch.stack(inputs, -2))


def check_steps(what: str, steps: int, dt: float) -> None:
    """Refuse what is no number of steps, or no time between them."""
    whole = isinstance(steps, numbers.Integral) and not isinstance(steps, bool)
    if not whole or steps < 1 or not 0 < dt < math.inf:
        raise ConstraintError(f"{what} needs whole steps >= 1 and a finite dt > 0, got steps={steps!r} and dt={dt!r}.")


def _for_every_state(u: Tensor, x: Tensor, n_u: int) -> Tensor:
    """The inputs ``(..., n_u)`` at the states x ``(..., n_x)``; one that all states share is broadcast."""
    shape, u = (*x.shape[:-1], n_u), torch.as_tensor(u)
    if u.shape[-1:] == (n_u,):
        with contextlib.suppress(RuntimeError):
            return u.to(x).expand(shape)
    raise ConstraintError(f"The policy must return inputs of shape {shape} or ({n_u},), got {tuple(u.shape)}.")
