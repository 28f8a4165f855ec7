"""pwc: learn a piecewise function of one variable between two lower and two upper piecewise bounds.

With one output every row has full rank: the null-space vector has no effect, and the CAffine layer is a clamp between
the largest lower and the smallest upper bound. On (-1, 0] these meet: the feasible set is the single point -2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from caffnet import AffineSet
from caffnet.constraints import BOTH
from caffnet_lab.experiments.problem import Evaluation, Loss, Problem, penalty_of, violation_metrics

TRAIN, TEST = 50, 400
NAMES = ("bounds 1", "bounds 2")


class PiecewiseProblem(Problem):
    """50 training points uniform on [-2, 2], 400 test points on a grid.

    Args:
        seed: of numpy's legacy stream; the points are its first draw.

    >>> PiecewiseProblem(1).train[0]
    tensor([-0.3319], dtype=torch.float64)
    """

    name, n_in, n_out = "pwc", 1, 1

    def __init__(self, seed: int):
        super().__init__()
        stream = np.random.RandomState(seed)
        self.train = torch.from_numpy(stream.uniform(-2, 2, (TRAIN, 1)))
        self.test = torch.linspace(-2, 2, TEST, dtype=torch.float64).unsqueeze(-1)
        self._answers: tuple[Tensor, Tensor] | None = None

    def build_set(self, x: Tensor) -> AffineSet:
        """Two rows, each with a lower and an upper bound, as HardNet needs them; to the others it is the same set."""
        lower, upper = bounds(x)
        return AffineSet.from_parts(x.new_ones(2, 1), lower, upper, NAMES, (BOTH, BOTH))

    def loss(self, model: nn.Module, x: Tensor, penalty: str = "squared") -> Loss:
        """The sum of squared errors."""
        if self._answers is None or self._answers[0] is not x:
            self._answers = (x, target(x))
        y = model(x)
        return Loss((y - self._answers[1]).square().sum(), *penalty_of(self.constraint(x).violation(y), penalty))

    def evaluate(self, model: nn.Module, exact: bool = False) -> Evaluation:
        """The mean squared error on the grid."""
        with torch.no_grad():
            y = model(self.test)
        metrics = {
            "mse": (y - target(self.test)).square().mean().item(),
            **violation_metrics(self.build_set(self.test), y, exact),
        }
        lower, upper = bounds(self.test)
        curves = {
            "x": self.test.squeeze(-1).tolist(),
            "y": y.squeeze(-1).tolist(),
            "target": target(self.test).squeeze(-1).tolist(),
            "lower": lower.amax(-1).tolist(),
            "upper": upper.amin(-1).tolist(),
        }
        return Evaluation(metrics, curves)

    def forward_for_timing(self, model: nn.Module) -> Callable[[], Any]:
        """All test points in one call, as a new input: its constraints are part of the answer."""
        return lambda: model(self.test.view_as(self.test))


# The pieces are (-inf, -1], (-1, 0], (0, 1] and (1, inf). Each is evaluated at a point inside its own piece where x is
# not, so that no piece can bring in an infinity or a NaN (3/x³ at 0).


def target(x: Tensor) -> Tensor:
    """The function to be learned, in the shape of x."""
    left, right, far = _inside(x)
    wave = torch.sin(math.pi / 2 * (left + 1))
    pieces = (-5 * wave - 2, torch.full_like(x, -2.0), 2 - 9 * (right - 2 / 3) ** 2, 3 / far**2 - 2)
    return _piecewise(x, pieces)


def bounds(x: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and the upper bounds at x ``(..., 1)``, each ``(..., 2)``."""
    left, right, far = _inside(x)
    wave = torch.sin(math.pi / 2 * (left + 1))
    flat = torch.ones_like(x)
    upper_1 = (-3 * wave + 1 / 5, -2 * flat, 3 - 4 * (right - 1 / 2) ** 2, 2 * flat)
    upper_2 = (-3 * wave**3 + 1, 2 * flat, 3 - 4 * (right - 4 / 5) ** 2, 2.5 * flat)
    lower_1 = (5 * wave**2 - 3, -2 * flat, (4 - 9 * (right - 2 / 3) ** 2) * right - 5 / 2, 3 / far**3 - 5 / 2)
    lower_2 = (5 * wave**8 - 2, -3 * flat, (5 - 4 * (right - 1 / 6) ** 2) * right - 5 / 2, 3 / (2 * far**3) - 16 / 9)
    lower = torch.cat([_piecewise(x, lower_1), _piecewise(x, lower_2)], -1)
    return lower, torch.cat([_piecewise(x, upper_1), _piecewise(x, upper_2)], -1)


def _inside(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The input moved into the first, the third and the fourth piece."""
    return x.clamp(max=-1), x.clamp(0, 1), x.clamp(min=1)


def _piecewise(x: Tensor, pieces: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    first, second, third, fourth = pieces
    return torch.where(x <= -1, first, torch.where(x <= 0, second, torch.where(x <= 1, third, fourth)))
