"""The yardsticks are the published tasks; optima, and the rows that need no learning, agree with others' solvers."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.optimize import linprog

from caffnet import AffineSet
from caffnet.control import Barrier
from caffnet_lab.experiments.config import ConfigError, load_campaign, resolve
from caffnet_lab.experiments.models import build_model
from caffnet_lab.experiments.opt import solve_with_ipopt
from caffnet_lab.experiments.records import read_timings
from caffnet_lab.experiments.report.tables import speed_table
from caffnet_lab.experiments.run import build_problem, checkpoint_path, run_one
from caffnet_lab.experiments.timing import time_methods
from caffnet_lab.experiments.yardsticks import data, dispatch
from caffnet_lab.experiments.yardsticks.data import find
from caffnet_lab.experiments.yardsticks.dispatch import CASES, SECURED, DispatchProblem
from caffnet_lab.experiments.yardsticks.driving import EllipseBarrier, EllipseProblem
from caffnet_lab.experiments.yardsticks.forecast import ForecastProblem
from caffnet_lab.experiments.yardsticks.gaps import gap_curve, gap_metrics
from caffnet_lab.experiments.yardsticks.grid import CaseError, Grid, read_grid
from caffnet_lab.experiments.yardsticks.hierarchy import base_forecasts, shrunk_covariance
from caffnet_lab.experiments.yardsticks.metric import project_in_metric
from caffnet_lab.experiments.yardsticks.programs import INSTANCES, LearnedProgram
from caffnet_lab.experiments.yardsticks.tasks import FORECASTS, GRIDS, METHODS, PROGRAMS, UNTRAINED, YARDSTICKS

needs_data = pytest.mark.skipif(not data.FOLDER.is_dir(), reason=f"needs {data.FOLDER}")


# ---------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("task", YARDSTICKS)
def test_every_row_resolves_and_what_is_not_trained_runs_once(task):
    runs = load_campaign(task=task).runs
    assert {config.protocol for config in runs} == {"ours"}
    assert {config.method for config in runs} == set(METHODS[task])
    for method in METHODS[task]:
        assert sum(config.method == method for config in runs) == (1 if method in UNTRAINED else 5)
    assert resolve(task, "post-hoc", 1, "ours").trained == resolve(task, "nn", 1, "ours")
    solvers = [config for config in load_campaign(task=task, seeds=[4]).runs if config.method in UNTRAINED]
    assert {config.seed for config in solvers} == {1}


def test_yardsticks_have_one_protocol():
    with pytest.raises(ConfigError, match="dc3-simple has the protocol ours only, got paper"):
        load_campaign(task="dc3-simple", protocol="paper")
    with pytest.raises(ConfigError, match=r"method must be one of daqp, .*, got 'caffnet-tf'"):
        resolve("dc3-simple", "caffnet-tf", 1, "ours")


# ---------------------------------------------------------------------------------------------------- measures


def test_gaps_by_hand():
    found = gap_metrics(torch.tensor([-9.0, -1.0, -4.0]), torch.tensor([-10.0, -2.0, -4.0]))
    assert found["mean"] == pytest.approx(2 / 3) and found["max"] == 1 and found["min"] == 0
    assert found["percent"] == pytest.approx(100 * 2 / 16) and found["max_percent"] == pytest.approx(50)
    assert found["geometric"] == pytest.approx((1 * 1 * 1e-12) ** (1 / 3))
    curve = gap_curve(torch.tensor([-9.0, -1.0, -4.0]), torch.tensor([-10.0, -2.0, -4.0]))["gap_percent"]
    assert curve[0] == 0 and curve[50] == pytest.approx(10) and curve[-1] == pytest.approx(50)


def test_the_projection_in_a_metric_is_the_closed_form_on_a_flat():
    stream = torch.Generator().manual_seed(0)
    C, d, f = (torch.randn(*shape, generator=stream, dtype=torch.float64) for shape in ((3, 7), (3,), (5, 7)))
    root = 0.1 + torch.rand(7, generator=stream, dtype=torch.float64)
    inverse = torch.diag(root**-2)
    multipliers = torch.linalg.solve(C @ inverse @ C.mT, (f @ C.mT - d).mT).mT
    expected = f - multipliers @ C @ inverse
    torch.testing.assert_close(project_in_metric(f, AffineSet.equality(C, d), root), expected)


# ---------------------------------------------------------------------------------------------------- programs


@needs_data
@pytest.mark.parametrize("kind", ["simple", "nonconvex"])
def test_dc3s_instance_is_the_published_one(kind):
    problem, stored = LearnedProgram(f"dc3-{kind}"), np.load(find(f"dc3_{kind}_test.npz"))
    assert np.array_equal(problem.Q, np.diag(stored["Q"][0]))
    assert np.array_equal(problem.p, stored["p"][0, :, 0])
    assert np.array_equal(problem.A[50:], stored["A"][0])
    np.testing.assert_allclose(problem.A[:50], stored["G"][0], atol=1e-15)
    np.testing.assert_allclose(problem.h, stored["h"][0, :, 0], rtol=1e-12)
    assert np.array_equal(problem.test, stored["X"][:, :, 0])
    published = problem.objective(torch.from_numpy(stored["Ystar"][:, :, 0]))
    assert published.mean().item() == pytest.approx({"simple": -15.03721, "nonconvex": -11.58246}[kind], abs=5e-6)
    assert (len(problem.train), len(problem.valid)) == (7952, 1024)


@needs_data
def test_the_convex_program_is_one_projection():
    """Three ways to the same points: published answers, DAQP, the layer."""
    problem = LearnedProgram("dc3-simple")
    stored = torch.from_numpy(np.load(find("dc3_simple_test.npz"))["Ystar"][:, :, 0])
    ours = problem.project_minimiser()
    torch.testing.assert_close(ours, stored, atol=1e-9, rtol=0)
    torch.testing.assert_close(problem.solve_with_daqp(), ours, atol=1e-9, rtol=0)
    found = problem.evaluate_points(ours).metrics
    assert abs(found["gap"]["max"]) < 1e-9 and found["infeasible"] == 0
    assert max(found["inequality"]["max"], found["equality"]["max"]) < 1e-12


@pytest.mark.parametrize("name", ["hardnet-opt", "snarenet-noncvx"])
def test_the_order_of_hardnets_draws(name):
    problem, stream = LearnedProgram(name), np.random.RandomState(INSTANCES[name].seed)
    Q, p = stream.rand(100), stream.rand(100)
    G, C, X = stream.randn(50, 100), stream.randn(50, 100), stream.uniform(-1, 1, (10_000, 50))
    for mine, theirs in ((problem.Q, Q), (problem.p, p), (problem.A, np.concatenate([G, C])), (problem.test, X[9167:])):
        assert np.array_equal(mine, theirs)


def test_the_lowest_point_of_every_variable():
    problem = LearnedProgram("hardnet-opt")
    t = torch.linspace(-30, 30, 600_001, dtype=torch.float64)
    for q, p, found in zip(problem.Q[:20], problem.p[:20], problem.lowest_point()[:20], strict=True):
        values = 0.5 * q * t**2 + p * t.sin()
        assert 0.5 * q * found**2 + p * found.sin() <= values.min()
        assert q * found + p * found.cos() == pytest.approx(0, abs=1e-12)


def test_repeated_projections_descend_to_ipopts_answers(monkeypatch):
    problem = LearnedProgram("dc3-nonconvex")
    problem.test = problem.test[:20]
    best = problem.objective(solve_with_ipopt(problem)[0])
    values = []
    for repeats in (0, 1, 5, 50):
        monkeypatch.setattr("caffnet_lab.experiments.yardsticks.programs.REPEATS", repeats)
        y = problem.repeat_projections()
        assert problem.build_set(problem.test).violation(y).max() < 1e-12
        values.append(problem.objective(y))
    for before, after in itertools.pairwise(values):
        assert (after <= before + 1e-12).all()
    assert (values[-1] - best).max() < 1e-5


@pytest.mark.parametrize("method", ["nn", "hardnet", "dc3", "fsnet", "orthogonal", "caffnet-ff", "post-hoc"])
def test_all_methods_have_a_loss_and_learn(method):
    config = resolve("dc3-simple", method, 1, "ours", {"hidden": 20})
    problem = build_problem(config)
    model = build_model(config, problem)
    loss = problem.loss(model, problem.train[:10])
    (loss.cost + config.penalty_weight * loss.penalty).backward()
    assert any(weight.grad is not None and bool((weight.grad != 0).any()) for weight in model.parameters())
    if method in ("hardnet", "orthogonal", "caffnet-ff"):
        assert loss.worst < 1e-12


def test_a_rivals_loss_has_its_own_terms():
    problem = build_problem(resolve("dc3-simple", "fsnet", 1, "ours"))
    model = build_model(resolve("dc3-simple", "fsnet", 1, "ours", {"hidden": 20}), problem)
    x = problem.train[:10]
    output = model.run(x)
    plain = problem.objective(output.y).sum()
    moved = 5.0 * (output.y - output.raw).square().sum()
    assert problem.loss(model, x).cost.item() == pytest.approx((plain + moved).item())


# ---------------------------------------------------------------------------------------------------- grids

#: PowerModels and IPOPT, from PGLib's table of baselines.
PUBLISHED = {
    "14_ieee": 2.0515e3,
    "30_ieee": 7.4728e3,
    "89_pegase": 1.0504e5,
    "118_ieee": 9.3101e4,
    "300_ieee": 5.1785e5,
}


def case(name: str) -> Path:
    return find(f"pglib_opf_case{name}.m")


@needs_data
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_optima_to_four_digits(name):
    grid = read_grid(case(name))
    rows, drawn = grid.transfer[:, grid.generator_bus], grid.load + grid.shunt
    still = grid.constant - grid.transfer @ drawn
    found = linprog(
        grid.cost[:, 1],
        A_ub=np.concatenate([rows, -rows]),
        b_ub=np.concatenate([grid.flow_most - still, still - grid.flow_least]),
        A_eq=np.ones((1, len(grid.least))),
        b_eq=[drawn.sum()],
        bounds=np.stack([grid.least, grid.most], 1),
    )
    assert found.fun + grid.cost[:, 2].sum() == pytest.approx(PUBLISHED[name], rel=1e-4)


def tiny(tmp_path: Path, **other: str) -> Path:
    """Three buses in a ring, one of them with a shunt, and a phase shifter; a branch and a generator are off."""
    tables = {
        "bus": "1 3 0 0 0 0 1 1 0 1 1 1.1 0.9; 7 1 50 0 2 0 1 1 0 1 1 1.1 0.9; 3 2 30 0 0 0 1 1 0 1 1 1.1 0.9;",
        "gen": "1 0 0 0 0 1 100 1 90 10; 3 0 0 0 0 1 100 1 60 0; 3 0 0 0 0 1 100 0 60 0;",
        "gencost": "2 0 0 3 0.01 5 7; 2 0 0 2 9 1 0; 2 0 0 3 1 1 1;",
        "branch": "1 7 0.01 0.1 0 40 0 0 0 0 1 -30 30\n 7 3 0 0.2 0 0 0 0 0 0 1 -30 30\n"
        "1 3 0 0.1 0 50 0 0 0.9 5 1 -1 30; 1 3 0 0.1 0 50 0 0 0 0 0 -30 30;",
        **other,
    }
    text = "function mpc = tiny % a case\nmpc.baseMVA = 100.0; % MVA\n"
    text += "\n".join(f"mpc.{name} = [ % table\n{rows}\n];" for name, rows in tables.items())
    path = tmp_path / "tiny.m"
    path.write_text(text)
    return path


def test_a_grid_by_hand(tmp_path):
    grid = read_grid(tiny(tmp_path))
    assert grid.base == 100 and grid.load.tolist() == [0, 0.5, 0.3] and grid.shunt.tolist() == [0, 0.02, 0]
    assert (
        grid.generator_bus.tolist() == [0, 2] and grid.least.tolist() == [0.1, 0] and grid.most.tolist() == [0.9, 0.6]
    )
    assert grid.cost.tolist() == [[100, 500, 7], [0, 900, 1]]  # 0.01 p² in MW is 100 p² per unit
    assert grid.ends.tolist() == [[0, 1], [1, 2], [0, 2]]
    # The angles, solved without F: b (θ_from - θ_to - shift) into the balance.
    b, shift = np.array([0.1 / (0.01**2 + 0.1**2), 5, 10]), np.deg2rad([0, 0, 5])
    E = np.array([[1, -1, 0], [0, 1, -1], [1, 0, -1]])
    injected = np.array([0.8, -0.52, -0.28])
    theta = np.linalg.lstsq(E.T @ np.diag(b) @ E, injected + E.T @ (b * shift), rcond=None)[0]
    np.testing.assert_allclose(grid.transfer @ injected + grid.constant, b * (E @ theta - shift), atol=1e-12)
    # The third branch: its angle may fall to -1 degree, so its flow to 10 (-1 - 5) degrees, but no lower than -0.5.
    assert grid.flow_least[2] == pytest.approx(-0.5) and grid.flow_most[2] == pytest.approx(0.5)
    assert grid.flow_most[1] == pytest.approx(5 * np.deg2rad(30))  # no rate: the angle alone


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"dcline": "1 2"}, "has DC lines, which are not modelled"),
        ({"gencost": "1 0 0 3 0 5 7; 2 0 0 3 0 5 7; 2 0 0 3 0 5 7;"}, "costs other than polynomials"),
        ({"bus": "1 3 0 0 0; 7 4 0 0 0; 3 1 0 0 0;"}, "isolated buses"),
        ({"gen": "1 2 3; 4 5;"}, "mpc.gen is no table of at least 10 numbers"),
        ({"branch": ""}, "mpc.branch is no table of at least 13 numbers"),
    ],
)
def test_what_is_not_modelled_is_refused(tmp_path, other, told):
    with pytest.raises(CaseError, match=told):
        read_grid(tiny(tmp_path, **other))


def test_files_that_are_no_case(tmp_path):
    (tmp_path / "a.m").write_text("x = 1;")
    with pytest.raises(CaseError, match=r"a.m is not a MATPOWER case: it has no table mpc.bus"):
        read_grid(tmp_path / "a.m")


def without(grid: Grid, path: Path, branch: int, tmp_path: Path) -> Grid:
    """The grid read from a file in which one branch is out of service."""
    lines = path.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("mpc.branch")) + 1
    words = lines[first + branch].split("%")[0].replace(";", " ").split()
    words[10] = "0"
    lines[first + branch] = " ".join(words) + ";"
    (tmp_path / path.name).write_text("\n".join(lines))
    return read_grid(tmp_path / path.name)


@needs_data
@pytest.mark.parametrize("name", ["14_ieee", "118_ieee"])
def test_outages_are_those_of_the_grid_without_the_branch(name, tmp_path):
    grid = read_grid(case(name))
    lost, factor = grid.outages()
    injected = np.random.RandomState(0).normal(size=len(grid.load))
    injected -= injected.mean()
    flow = grid.transfer @ injected + grid.constant
    for k in range(0, len(lost), 40):
        smaller = without(grid, case(name), int(lost[k]), tmp_path)
        others = np.arange(len(flow)) != lost[k]
        expected = smaller.transfer @ injected + smaller.constant
        np.testing.assert_allclose((flow + factor[:, k] * flow[lost[k]])[others], expected, atol=1e-9)


@needs_data
def test_bridges_are_not_outages():
    lost, _ = read_grid(case("118_ieee")).outages()
    assert len(lost) == 177


@needs_data
@pytest.mark.parametrize("name", ["dcopf-30", "dcopf-89", "dcopf-118"])
def test_the_layer_is_the_solver_of_linear_programs(name):
    problem = DispatchProblem(name)
    problem.test = problem.test[:50]
    best = problem.objective(problem.solve_with_highs())
    y = problem.project_direction()
    assert problem.build_set(problem.test).violation(y).max() < 1e-12
    assert ((problem.objective(y) - best) / best).abs().max() < 1e-8


@needs_data
def test_warm_highs_finds_the_same_optima():
    pytest.importorskip("highspy")
    problem = DispatchProblem("dcopf-89")
    problem.test = problem.test[:50]
    cold, warm = (problem.objective(y) for y in (problem.solve_with_highs(), problem.solve_with_warm_highs()))
    torch.testing.assert_close(cold, warm, rtol=1e-9, atol=0)


@needs_data
def test_draws_that_are_kept_aside_have_no_dispatch():
    problem = DispatchProblem("dcopf-30")
    assert len(problem.aside) > 10
    for x, served in ((problem.aside[:10], False), (problem.test[:10], True)):
        here = problem.build_set(x)
        for low, high in zip(here.lower.numpy(), here.upper.numpy(), strict=True):
            A = problem.A.numpy()
            found = linprog(
                problem.cost.numpy(),
                A_ub=np.concatenate([A[1:], -A[1:]]),
                b_ub=np.concatenate([high[1:], -low[1:]]),
                A_eq=A[:1],
                b_eq=high[:1],
                bounds=(None, None),
            )
            assert (found.status == 0) == served


@needs_data
def test_a_secure_dispatch_keeps_every_line_whichever_is_lost(tmp_path, monkeypatch):
    monkeypatch.setitem(dispatch.SIZES, "dcopf-118-n1", (2, 2, 4))
    problem, grid = DispatchProblem("dcopf-118-n1"), read_grid(case("118_ieee"))
    assert problem.A.shape[0] == 1 + 32_931 + problem.n_out
    y = problem.solve_with_highs()
    here = problem.build_set(problem.test)
    assert here.violation(y).max() < 1e-8
    lost = int(grid.outages()[0][30])
    smaller = without(grid, case("118_ieee"), lost, tmp_path)
    injected = -grid.shunt[None] - np.zeros((len(y), 1))
    injected[:, np.flatnonzero(grid.load)] -= problem.load_at(problem.test).numpy()
    for sample, dispatched in zip(injected, y.numpy(), strict=True):
        np.add.at(sample, grid.generator_bus[grid.most > grid.least], dispatched)
        flow = smaller.transfer @ sample + smaller.constant
        assert (flow <= dispatch.EMERGENCY * smaller.flow_most + 1e-8).all()
        assert (flow >= dispatch.EMERGENCY * smaller.flow_least - 1e-8).all()


def test_data_that_are_not_there_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "FOLDER", tmp_path / "nowhere")
    with pytest.raises(
        ConfigError, match=r"This task reads pglib_opf_case14_ieee.m from .*nowhere, which is not there"
    ):
        DispatchProblem("dcopf-14")


# ---------------------------------------------------------------------------------------------------- forecasts


def test_base_forecasts_by_hand():
    """One series with season 2: its change over a season, or itself, smoothed with the best of the weights."""
    y = np.array([[1.0], [5.0], [2.0], [6.0], [3.0], [7.0], [4.0], [8.0]])  # grows by 1 in every season
    for lead in (1, 2):
        found = base_forecasts(y, 2, lead, 6)
        assert np.isnan(found[: 2 + lead]).all()
        np.testing.assert_allclose(found[2 + lead :], y[2 + lead :])
    with pytest.raises(ValueError, match="lead must be from 1 to a season of 2, got 3"):
        base_forecasts(y, 2, 3, 6)


def test_base_forecasts_know_only_the_past():
    y = np.random.RandomState(0).normal(size=(30, 3))
    later = y.copy()
    later[20:] += 100.0
    for lead in (1, 3):
        a, b = (base_forecasts(v, 4, lead, 15) for v in (y, later))
        np.testing.assert_array_equal(a[: 20 + lead], b[: 20 + lead])
        assert (a[20 + lead] != b[20 + lead]).all()


def test_covariances_are_drawn_to_their_diagonal():
    stream = np.random.RandomState(0)
    independent = stream.normal(size=(50, 4)) * [1.0, 2.0, 3.0, 4.0]
    shrunk, full = shrunk_covariance(independent), np.cov(independent.T, bias=True)
    np.testing.assert_allclose(np.diag(shrunk), np.diag(full))
    off = ~np.eye(4, dtype=bool)
    assert np.abs(shrunk[off]).max() < 0.5 * np.abs(full[off]).max()
    common = stream.normal(size=(5000, 1)) + 0.1 * stream.normal(size=(5000, 3))
    np.testing.assert_allclose(shrunk_covariance(common), np.cov(common.T, bias=True), rtol=0.01)
    assert (np.linalg.eigvalsh(shrunk_covariance(stream.normal(size=(5, 20)))) > 0).all()  # more series than times


@needs_data
@pytest.mark.parametrize("name", FORECASTS)
def test_reconciled_forecasts_are_the_optimum_of_the_quadratic_program(name):
    problem = ForecastProblem(name)
    y, other = problem.take_projection(), problem.take_daqp()
    torch.testing.assert_close(y, other, rtol=1e-9, atol=1e-9 * float(y.abs().max()))
    found = problem.evaluate_points(y).metrics
    assert found["incoherence"] == found["negative"] == found["infeasible"] == found["inequality"]["max"] == 0
    # Where no bound binds it is MinT.
    free = (problem.take_mint() >= 0).all(-1)
    torch.testing.assert_close(y[free], problem.take_mint()[free], rtol=1e-9, atol=1e-9 * float(y.abs().max()))


@needs_data
def test_mint_is_the_least_squares_answer_in_the_metric():
    problem = ForecastProblem("forecast-labour")
    base, y = problem.take_base()[0], problem.take_mint()[0]
    # R'R = S'W⁻¹S and mint = (R'R)⁻¹ S'W⁻¹, so S'W⁻¹ (ŷ - y) = R'R mint (ŷ - y) = 0.
    left = problem.root.mT @ problem.root @ problem.mint
    assert (left @ (base - y)).abs().max() < 1e-9 * (left.abs() @ base.abs()).max()
    torch.testing.assert_close(problem.mint @ problem.sums, torch.eye(problem.n_out, dtype=torch.float64))


@needs_data
def test_forecasts_train_and_their_targets_travel_with_the_batch():
    config = resolve("forecast-tourismsmall", "orthogonal", 1, "ours", {"hidden": 8})
    problem = build_problem(config)
    model = build_model(config, problem)
    known, target = problem.train[:5].split(problem.n_in, -1)
    y = problem.forecasts(model(known, problem.nominal_at(known)))
    expected = (y - target).square().sum() / problem.train_scale
    assert problem.loss(model, problem.train[:5]).cost.item() == pytest.approx(expected.item())


@needs_data
def test_rayen_keeps_forecasts_that_are_positive_and_mends_the_others():
    config = resolve("forecast-wiki2", "rayen", 1, "ours", {"hidden": 8})
    problem = build_problem(config)
    model = build_model(config, problem)
    z = problem.nominal_at(problem.test)
    rows = problem.build_set(problem.test)
    y, inside = model.enforce(z, rows), (rows.violation(z) == 0).all(-1)
    assert inside.any()
    assert not inside.all()
    torch.testing.assert_close(y[inside], z[inside], rtol=1e-9, atol=1e-9 * float(z.abs().max()))
    assert rows.violation(y).max() < 1e-9 * float(z.abs().max())


# ---------------------------------------------------------------------------------------------------- driving


def test_the_barrier_of_ellipses_and_its_gradient():
    barrier = EllipseBarrier()
    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    value, gradient = barrier.evaluate(x)
    plain_value, plain_gradient = Barrier.evaluate(barrier, x)  # by automatic differentiation
    torch.testing.assert_close(value, plain_value)
    torch.testing.assert_close(gradient, plain_gradient)
    problem, step = EllipseProblem(), 1e-6
    moved = x + step * problem.system.velocity(x, torch.zeros(20, 2, dtype=torch.float64))
    rate = (barrier.clearance(moved) - barrier.clearance(x)) / step
    torch.testing.assert_close(value, rate + 10 * barrier.clearance(x), rtol=1e-4, atol=1e-4)


def test_starts_are_safe_and_split_as_published():
    problem = EllipseProblem()
    assert [len(part) for part in (problem.train, problem.valid, problem.test)] == [833, 83, 84]
    starts = torch.cat([problem.train, problem.valid, problem.test])
    assert (problem.barrier(starts) >= 0).all() and (starts[:, 3:] == 0).all()
    assert (starts[:, 0] >= -4).all() and (starts[:, 0] <= -3.5).all()


def test_the_nominal_controller_collides_and_its_projection_does_not():
    problem = EllipseProblem()
    problem.test = problem.test[:10]
    nominal, projected = (problem.judge(name)[0].metrics for name in ("base", "minimiser"))
    assert nominal["collided"] == 100 and nominal["inequality"]["max"] > 1
    assert projected["collided"] == 0 and projected["inequality"]["max"] < 1e-9
    assert projected["cost"] == pytest.approx(948.32, rel=0.05)  # published, on other starts
    with pytest.raises(NotImplementedError, match="hardnet-cbf has no row highs"):
        problem.judge("highs")


def test_steps_are_divided_where_the_input_is_large():
    """An input of ten thresholds takes ten parts; the state ends where one Euler step would with a constant drift."""
    problem = EllipseProblem()
    calls = []

    def policy(x, nominal):
        calls.append(len(x))
        return torch.tensor([[1000.0, 0.0]], dtype=torch.float64).expand(len(x), 2)

    cost, _, _ = problem._drive(policy, problem.test[:1], "squared", path := [])
    assert len(path) == 50 and len(calls) >= 500
    assert cost.item() > 0.1 * 1000**2 * 0.99  # R u² over one second


# ---------------------------------------------------------------------------------------------------- runs


@needs_data
def test_runs_make_records(tmp_path):
    for method in ("highs", "direction", "nn", "post-hoc", "orthogonal", "dc3"):
        record = run_one(resolve("dcopf-14", method, 1, "ours", {"epochs": 2}), tmp_path)
        found = record["evaluation"]
        assert math.isfinite(found["gap"]["percent"]) and len(record["curves"]["gap_percent"]) == 101
        if method not in ("nn", "dc3"):
            assert found["infeasible"] == 0 and found["equality"]["max"] < 1e-12
    assert CASES.keys() == set(GRIDS) and INSTANCES.keys() == set(PROGRAMS) and set(SECURED) < set(GRIDS)


@needs_data
def test_solvers_and_networks_are_timed_side_by_side(tmp_path):
    found = time_methods("dcopf-14", "ours", tmp_path, methods=["direction", "orthogonal"], rounds=1)
    assert found["methods"]["direction"]["train_ms"] is None and found["methods"]["direction"]["test_ms"] > 0
    assert found["methods"]["orthogonal"]["train_ms"] > 0
    (timing,) = read_timings(tmp_path)
    table = speed_table([timing], "yardsticks")
    assert table is not None and table.name == "yardsticks-speed"


def test_a_repair_keeps_the_soft_network_and_trains_w(tmp_path):
    config = resolve("opt", "repair", 1, "ours", {"epochs": 3, "hidden": 10})
    record = run_one(config, tmp_path)
    soft, repaired = (load_file(checkpoint_path(tmp_path, c)) for c in (config.soft, config))
    before = build_model(config, build_problem(config)).state_dict()
    for name, weight in repaired.items():
        if name.startswith("model.backbone"):
            assert torch.equal(weight, soft[name.replace("model", "best", 1)])
    assert any(not torch.equal(repaired[f"model.{name}"], t) for name, t in before.items() if name.startswith("null"))
    assert record["evaluation"]["equality"]["max"] < 1e-12


@pytest.mark.parametrize(("protocol", "settings"), [("paper", {}), ("ours", {"null_start": "none"})])
def test_a_repair_needs_an_f_that_stays_and_a_w(protocol, settings):
    with pytest.raises(ConfigError, match="repair keeps f as it is and trains w"):
        resolve("opt", "repair", 1, protocol, settings)


def test_a_problem_without_such_a_row_says_so():
    problem = LearnedProgram("dc3-nonconvex")
    with pytest.raises(NotImplementedError, match="dc3-nonconvex has no row daqp"):
        problem.solve("daqp")
