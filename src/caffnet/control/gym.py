"""Gymnasium: a control-affine system as an environment, and a filter that makes any agent safe in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from caffnet.constraints import AffineSet
from caffnet.control.barriers import Barrier
from caffnet.control.simulation import rk4
from caffnet.control.systems import ControlAffine
from caffnet.errors import ConstraintError
from caffnet.projection import project

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
        lower: lower limits of the input, ``(n_u,)``.
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
        lower: np.ndarray,
        upper: np.ndarray,
        barrier: Barrier | None = None,
        done: Callable[[np.ndarray], bool] | None = None,
        steps: int = 150,
        dt: float = 0.1,
    ):
        self.system, self.start, self.cost, self.barrier, self.done = system, start, cost, barrier, done
        self.steps, self.dt = steps, dt
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (system.n_x,), np.float64)
        self.action_space = gymnasium.spaces.Box(np.asarray(lower), np.asarray(upper), (system.n_u,), np.float64)
        self._x = torch.zeros(system.n_x, dtype=torch.float64)
        self._left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """A new episode; ``options={"start": x}`` sets the initial state."""
        super().reset(seed=seed)
        start = self.start(self.np_random) if options is None or "start" not in options else options["start"]
        self._x = torch.as_tensor(np.array(start, dtype=np.float64))
        self._left = self.steps
        return self._x.numpy().copy(), self._info()

    def step(self, action: np.ndarray):
        """Apply the input, saturated to its limits, for one time step."""
        if self._left <= 0:
            raise ConstraintError("The episode is over, or none was started: call reset() first.")
        space = self.action_space
        u = np.clip(np.asarray(action, dtype=np.float64), space.low, space.high)  # type: ignore[attr-defined]
        reward = -float(self.cost(self._x.numpy().copy(), u))
        self._x = rk4(self.system, self._x, torch.from_numpy(u), self.dt)
        self._left -= 1
        arrived = self.done is not None and bool(self.done(self._x.numpy().copy()))
        return self._x.numpy().copy(), reward, arrived, self._left == 0, self._info()

    def _info(self) -> dict[str, Any]:
        return {} if self.barrier is None else {"barrier": float(self.barrier(self._x).min())}


class SafeActions(gymnasium.Wrapper[np.ndarray, np.ndarray, np.ndarray, np.ndarray]):
    """Replaces every action by the nearest one that satisfies the constraints at the present observation.

    Args:
        env: any environment with box observations and actions.
        constraint: ``state -> AffineSet`` over the actions, such as a `BarrierConstraint`.
        state: turns an observation into the state; the observation itself if None.
        **options: as in `caffnet.project`.

    ``info["action"]`` holds the action taken and ``info["filtered"]`` tells whether it differs from the agent's.
    """

    def __init__(
        self,
        env: gymnasium.Env[np.ndarray, np.ndarray],
        constraint: Callable[[Tensor], AffineSet],
        state: Callable[[np.ndarray], np.ndarray] | None = None,
        **options: Any,
    ):
        super().__init__(env)
        self.constraint, self.state, self.options = constraint, state, options
        self._seen: np.ndarray | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """A new episode."""
        self._seen, info = self.env.reset(seed=seed, options=options)
        return self._seen, info

    def step(self, action: np.ndarray):
        """Filter the action, then step."""
        if self._seen is None:
            raise ConstraintError("No episode was started: call reset() first.")
        observed = self._seen if self.state is None else self.state(self._seen)
        wanted = torch.as_tensor(np.asarray(action, dtype=np.float64))
        with torch.no_grad():
            allowed = self.constraint(torch.as_tensor(np.asarray(observed, dtype=np.float64)))
            taken = project(wanted, allowed, **self.options).value
        self._seen, reward, terminated, truncated, info = self.env.step(taken.numpy())
        told = {**info, "action": taken.numpy(), "filtered": not torch.equal(taken, wanted)}
        return self._seen, reward, terminated, truncated, told
