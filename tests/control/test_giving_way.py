"""Limits are hard, barriers give way, goals have a price: the same through every entry point."""

import math

import numpy as np
import pytest
import torch

from caffnet import AffineSet, CAffine, CAffNet, ConstraintError, InfeasibleError, Status, project
from caffnet.control import (
    BarrierConstraint,
    DoubleIntegrator,
    FunctionBarrier,
    HighOrder,
    InsideBox,
    Integrator,
    LyapunovConstraint,
    OutsideCircles,
    Quadratic,
    SafetyFilter,
    audit,
    linear,
    rollout,
)

DOUBLE = torch.float64
MASS, WALL = DoubleIntegrator(1), InsideBox([-math.inf, -math.inf], [1.0, math.inf])
PLANE = Integrator(2, 1)


class Wanted(torch.nn.Module):
    """A backbone that asks for the same input everywhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_full((*x.shape[:-1], 1), 0.5)


@pytest.mark.parametrize("limit", [1.0, 0.49])
def test_every_entry_point_gives_the_same_answer_in_every_state(limit):
    pytest.importorskip("gymnasium")
    from caffnet.control.gym import ControlEnv, SafeActions

    limits = AffineSet.box(-limit, limit, dim=1)
    safe = BarrierConstraint(MASS, HighOrder(WALL, MASS), inputs=limits)
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, dtype=DOUBLE, generator=stream) * torch.tensor([1.0, 3.0])
    f = x.new_full((60, 1), 0.5)
    options = {"on_infeasible": "nearest"}
    answer = project(f, safe(x), **options)
    lost = answer.status == Status.RELAXED
    assert 10 < int(lost.sum()) < 50
    assert (answer.value.abs() <= limit).all()
    assert (answer.value[lost].abs() >= limit * (1 - 1e-15)).all()  # as much brake as there is
    others = {
        "CAffine": CAffine(safe, **options)(f, x=x),
        "CAffNet": CAffNet(Wanted(), safe, **options)(x),
        "SafetyFilter": SafetyFilter(Wanted(), safe, **options)(x),
        "compiled": torch.compile(SafetyFilter(Wanted(), safe, **options), fullgraph=True, backend="eager")(x),
        "one by one": torch.stack([project(g, safe(state), **options).value for g, state in zip(f, x, strict=True)]),
    }
    for name, value in others.items():
        assert torch.equal(value, answer.value), name
    for bounds in (limits, None):  # the limits of the space are enough
        rows = BarrierConstraint(MASS, HighOrder(WALL, MASS), inputs=bounds)
        env = SafeActions(
            ControlEnv(MASS, lambda rng: np.zeros(2), lambda x, u: 0.0, np.array([-limit]), np.array([limit])),
            rows,
            **options,
        )
        for state, value, status in zip(x, answer.value, answer.status, strict=True):
            env.reset(options={"start": state.numpy()})
            *_, info = env.step(np.array([0.5]))
            assert info["action"].tolist() == value.tolist() and info["status"] == int(status)


def test_barriers_are_hard_unless_the_nearest_input_is_asked_for():
    safe = BarrierConstraint(MASS, HighOrder(WALL, MASS), inputs=AffineSet.box(-1.0, 1.0, dim=1, names=["force"]))
    x = torch.tensor([0.0, 5.0], dtype=DOUBLE)
    with pytest.raises(InfeasibleError, match=r"x0 <= 1.*force"):
        SafetyFilter(Wanted(), safe)(x)
    assert SafetyFilter(Wanted(), safe, on_infeasible="nan")(x).isnan().all()


def test_limits_may_be_soft_too():
    """Where the wall asks for u <= -2, a comfort limit gives way as far as the wall does; the actuator's holds."""
    limits = AffineSet.box(-2.0, 2.0, dim=1) & AffineSet.box(-1.0, 1.0, dim=1).soft()
    safe = BarrierConstraint(MASS, HighOrder(WALL, MASS), inputs=limits)
    driver = SafetyFilter(Wanted(), safe, on_infeasible="nearest")
    x = torch.tensor([[0.0, 1.5], [0.0, 9.0]], dtype=DOUBLE)
    answer = driver.project(x)
    assert (answer.status == Status.RELAXED).all()
    torch.testing.assert_close(answer.value, torch.tensor([[-1.5], [-2.0]], dtype=DOUBLE))


def test_an_audit_does_not_ask_for_what_gives_way():
    safe = BarrierConstraint(Integrator(1, 1), InsideBox([-1.0], [1.0]), inputs=AffineSet.box(-1.0, 1.0, dim=1))
    goal = LyapunovConstraint(Integrator(1, 1), Quadratic([[1.0]], [9.0]), linear(5.0))
    assert audit(lambda x: safe(x) & goal(x), [-1.0], [1.0], samples=64).ok
    assert not audit(safe, [-3.0], [3.0], samples=64).ok


# ------------------------------------------------------------------------------------------------ goals


def test_the_row_of_a_goal_is_the_derivative_of_v():
    """dV/dt <= -α(V), by automatic differentiation."""
    V = Quadratic([[2.0, 0.5], [0.5, 1.0]], [1.0, -1.0])
    goal = LyapunovConstraint(MASS, V, linear(3.0), weight=7.0)
    x = torch.randn(5, 2, dtype=DOUBLE, requires_grad=True)
    u = torch.randn(5, 1, dtype=DOUBLE)
    rows, value = goal(x), V(x)
    slope = (torch.autograd.grad(value.sum(), x)[0] * MASS.velocity(x, u)).sum(-1, keepdim=True)
    torch.testing.assert_close(rows.upper - (rows.A @ u.unsqueeze(-1)).squeeze(-1), -slope - 3.0 * value)
    assert rows.softness.kinds == "w" and rows.names == ("V",)
    torch.testing.assert_close(rows.softness.weight, torch.tensor([7.0], dtype=DOUBLE))
    assert torch.autograd.gradcheck(lambda x: (goal(x).A, goal(x).upper), (x,))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, at its first forward derivative
def test_derivatives_of_a_quadratic():
    matrix, centre = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=DOUBLE), torch.tensor([1.0, -1.0], dtype=DOUBLE)
    V, free = Quadratic(matrix, centre), FunctionBarrier(lambda x: (x - centre) @ matrix @ (x - centre))
    x, v, w = (torch.randn(4, 2, dtype=DOUBLE) for _ in range(3))
    for one, other in zip(V.evaluate_along(x, v), free.evaluate_along(x, v), strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(V.third(x, v, w), free.third(x, v, w))


def test_clf_cbf_goes_around_and_arrives():
    """The least input that falls towards the goal, at a price, within barrier and limits: the CLF-CBF program."""
    circle = OutsideCircles([[2.0, 0.0]], [1.0])
    safe = BarrierConstraint(PLANE, circle, linear(2.0), AffineSet.box(-1.0, 1.0, dim=2))
    goal = LyapunovConstraint(PLANE, Quadratic(torch.eye(2), [4.0, 0.5]), linear(1.0), weight=10.0)
    driver = SafetyFilter(lambda x: torch.zeros_like(x), lambda x: safe(x) & goal(x))
    path = rollout(PLANE, driver, torch.tensor([[-1.0, 0.2], [0.0, -1.0], [1.0, 2.0]]), steps=400, dt=0.05, substeps=4)
    assert circle(path.fine).min() > 0
    assert path.inputs.abs().max() <= 1
    assert (path.states[:, -1] - torch.tensor([4.0, 0.5])).norm(dim=-1).max() < 0.1


def test_the_clf_cbf_program_is_the_one_of_the_books():
    """min 1/2 |u|² + 1/2 p δ² over barrier, limits and V' <= -V + δ, by DAQP with δ as a variable."""
    daqp = pytest.importorskip("daqp")
    circle = OutsideCircles([[2.0, 0.0]], [1.0])
    safe = BarrierConstraint(PLANE, circle, linear(2.0), AffineSet.box(-1.0, 1.0, dim=2))
    goal = LyapunovConstraint(PLANE, Quadratic(torch.eye(2), [4.0, 0.5]), linear(1.0), weight=10.0)
    x = torch.tensor([[-1.0, 0.2], [0.8, 0.1], [0.0, -1.0], [3.9, 0.5]], dtype=DOUBLE)
    answer = project(torch.zeros(4, 2, dtype=DOUBLE), safe(x) & goal(x))
    rows, last = safe(x), goal(x)
    for i in range(4):
        A = np.block([[rows.A[i].numpy(), np.zeros((3, 1))], [last.A[i].numpy(), -np.ones((1, 1))]])
        upper = np.append(rows.upper[i].numpy(), last.upper[i].numpy())
        lower = np.append(np.maximum(rows.lower.expand(4, 3)[i].numpy(), -1e30), -1e30)
        u, _, flag, _ = daqp.solve(np.diag([1.0, 1.0, 10.0]), np.zeros(3), A, upper, lower, np.zeros(4, dtype=np.int32))
        assert flag == 1
        np.testing.assert_allclose(answer.value[i].numpy(), u[:2], atol=1e-9)


def test_what_a_goal_cannot_be_is_said():
    with pytest.raises(ConstraintError, match="smallest eigenvalue is -1"):
        Quadratic([[1.0, 0.0], [0.0, -1.0]])
    with pytest.raises(ConstraintError, match=r"centre must have shape \(2,\)"):
        Quadratic(torch.eye(2), [1.0])
    with pytest.raises(ConstraintError, match="weight must be positive"):
        LyapunovConstraint(PLANE, Quadratic(torch.eye(2)), weight=-1.0)(torch.zeros(2))
    with pytest.raises(ConstraintError, match="HighOrder"):
        LyapunovConstraint(MASS, lambda x: x[0].square())
