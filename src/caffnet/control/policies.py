"""Policy heads for reinforcement learning: from a network's output to actions in a set that depends on the state.

A deterministic actor (DDPG, TD3) is a `CAffNet`, or an `InteriorActor` whose actions lie strictly inside. A stochastic
one (SAC, PPO, REINFORCE) is a `StochasticPolicy`, which returns a distribution of `caffnet.control.distributions`.
Ready policies of Stable-Baselines3 are in `caffnet.control.sb3`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from caffnet._solve.tracing import undo_autocast
from caffnet.constraints import AffineSet
from caffnet.control.distributions import InteriorNormal, ProjectedNormal, TruncatedNormal
from caffnet.control.interior import check_raw, interior_transform
from caffnet.errors import ConstraintError

KINDS = {"interior": InteriorNormal, "projected": ProjectedNormal, "truncated": TruncatedNormal}


class InteriorActor(nn.Module):
    """A deterministic policy whose actions lie strictly inside the set: a bijection maps the output of a network into
    it.

    Unlike a projection, it never loses its gradient at a corner; like a projection, it changes little near the centre.

    Args:
        backbone: ``x -> z``, ``(..., d)``, d = n minus the equalities: the action as seen from the centre of the set.
        constraint: an `AffineSet`, or any function ``x -> AffineSet``.

    >>> wedge = AffineSet.inequality([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], [1.0, 0.0, 0.0])
    >>> actor = InteriorActor(nn.Linear(3, 2), wedge)
    >>> bool((actor(torch.randn(50, 3)) >= 0).all())
    True
    """

    def __init__(self, backbone: nn.Module, constraint: AffineSet | Callable[[Any], AffineSet]):
        super().__init__()
        self.backbone, self.constraint = backbone, constraint

    def forward(self, x: Any) -> Tensor:
        """Actions ``(..., n)``."""
        z = undo_autocast(self.backbone(x))
        inside = interior_transform(set_at(self.constraint, x).like(z, "the output").to(z.dtype))
        check_raw("The output", z, inside)
        action = inside(z)
        assert isinstance(action, Tensor)
        return action


class StochasticPolicy(nn.Module):
    """A policy that returns a distribution over the set: Gaussian, with a mean and deviations from a network.

    Args:
        backbone: ``x -> (mean, log deviation)``, ``(..., 2 d)``.
        constraint: an `AffineSet`, or any function ``x -> AffineSet``.
        kind: ``"interior"``, ``"projected"`` or ``"truncated"``, see `caffnet.control.distributions`.
        log_std_range: limits of the log deviations.

    >>> policy = StochasticPolicy(nn.Linear(3, 4), AffineSet.box(-1.0, 1.0, dim=2))
    >>> action, score = policy(torch.zeros(5, 3)).rsample_with_log_prob()
    >>> action.shape, score.shape
    (torch.Size([5, 2]), torch.Size([5]))
    """

    def __init__(
        self,
        backbone: nn.Module,
        constraint: AffineSet | Callable[[Any], AffineSet],
        kind: str = "interior",
        log_std_range: tuple[float, float] = (-20.0, 2.0),
    ):
        super().__init__()
        if kind not in KINDS:
            raise ConstraintError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}.")
        self.backbone, self.constraint, self.kind, self.log_std_range = backbone, constraint, kind, log_std_range

    def forward(self, x: Any) -> Any:
        """The distribution of actions at x."""
        loc, log_std = undo_autocast(self.backbone(x)).chunk(2, -1)
        scale = log_std.clamp(*self.log_std_range).exp()
        return KINDS[self.kind](set_at(self.constraint, x), loc, scale)


def set_at(constraint: AffineSet | Callable[[Any], AffineSet], x: Any) -> AffineSet:
    """Return the set at x, without gradient: the set does not depend on the policy."""
    if isinstance(constraint, AffineSet):
        return constraint
    with torch.no_grad():
        return constraint(x)
