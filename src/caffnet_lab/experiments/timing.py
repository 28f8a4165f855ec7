"""T_train and T_test of all methods side by side.

Long runs share the machine with others, so the times in their records cannot be compared. Here one epoch and one test
of every method are timed in turn, round after round: what disturbs one disturbs them all, and the medians can be
divided.
"""

from __future__ import annotations

import datetime
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from caffnet_lab.bench import literal
from caffnet_lab.experiments.config import (
    METHODS,
    SEEDS,
    TASKS,
    TIMED_ONLY,
    UNTRAINED,
    ConfigError,
    make_folder,
    resolve,
)
from caffnet_lab.experiments.models import build_model
from caffnet_lab.experiments.problem import Problem, synchronise
from caffnet_lab.experiments.provenance import machine, versions
from caffnet_lab.experiments.records import write_record
from caffnet_lab.experiments.run import build_problem
from caffnet_lab.experiments.training import epochs_of

WARM_UP = 2
ENUMERATED = 100  # samples at once


def time_methods(
    task: str,
    protocol: str,
    out: Path,
    *,
    methods: Sequence[str] | None = None,
    rounds: int = 7,
    device: str = "cpu",
    on_step: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Time the methods of an experiment, and write what was found below ``out/timing``.

    Args:
        task: the experiment.
        protocol: of the settings; the seed is the first of the paper's.
        out: folder of the records.
        methods: all of the paper's if None, and the layer by plain enumeration where that is possible (opt).
        rounds: epochs, and tests, of each method that are timed.
        device: where to run.
        on_step: called with the name of what is timed.
    """
    if task not in TASKS:
        raise ConfigError(f"task must be one of {', '.join(TASKS)}, got {task!r}.")
    seed, announce = SEEDS[task][0], on_step or (lambda _: None)
    # A post-hoc projection is the soft network until it is evaluated.
    extra = TIMED_ONLY.get(task, ())
    rows = list(dict.fromkeys(methods or (name for name in (*METHODS[task], *extra) if name != "post-hoc")))
    if "post-hoc" in rows:
        raise ConfigError("post-hoc has no times of its own: it is the soft network, nn, until it is evaluated.")
    make_folder(out)
    problems: dict[str, Problem] = {}
    steps: dict[str, dict[str, Callable[[], float]]] = {"train_ms": {}, "test_ms": {}}
    for name in rows:
        shown = "caffnet-ff" if name in extra else name
        config = resolve(task, shown, seed, protocol, {"device": device, "epochs": rounds + WARM_UP})
        problem = problems[name] = build_problem(config)
        if name in extra:
            steps["test_ms"][name] = _timed(_enumeration(problem, name.endswith("lite")), problem)
            continue
        if name in UNTRAINED:
            steps["test_ms"][name] = lambda problem=problem, name=name: problem.solve(name)[1]
            continue
        model = build_model(config, problem)
        steps["train_ms"][name] = _timed(epochs_of(config, problem, model), problem)
        steps["test_ms"][name] = _timed(_test(problem, model), problem)
    found: dict[str, dict[str, Any]] = {name: {"train_ms": None, "test_ms": None} for name in rows}
    for kind, what in (("train_ms", "epoch"), ("test_ms", "test")):
        times: dict[str, list[float]] = {name: [] for name in steps[kind]}
        for turn in range(rounds + WARM_UP):
            for name, step in steps[kind].items():
                announce(f"{name}: {what} {turn + 1} of {rounds + WARM_UP}")
                times[name].append(step())
        for name, measured in times.items():
            found[name][kind] = statistics.median(measured[WARM_UP:])
            found[name][f"{kind}_rounds"] = [round(time, 3) for time in measured[WARM_UP:]]
    finished = datetime.datetime.now(datetime.UTC)
    record = {
        "name": f"{task}-{protocol}" + ("" if device == "cpu" else f"-{device}"),
        "task": task,
        "protocol": protocol,
        "seed": seed,
        "device": device,
        "rounds": rounds,
        "methods": found,
        "versions": versions(),
        "machine": machine(),
        "finished": finished.isoformat(timespec="seconds"),
    }
    write_record(out / "timing" / f"{record['name']}-{finished:%Y%m%dT%H%M%S}.json", record)
    return record


def _test(problem: Problem, model: nn.Module) -> Callable[[], Any]:
    """One test of the whole test set, without gradients."""
    forward = problem.forward_for_timing(model)

    def run() -> None:
        model.eval()
        with torch.no_grad():
            forward()

    return run


def _enumeration(problem: Problem, lite: bool) -> Callable[[], Any]:
    """The layer word for word on random outputs for the test set, in parts: all of it would need gigabytes."""
    outputs = torch.randn(len(problem.test), problem.n_out, generator=torch.Generator().manual_seed(0)).to(problem.test)
    parts = list(zip(problem.test.split(ENUMERATED), outputs.split(ENUMERATED), strict=True))
    return lambda: [literal.of_set(problem.build_set(x), len(x), lite)(f) for x, f in parts]


def _timed(step: Callable[[], Any], problem: Problem) -> Callable[[], float]:
    """The same call; it returns its time in milliseconds."""

    def measured() -> float:
        synchronise(problem.train.device)
        start = time.perf_counter()
        step()
        synchronise(problem.train.device)
        return 1e3 * (time.perf_counter() - start)

    return measured
