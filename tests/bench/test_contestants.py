"""Everyone who is installed agrees with the exact answer; who is not is reported."""

from __future__ import annotations

import pytest
import torch

from caffnet_lab.bench import contestants, measure, memory, reference
from caffnet_lab.bench.contestants import CONTESTANTS, Contestant
from caffnet_lab.bench.ready import Limits, Ready, Refused, of_map
from caffnet_lab.bench.tasks import TASKS, Task

#: What each is accurate to: exact methods, interior-point methods, operator splitting.
ACCURATE = {"proxsuite": 1e-5, "cvxpylayers": 1e-3, "cvxpylayers-moreau": 1e-4, "piqp": 1e-3, "qpth": 1e-2}
SLOW_TO_BUILD = ("qpax", "pinet")  # compiled by JAX: `caffnet bench` checks them


def few(name: str, count: int = 20) -> Task:
    """The first samples of a task."""
    task = TASKS[name]()
    some = slice(0, count)
    return Task(task.name, task.family, task.x[some], task.f[some], task.v[some], task.set[some])


@pytest.mark.parametrize("task", ["pwc", "opt", "cbf-300", "growth-4"])
@pytest.mark.parametrize("name", [n for n in CONTESTANTS if n not in SLOW_TO_BUILD])
@pytest.mark.filterwarnings("ignore")  # of the rivals
def test_answers_agree_with_the_exact_ones(name: str, task: str):
    contestant = CONTESTANTS[name]
    if contestant.missing:
        pytest.skip(f"not installed: {', '.join(contestant.missing)}")
    small = few(task)
    exact = reference.solve(small)
    ready = contestant.build(small, Limits())
    record = measure.compare(measure.Record(task, name, contestant.kind), ready, small, exact)
    assert (ready.train is None) == (contestant.kind == "raw")
    if contestant.kind == "backbone":
        assert record.violation is None and record.distance is None
        return
    assert record.violation is not None and record.violation <= 1e-7
    if not ready.euclidean:
        assert name in ("caffnet-lite", "caffnet-w") and record.distance is None
        return
    assert record.distance is not None and record.distance <= ACCURATE.get(name, 1e-10)
    if contestant.kind in ("layer", "literal"):
        assert record.gradient is not None and record.gradient <= 1e-10


def test_a_wrong_answer_and_a_wrong_gradient_are_seen():
    task = few("growth-4")
    exact = reference.solve(task)
    blank = measure.Record("t", "c", "differentiable")
    passed = measure.compare(blank, of_map(lambda f: f * 1.0, task), task, exact)
    assert passed.violation is not None and passed.violation > 0.1
    assert passed.distance is not None and passed.distance > 0.1
    assert passed.wrong is not None and passed.wrong > 0.3
    assert passed.gradient is not None and passed.gradient > 0.1
    nan = measure.compare(blank, of_map(lambda f: f * torch.nan, task), task, exact)
    assert nan.violation == nan.distance == float("inf") and nan.wrong == 1.0


def test_two_answers_of_one_contestant_are_refused():
    task = few("growth-4")
    ready = Ready(lambda: task.f, lambda: (task.f + 1, task.v))
    with pytest.raises(Refused, match="disagree"):
        measure.compare(measure.Record("t", "c", "layer"), ready, task, reference.solve(task))


def test_a_missing_rival_is_reported_and_no_error(monkeypatch):
    def never(task: Task, limits: Limits) -> Ready:
        raise AssertionError("built although it is not installed")

    def broken(task: Task, limits: Limits) -> Ready:
        raise RuntimeError("no licence")

    monkeypatch.setitem(CONTESTANTS, "ghost", Contestant("ghost", "raw", never, ("caffnet_no_such_package",)))
    monkeypatch.setitem(CONTESTANTS, "broken", Contestant("broken", "raw", broken))
    task = few("growth-4")
    names = ["backbone", "ghost", "broken"]
    found = measure.measure_task(task, reference.solve(task), names, Limits(), measure.Effort(0.001, 1, 2, 1e-6))
    assert found["ghost"].skipped == "not installed: caffnet_no_such_package"
    assert found["broken"].skipped == "failed: RuntimeError: no licence"
    assert found["ghost"].forward is None
    assert found["backbone"].skipped is None and found["backbone"].train is not None


def test_the_literal_algorithm_and_the_full_search_refuse_by_memory():
    task = TASKS["growth-8"]()
    for name in ("literal", "caffnet-full"):
        with pytest.raises(Refused, match=r"subsets need|sub-constraints"):
            CONTESTANTS[name].build(task, Limits())


def test_what_would_pass_the_time_limit_is_not_started():
    with pytest.raises(Refused, match=r"took 1 s at n = 8; at n = 32 it would pass the limit of 30 s"):
        measure._expect((8, 1.0), 32, Limits(seconds=30.0))
    measure._expect((8, 1.0), 16, Limits(seconds=30.0))
    measure._expect((100, 40.0), 100, Limits(seconds=30.0))


def test_unknown_contestants_are_named():
    with pytest.raises(ValueError, match="no contestant 'nope': use one of backbone, caffnet"):
        contestants.select(["nope"])


def test_whose_memory_is_measured():
    names = ["backbone", "caffnet", "daqp"]
    assert [contestants.watched(names, whose) for whose in ("none", "ours", "all")] == [[], ["caffnet"], names]
    with pytest.raises(ValueError, match="none, ours, all, got 'some'"):
        contestants.watched(names, "some")


def test_rivals_are_imported_late():
    import subprocess
    import sys

    code = (
        "import sys, caffnet_lab.bench.contestants, caffnet_lab.bench.report; "
        "bad = {'cvxpy', 'cvxpylayers', 'qpth', 'proxsuite', 'quadprog', 'piqp', 'jax', 'matplotlib', 'rich', 'typer'}"
        "& set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_memory_of_a_known_allocation_is_seen():
    def call() -> torch.Tensor:
        return torch.ones(4 * 2**20, dtype=torch.float64) * 2  # two tensors of 32 MiB

    found = memory.peak_of(call)
    assert 60 * 2**20 <= found["torch"] <= 70 * 2**20
    assert found["resident"] is None or 50 * 2**20 <= found["resident"] <= 80 * 2**20
    assert found["peak"] == max(found["torch"], found["resident"] or 0)
