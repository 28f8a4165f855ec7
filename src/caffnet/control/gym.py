"""Gymnasium: a control-affine system as an environment, and a filter that makes any agent safe in it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from caffnet._solve.problem import Status, check_options
from caffnet.constraints import AffineSet
from caffnet.control.barriers import Barrier
from caffnet.control.safety import explain, within_limits
from caffnet.control.simulation import check_steps, rk4
from caffnet.control.systems import ControlAffine
from caffnet.errors import ConstraintError, InfeasibleError
from caffnet.layer import OPTIONS
from caffnet.projection import Projection, project

try:
    import gymnasium
except ImportError as missing:
    raise ImportError('caffnet.control.gym needs Gymnasium: pip install "caffnet[control]".') from missing


class ControlEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """A control-affine system: observe the state, act with the input.

    Args:
        system: the dynamics.
        start: draws an initial state ``(n_x,)`` from a numpy generator.
        cost: ``(x, u) -> cost`` of one step; the reward is its negative.
        lower: lower limits of the input, ``(n_u,)`` or one for all.
        upper: upper limits of the input.
        barrier: functions that should stay >= 0; ``info["barrier"]`` holds the smallest.
        done: ``x -> bool``, whether the goal is reached; never if None.
        steps: the episode is cut after so many steps.
        dt: time between inputs.
    """

    def __init__(
        self,
        system: ControlAffine,
        start: Callable[[np.random.Generator], np.ndarray],
        cost: Callable[[np.ndarray, np.ndarray], float],
        lower: np.ndarray | float,
        upper: np.ndarray | float,
        barrier: Barrier | None = None,
        done: Callable[[np.ndarray], bool] | None = None,
        steps: int = 150,
        dt: float = 0.1,
    ):
        self.system, self.start, self.cost, self.barrier, self.done = system, start, cost, barrier, done
        check_steps("An environment", steps, dt)
        self.steps, self.dt = steps, dt
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (system.n_x,), np.float64)
        low, high = (np.broadcast_to(np.asarray(side, np.float64), (system.n_u,)) for side in (lower, upper))
        self.action_space = gymnasium.spaces.Box(low, high, (system.n_u,), np.float64)
        self._x = torch.zeros(system.n_x, dtype=torch.float64)
        self._left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """A new episode; ``options={"start": x}`` sets the initial state."""
        super().reset(seed=seed)
        start = self.start(self.np_random) if options is None or "start" not in options else options["start"]
        self._x = torch.from_numpy(_numbers("start", start, self.system.n_x))
        self._left = self.steps
        return self._x.numpy().copy(), self._info()

    def step(self, action: np.ndarray):
        """Apply the input ``(n_u,)``, saturated to its limits, for one time step."""
        if self._left <= 0:
            raise ConstraintError("The episode is over, or none was started: call reset() first.")
        space = self.action_space
        u = np.clip(_numbers("action", action, self.system.n_u), space.low, space.high)  # type: ignore[attr-defined]
        reward = -float(self.cost(self._x.numpy().copy(), u.copy()))
        self._x = rk4(self.system, self._x, torch.from_numpy(u), self.dt)
        arrived = self.done is not None and bool(self.done(self._x.numpy().copy()))
        cut = self._left == 1
        self._left = 0 if arrived else self._left - 1
        return self._x.numpy().copy(), reward, arrived, cut, self._info()

    def _info(self) -> dict[str, Any]:
        return {} if self.barrier is None else {"barrier": float(self.barrier(self._x).min())}


class SafeActions(gymnasium.Wrapper[np.ndarray, np.ndarray, np.ndarray, np.ndarray]):
    """Replaces every action by the nearest one that satisfies the constraints at the present observation.

    The limits of the action space count as constraints: an action that the environment saturates is no longer the safe
    one. A wrapper that changes actions, such as ``ClipAction``, belongs around this one, not inside.

    Args:
        env: any environment with box observations and actions ``(n,)``.
        constraint: ``state -> AffineSet`` over the actions, such as a `BarrierConstraint`, or one set for all states.
        state: turns an observation into the state; the observation itself if None.
        **options: as in `caffnet.project`.

    ``info["action"]`` holds the action taken, rounded to the number type of the action space, ``info["filtered"]``
    tells whether it differs from the agent's, and ``info["status"]`` is its `Status`. Where no action within the limits
    is safe, an `InfeasibleError` is raised, or with ``on_infeasible="nearest"`` the one of least violation is taken.
    """

    def __init__(
        self,
        env: gymnasium.Env[np.ndarray, np.ndarray],
        constraint: AffineSet | Callable[[Tensor], AffineSet],
        state: Callable[[np.ndarray], np.ndarray] | None = None,
        **options: Any,
    ):
        super().__init__(env)
        space = env.action_space
        real = np.issubdtype(space.dtype, np.floating)
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1 or not real:
            raise ConstraintError(
                f"SafeActions needs actions in a Box of shape (n,) and of floating type, got {space}: "
                "an affine set holds vectors of numbers. Wrap the environment so that it takes them."
            )
        names = [f"action {i}" for i in range(len(space.low))]
        self.limits = AffineSet.box(space.low.astype(np.float64), space.high.astype(np.float64), names=names)
        if unknown := set(options) - OPTIONS:
            raise TypeError(
                f"SafeActions has no option {unknown.pop()!r}; the options are {', '.join(sorted(OPTIONS))}."
            )
        check_options(**options)
        self.constraint, self.state, self.options = constraint, state, options
        self._seen: np.ndarray | None = None  # a copy: the agent may work on the one it is given

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """A new episode."""
        observed, info = self.env.reset(seed=seed, options=options)
        self._seen = copy.deepcopy(observed)
        return observed, info

    def step(self, action: np.ndarray):
        """Filter the action, then step."""
        if self._seen is None:
            raise ConstraintError("No episode was started: call reset() first.")
        observed = self._seen if self.state is None else self.state(self._seen)
        wanted = _numbers("action", action, self.limits.n)
        answer = self._filter(torch.from_numpy(wanted), torch.as_tensor(np.asarray(observed, dtype=np.float64)))
        # Rounding may leave the limits: the environment would saturate them unseen.
        kind = self.env.action_space.dtype
        taken = answer.value.clamp(self.limits.lower, self.limits.upper).numpy().astype(kind)
        status = Status(int(answer.status))
        if not np.isfinite(taken).all():
            raise ConstraintError(f"There is no action to take: {status.name} at the state {observed}.")
        seen, reward, terminated, truncated, info = self.env.step(taken)
        self._seen = copy.deepcopy(seen)
        told = {**info, "action": taken, "filtered": not np.array_equal(taken, wanted.astype(kind)), "status": status}
        return seen, reward, terminated, truncated, told

    @torch.no_grad()
    def _filter(self, wanted: Tensor, observed: Tensor) -> Projection:
        safe = self.constraint if isinstance(self.constraint, AffineSet) else self.constraint(observed)
        safe = safe.to(torch.float64)
        if safe.batch_shape:
            raise ConstraintError(
                f"The constraint must give one set for one state, got a batch of shape {tuple(safe.batch_shape)}."
            )
        try:
            answer = project(wanted, safe & self.limits, **self.options)
        except InfeasibleError as error:
            raise explain(error) from None
        return within_limits(answer, wanted, safe, self.limits, self.options)


def _numbers(name: str, given: np.ndarray, size: int) -> np.ndarray:
    """A copy as finite numbers ``(size,)``. Any other shape is refused: it would broadcast."""
    numbers = np.array(given.detach().cpu().numpy() if isinstance(given, Tensor) else given, dtype=np.float64)
    if numbers.shape != (size,):
        raise ConstraintError(f"The {name} must have shape ({size},), got {numbers.shape}.")
    if not np.isfinite(numbers).all():
        raise ConstraintError(f"The {name} must be finite numbers, got {numbers.tolist()}.")
    return numbers
