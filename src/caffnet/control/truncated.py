r"""The mass of a Gaussian inside an interval or a polygon, and samples from it, accurate far out in its tail too.

**One output.** Beyond some 38 standard deviations Φ is zero in floating point, but ratios of Φ are not. With the nearer
end of the interval at -β and ``Φ(z) = e^(-z²/2) erfcx(-z/√2) / 2``,

    log Φ(-β - d) - log Φ(-β) = -d (β + d/2) + log(erfcx((β + d)/√2) / erfcx(β/√2)),

where nothing underflows and no large numbers cancel. A point is drawn by solving this for its depth d inside the
interval with Newton's method: the left side is concave, so all steps after the first approach from the same side.

**Two outputs.** With the first output fixed at s, the second one ranges over an interval ``[l(s), u(s)]``, the largest
lower and the smallest upper of the rows there. So the mass is

    Z = ∫ N(s; μ₁, σ₁) (Φ((u(s) - μ₂)/σ₂) - Φ((l(s) - μ₂)/σ₂)) ds,

smooth between kinks (where two rows meet) and steps. All of the mass that counts lies around the mode m, the point of
the set nearest to the mean in standard deviations: by convexity the density falls at least as ``e^(-|z - m|²/2)``
from there, and as ``e^(-|m| d)`` with the depth d where the set lies far out. Gauss-Legendre between places around m,
in steps that grow from 1/|m| to the width of the Gaussian, is accurate to many digits. A sample comes from the two
conditionals, each by inverting its distribution.

All of it is computed in float64, whatever the type of the outputs.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from caffnet import tolerance
from caffnet.constraints import AffineSet
from caffnet.control.interior import inequalities
from caffnet.errors import ConstraintError
from caffnet.projection import project

NODES, HALVINGS, NEWTON = 16, 60, 6
#: The logarithm used for zero mass: finite, as infinity has no gradient, and smaller than that of any mass.
NOTHING = -1e30
#: Cut-off of a Gaussian in standard deviations from the mode: the mass beyond is below the precision of float64.
TAIL = 38.0
#: Places on either side of the mode.
STEPS = 8
#: An end this many standard deviations beyond the nearer one, or beyond the mean, is ignored.
BEYOND = 100.0
ROOT = math.sqrt(0.5)


def log_mass(low: Tensor, high: Tensor) -> Tensor:
    """``log(Φ(high) - Φ(low))`` for ``low <= high``, differentiable."""
    a, b, _ = _left(low, high)
    tail, width = b < -1, (b - a).clamp(0, BEYOND)
    beta = torch.where(tail, -b, 1.0)
    from_end = _fall(beta, torch.where(tail, width, 1.0))
    # Far out the gradient of log_ndtr loses its digits, and is infinite in the end; that of erfcx does not.
    near = torch.special.log_ndtr(torch.where(tail, -1.0, b))
    from_mean = torch.special.log_ndtr(a.clamp_min(-BEYOND)) - near
    below = torch.where(tail, (torch.special.erfcx(ROOT * beta) / 2).log() - beta.square() / 2, near)
    flat = _is_flat(beta, width)
    gap = torch.where(flat, -1.0, torch.where(tail, from_end, from_mean))
    middle = torch.where(flat, (a + b) / 2, 0.0)
    density = -0.5 * middle.square() - 0.5 * math.log(2 * math.pi)
    narrow = density + torch.where(flat & (width > 0), width, 1.0).log()
    wide = below + torch.log(-torch.expm1(gap))
    return torch.where(flat, torch.where(width > 0, narrow, NOTHING), wide)


def in_deviations(end: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """``(end - loc) / scale``; an end at infinity stays there, and has no gradient."""
    known = end.isfinite()
    return torch.where(known, (torch.where(known, end, 0.0) - loc) / scale, end)


def truncated_sample(uniform: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Draw points of a Gaussian within an interval from uniform numbers, by the inverse distribution; float64.

    Near the mean by Φ and its inverse; in the tail by the depth from the nearer end; uniformly in an interval so narrow
    that the density is constant.
    """
    a, b, flipped = _left((low - loc) / scale, (high - loc) / scale)
    share = uniform.clamp_min(torch.finfo(uniform.dtype).eps / 2)  # the mass between the point and the nearer end b
    tail, width = b < -1, (high - low) / scale
    beta = torch.where(tail, -b, 1.0)
    wanted = torch.log1p(share * torch.expm1(_fall(beta, width)))
    slope = _slope(beta, torch.zeros_like(beta))
    depth = 2 * -wanted / (slope + (slope.square() - 2 * wanted).sqrt())  # of e^(-slope d - d²/2)
    for _ in range(NEWTON):
        depth = (depth + (_fall(beta, depth) - wanted) / _slope(beta, depth)).clamp_min(0)
    first, last = torch.special.ndtr(a), torch.special.ndtr(b)
    z = torch.special.ndtri(last - share * (last - first))
    flat = _is_flat(beta, width)
    depth = torch.where(flat, share * width, depth)
    inside = torch.where(flipped, low + scale * depth, high - scale * depth)
    beside = loc + scale * torch.where(flipped, -z, z)
    return torch.minimum(torch.maximum(torch.where(tail | flat, inside, beside), low), high)


def _left(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the interval or its mirror image, so that the upper end is the nearer one, and a mask of mirrored ones."""
    flipped = low + high > 0
    return torch.where(flipped, -high, low), torch.where(flipped, -low, high), flipped


def _fall(beta: Tensor, depth: Tensor) -> Tensor:
    """``log Φ(-β - d) - log Φ(-β)`` for β and d >= 0."""
    ratio = torch.special.erfcx(ROOT * (beta + depth)) / torch.special.erfcx(ROOT * beta)
    return ratio.log() - depth * (beta + depth / 2)


def _slope(beta: Tensor, depth: Tensor) -> Tensor:
    """The negative slope of `_fall`: ``φ / Φ`` at -β - d."""
    return math.sqrt(2 / math.pi) / torch.special.erfcx(ROOT * (beta + depth))


def _is_flat(beta: Tensor, width: Tensor) -> Tensor:
    """Return True where the density is constant over an interval, to the precision of its mass."""
    return width * beta.clamp_min(1) < tolerance.even(width.dtype)


def _rows(set: AffineSet) -> tuple[Tensor, Tensor]:
    """Return the inequalities ``a u <= b`` in float64, and one that always holds, as there may be no other."""
    A, b, _ = inequalities(set.to(torch.float64))
    return F.pad(A, (0, 0, 0, 1)), F.pad(b, (0, 1), value=math.inf)


def interval_of(set: AffineSet) -> tuple[Tensor, Tensor]:
    """The ends of a set of one output, ``(...)`` each, float64."""
    A, b = _rows(set)
    a = A[..., 0]
    ends = b / torch.where(a == 0, 1.0, a)
    high = torch.where(a > 0, ends, math.inf).amin(-1)
    low = torch.where(a < 0, ends, -math.inf).amax(-1)
    if not (low < high).all() or not (b[(a == 0).expand_as(b)] >= 0).all():
        raise ConstraintError("The set has no interior, so a distribution cannot spread over it: relax its rows.")
    return low, high


class Polygon:
    """A Gaussian of two outputs within a set.

    Args:
        set: inequalities in the plane.
        loc: ``(..., 2)``.
        scale: ``(..., 2)``.
    """

    def __init__(self, set: AffineSet, loc: Tensor, scale: Tensor):
        wide = set.to(torch.float64)
        A, b = _rows(wide)
        batch = torch.broadcast_shapes(loc.shape[:-1], b.shape[:-1], A.shape[:-2])
        self.loc, self.scale = loc.double().expand(*batch, 2), scale.double().expand(*batch, 2)
        self.A, self.b = A.expand(*batch, *A.shape[-2:]), b.expand(*batch, b.shape[-1])
        node, weight = np.polynomial.legendre.leggauss(NODES)
        self.node = torch.as_tensor((1 + node) / 2, dtype=torch.float64, device=loc.device)
        self.weight = torch.as_tensor(weight / 2, dtype=torch.float64, device=loc.device)
        with torch.no_grad():
            self.places = self._places(scaled_mode(wide, self.loc, self.scale))  # (..., p)

    def log_mass(self) -> Tensor:
        """``log Z``, ``(...)``."""
        return _known(self._log_mass_between(self.places[..., :-1], self.places[..., 1:]).logsumexp(-1))

    def sample(self, uniform: Tensor) -> Tensor:
        """Points of the polygon, ``(..., 2)``, from uniform numbers ``(..., 2)``."""
        left, right = self.places[..., :-1], self.places[..., 1:]
        pieces = self._log_mass_between(left, right)
        _known(pieces.logsumexp(-1))
        total = pieces.softmax(-1).cumsum(-1)
        wanted = uniform[..., :1] * total[..., -1:]
        piece = torch.searchsorted(total.expand(*wanted.shape[:-1], total.shape[-1]).contiguous(), wanted)
        piece = piece.clamp_max(total.shape[-1] - 1)

        def pick(values: Tensor) -> Tensor:
            return values.expand(*wanted.shape[:-1], values.shape[-1]).gather(-1, piece)

        start, low, high = pick(left), pick(left), pick(right)
        before = torch.where(piece > 0, pick(total.roll(1, -1)), 0.0)
        part = (wanted - before) / (pick(total) - before)
        whole = self._log_mass_between(start, high)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            short = (self._log_mass_between(start, middle) - whole).exp() < part
            low, high = torch.where(short, middle, low), torch.where(short, high, middle)
        first = (low + high) / 2
        bottom, top = self._between(first)
        top = torch.maximum(top, bottom)  # in a corner they may cross by rounding
        second = truncated_sample(uniform[..., 1:], self.loc[..., 1:], self.scale[..., 1:], bottom, top)
        return torch.cat([first, second], -1)

    def _between(self, first: Tensor) -> tuple[Tensor, Tensor]:
        """The range of the second output at first outputs ``(..., s)``, of the same shape."""
        slope, b = self.A[..., 1].unsqueeze(-2), self.b.unsqueeze(-2)
        room = b - self.A[..., 0].unsqueeze(-2) * first.unsqueeze(-1)  # (..., s, m)
        height = room / torch.where(slope == 0, 1.0, slope)
        bottom = torch.where(slope < 0, height, -math.inf).amax(-1)
        top = torch.where(slope > 0, height, math.inf).amin(-1)
        closed = ((slope == 0) & (room < 0)).any(-1)
        return bottom, torch.where(closed, bottom, top)

    def _log_mass_between(self, left: Tensor, right: Tensor) -> Tensor:
        """``log ∫_left^right``, ``(..., s)``, by one Gauss-Legendre rule each."""
        first = (left.unsqueeze(-1) + (right - left).unsqueeze(-1) * self.node).flatten(-2)
        bottom, top = self._between(first)
        mean, width = self.loc[..., 1:], self.scale[..., 1:]
        z = (first - self.loc[..., :1]) / self.scale[..., :1]
        there = bottom < top
        low, high = torch.where(there, bottom, mean - width), torch.where(there, top, mean + width)
        inner = torch.where(there, log_mass(in_deviations(low, mean, width), in_deviations(high, mean, width)), NOTHING)
        density = -0.5 * z.square() - self.scale[..., :1].log() - 0.5 * math.log(2 * math.pi)
        terms = (density + inner).unflatten(-1, (left.shape[-1], NODES)) + self.weight.log()
        return terms.logsumexp(-1) + (right - left).clamp_min(0).log()

    def _places(self, mode: Tensor) -> Tensor:
        """First outputs between which the integrand is smooth, sorted, ``(..., p)``; the mode in deviations."""
        A, b = self.A, self.b
        finest = 0.5 / (1 + mode.norm(dim=-1, keepdim=True))
        power = torch.linspace(0, 1, STEPS, dtype=b.dtype, device=b.device)
        away = finest * (TAIL / finest) ** power
        steps = torch.cat([-away, torch.zeros_like(finest), away], -1).unsqueeze(-2) + mode.unsqueeze(-1)  # (..., 2, s)
        around = self.loc.unsqueeze(-1) + self.scale.unsqueeze(-1) * steps
        own, level = around[..., 0, :], around[..., 1, :]
        i, j = torch.triu_indices(b.shape[-1], b.shape[-1], 1, device=b.device)
        cross = A[..., i, 0] * A[..., j, 1] - A[..., i, 1] * A[..., j, 0]
        corner = (b[..., i] * A[..., j, 1] - b[..., j] * A[..., i, 1]) / cross
        crossing = (b.unsqueeze(-1) - A[..., 1:] * level.unsqueeze(-2)) / A[..., :1]  # a row meets such a height there
        upright = b / torch.where(A[..., 1] == 0, A[..., 0], 0.0)
        found = torch.cat([corner, crossing.flatten(-2), own, upright], -1)
        low, high = own.amin(-1, keepdim=True), own.amax(-1, keepdim=True)
        return torch.minimum(torch.maximum(torch.where(found.isfinite(), found, low), low), high).sort(-1).values


def scaled_mode(set: AffineSet, loc: Tensor, scale: Tensor) -> Tensor:
    """Return the point of largest density, measured from the mean in standard deviations, ``(..., n)``.

    It is the nearest point of the set in these units; of an empty set, the point of least violation.
    """
    A, mean = set.A * scale.unsqueeze(-2), (set.A @ loc.unsqueeze(-1)).squeeze(-1)
    seen = AffineSet.from_parts(A, set.lower - mean, set.upper - mean, set.labels, set.row_kinds)
    batch = torch.broadcast_shapes(seen.batch_shape, loc.shape[:-1])
    return project(loc.new_zeros(*batch, set.n), seen, on_infeasible="nearest").value


def _known(mass: Tensor) -> Tensor:
    """Refuse a mass that underflows to zero."""
    if not (mass > NOTHING / 2).all():
        raise ConstraintError(
            "The mass of the Gaussian inside the set underflows: the set has no interior, or lies more than 1e15 "
            "standard deviations away. Relax its rows, or bring the mean nearer."
        )
    return mass
