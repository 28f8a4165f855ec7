"""Input of `caffnet export`: a finished run, or a model that a Python module makes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from caffnet import AffineSet, CAffine, CAffNet, Prepared
from caffnet_lab.experiments.config import ConfigError, RunConfig
from caffnet_lab.experiments.models import build_model
from caffnet_lab.experiments.records import read_run
from caffnet_lab.experiments.run import build_problem, checkpoint_path
from caffnet_lab.experiments.training import train

_TESTED = 64  # samples for the test program of an export


def load_source(source: str) -> tuple[Any, Tensor | None]:
    """A model, and samples of its input where they are known.

    Args:
        source: the record of a run (``results/records/NAME.json``), whose weights are in the checkpoints beside it; or
            ``module:name``, a model, layer or set, or a function without arguments that makes one.

    Raises:
        ConfigError: there is no such thing, or it is not for export.
    """
    if source.endswith(".json"):
        return _load_run(Path(source))
    module, _, name = source.partition(":")
    if not module or not name:
        raise ConfigError(f"SOURCE must be the record of a run, NAME.json, or module:name, got {source!r}.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{source} cannot be imported: {error}.") from None
    finally:
        sys.path.pop(0)
    model = found if isinstance(found, CAffNet | CAffine | AffineSet | Prepared) else found()
    return model, None


def _load_run(path: Path) -> tuple[CAffNet, Tensor]:
    """The trained network of a run. Its checkpoint is finished, so nothing is trained here."""
    config = RunConfig(**read_run(path)["config"])
    weights = checkpoint_path(path.parent.parent, config)
    if not weights.exists():
        raise ConfigError(f"The weights of {path} are not there: {weights}. Run the experiment again.")
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
