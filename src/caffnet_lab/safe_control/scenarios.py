"""One scenario per system: its constraints, the limits of its actuators, a driver and disturbances.

A reckless driver starts in 1000 safe states. Inputs are held for `dt`, with 20 substeps between; the rows account for
the disturbances. Class-K functions are linear with slope a, so that a wall at distance h asks for at most ``a² h`` of
deceleration: the limits of the inputs are chosen to have that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from caffnet import AffineSet
from caffnet.control import (
    Barrier,
    BarrierConstraint,
    Bicycle,
    CartPole,
    ControlAffine,
    DoubleIntegrator,
    FunctionBarrier,
    HighOrder,
    InsideBox,
    OutsideCircles,
    PlanarQuadrotor,
    Stack,
    TwoLinkArm,
    Unicycle,
    hold_reserve,
    linear,
)

FREE = math.inf


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A system in danger.

    Attributes:
        system: the dynamics.
        keep: functions of the state that must stay >= 0: what is judged.
        safe: the constraint that keeps them.
        levels: more functions that are >= 0 at every start, such as the raised barriers.
        driver: the reckless policy.
        lower: the box of starts.
        upper: its other corner.
        dt: time between inputs.
        steps: number of inputs.
        wind: bound on the disturbance of each state.
    """

    system: ControlAffine
    keep: Barrier
    safe: BarrierConstraint
    levels: tuple[Barrier, ...]
    driver: Callable[[Tensor], Tensor]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    dt: float
    steps: int
    wind: tuple[float, ...]

    def starts(self, count: int, seed: int = 0) -> Tensor:
        """Safe states, uniform in the box by rejection, ``(count, n_x)``."""
        generator = torch.Generator().manual_seed(seed)
        low, high = (torch.tensor(side, dtype=torch.float64) for side in (self.lower, self.upper))
        kept = torch.empty(0, len(low), dtype=torch.float64)
        while len(kept) < count:
            x = low + (high - low) * torch.rand(4096, len(low), dtype=torch.float64, generator=generator)
            good = torch.stack([(level(x) >= 0).all(-1) for level in (self.keep, *self.levels)]).all(0)
            kept = torch.cat([kept, x[good]])
        return kept[:count]

    def hopeless(self, count: int, seed: int = 0) -> Tensor:
        """States of a box twice as large, safe or not, many of them too fast to be saved, ``(count, n_x)``."""
        generator = torch.Generator().manual_seed(seed)
        low, high = (2 * torch.tensor(side, dtype=torch.float64) for side in (self.lower, self.upper))
        return low + (high - low) * torch.rand(count, len(low), dtype=torch.float64, generator=generator)

    def disturbance(self, x: Tensor, t: Tensor) -> Tensor:
        """The worst at hand: each state is pushed by its bound, to and fro once a second and apart in phase."""
        phase = torch.arange(x.shape[-2], dtype=x.dtype).unsqueeze(-1)
        return torch.tensor(self.wind, dtype=x.dtype) * torch.sign(torch.sin(2 * math.pi * t + phase))


def _walls(n: int, **sides: tuple[float, float]) -> InsideBox:
    """Limits on some entries of the state, by ``x2=(low, high)``."""
    low, high = [-FREE] * n, [FREE] * n
    for name, (a, b) in sides.items():
        low[int(name[1:])], high[int(name[1:])] = a, b
    return InsideBox(low, high)


def _held(scenario: Scenario, most: float = FREE) -> Scenario:
    """The scenario with a reserve for held inputs, estimated over its box of states."""
    old = scenario.safe
    reserve = hold_reserve(old, scenario.dt, lower=scenario.lower, upper=scenario.upper).clamp_max(most)
    safe = BarrierConstraint(
        old.system, old.barrier, old.class_k, old.inputs, reserve=reserve, disturbance=old.disturbance
    )
    return dataclasses.replace(scenario, safe=safe)


def integrator() -> Scenario:
    """A mass in a room, pulled through its corner."""
    mass = DoubleIntegrator(2)
    room = _walls(4, x0=(-1.0, 1.0), x1=(-1.0, 1.0))
    raised = HighOrder(room, mass, linear(2.0))
    wind = (0.0, 0.0, 0.3, 0.3)
    safe = BarrierConstraint(mass, raised, linear(2.0), AffineSet.box(-12.0, 12.0, dim=2), disturbance=wind)
    lower, upper = (-1.0, -1.0, -3.0, -3.0), (1.0, 1.0, 3.0, 3.0)
    goal = torch.tensor([3.0, 2.0], dtype=torch.float64)
    return _held(
        Scenario(mass, room, safe, (raised,), lambda x: 10 * (goal - x[..., :2]), lower, upper, 0.02, 150, wind)
    )


def unicycle() -> Scenario:
    """A robot that drives straight on among three circles."""
    robot = Unicycle()
    circles = OutsideCircles([[0.0, 0.0], [2.0, 1.0], [-1.5, 1.5]], [0.5, 0.7, 0.4])
    safe = BarrierConstraint(robot, circles, linear(2.0), AffineSet.box([-1.0, -1.0], [1.0, 1.0]))
    lower, upper = (-3.0, -3.0, -math.pi), (3.0, 3.0, math.pi)
    ahead = torch.tensor([1.0, 0.1], dtype=torch.float64)
    return Scenario(
        robot, circles, safe, (), lambda x: ahead.expand(*x.shape[:-1], 2), lower, upper, 0.05, 100, (0.0,) * 3
    )


def bicycle() -> Scenario:
    """A car that accelerates and turns towards circles; it must be able to stop, whatever its heading.

    The brake reaches a position at the second derivative and the steering at the third: a mixed relative degree, where
    a raised barrier would forbid nothing to the steering. The distance left after braking, ``|p - c| - r - v²/2b``, has
    degree one, and at ``dv/dt = -b`` it never falls: ``dh/dt = v (cos φ + 1) >= 0``.
    """
    car, brake = Bicycle(2.0), 6.0
    centres = torch.tensor([[0.0, 0.0], [6.0, 3.0]], dtype=torch.float64)
    radii = torch.tensor([1.0, 1.5], dtype=torch.float64)

    def after_braking(x: Tensor) -> Tensor:
        return (x[:2] - centres).norm(dim=-1) - radii - x[3].square() / (2 * brake)

    limits = _walls(5, x4=(-0.5, 0.5))
    stopping = FunctionBarrier(after_braking, names=["circle 0", "circle 1"])
    safe = BarrierConstraint(car, Stack(stopping, limits), linear(2.0), AffineSet.box([-8.0, -2.0], [3.0, 2.0]))
    lower, upper = (-8.0, -8.0, -math.pi, 0.0, -0.4), (8.0, 8.0, math.pi, 3.0, 0.4)
    gas = torch.tensor([3.0, 1.0], dtype=torch.float64)
    keep = Stack(OutsideCircles(centres, radii), limits)
    return Scenario(
        car, keep, safe, (stopping,), lambda x: gas.expand(*x.shape[:-1], 2), lower, upper, 0.02, 150, (0.0,) * 5
    )


def quadrotor() -> Scenario:
    """A quadrotor between floor and ceiling, driven to turn over and through the roof."""
    drone = PlanarQuadrotor()
    room = _walls(6, x1=(0.0, 2.0), x2=(-0.5, 0.5))
    raised = HighOrder(room, drone, linear(2.0))
    wind = (0.0, 0.0, 0.0, 0.3, 0.3, 0.3)
    inputs = AffineSet.box([0.0, -0.2], [30.0, 0.2])
    safe = BarrierConstraint(drone, raised, linear(2.0), inputs, disturbance=wind)
    lower, upper = (-1.0, 0.0, -0.5, -1.0, -2.0, -1.0), (1.0, 2.0, 0.5, 1.0, 2.0, 1.0)
    wild = torch.tensor([30.0, 0.2], dtype=torch.float64)
    return _held(
        Scenario(drone, room, safe, (raised,), lambda x: wild.expand(*x.shape[:-1], 2), lower, upper, 0.01, 200, wind)
    )


def cart_pole() -> Scenario:
    """A cart between two stops, with a swinging pole, pushed to one side."""
    cart = CartPole()
    stops = _walls(4, x0=(-1.0, 1.0))
    raised = HighOrder(stops, cart, linear(2.0))
    wind = (0.0, 0.0, 0.3, 0.3)
    safe = BarrierConstraint(cart, raised, linear(2.0), AffineSet.box([-16.0], [16.0]), disturbance=wind)
    lower, upper = (-1.0, -1.0, -3.0, -3.0), (1.0, 1.0, 3.0, 3.0)
    push = torch.tensor([16.0], dtype=torch.float64)
    return _held(
        Scenario(cart, stops, safe, (raised,), lambda x: push.expand(*x.shape[:-1], 1), lower, upper, 0.02, 150, wind)
    )


def arm() -> Scenario:
    """Two joints with stops, driven against them."""
    links = TwoLinkArm()
    stops = _walls(4, x0=(-1.0, 1.0), x1=(-1.5, 1.5))
    raised = HighOrder(stops, links, linear(2.5))
    wind = (0.0, 0.0, 0.3, 0.3)
    safe = BarrierConstraint(links, raised, linear(2.5), AffineSet.box([-80.0, -40.0], [80.0, 40.0]), disturbance=wind)
    lower, upper = (-1.0, -1.5, -1.5, -1.5), (1.0, 1.5, 1.5, 1.5)
    force = torch.tensor([80.0, 40.0], dtype=torch.float64)
    return _held(
        Scenario(
            links, stops, safe, (raised,), lambda x: force.expand(*x.shape[:-1], 2), lower, upper, 0.002, 500, wind
        )
    )


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "integrator": integrator,
    "unicycle": unicycle,
    "bicycle": bicycle,
    "quadrotor": quadrotor,
    "cart-pole": cart_pole,
    "arm": arm,
}
