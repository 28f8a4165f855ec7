"""Systems, rows, filter, rollout and PID."""

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch

from caffnet import AffineSet, CAffNet, FeedForward, Status
from caffnet.control import (
    PID,
    BarrierConstraint,
    ControlAffine,
    DoubleIntegrator,
    FunctionBarrier,
    HighOrder,
    InsideBox,
    InsidePolytope,
    LyapunovConstraint,
    Moving,
    OutsideCircles,
    Quadratic,
    SafetyFilter,
    Stack,
    Unicycle,
    UnicyclePID,
    body_frame_error,
    limit_gradient,
    linear,
    power,
    rk4,
    rollout,
    saturating,
    wrap_angle,
)
from caffnet.errors import ConstraintError, InfeasibleError

LIMITS = AffineSet.box(torch.tensor([-0.1, -1.0], dtype=torch.float64), torch.tensor([1.0, 1.0], dtype=torch.float64))
CIRCLES = OutsideCircles([[2.0, 0.1], [4.0, -0.5]], [0.5, 0.4])


def states(*batch: int) -> torch.Tensor:
    return torch.randn(*batch, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_unicycle_shortcuts_equal_the_general_products():
    robot = Unicycle()
    general = ControlAffine(3, 2, None, robot.actuation)
    x, u = states(6), states(6)[..., :2]
    gradient = states(6, 4)
    torch.testing.assert_close(robot.velocity(x, u), general.velocity(x, u))
    torch.testing.assert_close(robot.along_input(gradient, x), general.along_input(gradient, x))
    assert robot.along_drift(gradient, x) is None


def test_rows_are_the_derivative_of_the_barrier_along_the_system():
    """-L_g h u <= L_f h + α(h) says dh/dt >= -α(h): compare with dh/dt by automatic differentiation."""
    mass = DoubleIntegrator(2)
    speed = FunctionBarrier(lambda x: 4.0 - x[..., 2:].square().sum(-1, keepdim=True))
    allowed = BarrierConstraint(mass, speed, linear(2.0))
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    u = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    x.requires_grad_()
    h = speed(x)
    slope = (torch.autograd.grad(h.sum(), x)[0] * mass.velocity(x, u)).sum(-1, keepdim=True)
    rows = allowed(x)
    margin = rows.upper - (rows.A @ u.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(margin, slope + 2.0 * h)


def test_rows_are_differentiable_in_the_state():
    allowed = BarrierConstraint(Unicycle(), CIRCLES, power(0.5, 3.0), LIMITS)
    x = states(3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: (allowed(x).A, allowed(x).upper), (x,))


def test_batch_axes_and_names():
    allowed = BarrierConstraint(Unicycle(), CIRCLES, inputs=LIMITS)(states(4, 5))
    assert allowed.A.shape == (4, 5, 4, 2)
    assert allowed.names[:2] == ("circle 0", "circle 1")


@pytest.mark.parametrize("alpha", [linear(2.0), power(2.0, 3.0), power(2.0, 1.5), saturating(2.0, 0.5)])
def test_class_k_grows_through_zero(alpha):
    h = torch.linspace(-1, 1, 101, dtype=torch.float64)
    assert alpha(torch.zeros(1)) == 0
    assert (alpha(h).diff() > 0).all()


WALL, MASS = InsideBox([-math.inf, -math.inf], [1.0, math.inf]), DoubleIntegrator(1)


def test_the_first_power_is_linear_on_the_boundary_too():
    on_it = torch.tensor([1.0, -1.0], dtype=torch.float64)
    given, wanted = (HighOrder(WALL, MASS, alpha).evaluate(on_it) for alpha in (power(2.0, 1.0), linear(2.0)))
    torch.testing.assert_close(given, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("exponent", [1.5, 2.0, 3.0])
def test_powers_have_finite_derivatives_on_the_boundary(exponent):
    on_it = torch.tensor([1.0, -1.0], dtype=torch.float64, requires_grad=True)
    alpha = power(1.0, exponent)
    rows = BarrierConstraint(MASS, HighOrder(WALL, MASS, alpha), alpha)(on_it)
    (slope,) = torch.autograd.grad(rows.upper.sum() + rows.A.sum(), on_it)
    assert slope.isfinite().all()
    h = torch.tensor([-1e-9, 0.0, 1e-9], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(alpha(h).sum(), h)
    assert (slope.diff().abs() < 1e-4).all()  # continuous through 0


def test_where_nothing_is_safe_the_limits_still_hold():
    """1 m from a wall at 5 m/s: the brakes are too weak, and no simulation may pretend otherwise."""
    safe = BarrierConstraint(MASS, HighOrder(WALL, MASS), inputs=AffineSet.box(-1.0, 1.0, dim=1))
    x = torch.tensor([[0.0, 5.0], [-9.0, 0.0]], dtype=torch.float64)
    driver = SafetyFilter(lambda x: torch.full((2, 1), 0.5), safe, on_infeasible="nearest")
    assert driver(x).tolist() == [[-1.0], [0.5]]
    answer = driver.project(x)
    assert answer.value.tolist() == [[-1.0], [0.5]]
    assert [Status(int(s)).name for s in answer.status] == ["RELAXED", "INSIDE"]
    assert answer.violation[0] > 3


def test_least_violation_within_the_limits_is_no_clipped_compromise():
    """u1 >= 1.5 is beyond the limit of 1; |u2 - 20 u1| <= 0.1 need not suffer from that."""
    rows = torch.tensor([[1.0, 0.0], [-20.0, 1.0], [20.0, -1.0]], dtype=torch.float64)
    still = ControlAffine(2, 2, None, lambda x: torch.eye(2, dtype=x.dtype))
    barrier = FunctionBarrier(lambda x: rows.to(x) @ x + torch.tensor([-1.5, 0.1, 0.1]).to(x))
    limits = AffineSet.box([-1.0, -50.0], [1.0, 50.0])
    safe = BarrierConstraint(still, barrier, linear(1.0), limits)
    for dtype in (torch.float32, torch.float64):
        driver = SafetyFilter(lambda x: torch.zeros(2), safe, on_infeasible="nearest")
        answer = driver.project(torch.zeros(2, dtype=dtype))
        assert answer.value.dtype == dtype
        assert float(answer.value[0]) == pytest.approx(1.0, abs=8 * torch.finfo(dtype).eps)
        assert answer.violation == pytest.approx(0.5, rel=1e-5)


def test_the_rows_told_are_those_of_the_input_taken():
    """u1 >= 1.5 gives way by 0.5, as the limit u1 <= 1 is hard; u2 >= 0.4 can be kept, and is."""
    still = ControlAffine(2, 2, None, lambda x: torch.eye(2, dtype=x.dtype))
    barrier = FunctionBarrier(lambda x: x - torch.tensor([1.5, 0.4], dtype=x.dtype), names=["u1", "u2"])
    safe = BarrierConstraint(still, barrier, inputs=AffineSet.box(-1.0, 1.0, dim=2))
    answer = SafetyFilter(lambda x: torch.zeros(2), safe, on_infeasible="nearest").project(torch.zeros(2))
    assert answer.value.tolist() == pytest.approx([1.0, 0.4])
    assert answer.active[:2].tolist() == [1, 1]


@pytest.mark.parametrize("strict", [False, True])
def test_limits_hold_exactly_where_nothing_is_safe(strict):
    corners = torch.linspace(0, 2 * math.pi, 8, dtype=torch.float64)[:-1]
    limits = AffineSet.inequality(torch.stack([corners.cos(), corners.sin()], -1), torch.ones(7, dtype=torch.float64))
    still = ControlAffine(2, 2, None, lambda x: torch.eye(2, dtype=x.dtype))
    away = FunctionBarrier(lambda x: x.norm() - 10)  # faster than the limits allow, in a direction of its own each
    safe = BarrierConstraint(still, away, inputs=limits)
    x = torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    driver = SafetyFilter(lambda x: torch.zeros(2), safe, on_infeasible="nearest", strict=strict)
    answer = driver.project(x)
    assert (answer.status == Status.RELAXED).all()
    assert limits.violation(answer.value).max() <= 1e-15
    assert (max(_exact_excess(limits, u) for u in answer.value) <= 0) == strict


def _exact_excess(limits: AffineSet, u: torch.Tensor) -> Fraction:
    """The largest ``a_i u - b_i``, without rounding."""
    rows = zip(limits.A.tolist(), limits.upper.tolist(), strict=True)
    return max(
        sum(Fraction(a) * Fraction(v) for a, v in zip(row, u.tolist(), strict=True)) - Fraction(b) for row, b in rows
    )


def test_what_is_safe_is_answered_as_asked_beside_what_is_not():
    """Only samples without a safe input are answered anew: the others keep their norm."""
    plane, wall = DoubleIntegrator(2), InsidePolytope([[1.0, 2.0, 0.0, 0.0]], [1.0])
    safe = BarrierConstraint(plane, HighOrder(wall, plane), inputs=AffineSet.box(-1.0, 1.0, dim=2))
    x = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 9.0, 9.0]], dtype=torch.float64)
    driver = SafetyFilter(lambda x: torch.ones(2, dtype=x.dtype), safe, on_infeasible="nearest", norm=1)
    alone, both = driver.project(x[:1]), driver.project(x)
    assert both.status.tolist() == [Status.PROJECTED, Status.RELAXED]
    torch.testing.assert_close(both.value[0], alone.value[0], rtol=0, atol=0)
    assert both.value[1].tolist() == [-1.0, -1.0]
    assert not torch.allclose(both.value[0], SafetyFilter(driver.policy, safe)(x[:1])[0])  # the norm matters here


def test_a_warm_up_passes_beyond_the_limits():
    safe = BarrierConstraint(MASS, HighOrder(WALL, MASS), inputs=AffineSet.box(-1.0, 1.0, dim=1))
    driver = SafetyFilter(lambda x: torch.full((1,), 7.0), safe, on_infeasible="nearest")
    driver.layer.enabled = False
    assert driver(torch.zeros(2)) == 7.0
    assert driver.eval()(torch.zeros(2)) == 1.0


def test_limits_hold_under_vmap():
    safe = BarrierConstraint(MASS, HighOrder(WALL, MASS), inputs=AffineSet.box(-1.0, 1.0, dim=1))
    driver = SafetyFilter(lambda x: torch.full((1,), 0.5), safe, on_infeasible="nearest")
    x = torch.tensor([[0.0, 5.0], [-9.0, 0.0]], dtype=torch.float64)
    assert torch.func.vmap(driver)(x).tolist() == [[-1.0], [0.5]]


def test_a_filter_compiles_whole_at_its_first_call():
    safe = BarrierConstraint(Unicycle(), CIRCLES, inputs=LIMITS)
    driver = SafetyFilter(UnicyclePID(), safe)
    x = states(4)
    whole = torch.compile(driver.layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(
        whole(torch.ones(4, 2, dtype=x.dtype), x=x), driver.layer(torch.ones(4, 2, dtype=x.dtype), x=x)
    )


def test_filter_keeps_a_reckless_driver_outside():
    safe = BarrierConstraint(Unicycle(), CIRCLES, inputs=LIMITS)
    start = torch.zeros(8, 3, dtype=torch.float64)
    start[:, 1] = torch.linspace(-0.6, 0.6, 8, dtype=torch.float64)

    def reckless(x):
        return torch.tensor([1.0, 0.0], dtype=x.dtype).expand(*x.shape[:-1], 2)

    crashed = rollout(Unicycle(), reckless, start, 60, 0.1).states
    filtered = rollout(Unicycle(), SafetyFilter(reckless, safe), start, 60, 0.1)
    assert CIRCLES(crashed).min() < -0.1
    assert CIRCLES(filtered.states).min() >= 0
    assert safe(filtered.states[:, :-1]).violation(filtered.inputs).max() <= 1e-12
    proof = SafetyFilter(reckless, safe).project(start)
    assert proof.violation.max() <= 1e-12


def test_high_order_barrier_stops_a_mass_at_a_wall():
    mass = DoubleIntegrator(1)
    wall = InsideBox([-math.inf, -math.inf], [1.0, math.inf])
    assert (mass.along_input(wall.evaluate(torch.zeros(1, 2))[1], torch.zeros(1, 2)) == 0).all()
    safe = BarrierConstraint(mass, HighOrder(wall, mass, linear(2.0)), linear(2.0))
    path = rollout(mass, SafetyFilter(lambda x: torch.ones_like(x[..., :1]), safe), torch.zeros(3, 2), 200, 0.05)
    assert wall(path.states).min() >= 0
    assert path.states[..., -1, 0].min() > 0.9


def test_high_order_barrier_takes_the_place_of_the_one_that_the_input_does_not_reach():
    mass, circle = DoubleIntegrator(2), OutsideCircles([[0.0, 0.0]], [1.0])
    x = torch.tensor([[-1.2, 0.0, 1.5, 0.0], [-3.0, 0.0, 0.0, 0.0]])  # fast towards the circle, at rest

    def safe(barrier):
        unseen = torch.empty(0, 4)  # not looked at when built
        return SafetyFilter(lambda x: torch.zeros(2), BarrierConstraint(mass, barrier, samples=unseen))

    raised = HighOrder(circle, mass)
    assert safe(raised)(x)[0, 0] < 0
    for filtered in (safe(circle), safe(Stack(circle, raised)).project):
        with pytest.raises(InfeasibleError, match=r"does not reach circle 0: .*use HighOrder\(") as told:
            filtered(x)
        assert told.value.samples == [(0,)] and len(told.value.conflicts) == 1


@pytest.mark.parametrize("upper", [-1.0, -math.inf])
def test_other_conflicts_do_not_speak_of_high_order(upper):
    limits = AffineSet.inequality([[1.0, 0.0]], [upper]) & AffineSet.box(0.0, 1.0, dim=2)
    with pytest.raises(InfeasibleError) as told:
        SafetyFilter(lambda x: torch.zeros(2), lambda x: limits)(torch.zeros(3))
    assert "HighOrder" not in str(told.value)


def test_system_takes_the_number_type_of_the_state_and_keeps_gradients():
    gain = torch.tensor([[0.0], [2.0]], requires_grad=True)
    pull = torch.tensor([0.0, -1.0], requires_grad=True)
    system = ControlAffine(2, 1, drift=lambda x: pull.expand_as(x), actuation=lambda x: gain)
    x, u = torch.zeros(4, 2, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64)
    velocity = system.velocity(x, u)
    assert torch.equal(velocity, torch.tensor([0.0, 1.0], dtype=torch.float64).expand(4, 2))
    velocity.sum().backward()
    assert gain.grad is not None and torch.equal(gain.grad, torch.full((2, 1), 4.0))
    assert pull.grad is not None and torch.equal(pull.grad, torch.full((2,), 4.0))
    rows = BarrierConstraint(system, InsideBox([-math.inf, -1.0], [math.inf, 1.0]))(x)
    assert rows.A.dtype == rows.upper.dtype == torch.float64


@pytest.mark.parametrize("shape", [(2,), (1, 2), (5, 2)])
def test_rollout_gives_every_state_its_input(shape):
    path = rollout(Unicycle(), lambda x: torch.ones(shape), torch.zeros(5, 3), 4, 0.1)
    one = rollout(Unicycle(), lambda x: torch.ones(2), torch.zeros(3), 4, 0.1)
    assert torch.equal(path.inputs, torch.ones(5, 4, 2))
    torch.testing.assert_close(path.states, one.states.expand(5, 5, 3))


def test_rk4_is_of_fourth_order():
    robot, x, u = Unicycle(), torch.zeros(3, dtype=torch.float64), torch.tensor([1.0, 1.0], dtype=torch.float64)
    exact = torch.tensor([math.sin(1.0), 1 - math.cos(1.0), 1.0], dtype=torch.float64)

    def error(steps: int) -> float:
        return float((rollout(robot, lambda _: u, x, steps, 1 / steps).states[-1] - exact).norm())

    assert 14 < error(4) / error(8) < 18


def test_rollout_is_differentiable_through_time():
    robot = Unicycle()

    def final(u: torch.Tensor) -> torch.Tensor:
        return rollout(robot, lambda x: u, torch.zeros(2, 3, dtype=torch.float64), 5, 0.1).states[:, -1]

    assert torch.autograd.gradcheck(final, (torch.rand(2, 2, dtype=torch.float64, requires_grad=True),))


def test_pid_sums_first_and_kicks_at_the_start():
    pid = PID([1.0], [2.0], [3.0], dt=0.5)
    error = torch.tensor([2.0], requires_grad=True)
    first = pid(error)
    assert first.item() == 1 * 2 + 2 * (0.5 * 2) + 3 * (2 / 0.5)
    assert torch.autograd.grad(first, error)[0].item() == 1 + 3 / 0.5  # not through the integral
    assert pid(torch.tensor([1.0])).item() == 1 * 1 + 2 * (0.5 * 3) + 3 * ((1 - 2) / 0.5)
    pid.reset()
    assert pid(error).item() == first.item()


def test_body_frame_error_turns_with_the_robot():
    x = torch.tensor([[0.0, 0.0, math.pi / 2]], dtype=torch.float64)
    ahead = body_frame_error(x, torch.tensor([0.0, 2.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(ahead, torch.tensor([[2.0, 0.0, -math.pi / 2]], dtype=torch.float64))


def test_unicycle_pid_arrives():
    path = rollout(Unicycle(), UnicyclePID(), torch.tensor([[-2.0, 0.3, 0.0]], dtype=torch.float64), 100, 0.1)
    assert path.states[0, :, :2].norm(dim=-1).min() < 0.1


def test_a_barrier_that_the_input_reaches_is_not_raised():
    """A box over position and speed: ψ of the speed limit would leave it free."""
    wall = InsideBox([-1.0, -math.inf], [9.0, math.inf], names=["p", "v"])
    drag = ControlAffine(2, 1, lambda x: torch.stack([x[..., 1], -10 * x[..., 1]], -1), column)
    start = torch.tensor([[-0.9, 0.0], [0.0, 0.1]], dtype=torch.float64)
    for samples in (None, start):
        with pytest.raises(ConstraintError, match=r"reaches v <= 0.5 directly .*Stack\(HighOrder\(position, system\)"):
            HighOrder(InsideBox([-1.0, -math.inf], [9.0, 0.5], names=["p", "v"]), drag, samples=samples)
    speed = InsideBox([-math.inf, -math.inf], [math.inf, 0.5])
    safe = BarrierConstraint(drag, Stack(HighOrder(wall, drag, linear(5.0)), speed), linear(5.0))
    path = rollout(drag, SafetyFilter(lambda x: [50.0], safe), start, 100, 0.01)
    assert path.states[..., 1].max() <= 0.5


def test_safe_sets_can_be_pickled():
    for alpha in (None, linear(2.0), power(1.0, 3.0), saturating(1.0, 2.0)):
        safe = BarrierConstraint(Unicycle(), CIRCLES, alpha, AffineSet.box(-1.0, 1.0, dim=2))
        x = torch.tensor([0.5, 0.1, 0.2])
        assert torch.equal(pickle.loads(pickle.dumps(safe))(x).upper, safe(x).upper)


def test_an_export_leaves_the_model_as_it_was():
    safe = BarrierConstraint(Unicycle(), CIRCLES, inputs=AffineSet.box(-1.0, 1.0, dim=2))
    model, x = CAffNet(FeedForward(3, 2), safe, search="full").eval(), torch.rand(6, 3)
    exported = torch.export.export(model, (x,))
    assert type(model(x).detach()) is torch.Tensor
    torch.testing.assert_close(exported.module()(x), model(x))
    hidden = FunctionBarrier(lambda x: 1.0 - x[:1].square())
    with pytest.raises(Exception, match=r"which torch.export does not hold: define evaluate\(x\)"):
        torch.export.export(CAffNet(FeedForward(3, 2), BarrierConstraint(Unicycle(), hidden), search="full"), (x,))


def test_wrap_angle_range():
    angle = torch.linspace(-20, 20, 1001, dtype=torch.float64)
    wrapped = wrap_angle(angle)
    assert wrapped.min() >= -math.pi
    assert wrapped.max() <= math.pi
    torch.testing.assert_close(torch.sin(wrapped), torch.sin(angle))
    inside = angle.abs() < math.pi
    assert torch.equal(wrapped[inside], angle[inside])


def column(x):
    return torch.tensor([[0.0], [1.0]])


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: Unicycle().velocity(torch.zeros(2), torch.zeros(2)), r"x must have shape \(..., 3\), got \(2,\)"),
        (lambda: BarrierConstraint(Unicycle(), CIRCLES)(torch.zeros(4)), r"x must have shape \(..., 3\), got \(4,\)"),
        (
            lambda: BarrierConstraint(Unicycle(), CIRCLES, inputs=AffineSet.box(0.0, 1.0, dim=3)),
            r"inputs must be one set in R\^2",
        ),
        (
            lambda: BarrierConstraint(Unicycle(), CIRCLES, inputs=(-1.0, 1.0)),
            r"inputs must be an AffineSet, got tuple: write AffineSet.box\(-1.0, 1.0, dim=2\)",
        ),
        (
            lambda: SafetyFilter(lambda x: torch.zeros(2), BarrierConstraint(Unicycle(), CIRCLES))(np.zeros(3)),
            r"x must be a tensor, got ndarray: write torch.as_tensor\(x\)",
        ),
        (
            lambda: SafetyFilter(BarrierConstraint(Unicycle(), CIRCLES), lambda x: torch.zeros(2)),
            r"policy must be a function x -> u, got BarrierConstraint: the order is SafetyFilter\(policy, constraint\)",
        ),
        (
            lambda: SafetyFilter(torch.zeros(2), BarrierConstraint(Unicycle(), CIRCLES)),
            "policy must be a function x -> u, got Tensor: the order is",
        ),
        (
            lambda: SafetyFilter(lambda x: LIMITS, lambda x: torch.zeros(2))(torch.zeros(2)),
            "policy must be a function x -> u, got x -> AffineSet: the order is",
        ),
        (
            lambda: SafetyFilter(lambda x: None, lambda x: LIMITS)(torch.zeros(2)),
            "policy must be a function x -> u, got x -> None: the order is",
        ),
        (
            lambda: ControlAffine(2, 2, None, torch.eye(2)),
            r"actuation must be a function x -> \(..., n_x, n_u\), got Tensor: write lambda x: actuation",
        ),
        (lambda: ControlAffine(2, 2, None, None), r"actuation must be a function .* got NoneType"),
        (
            lambda: ControlAffine(2, 1, torch.zeros(2), column),
            r"drift must be a function x -> \(..., n_x\), got Tensor: write lambda x: drift.expand_as\(x\)",
        ),
        (
            lambda: ControlAffine(2, 1, lambda x: x, column, torch.eye(2)),
            r"drift_jacobian must be a function x -> \(..., n_x, n_x\), got Tensor",
        ),
        (lambda: HighOrder(CIRCLES, Unicycle()), "Unicycle has no drift"),
        (lambda: linear(-1.0), "slope must be positive"),
        (lambda: linear(math.inf), "slope must be positive and finite"),
        (
            lambda: ControlAffine(2, 1, lambda x: x[..., 1], column).velocity(torch.zeros(2, 2), torch.zeros(2, 1)),
            r"drift must give the shape of x, \(2, 2\), got \(2,\)",
        ),
        (
            lambda: BarrierConstraint(ControlAffine(2, 1, None, lambda x: torch.ones(1, 1)), CIRCLES)(torch.zeros(2)),
            r"actuation must give the shape \(64, 2, 1\) or \(2, 1\), got \(1, 1\)",
        ),
        (lambda: power(1.0, 0.5), "exponent must be at least 1, got 0.5"),
        (lambda: BarrierConstraint(Unicycle(), CIRCLES, 1.0), r"class_k must be a function, such as linear\(1.0\)"),
        (lambda: BarrierConstraint(Unicycle(), lambda x: x), "wrap a function in FunctionBarrier"),
        (lambda: BarrierConstraint(Unicycle(), CIRCLES, margin=-1.0), "margin must be at least 0 and finite, got -1.0"),
        (lambda: BarrierConstraint(Unicycle(), CIRCLES, margin=math.inf), "margin must be at least 0 and finite"),
        (
            lambda: BarrierConstraint(CIRCLES, Unicycle()),
            r"got OutsideCircles: the order is BarrierConstraint\(system, ",
        ),
        (lambda: HighOrder(Unicycle(), CIRCLES), r"got OutsideCircles: the order is HighOrder\(barrier, system\)"),
        (lambda: BarrierConstraint(Unicycle(), CIRCLES)([0.0, 0.0, 0.0]), "x must be a tensor, got list: write torch"),
        (lambda: BarrierConstraint(Unicycle(), CIRCLES)(torch.tensor(0.0)), r"x must have shape \(..., 3\), got \(\)"),
        (lambda: rollout(Unicycle(), UnicyclePID(), [0.0] * 3, 4, 0.1), "start must be a tensor, got list"),
        (lambda: PID(1.0, 0.0, 0.0, 0.1), "kp must be a list with one gain per component, got 1.0"),
        (lambda: limit_gradient(torch.zeros(3), -1.0), "limit must be positive, got -1.0"),
        (lambda: rollout(Unicycle(), UnicyclePID(), torch.zeros(3), 0, 0.1), "steps >= 1"),
        (
            lambda: rollout(Unicycle(), lambda x: torch.ones(1), torch.zeros(5, 3), 4, 0.1),
            r"return inputs of shape \(5, 2\) or \(2,\), got \(1,\)",
        ),
        (
            lambda: rollout(Unicycle(), lambda x: torch.ones(4, 2), torch.zeros(5, 3), 4, 0.1),
            r"return inputs of shape \(5, 2\) or \(2,\), got \(4, 2\)",
        ),
        (lambda: PID([1.0], [1.0, 2.0], [1.0], 0.1), "three gains, got 1, 2 and 1"),
        (lambda: PID([1.0], [1.0], [1.0], 0.0), "dt must be positive"),
        (lambda: PID([1.0], [1.0], [1.0], math.inf), "dt must be positive and finite, got inf"),
        (lambda: PID([math.nan], [1.0], [1.0], 0.1), "gains must be finite numbers, got"),
        (lambda: PID([0.5], [0.0], [0.0], 0.1)(torch.tensor([3])), r"got torch.int64: write error.double\(\)"),
        (lambda: PID([0.5] * 3, [0.0] * 3, [0.0] * 3, 0.1)(torch.zeros(4, 1)), r"shape \(..., 3\), got \(4, 1\)"),
        (lambda: UnicyclePID()(torch.tensor([1, 0, 0])), r"x must be of a floating type, got torch.int64"),
        (
            lambda: BarrierConstraint(Unicycle(), FunctionBarrier(torch.sum))(torch.tensor([3, 3, 3])),
            r"x must be of a floating type, got torch.int64: write x.double\(\)",
        ),
        (lambda: rollout(Unicycle(), UnicyclePID(), torch.zeros(3), 2.0, 0.1), "whole steps >= 1 .*got steps=2.0"),
        (lambda: rollout(Unicycle(), UnicyclePID(), torch.zeros(3), 2, math.inf), "a finite dt > 0, got .*dt=inf"),
    ],
)
def test_bad_input_is_refused(act, message):
    with pytest.raises(ConstraintError, match=message):
        act()


@pytest.mark.parametrize("size", [1, 3])
def test_a_drift_of_another_size_is_refused_when_a_constraint_is_built(size):
    system = ControlAffine(2, 1, lambda x: x.new_zeros(*x.shape[:-1], size), column)
    speed = InsideBox([-math.inf, -1.0], [math.inf, 1.0])
    message = rf"drift must give the shape of x, \(64, 2\), got \(64, {size}\)"
    for build in (
        lambda: BarrierConstraint(system, speed),
        lambda: BarrierConstraint(system, Moving(speed, [0.0, 0.0])),
        lambda: LyapunovConstraint(system, Quadratic(torch.eye(2))),
    ):
        with pytest.raises(ConstraintError, match=message):
            build()
    BarrierConstraint(system, speed, samples=torch.empty(0, 2))  # nothing is looked at
    right = ControlAffine(2, 1, lambda x: torch.stack([x[..., 1], -x[..., 0]], -1), column)
    BarrierConstraint(right, Moving(speed, [0.0, 0.0]), samples=torch.randn(5, 3))  # with time, which the drift lacks


def test_a_drift_that_takes_single_states_only_is_kept():
    def drift(x):
        return torch.stack([x[1] * float(x[0]), x[0]])  # fails for a batch

    safe = BarrierConstraint(ControlAffine(2, 1, drift, column), InsideBox([-math.inf, -1.0], [math.inf, 1.0]))
    assert safe(torch.tensor([2.0, 0.5])).upper.tolist() == pytest.approx([0.5 - 2.0, 1.5 + 2.0])


def test_objects_print_what_they_are_made_of():
    mass = DoubleIntegrator(1)
    wall = HighOrder(WALL, mass)
    assert repr(Unicycle()) == "Unicycle(3 states, 2 inputs)"
    assert repr(wall) == "HighOrder(InsideBox(x0 <= 1), DoubleIntegrator(2 states, 1 input))"
    safe = BarrierConstraint(mass, wall, inputs=AffineSet.box(-1.0, 1.0, dim=1))
    assert (
        repr(safe) == f"BarrierConstraint(DoubleIntegrator(2 states, 1 input), {wall}, inputs=AffineSet(1 row in R^1))"
    )
    assert repr(BarrierConstraint(Unicycle(), CIRCLES)) == (
        "BarrierConstraint(Unicycle(3 states, 2 inputs), OutsideCircles(circle 0, circle 1))"
    )
    goal = LyapunovConstraint(Unicycle(), lambda x: x.square().sum())
    assert repr(goal) == "LyapunovConstraint(Unicycle(3 states, 2 inputs), FunctionBarrier(V))"
    assert repr(FunctionBarrier(lambda x: x)) == "FunctionBarrier(unnamed)"
    many = OutsideCircles(torch.zeros(6, 2), [1.0] * 6)
    assert repr(many) == "OutsideCircles(circle 0, circle 1, circle 2, circle 3, and 2 more)"
    moving = HighOrder(Moving(WALL, [1.0, 0.0]), mass)
    assert repr(moving).endswith("DoubleIntegrator(2 states, 1 input))")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_any_size_are_limited(dtype):
    """Also where the square of a length overflows; what is no number is left out, alone."""
    large = torch.finfo(dtype).max / 4
    incoming = torch.tensor([[0.3, 0.4], [30.0, 40.0], [large, large], [math.inf, 1.0], [0.0, 0.0]], dtype=dtype)
    x = torch.zeros(5, 2, dtype=dtype, requires_grad=True)
    limit_gradient(x, 5.0).backward(incoming)
    root = 5.0 / math.sqrt(2)
    expected = torch.tensor([[0.3, 0.4], [3.0, 4.0], [root, root], [0.0, 0.0], [0.0, 0.0]], dtype=dtype)
    torch.testing.assert_close(x.grad, expected)


def test_pid_takes_gains_of_any_kind():
    error = torch.tensor([1.0, 2.0])
    expected = PID([2.0, 1.0], [0.0, 0.0], [0.0, 0.0], 0.1)(error)
    zero = np.zeros(2)
    assert torch.equal(PID(np.array([2.0, 1.0]), zero, zero, 0.1)(error), expected)
    assert torch.equal(PID(torch.tensor([2.0, 1.0]), zero, zero, 0.1)(error), expected)


def test_pid_takes_the_short_way_round_and_notices_another_batch():
    turn = UnicyclePID(goal=(0.0, 0.0, -3.0), kp=(0.0, 0.0, 1.0), ki=(0.0,) * 3, kd=(0.0,) * 3)
    x = torch.tensor([0.0, 0.0, 3.0])
    torch.testing.assert_close(turn(x), torch.tensor([0.0, 2 * math.pi - 6.0]))
    with pytest.raises(ConstraintError, match=r"shape \(4, 3\), the one before \(3,\): call reset"):
        turn(x.expand(4, 3))


@pytest.mark.parametrize("policy", [lambda x: [5.0, 0.0], lambda x: torch.tensor([5.0, 0.0]).double().numpy()])
def test_held_inputs_may_cross_a_barrier_and_a_margin_keeps_them_out(policy):
    """While an input is held, a fast robot passes where it should have slowed down."""
    circle, start = OutsideCircles([[2.0, 0.0]], [1.0]), torch.tensor([-2.13, 0.0, 0.0])
    lowest = {}
    for margin in (0.0, 0.5):
        safe = BarrierConstraint(Unicycle(), circle, linear(15.0), margin=margin)
        path = rollout(Unicycle(), SafetyFilter(policy, safe), start, steps=50, dt=0.1)
        assert path.states.dtype == torch.float32
        lowest[margin] = float(circle(path.states).min())
    assert lowest[0.0] < -0.05
    assert lowest[0.5] > 0.0


def test_a_rollout_with_limited_gradients():
    fast = ControlAffine(1, 1, drift=lambda x: 10 * x, actuation=lambda x: torch.ones(1, 1))
    gradients = []
    for limit in (None, 2.0):
        start = torch.tensor([1.0], requires_grad=True)
        path = rollout(fast, lambda x: torch.zeros(1), start, 5, 0.1, limit=limit)
        path.states[-1].sum().backward()
        assert start.grad is not None
        gradients.append(float(start.grad))
    assert gradients[0] > 100
    assert gradients[1] == pytest.approx(2.0)


def test_stacked_filter_resets_its_policy():
    pid = UnicyclePID()
    safe = BarrierConstraint(Unicycle(), Stack(CIRCLES, InsideBox([-5.0] * 3, [5.0] * 3)), inputs=LIMITS)
    start = torch.tensor([-1.0, 0.2, 0.0], dtype=torch.float64)
    first = rollout(Unicycle(), SafetyFilter(pid, safe), start, 5, 0.1)
    again = rollout(Unicycle(), SafetyFilter(pid, safe), start, 5, 0.1)
    assert torch.equal(first.states, again.states)
    assert torch.equal(rk4(Unicycle(), start, first.inputs[0], 0.1), first.states[1])
