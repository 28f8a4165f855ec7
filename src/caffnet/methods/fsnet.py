"""FSNet (Nguyen and Donti, 2025): feasibility seeking by batched L-BFGS, with truncated back-propagation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from caffnet.constraints import AffineSet
from caffnet.methods.base import Guarantee, Method, Output, matvec, numbers_only, signed_violation
from caffnet.methods.penalty import Penalty


class FSNet(Method):
    r"""From $y_0 = f$, minimise $\phi(y) = scale \cdot mean_{batch} \|r(y)\|^2$ by L-BFGS, r the violations.

    Every sample has its own quasi-Newton direction; the step length is shared, so the output of a sample depends
    slightly on its batch. The first `unrolled` iterations stay in the graph, the others are added as a constant:
    ``y + (y_end - y).detach()``. Loss: ``objective + distance · mean |y_end - y_0|²``, plus ``rescue`` times the mean
    violation cost of ``y_0`` where that is at least 1e3. All these numbers are the published ones; they are for
    violations in the units of the rows, so rows of another size need other numbers.

    Args:
        backbone: any module ``x -> f``.
        constraint: an `AffineSet`, or any function ``x -> AffineSet``.
        iterations: largest number of iterations.
        unrolled: iterations through which gradients flow.
        memory: pairs kept (the published experiments: 30; its class: 20).
        scale: the factor of φ.
        tolerance: stop when ``φ / scale`` is below, in training.
        test_tolerance: the same in evaluation.
        gradient_tolerance: stop when the norm of φ's gradient is below.
        armijo: sufficient decrease required of a step.
        shrink: factor of the backtracking.
        backtracks: largest number of reductions of the step.
        distance: weight of the squared move in the loss.
        rescue: weight of a very large violation of the raw output in the loss.
        penalty: one more soft term, none in the paper.

    >>> method = FSNet(nn.Identity(), AffineSet.inequality([[1.0, 1.0]], [1.0])).eval()
    >>> float(method(torch.tensor([[2.0, 1.0]])).sum()) < 1.001
    True
    """

    name = "fsnet"
    title = "FSNet"
    guarantee = Guarantee.ASYMPTOTIC
    closed_form = False

    def __init__(
        self,
        backbone: nn.Module,
        constraint: AffineSet | Callable[[Any], AffineSet],
        *,
        iterations: int = 50,
        unrolled: int = 30,
        memory: int = 30,
        scale: float = 1000.0,
        tolerance: float = 1e-7,
        test_tolerance: float = 1e-9,
        gradient_tolerance: float = 1e-6,
        armijo: float = 1e-4,
        shrink: float = 0.5,
        backtracks: int = 10,
        distance: float = 5.0,
        rescue: float = 10.0,
        penalty: Penalty | None = None,
    ):
        super().__init__(backbone, constraint, penalty=penalty)
        self.iterations, self.unrolled, self.memory, self.scale = iterations, unrolled, memory, scale
        self.tolerance, self.test_tolerance, self.gradient_tolerance = tolerance, test_tolerance, gradient_tolerance
        self.armijo, self.shrink, self.backtracks = armijo, shrink, backtracks
        self.distance, self.rescue = distance, rescue

    @numbers_only
    def enforce(self, f: Tensor, set: AffineSet) -> Tensor:
        """Seek a feasible point from f."""
        shared, history = self._seek(f, set, min(self.unrolled, self.iterations), [])
        if self.iterations <= self.unrolled:
            return shared
        with torch.no_grad():
            end, _ = self._seek(shared, set, self.iterations - self.unrolled, history)
        return shared + (end - shared).detach()

    def loss(self, objective: Tensor, output: Output) -> Tensor:
        """The task's objective, the squared move, and the rescue of very large violations."""
        moved = (output.y - output.raw).square().sum(-1).mean()
        before = self._cost(output.set, output.raw) / self.scale
        rescued = torch.where(before.detach() >= 1e3, self.rescue * before, torch.zeros_like(before))
        return super().loss(objective + self.distance * moved + rescued, output)

    def _cost(self, set: AffineSet, y: Tensor) -> Tensor:
        return self.scale * set.violation(y).square().sum(-1).mean()

    def _gradient(self, set: AffineSet, y: Tensor) -> Tensor:
        samples = max(y[..., 0].numel(), 1)
        return 2 * self.scale / samples * matvec(set.A.mT, signed_violation(set, y))

    def _seek(
        self, y: Tensor, set: AffineSet, iterations: int, history: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Iterate from `y`; return the point, and the steps and gradient changes ``(s, z)``."""
        history = list(history)
        gradient = self._gradient(set, y)
        stop = self.tolerance if self.training else self.test_tolerance
        for _ in range(iterations):
            cost = self._cost(set, y)
            if float(cost.detach()) / self.scale < stop or float(gradient.detach().norm()) < self.gradient_tolerance:
                break
            direction = self._direction(gradient, history)
            step = self._backtrack(set, y, cost, gradient, direction)
            if step is None:
                break
            moved = y + step * direction
            new_gradient = self._gradient(set, moved)
            history = [*history, (moved - y, new_gradient - gradient)][-self.memory :]
            y, gradient = moved, new_gradient
        return y, history

    def _direction(self, gradient: Tensor, history: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The two-loop recursion, sample by sample, with ``H_0 = sᵀz / zᵀz``; ``-0.1 gradient`` at the start."""
        if not history:
            return -0.1 * gradient
        q, trace = gradient, []
        for s, z in reversed(history):
            rho = _inverse((s * z).sum(-1, keepdim=True))
            alpha = rho * (s * q).sum(-1, keepdim=True)
            q = q - alpha * z
            trace.append((rho, alpha))
        s, z = history[-1]
        curvature = (s * z).sum(-1, keepdim=True)
        start = torch.where(curvature > 0, curvature * _inverse((z * z).sum(-1, keepdim=True)), 0.1)
        r = start * q
        for (s, z), (rho, alpha) in zip(history, reversed(trace), strict=True):
            r = r + s * (alpha - rho * (z * r).sum(-1, keepdim=True))
        return -r

    def _backtrack(self, set: AffineSet, y: Tensor, cost: Tensor, gradient: Tensor, direction: Tensor) -> float | None:
        """The shared step: the first of 1, shrink, shrink², ... that decreases the cost enough, None if none does."""
        with torch.no_grad():
            slope = float((gradient * direction).sum())
            step = 1.0
            for _ in range(self.backtracks + 1):
                if float(self._cost(set, y + step * direction)) <= float(cost) + self.armijo * step * slope:
                    return step
                step *= self.shrink
        return None


def _inverse(number: Tensor) -> Tensor:
    """Return ``1 / number``, or 0 for a number too small to divide by: such a pair has no information on curvature."""
    usable = number.abs() > torch.finfo(number.dtype).tiny ** 0.5
    return torch.where(usable, 1 / torch.where(usable, number, 1.0), 0.0)
