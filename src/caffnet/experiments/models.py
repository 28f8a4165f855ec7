"""The methods of the paper's tables as modules with one call: ``model(x)`` or ``model(x, nominal)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from caffnet.backbones import FeedForward, Transformer
from caffnet.constraints import AffineSet
from caffnet.experiments.config import ConfigError, RunConfig
from caffnet.experiments.problem import Problem
from caffnet.model import CAffNet

#: HardNet wants both sides of every row; a missing side is this far away.
FAR = 1e10


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
        model: nn.Module = SoftNet(_feedforward(config, problem))
    elif method == "hardnet":
        model = HardNet(_feedforward(config, problem), problem.constraint)
    elif method == "post-hoc":
        model = CAffNet(_feedforward(config, problem), problem.enforced("full"), search="full", **options)
    elif method in ("caffnet-ff", "caffnet-ff-lite"):
        search = "lite" if method.endswith("lite") else "full"
        f, w = _feedforward(config, problem), _feedforward(config, problem)
        model = CAffNet(f, problem.enforced(search), null=w, null_start=config.null_start, search=search, **options)
    elif method == "caffnet-tf":
        f = Transformer(problem.n_in, problem.n_out, feedforward=config.feedforward)
        model = CAffNet(
            f, problem.enforced("full"), null=f.twin(), null_start=config.null_start, search="full", **options
        )
    else:
        raise ConfigError(f"{method} is not a network.")
    return model.to(config.device, getattr(torch, config.dtype))


def _feedforward(config: RunConfig, problem: Problem) -> FeedForward:
    return FeedForward(problem.n_in, problem.n_out, config.hidden, batch_norm=config.batch_norm, dropout=config.dropout)


class SoftNet(nn.Module):
    """A plain network; only the penalty in the loss knows of the constraints."""

    def __init__(self, backbone: nn.Module):
        super().__init__()
        self.backbone = backbone

    def forward(self, x: Tensor, nominal: Tensor | None = None) -> Tensor:
        """``f(x)``, plus the nominal output if there is one."""
        f = self.backbone(x)
        return f if nominal is None else f + nominal


class HardNet(SoftNet):
    r"""HardNet-Aff: $y = f + A^+ (clamp(A f, lower, upper) - A f)$.

    Exact only while A has full row rank, which none of the paper's experiments has: there it is a least-squares
    compromise between the rows, as in the paper's comparison.
    """

    def __init__(self, backbone: nn.Module, constraint: Callable[[Any], AffineSet]):
        super().__init__(backbone)
        self.constraint = constraint

    def forward(self, x: Tensor, nominal: Tensor | None = None) -> Tensor:
        """The corrected output."""
        f = super().forward(x, nominal)
        set = self.constraint(x)
        value = (set.A @ f.unsqueeze(-1)).squeeze(-1)
        wanted = torch.minimum(torch.maximum(value, set.lower.clamp_min(-FAR)), set.upper.clamp_max(FAR))
        step = (wanted - value).unsqueeze(-1)
        if set.A.ndim == 2:  # one matrix for all samples: inverted once
            return f + (torch.linalg.pinv(set.A) @ step).squeeze(-1)
        return f + torch.linalg.lstsq(set.A, step).solution.squeeze(-1)
