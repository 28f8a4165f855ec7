"""The time of one step. Single calls take turns, so that a busy machine slows all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from caffnet import AffineSet, CAffNet, FeedForward
from caffnet.control import (
    BarrierConstraint,
    ControlAffine,
    DoubleIntegrator,
    HighOrder,
    InsideBox,
    OutsideCircles,
    linear,
)
from caffnet_lab.experiments.cbf import TEST_START, DrivingProblem

ROUNDS = 2000


def measure(calls: dict[str, Callable[[], Any]], rounds: int = ROUNDS) -> dict[str, float]:
    """The lower quartile of the time of each call, in microseconds; one call of each in every round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 20):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn >= 20:  # the first ones fill caches
                times[name].append(time.perf_counter() - start)
    return {name: 1e6 * float(np.quantile(taken, 0.25)) for name, taken in times.items()}


@torch.no_grad()
def time_steps(rounds: int = ROUNDS) -> dict[str, Any]:
    """The record: the cbf policy at batch 1, a raised barrier, and actions of Pendulum with and without the filter."""
    problem = DrivingProblem(0)
    backbone = FeedForward(3, 2).double().eval()
    model, x = CAffNet(backbone, problem.safe).eval(), torch.tensor([TEST_START], dtype=torch.float64)
    mass = DoubleIntegrator(2)
    raised = HighOrder(OutsideCircles([[0.0, 0.0], [2.0, 1.0]], [0.5, 0.5]), mass)
    state = torch.tensor([[-3.0, 0.2, 0.5, 0.1]], dtype=torch.float64)
    calls: dict[str, Callable[[], Any]] = {
        "cbf backbone": lambda: backbone(x),
        "cbf constraint": lambda: problem.safe(x),
        "cbf step": lambda: model(x),
        "HighOrder.evaluate": lambda: raised.evaluate(state),
    }
    calls.update(_pendulum())
    return {"steps": "time", "rounds": rounds, "microseconds": measure(calls, rounds)}


def _pendulum() -> dict[str, Callable[[], Any]]:
    """A step of Pendulum: bare, with a fixed set, and with a barrier on its speed."""
    import gymnasium

    from caffnet.control.gym import SafeActions

    turn = torch.tensor([[0.0], [3.0]], dtype=torch.float64)
    swing = ControlAffine(2, 1, lambda x: torch.stack([x[..., 1], 15 * torch.sin(x[..., 0])], -1), lambda x: turn)
    slow = BarrierConstraint(swing, InsideBox([-np.inf, -8.0], [np.inf, 8.0]), linear(5.0))
    bare, fixed, safe = (gymnasium.make("Pendulum-v1").unwrapped for _ in range(3))
    limited = SafeActions(fixed, AffineSet.box([-1.0], [1.0]))
    filtered = SafeActions(safe, slow, lambda o: np.array([np.arctan2(o[1], o[0]), o[2]]), on_infeasible="nearest")
    action = np.array([0.3], np.float32)
    for env in (bare, limited, filtered):
        env.reset(seed=0)
    return {
        "Pendulum bare": lambda: bare.step(action),
        "Pendulum, fixed set": lambda: limited.step(action),
        "Pendulum, barrier": lambda: filtered.step(action),
    }
