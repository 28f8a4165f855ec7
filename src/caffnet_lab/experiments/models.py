"""The methods of the paper's tables as modules with one call: ``model(x)`` or ``model(x, nominal)``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from caffnet import CAffNet, FeedForward, Transformer
from caffnet.methods import DC3, RAYEN, FSNet, HardNet, Soft
from caffnet_lab.experiments.config import ConfigError, RunConfig
from caffnet_lab.experiments.problem import Problem
from caffnet_lab.experiments.specific_null import SpecificNull


def build_model(config: RunConfig, problem: Problem, *, strict: bool = False) -> nn.Module:
    """The untrained network of a run, in its number type and on its device; f is built first, then w.

    Args:
        config: method, widths and options.
        problem: its constraints.
        strict: for CAffNet, aim inside by a few units in the last place.
    """
    torch.manual_seed(config.seed)
    method = config.method
    options: dict[str, Any] = {"gradient": config.gradient, "strict": strict, "on_infeasible": "nearest"}
    if method == "nn":
        model: nn.Module = Soft(_feedforward(config, problem), problem.constraint, penalty=None)
    elif method == "hardnet":
        # No experiment of the paper has rows of full rank: there HardNet is a least-squares compromise between them.
        model = HardNet(_feedforward(config, problem), problem.constraint, check=False, penalty=None)
    elif method == "dc3":
        model = DC3(_feedforward(config, problem), problem.constraint, lr=problem.correction_rate)
    elif method == "fsnet":
        model = FSNet(_feedforward(config, problem), problem.constraint)
    elif method == "rayen":
        # Without the learned map of its paper: a point of the set stays where it is, as with all other methods.
        model = RAYEN(_feedforward(config, problem), problem.build_set(problem.train), create_map=False)
    elif method in ("post-hoc", "orthogonal"):
        f = _feedforward(config, problem)
        options["warm_start"] = problem.warm_start  # not with w: that could choose another candidate
        model = CAffNet(f, problem.enforced(config.search), search=config.search, **options)
    elif method == "repair":
        f, w = _feedforward(config, problem), _feedforward(config, problem)
        model = CAffNet(f, problem.enforced(config.search), **_null_space(w, config), search=config.search, **options)
    elif method in ("caffnet-ff", "caffnet-ff-lite"):
        search = "lite" if method.endswith("lite") else config.search
        f, w = _feedforward(config, problem), _feedforward(config, problem)
        model = CAffNet(f, problem.enforced(search), **_null_space(w, config), search=search, **options)
    elif method == "caffnet-ff-each":
        f = _feedforward(config, problem)
        here = problem.build_set(problem.train)
        model = SpecificNull(f, problem.constraint, here, lambda n_out: _feedforward(config, problem, n_out))
    elif method == "caffnet-tf":
        f = Transformer(problem.n_in, problem.n_out, feedforward=config.feedforward)
        chosen = problem.enforced(config.search)
        model = CAffNet(f, chosen, **_null_space(f.twin(), config), search=config.search, **options)
    else:
        raise ConfigError(f"{method} is not a network.")
    return model.to(config.device, getattr(torch, config.dtype))


def _null_space(w: nn.Module, config: RunConfig) -> dict[str, Any]:
    if config.null_start == "none":
        return {"null": None}
    by_itself = not config.batch_norm and not config.dropout
    return {"null": w, "null_start": config.null_start, "lazy_null": by_itself}


def _feedforward(config: RunConfig, problem: Problem, n_out: int | None = None) -> nn.Module:
    start = torch.get_rng_state()
    network = FeedForward(
        problem.n_in,
        problem.n_out if n_out is None else n_out,
        config.hidden,
        batch_norm=config.batch_norm,
        dropout=config.dropout,
        activation={"relu": nn.ReLU, "silu": nn.SiLU}[config.activation],
    )
    if config.draws == "paper":
        # What the authors' code draws: in float64, and each layer is finished before the next is made.
        torch.set_rng_state(start)
        for layer in (module for module in network.double() if isinstance(module, nn.Linear)):
            layer.reset_parameters()
            nn.init.xavier_normal_(layer.weight)
    if problem.starts_at_zero:
        last = [module for module in network if isinstance(module, nn.Linear)][-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return network if problem.encoder is None else nn.Sequential(problem.encoder, network)
