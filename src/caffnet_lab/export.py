"""Input of `caffnet export`: a finished run, or a model that a Python module makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from caffnet import AffineSet, CAffine, CAffNet, Prepared
from caffnet_lab.experiments.config import ConfigError, RunConfig
from caffnet_lab.experiments.models import build_model
from caffnet_lab.experiments.records import read_run
from caffnet_lab.experiments.run import build_problem, checkpoint_path
from caffnet_lab.experiments.training import train
from caffnet_lab.lookup import NotFoundError, find_object

_TESTED = 64  # samples for the test program of an export


def load_source(source: str) -> tuple[Any, Tensor | None]:
    """A model, and samples of its input where they are known.

    Args:
        source: the record of a run (``results/records/NAME.json``), whose weights are in the checkpoints beside it; or
            ``module:name`` or ``file.py:name``, a model, layer or set, or a function without arguments that makes one.

    Raises:
        ConfigError: there is no such thing, or it is not for export.
    """
    if source.endswith(".json"):
        return _load_run(Path(source))
    if ":" not in source:
        raise ConfigError(
            f"SOURCE must be the record of a run, NAME.json, module:name or file.py:name, got {source!r}."
        )
    kinds = CAffNet | CAffine | AffineSet | Prepared
    try:
        model = find_object(source, "SOURCE")
    except NotFoundError as error:
        raise ConfigError(str(error)) from None
    if callable(model) and not isinstance(model, kinds | nn.Module):
        try:
            model = model()
        except TypeError as error:
            raise ConfigError(f"{source} must be callable without arguments, to make a model: {error}.") from None
    if not isinstance(model, kinds):
        raise ConfigError(
            f"{source} must be a CAffNet, a CAffine, a set, or a function that makes one, got {type(model).__name__}: "
            "write CAffNet(network, constraint)."
        )
    return model, None


def _load_run(path: Path) -> tuple[CAffNet, Tensor]:
    """The trained network of a run. Its checkpoint is finished, so nothing is trained here."""
    if not path.exists():
        raise ConfigError(f"There is no file {path}.")
    config = RunConfig(**read_run(path)["config"])
    weights = checkpoint_path(path.parent.parent, config)
    if not weights.exists():
        again = f"caffnet run {config.task} --protocol {config.protocol} --method {config.method} --seed {config.seed}"
        raise ConfigError(
            f"The weights of {path} are not there: {weights}. They are not kept with the records. Train them again: "
            f"move the record away, then {again}"
        )
    problem = build_problem(config)
    learner = build_model(config.trained, problem)
    train(config.trained, problem, learner, weights)
    model = build_model(config, problem)
    model.load_state_dict(learner.state_dict())
    if not isinstance(model, CAffNet):
        raise ConfigError(
            f"{config.method} has no CAffine layer: export a run of caffnet-ff, caffnet-ff-lite or post-hoc."
        )
    return model.eval(), torch.cat([problem.test, problem.train])[:_TESTED]
