"""From a config to a record: build, train, evaluate, write. Finished runs are never run again."""

from __future__ import annotations

import copy
import dataclasses
import datetime
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from caffnet import CAffNet
from caffnet.methods import Soft
from caffnet_lab.experiments.cbf import DrivingProblem
from caffnet_lab.experiments.config import PAPER_TASKS, UNTRAINED, ConfigError, RunConfig
from caffnet_lab.experiments.distributed import Group
from caffnet_lab.experiments.models import build_model
from caffnet_lab.experiments.opt import SolverProblem
from caffnet_lab.experiments.problem import Problem, time_forward
from caffnet_lab.experiments.provenance import machine, versions
from caffnet_lab.experiments.pwc import PiecewiseProblem
from caffnet_lab.experiments.records import (
    RecordExists,
    all_finite,
    read_run,
    record_path,
    rounded,
    thin,
    write_record,
)
from caffnet_lab.experiments.training import COST, PENALTY, WORST, DivergedError, Tick, Trained, train
from caffnet_lab.experiments.yardsticks.dispatch import DispatchProblem
from caffnet_lab.experiments.yardsticks.driving import EllipseProblem
from caffnet_lab.experiments.yardsticks.forecast import ForecastProblem
from caffnet_lab.experiments.yardsticks.programs import LearnedProgram
from caffnet_lab.experiments.yardsticks.tasks import DRIVES, FORECASTS, GRIDS, PROGRAMS

PROBLEMS: dict[str, Callable[..., Problem]] = {
    "pwc": PiecewiseProblem,
    "opt": SolverProblem,
    "cbf": DrivingProblem,
    **{name: partial(LearnedProgram, name) for name in PROGRAMS},
    **{name: partial(DispatchProblem, name) for name in GRIDS},
    **{name: partial(ForecastProblem, name) for name in FORECASTS},
    **{name: partial(EllipseProblem, name) for name in DRIVES},
}


def default_device() -> str:
    """The GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def build_problem(config: RunConfig) -> Problem:
    """The data of a run, in its number type and on its device."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch sees no GPU: choose cpu.")
    driving = {"adjoint": config.adjoint, "goal_radius": config.goal_radius, "draws": config.draws}
    options = driving if config.task == "cbf" else {}
    return PROBLEMS[config.task](config.seed, **options).to(torch.device(config.device), getattr(torch, config.dtype))


def checkpoint_path(out: Path, config: RunConfig) -> Path:
    """Path of the weights of a run; a post-hoc projection shares those of the soft network."""
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

    Raises:
        CheckpointError: there is a checkpoint that cannot be used.
        DivergedError: there are no finite weights to evaluate, or they give no finite numbers.
    """
    group = Group() if group is None else group
    path = record_path(out, config.name)
    if path.exists():
        return read_run(path, config.name)
    made_by = versions()
    problem = build_problem(config)
    if config.method in UNTRAINED:
        record = _solve(config, problem)
    else:
        record = _train(config, problem, checkpoint_path(out, config), every, on_tick, group)
    if not all_finite(record["evaluation"]):
        raise DivergedError(
            f"The trained network gives no finite numbers: lower learning_rate ({config.learning_rate:g})."
        )
    record = {
        "name": config.name,
        "config": dataclasses.asdict(config),
        "versions": made_by,
        "machine": machine() | {"processes": group.size},
        **record,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    if group.leads:
        try:
            write_record(path, record)
        except RecordExists:  # the same run was finished elsewhere meanwhile: its record counts
            record = read_run(path, config.name)
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
    if config.method == "repair":
        _freeze_soft_backbone(learner, config, problem, path, every, on_tick, group)
    trained = train(config.trained, problem, learner, path, group=group, every=every, on_tick=on_tick)
    model = learner
    if config.method == "post-hoc":
        model = build_model(config, problem)
        model.load_state_dict(learner.state_dict())
    model.eval()
    return {"training": _training_part(config, learner, trained), **_evaluate(config, problem, model)}


def _freeze_soft_backbone(
    learner: nn.Module,
    config: RunConfig,
    problem: Problem,
    path: Path,
    every: float,
    on_tick: Callable[[Tick], None] | None,
    group: Group,
) -> None:
    """Put the soft network, trained now or before, into the backbone, and leave its weights as they are."""
    soft = build_model(config.soft, problem)
    assert isinstance(learner, CAffNet)
    assert isinstance(soft, Soft)
    beside = path.with_name(f"{config.soft.name}{path.suffix}")
    train(config.soft, problem, soft, beside, group=group, every=every, on_tick=on_tick)
    learner.backbone.load_state_dict(soft.backbone.state_dict())
    learner.backbone.requires_grad_(False)


def _evaluate(config: RunConfig, problem: Problem, model: nn.Module) -> dict[str, Any]:
    """The metrics of a trained model, and of its variants in the tables."""
    found = problem.evaluate(model)
    metrics = dict(found.metrics)
    metrics["test_ms"] = time_forward(problem.forward_for_timing(model), problem.test.device)
    if isinstance(model, CAffNet) and config.task in PAPER_TASKS:  # exact arithmetic takes minutes on 100 rows
        strict = build_model(config, problem, strict=True)
        strict.load_state_dict(model.state_dict())
        metrics["strict"] = problem.evaluate(strict.eval(), exact=True).metrics
    if config.dropout:
        # The FF rows of the paper's opt table were measured with dropout still on.
        torch.manual_seed(config.seed)
        metrics["dropout_on"] = problem.evaluate(copy.deepcopy(model).train()).metrics
    return {"evaluation": metrics, "curves": rounded(found.curves)}


def _training_part(config: RunConfig, model: nn.Module, trained: Trained) -> dict[str, Any]:
    kept = thin(len(trained.history), trained.evaluated_epoch)
    rows = trained.history[kept]
    loss = rows[:, COST] + config.penalty_weight * rows[:, PENALTY]
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "ms_per_epoch": trained.ms_per_epoch,
        "seconds": trained.seconds,
        "starts": len(trained.starts),
        "revisions": list(dict.fromkeys(filter(None, trained.starts))),
        "evaluated_epoch": trained.evaluated_epoch,
        "history": {
            "epoch": kept,
            "loss": rounded(loss.tolist()),
            "cost": rounded(rows[:, COST].tolist()),
            "worst": rounded(rows[:, WORST].tolist()),
        },
    }


def _solve(config: RunConfig, problem: Problem) -> dict[str, Any]:
    found, milliseconds = problem.judge(config.method)
    metrics = found.metrics | {"test_ms": milliseconds}
    return {"training": None, "evaluation": metrics, "curves": rounded(found.curves)}
