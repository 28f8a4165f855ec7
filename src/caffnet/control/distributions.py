r"""Distributions over affine sets, for stochastic policies. They differ in the meaning of the log-probability.

| class | a sample is | density |
|---|---|---|
| `InteriorNormal` | a Gaussian point, mapped into the interior by a bijection | over the set, exact, in closed form |
| `TruncatedNormal` | a Gaussian point, drawn again until it is in the set | over the set, exact; 1 or 2 outputs |
| `ProjectedNormal` | a Gaussian point; the action is its projection | of the *raw* point: the action has none |

A projected Gaussian puts a positive probability on the boundary, so its actions have no density: scoring actions by the
density of the Gaussian is wrong, and training with it is misled. Scoring the *raw* points is right, since the
projection is then a part of the environment; but raw points far outside cost nothing, hence
`ProjectedNormal.correction`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal, TransformedDistribution
from torch.distributions import constraints as supports
from torch.distributions.transforms import Transform

from caffnet.constraints import AffineSet, joint_axes
from caffnet.control.interior import InSet, RayTransform, check_raw, interior_transform
from caffnet.control.truncated import Polygon, in_deviations, interval_of, log_mass, scaled_mode, truncated_sample
from caffnet.errors import ConstraintError
from caffnet.projection import project


class _Estimated(Distribution):
    """Common base of the three distributions."""

    @property
    def arg_constraints(self) -> dict[str, supports.Constraint]:
        """Constraints on `loc` and `scale`."""
        return {"loc": supports.real_vector, "scale": supports.independent(supports.positive, 1)}

    def entropy(self, samples: int = 64) -> Tensor:
        """``-E log p``, ``(...)``: an estimate over samples, with its gradient where samples have one."""
        draw = self.rsample if self.has_rsample else self.sample
        return -self.log_prob(draw(torch.Size([samples]))).mean(0)


def _of_every_set(set: AffineSet, loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return both with the joint batch axes of the sets and the means."""
    loc, scale = torch.broadcast_tensors(loc, scale)
    batch = joint_axes("loc", loc.shape[:-1], "the set", set.batch_shape)
    return loc.expand(*batch, loc.shape[-1]), scale.expand(*batch, loc.shape[-1])


class InteriorNormal(_Estimated, TransformedDistribution):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A Gaussian mapped into the interior of a set: smooth, reparametrised, with exact log-probabilities.

    Args:
        set: the set or sets; batch axes broadcast with those of `loc`.
        loc: mean of the Gaussian, ``(..., d)``, d = n minus the equalities. It is measured from the centre of the
            set, in the units of the outputs.
        scale: standard deviations, ``(..., d)``.
        transform: a map of `caffnet.control.interior`; `interior_transform(set)` if None. Pass a map to reuse it.

    >>> wedge = AffineSet.inequality([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], [1.0, 0.0, 0.0])
    >>> policy = InteriorNormal(wedge, torch.zeros(2), torch.ones(2))
    >>> actions = policy.sample((1000,))
    >>> bool(wedge.violation(actions).max() == 0), policy.log_prob(actions).shape
    (True, torch.Size([1000]))
    """

    def __init__(self, set: AffineSet, loc: Tensor, scale: Tensor, transform: Transform | None = None):
        set = set.like(loc, "loc").to(loc.dtype)  # one written in plain lists has a number type from here on
        loc, scale = _of_every_set(set, loc, scale)
        self.set, self.loc, self.scale = set, loc, scale
        chosen = interior_transform(set) if transform is None else transform
        check_raw("loc", loc, chosen)
        super().__init__(Independent(Normal(loc, scale, validate_args=False), 1), chosen, validate_args=False)

    @property
    def has_rsample(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Samples are differentiable with respect to loc and scale."""
        return True

    @property
    def mode(self) -> Tensor:
        """The image of the mean of the Gaussian, ``(..., n)``: the action to take without noise."""
        return self.transforms[0](self.loc)  # pyright: ignore[reportReturnType]

    @property
    def mean(self) -> Tensor:
        """The same as `mode`, as a substitute: the exact mean has no closed form."""
        return self.mode

    def rsample_with_log_prob(self, shape: Any = ()) -> tuple[Tensor, Tensor]:
        """Return samples ``(..., n)`` and their log-probabilities ``(...)``, without inverting the map.

        Exact even for samples so near to the boundary that rounding makes the inverse inexact.
        """
        raw = self.base_dist.rsample(torch.Size(shape))
        ray = self.transforms[0]
        action: Tensor = ray(raw)  # pyright: ignore[reportAssignmentType]
        return action, self._of_points(self.base_dist.log_prob(raw) - ray.log_abs_det_jacobian(raw, action))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log-probabilities ``(...)``; minus infinity outside the set, beyond rounding.

        0 where the set has no interior and the map is `stuck`: the only action has probability one.
        """
        inside = self.set.contains(value)
        return self._of_points(torch.where(inside, super().log_prob(value), -math.inf))

    def _of_points(self, score: Tensor) -> Tensor:
        ray = self.transforms[0]
        stuck = ray.stuck if isinstance(ray, RayTransform) else None
        return score if stuck is None else torch.where(stuck, 0.0, score)


class ProjectedNormal(_Estimated):
    """A Gaussian of raw points: the action is the projection of a sample, the log-probability that of the sample.

    Args:
        set: the set or sets; batch axes broadcast with those of `loc`.
        loc: mean, ``(..., n)``.
        scale: standard deviations, ``(..., n)``.
        **options: of `caffnet.project`.

    Store the raw point beside the action, and score the raw point. `correction` is a penalty to add to the loss: it
    keeps raw points near the set, where the policy can learn from them.

    >>> policy = ProjectedNormal(AffineSet.box(-1.0, 1.0, dim=2), torch.tensor([3.0, 0.0]), torch.ones(2))
    >>> policy.mode, policy.correction(policy.loc)
    (tensor([1., 0.]), tensor(2.))
    """

    has_rsample = True

    def __init__(self, set: AffineSet, loc: Tensor, scale: Tensor, **options: Any):
        loc, scale = _of_every_set(set, loc, scale)
        self.set, self.loc, self.scale, self.options = set.like(loc, "loc"), loc, scale, options
        self.base = Independent(Normal(loc, scale, validate_args=False), 1)
        super().__init__(self.base.batch_shape, self.base.event_shape, validate_args=False)

    @property
    def support(self) -> supports.Constraint:
        """All points: raw points are not constrained."""
        return supports.real_vector

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Raw points, ``(..., n)``."""
        return self.base.rsample(torch.Size(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Of raw points, ``(...)``."""
        return self.base.log_prob(value)

    def entropy(self, samples: int = 64) -> Tensor:
        """Of raw points: exact."""
        return self.base.entropy()

    def action(self, raw: Tensor) -> Tensor:
        """The projection of raw points, ``(..., n)``; differentiable."""
        return project(raw, self.set, **self.options).value

    def correction(self, raw: Tensor) -> Tensor:
        """Half of the squared distance to the set, ``(...)``."""
        return 0.5 * (raw - self.action(raw)).square().sum(-1)

    @property
    def mode(self) -> Tensor:
        """The projection of the mean: the action to take without noise."""
        return self.action(self.loc)


class TruncatedNormal(_Estimated):
    """A Gaussian restricted to a set of one or two outputs, and scaled to one.

    Args:
        set: the set or sets, inequalities only; batch axes broadcast with those of `loc`.
        loc: mean, ``(..., n)``, n at most 2.
        scale: standard deviations, ``(..., n)``.

    For one output, the mass of the Gaussian inside the set has a closed form; for two it is a one-dimensional integral
    of this form, by Gauss-Legendre between the corners. Both are differentiable with respect to loc and scale.

    >>> half = AffineSet.inequality([[-1.0]], [0.0])
    >>> TruncatedNormal(half, torch.zeros(1), torch.ones(1)).log_prob(torch.tensor([0.0])).exp()   # 2 / sqrt(2 π)
    tensor(0.7979)
    """

    has_rsample = False

    def __init__(self, set: AffineSet, loc: Tensor, scale: Tensor):
        if set.n > 2:
            raise ConstraintError(f"TruncatedNormal works for 1 or 2 outputs, got {set.n}: use InteriorNormal.")
        if "=" in set.row_kinds:
            raise ConstraintError("TruncatedNormal needs a set with an interior, got equalities: use InteriorNormal.")
        loc, scale = _of_every_set(set, loc, scale)
        self.set, self.loc, self.scale = (set := set.like(loc, "loc")), loc, scale
        self.base = Independent(Normal(loc, scale, validate_args=False), 1)
        super().__init__(self.base.batch_shape, self.base.event_shape, validate_args=False)
        self._polygon = Polygon(set, loc, scale) if set.n == 2 else None

    @property
    def support(self) -> InSet:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The set."""
        return InSet(self.set)

    @property
    def log_inside(self) -> Tensor:
        """The logarithm of the mass of the Gaussian inside the set, ``(...)``."""
        return self._log_inside().to(self.loc.dtype)

    def _log_inside(self) -> Tensor:
        if self._polygon is not None:
            return self._polygon.log_mass()
        low, high = interval_of(self.set)
        mean, width = self.loc[..., 0].double(), self.scale[..., 0].double()
        return log_mass(in_deviations(low, mean, width), in_deviations(high, mean, width))

    def log_prob(self, value: Tensor) -> Tensor:
        """``(...)``; minus infinity outside of the set."""
        inside = self.set.contains(value)
        wide = Independent(Normal(self.loc.double(), self.scale.double(), validate_args=False), 1)
        score = wide.log_prob(value.double()) - self._log_inside()  # far out, both are large
        return torch.where(inside, score, -math.inf).to(self.loc.dtype)

    @torch.no_grad()
    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Points of the set, ``(..., n)``."""
        shape = torch.Size([*sample_shape, *self.loc.shape[:-1]])
        uniform = torch.rand(*shape, self.set.n, dtype=torch.float64, device=self.loc.device)
        if self._polygon is not None:
            return self._polygon.sample(uniform).to(self.loc.dtype)
        low, high = (end.unsqueeze(-1) for end in interval_of(self.set))
        return truncated_sample(uniform, self.loc.double(), self.scale.double(), low, high).to(self.loc.dtype)

    @property
    def mode(self) -> Tensor:
        """The point of largest density: the projection of the mean in units of the standard deviations."""
        loc, scale = self.loc.detach(), self.scale.detach()
        return loc + scale * scaled_mode(self.set, loc, scale)
