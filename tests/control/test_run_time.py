"""The filter at run time: one evaluation, graphs, half precision, time, held inputs, disturbances."""

import math

import numpy as np
import pytest
import torch

from caffnet import AffineSet, CAffine, Status
from caffnet.control import (
    BarrierConstraint,
    DoubleIntegrator,
    FunctionBarrier,
    HighOrder,
    InsideBox,
    Integrator,
    Moving,
    OutsideCircles,
    OutsidePolytopes,
    SafetyFilter,
    Stack,
    Unicycle,
    hold_reserve,
    linear,
    power,
    rollout,
    with_time,
)
from caffnet.errors import ConstraintError, InfeasibleError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch.func compiles rules

CIRCLES = OutsideCircles([[2.0, 0.1], [4.0, -0.5]], [0.5, 0.4])
LIMITS = AffineSet.box(-1.0, 1.0, dim=2)


class Counted(OutsideCircles):
    """Circles that count how often they are looked at."""

    calls = 0

    def evaluate(self, x):
        self.calls += 1
        return super().evaluate(x)


@pytest.mark.parametrize("choice", ["raise", "nearest"])
def test_a_step_evaluates_the_barrier_once(choice):
    circles = Counted([[2.0, 0.1]], [0.5])
    driver = SafetyFilter(
        lambda x: torch.ones(2), BarrierConstraint(Unicycle(), circles, inputs=LIMITS), on_infeasible=choice
    )
    circles.calls = 0
    driver(torch.zeros(3))
    assert circles.calls == 1


def test_an_infeasible_step_too():
    mass, wall = DoubleIntegrator(1), InsideBox([-math.inf, -math.inf], [1.0, math.inf])
    raised = HighOrder(wall, mass)
    calls = []
    counted = FunctionBarrier(raised, names=["wall"])
    counted.evaluate = lambda x: (calls.append(0), raised.evaluate(x))[1]
    safe = BarrierConstraint(mass, counted, inputs=AffineSet.box(-1.0, 1.0, dim=1))
    calls.clear()
    answer = SafetyFilter(lambda x: torch.zeros(1), safe, on_infeasible="nearest").project(torch.tensor([0.0, 9.0]))
    assert answer.status == Status.RELAXED and answer.value == -1 and len(calls) == 1


@pytest.mark.parametrize("choice", ["raise", "nearest"])
def test_the_whole_filter_compiles_with_limits(choice):
    mass = DoubleIntegrator(2)
    wall = InsideBox([-math.inf] * 4, [2.0, math.inf, math.inf, math.inf])
    safe = BarrierConstraint(mass, HighOrder(Stack(CIRCLES, wall), mass), inputs=LIMITS)
    driver = SafetyFilter(lambda x: torch.ones(2, dtype=x.dtype) - x[..., :2], safe, on_infeasible=choice)
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.1
    if choice == "nearest":
        x[0] = torch.tensor([1.4, 0.1, 9.0, 0.0])  # too fast to stop
    whole = torch.compile(driver, fullgraph=True, backend="eager")
    torch.testing.assert_close(whole(x), driver(x))
    if choice == "nearest":
        assert driver.project(x).status[0] == Status.RELAXED
        assert whole(x).abs().max() <= 1


@pytest.mark.parametrize("choice", ["raise", "nearest"])
def test_rows_are_of_full_precision_under_autocast(choice):
    """In bfloat16 the products of the rows would be off by a part in a hundred."""
    safe = BarrierConstraint(Unicycle(), CIRCLES, inputs=LIMITS)
    policy = torch.nn.Linear(3, 2)
    driver = SafetyFilter(policy, safe, on_infeasible=choice)
    x = torch.tensor([[1.2345678, 0.1234567, 0.0123456], [0.3, -0.2, 1.1]])
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            wanted, answer = policy(x), driver.project(x)
        assert answer.value.dtype == torch.float32
        torch.testing.assert_close(answer.value, CAffine(safe)(wanted.float(), x=x), rtol=0, atol=0)
        torch.testing.assert_close(answer.set.A, safe(x).A, rtol=0, atol=0)
    lost = BarrierConstraint(Unicycle(), CIRCLES, inputs=AffineSet.box(2.0, 3.0, dim=2))
    with torch.autocast("cpu", torch.bfloat16):
        answer = SafetyFilter(policy, lost, on_infeasible="nearest").project(x)
    assert (answer.status == Status.RELAXED).any()
    torch.testing.assert_close(answer.set.upper, lost(x).upper, rtol=0, atol=0)


def test_rows_and_rollouts_by_themselves_are_of_full_precision_under_autocast():
    """They are used without a layer too: in penalties, audits and simulators."""
    mass = DoubleIntegrator(2)
    square = ([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], [1.0, 1.0, 1.0, 1.0])
    around = Stack(OutsidePolytopes([square]), InsideBox([-9.0] * 3, [9.0] * 3))
    for safe in (
        BarrierConstraint(mass, HighOrder(CIRCLES, mass), inputs=LIMITS),
        BarrierConstraint(Unicycle(), around, inputs=LIMITS),
    ):
        x = torch.randn(5, safe.system.n_x, generator=torch.Generator().manual_seed(0))
        found = []
        for half in (False, True):
            start = x.clone().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                rows = safe(start)
                path = rollout(safe.system, lambda x: 0.123 * x[..., :2], start, steps=3, dt=0.1).states
            total = rows.A.sum() + rows.upper.sum() + path.square().sum()
            found.append((rows.A, rows.upper, path, *torch.autograd.grad(total, start)))
        for plain, cast in zip(*found, strict=True):
            torch.testing.assert_close(cast, plain, rtol=0, atol=0)


def test_a_state_in_half_precision_is_answered_in_float32():
    safe = BarrierConstraint(Unicycle(), CIRCLES, inputs=LIMITS)
    x = torch.tensor([[1.2345678, 0.1234567, 0.0123456]]).bfloat16()
    driver = SafetyFilter(lambda x: torch.ones(2, dtype=x.dtype), safe, on_infeasible="nearest")
    answer = driver(x)
    assert answer.dtype == torch.float32
    torch.testing.assert_close(answer, driver(x.float()), rtol=0, atol=0)


# ------------------------------------------------------------------------------------------------ time


def test_a_moving_barrier_adds_its_own_rate():
    """h = |p - c - s(t)|² - r², with s its path: the row is dh/dt >= -α(h), compared with a difference in time."""
    robot = Integrator(2, 1)
    ball = Moving(OutsideCircles([[2.0, 0.0]], [0.5]), lambda t: torch.stack([-t, torch.sin(t)]))
    safe = BarrierConstraint(robot, ball, power(0.5, 3.0))
    x = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    t, step = torch.linspace(0, 2, 5, dtype=torch.float64), 1e-6
    rows = safe(x, t)
    rate = (ball(with_time(x + step * u, t + step)) - ball(with_time(x - step * u, t - step))) / (2 * step)
    expected = rate + 0.5 * ball(with_time(x, t)) ** 3
    torch.testing.assert_close(rows.upper - (rows.A @ u.unsqueeze(-1)).squeeze(-1), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(safe((x, t)).upper, rows.upper)
    with pytest.raises(ConstraintError, match=r"The barrier moves, .*pass \(x, t\) in place of x"):
        safe(x)
    with pytest.raises(
        ConstraintError, match=r"t must be a number or have the batch axes of x, \(5,\), got shape \(3,\)"
    ):
        safe(x, t[:3])


@pytest.mark.parametrize("order", [1, 2])
def test_a_robot_evades_what_comes_at_it(order):
    robot = Integrator(2, order)
    ball = Moving(OutsideCircles([[3.0, 0.1]], [0.5]), [-1.0, 0.0])
    room = InsideBox([-9.0, -9.0, *[-math.inf] * (2 * order - 2)], [9.0, 9.0, *[math.inf] * (2 * order - 2)])
    barrier = Stack(ball, room) if order == 1 else HighOrder(Stack(ball, room), robot, linear(3.0))
    safe = BarrierConstraint(robot, barrier, linear(3.0))
    start = torch.zeros(4, 2 * order, dtype=torch.float64)
    start[:, 1] = torch.linspace(-0.3, 0.3, 4, dtype=torch.float64)

    def lazy(x):
        return torch.zeros_like(x[..., :2])

    hit = rollout(robot, lazy, start, 100, 0.05)
    path = rollout(robot, SafetyFilter(lazy, safe), start, 100, 0.05, substeps=5, timed=True)
    assert ball(with_time(hit.states, hit.times)).min() < -0.1
    assert ball(with_time(path.fine, path.fine_times)).min() > 0
    torch.testing.assert_close(
        CAffine(safe)(lazy(start), x=(start, torch.tensor(2.0))), SafetyFilter(lazy, safe)(start, 2.0)
    )


def test_a_raised_barrier_at_rest_beside_one_that_moves():
    mass = DoubleIntegrator(2)
    wall = HighOrder(InsideBox([-9.0] * 2 + [-math.inf] * 2, [9.0] * 2 + [math.inf] * 2), mass)
    ball = HighOrder(Moving(OutsideCircles([[3.0, 0.1]], [0.5]), [-1.0, 0.0]), mass)
    both = BarrierConstraint(mass, Stack(wall, ball), margin=0.1, disturbance=[0.0, 0.0, 0.1, 0.1])
    apart = [BarrierConstraint(mass, part, margin=0.1, disturbance=[0.0, 0.0, 0.1, 0.1]) for part in (wall, ball)]
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = both(x, 0.3)
    torch.testing.assert_close(rows.upper, torch.cat([part(x, 0.3).upper for part in apart], -1))
    torch.testing.assert_close(rows.A, torch.cat([part(x, 0.3).A for part in apart], -2))


def test_what_inference_mode_has_made_is_not_kept():
    safe = BarrierConstraint(Unicycle(), CIRCLES, inputs=LIMITS)
    x = torch.zeros(2, 3)
    with torch.inference_mode():
        safe(x)
    model = torch.nn.Linear(3, 2)
    CAffine(safe)(model(x), x=x).sum().backward()
    assert model.weight.grad is not None


def test_a_function_of_state_and_time():
    wall = FunctionBarrier(lambda x, t: 1.0 + t - x[0], names=["wall"], moving=True)
    safe = BarrierConstraint(Integrator(1, 1), wall)
    assert safe(torch.tensor([0.5]), 2.0).upper.tolist() == [2.5 + 1.0]  # α(h) + ∂h/∂t
    with pytest.raises(ConstraintError, match="moves already"):
        Moving(wall, [1.0], position=(0,))
    with pytest.raises(ConstraintError, match=r"path must be a velocity of shape \(2,\)"):
        Moving(CIRCLES, [1.0])


# ------------------------------------------------------------------------------------------------ held, disturbed


def braking(**more):
    """Stay within a disc: a straight step from its rim leads outside, so that holding an input matters."""
    disc = FunctionBarrier(lambda x: 1.0 - x.square().sum(), names=["disc"])
    return BarrierConstraint(Integrator(2, 1), disc, linear(8.0), AffineSet.box(-1.0, 1.0, dim=2), **more)


def closest(safe, dt=0.1, disturbance=None):
    goal = torch.tensor([4.0, 3.0], dtype=torch.float64)
    start = torch.rand(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 0.5
    driver = SafetyFilter(lambda x: 5 * (goal - x), safe, on_infeasible="nearest")
    path = rollout(Integrator(2, 1), driver, start, 60, dt, substeps=10, disturbance=disturbance)
    return float(safe.barrier(path.fine).min())


def test_a_reserve_makes_held_inputs_safe():
    assert closest(braking()) < -1e-3
    reserve = hold_reserve(braking(), 0.1, lower=[-1.0, -1.0], upper=[1.0, 1.0])
    # φ̇ = -2 |u|² - 16 p u, with |p| and |u| up to sqrt(2)
    assert 0.1 * 0.9 * 36 < float(reserve) <= 1.2 * 0.1 * 36
    assert closest(braking(reserve=reserve)) > 0
    bound = hold_reserve(braking(), 0.1, lipschitz=2.0, speed=math.sqrt(2))
    assert bound.tolist() == pytest.approx([0.1 * 2 * math.sqrt(2)])


def test_a_reserve_knows_the_disturbance():
    """Of φ = ±u + 1 ∓ x - δ the rate is ∓(u + w), at most 1 + δ; by bounds, L (M + |δ|)."""

    def line(**more):
        return BarrierConstraint(
            Integrator(1, 1), InsideBox([-1.0], [1.0]), inputs=AffineSet.box(-1.0, 1.0, dim=1), **more
        )

    box = {"lower": [-1.0], "upper": [1.0], "factor": 1.0}
    for wind in (0.0, 0.5):
        assert hold_reserve(line(disturbance=wind), 0.1, **box).tolist() == pytest.approx([0.1 * (1 + wind)] * 2)
        bound = hold_reserve(line(disturbance=wind), 0.1, lipschitz=1.0, speed=1.0)
        assert bound.tolist() == pytest.approx([0.1 * (1 + wind)] * 2)

    def outwards(x, t):
        return 0.3 * torch.sign(x)

    # φ̇ of the disc: |slope| is up to |2 u + 16 p| + Σ 2 δ_i, so it needs more than without wind
    held = hold_reserve(braking(disturbance=0.3), 0.1, lower=[-1.0, -1.0], upper=[1.0, 1.0])
    assert float(held) > 1.2 * float(hold_reserve(braking(), 0.1, lower=[-1.0, -1.0], upper=[1.0, 1.0]))
    assert closest(braking(disturbance=0.3, reserve=held), disturbance=outwards) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "one of the two"),
        ({"lipschitz": 1.0}, "one of the two"),
        ({"lipschitz": 1.0, "speed": 1.0, "lower": [0.0, 0.0], "upper": [1.0, 1.0]}, "one of the two"),
        ({"lower": [0.0], "upper": [1.0]}, r"corners of a box of states, \(2,\) each"),
    ],
)
def test_a_reserve_needs_bounds_or_samples(arguments, message):
    with pytest.raises(ConstraintError, match=message):
        hold_reserve(braking(), 0.1, **arguments)


def test_a_reserve_needs_limits_on_the_input():
    free = BarrierConstraint(Integrator(2, 1), CIRCLES)
    box = {"lower": [0.0, 0.0], "upper": [1.0, 1.0]}
    with pytest.raises(ConstraintError, match="Without limits on the input"):
        hold_reserve(free, 0.1, **box)
    for rows in ([[1.0, 0.0]], torch.zeros(0, 2), [[0.0, 0.0]]):
        some = AffineSet.inequality(rows, torch.ones(len(rows)))
        with pytest.raises(ConstraintError, match="inputs are not bounded"):
            hold_reserve(BarrierConstraint(Integrator(2, 1), CIRCLES, inputs=some), 0.1, **box)
    with pytest.raises(ConstraintError, match="has a reserve already"):
        hold_reserve(braking(reserve=1.0), 0.1, **box)
    limits = AffineSet.box(-1.0, 1.0, dim=2)
    one, other = (
        hold_reserve(BarrierConstraint(Integrator(2, 1), CIRCLES, inputs=inputs), 0.1, **box)
        for inputs in (limits, limits & AffineSet.inequality([[0.0, 0.0]], [1.0]))
    )
    torch.testing.assert_close(one, other)  # a row of zeros limits nothing


def test_a_disturbance_is_made_up_for():
    def wind(x, t):
        return 0.3 * torch.sign(x)  # outwards

    assert closest(braking(), 0.01, wind) < -1e-3
    assert closest(braking(disturbance=0.3), 0.01, wind) > -1e-3
    assert closest(braking(disturbance=[0.3, 0.3], reserve=0.1), 0.01, wind) > 0


def test_a_disturbance_below_a_high_order_is_refused():
    mass = DoubleIntegrator(2)
    raised = Stack(HighOrder(CIRCLES, mass), InsideBox([-math.inf] * 2 + [-1.0] * 2, [math.inf] * 2 + [1.0] * 2))
    BarrierConstraint(mass, raised, disturbance=[0.0, 0.0, 0.1, 0.1])
    with pytest.raises(ConstraintError, match=r"acts directly on a function under HighOrder \(circle 0, circle 1\)"):
        BarrierConstraint(mass, raised, disturbance=0.1)
    with pytest.raises(ConstraintError, match=r"disturbance must be one number >= 0 or 4 of them, got \[1.0, 2.0\]"):
        BarrierConstraint(mass, raised, disturbance=[1.0, 2.0])
    with pytest.raises(ConstraintError, match=r"reserve must be one number >= 0 or one per function, got -1.0"):
        BarrierConstraint(mass, raised, reserve=-1.0)


# ------------------------------------------------------------------------------------------------ rollouts


def test_a_rollout_knows_its_times_and_what_is_between():
    path = rollout(
        Unicycle(),
        lambda x, t: torch.stack([t, 0 * t]),
        torch.zeros(2, 3),
        4,
        0.5,
        substeps=5,
        start_time=1.0,
        timed=True,
    )
    assert path.states.shape == (2, 5, 3) and path.fine.shape == (2, 21, 3)
    assert path.times.tolist() == [1.0, 1.5, 2.0, 2.5, 3.0]
    assert torch.equal(path.fine[:, ::5], path.states) and torch.equal(path.fine_times[::5], path.times)
    assert path.inputs[0, :, 0].tolist() == [1.0, 1.5, 2.0, 2.5]  # held between
    torch.testing.assert_close(path.states[0, :, 0], torch.tensor([0.0, 0.5, 1.25, 2.25, 3.5]))


def test_a_constant_disturbance_is_an_input_more():
    def steady(x, t):
        return torch.tensor([0.1, -0.2])

    path = rollout(
        Integrator(2, 1), lambda x: torch.ones(2), torch.zeros(3, 2), 10, 0.1, disturbance=steady, substeps=3
    )
    torch.testing.assert_close(path.states[:, -1], torch.tensor([1.1, 0.8]).expand(3, 2))


def test_errors_name_step_time_and_state():
    mass, wall = DoubleIntegrator(1), InsideBox([-math.inf, -math.inf], [1.0, math.inf])
    safe = BarrierConstraint(mass, HighOrder(wall, mass), inputs=AffineSet.box(-1.0, 1.0, dim=1))
    start = torch.tensor([[0.0, 0.0], [-4.2, 3.0]])
    with pytest.raises(
        InfeasibleError, match=r"At step 2 \(t = 0.2\), state of sample \(1,\) \[-3.\d+, [\d.]+\]: No point"
    ) as told:
        rollout(mass, SafetyFilter(lambda x: torch.ones(1), safe), start, 50, 0.1)
    assert told.value.samples == [(1,)] and told.value.conflicts

    def broken(x):
        raise ConstraintError("no idea")

    with pytest.raises(ConstraintError, match=r"At step 0 \(t = 0\), state \[0.0, 0.0\]: no idea"):
        rollout(mass, broken, start, 50, 0.1)
    with pytest.raises(
        ConstraintError,
        match=r"no longer finite after step 0 \(t = 1\), sample \(1,\): it was \[-4.*under the input \[9.99\d+e\+37\]",
    ):
        rollout(
            mass,
            lambda x: torch.tensor([[0.0], [1e38]]),
            start,
            5,
            1.0,
            integrate=lambda s, x, u, dt: x + dt * 1e1 * s.velocity(x, u),
        )
    with pytest.raises(ConstraintError, match="substeps must be a whole number >= 1, got 0"):
        rollout(mass, broken, start, 5, 0.1, substeps=0)
    with pytest.raises(
        ConstraintError, match=r"got function: the order is rollout\(system, policy, start, steps, dt\)"
    ):
        rollout(broken, mass, start, 5, 0.1)
    with pytest.raises(ConstraintError, match=r"policy must return inputs of shape \(.*, 1\) or \(1,\), got NoneType"):
        rollout(mass, lambda x: None, start, 5, 0.1)
    with pytest.raises(ConstraintError, match=r"disturbance must return velocities of shape .* or \(2,\), got \(3,\)"):
        rollout(mass, lambda x: torch.zeros(1), start, 5, 0.1, disturbance=lambda x, t: torch.zeros(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lipschitz": -1.0, "speed": 1.0}, "lipschitz must be one number >= 0, or one for each"),
        ({"lipschitz": [1.0, 1.0, 1.0], "speed": 1.0}, "lipschitz must be one number >= 0, or one for each"),
        ({"lipschitz": 1.0, "speed": math.nan}, r"speed a number >= 0, got 1.0 and nan"),
        ({"lower": [-1.0, -1.0], "upper": [1.0, 1.0], "samples": 0}, "samples must be a whole number >= 1, got 0"),
        ({"lower": [-1.0, -1.0], "upper": [1.0, 1.0], "factor": -1.0}, "factor must be positive and finite, got -1.0"),
    ],
)
def test_a_reserve_is_refused_for_numbers_that_bound_nothing(options: dict, message: str):
    with pytest.raises(ConstraintError, match=message):
        hold_reserve(braking(), 0.1, **options)


# ------------------------------------------------------------------------------------------------ systems


@pytest.mark.parametrize("name", ["integrator", "unicycle", "bicycle", "quadrotor", "cart-pole", "arm"])
def test_systems_move_as_a_second_integrator_says(name):
    """scipy's DOP853 on equations of motion written here, in numpy, from the textbooks."""
    integrate = pytest.importorskip("scipy.integrate")
    from caffnet.control import Bicycle, CartPole, PlanarQuadrotor, TwoLinkArm

    def bicycle(x, u):
        return [x[3] * np.cos(x[2]), x[3] * np.sin(x[2]), x[3] / 2.0 * np.tan(x[4]), *u]

    def quadrotor(x, u):
        return [x[3], x[4], x[5], -u[0] * np.sin(x[2]) / 0.7, u[0] * np.cos(x[2]) / 0.7 - 9.81, u[1] / 0.02]

    def cart_pole(x, u):  # the two Newton equations as a linear system
        _, angle, speed, spin = x
        left = [[1.1, 0.1 * 0.5 * np.cos(angle)], [np.cos(angle), 0.5]]
        right = [u[0] + 0.1 * 0.5 * spin**2 * np.sin(angle), 9.81 * np.sin(angle)]
        return [speed, spin, *np.linalg.solve(left, right)]

    def arm(x, u):  # point masses: M = Σ m JᵀJ, and M q̈ = u - Σ m Jᵀ (J̇ q̇ - gravity)
        q, w = x[:2], x[2:]
        a, b = q[0], q[0] + q[1]
        first = 0.8 * np.array([[-np.sin(a), 0.0], [np.cos(a), 0.0]])
        more = 0.6 * np.array([[-np.sin(b), -np.sin(b)], [np.cos(b), np.cos(b)]])
        spun = -0.8 * w[0] ** 2 * np.array([np.cos(a), np.sin(a)])
        both = spun - 0.6 * (w[0] + w[1]) ** 2 * np.array([np.cos(b), np.sin(b)])
        pull = np.array([0.0, -9.81])
        M = 1.5 * first.T @ first + 0.9 * (first + more).T @ (first + more)
        force = u - 1.5 * first.T @ (spun - pull) - 0.9 * (first + more).T @ (both - pull)
        return [*w, *np.linalg.solve(M, force)]

    system, motion = {
        "integrator": (Integrator(2, 3), lambda x, u: [*x[2:], *u]),
        "unicycle": (Unicycle(), lambda x, u: [u[0] * np.cos(x[2]), u[0] * np.sin(x[2]), u[1]]),
        "bicycle": (Bicycle(2.0), bicycle),
        "quadrotor": (PlanarQuadrotor(0.7, 0.02), quadrotor),
        "cart-pole": (CartPole(), cart_pole),
        "arm": (TwoLinkArm((0.8, 0.6), (1.5, 0.9)), arm),
    }[name]
    random = np.random.default_rng(0)
    start, u = 0.5 * random.standard_normal((3, system.n_x)), random.standard_normal((3, system.n_u))
    held = torch.from_numpy(u)
    path = rollout(system, lambda x: held, torch.from_numpy(start), 10, 0.1, substeps=20)
    for x, v, found in zip(start, u, path.states[:, -1].numpy(), strict=True):
        exact = integrate.solve_ivp(lambda t, x, v=v: motion(x, v), (0, 1), x, "DOP853", rtol=1e-11, atol=1e-11).y[
            :, -1
        ]
        np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6)


def test_the_metric_of_an_arm_weighs_torques_by_what_they_move():
    """The accelerations nearest in M are those of the torques nearest in M⁻¹: Gauss' principle of least constraint."""
    from caffnet import project
    from caffnet.control import TwoLinkArm

    arm = TwoLinkArm()
    x = torch.tensor([0.3, 0.8, 0.1, -0.2], dtype=torch.float64)
    M = arm.mass_matrix(x)
    assert torch.linalg.eigvalsh(M).min() > 0
    torch.testing.assert_close(arm.actuation(x)[2:], torch.linalg.inv(M))
    root = torch.linalg.cholesky(M)  # M = L Lᵀ: u = L v turns |u|² in M⁻¹ into |v|²
    wanted, wall = torch.tensor([3.0, 2.0], dtype=torch.float64), torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    found = root @ project(torch.linalg.solve(root, wanted), AffineSet.inequality(wall @ root, wall.new_ones(1))).value
    assert float(found[1]) == pytest.approx(1.0)
    # Stationary: found - wanted is along M aᵀ.
    direction = M @ wall[0]
    cross = (found - wanted)[0] * direction[1] - (found - wanted)[1] * direction[0]
    assert abs(float(cross)) < 1e-12
