"""From a config to a record: build, train, evaluate, write. Finished runs are never run again."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import importlib.metadata
import multiprocessing
import os
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
from torch import nn

from caffnet.experiments.cbf import DrivingProblem
from caffnet.experiments.config import Campaign, ConfigError, RunConfig
from caffnet.experiments.distributed import Group, process_group, started_by_torchrun
from caffnet.experiments.models import build_model
from caffnet.experiments.opt import SolverProblem, solve_with_ipopt
from caffnet.experiments.problem import Problem, time_forward
from caffnet.experiments.pwc import PiecewiseProblem
from caffnet.experiments.records import read_record, record_path, rounded, thin, write_record
from caffnet.experiments.training import COST, PENALTY, WORST, Tick, Trained, train
from caffnet.model import CAffNet

PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "pwc": PiecewiseProblem,
    "opt": SolverProblem,
    "cbf": DrivingProblem,
}

LIBRARIES = ("caffnet", "torch", "numpy", "numba", "casadi", "safetensors")


def default_device() -> str:
    """The GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def build_problem(config: RunConfig) -> Problem:
    """The data of a run, in its number type and on its device."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch sees no GPU: pass device='cpu'.")
    options = {"adjoint": config.adjoint} if config.task == "cbf" else {}
    return PROBLEMS[config.task](config.seed, **options).to(torch.device(config.device), getattr(torch, config.dtype))


def checkpoint_path(out: Path, config: RunConfig) -> Path:
    """Where the weights of a run are; a post-hoc projection shares those of the soft network."""
    return out / "checkpoints" / f"{config.trained.name}.safetensors"


def run_one(
    config: RunConfig,
    out: Path,
    *,
    every: float = 20.0,
    on_tick: Callable[[Tick], None] | None = None,
    group: Group | None = None,
) -> dict[str, Any]:
    """Do one run and return its record. A finished run is read, a started one is continued.

    Args:
        config: the run.
        out: folder of records and checkpoints.
        every: seconds between checkpoints.
        on_tick: called now and then while it trains.
        group: the processes that train together.
    """
    group = Group() if group is None else group
    path = record_path(out, config.name)
    if path.exists():
        return read_record(path)
    problem = build_problem(config)
    if config.method == "ipopt":
        record = _solve(config, problem)
    else:
        record = _train(config, problem, checkpoint_path(out, config), every, on_tick, group)
    record = {
        "name": config.name,
        "config": dataclasses.asdict(config),
        "versions": versions(),
        "machine": machine() | {"processes": group.size},
        **record,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    if group.leads:
        write_record(path, record)
    group.wait()
    return record


def _train(
    config: RunConfig,
    problem: Problem,
    path: Path,
    every: float,
    on_tick: Callable[[Tick], None] | None,
    group: Group,
) -> dict[str, Any]:
    learner = build_model(config.trained, problem)
    trained = train(config.trained, problem, learner, path, group=group, every=every, on_tick=on_tick)
    model = learner
    if config.method == "post-hoc":
        model = build_model(config, problem)
        model.load_state_dict(learner.state_dict())
    model.eval()
    return {"training": _training_part(config, learner, trained), **_evaluate(config, problem, model)}


def _evaluate(config: RunConfig, problem: Problem, model: nn.Module) -> dict[str, Any]:
    """The metrics of a trained model, and of its variants that the tables speak of."""
    found = problem.evaluate(model)
    metrics = dict(found.metrics)
    metrics["test_ms"] = time_forward(problem.forward_for_timing(model), problem.test.device)
    if isinstance(model, CAffNet):
        strict = build_model(config, problem, strict=True)
        strict.load_state_dict(model.state_dict())
        metrics["strict"] = problem.evaluate(strict.eval(), exact=True).metrics
    if config.dropout:
        # The FF rows of the paper's opt table were measured with dropout still on.
        torch.manual_seed(config.seed)
        metrics["dropout_on"] = problem.evaluate(copy.deepcopy(model).train()).metrics
    return {"evaluation": metrics, "curves": rounded(found.curves)}


def _training_part(config: RunConfig, model: nn.Module, trained: Trained) -> dict[str, Any]:
    kept = thin(len(trained.history), trained.best_epoch)
    rows = trained.history[kept]
    loss = rows[:, COST] + config.penalty_weight * rows[:, PENALTY]
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "ms_per_epoch": trained.ms_per_epoch,
        "seconds": trained.seconds,
        "starts": trained.starts,
        "evaluated_epoch": trained.best_epoch,
        "history": {
            "epoch": kept,
            "loss": rounded(loss.tolist()),
            "cost": rounded(rows[:, COST].tolist()),
            "worst": rounded(rows[:, WORST].tolist()),
        },
    }


def _solve(config: RunConfig, problem: Problem) -> dict[str, Any]:
    if not isinstance(problem, SolverProblem):
        raise ConfigError(f"ipopt is a row of the opt table, not of {config.task}.")
    answers, milliseconds = solve_with_ipopt(problem)
    metrics = problem.evaluate_points(answers).metrics | {"test_ms": milliseconds}
    return {"training": None, "evaluation": metrics, "curves": {}}


# ---------------------------------------------------------------------------------------------------- many runs


def run_campaign(
    campaign: Campaign,
    on_tick: Callable[[RunConfig, Tick], None] | None = None,
    on_done: Callable[[RunConfig, dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """All runs of a campaign, `jobs` at a time, and their records in the order of the runs.

    A post-hoc run waits for the soft network that it projects. If a run fails the others go on; then the first error is
    raised.
    """
    out = Path(campaign.out)
    runs = campaign.runs
    if started_by_torchrun():
        return _run_together(campaign, runs, out, on_tick, on_done)
    if campaign.jobs == 1:
        torch.set_num_threads(campaign.threads)
        records = []
        for config in _soft_first(runs):
            tell = None if on_tick is None else lambda tick, config=config: on_tick(config, tick)
            record = run_one(config, out, every=campaign.checkpoint_seconds, on_tick=tell)
            if on_done is not None:
                on_done(config, record)
            records.append(record)
        return records
    return _run_in_parallel(campaign, runs, out, on_tick, on_done)


def _soft_first(runs: list[RunConfig]) -> list[RunConfig]:
    """Post-hoc runs last: their weights are then there."""
    return sorted(runs, key=lambda config: config.method == "post-hoc")


def _run_together(
    campaign: Campaign,
    runs: list[RunConfig],
    out: Path,
    on_tick: Callable[[RunConfig, Tick], None] | None,
    on_done: Callable[[RunConfig, dict[str, Any]], None] | None,
) -> list[dict[str, Any]]:
    """One run after the other, each in all processes."""
    torch.set_num_threads(campaign.threads)
    records = []
    with process_group(runs[0].device) as group:
        for config in _soft_first(runs):
            tell = None if on_tick is None else lambda tick, config=config: on_tick(config, tick)
            record = run_one(config, out, every=campaign.checkpoint_seconds, on_tick=tell, group=group)
            if on_done is not None and group.leads:
                on_done(config, record)
            records.append(record)
    return records


def _run_in_parallel(
    campaign: Campaign,
    runs: list[RunConfig],
    out: Path,
    on_tick: Callable[[RunConfig, Tick], None] | None,
    on_done: Callable[[RunConfig, dict[str, Any]], None] | None,
) -> list[dict[str, Any]]:
    """One process per run; ticks come back through a queue."""
    context = multiprocessing.get_context("spawn")
    by_name = {config.name: config for config in runs}
    done: dict[str, dict[str, Any]] = {}
    failure: BaseException | None = None
    with context.Manager() as manager:
        queue = manager.Queue()
        setup = (campaign.threads, os.getpid(), queue)
        with ProcessPoolExecutor(campaign.jobs, mp_context=context, initializer=_set_up, initargs=setup) as pool:
            for wave in _waves(runs):
                waiting = {pool.submit(_work, config, out, campaign.checkpoint_seconds): config for config in wave}
                while waiting:
                    finished, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                    while not queue.empty():
                        name, tick = queue.get()
                        if on_tick is not None:
                            on_tick(by_name[name], tick)
                    for future in finished:
                        config = waiting.pop(future)
                        failure = _collect(future, config, done, on_done) or failure
    if failure is not None:
        raise failure
    return [done[config.name] for config in runs]


def _waves(runs: list[RunConfig]) -> Iterator[list[RunConfig]]:
    for late in (False, True):
        wave = [config for config in runs if (config.method == "post-hoc") == late]
        if wave:
            yield wave


def _collect(
    future: Future[dict[str, Any]],
    config: RunConfig,
    done: dict[str, dict[str, Any]],
    on_done: Callable[[RunConfig, dict[str, Any]], None] | None,
) -> BaseException | None:
    error = future.exception()
    if error is None:
        done[config.name] = future.result()
        if on_done is not None:
            on_done(config, done[config.name])
    return error


_worker: dict[str, Any] = {}


def _set_up(threads: int, parent: int, queue: Any) -> None:
    torch.set_num_threads(threads)
    _worker.update(parent=parent, queue=queue)


def _work(config: RunConfig, out: Path, every: float) -> dict[str, Any]:
    def tell(tick: Tick) -> None:
        if os.getppid() != _worker["parent"]:
            os._exit(1)  # the parent was killed: leave the run to whoever starts it again
        _worker["queue"].put((config.name, tick))

    return run_one(config, out, every=every, on_tick=tell)


# ---------------------------------------------------------------------------------------------------- where it ran


def versions() -> dict[str, str]:
    """Of everything that has a say in the numbers."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """The processor, and how much of it was used."""
    return {
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
