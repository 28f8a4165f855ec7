"""The demonstration: the paper's piecewise task, with the layer and with a penalty, in under two minutes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from caffnet import CAffNet, FeedForward
from caffnet_lab.experiments.pwc import PiecewiseProblem, bounds, target

PENALTY = 100.0
LEARNING_RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Result:
    """One trained network on the test points.

    Attributes:
        name: what it is called in the table.
        y: its outputs at the test points, ``(400,)``.
        error: mean squared error.
        violation: the largest violation over test points and rows.
        violated: the share of test points with any violation.
    """

    name: str
    y: Tensor
    error: float
    violation: float
    violated: float


def compare(seed: int, epochs: int, advance: Callable[[str, float, float], None]) -> list[Result]:
    """Train both networks; `advance(name, share done, loss)` is called now and then."""
    problem = PiecewiseProblem(seed)
    problem.to(torch.device("cpu"), torch.float32)
    results = []
    for number, (name, build) in enumerate({"soft penalty": _soft, "CAffNet": _constrained}.items()):
        torch.manual_seed(seed)
        model = build(problem)
        optimiser = torch.optim.Adam(model.parameters(), LEARNING_RATE)
        for epoch in range(epochs):
            optimiser.zero_grad()
            loss = problem.loss(model, problem.train)
            total = loss.cost + PENALTY * loss.penalty
            total.backward()
            optimiser.step()
            if epoch % 50 == 0:
                advance(name, (number + epoch / epochs) / 2, float(total.detach()) / len(problem.train))
        results.append(_measure(name, model, problem))
    return results


def _soft(problem: PiecewiseProblem) -> nn.Module:
    return FeedForward(problem.n_in, problem.n_out)


def _constrained(problem: PiecewiseProblem) -> nn.Module:
    return CAffNet(FeedForward(problem.n_in, problem.n_out), problem.constraint, gradient="tangent")


def _measure(name: str, model: nn.Module, problem: PiecewiseProblem) -> Result:
    with torch.no_grad():
        y = model(problem.test)
    violation = problem.build_set(problem.test).violation(y)
    return Result(
        name,
        y.squeeze(-1),
        float((y - target(problem.test)).square().mean()),
        float(violation.max()),
        float((violation > 0).any(-1).double().mean()),
    )


def draw(results: list[Result], path: Path) -> None:
    """The bounds, the target and what each network has learned."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    x = torch.linspace(-2, 2, 400).unsqueeze(-1)
    lower, upper = bounds(x)
    low, high, x = lower.amax(-1), upper.amin(-1), x.squeeze(-1)
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.fill_between(x, low, high, color="#d9e8d9", label="allowed")
    for bound in (low, high):
        axes.plot(x, bound, color="#6a9a6a", linewidth=0.8)
    axes.plot(x, target(x.unsqueeze(-1)).squeeze(-1), color="black", linewidth=2.5, alpha=0.35, label="target")
    for result, color, style in zip(results, ("#c0392b", "#1f4e9c"), ("--", "-"), strict=True):
        label = f"{result.name} (largest violation {result.violation:.1e})"
        axes.plot(x, result.y, style, color=color, linewidth=1.4, label=label)
    axes.set(xlabel="x", ylabel="y", xlim=(-2, 2), title="The paper's piecewise task: output y over input x")
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)
    plt.close(figure)
