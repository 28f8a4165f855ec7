"""Run a scenario with the filter and without, and return the results as numbers."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from caffnet import Status
from caffnet.control import SafetyFilter, rollout
from caffnet_lab.safe_control.scenarios import SCENARIOS, Scenario

SUBSTEPS = 20


class Counted:
    """A filter that counts the states without an admissible input."""

    def __init__(self, driver: SafetyFilter):
        self.driver, self.lost, self.changed, self.count = driver, 0, 0, 0

    def __call__(self, x: Tensor) -> Tensor:
        """The safe inputs."""
        answer = self.driver.project(x)
        self.lost += int((answer.status == int(Status.RELAXED)).sum())
        self.changed += int((answer.status != int(Status.INSIDE)).sum())
        self.count += answer.status.numel()
        return answer.value


@torch.no_grad()
def simulate(name: str, starts: int = 1000, seed: int = 0) -> dict[str, Any]:
    """The record of a scenario."""
    scenario = SCENARIOS[name]()
    x = scenario.starts(starts, seed)
    filtered = Counted(SafetyFilter(scenario.driver, scenario.safe, on_infeasible="nearest"))
    begin = time.perf_counter()
    least, limits = _drive(scenario, filtered, x)
    seconds = time.perf_counter() - begin
    without, _ = _drive(scenario, scenario.driver, x)
    provoked = Counted(SafetyFilter(scenario.driver, scenario.safe, on_infeasible="nearest"))
    _, beyond = _drive(scenario, provoked, scenario.hopeless(starts, seed))
    return {
        "scenario": name,
        "starts": starts,
        "steps": scenario.steps,
        "dt": scenario.dt,
        "substeps": SUBSTEPS,
        "wind": list(scenario.wind),
        "reserve": None if scenario.safe.reserve is None else scenario.safe.reserve.tolist(),
        "smallest": float(least.min()),
        "smallest_without": float(without.min()),
        "crashed_without": float((without < 0).double().mean()),
        "changed_share": filtered.changed / filtered.count,
        "infeasible_states": filtered.lost,
        "states": filtered.count,
        "beyond_limits": limits,
        "provoked_infeasible": provoked.lost,
        "provoked_beyond_limits": beyond,
        "seconds": seconds,
    }


def _drive(scenario: Scenario, policy: Any, x: Tensor) -> tuple[Tensor, float]:
    """The smallest value of what must hold, for each start ``(starts,)``, and how far inputs were beyond limits."""
    windy = scenario.disturbance if any(scenario.wind) else None
    path = rollout(scenario.system, policy, x, scenario.steps, scenario.dt, substeps=SUBSTEPS, disturbance=windy)
    assert scenario.safe.inputs is not None
    beyond = scenario.safe.inputs.to(torch.float64).violation(path.inputs).max()
    return scenario.keep(path.fine).amin((-1, -2)), float(beyond)
