"""Gymnasium: a control-affine system as an environment, and a filter that makes any agent safe in it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from caffnet._install import install_command
from caffnet._solve.problem import Status
from caffnet.constraints import EQUAL, HARD, WEIGHTED, AffineSet
from caffnet.control.barriers import Barrier
from caffnet.control.safety import BarrierConstraint, check_actions, explain, in_double, over_actions
from caffnet.control.simulation import check_steps, rk4
from caffnet.control.systems.base import ControlAffine
from caffnet.errors import ConstraintError, DtypeError, InfeasibleError
from caffnet.layer import OPTIONS, CAffine
from caffnet.projection import Projection, project

try:
    import gymnasium
except ImportError as missing:
    raise ImportError(f"caffnet.control.gym needs Gymnasium: {install_command('control')}.") from missing


class ControlEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """A control-affine system: observe the state, act with the input.

    Args:
        system: the dynamics.
        start: draws an initial state ``(n_x,)`` from a numpy generator.
        cost: ``(x, u) -> cost`` of one step; the reward is its negative.
        lower: lower limits of the input, ``(n_u,)`` or one for all.
        upper: upper limits of the input.
        barrier: functions that should stay >= 0; ``info["barrier"]`` holds the smallest.
        done: ``x -> bool``, True when the goal is reached; never if None.
        steps: the episode is truncated after this number of steps.
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
        """Apply the input ``(n_u,)``, clipped to its limits, for one time step."""
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

    The limits of the action space count as constraints: an action that the environment clips is no longer the safe one.
    A wrapper that changes actions, such as ``ClipAction``, must be outside this one, not inside.

    Args:
        env: any environment with box observations and actions ``(n,)``; of a vector environment, all are filtered in
            one call, by a `SafeVectorActions`.
        constraint: ``state -> AffineSet`` over the actions, such as a `BarrierConstraint`, or one set for all states.
        state: turns an observation into the state, or into a pair (state, time); the observation itself if None.
        warm_start: begin every search with the rows of the step before.
        **options: as in `caffnet.project`.

    ``info["action"]`` holds the action taken, in the number type of the action space and rounded inwards: it satisfies
    every inequality after rounding too, unless the set has no room for that. ``info["filtered"]`` tells whether it
    differs from the agent's, and ``info["status"]`` is its `Status`. Where no action within the limits is safe, an
    `InfeasibleError` is raised, or with ``on_infeasible="nearest"`` the one of least violation within the limits is
    taken (RELAXED). Soft rows may give way; the limits of the space never do.
    """

    def __new__(cls, env: Any, *args: Any, **options: Any):
        """Return a `SafeVectorActions` for a vector environment."""
        if isinstance(env, gymnasium.vector.VectorEnv):
            return SafeVectorActions(env, *args, **options)
        return super().__new__(cls)

    def __init__(
        self,
        env: gymnasium.Env[np.ndarray, np.ndarray],
        constraint: AffineSet | Callable[[Any], AffineSet],
        state: Callable[[Any], Any] | None = None,
        *,
        warm_start: bool = False,
        **options: Any,
    ):
        super().__init__(env)
        self.filter = ActionFilter(env.action_space, constraint, state, warm_start, options)
        self.filter.probe(env.observation_space)
        self._seen: np.ndarray | None = None  # a copy: the agent may work on the one it is given

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """A new episode."""
        observed, info = self.env.reset(seed=seed, options=options)
        self._seen = _copied(observed)
        return observed, info

    def step(self, action: np.ndarray):
        """Filter the action, then step."""
        if self._seen is None:
            raise ConstraintError("No episode was started: call reset() first.")
        taken, filtered, status = self.filter(_numbers("action", action, self.filter.n), self._seen)
        seen, reward, terminated, truncated, info = self.env.step(taken)
        self._seen = _copied(seen)
        more = {**info, "action": taken, "filtered": bool(filtered), "status": Status(int(status))}
        return seen, reward, terminated, truncated, more


class SafeVectorActions(gymnasium.vector.VectorWrapper):
    """`SafeActions` for a vector environment: one call filters the actions ``(envs, n)`` of all.

    The arguments are those of `SafeActions`; `state` takes the observations of all environments and returns states
    ``(envs, n_x)``. In `info`, ``"action"``, ``"filtered"`` and ``"status"`` have one entry per environment. If an
    episode has just ended and the next step resets it, the action is ignored, as the environment ignores it too.
    """

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv,
        constraint: AffineSet | Callable[[Any], AffineSet],
        state: Callable[[Any], Any] | None = None,
        *,
        warm_start: bool = False,
        **options: Any,
    ):
        super().__init__(env)
        self.filter = ActionFilter(env.single_action_space, constraint, state, warm_start, options)
        self.filter.probe(env.observation_space)
        waits = env.metadata.get("autoreset_mode") == gymnasium.vector.AutoresetMode.NEXT_STEP
        self._waits, self._over = waits, np.zeros(env.num_envs, bool)
        self._seen: Any = None

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None):
        """New episodes."""
        observed, info = self.env.reset(seed=seed, options=options)  # pyright: ignore[reportArgumentType]
        self._seen, self._over = _copied(observed), np.zeros(self.num_envs, bool)
        return observed, info

    def step(self, actions: np.ndarray):
        """Filter the actions, then step."""
        if self._seen is None:
            raise ConstraintError("No episode was started: call reset() first.")
        wanted = _numbers("actions", actions, self.num_envs, self.filter.n)
        taken, filtered, status = self.filter(wanted, self._seen, ~self._over if self._over.any() else None)
        seen, reward, terminated, truncated, info = self.env.step(taken)
        self._seen = _copied(seen)
        if self._waits:
            self._over = np.logical_or(terminated, truncated)
        return seen, reward, terminated, truncated, {**info, "action": taken, "filtered": filtered, "status": status}


class ActionFilter:
    """Maps actions ``(..., n)`` and observations to safe actions, in the number type of the action space.

    Args:
        space: the action space of one environment.
        constraint: as in `SafeActions`.
        state: as in `SafeActions`.
        warm_start: as in `CAffine`.
        options: options of the layer.
    """

    def __init__(
        self,
        space: gymnasium.Space,
        constraint: AffineSet | Callable[[Any], AffineSet],
        state: Callable[[Any], Any] | None,
        warm_start: bool,
        options: dict[str, Any],
    ):
        real = np.issubdtype(space.dtype, np.floating)
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1 or not real:
            raise ConstraintError(
                f"SafeActions needs actions in a Box of shape (n,) and of floating type, got {space}: "
                "an affine set holds vectors of numbers. Wrap the environment so that it takes them."
            )
        if unknown := set(options) - OPTIONS:
            raise TypeError(
                f"SafeActions has no option {unknown.pop()!r}; the options are {', '.join(sorted(OPTIONS))} "
                "and warm_start."
            )
        self.space, self.state, self.options, self.n = space, state, options, len(space.low)
        names = [f"action {i}" for i in range(self.n)]
        self.limits = AffineSet.box(space.low.astype(np.float64), space.high.astype(np.float64), names=names)
        self.function: Callable[[Any], AffineSet] | None = None
        self.layer = CAffine(self._joined(constraint), warm_start=warm_start, **options)

    def _joined(self, constraint: AffineSet | Callable[[Any], AffineSet]) -> AffineSet | Callable[[Any], AffineSet]:
        if isinstance(constraint, BarrierConstraint):
            check_actions(constraint, constraint.system.n_u, self.n)
            return constraint.within(self.limits)
        if not callable(constraint):
            return self._within(constraint)
        function = self.function = in_double(constraint)
        return lambda x: self._within(function(x))

    def _within(self, rows: AffineSet) -> AffineSet:
        rows = over_actions(rows, self.n)
        return (rows if rows.dtype == torch.float64 else rows.to(torch.float64)) & self.limits

    @torch.no_grad()
    def probe(self, space: gymnasium.Space) -> None:
        """Call the function at one observation, so that wrong rows are refused before the first step.

        Not if there is a `state`, which may remember observations. Other errors are left to a real observation.
        """
        if self.function is None or self.state is not None:
            return
        try:
            space = copy.deepcopy(space)  # whose random numbers stay as they are
            space.seed(0)
            rows = self.function(_as_states(space.sample()))
        except DtypeError:
            raise
        except Exception:  # in the function of the user
            return
        self._within(rows)

    @torch.no_grad()
    def __call__(
        self, wanted: np.ndarray, observed: Any, alive: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the actions to take ``(..., n)``, a mask of those that differ from `wanted`, and their status.

        Args:
            wanted: float64, ``(..., n)``.
            observed: observations, the input of `state`.
            alive: mask of the samples to filter; all if None. The others are only clipped.
        """
        kind = self.space.dtype
        x = _as_states(observed if self.state is None else self.state(observed))
        if alive is not None:
            taken = np.clip(wanted, self.space.low, self.space.high).astype(kind)
            filtered, status = np.zeros(len(wanted), bool), np.full(len(wanted), int(Status.INSIDE), np.int8)
            some = tuple(part[alive] for part in x) if isinstance(x, tuple) else x[alive]
            if alive.any():
                taken[alive], filtered[alive], status[alive] = self._filter(wanted[alive], some)
            return taken, filtered, status
        return self._filter(wanted, x)

    def _filter(self, wanted: np.ndarray, x: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        u = torch.from_numpy(wanted)
        try:
            answer = self.layer.project(u, x=x)
        except InfeasibleError as error:
            raise explain(error) from None
        if answer.value.shape != u.shape:
            raise ConstraintError(
                f"The constraint must give one set for one state, got a batch of shape {tuple(answer.set.batch_shape)}."
            )
        status = answer.status.numpy()
        taken = round_inwards(answer, self.space.dtype)
        # Equalities and thin sets leave no room to round inwards: the environment would saturate the rest unseen.
        taken = np.minimum(np.maximum(taken, self.space.low), self.space.high)
        if not _all(np.isfinite(taken)):
            where = np.argwhere(~np.isfinite(taken).all(-1))[0]
            name, place = Status(int(status[tuple(where)])).name, tuple(where.tolist())
            states = (x[0] if isinstance(x, tuple) else x)[place]
            raise ConstraintError(f"There is no action to take: {name} at the state {states.tolist()}.")
        return taken, (taken != wanted.astype(self.space.dtype)).any(-1), status


def round_inwards(answer: Projection, kind: Any) -> np.ndarray:
    """Round the answer to another number type, without breaking a row if there is room.

    Rounding moves ``a_i u`` by at most ``eps |a_i| |u|``. Where that breaks a row, the answer is projected into the set
    whose inequalities are tightened by twice as much, and rounded again: then it may move and still satisfies all rows.

    Soft rows that gave way, and all rows with a weight, are ignored.

    Args:
        answer: float64.
        kind: a number type of numpy.
    """
    value = answer.value.numpy()
    short = value.astype(kind)
    if short.dtype == np.float64 or _all(short == value):  # nothing was rounded
        return short
    rows = answer.set
    A, lower, upper = rows.A.numpy(), rows.lower.numpy(), rows.upper.numpy()
    if rows.softness is not None:
        kinds, relaxed = rows.softness.kinds, answer.status.numpy() == int(Status.RELAXED)
        if WEIGHTED in kinds or np.count_nonzero(relaxed):
            giving = relaxed[..., None] & ~_marked(kinds, HARD) | _marked(kinds, WEIGHTED)
            lower, upper = np.where(giving, -np.inf, lower), np.where(giving, np.inf, upper)
    equal = _marked(rows.row_kinds, EQUAL)

    def broken(point: np.ndarray) -> Any:
        height = (A @ point.astype(np.float64)[..., None])[..., 0]
        return ((height > upper) | (height < lower)) & ~equal

    bad = broken(short)
    if not np.count_nonzero(bad):
        return short
    bad = bad.any(-1)
    room = np.where(equal, 0.0, 2 * np.finfo(kind).eps * (np.abs(A) @ np.abs(value)[..., None])[..., 0])
    room = room + np.where(equal, 0.0, float(np.finfo(kind).tiny))
    tight = AffineSet.from_parts(
        rows.A, torch.from_numpy(lower + room), torch.from_numpy(upper - room), rows.labels, rows.row_kinds
    )
    inner = project(answer.value, tight, on_infeasible="nan").value.numpy().astype(kind)
    better = bad & np.isfinite(inner).all(-1)
    better &= ~broken(np.where(better[..., None], inner, short)).any(-1)
    return np.where(better[..., None], inner, short)


@functools.lru_cache(maxsize=1024)
def _marked(kinds: str, kind: str) -> np.ndarray:
    """Return a mask ``(m,)`` of the rows of a kind."""
    return np.array([each == kind for each in kinds])


def _all(mask: Any) -> bool:
    """Return True if all are true; for a few numbers in half the time of ``mask.all()``."""
    return np.count_nonzero(mask) == mask.size


def _copied(observed: Any) -> Any:
    return observed.copy() if isinstance(observed, np.ndarray) else copy.deepcopy(observed)


def _as_states(given: Any) -> Any:
    """A state, or a pair of state and time, as float64 tensors."""
    if isinstance(given, tuple):
        return tuple(_as_states(part) for part in given)
    try:
        return torch.from_numpy(np.array(given, dtype=np.float64))
    except (TypeError, ValueError):  # as a dict or a text
        raise ConstraintError(
            f"The constraint needs a state of numbers, got {type(given).__name__}: pass state=..., a function that "
            "turns an observation into the state."
        ) from None


def _numbers(name: str, given: np.ndarray, *shape: int) -> np.ndarray:
    """Copy an array of finite numbers of this shape. Any other shape is refused, as it would broadcast."""
    numbers = np.array(given.detach().cpu().numpy() if isinstance(given, Tensor) else given, dtype=np.float64)
    if numbers.shape != shape:
        raise ConstraintError(f"The {name} must have shape {shape}, got {numbers.shape}.")
    if not _all(np.isfinite(numbers)):
        raise ConstraintError(f"The {name} must be finite numbers, got {numbers.tolist()}.")
    return numbers
