"""The tasks: environments of Gymnasium with polyhedral rows that depend on the state.

Those on Reacher and HalfCheetah are of Kasaura et al. (2023), "Benchmarking actor-critic deep reinforcement learning
algorithms for robotics control with action constraints"; w are the velocities of the joints, a the actions.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial

import gymnasium
import torch
from torch import Tensor

from caffnet import AffineSet


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment and its rows.

    Attributes:
        name: as on the command line.
        environment: its name in Gymnasium.
        rows: observations ``(..., n_obs)``, float64, to sets of actions.
        words: the constraint for a reader.
        steps: of training.
    """

    name: str
    environment: str
    rows: Callable[[Tensor], AffineSet]
    words: str
    steps: int

    def make(self) -> gymnasium.Env:
        """A new environment."""
        return gymnasium.make(self.environment)


def total_power(x: Tensor, speeds: slice, most: float) -> AffineSet:
    """``Σ |w_i a_i| <= most``: one row for each choice of signs."""
    w = x[..., speeds].double()
    signs = torch.tensor(list(itertools.product((1.0, -1.0), repeat=w.shape[-1])), dtype=w.dtype)
    return AffineSet.inequality(signs * w.unsqueeze(-2), torch.full((len(signs),), most, dtype=w.dtype))


def motor_power(x: Tensor, speeds: slice, most: float) -> AffineSet:
    """``Σ max(w_i a_i, 0) <= most``: one row for each choice of joints."""
    w = x[..., speeds].double()
    chosen = torch.tensor(list(itertools.product((0.0, 1.0), repeat=w.shape[-1]))[1:], dtype=w.dtype)
    return AffineSet.inequality(chosen * w.unsqueeze(-2), torch.full((len(chosen),), most, dtype=w.dtype))


TASKS = {
    task.name: task
    for task in (
        Task("pendulum", "Pendulum-v1", partial(total_power, speeds=slice(2, 3), most=4.0), "|w a| <= 4", 6000),
        Task("reacher-o", "Reacher-v5", partial(total_power, speeds=slice(6, 8), most=0.3), "Σ|w a| <= 0.3", 4000),
        Task(
            "reacher-m", "Reacher-v5", partial(motor_power, speeds=slice(6, 8), most=0.3), "Σ max(w a, 0) <= 0.3", 4000
        ),
        Task(
            "cheetah-o", "HalfCheetah-v5", partial(total_power, speeds=slice(11, 17), most=20.0), "Σ|w a| <= 20", 4000
        ),
    )
}
