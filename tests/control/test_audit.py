"""The audit: states without an admissible input are found, named and proven, and none is invented."""

import math
import re
import tomllib
from pathlib import Path

import pytest
import torch

from caffnet import AffineSet
from caffnet.control import (
    BarrierConstraint,
    ControlAffine,
    DoubleIntegrator,
    HighOrder,
    InsideBox,
    InsidePolytope,
    Integrator,
    Moving,
    OutsideCircles,
    audit,
    linear,
)
from caffnet.control.interior import depth
from caffnet.errors import ConstraintError, DtypeError

MASS, SPEED = 1650.0, 13.89


def cruise(drag: bool = True):
    """Adaptive cruise control (Ames et al.): state (speed, gap), 1.8 s behind a car of constant speed, 0.3 g."""

    def drift(x):
        speed = x[..., 0]
        slowed = (0.1 + 5.0 * speed + 0.25 * speed.square()) / MASS if drag else 0 * speed
        return torch.stack([-slowed, SPEED - speed], -1)

    car = ControlAffine(2, 1, drift, lambda x: torch.tensor([[1 / MASS], [0.0]], dtype=x.dtype))
    force = 0.3 * 9.81 * MASS
    limits = AffineSet.box([-force], [force], names=["force"])
    return BarrierConstraint(car, InsidePolytope([[1.8, -1.0]], [0.0], names=["headway"]), linear(5.0), limits)


def lacking(x):
    """By hand: the brake that the row of the headway asks for beyond the one there is, without drag."""
    h, rate = x[..., 1] - 1.8 * x[..., 0], SPEED - x[..., 0]
    return (rate + 5.0 * h) * MASS / 1.8 < -0.3 * 9.81 * MASS


def test_the_number_of_samples_is_checked():
    with pytest.raises(ConstraintError, match="samples must be a whole number >= 1, got 0"):
        audit(lambda x: AffineSet.box(-1.0, 1.0, dim=2), [-1.0], [1.0], samples=0)


def test_an_adaptive_cruise_control_lacks_brakes():
    found = audit(cruise(drag=False), [0.0, 0.0], [40.0, 150.0], names=["v", "z"])
    assert torch.equal(found.infeasible, lacking(found.states))
    assert found.proof == "infeasible" and not found.ok
    assert set(found.conflict) == {"headway", "force"}
    assert found.worst.tolist() == pytest.approx([40.0, 0.0], abs=0.5)
    random, more = found.infeasible[: found.first], found.infeasible[found.first :]
    assert str(found).startswith(
        f"{int(random.sum())} of 4096 random states ({100 * found.share:.3g} % of the region) have no admissible "
        f"input, and {int(more.sum())} of {len(more)} drawn near the worst one.\n"
    )
    safe = audit(cruise(drag=False), [0.0, 0.0], [40.0, 150.0], where=lambda x: x[..., 1] >= 1.8 * x[..., 0])
    assert safe.infeasible.any() and safe.proof == "not tried"  # even among those that keep their distance
    assert (safe.states[:, 1] >= 1.8 * safe.states[:, 0]).all()


def test_drag_is_not_affine_and_is_sampled():
    found = audit(cruise(), [0.0, 0.0], [40.0, 150.0])
    assert found.proof == "none, the rows are not affine in the state" and found.infeasible.any()


def test_the_papers_unicycle_always_has_an_input():
    from caffnet_lab.experiments.cbf import STATE_LOWER, STATE_UPPER, DrivingProblem

    problem = DrivingProblem(0)
    found = audit(problem.safe, STATE_LOWER, STATE_UPPER, where=lambda x: (problem.barrier(x) >= 0).all(-1))
    assert found.ok and 0 < float(found.depths.min()) < 0.01


@pytest.mark.parametrize("reach", [1.0, 2.5])
def test_corners_decide_where_only_the_bounds_move(reach):
    """|x| <= 1 by |u| <= 1: from beyond 2 there is no way back at the rate that is asked for."""
    safe = BarrierConstraint(Integrator(1, 1), InsideBox([-1.0], [1.0]), inputs=AffineSet.box(-1.0, 1.0, dim=1))
    found = audit(safe, [-reach], [reach], samples=64)
    assert found.proof == ("feasible" if reach <= 2 else "infeasible")
    assert found.ok == (reach <= 2)


@pytest.mark.parametrize("most", [1.0, 0.4])
def test_boxes_are_halved_where_the_rows_move(most):
    """x₁ u₁ + x₂ u₂ <= -0.2, |u| <= most, |x₁| in [0.4, 1]: u = -most sign(x₁) helps if 0.4 most >= 0.2."""
    pytest.importorskip("scipy")

    def rows(x):
        return AffineSet.inequality(x.unsqueeze(-2), x.new_full((1,), -0.2), names=["push"]) & AffineSet.box(
            x.new_full((2,), -most), x.new_full((2,), most)
        )

    for side in (-1.0, 1.0):
        low, high = sorted([0.4 * side, side])
        found = audit(rows, [low, 0.0], [high, 0.3], samples=64)
        assert found.proof == ("feasible" if most == 1.0 else "infeasible")
    around = audit(rows, [-1.0, -1.0], [1.0, 1.0], samples=64)  # the origin is in the box: 0 <= -0.2
    assert around.proof == "infeasible" and around.conflict == ("push",)
    assert float(around.depths.min()) == -math.inf or float(around.worst.norm()) < 0.2


def dip(x):
    """``-b <= u <= 1`` with b = 1, but for a strip of states where it is -5: no u."""
    b = torch.where((x[..., :1] > 0.5) & (x[..., :1] < 0.53), -5.0, 1.0).to(x)
    return AffineSet.inequality(torch.tensor([[1.0], [-1.0]], dtype=x.dtype), torch.cat([torch.ones_like(b), b], -1))


def test_nothing_is_proven_against_a_sample():
    found = audit(dip, [0.0], [2.0])
    assert found.infeasible.any() and not found.ok
    assert found.proof == "none, the rows are not affine in the state"
    assert "Proof: feasible" not in str(found)


def test_a_proof_says_what_it_rests_on():
    """A strip so narrow that no sample meets it: nothing can be known of it, and the report says what was tested."""

    def narrow(x):
        return dip(0.515 + (x - 0.5123456789) * 1e6)

    found = audit(narrow, [0.0], [2.0], samples=64)
    assert found.proof == "feasible"
    assert str(found).endswith("Proof: feasible, if the rows are affine between the states tested.")


def test_a_bound_that_is_infinite_in_some_states_is_not_affine():
    def opening(x):
        b = torch.where(x[..., :1] > 1.9, -5.0, torch.inf).to(x)
        return AffineSet.inequality(
            torch.tensor([[1.0], [-1.0]], dtype=x.dtype), torch.cat([torch.ones_like(b), b], -1)
        )

    found = audit(opening, [0.0], [2.0], samples=64)
    assert found.infeasible.any() and found.proof == "none, the rows are not affine in the state"


def test_a_needle_is_found_by_looking_again():
    """Empty in a ball of a thousandth of the box; the depth falls towards it."""

    def rows(x):
        gap = (x - 0.37).norm(dim=-1, keepdim=True) - 0.03
        return AffineSet.inequality(torch.tensor([[1.0], [-1.0]], dtype=x.dtype), torch.cat([gap, 0 * gap], -1))

    found = audit(rows, [0.0, 0.0], [1.0, 1.0], samples=128)
    assert found.infeasible.any()
    assert (found.worst - 0.37).norm() < 0.03


def test_time_is_one_more_entry():
    ball = Moving(OutsideCircles([[3.0, 0.0]], [1.0]), [-2.0, 0.0])
    robot = Integrator(2, 1)
    slow, fast = (BarrierConstraint(robot, ball, linear(1.0), AffineSet.box(-v, v, dim=2)) for v in (0.5, 3.0))

    def outside(z):
        return ball(z).squeeze(-1) >= 0

    late = audit(slow, [-1.0, -1.0], [1.0, 1.0], times=(0.0, 2.0), where=outside)
    assert late.infeasible.any() and late.names == ("x0", "x1", "t") and late.states.shape[1] == 3
    assert audit(fast, [-1.0, -1.0], [1.0, 1.0], times=(0.0, 2.0), where=outside).ok


def test_depth_is_what_a_linear_program_says():
    optimize = pytest.importorskip("scipy.optimize")
    g = torch.Generator().manual_seed(0)
    A, b = (
        torch.randn(20, 5, 2, dtype=torch.float64, generator=g),
        torch.randn(20, 5, dtype=torch.float64, generator=g) + 0.3,
    )
    found = depth(AffineSet.inequality(A, b))
    for i in range(20):
        rows = torch.cat([A[i], A[i].norm(dim=-1, keepdim=True)], -1).numpy()
        best = optimize.linprog([0, 0, -1], rows, b[i].numpy(), bounds=[(None, None)] * 3)
        if best.status == 0:
            assert float(found[i]) == pytest.approx(-best.fun, rel=1e-3, abs=1e-3)
        else:  # balls of any size: some of them
            assert best.status == 3 and found[i] > 0
    assert (found < 0).any() and (found > 0).any()


def test_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    found = audit(cruise(), [0.0, 0.0], [40.0, 150.0], names=["v", "z"], samples=256)
    assert found.draw(tmp_path / "cruise.png").stat().st_size > 1000
    line = audit(lambda x: AffineSet.inequality(torch.ones(1, 1, dtype=x.dtype), x), [0.0], [1.0], samples=64)
    assert line.draw(tmp_path / "line.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.0], [1.0, 2.0]), "corners of a box"),
        (([1.0, 0.0], [0.0, 1.0]), r"corners of a box, \(n_x,\) each and in order"),
    ],
)
def test_a_box_has_two_corners(arguments, message):
    with pytest.raises(ConstraintError, match=message):
        audit(cruise(), *arguments)


def test_names_and_places_are_checked():
    with pytest.raises(ConstraintError, match="list of 2 labels, one for each entry of the state"):
        audit(cruise(), [0.0, 0.0], [1.0, 1.0], names=["v"])
    with pytest.raises(ConstraintError, match="No sample of the box satisfies `where`"):
        audit(cruise(), [0.0, 0.0], [1.0, 1.0], where=lambda x: x[..., 0] > 5)


def test_a_constant_in_single_precision_is_explained():
    def rows(x):
        return AffineSet.inequality(torch.ones(1, 1), x[..., :1])

    for times in (None, (0.0, 1.0)):
        with pytest.raises(
            DtypeError, match=r"A is torch.float32.*called in float64: write constants as lists, or x.new"
        ):
            audit(rows if times is None else lambda z: rows(z[0]), [-1.0], [1.0], times=times)


def test_a_high_order_is_audited():
    mass = DoubleIntegrator(1)
    wall = HighOrder(InsideBox([-math.inf, -math.inf], [1.0, math.inf]), mass, linear(2.0))
    safe = BarrierConstraint(mass, wall, linear(2.0), AffineSet.box(-1.0, 1.0, dim=1))
    found = audit(safe, [-5.0, -1.0], [1.0, 3.0], samples=512)
    # u <= 4 (1 - p) - 4 v: empty where that is below -1
    x = found.states
    assert torch.equal(found.infeasible, 4 * (1 - x[:, 0]) - 4 * x[:, 1] < -1)


# ------------------------------------------------------------------------------------------------ the command

FILE = """from typing import Any, Callable
import torch
from caffnet import AffineSet
from caffnet.control import BarrierConstraint, InsideBox, Integrator

safe = BarrierConstraint(Integrator(1, 1), InsideBox([-1.0], [1.0]), inputs=AffineSet.box(-1.0, 1.0, dim=1))
number = 3


def within(x):
    return x[..., 0].abs() <= 1


def fails(x):
    return {}["speed"]


def reads(x):
    return x @ torch.ones(3)
"""


@pytest.fixture
def call(tmp_path, monkeypatch):
    testing = pytest.importorskip("typer.testing")
    from caffnet_lab.cli import app

    (tmp_path / "controller_under_audit.py").write_text(FILE)
    (tmp_path / "wants.py").write_text("import torch\nimport not_installed\n")
    (tmp_path / "broken.py").write_text("x = = 1\n")
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: testing.CliRunner().invoke(app, ["audit", *arguments])


def test_the_command_says_what_it_found(call, tmp_path):
    good = call("controller_under_audit.py:safe", "--lower=-1", "--upper=1", "--samples=64")
    assert good.exit_code == 0 and "Proof: feasible, if the rows are affine between the states tested." in good.output
    bad = call("controller_under_audit:safe", "--lower=-3", "--upper=3", "--names=p", "--picture=p.png")
    assert bad.exit_code == 1 and "at p = " in bad.output
    assert (tmp_path / "p.png").exists()
    place = "controller_under_audit.py"
    some = call(f"{place}:safe", "--lower=-3", "--upper=3", f"--where={place}:within", "--samples=64")
    assert some.exit_code == 0 and "0 of" in some.output


def test_the_command_comes_with_the_extra():
    """`caffnet audit` needs typer and rich: those who install control have them."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    names = {re.match(r"[\w-]+", each).group() for each in project["optional-dependencies"]["control"]}
    assert {"gymnasium", "typer", "rich"} <= names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["controller_under_audit.py:safe", "--lower=a", "--upper=1"], "--lower must be numbers with commas"),
        (["controller_under_audit.py:safe", "--lower=0", "--upper=1", "--times=1"], "--times must be 2 numbers"),
        (
            ["controller_under_audit.py:other", "--lower=0", "--upper=1"],
            "has no 'other'; it has safe, within, fails, reads.",
        ),
        (["controller_under_audit.py:number", "--lower=0", "--upper=1"], "must be a function x -> AffineSet, got int"),
        (["nothing.py:safe", "--lower=0", "--upper=1"], "There is no file nothing.py"),
        (["nothing_here:safe", "--lower=0", "--upper=1"], "There is no module 'nothing_here'"),
        (
            ["controller_under_audit.py:safe", "--lower=0", "--upper=1", "--where=controller_under_audit.py:number"],
            "must be a function x -> bool, got int",
        ),
        (
            ["controller_under_audit.py:fails", "--lower=0", "--upper=1"],
            "controller_under_audit.py:fails failed in line 15 of",
        ),
        (["controller_under_audit:reads", "--lower=0", "--upper=1"], "line 19 of"),
        (["controller_under_audit:reads", "--lower=0", "--upper=1"], "controller_under_audit.py: RuntimeError: "),
        (
            ["controller_under_audit.py:safe", "--lower=0", "--upper=1", "--where=controller_under_audit.py:fails"],
            ": KeyError: 'speed'",
        ),
        (["wants:safe", "--lower=0", "--upper=1"], "wants.py: ModuleNotFoundError: No module named 'not_installed'"),
        (["broken.py:safe", "--lower=0", "--upper=1"], "broken.py: SyntaxError: "),
        (
            ["controller_under_audit.py:safe", "--lower=0", "--upper=1", "--picture=a.xyz"],
            "--picture must be a file that ends in .png, .pdf or .svg, got a.xyz",
        ),
        (
            ["controller_under_audit.py:safe", "--lower=0", "--upper=1", "--names=a,b"],
            "a list of 1 label, one for each",
        ),
        (["safe", "--lower=0", "--upper=1"], "must be given as module:name or file.py:name"),
        (["controller_under_audit.py:safe", "--lower=1", "--upper=0"], "corners of a box"),
    ],
)
def test_the_command_says_what_is_wrong(call, arguments, message):
    said = call(*arguments)
    assert said.exit_code == 2 and message in " ".join(said.output.split())
