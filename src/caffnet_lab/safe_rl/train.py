"""One run: an agent of Stable-Baselines3 on a task, and what came of it as a record.

Every agent acts through `SafeActions`, so that no action, random warm-up and noise included, breaks a row. Agents
differ in what they know of it: ``filter`` nothing (its policy is the library's own, the projection is a part of the
environment: "DPro" without its penalty); ``project`` has the projection as its last layer; ``interior`` the bijection
into the inside, for SAC with exact log-probabilities.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise

from caffnet import __version__
from caffnet.control.gym import SafeActions
from caffnet.control.sb3 import SafeSACPolicy, SafeTD3Policy
from caffnet_lab.safe_rl.tasks import Task

#: Name: algorithm, policy, arguments of the policy.
AGENTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "sac-filter": (sb3.SAC, "MlpPolicy", {}),
    "sac-interior": (sb3.SAC, SafeSACPolicy, {}),
    "td3-filter": (sb3.TD3, "MlpPolicy", {}),
    "td3-project": (sb3.TD3, SafeTD3Policy, {"head": "project"}),
    "td3-interior": (sb3.TD3, SafeTD3Policy, {"head": "interior"}),
}
EPISODES = 5
EVERY = 2000


class Watched(gymnasium.Wrapper):
    """An environment that measures the rows at every action it gets, in float64."""

    def __init__(self, env: gymnasium.Env, task: Task):
        super().__init__(env)
        self.task, self.worst, self.broken, self.count = task, 0.0, 0, 0
        self._seen: np.ndarray = np.zeros(0)

    def reset(self, **options: Any):
        """A new episode."""
        self._seen, info = self.env.reset(**options)
        return self._seen, info

    def step(self, action: np.ndarray):
        """Measure, then step."""
        rows = self.task.rows(torch.as_tensor(self._seen, dtype=torch.float64))
        excess = float(rows.violation(torch.as_tensor(action, dtype=torch.float64)).max())
        self.worst, self.broken, self.count = max(self.worst, excess), self.broken + (excess > 0), self.count + 1
        self._seen, reward, terminated, truncated, info = self.env.step(action)
        return self._seen, reward, terminated, truncated, info


class Curve(BaseCallback):
    """Evaluates the policy now and then."""

    def __init__(self, task: Task, seed: int):
        super().__init__()
        self.task, self.seed, self.points = task, seed, []

    def _on_step(self) -> bool:
        if self.num_timesteps % EVERY == 0:
            self.points.append([self.num_timesteps, *evaluate(self.model, self.task, self.seed)])
        return True


def evaluate(model: Any, task: Task, seed: int) -> tuple[float, float]:
    """The mean return of the policy without noise, and the share of its actions that the filter had to change."""
    env = safe(task)[0]
    total, changed, steps = 0.0, 0, 0
    for episode in range(EPISODES):
        seen, _ = env.reset(seed=1000 * (seed + 1) + episode)
        over = False
        while not over:
            action, _ = model.predict(seen, deterministic=True)
            seen, reward, terminated, truncated, info = env.step(action)
            over = terminated or truncated
            total, changed, steps = total + float(reward), changed + info["filtered"], steps + 1
    return total / EPISODES, changed / steps


def safe(task: Task) -> tuple[Any, Watched]:
    """The filtered environment, and what watches it from inside."""
    watched = Watched(task.make(), task)
    return SafeActions(watched, task.rows, on_infeasible="nearest"), watched


def run(task: Task, agent: str, seed: int, steps: int | None = None) -> dict[str, Any]:
    """Train and evaluate; the record."""
    algorithm, policy, arguments = AGENTS[agent]
    env, watched = safe(task)
    size = watched.action_space.shape[0]  # pyright: ignore[reportOptionalSubscript]
    more: dict[str, Any] = {}
    if algorithm is sb3.TD3:
        more["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, 0.1))
    if policy != "MlpPolicy":
        arguments = {**arguments, "constraint": task.rows, "centre": np.zeros(size)}  # no action, no power
    model = algorithm(
        policy,
        env,
        learning_rate=1e-3,
        batch_size=128,
        learning_starts=500,
        policy_kwargs={"net_arch": [64, 64], **arguments},
        seed=seed,
        device="cpu",
        **more,
    )
    curve = Curve(task, seed)
    start = time.perf_counter()
    model.learn(steps or task.steps, callback=curve)
    seconds = time.perf_counter() - start
    acting = time_of_acting(model, env)
    return {
        "task": task.name,
        "agent": agent,
        "seed": seed,
        "steps": steps or task.steps,
        "return": curve.points[-1][1],
        "changed": curve.points[-1][2],
        "curve": curve.points,
        "worst_violation": watched.worst,
        "violated_steps": watched.broken,
        "counted_steps": watched.count,
        "training_seconds": seconds,
        "acting_microseconds": acting,
        "versions": {"caffnet": __version__, "torch": str(torch.__version__), "stable-baselines3": sb3.__version__},
    }


def time_of_acting(model: Any, env: gymnasium.Env, count: int = 300) -> float:
    """The median time of one decision of the policy at batch 1, without the environment, in microseconds."""
    seen, _ = env.reset(seed=0)
    times = []
    for _ in range(count):
        start = time.perf_counter()
        model.predict(seen, deterministic=True)
        times.append(time.perf_counter() - start)
    return 1e6 * float(np.median(times))
