"""The laboratory's simulations of safe control, in small, and their report."""

import json
from pathlib import Path

import pytest
import torch

from caffnet_lab.safe_control.records import read, write
from caffnet_lab.safe_control.scenarios import SCENARIOS
from caffnet_lab.safe_control.simulate import simulate

QUICK = [name for name in SCENARIOS if name != "arm"]  # the arm takes 500 steps


@pytest.mark.parametrize("name", QUICK)
def test_a_reckless_driver_is_kept_safe(name, monkeypatch):
    monkeypatch.setattr("caffnet_lab.safe_control.simulate.SUBSTEPS", 4)
    record = simulate(name, starts=20)
    assert record["smallest"] >= 0 and record["infeasible_states"] == 0
    assert record["smallest_without"] < -0.1
    assert record["beyond_limits"] == record["provoked_beyond_limits"] == 0
    json.dumps(record, allow_nan=False)


def test_starts_are_safe_and_the_same_every_time():
    for build in SCENARIOS.values():
        scenario = build()
        x = scenario.starts(50)
        assert torch.equal(x, scenario.starts(50))
        assert all((level(x) >= 0).all() for level in (scenario.keep, *scenario.levels))


def run_of(task, agent, seed, steps=4000, value=-5.0):
    return {
        "task": task,
        "agent": agent,
        "seed": seed,
        "steps": steps,
        "return": value + seed,
        "changed": 0.25,
        "curve": [[2000, value - 1, 0.5], [4000, value + seed, 0.25]],
        "worst_violation": 0.0,
        "violated_steps": 0,
        "counted_steps": steps,
        "training_seconds": 60.0,
        "acting_microseconds": 300.0,
    }


def test_the_report_tells_what_the_records_say(tmp_path):
    pytest.importorskip("matplotlib")
    from caffnet_lab.safe_control.report import report

    told = {
        "scenario": "unicycle", "starts": 7, "steps": 3, "dt": 0.05, "substeps": 20, "wind": [0.0] * 3, "reserve": None,
        "smallest": 1.5e-4, "smallest_without": -0.5, "crashed_without": 0.25, "changed_share": 0.5,
        "infeasible_states": 0, "states": 21, "beyond_limits": 0.0, "provoked_infeasible": 9,
        "provoked_beyond_limits": 0.0, "seconds": 1.0,
    }  # fmt: skip
    write(tmp_path / "records" / "unicycle.json", told)
    for seed in range(2):
        write(tmp_path / "records" / f"{seed}.json", run_of("pendulum", "sac-interior", seed))
    write(tmp_path / "records" / "short.json", run_of("pendulum", "sac-interior", 9, steps=10))
    pytest.importorskip("gymnasium")
    from caffnet_lab.safe_control.steps import time_steps

    write(tmp_path / "records" / "steps.json", time_steps(rounds=3))
    simulations, runs, times = read(tmp_path / "records")
    assert simulations == [told] and len(runs) == 3 and len(times) == 1
    assert all(took > 0 for took in times[0]["microseconds"].values())
    page, picture = report(tmp_path / "records", tmp_path / "page.md", tmp_path / "figures" / "rl.png")
    text = page.read_text()
    assert (
        "| unicycle | 7 | 0.05 s | no | 1.5e-04 | -0.5 | 25 % | 0 of 21 | 9 infeasible, 0e+00 beyond limits |" in text
    )
    assert "| pendulum | sac-interior | 2 | 4000 | -4.5 ± 0.5 | 25.0 % | 0 of 8000 | 60 s | 300 µs |" in text
    assert "| cbf: backbone |" in text and "x the backbone |" in text
    assert "](figures/rl.png)" in text and picture.stat().st_size > 1000


def test_the_commands(tmp_path, monkeypatch):
    testing = pytest.importorskip("typer.testing")
    from caffnet_lab.cli import app

    def call(*arguments):
        return testing.CliRunner().invoke(app, list(arguments))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("caffnet_lab.safe_control.simulate.SUBSTEPS", 2)
    done = call("simulate", "unicycle", "--starts=5", "--out=records")
    assert done.exit_code == 0 and "unicycle: smallest h" in done.output
    wrong = call("simulate", "submarine")
    assert wrong.exit_code == 2 and "There is no scenario 'submarine'; there are integrator" in wrong.output
    none = call("control-report", "elsewhere", "--markdown=page.md")
    assert none.exit_code == 2 and "No records of simulate or rl below elsewhere" in none.output
    assert not (tmp_path / "page.md").exists()
    made = call("control-report", "records", "--markdown=page.md", "--figure=rl.png")
    assert made.exit_code == 0 and (tmp_path / "page.md").read_text().count("unicycle") == 1


def test_rows_of_the_tasks_are_the_powers_they_say():
    from functools import partial

    pytest.importorskip("gymnasium")
    from caffnet_lab.safe_rl.tasks import TASKS, motor_power, total_power

    generator = torch.Generator().manual_seed(0)
    w, a = (torch.randn(500, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    for rows, power in (
        (partial(total_power, speeds=slice(0, 3), most=1.0), (w * a).abs().sum(-1)),
        (partial(motor_power, speeds=slice(0, 3), most=1.0), (w * a).clamp_min(0).sum(-1)),
    ):
        excess = rows(w).violation(a).amax(-1)
        torch.testing.assert_close(excess, (power - 1).clamp_min(0))
    assert TASKS["cheetah-o"].rows(torch.zeros(17)).m == 64


def test_an_agent_learns_within_its_rows():
    pytest.importorskip("stable_baselines3")
    from caffnet_lab.safe_rl.tasks import TASKS
    from caffnet_lab.safe_rl.train import run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("caffnet_lab.safe_rl.train.EVERY", 300)
        patch.setattr("caffnet_lab.safe_rl.train.EPISODES", 1)
        record = run(TASKS["pendulum"], "sac-interior", 0, steps=600)
    assert record["violated_steps"] == 0 and record["worst_violation"] == 0
    assert record["counted_steps"] == 600 and len(record["curve"]) == 2
    json.dumps(record, allow_nan=False)


def test_the_page_of_the_docs_is_that_of_the_records(tmp_path):
    """After a new record: ``caffnet control-report results --markdown docs/control-results.md --figure ...``."""
    pytest.importorskip("matplotlib")
    from caffnet_lab.safe_control.report import report

    root = Path(__file__).resolve().parents[2]
    page, _ = report(
        root / "results", tmp_path / "docs" / "page.md", tmp_path / "docs" / "figures" / "control" / "rl.png"
    )
    assert page.read_text() == (root / "docs" / "control-results.md").read_text()
