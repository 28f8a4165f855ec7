"""The three problems are the paper's: draws, formulas, and reference numbers that need no training."""

import math
import time
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from caffnet import AffineSet, CAffine, project
from caffnet.control import hull_rows
from caffnet.methods.hardnet import HardNet
from caffnet_lab.experiments import cbf
from caffnet_lab.experiments.cbf import DrivingProblem
from caffnet_lab.experiments.config import SEEDS, resolve
from caffnet_lab.experiments.models import build_model
from caffnet_lab.experiments.opt import SolverProblem, solve_with_ipopt
from caffnet_lab.experiments.philox import CudaStream
from caffnet_lab.experiments.problem import (
    exact_inequalities,
    one_sided,
    penalty_of,
    summarise_violations,
    time_forward,
)
from caffnet_lab.experiments.pwc import PiecewiseProblem, bounds, target
from caffnet_lab.experiments.run import build_problem


@pytest.fixture(scope="module")
def driving() -> DrivingProblem:
    return DrivingProblem(2)


# ---------------------------------------------------------------------------------------------------- pwc


@pytest.mark.parametrize(
    ("seed", "first"), [(1, [-0.331912, 0.881298, -1.999543]), (6, [1.571441, -0.672081, 1.284916])]
)
def test_pwc_draws(seed, first):
    problem = PiecewiseProblem(seed)
    assert problem.train.shape == (50, 1)
    assert problem.test.shape == (400, 1)
    assert problem.train[:3, 0].tolist() == pytest.approx(first, abs=5e-7)


def test_pwc_target_is_feasible_everywhere_and_the_set_is_a_point_on_a_quarter():
    x = torch.linspace(-2, 2, 40_001, dtype=torch.float64).unsqueeze(-1)
    lower, upper = bounds(x)
    low, high = lower.amax(-1), upper.amin(-1)
    y = target(x).squeeze(-1)
    assert (high >= low).all()
    assert (y >= low).all()
    assert (y <= high).all()
    assert ((high == low).double().mean() - 0.25).abs() < 1e-3


@pytest.mark.parametrize(
    ("x", "expected"),
    [(-1.5, -5 * math.sin(-math.pi / 4) - 2), (-0.5, -2.0), (0.5, 2 - 9 * (0.5 - 2 / 3) ** 2), (2.0, 3 / 4 - 2)],
)
def test_pwc_target_pieces(x, expected):
    assert target(torch.tensor([[x]], dtype=torch.float64)).item() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("x", [-2.0, -1.0, 0.0, 1e-200, 1.0, 2.0])
def test_pwc_is_finite_at_the_joints(x):
    point = torch.tensor([[x]], dtype=torch.float64, requires_grad=True)
    total = target(point).sum() + sum(b.sum() for b in bounds(point))
    total.backward()
    assert total.isfinite()
    assert point.grad is not None
    assert point.grad.isfinite().all()


def test_pwc_hardnet_corrects_a_single_violation_by_half():
    problem = PiecewiseProblem(1)
    x = torch.tensor([[1.5]], dtype=torch.float64)  # upper bounds 2 and 2.5
    y = HardNet(nn.Identity(), lambda _: problem.build_set(x), check=False)(torch.tensor([[2.25]], dtype=torch.float64))
    assert y.item() == pytest.approx(2.25 - 0.25 / 2)


# ---------------------------------------------------------------------------------------------------- opt


def test_opt_draws_follow_the_legacy_stream():
    problem = SolverProblem(7)
    stream = np.random.RandomState(7)
    Q, p = stream.rand(5), stream.rand(5)
    G, C = stream.randn(5, 5), stream.randn(3, 5)
    train = stream.uniform(-1, 1, (1000, 3, 1))
    stream.uniform(-1, 1, (10, 3, 1))
    test = stream.uniform(-1, 1, (1000, 3, 1))
    for ours, theirs in ((problem.Q, Q), (problem.p, p), (problem.A, np.concatenate([G, C]))):
        np.testing.assert_array_equal(ours.numpy(), theirs)
    np.testing.assert_array_equal(problem.train.numpy(), train[..., 0])
    np.testing.assert_array_equal(problem.test.numpy(), test[..., 0])
    np.testing.assert_allclose(problem.h.numpy(), np.abs(G @ np.linalg.pinv(C)).sum(1))


def test_opt_is_feasible_for_every_input():
    problem = SolverProblem(1)
    C = problem.A[5:]
    y = problem.test @ torch.linalg.pinv(C).mT
    assert problem.build_set(problem.test).violation(y).max() < 1e-12


@pytest.mark.parametrize("seed", SEEDS["opt"])
def test_dependent_choices_change_nothing_in_opt(seed):
    """So the paper's protocol leaves them out there."""
    problem = build_problem(resolve("opt", "caffnet-ff", seed))
    x = problem.test[:200]
    f, w = 2 * torch.randn(2, 200, 5, dtype=torch.float64)
    paper, full = (project(f, problem.constraint(x), w, search=search).value for search in ("paper", "full"))
    assert torch.equal(paper, full)


def test_the_papers_protocol_searches_dependent_choices_in_cbf():
    assert resolve("cbf", "caffnet-ff", 2).search == "paper"
    assert resolve("cbf", "caffnet-ff", 2, "ours").search == "full"
    model = build_model(resolve("cbf", "caffnet-ff", 2), build_problem(resolve("cbf", "caffnet-ff", 2)))
    assert model.layer.options["search"] == "paper"


def test_opt_ipopt_finds_the_papers_optimum():
    pytest.importorskip("casadi")
    problem = SolverProblem(1)
    problem.test = problem.test[:200]
    answers, milliseconds = solve_with_ipopt(problem)
    found = problem.evaluate_points(answers).metrics
    assert milliseconds > 0
    assert found["inequality"]["max"] < 1e-7
    assert found["equality"]["max"] < 1e-7
    # A local step in any feasible direction gains nothing: compare with many feasible points nearby.
    noise = 1e-2 * torch.randn(50, 200, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    nearby = CAffine(problem.enforced("full"))((answers + noise), x=problem.test.expand(50, 200, 3))
    assert (problem.objective(nearby) >= problem.objective(answers) - 1e-6).all()


# ---------------------------------------------------------------------------------------------------- cbf

PAPER_OBSTACLES = (
    (
        [[0.4472, -0.8944], [0.7071, 0.7071], [-0.2425, 0.9701], [-0.7071, -0.7071], [-0.8944, -0.4472]],
        [-0.2184, -0.5303, 0.6219, 1.1667, 1.4368],
    ),
    (
        [
            [-0.9685, 0.2489],
            [0.9417, 0.3363],
            [-0.3714, 0.9285],
            [0.3714, 0.9285],
            [-0.9417, -0.3363],
            [-0.2976, -0.9547],
        ],
        [1.2755, -1.7670, -0.8511, -2.0249, 2.3274, 2.6868],
    ),
    (
        [[-0.9191, 0.3939], [0.8944, 0.4472], [0.9703, -0.2419], [-0.8701, -0.4930], [0.0, -1.0]],
        [2.9916, -1.9975, -2.5305, 2.4854, 0.1],
    ),
)


def test_cbf_obstacles_are_the_papers_to_rounding():
    for corners, (A, b) in zip(cbf.obstacle_corners(), PAPER_OBSTACLES, strict=True):
        ours = sorted(torch.cat([part if part.ndim == 2 else part[:, None] for part in hull_rows(corners)], 1).tolist())
        paper = sorted([*row, bound] for row, bound in zip(A, b, strict=True))
        assert np.abs(np.array(ours) - np.array(paper)).max() < 1.1e-4


def test_cbf_initial_states_are_safe_and_head_for_the_goal(driving):
    states = driving.train
    assert states.shape == (300, 3)
    assert driving.barrier(states).min() >= 0
    torch.testing.assert_close(states[:, 2], torch.atan2(-states[:, 1], -states[:, 0]))
    assert torch.equal(driving.test, torch.tensor([[-4.5, 0.0, 0.5]], dtype=torch.float64))
    assert not torch.equal(DrivingProblem(6).train, states)


def test_cbf_takes_the_states_of_the_papers_gpu_on_request(driving):
    """The first state that is kept, drawn by hand: 302 safe states before it are thrown away."""
    states, stream = DrivingProblem(2, draws="paper").train, CudaStream(2)
    low, high = (torch.tensor(v, dtype=torch.float64) for v in (cbf.STATE_LOWER, cbf.STATE_UPPER))
    safe: list[torch.Tensor] = []
    while len(safe) < 303:
        position = (low + (high - low) * stream.rand(3))[:2]
        state = torch.cat([position, torch.atan2(-position[1], -position[0])[None]])
        safe += [state] if (driving.barrier(state) >= 0).all() else []
    assert torch.equal(states[0], safe[-1])
    assert states.shape == (300, 3) and not torch.equal(states, driving.train)


@pytest.mark.parametrize("method", ["nn", "caffnet-ff", "post-hoc"])
def test_weights_are_drawn_as_the_paper_does_on_request(driving, method):
    """Layer by layer in float64, first those of f, then those of w."""
    model = build_model(resolve("cbf", method, 2, "paper"), driving)
    torch.manual_seed(2)
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert len(layers) == (8 if method == "caffnet-ff" else 4)
    for layer in layers:
        expected = nn.Linear(layer.in_features, layer.out_features, dtype=torch.float64)
        nn.init.xavier_normal_(expected.weight)
        assert torch.equal(layer.weight, expected.weight) and torch.equal(layer.bias, expected.bias)
    if method == "caffnet-ff":
        silent = build_model(resolve("cbf", method, 2, "paper", {"null_start": "zero"}), driving)
        assert [bool(p.any()) for p in silent.null.parameters()] == [True] * 6 + [False] * 2
    other = build_model(resolve("cbf", method, 2, "paper", {"draws": "native"}), driving)
    weight = next(other.parameters())
    assert torch.equal(weight, weight.float().double()) and not torch.equal(weight, layers[0].weight)


def test_cbf_has_thirteen_rows_with_one_entry_each(driving):
    rows = driving.build_set(driving.train)
    assert rows.A.shape == (300, 13, 2)
    assert ((rows.A == 0).sum(-1) >= 1).all()
    assert rows.names[:4] == ("obstacle 0", "obstacle 1", "obstacle 2", "p_x <= 1")


class Nominal(nn.Module):
    """The PID controller alone."""

    def forward(self, x, nominal):
        return nominal


class Zero(nn.Module):
    """A network that says nothing."""

    def forward(self, x):
        return x.new_zeros(*x.shape[:-1], 2)


class Filtered(nn.Module):
    """The PID controller behind the layer."""

    def __init__(self, constraint):
        super().__init__()
        self.layer = CAffine(constraint)

    def forward(self, x, nominal):
        return self.layer(nominal, x=x)


REFERENCE = {
    # cost, penalty, final distance, mean of max, true max, percent
    "nominal": (6.947e5, 799, 0.0, 0.1384, 0.809, 2.38),
    "hardnet": (7.074e5, 738, 0.0, 0.1374, 0.762, 2.69),
    "caffnet": (1.076e7, 0, 3.09, 0.0, 0.0, 0.0),
}


@pytest.mark.parametrize("method", REFERENCE)
def test_cbf_reference_rollouts(driving, method):
    models = {
        "nominal": Nominal(),
        "hardnet": HardNet(Zero(), driving.constraint, check=False),
        "caffnet": Filtered(driving.constraint),
    }
    found = driving.evaluate(models[method]).metrics
    cost, penalty, distance, mean_of_max, largest, percent = REFERENCE[method]
    assert found["cost"] == pytest.approx(cost, rel=1e-3)
    assert found["penalty"] == pytest.approx(penalty, abs=0.6)
    assert found["final_distance"] == pytest.approx(distance, abs=6e-3)
    assert found["arrived"] == (distance == 0.0)
    assert (found["arrival_time"] or 99.0) <= 10.0 if found["arrived"] else found["arrival_time"] is None
    rows = found["inequality"]
    assert rows["mean_of_max"] == pytest.approx(mean_of_max, abs=6e-5)
    assert rows["max"] == pytest.approx(largest, abs=6e-4)
    assert rows["percent"] == pytest.approx(percent, abs=6e-3)
    assert rows["entries"] == 1300
    assert found["collided"] == (method != "caffnet")


class Slow(nn.Module):
    """A driver that takes its time, and counts."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x, nominal):
        self.calls += 1
        return nominal * torch.tensor([0.4, 1.0], dtype=x.dtype)


def test_cbf_learns_from_15_seconds_and_is_tested_on_10(driving):
    """Only the arrival may come later than that."""
    model = Slow()
    driving.loss(model, driving.train[:2])
    assert model.calls == 150
    model = Slow()
    found = driving.evaluate(model)
    assert model.calls == 100 + 150 + 150  # the last: from fresh starts
    model.calls = 0
    assert "fresh" not in driving.evaluate(model, exact=True).metrics
    assert model.calls == 100 + 150
    assert len(found.curves["states"]) == 100 + 1
    assert not found.metrics["arrived"]
    assert found.metrics["final_distance"] > 0.1
    assert 10 < (found.metrics["arrival_time"] or 0) <= 15
    forward, model.calls = driving.forward_for_timing(model), 0
    forward()
    assert model.calls == 100


def test_fresh_starts_are_safe_and_nobody_elses(driving):
    starts = cbf.fresh_starts()
    assert starts.shape == (200, 3)
    assert torch.equal(starts, cbf.fresh_starts())
    assert (cbf.barrier()(starts) >= 0).all()
    for seed in SEEDS["cbf"]:
        assert torch.cdist(DrivingProblem(seed).train, starts).min() > 1e-9


def test_fresh_starts_are_judged_as_if_each_drove_alone(driving, monkeypatch):
    """A controller that hits obstacles, from six starts: one drive after the other, the shares counted."""
    monkeypatch.setattr(cbf, "FRESH_STARTS", 6)
    model = Slow()
    found = driving.evaluate(model).metrics["fresh"]
    hit, arrived, costs = 0, 0, []
    for start in cbf.fresh_starts():
        path: list = []
        cost, penalty, _ = driving._drive(model, start[None], 150, "squared", path)
        places = torch.cat([start[None], *(step[-1] for step in path)])[:, :2]
        inside = [((places @ A.T - b) < 0).all(-1).any() for A, b in map(hull_rows, cbf.obstacle_corners())]
        hit += any(inside)
        arrived += bool((places.norm(dim=-1) <= 0.1).any())
        costs.append(float(cost + 100 * penalty))
    assert 0 < hit < 6
    assert found["safe"] == pytest.approx(100 * (6 - hit) / 6)
    assert found["arrived"] == pytest.approx(100 * arrived / 6)
    assert found["cost"] == pytest.approx(sum(costs) / 6)
    assert found["violation"] > 0 > found["clearance"]


# ---------------------------------------------------------------------------------------------------- measures


def test_penalty_counts_an_equality_once():
    broken = AffineSet.equality([[1.0, 0.0]], [1.0]) & AffineSet.inequality([[0.0, 1.0]], [0.0])
    two_sided = AffineSet.inequality([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], [1.0, -1.0, 0.0])
    y = torch.tensor([[3.0, 0.5], [0.0, -1.0]])
    for form in ("squared", "linear"):
        ours, theirs = (penalty_of(s.violation(y), form) for s in (broken, two_sided))
        torch.testing.assert_close(ours, theirs)


def test_rows_are_counted_as_the_paper_does():
    both = AffineSet([[1.0]], -1.0, 1.0) & AffineSet.equality([[1.0]], [0.0]) & AffineSet.inequality([[1.0]], [0.5])
    inequality, equality = one_sided(both.to(torch.float32), torch.tensor([[2.0]]))
    assert inequality.tolist() == [[1.0, 1.5, 0.0]]
    assert equality.tolist() == [[2.0]]


def test_exact_arithmetic_sees_what_rounding_hides():
    third = 0.1 + 0.2  # above 0.3 by a rounding error
    rows = AffineSet([[1.0, 1.0], [0.0, 1.0]], [0.1, -1.0], [0.3, 1.0])
    y = torch.tensor([[0.1, 0.2], [0.15, 0.15]], dtype=torch.float64)
    exact = exact_inequalities(rows, y)
    assert exact.shape == one_sided(rows, y)[0].shape == (2, 4)
    assert exact[0, 0] == float(Fraction(0.1) + Fraction(0.2) - Fraction(0.3)) > 0
    assert exact[0, 0] != third - 0.3
    assert exact[1].sum() == 0


def test_violation_summary():
    rows = torch.tensor([[0.0, 0.4], [0.0, 0.0], [2e-7, 0.2], [0.0, 0.0]])
    found = summarise_violations(rows)
    assert found["mean_of_max"] == pytest.approx(0.15)
    assert found["max"] == pytest.approx(0.4)
    assert found["mean"] == pytest.approx(0.6 / 8, rel=1e-5)
    assert found["percent"] == 25.0
    assert (found["exact_zeros"], found["entries"]) == (5, 8)


def test_time_is_that_of_a_call_in_milliseconds():
    assert time_forward(lambda: time.sleep(2e-3), torch.device("cpu"), budget=0.0) >= 2


def test_time_is_the_median_after_warm_up(monkeypatch):
    """By a clock that only the calls move."""
    now, durations = [0.0], [64, 32, 8, 1, 2]  # the first two do not count

    def forward() -> None:
        now[0] += 1e-3 * durations.pop(0)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    assert time_forward(forward, torch.device("cpu"), budget=0.0) == pytest.approx(2)
    assert not durations


# ---------------------------------------------------------------------------------------------------- networks

COUNTS = {
    ("pwc", "nn"): 81_001,
    ("pwc", "caffnet-ff"): 162_002,
    ("pwc", "caffnet-tf"): 175_682,
    ("opt", "hardnet"): 83_405,
    ("opt", "caffnet-ff-lite"): 166_810,
    ("opt", "caffnet-tf"): 176_890,
    ("cbf", "nn"): 81_602,
    ("cbf", "caffnet-ff"): 163_204,
}
PROBLEMS = {"pwc": PiecewiseProblem, "opt": SolverProblem, "cbf": DrivingProblem}


@pytest.mark.parametrize(("task", "method"), COUNTS)
def test_networks_have_the_papers_size(task, method):
    model = build_model(resolve(task, method, 1), PROBLEMS[task](1))
    assert sum(p.numel() for p in model.parameters()) == COUNTS[task, method]
    assert next(model.parameters()).dtype == torch.float64


@pytest.mark.parametrize("method", ["nn", "hardnet", "caffnet-ff", "caffnet-tf"])
def test_our_networks_have_the_size_of_the_papers_caffnet(method):
    problem = SolverProblem(1)
    size = sum(p.numel() for p in build_model(resolve("opt", method, 1, "ours"), problem).parameters())
    assert abs(size / 164_410 - 1) < 0.01  # two plain networks with three layers of 200


@pytest.mark.parametrize("task", ["pwc", "opt"])
@pytest.mark.parametrize("method", ["caffnet-ff", "caffnet-tf", "post-hoc"])
def test_hard_methods_satisfy_every_row_untrained(task, method):
    problem = PROBLEMS[task](1)
    model = build_model(resolve(task, method, 1, "ours"), problem).eval()
    found = problem.evaluate(model).metrics
    for kind in ("inequality", "equality"):
        assert found.get(kind, {"max": 0.0})["max"] < 1e-12


@pytest.mark.parametrize("task", ["pwc", "opt"])
def test_strict_inequalities_hold_in_exact_arithmetic(task):
    problem = PROBLEMS[task](1)
    model = build_model(resolve(task, "caffnet-ff", 1, "ours"), problem, strict=True).eval()
    assert problem.evaluate(model, exact=True).metrics["exact_inequality"]["max"] == 0.0


@pytest.mark.parametrize("task", ["pwc", "opt"])
def test_a_timed_answer_builds_its_constraints(task, monkeypatch):
    """They depend on the input, so every answer needs them; what was remembered would be left out of T_test."""
    config = resolve(task, "hardnet", 1, "ours")
    problem = build_problem(config)
    forward = problem.forward_for_timing(build_model(config, problem).eval())
    built, build = [], problem.build_set
    monkeypatch.setattr(problem, "build_set", lambda x: built.append(x) or build(x))
    for _ in range(3):
        forward()
    assert len(built) == 3
