"""Barriers of higher order: written-out gradients, relative degrees, margins, graphs."""

import math

import pytest
import torch

from caffnet import AffineSet, CAffNet, FeedForward
from caffnet.control import (
    Barrier,
    BarrierConstraint,
    Bicycle,
    CartPole,
    DoubleIntegrator,
    FunctionBarrier,
    HighOrder,
    InsideBox,
    InsidePolytope,
    Integrator,
    Intersection,
    Moving,
    OutsideCircles,
    OutsidePolytopes,
    PlanarQuadrotor,
    SafetyFilter,
    Stack,
    TwoLinkArm,
    Union,
    hull_rows,
    linear,
    power,
    rollout,
    saturating,
)
from caffnet.control.barriers.base import Resting
from caffnet.control.systems.base import ControlAffine, InTime
from caffnet.errors import ConstraintError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch.func compiles rules

TRIANGLE = hull_rows([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
SHAPES = {
    "polytope": InsidePolytope([[1.0, 2.0, 0.0, 0.0], [0.5, -1.0, 0.0, 0.0]], [1.0, 2.0]),
    "box": InsideBox([-1.0, -2.0, -math.inf, -math.inf], [1.0, math.inf, math.inf, math.inf]),
    "circles": OutsideCircles([[0.0, 0.5], [1.0, -1.0]], [0.3, 0.6]),
    "polytopes": OutsidePolytopes([TRIANGLE, hull_rows([[2.0, 2.0], [3.0, 2.0], [3.0, 3.0], [2.0, 3.0]])]),
    "union": Union(OutsidePolytopes([TRIANGLE]), OutsideCircles([[2.0, 0.0]], [0.5])),
    "intersection": Intersection(OutsidePolytopes([TRIANGLE]), OutsideCircles([[2.0, 0.0]], [0.5])),
    "stack": Stack(OutsidePolytopes([TRIANGLE]), OutsideCircles([[2.0, 0.0]], [0.5])),
}
ALPHAS = {
    "linear": linear(2.0),
    "power": power(0.5, 3.0),
    "saturating": saturating(2.0, 0.7),
    "given": lambda h: h + 0.1 * h**3,
}


def states(count: int, n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Automatic(Barrier):
    """The same function, everything by automatic differentiation."""

    def __init__(self, barrier: Barrier):
        self.barrier, self.names, self.moving = barrier, barrier.names, barrier.moving

    def __call__(self, x):
        return self.barrier(x)


@pytest.mark.parametrize("name", SHAPES)
def test_the_change_of_the_gradient_is_the_automatic_one(name):
    barrier, x, v = SHAPES[name], states(6, 4), states(6, 4, 1)
    exact = Automatic(barrier).evaluate_along(x, v)
    torch.testing.assert_close(barrier.evaluate_along(x, v), exact, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(Resting(barrier).evaluate_along(*map(padded, (x, v))), tuple(map(padded_last, exact)))


@pytest.mark.parametrize("name", SHAPES)
def test_third_derivatives_are_the_automatic_ones(name):
    barrier, x, v, w = SHAPES[name], states(6, 4), states(6, 4, 1), states(6, 4, 2)
    torch.testing.assert_close(barrier.third(x, v, w), Automatic(barrier).third(x, v, w), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(barrier.third(x, v, w), barrier.third(x, w, v))  # symmetric
    resting = Resting(barrier.lowered(0.3)).third(*map(padded, (x, v, w)))
    torch.testing.assert_close(resting, padded_last(barrier.third(x, v, w)))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("name", SHAPES)
def test_a_barrier_raised_twice_is_the_automatic_one(name, alpha):
    jerk, wide = Integrator(2, 3), {"polytope": InsidePolytope, "box": InsideBox}
    shape = SHAPES[name]
    if name in wide:  # over the state of six entries
        shape = InsidePolytope(torch.nn.functional.pad(shape.A, (0, 2)), shape.b)
    twice = HighOrder(HighOrder(shape, jerk, ALPHAS[alpha]), jerk, ALPHAS[alpha])
    x = 0.5 * states(4, 6)
    torch.testing.assert_close(twice.evaluate(x), Automatic(twice).evaluate(x), rtol=1e-7, atol=1e-7)


def padded(x):
    return torch.nn.functional.pad(x, (0, 1), value=0.7)


def padded_last(part):
    return part if part.ndim == 2 else torch.nn.functional.pad(part, (0, 1))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("name", SHAPES)
def test_the_gradient_of_a_raised_barrier_is_the_automatic_one(name, alpha):
    raised = HighOrder(SHAPES[name], DoubleIntegrator(2), ALPHAS[alpha])
    x = states(5, 4)
    torch.testing.assert_close(raised.evaluate(x), Automatic(raised).evaluate(x), rtol=1e-9, atol=1e-9)
    assert torch.autograd.gradcheck(raised.evaluate, (x[:2].requires_grad_(),))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_slopes_are_derivatives(alpha):
    from caffnet.control.class_k import as_class_k

    h = torch.linspace(-2, 2, 41, dtype=torch.float64, requires_grad=True)
    grown = as_class_k(ALPHAS[alpha])
    (slope,) = torch.autograd.grad(grown(h).sum(), h)
    torch.testing.assert_close(grown.slope(h.detach()), slope)
    (curve,) = torch.autograd.grad(grown.slope(h).sum() + 0 * h.sum(), h)
    torch.testing.assert_close(grown.curve(h.detach()), curve)


SYSTEMS = {
    "jerk": (Integrator(2, 3), OutsideCircles([[0.5, 0.0]], [0.3])),
    "bicycle": (Bicycle(2.0), OutsideCircles([[0.5, 0.0]], [0.3])),
    "quadrotor": (PlanarQuadrotor(0.7, 0.02), OutsideCircles([[0.5, 0.0]], [0.3])),
    "cart-pole": (CartPole(), InsideBox([-1.0, -0.5, -math.inf, -math.inf], [1.0, 0.5, math.inf, math.inf])),
    "arm": (TwoLinkArm(), InsideBox([-1.0, -0.5, -math.inf, -math.inf], [1.0, 0.5, math.inf, math.inf])),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_drifts_are_pulled_back_as_by_automatic_differentiation(name):
    system, barrier = SYSTEMS[name]
    x = 0.5 * states(6, system.n_x)
    general = ControlAffine(system.n_x, system.n_u, system.drift, system.actuation)
    gradient = states(6 * 3, system.n_x, 2).reshape(6, 3, -1)
    for mine, plain in ((system, general), (InTime(system), InTime(general))):
        z, g = (x, gradient) if mine is system else (padded(x), padded(gradient))
        torch.testing.assert_close(mine.pull_back(g, z), plain.pull_back(g, z))
        w = states(6, z.shape[-1], 4)
        torch.testing.assert_close(mine.push(z, w), ControlAffine.push(plain, z, w))
        torch.testing.assert_close(mine.bend(g, z, w), ControlAffine.bend(plain, g, z, w))
        torch.testing.assert_close(mine.along_input(g, z), ControlAffine.along_input(mine, g, z))
        torch.testing.assert_close(mine.along_drift(g, z), ControlAffine.along_drift(mine, g, z))
    raised = HighOrder(barrier, system)
    torch.testing.assert_close(raised.evaluate(x), Automatic(raised).evaluate(x), rtol=1e-9, atol=1e-9)


def test_an_order_more_goes_the_same_way():
    triple, wall = Integrator(1, 3), InsideBox([-math.inf] * 3, [1.0, math.inf, math.inf])
    twice = HighOrder(HighOrder(wall, triple, linear(2.0)), triple, linear(3.0))
    x = states(4, 3)
    # h = 1 - p: ψ1 = -v + 2 h, ψ2 = -a - 2 v + 3 (-v + 2 h) = 6 h - 5 v - a
    torch.testing.assert_close(twice(x), 6 * (1 - x[:, :1]) - 5 * x[:, 1:2] - x[:, 2:])
    torch.testing.assert_close(twice.evaluate(x)[1], torch.tensor([-6.0, -5.0, -1.0], dtype=x.dtype).expand(4, 1, 3))
    safe = BarrierConstraint(triple, twice, linear(2.0))
    path = rollout(triple, SafetyFilter(lambda x: torch.ones_like(x[..., :1]), safe), torch.zeros(1, 3), 400, 0.02)
    assert wall(path.states).min() >= 0
    assert path.states[..., -1, 0].min() > 0.9


def test_the_relative_degree_is_checked_when_built():
    mass, circle = DoubleIntegrator(2), OutsideCircles([[0.0, 0.0]], [1.0])
    with pytest.raises(ConstraintError, match=r"does not reach circle 0: L_g h = 0 at all 64 states .*Write HighOrder"):
        BarrierConstraint(mass, circle)
    with pytest.raises(ConstraintError, match="does not reach circle 0"):
        BarrierConstraint(Integrator(2, 3), HighOrder(circle, Integrator(2, 3)))  # one order is missing
    with pytest.raises(ConstraintError, match=r"The input reaches circle 0 directly .*would not keep it"):
        HighOrder(HighOrder(circle, mass), mass)  # one order too many
    local = FunctionBarrier(lambda x: 1 + torch.relu(x[2] - 50.0))  # the input acts only where it is fast
    with pytest.raises(ConstraintError, match="pass samples"):
        BarrierConstraint(mass, local)
    BarrierConstraint(mass, local, samples=torch.tensor([[0.0, 0.0, 60.0, 0.0]]))
    with pytest.raises(ConstraintError, match=r"samples must have shape \(..., 4\)"):
        BarrierConstraint(mass, local, samples=torch.zeros(3, 2))


def test_a_barrier_that_fails_is_refused_with_its_reason():
    mass = DoubleIntegrator(2)

    def branching(x):
        return x[2] if x[0] > 0 else -x[2]

    for samples in (None, torch.zeros(3, 4)):
        with pytest.raises(ConstraintError, match=r"cannot be evaluated .*vmap.* Write torch.where in place of an if"):
            BarrierConstraint(mass, FunctionBarrier(branching), samples=samples)
    with pytest.raises(ConstraintError, match="cannot be evaluated"):
        HighOrder(FunctionBarrier(branching), mass)
    BarrierConstraint(mass, FunctionBarrier(branching), samples=torch.empty(0, 4))  # not looked at


def test_a_barrier_that_is_nowhere_finite_is_refused():
    mass = DoubleIntegrator(2)
    speed, root = (
        FunctionBarrier(lambda x: 1 - x[2], ["speed"]),
        FunctionBarrier(lambda x: (-1 - x[2] ** 2).sqrt(), ["root"]),
    )
    with pytest.raises(ConstraintError, match="The gradient of root is finite at none of the 64 states"):
        BarrierConstraint(mass, Stack(speed, root))
    far = FunctionBarrier(lambda x: (x[2] - 50).sqrt(), names=["far"])
    with pytest.raises(ConstraintError, match="pass samples: states where it is defined"):
        BarrierConstraint(mass, far)
    BarrierConstraint(mass, far, samples=torch.tensor([[0.0, 0.0, 60.0, 0.0]]))
    right, left = FunctionBarrier(lambda x: x[2].sqrt()), FunctionBarrier(lambda x: (-x[2]).sqrt())
    BarrierConstraint(mass, Stack(right, left))  # never both, each somewhere


def test_a_barrier_raised_along_another_system_is_refused():
    circle, mass = OutsideCircles([[2.0, 0.0]], [0.5]), DoubleIntegrator(2)
    slow = ControlAffine(4, 2, lambda x: 0.5 * mass.drift_at(x), mass.actuation)
    for raised in (HighOrder(circle, slow), Stack(HighOrder(circle, mass), HighOrder(circle, slow))):
        with pytest.raises(ConstraintError, match=r"built on another system .*pass the same system to both"):
            BarrierConstraint(mass, raised)
    BarrierConstraint(DoubleIntegrator(2), HighOrder(circle, mass))  # another object, the same system
    BarrierConstraint(mass, HighOrder(Moving(circle, [1.0, 0.0]), DoubleIntegrator(2)))
    with pytest.raises(ConstraintError, match="built on another system"):
        BarrierConstraint(mass, HighOrder(Moving(circle, [1.0, 0.0]), slow))


def test_a_network_as_a_barrier_is_looked_at_in_its_own_number_type():
    torch.manual_seed(0)
    network = FeedForward(4, 1)
    BarrierConstraint(DoubleIntegrator(2), FunctionBarrier(network))


def test_mixed_relative_degree_of_a_quadrotor():
    """Thrust reaches a height at the second derivative, the torque does not; a tilt limit keeps the thrust's reach."""
    drone = PlanarQuadrotor()
    height = HighOrder(InsideBox([-math.inf, 0.0, *[-math.inf] * 4], [math.inf, 2.0, *[math.inf] * 4]), drone)
    tilt = HighOrder(
        InsideBox([-math.inf, -math.inf, -0.5, *[-math.inf] * 3], [math.inf, math.inf, 0.5, *[math.inf] * 3]), drone
    )
    x = 0.3 * states(20, 6)
    rows = BarrierConstraint(drone, Stack(height, tilt))(x).A
    assert (rows[:, :2, 1] == 0).all() and (rows[:, :2, 0].abs() > 0.1).all()
    assert (rows[:, 2:, 0] == 0).all() and (rows[:, 2:, 1].abs() > 1).all()
    with pytest.raises(ConstraintError, match="would not keep it"):
        HighOrder(height, drone)


def test_a_margin_is_kept_by_the_barrier_at_the_bottom():
    mass = DoubleIntegrator(1)
    wall = InsideBox([-math.inf, -math.inf], [1.0, math.inf])
    raised = HighOrder(wall, mass, linear(5.0))

    def closest(barrier, margin):
        safe = BarrierConstraint(mass, barrier, linear(5.0), margin=margin)
        path = rollout(
            mass, SafetyFilter(lambda x: 5 * torch.ones_like(x[..., :1]), safe), torch.zeros(1, 2), 400, 0.02
        )
        return float(wall(path.states).min())

    assert closest(raised, 0.3) == pytest.approx(0.3, abs=1e-3)
    assert closest(Stack(raised), 0.3) == pytest.approx(0.3, abs=1e-3)
    assert closest(Intersection(raised), 0.3) < 0.15  # a blend has one function: the margin is that of the blend
    assert closest(raised, 0.0) == pytest.approx(0.0, abs=1e-3)


def test_a_raised_barrier_is_exported():
    mass = DoubleIntegrator(2)
    for name in ("circles", "polytopes", "box", "union"):
        safe = BarrierConstraint(mass, HighOrder(SHAPES[name], mass), inputs=AffineSet.box(-50.0, 50.0, dim=2))
        model, x = CAffNet(FeedForward(4, 2), safe, search="full").eval(), 2 + torch.rand(3, 4)
        torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))


@pytest.mark.parametrize("raised", [False, True])
def test_moving_shapes_have_written_out_derivatives(raised):
    mass = DoubleIntegrator(2)

    def path(t):
        return torch.stack([torch.sin(2 * t), t.square()])

    for motion in (path, [0.5, -1.0]):
        ball = Moving(OutsideCircles([[0.5, 0.2]], [0.3]), motion)
        barrier = HighOrder(Stack(ball, SHAPES["polytopes"]), mass) if raised else ball
        z = states(5, 5)
        torch.testing.assert_close(barrier.evaluate(z), Automatic(barrier).evaluate(z), rtol=1e-9, atol=1e-9)
        if not raised:
            v = states(5, 5, 3)
            exact = Automatic(barrier).evaluate_along(z, v)
            torch.testing.assert_close(barrier.evaluate_along(z, v), exact, rtol=1e-9, atol=1e-9)
