"""T_train and T_test of all methods side by side.

Long runs share the machine with others, so the times in their records cannot be compared. Here one epoch of every
method is timed in turn, round after round: what disturbs one disturbs them all, and the medians can be divided.
"""

from __future__ import annotations

import datetime
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from caffnet.experiments.config import METHODS, SEEDS, TASKS, ConfigError, resolve
from caffnet.experiments.models import build_model
from caffnet.experiments.opt import SolverProblem, solve_with_ipopt
from caffnet.experiments.problem import synchronise, time_forward
from caffnet.experiments.records import write_record
from caffnet.experiments.run import build_problem, machine, versions
from caffnet.experiments.training import epochs_of

WARM_UP = 2


def time_methods(
    task: str,
    protocol: str,
    out: Path,
    *,
    rounds: int = 7,
    device: str = "cpu",
    on_step: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Time every method of an experiment, and write what was found below ``out/timing``.

    Args:
        task: the experiment.
        protocol: of the settings; the seed is the first of the paper's.
        out: folder of the records.
        rounds: epochs of each method that are timed.
        device: where to run.
        on_step: told what is timed now.
    """
    if task not in TASKS:
        raise ConfigError(f"task must be one of {', '.join(TASKS)}, got {task!r}.")
    seed, tell = SEEDS[task][0], on_step or (lambda _: None)
    rows = [name for name in METHODS[task] if name != "post-hoc"]  # which is the soft network until it is evaluated
    problems, models, steps = {}, {}, {}
    for name in rows:
        config = resolve(task, name, seed, protocol, {"device": device, "epochs": rounds + WARM_UP})
        problems[name] = build_problem(config)
        if name != "ipopt":
            models[name] = build_model(config, problems[name])
            steps[name] = epochs_of(config, problems[name], models[name])
    train: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(rounds + WARM_UP):
        for name in models:
            tell(f"{name}: epoch {turn + 1} of {rounds + WARM_UP}")
            seconds = _timed(steps[name], problems[name])
            if turn >= WARM_UP:
                train[name].append(1e3 * seconds)
    found: dict[str, dict[str, float | None]] = {}
    for name in rows:
        tell(f"{name}: test")
        problem = problems[name]
        if isinstance(problem, SolverProblem) and name == "ipopt":
            found[name] = {"train_ms": None, "test_ms": solve_with_ipopt(problem)[1]}
            continue
        models[name].eval()
        test = time_forward(problem.forward_for_timing(models[name]), problem.test.device)
        found[name] = {"train_ms": statistics.median(train[name]), "test_ms": test}
    finished = datetime.datetime.now(datetime.UTC)
    record = {
        "name": f"{task}-{protocol}",
        "task": task,
        "protocol": protocol,
        "seed": seed,
        "rounds": rounds,
        "methods": found,
        "versions": versions(),
        "machine": machine(),
        "finished": finished.isoformat(timespec="seconds"),
    }
    write_record(out / "timing" / f"{record['name']}-{finished:%Y%m%dT%H%M%S}.json", record)
    return record


def _timed(step: Callable[[], None], problem: Any) -> float:
    synchronise(problem.train.device)
    start = time.perf_counter()
    step()
    synchronise(problem.train.device)
    return time.perf_counter() - start
