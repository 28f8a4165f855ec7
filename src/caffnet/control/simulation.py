"""Batched, differentiable simulation."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import numbers
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from caffnet._solve.tracing import is_compiling, is_concrete, may_branch, no_autocast
from caffnet.control.systems.base import ControlAffine, check_count, check_states, check_system
from caffnet.errors import ConstraintError, InfeasibleError


def rk4(system: ControlAffine, x: Tensor, u: Tensor, dt: float) -> Tensor:
    """One classical Runge-Kutta step of length `dt`, the input held constant: ``(..., n_x)``.

    >>> from caffnet.control import Unicycle
    >>> rk4(Unicycle(), torch.zeros(3), torch.tensor([1.0, 0.0]), 0.1)
    tensor([0.1000, 0.0000, 0.0000])
    """
    known = system.held(x, u, dt)
    if known is not None:
        return known
    k1 = system.velocity(x, u)
    k2 = system.velocity(x + (dt / 2) * k1, u)
    k3 = system.velocity(x + (dt / 2) * k2, u)
    k4 = system.velocity(x + dt * k3, u)
    return x + (dt / 6) * (k1 + 2 * (k2 + k3) + k4)


def limit_gradient(x: Tensor, limit: float) -> Tensor:
    """Return the same states ``(..., n_x)``; in the backward pass, shorten each gradient to at most `limit`.

    A rollout along constraints can amplify gradients: at a contact the allowed speed is ``b(x)/a(x)``, and a → 0 as the
    motion becomes tangential. Over many steps such factors multiply, until a few trajectories outweigh all others. The
    limit applies at every step and to each trajectory separately: gradients keep their direction, and the other
    trajectories keep their weight. A good limit is the change of the cost when all later states move by one.

    >>> x = torch.tensor([[1.0, 0.0], [300.0, 400.0]], requires_grad=True)
    >>> limit_gradient(x, 5.0).square().sum().backward()
    >>> x.grad.round(decimals=4)
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
    """Shorten gradients ``(..., n_x)`` to length at most `limit`; NaN or infinite gradients become zero."""
    length = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    if may_branch(g) and math.isfinite(float(length.sum())):  # the usual case: no square overflows
        return g * (limit / length.clamp_min(limit))
    largest = g.abs().amax(-1, keepdim=True)
    known = largest.isfinite()
    unit = torch.where(known & (largest > 0), g / largest, 0.0)  # of a length whose square does not overflow
    length = unit.norm(dim=-1, keepdim=True)
    return torch.where(known, torch.where(length * largest > limit, unit * (limit / length), g), 0.0)


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """Record of a rollout.

    Attributes:
        states: ``(..., steps + 1, n_x)``, the start first.
        inputs: ``(..., steps, n_u)``.
        times: ``(steps + 1,)``.
        fine: the states after every substep, ``(..., steps * substeps + 1, n_x)``.
        fine_times: ``(steps * substeps + 1,)``.
    """

    states: Tensor
    inputs: Tensor
    times: Tensor
    fine: Tensor
    fine_times: Tensor


def rollout(
    system: ControlAffine,
    policy: Callable[..., Tensor],
    start: Tensor,
    steps: int,
    dt: float,
    integrate: Callable[[ControlAffine, Tensor, Tensor, float], Tensor] = rk4,
    limit: float | None = None,
    *,
    substeps: int = 1,
    disturbance: Callable[[Tensor, Tensor], Tensor] | None = None,
    start_time: float = 0.0,
    timed: bool = False,
) -> Trajectory:
    """Follow a policy from many states at once; gradients flow through all steps.

    Args:
        system: the dynamics.
        policy: ``x -> u``; an input ``(n_u,)`` holds for all states. A policy with memory may have a ``reset()``, which
            is called first.
        start: initial states, ``(..., n_x)``.
        steps: number of inputs.
        dt: time between inputs.
        integrate: one step of the dynamics.
        limit: largest length of the gradient with respect to each state, see `limit_gradient`; None for no limit.
        substeps: steps of the integrator between two inputs, all with the same input.
        disturbance: a velocity ``(x, t) -> (..., n_x)`` that is added to that of the system, held for one substep.
        start_time: the time of the start.
        timed: the policy takes the time too, ``(x, t) -> u``, as a `SafetyFilter` of a barrier that moves.

    Raises:
        ConstraintError, InfeasibleError: of the policy, with step, time and state; or the state is no longer finite.

    >>> from caffnet.control import Unicycle
    >>> path = rollout(Unicycle(), lambda x: torch.ones(2), torch.zeros(5, 3), steps=10, dt=0.1)
    >>> path.states.shape, path.inputs.shape
    (torch.Size([5, 11, 3]), torch.Size([5, 10, 2]))
    """
    check_system(system, "rollout(system, policy, start, steps, dt)")
    check_steps("A rollout", steps, dt)
    check_states("start", start, system.n_x)
    check_count("substeps", substeps)
    if hasattr(policy, "reset"):
        policy.reset()  # type: ignore[attr-defined]
    count = steps * substeps
    fine_times = start_time + (dt / substeps) * torch.arange(count + 1, dtype=start.dtype, device=start.device)
    moving = system if disturbance is None else _Disturbed(system)
    fine, inputs = [start], []
    for step in range(steps):
        x = fine[-1] if limit is None else limit_gradient(fine[-1], limit)
        t = fine_times[step * substeps]
        try:
            given = policy(x, t) if timed else policy(x)
        except ConstraintError as error:
            raise _located(error, step, float(t), x) from error
        u = _for_every_state("policy", "inputs", given, x, system.n_u)
        inputs.append(u)
        for part in range(substeps):
            if disturbance is not None:
                assert isinstance(moving, _Disturbed)
                wind = disturbance(x, fine_times[step * substeps + part])
                moving.wind = _for_every_state("disturbance", "velocities", wind, x, system.n_x)
            with no_autocast(x.device.type):  # half precision would move the states by a part in a hundred
                x = integrate(moving, x, u, dt / substeps)
            fine.append(x)
        _check_finite(x, fine[-1 - substeps], u, step, float(fine_times[(step + 1) * substeps]))
    whole = torch.stack(fine, -2)
    states = whole if substeps == 1 else whole[..., ::substeps, :]
    return Trajectory(states, torch.stack(inputs, -2), fine_times[::substeps], whole, fine_times)


class _Disturbed(ControlAffine):
    """A system with an additional velocity that is constant during a substep."""

    def __init__(self, system: ControlAffine):
        super().__init__(system.n_x, system.n_u, system.drift, system.actuation)
        self.system, self.wind = system, torch.zeros(())

    def velocity(self, x: Tensor, u: Tensor) -> Tensor:
        """``dx/dt``, with the disturbance."""
        return self.system.velocity(x, u) + self.wind


def _located(error: ConstraintError, step: int, time: float, x: Tensor) -> ConstraintError:
    """Return the error of the policy with its place: the first sample with an infeasible set, else one state."""
    here, where = x, ""
    if isinstance(error, InfeasibleError) and error.samples and len(error.samples[0]) == x.ndim - 1:
        here, where = x[error.samples[0]], f" of sample {error.samples[0]}" if x.ndim > 1 else ""
    else:
        here = x.reshape(-1, x.shape[-1])[0]
    state = [round(v, 6) for v in here.tolist()]
    text = f"At step {step} (t = {time:g}), state{where} {state}: {error}"
    if isinstance(error, InfeasibleError):
        return InfeasibleError(text, error.samples, error.conflicts)
    return ConstraintError(text)


def _check_finite(x: Tensor, before: Tensor, u: Tensor, step: int, time: float) -> None:
    if is_compiling() or not is_concrete(x) or bool((fine := x.isfinite().all(-1)).all()):
        return
    place = tuple((~fine).nonzero()[0].tolist())
    raise ConstraintError(
        f"The state is no longer finite after step {step} (t = {time:g}), sample {place}: it was "
        f"{before[place].tolist()} under the input {u[place].tolist()}. A smaller dt or more substeps may help."
    )


def check_steps(what: str, steps: int, dt: float) -> None:
    """Refuse a number of steps or a time between them that is not valid."""
    whole = isinstance(steps, numbers.Integral) and not isinstance(steps, bool)
    if not whole or steps < 1 or not 0 < dt < math.inf:
        raise ConstraintError(f"{what} needs whole steps >= 1 and a finite dt > 0, got steps={steps!r} and dt={dt!r}.")


def _for_every_state(who: str, what: str, given: Any, x: Tensor, size: int) -> Tensor:
    """Vectors ``(..., size)`` at the states x ``(..., n_x)``; one that all states share is broadcast."""
    shape, said = (*x.shape[:-1], size), type(given).__name__
    with contextlib.suppress(RuntimeError, TypeError, ValueError):
        t = torch.as_tensor(given)
        said = str(tuple(t.shape))
        if t.shape[-1:] == (size,):
            return t.to(x).expand(shape)
    raise ConstraintError(f"The {who} must return {what} of shape {shape} or ({size},), got {said}.")
