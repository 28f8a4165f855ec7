"""hardnet-cbf: drive a unicycle that is steered by its accelerations past two ellipses to the origin (HardNet's task).

State (p_x, p_y, θ, v, ω), input u = (dv/dt, dω/dt). With the point c = p + l (cos θ, sin θ) ahead of the axle and an
ellipse with centre m and radii r,

    h = Σ_i ((c_i - m_i) / r_i)² - 1 >= 0,          ψ = dh/dt + κ h >= 0,

ψ is the barrier whose change the input decides: one row ``-L_g ψ u <= L_f ψ + α ψ`` for each ellipse. A nominal
controller ignores the ellipses; a network adds a correction. An episode lasts 1 s in steps of 0.02 s (Euler); where an
input exceeds `THRESHOLD`, the step is divided so that its product with the input stays below. The cost is
``∫ xᵀQx + uᵀRu``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from caffnet import AffineSet, project
from caffnet.control import Barrier, BarrierConstraint, ControlAffine, linear
from caffnet_lab.experiments.problem import Evaluation, Loss, Problem, penalty_of, time_forward, violation_metrics
from caffnet_lab.experiments.yardsticks.tasks import ELLIPSES

SAMPLES, SEED, SPLITS = 1000, 17, (833, 83, 84)
LOWER, UPPER = (-4.0, 0.0, -math.pi / 4, 0.0, 0.0), (-3.5, 0.5, -math.pi / 8, 0.0, 0.0)
AHEAD, KAPPA, ALPHA = 0.1, 10.0, 20.0
DT, STEPS, THRESHOLD = 0.02, 50, 100.0
STATE_WEIGHTS, INPUT_WEIGHT = (100.0, 100.0, 0.0, 0.1, 0.1), 0.1
MOST_COST = 20_000.0  # of an episode in training: what costs more has lost its way
TOUCHED = 1e-3  # of h below zero, which counts as a collision; the published check has it
MOST_PARTS = 200  # of one step


class EllipseBarrier(Barrier):
    """ψ of every ellipse, with its gradient written out."""

    names = tuple(f"ellipse {i + 1}" for i in range(len(ELLIPSES)))

    def __call__(self, x: Tensor) -> Tensor:
        """``(..., 2)``."""
        away, moving, scale, _, _ = self._parts(x)
        return (2 * away * moving * scale + KAPPA * away.square() * scale).sum(-1) - KAPPA

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """ψ and its gradient, ``(..., 2, 5)``.

        Turning by dθ moves the point along ``l (-sin θ, cos θ)`` and turns its velocity by a right angle.
        """
        away, moving, scale, ahead, aside = self._parts(x)
        by_point = 2 * (moving + KAPPA * away) * scale
        turned = torch.stack([-moving[..., 1], moving[..., 0]], -1)
        by_angle = (by_point * AHEAD * aside + 2 * away * turned * scale).sum(-1)
        by_speed = (2 * away * scale * ahead).sum(-1)
        by_turn = (2 * away * scale * AHEAD * aside).sum(-1)
        gradient = torch.stack([*by_point.unbind(-1), by_angle, by_speed, by_turn], -1)
        return (2 * away * moving * scale + KAPPA * away.square() * scale).sum(-1) - KAPPA, gradient

    def clearance(self, x: Tensor) -> Tensor:
        """The h of every ellipse, ``(..., 2)``."""
        away, _, scale, _, _ = self._parts(x)
        return (away.square() * scale).sum(-1) - 1

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The way c - m and its velocity ``(..., 2, 2)``, 1 / r², and the directions ahead and aside."""
        ellipses = x.new_tensor(ELLIPSES)
        angle = x[..., 2]
        ahead = torch.stack([angle.cos(), angle.sin()], -1).unsqueeze(-2)
        aside = torch.stack([-angle.sin(), angle.cos()], -1).unsqueeze(-2)
        away = x[..., None, :2] + AHEAD * ahead - ellipses[:, :2]
        moving = x[..., 3, None, None] * ahead + AHEAD * x[..., 4, None, None] * aside
        return away, moving.expand_as(away), ellipses[:, 2:] ** -2, ahead, aside


class Encoder(nn.Module):
    """The state with the angle as cosine and sine, ``(..., 6)``."""

    def forward(self, x: Tensor) -> Tensor:
        """The inputs of a network."""
        return torch.cat([x[..., :2], x[..., 2:3].cos(), x[..., 2:3].sin(), x[..., 3:]], -1)


class NominalPolicy(nn.Module):
    """The nominal controller, or its projection on the safe inputs: the quadratic program of barrier functions."""

    def __init__(self, safe: Callable[[Tensor], AffineSet] | None):
        super().__init__()
        self.safe = safe

    def forward(self, x: Tensor, nominal: Tensor) -> Tensor:
        """The input, ``(..., 2)``."""
        return nominal if self.safe is None else project(nominal, self.safe(x), on_infeasible="nearest").value


def nominal_input(x: Tensor) -> Tensor:
    """Accelerations towards the speeds that lead straight to the origin, ``(..., 2)``."""
    p_x, p_y, angle, v, turn = x.unbind(-1)
    distance = (p_x.square() + p_y.square()).sqrt()
    wanted_turn = 10 * (p_x * angle.sin() - p_y * angle.cos()) / (distance + 1e-5)
    wanted = (10 * distance * (-p_x * angle.cos() - p_y * angle.sin())).clamp(-5, 5)
    return torch.stack([5 * (wanted - v), 5 * (wanted_turn - turn)], -1)


class EllipseProblem(Problem):
    """1000 random safe starts: 833 for training, 83 for the choice of settings, 84 for the test.

    Args:
        name: of the task.
        seed: of the run, not used here: the starts are always the same.
    """

    n_in, n_out = 6, 2

    def __init__(self, name: str = "hardnet-cbf", seed: int = 0):
        super().__init__()
        del seed
        self.name, self.barrier, self.encoder = name, EllipseBarrier(), Encoder()
        self.system = ControlAffine(5, 2, _drift, lambda x: x.new_tensor([[0, 0], [0, 0], [0, 0], [1, 0], [0, 1]]))
        self.safe = BarrierConstraint(self.system, self.barrier, linear(ALPHA))
        self.weights = torch.tensor(STATE_WEIGHTS, dtype=torch.float64)
        self.train, self.valid, self.test = self._draw().split(SPLITS)

    def _draw(self) -> Tensor:
        """Uniform over a box; starts with ψ < 0 are drawn again, all of them at once, as published."""
        stream = np.random.RandomState(SEED)

        def draw(count: int) -> np.ndarray:
            share = stream.rand(count, 5)
            return share * np.array(LOWER) + (1 - share) * np.array(UPPER)

        states, wrong = draw(SAMPLES), np.arange(SAMPLES)
        while len(wrong):
            unsafe = (self.barrier(torch.from_numpy(states[wrong])) < 0).any(-1).numpy()
            wrong = wrong[unsafe]
            states[wrong] = draw(len(wrong))
        return torch.from_numpy(states)

    def build_set(self, x: Tensor) -> AffineSet:
        """Two rows, one for each ellipse."""
        return self.safe(x)

    def loss(self, model: nn.Module, x: Tensor, penalty: str = "squared") -> Loss:
        """The sum of the costs of all episodes, over 100."""
        cost, broken, worst = self._drive(model, x, penalty, [])
        return Loss(cost.clamp_max(MOST_COST).sum() / 100, broken / 100, worst)

    def evaluate(self, model: nn.Module, exact: bool = False) -> Evaluation:
        """The mean cost, violations of rows along the way, and collisions, of the test starts."""
        path: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            cost, _, _ = self._drive(model, self.test, "squared", path)
        states, inputs = (torch.cat(column) for column in zip(*path, strict=True))
        clear = torch.stack([self.barrier.clearance(x).amin(-1) for x, _ in path]).amin(0)
        metrics = {
            "cost": cost.mean().item(),
            "collided": 100 * (clear < -TOUCHED).double().mean().item(),
            "clearance": clear.min().item(),
            **violation_metrics(self.build_set(states), inputs, exact),
        }
        return Evaluation(metrics, {"paths": [[x[i, :2].tolist() for x, _ in path] for i in range(8)]})

    def forward_for_timing(self, model: nn.Module) -> Callable[[], Tensor]:
        """One input for every test start."""
        return lambda: model(self.test.view_as(self.test), nominal_input(self.test))

    def solve(self, name: str) -> tuple[Tensor, float]:
        """The inputs of a row without learning at the test starts."""
        policy = self._policy(name)
        return policy(self.test, nominal_input(self.test)), time_forward(
            self.forward_for_timing(policy), self.test.device
        )

    def judge(self, name: str) -> tuple[Evaluation, float]:
        """The episodes of a row without learning: a policy is judged by the states that it leads to."""
        return self.evaluate(self._policy(name)), self.solve(name)[1]

    def _policy(self, name: str) -> nn.Module:
        if name not in ("base", "minimiser"):
            raise NotImplementedError(f"{self.name} has no row {name}.")
        return NominalPolicy(self.safe if name == "minimiser" else None)

    def _drive(
        self, model: Callable[..., Tensor], x: Tensor, penalty: str, path: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The cost of every episode ``(B,)``, the penalty and the largest violation; `path` collects (state, input)."""
        cost, broken, worst = x.new_zeros(len(x)), x.new_zeros(()), x.new_zeros(())
        for _ in range(STEPS):
            left = x.new_full((len(x),), DT)
            for part in range(MOST_PARTS):
                nominal, allowed = nominal_input(x), self.constraint(x)
                u = model(x, nominal)
                with torch.no_grad():
                    longest = (DT * THRESHOLD / u.abs()).amin(-1)
                    now = torch.minimum(longest, left)
                    left = left - now
                if part == 0:
                    path.append((x, u))
                here = (now > 0).to(x)
                amount, largest = penalty_of(allowed.violation(u) * here.unsqueeze(-1), penalty)
                cost = cost + now * ((self.weights * x.square()).sum(-1) + INPUT_WEIGHT * u.square().sum(-1))
                broken, worst = broken + amount * DT, torch.maximum(worst, largest)
                x = x + now.unsqueeze(-1) * self.system.velocity(x, u)
                if not bool((left > 0).any()):
                    break
        self._last = None
        return cost, broken, worst


def _drift(x: Tensor) -> Tensor:
    angle, v, turn = x[..., 2], x[..., 3], x[..., 4]
    still = torch.zeros_like(v)
    return torch.stack([v * angle.cos(), v * angle.sin(), turn, still, still], -1)
