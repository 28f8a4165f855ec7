"""The layer under pytest-benchmark, to compare commits: ``pytest benchmarks --benchmark-autosave --benchmark-compare``.

Not part of the ordinary test run. Verdicts and rivals are the job of ``caffnet bench``; here each test times one
call of a contestant that needs nothing but the core, after checking its answers.
"""

from __future__ import annotations

import pytest

pytest.importorskip("pytest_benchmark")

from caffnet_lab.bench import contestants, measure, reference
from caffnet_lab.bench.ready import Limits
from caffnet_lab.bench.tasks import TASKS

NAMES = (contestants.BACKBONE, contestants.LAYER, contestants.RAW)
SIZES = ("pwc", "opt", "cbf-300", "cbf-1", "dc3-200", "growth-8", "growth-16", "growth-32", "growth-64")


@pytest.mark.parametrize("direction", ["forward", "train"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_time(benchmark, size: str, name: str, direction: str):
    task, contestant = TASKS[size](), contestants.CONTESTANTS[name]
    ready = contestant.build(task, Limits())
    call = getattr(ready, direction)
    if call is None:
        pytest.skip(f"{name} has no gradient")
    benchmark.group = f"{size} {direction}"
    record = measure.compare(measure.Record(size, name, contestant.kind), ready, task, reference.solve(task))
    if ready.euclidean:
        assert record.distance is not None and record.distance < 1e-9
    benchmark(call)
