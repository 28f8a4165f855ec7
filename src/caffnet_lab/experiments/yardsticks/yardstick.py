"""Common part of the optimisation yardsticks: one fixed task, an optimiser as reference, rows without learning."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from caffnet.methods import Method
from caffnet_lab.experiments.problem import Evaluation, Loss, Problem, penalty_of, violation_metrics
from caffnet_lab.experiments.shape import COUNTED
from caffnet_lab.experiments.yardsticks.gaps import gap_curve, gap_metrics


class Yardstick(Problem):
    """A program to be solved for every input, and how near its answers come to the optimum.

    Attributes:
        valid: inputs that settings may be chosen on, ``(V, n_in)``.
        scale: what the objective is divided by in the loss, so that learning rates and penalties mean the same in
            every task.
        nominal: what the networks' outputs are added to, ``(n_out,)``; None for nothing.
    """

    valid: Tensor
    scale: float = 1.0
    nominal: Tensor | None = None

    @abc.abstractmethod
    def objective(self, y: Tensor) -> Tensor:
        """The objective, ``(...)``, for answers y ``(..., n_out)``."""

    @abc.abstractmethod
    def optimal_values(self) -> Tensor:
        """The objective of the optimiser's answers to the test set, ``(M,)``."""

    @property
    @abc.abstractmethod
    def rows(self) -> dict[str, Callable[[], Tensor]]:
        """Answers to the test set by the rows that need no learning."""

    def loss(self, model: nn.Module, x: Tensor, penalty: str = "squared") -> Loss:
        """The sum of objectives, with the terms that a rival's own loss has."""
        if isinstance(model, Method):
            output = model.run(x, self._nominal_at(x))
            y, cost = output.y, len(x) * model.loss(self.objective(output.y).mean() / self.scale, output)
        else:
            y = model(x, self._nominal_at(x))
            cost = self.objective(y).sum() / self.scale
        return Loss(cost, *penalty_of(self.constraint(x).violation(y), penalty))

    def evaluate(self, model: nn.Module, exact: bool = False) -> Evaluation:
        """Result of `evaluate_points` for the answers to the test set."""
        with torch.no_grad():
            return self.evaluate_points(model(self.test, self._nominal_at(self.test)), exact)

    def _nominal_at(self, x: Tensor) -> Tensor | None:
        return None if self.nominal is None else self.nominal.expand(*x.shape[:-1], -1)

    def evaluate_points(self, y: Tensor, exact: bool = False) -> Evaluation:
        """Objective, gaps, violations, and the share of samples that break some row by more than 1e-6."""
        here, best = self.build_set(self.test), self.optimal_values().to(y)
        value, broken = self.objective(y), (here.violation(y) > COUNTED).any(-1)
        metrics = {
            "objective": value.mean().item(),
            "optimum": best.mean().item(),
            "gap": gap_metrics(value, best),
            "infeasible": 100 * broken.double().mean().item(),
            **violation_metrics(here, y, exact),
        }
        return Evaluation(metrics, gap_curve(value, best))

    def forward_for_timing(self, model: nn.Module) -> Callable[[], Tensor]:
        """All test points in one call, as a new input: its constraints are part of the answer."""
        return lambda: model(self.test.view_as(self.test), self._nominal_at(self.test))

    def solve(self, name: str) -> tuple[Tensor, float]:
        """The answers of a row without learning, and the milliseconds of its second call: the first warms up."""
        if name not in self.rows:
            return super().solve(name)
        answer = self.rows[name]
        with torch.no_grad():
            answer()
            start = time.perf_counter()
            found = answer()
        return found, 1e3 * (time.perf_counter() - start)
