"""Policies of Stable-Baselines3 whose actions satisfy constraints that depend on the observation.

    model = SAC(SafeSACPolicy, env, policy_kwargs={"constraint": rows})       # rows: observations -> AffineSet

`rows` gets a float32 tensor of observations ``(batch, ...)`` and returns sets over the actions of the environment; the
limits of the action space are added. The maps work in float32, so rounding may break a row in the environment; and
actions that do not come from the policy are not constrained: random warm-up (``learning_starts``) and action noise. Put
`SafeActions` around the environment to cover both; replay buffers then store the actions that the agent asked for.

An agent must act in every state, even if the set has no interior or is empty. There the interior heads take the action
nearest to the middle of the limits that satisfies the rows, or the one of least violation within the limits. It does
not depend on the policy, so it has no gradient; its probability is one and its log-probability 0. The critic learns
from such states, the actor does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from caffnet._install import install_command
from caffnet.constraints import AffineSet
from caffnet.control.distributions import InteriorNormal
from caffnet.control.interior import RayTransform, check_raw, is_inside, largest_ball
from caffnet.control.safety import over_actions
from caffnet.errors import ConstraintError
from caffnet.projection import project

try:
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.sac.policies import Actor as SACActor
    from stable_baselines3.sac.policies import SACPolicy
    from stable_baselines3.td3.policies import Actor as TD3Actor
    from stable_baselines3.td3.policies import TD3Policy
except ImportError as missing:
    raise ImportError(f"caffnet.control.sb3 needs Stable-Baselines3: {install_command('rl')}.") from missing

Rows = Callable[[Any], AffineSet] | AffineSet
Centre = Callable[[Any], Tensor] | Tensor | Sequence[float] | None
HEADS = ("interior", "project")


class ActionSets:
    """Maps observations to sets of actions within the limits of the action space.

    Args:
        constraint: observations ``(batch, ...)`` to sets over the actions of the environment, or one set.
        space: the action space, a box.
        scaled: over actions that are scaled to [-1, 1], as actors of SAC and TD3 give them.
        centre: actions inside the sets, as a function of the observations or one for all. If None, or where the given
            action is not inside, `interior_point` finds one, at the cost of a few projections.
    """

    def __init__(self, constraint: Rows, space: Any, scaled: bool, centre: Centre = None):
        box = hasattr(space, "low") and space.low.ndim == 1
        if not box or not np.isfinite(space.low).all() or not np.isfinite(space.high).all():
            raise ConstraintError(f"The action space must be a box with finite limits and of shape (n,), got {space}.")
        self.constraint, self.scaled, self.centre = constraint, scaled, centre
        low, high = (torch.as_tensor(side, dtype=torch.float64) for side in (space.low, space.high))
        self.middle, self.half = (high + low) / 2, (high - low) / 2
        if not scaled:
            self.limits = AffineSet.box(low, high)
        else:
            self.limits = AffineSet.box(-torch.ones_like(low), torch.ones_like(low))

    @torch.no_grad()
    def __call__(self, observations: Any) -> AffineSet:
        """The sets at the observations, float32."""
        rows = self.constraint if isinstance(self.constraint, AffineSet) else self.constraint(observations)
        rows = over_actions(rows, len(self.middle)).to(torch.float64)
        if self.scaled:  # of a = middle + half s
            shift = rows.A @ self.middle
            parts = rows.A * self.half, rows.lower - shift, rows.upper - shift
            rows = AffineSet.from_parts(*parts, rows.labels, rows.row_kinds, None, rows.softness)
        return (rows & self.limits).to(torch.float32)

    def transform(self, observations: Any) -> RayTransform:
        """The map into the interior of the sets at the observations; `stuck` where a set has none."""
        sets = self(observations)
        centre = self._centre(observations)
        if centre is None:
            centre = largest_ball(sets, None)[0].to(sets.dtype)
        elif not is_inside(sets, centre).all():
            found = largest_ball(sets, None)[0].to(sets.dtype)
            centre = torch.where(is_inside(sets, centre).unsqueeze(-1), centre, found)
        inside = is_inside(sets, centre)
        if inside.all():
            return RayTransform(sets, centre)
        middle = (0 * self.middle if self.scaled else self.middle).to(sets.dtype)
        nearest = project(middle.expand(centre.shape).contiguous(), sets, on_infeasible="nearest").value
        return RayTransform(sets, torch.where(inside.unsqueeze(-1), centre, nearest), ~inside)

    def _centre(self, observations: Any) -> Tensor | None:
        """The centres that were given, float32."""
        if self.centre is None:
            return None
        given = self.centre(observations) if callable(self.centre) else torch.as_tensor(self.centre)
        inside = given.detach().double()
        if inside.ndim and inside.shape[-1] not in (1, len(self.middle)):
            raise ConstraintError(
                f"The centre must have shape (..., {len(self.middle)}), one action, got {tuple(inside.shape)}."
            )
        return ((inside - self.middle) / self.half if self.scaled else inside).to(torch.float32)


class _TD3Actor(TD3Actor):
    """Deterministic actions, put into the set by the interior map or by projection (with the tangent gradient)."""

    def __init__(self, *args: Any, constraint: Rows, centre: Centre, head: str, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.sets, self.head = ActionSets(constraint, self.action_space, True, centre), head
        if head == "interior":
            self.mu = torch.nn.Sequential(*list(self.mu.children())[:-1])  # the map takes any number: no tanh

    def forward(self, obs: Any) -> Tensor:
        raw = super().forward(obs)
        if self.head == "project":
            return project(raw, self.sets(obs), gradient="tangent", on_infeasible="nearest").value
        inside = self.sets.transform(obs)
        check_raw("The action", raw, inside)
        action = inside(raw)
        assert isinstance(action, Tensor)
        return action


class SafeTD3Policy(TD3Policy):
    """For TD3 and DDPG.

    Args:
        *args: of `TD3Policy`, as `kwargs`.
        constraint: observations to sets of actions.
        centre: see `ActionSets`.
        head: ``"interior"``, the bijection into the inside, or ``"project"``.
        **kwargs: of `TD3Policy`.
    """

    def __init__(self, *args: Any, constraint: Rows, centre: Centre = None, head: str = "interior", **kwargs: Any):
        if head not in HEADS:
            raise ConstraintError(f"head must be one of {', '.join(HEADS)}, got {head!r}.")
        self.constraint, self.centre, self.head = constraint, centre, head
        super().__init__(*args, **kwargs)

    def make_actor(self, features_extractor: Any = None) -> TD3Actor:
        """The actor with its constraint."""
        kwargs = self._update_features_extractor(self.actor_kwargs, features_extractor)
        return _TD3Actor(**kwargs, constraint=self.constraint, centre=self.centre, head=self.head).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        own = {"constraint": self.constraint, "centre": self.centre, "head": self.head}
        return {**super()._get_constructor_parameters(), **own}


class _SACActor(SACActor):
    """Gaussian, mapped into the interior: the log-probabilities are those of the actions, exactly."""

    def __init__(self, *args: Any, constraint: Rows, centre: Centre, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.use_sde:
            raise ConstraintError("The policy has its own noise: use it with use_sde=False.")
        self.sets = ActionSets(constraint, self.action_space, True, centre)

    def _distribution(self, obs: Any) -> InteriorNormal:
        mean, log_std, _ = self.get_action_dist_params(obs)
        ray = self.sets.transform(obs)
        return InteriorNormal(ray.set, mean, log_std.exp(), ray)

    def forward(self, obs: Any, deterministic: bool = False) -> Tensor:
        policy = self._distribution(obs)
        return policy.mode if deterministic else policy.rsample_with_log_prob()[0]

    def action_log_prob(self, obs: Any) -> tuple[Tensor, Tensor]:
        return self._distribution(obs).rsample_with_log_prob()


class SafeSACPolicy(SACPolicy):
    """For SAC.

    Args:
        *args: of `SACPolicy`, as `kwargs`.
        constraint: observations to sets of actions.
        centre: see `ActionSets`.
        **kwargs: of `SACPolicy`.
    """

    def __init__(self, *args: Any, constraint: Rows, centre: Centre = None, **kwargs: Any):
        self.constraint, self.centre = constraint, centre
        super().__init__(*args, **kwargs)

    def make_actor(self, features_extractor: Any = None) -> SACActor:
        """The actor with its constraint."""
        kwargs = self._update_features_extractor(self.actor_kwargs, features_extractor)
        return _SACActor(**kwargs, constraint=self.constraint, centre=self.centre).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        own = {"constraint": self.constraint, "centre": self.centre}
        return {**super()._get_constructor_parameters(), **own}


class SafePPOPolicy(ActorCriticPolicy):
    """For PPO and A2C. The action that is stored is the one that is taken, and its log-probability is exact.

    Args:
        *args: of `ActorCriticPolicy`, as `kwargs`.
        constraint: observations to sets of actions.
        centre: see `ActionSets`.
        **kwargs: of `ActorCriticPolicy`.
    """

    def __init__(self, *args: Any, constraint: Rows, centre: Centre = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.use_sde:
            raise ConstraintError("The policy has its own noise: use it with use_sde=False.")
        self.constraint, self.centre = constraint, centre
        self.sets = ActionSets(constraint, self.action_space, False, centre)

    def get_distribution(self, obs: Any) -> InteriorNormal:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The distribution of actions at the observations."""
        features = self.extract_features(obs)
        latent = self.mlp_extractor.forward_actor(features[0] if isinstance(features, tuple) else features)
        mean = self.action_net(latent)
        ray = self.sets.transform(obs)
        return InteriorNormal(ray.set, mean, self.log_std.exp().expand_as(mean), ray)

    def forward(self, obs: Any, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Actions, values and log-probabilities."""
        policy = self.get_distribution(obs)
        actions: Tensor = policy.mode if deterministic else policy.sample()  # pyright: ignore[reportAssignmentType]
        # Scored as `evaluate_actions` will: from the action as it is stored, not from the point before the map. So the
        # ratio of an unchanged policy is one, also where rounding hides the way back.
        return actions, self.predict_values(obs), policy.log_prob(actions.clone())

    def evaluate_actions(self, obs: Any, actions: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Values, log-probabilities and an estimate of the entropy."""
        policy = self.get_distribution(obs)
        return self.predict_values(obs), policy.log_prob(actions), policy.entropy(samples=4)

    def _predict(self, observation: Any, deterministic: bool = False) -> Tensor:
        policy = self.get_distribution(observation)
        return policy.mode if deterministic else policy.rsample_with_log_prob()[0]

    def _get_constructor_parameters(self) -> dict[str, Any]:
        own = {"constraint": self.constraint, "centre": self.centre}
        return {**super()._get_constructor_parameters(), **own}
