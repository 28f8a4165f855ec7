"""cbf: learn to drive a unicycle to the origin past three obstacles, on top of a PID controller that ignores them.

One rollout step, in the order that the paper's numbers come from:

    1  θ is wrapped to [-π, π)
    2  u_nom = PID(error in the body frame), saturated to the input limits
    3  u = model(x, u_nom): the network corrects u_nom, a layer makes it satisfy the rows at x; saturated again
    4  within 0.1 m of the goal both x and u are set to zero: the robot is put on the goal and stays
    5  cost += xᵀQx + |u - u_nom|²,  penalty += violations of u at x
    6  x' = RK4(x, u)

and xᵀQ_N x at the end. The correction in the cost is the realised one, after projection and saturation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from caffnet import AffineSet
from caffnet.control import (
    BarrierConstraint,
    InsideBox,
    OutsidePolytopes,
    Stack,
    Unicycle,
    UnicyclePID,
    hull_corners,
    hull_rows,
    limit_gradient,
    linear,
    rk4,
)
from caffnet_lab.experiments.philox import CudaStream
from caffnet_lab.experiments.problem import Evaluation, Loss, Problem, penalty_of, violation_metrics

SAMPLES, DT, TRAIN_STEPS, TEST_STEPS = 300, 0.1, 150, 100
TEST_START = (-4.5, 0.0, 0.5)
#: The starts that no setting was chosen on: the same for all seeds and methods, from a stream that nothing else reads.
FRESH_STARTS, FRESH_SEED = 200, 20_260_000
GOAL_RADIUS = 0.1
STATE_WEIGHT, FINAL_WEIGHT = 1e3, 1e6  # on p_x² + p_y²; the heading costs nothing
PENALTY_WEIGHT = 100.0  # in the reported cost
SHARPNESS = 10.0

# The paper writes π for the heading; its numbers come from 3.14.
STATE_LOWER, STATE_UPPER = (-5.0, -4.0, -3.14), (1.0, 2.0, 3.14)
INPUT_LOWER, INPUT_UPPER = (-0.01, -0.5), (1.0, 0.5)
INPUT_NAMES = ("v <= 1", "ω <= 0.5", "v >= -0.01", "ω >= -0.5")

#: Centre and vertices (from the centre) of each obstacle.
OBSTACLES = (
    (
        (-1.2, 0.0),
        ((-0.36282, -0.08718), (-0.06282, -0.38718), (0.08718, 0.36282), (-0.51282, 0.21282), (0.53718, -0.08718)),
    ),
    (
        (-1.5, -2.0),
        (
            (-0.3, 0.12),
            (0.21969, 0.33123),
            (-0.23031, 0.39123),
            (-0.15, -0.3),
            (-0.08031, 0.45123),
            (0.51969, -0.50877),
        ),
    ),
    ((-2.8, 0.5), ((0.0, -0.6), (0.1671, -0.6), (-0.28329, -0.1), (0.31671, 0.0), (0.01671, 0.6))),
)


def obstacle_corners() -> list[Tensor]:
    """The corners of each obstacle in the plane, counter-clockwise."""
    return [hull_corners([[cx + x, cy + y] for x, y in corners]) for (cx, cy), corners in OBSTACLES]


def barrier() -> Stack:
    """Nine functions: three obstacles, then the six sides of the state box."""
    obstacles = OutsidePolytopes([hull_rows(corners) for corners in obstacle_corners()], SHARPNESS)
    return Stack(obstacles, InsideBox(STATE_LOWER, STATE_UPPER, names=["p_x", "p_y", "θ"]))


def fresh_starts() -> Tensor:
    """Safe states that no network has seen and no choice was made on, drawn as those for training are: ``(200, 3)``."""
    generator = torch.Generator().manual_seed(FRESH_SEED)
    return _draw(FRESH_STARTS, barrier(), partial(torch.rand, dtype=torch.float64, generator=generator))


def _draw(count: int, safe: Stack, uniform: Callable[[int], Tensor]) -> Tensor:
    """Safe states, uniform over the box by rejection, heading to the origin: ``(count, 3)``."""
    low, high = torch.tensor(STATE_LOWER, dtype=torch.float64), torch.tensor(STATE_UPPER, dtype=torch.float64)
    kept: list[Tensor] = []
    while len(kept) < count:
        state = low + (high - low) * uniform(3)
        state[2] = torch.atan2(-state[1], -state[0])
        if (safe(state) >= 0).all():
            kept.append(state)
    return torch.stack(kept)


def _arrival_time(states: list[Tensor]) -> float | None:
    """The time at which the robot first enters the goal's circle, in seconds; None if it never does."""
    inside = (i for i, x in enumerate(states) if float(x[..., :2].norm()) <= GOAL_RADIUS)
    step = next(inside, None)
    return None if step is None else (step + 1) * DT


class DrivingProblem(Problem):
    """300 random safe initial states for training, one for the test.

    Args:
        seed: of the stream of states. As in the paper's runs, 300 states, one and one are drawn and thrown away first.
        adjoint: limit on the gradient with respect to each state that an input follows; 0 for none.
        goal_radius: of the circle that counts as the goal in the loss; a test has the paper's.
        draws: ``"native"``, torch's CPU stream, or ``"paper"``: that of the authors' GPU, so the states are theirs.
    """

    name, n_in, n_out = "cbf", 3, 2

    def __init__(
        self,
        seed: int,
        adjoint: float = 0.0,
        goal_radius: float = GOAL_RADIUS,
        draws: Literal["native", "paper"] = "native",
    ):
        super().__init__()
        self.adjoint, self.goal_radius = adjoint, goal_radius
        one = torch.eye(2, dtype=torch.float64)
        limits = torch.tensor([*INPUT_UPPER, *(-v for v in INPUT_LOWER)], dtype=torch.float64)
        inputs = AffineSet.inequality(torch.cat([one, -one]), limits, names=INPUT_NAMES)
        self.system, self.barrier = Unicycle(), barrier()
        self.safe = BarrierConstraint(self.system, self.barrier, linear(1.0), inputs)
        generator = torch.Generator().manual_seed(seed)
        native = partial(torch.rand, dtype=torch.float64, generator=generator)
        uniform = {"native": native, "paper": CudaStream(seed).rand}[draws]
        for count in (SAMPLES, 1, 1):
            _draw(count, self.barrier, uniform)
        self.train = _draw(SAMPLES, self.barrier, uniform)
        self.test = torch.tensor([TEST_START], dtype=torch.float64)
        self.input_lower = torch.tensor(INPUT_LOWER, dtype=torch.float64)
        self.input_upper = torch.tensor(INPUT_UPPER, dtype=torch.float64)
        self.full_turn = torch.tensor([0.0, 0.0, 2 * math.pi], dtype=torch.float64)  # of the heading

    def build_set(self, x: Tensor) -> AffineSet:
        """13 rows: obstacles, state box, input limits."""
        return self.safe(x)

    def loss(self, model: nn.Module, x: Tensor, penalty: str = "squared") -> Loss:
        """The cost of 15 s from every initial state."""
        return self._drive(model, x, TRAIN_STEPS, penalty, goal_radius=self.goal_radius)

    def evaluate(self, model: nn.Module, exact: bool = False) -> Evaluation:
        """Cost, violations and safety of 10 s from the test state, of 15 s from fresh ones (unless `exact`).

        The arrival from the test state may come within the 15 s of training.
        """
        path: list[tuple[Tensor, ...]] = []
        longer: list[tuple[Tensor, ...]] = []
        with torch.no_grad():
            cost, penalty, _ = self._drive(model, self.test, TEST_STEPS, "squared", path)
            self._drive(model, self.test, TRAIN_STEPS, "squared", longer)
        states, inputs, nominal, final = (torch.cat(column) for column in zip(*path, strict=True))
        # Measured at the states as the integrator left them, with the inputs applied there, and state by state, as the
        # rows were used: those of all states at once differ in their last digits.
        sets = [self.build_set(x) for x, *_ in path]
        rows = ((s.A, s.lower.expand(s.A.shape[:-1]), s.upper.expand(s.A.shape[:-1])) for s in sets)
        A, lower, upper = (torch.cat(column) for column in zip(*rows, strict=True))
        used = AffineSet(A, lower, upper)
        violations = violation_metrics(used, inputs, exact)
        states = torch.cat([states, final[-1:]])
        distance = states[:, :2].norm(dim=-1)
        margin = self.barrier(states).amin(-1)
        clearance = self._clearance(states).min()
        metrics = {
            "cost": (cost + PENALTY_WEIGHT * penalty).item(),
            "penalty": (PENALTY_WEIGHT * penalty).item(),
            **violations,
            "final_distance": distance[-1].item(),
            "arrived": bool(distance.min() <= GOAL_RADIUS),
            "arrival_time": _arrival_time([x for *_, x in longer]),
            "smallest_barrier": margin.min().item(),
            "clearance": clearance.item(),
            "collided": bool(clearance < 0),
        }
        if not exact:
            metrics["fresh"] = self._drive_fresh(model)
        curves = {
            "dt": DT,
            "states": states.tolist(),
            "inputs": inputs.tolist(),
            "nominal": nominal.tolist(),
            "allowed_speed": self._allowed_speed(states[:-1]).tolist(),
            "limits": list(zip(INPUT_LOWER, INPUT_UPPER, strict=True)),
            "obstacles": [corners.tolist() for corners in obstacle_corners()],
            "box": [STATE_LOWER[:2], STATE_UPPER[:2]],
            "goal_radius": GOAL_RADIUS,
        }
        return Evaluation(metrics, curves)

    def _drive_fresh(self, model: nn.Module) -> dict[str, float]:
        """Outcome of 15 s from the fresh starts: shares in percent, the mean cost, and the worst row and clearance.

        “Safe” is a start whose drive is never inside an obstacle, “arrived” one that comes within 0.1 m of the goal.
        """
        path: list[tuple[Tensor, ...]] = []
        start = fresh_starts().to(self.test)
        with torch.no_grad():
            cost, penalty, worst = self._drive(model, start, TRAIN_STEPS, "squared", path)
        states = torch.stack([start, *(x for *_, x in path)])
        clearance = self._clearance(states).amin(0)
        arrived = states[..., :2].norm(dim=-1).amin(0) <= GOAL_RADIUS
        return {
            "starts": len(start),
            "safe": 100.0 * (clearance >= 0).double().mean().item(),
            "arrived": 100.0 * arrived.double().mean().item(),
            "cost": (cost + PENALTY_WEIGHT * penalty).item() / len(start),
            "violation": worst.item(),
            "clearance": clearance.min().item(),
        }

    def _allowed_speed(self, states: Tensor) -> Tensor:
        """The largest speed that obstacles and state box allow at each state: rows ``a v <= b`` with a > 0."""
        rows = self.build_set(states)
        forward, free = rows.A[..., 0] > 0, torch.full_like(rows.upper, torch.inf)
        return torch.where(forward, rows.upper / torch.where(forward, rows.A[..., 0], 1.0), free).amin(-1)

    def _clearance(self, states: Tensor) -> Tensor:
        """Distance of the robot from the obstacles, without smoothing: ``min_j max_i h_ji``; negative inside one."""
        away = []
        for corners in obstacle_corners():
            A, b = hull_rows(corners)
            away.append((states[..., :2] @ A.to(states).mT - b.to(states)).amax(-1))
        return torch.stack(away, -1).amin(-1)

    def forward_for_timing(self, model: nn.Module) -> Callable[[], Any]:
        """The 100 calls of the test rollout, one state at a time."""
        path: list[tuple[Tensor, ...]] = []
        with torch.no_grad():
            self._drive(model, self.test, TEST_STEPS, "squared", path)
        calls = [(state.clone(), nominal) for state, _, nominal, _ in path]

        def forward() -> None:
            for state, nominal in calls:
                model(state, nominal)

        return forward

    def _drive(
        self,
        model: nn.Module,
        x: Tensor,
        steps: int,
        penalty: str,
        path: list[tuple[Tensor, ...]] | None = None,
        goal_radius: float = GOAL_RADIUS,
    ) -> Loss:
        """The rollout of the module's docstring; `path` collects (state, input, nominal, next state)."""
        pid = UnicyclePID(dt=DT)
        sets: list[AffineSet] = []
        taken: list[tuple[Tensor, ...]] = []
        for _ in range(steps):
            before = x = limit_gradient(x, self.adjoint) if self.adjoint else x
            x = x - self.full_turn * torch.floor((x.detach() + math.pi) / (2 * math.pi))
            nominal = torch.clamp(pid(x), self.input_lower, self.input_upper)
            sets.append(self.constraint(x))  # remembered: a layer asks for the same
            wanted = torch.clamp(model(x, nominal), self.input_lower, self.input_upper)
            driving = (x.detach()[..., :2].square().sum(-1, keepdim=True) > goal_radius**2).to(x.dtype)
            x, u = x * driving, wanted * driving
            taken.append((x, u, nominal, wanted, driving))
            x = rk4(self.system, x, u, DT)
            if path is not None:
                path.append((before, u, nominal, x))
        self._last = None
        # All at once: summed step by step, their derivatives would be half of those of a step.
        states, inputs, nominals, wanted, driving = (torch.stack(column) for column in zip(*taken, strict=True))
        cost = STATE_WEIGHT * states[..., :2].square().sum() + (inputs - nominals).square().sum()
        # At the goal u = 0 and x = 0, where every row holds: masking the violation is the same.
        broken, worst = penalty_of(_stacked(sets).violation(wanted) * driving, penalty)
        return Loss(cost + FINAL_WEIGHT * x[..., :2].square().sum(), broken, worst)


def _stacked(sets: list[AffineSet]) -> AffineSet:
    """The sets of all steps as one."""
    A, upper = (torch.stack([getattr(one, part) for one in sets]) for part in ("A", "upper"))
    return AffineSet.from_parts(A, sets[0].lower, upper, sets[0].labels, sets[0].row_kinds)
