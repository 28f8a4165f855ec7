"""Several barriers as one smooth function: all of them, or any of them.

The intersection is ``h = -ln(Σ_i exp(-κ h_i)) / κ  <=  min_i h_i``, with ``∇h = Σ_i λ_i ∇h_i``,
``λ = softmax(-κ h_i)``. The union is that of `unions`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from caffnet.control.barriers.base import Barrier, Stack
from caffnet.control.barriers.shapes import check_sharpness
from caffnet.control.barriers.unions import log_sum_exp, weights_along, weights_along_both


class Intersection(Barrier):
    """Safe where *all* of the functions are >= 0, as one smooth function that never exceeds their minimum.

    Args:
        *parts: barriers; all their functions count.
        sharpness: the κ; the larger, the nearer to the minimum and the less smooth.

    >>> from caffnet.control import InsideBox
    >>> Intersection(InsideBox([-1.0], [1.0]), sharpness=50)(torch.tensor([0.0]))
    tensor([0.9861])
    """

    names = ("intersection",)

    def __init__(self, *parts: Barrier, sharpness: float = 10.0):
        self.parts = Stack(*parts)
        self.moving = self.parts.moving
        self._scale, self._buffer = -check_sharpness(sharpness), 0.0

    def __call__(self, x: Tensor) -> Tensor:
        """``(..., 1)``."""
        return self._blend(self.parts(x))[0]

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The blend, and the gradients of the parts with the softmax weights."""
        value, gradient = self.parts.evaluate(x)
        blend, weight = self._blend(value)
        return blend, weight.unsqueeze(-2) @ gradient

    def evaluate_along(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `evaluate`; the gradient changes with the parts' and with their weights."""
        value, gradient, change = self.parts.evaluate_along(x, v)
        blend, weight = self._blend(value)
        drift = weights_along(weight, _dot(gradient, v), self._scale).unsqueeze(-2)
        weight = weight.unsqueeze(-2)
        return blend, weight @ gradient, weight @ change + drift @ gradient

    def third(self, x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """The product rule once more."""
        value, gradient, by_v = self.parts.evaluate_along(x, v)
        _, _, by_w = self.parts.evaluate_along(x, w)
        scale, (_, weight) = self._scale, self._blend(value)
        first, second, mixed = _dot(gradient, v), _dot(gradient, w), _dot(by_w, v)
        both = weights_along_both(weight, first, second, mixed, scale)
        along_v, along_w = weights_along(weight, first, scale), weights_along(weight, second, scale)
        parts = ((weight, self.parts.third(x, v, w)), (along_w, by_v), (along_v, by_w), (both, gradient))
        return torch.stack([share.unsqueeze(-2) @ part for share, part in parts]).sum(0)

    def _blend(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """The smooth function ``(..., 1)`` and the weights of the parts ``(..., k)``."""
        total, weight = log_sum_exp(self._scale * value)
        return ((total - self._buffer) / self._scale).unsqueeze(-1), weight


class Union(Intersection):
    """Safe where *any* of the parts is, as one smooth function that never exceeds their maximum.

    A part with several functions is safe where all of them are >= 0: its smooth intersection counts. So the union of
    two rooms, each a box with four walls, is one room or the other.

    Args:
        *parts: barriers.
        sharpness: the κ; the larger, the nearer to the maximum and the less smooth.

    >>> from caffnet.control import InsidePolytope
    >>> left_or_right = Union(InsidePolytope([[1.0]], [-1.0]), InsidePolytope([[-1.0]], [-1.0]))
    >>> left_or_right(torch.tensor([[-2.0], [0.0], [2.0]]))
    tensor([[ 0.9307],
            [-1.0000],
            [ 0.9307]])
    """

    names = ("union",)

    def __init__(self, *parts: Barrier, sharpness: float = 10.0):
        super().__init__(*(Intersection(part, sharpness=sharpness) for part in parts), sharpness=sharpness)
        self._scale, self._buffer = sharpness, math.log(len(parts))


def _dot(gradient: Tensor, v: Tensor) -> Tensor:
    """``∇h v``, ``(..., k)``."""
    return (gradient @ v.unsqueeze(-1)).squeeze(-1)
