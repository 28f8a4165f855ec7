r"""The mass of a Gaussian inside an interval or a polygon, and points drawn from it.

In the plane, with the first output fixed at s, the second one ranges over an interval ``[l(s), u(s)]``, the largest
lower and the smallest upper of the rows there. So the mass is

    Z = ∫ N(s; μ₁, σ₁) (Φ((u(s) - μ₂)/σ₂) - Φ((l(s) - μ₂)/σ₂)) ds,

smooth between kinks (where two rows meet) and steps (where a row crosses ``μ₂ ± j σ₂``). Gauss-Legendre between all of
these places is accurate to many digits. A sample comes from the two conditionals, each by inverting its distribution.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from caffnet.constraints import AffineSet
from caffnet.control.interior import inequalities
from caffnet.errors import ConstraintError

NODES, HALVINGS = 16, 60
#: The logarithm of no mass: a number, as infinity has no gradient; smaller than that of any mass.
NOTHING = -1e5
#: Where the Gaussian is cut off: beyond, its mass is less than a float64 can tell from zero.
TAIL = 38.0
#: A Gaussian is cut at these multiples of its width, so that no piece holds more than a smooth part of it.
STEPS = (-TAIL, -24.0, -16.0, -12.0, -8.0, -6.0, -4.0, -2.0, 0.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, TAIL)


def log_mass(low: Tensor, high: Tensor) -> Tensor:
    """``log(Φ(high) - Φ(low))`` for ``low <= high``, in the tail where the difference does not cancel."""
    flipped = low + high > 0
    a, b = torch.where(flipped, -high, low), torch.where(flipped, -low, high)
    upper, lower = torch.special.log_ndtr(b), torch.special.log_ndtr(a)
    gap = (lower - upper).clamp_max(-torch.finfo(low.dtype).tiny)
    return upper + torch.log(-torch.expm1(gap))


def truncated_sample(uniform: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Points of a Gaussian within an interval, from uniform numbers, by its inverse distribution."""
    a, b = (low - loc) / scale, (high - loc) / scale
    flipped = a + b > 0
    a, b = torch.where(flipped, -b, a), torch.where(flipped, -a, b)
    first, last = torch.special.ndtr(a), torch.special.ndtr(b)
    z = torch.special.ndtri(first + uniform * (last - first)).clamp(a, b)
    return torch.minimum(torch.maximum(loc + scale * torch.where(flipped, -z, z), low), high)


def interval_of(set: AffineSet) -> tuple[Tensor, Tensor]:
    """The ends of a set of one output, ``(...)`` each."""
    A, b, _ = inequalities(set)
    a = A[..., 0]
    ends = b / torch.where(a == 0, 1.0, a)
    high = torch.where(a > 0, ends, math.inf).amin(-1)
    low = torch.where(a < 0, ends, -math.inf).amax(-1)
    if not (low < high).all() or not (b[(a == 0).expand_as(b)] >= 0).all():
        raise ConstraintError("The set has no interior, so nothing can be spread over it: relax its rows.")
    return low, high


class Polygon:
    """A Gaussian of two outputs within a set.

    Args:
        set: inequalities in the plane.
        loc: ``(..., 2)``.
        scale: ``(..., 2)``.
    """

    def __init__(self, set: AffineSet, loc: Tensor, scale: Tensor):
        A, b, _ = inequalities(set)
        batch = torch.broadcast_shapes(loc.shape[:-1], b.shape[:-1], A.shape[:-2])
        self.loc, self.scale = loc.expand(*batch, 2), scale.expand(*batch, 2)
        self.A, self.b = A.expand(*batch, *A.shape[-2:]), b.expand(*batch, b.shape[-1])
        node, weight = np.polynomial.legendre.leggauss(NODES)
        self.node = torch.as_tensor((1 + node) / 2, dtype=loc.dtype, device=loc.device)
        self.weight = torch.as_tensor(weight / 2, dtype=loc.dtype, device=loc.device)
        with torch.no_grad():
            self.places = self._places()  # (..., p)

    def log_mass(self) -> Tensor:
        """``log Z``, ``(...)``."""
        mass = self._log_mass_between(self.places[..., :-1], self.places[..., 1:]).logsumexp(-1)
        if not (mass > NOTHING / 2).all():
            raise ConstraintError(
                "The mass of the Gaussian inside the set underflows: the set has no interior, or lies about "
                f"{TAIL:g} standard deviations away."
            )
        return mass

    def sample(self, uniform: Tensor) -> Tensor:
        """Points of the polygon, ``(..., 2)``, from uniform numbers ``(..., 2)``."""
        left, right = self.places[..., :-1], self.places[..., 1:]
        total = self._log_mass_between(left, right).softmax(-1).cumsum(-1)
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
        inner = torch.where(there, log_mass((low - mean) / width, (high - mean) / width), NOTHING)
        density = -0.5 * z.square() - self.scale[..., :1].log() - 0.5 * math.log(2 * math.pi)
        terms = (density + inner).unflatten(-1, (left.shape[-1], NODES)) + self.weight.log()
        return terms.logsumexp(-1) + (right - left).clamp_min(0).log()

    def _places(self) -> Tensor:
        """First outputs between which the integrand is smooth, sorted, ``(..., p)``."""
        A, b = self.A, self.b
        steps = torch.tensor(STEPS, dtype=b.dtype, device=b.device)
        i, j = torch.triu_indices(b.shape[-1], b.shape[-1], 1, device=b.device)
        cross = A[..., i, 0] * A[..., j, 1] - A[..., i, 1] * A[..., j, 0]
        corner = (b[..., i] * A[..., j, 1] - b[..., j] * A[..., i, 1]) / cross
        level = self.loc[..., 1:] + self.scale[..., 1:] * steps  # a row crosses such a height there
        crossing = (b.unsqueeze(-1) - A[..., 1:] * level.unsqueeze(-2)) / A[..., :1]
        own = self.loc[..., :1] + self.scale[..., :1] * steps
        upright = b / torch.where(A[..., 1] == 0, A[..., 0], 0.0)
        found = torch.cat([corner, crossing.flatten(-2), own, upright], -1)
        low, high = own[..., :1], own[..., -1:]
        return torch.minimum(torch.maximum(torch.where(found.isfinite(), found, low), low), high).sort(-1).values
