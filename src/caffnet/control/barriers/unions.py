"""Smooth unions of half-spaces, several at once, with their derivatives written out.

Being outside a polytope means being beyond *one* of its sides: ``max_i s_i >= 0``, with ``s_i = a_i x - b_i``. With

    h = (ln Σ_i exp(κ s_i) - ln m) / κ          one has    max_i s_i - ln(m)/κ  <=  h  <=  max_i s_i,

so ``h >= 0`` is sufficient, and  ``∇h = Σ_i λ_i a_i`` with ``λ = softmax(κ s_i)``: weights that sum to one. (Weights
``exp(κ (s_i - h))`` with the buffered h would sum to m and overstate the gradient m times.) Along v the weights change
by ``κ λ_i (ṡ_i - Σ_j λ_j ṡ_j)`` with ``ṡ_i = a_i v``. A single side is the union of itself: ``h = s``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from caffnet._solve.tracing import is_compiling, is_concrete
from caffnet.control.fused import fused
from caffnet.errors import ConstraintError

#: Sides, filled up, below which several barriers are evaluated as one: calls take longer than arithmetic.
FEW = 128


class Sides(NamedTuple):
    """The sides of several functions over the whole state.

    Attributes:
        A: ``(k, sides, n_x)``; zero where a function has fewer sides.
        b: ``(k, sides)``; infinite where a function has fewer sides.
        sharpness: the κ; None where every function has one side, for which any will do.
    """

    A: Tensor
    b: Tensor
    sharpness: float | None


def join(parts: Sequence[Sides | None]) -> Sides | None:
    """All functions of the parts, one after the other, if they are few and of one sharpness; else None."""
    known = [part for part in parts if part is not None]
    kinds = {part.sharpness for part in known} - {None}
    if len(known) < len(parts) or len(kinds) != 1:
        return None
    most = max(part.b.shape[1] for part in known)
    if most * sum(len(part.b) for part in known) > FEW:
        return None
    padded = [torch.nn.functional.pad(part.A, (0, 0, 0, most - part.A.shape[1])) for part in known]
    bounds = [torch.nn.functional.pad(part.b, (0, most - part.b.shape[1]), value=math.inf) for part in known]
    return Sides(torch.cat(padded), torch.cat(bounds), kinds.pop())


class Unions:
    """The smooth unions of sides, evaluated together.

    Args:
        sides: of states of a size; None if there is no such.
    """

    def __init__(self, sides: Callable[[int], Sides | None]):
        self._sides = sides
        self._last: tuple[Any, Constants | None] | None = None

    def at(self, x: Tensor) -> Constants | None:
        """The constants for such states, remembered for the last size, number type and device."""
        if not x.is_floating_point():
            raise ConstraintError(f"x must be of a floating type, got {x.dtype}: write x.double().")
        key, last = (x.shape[-1], x.dtype, x.device), self._last
        if last is not None and last[0] == key and not is_compiling():
            return last[1]
        sides = self._sides(x.shape[-1])
        made = None if sides is None else Constants(sides, x)
        # What a graph is made of must not leave it, nor what inference mode has made.
        if not is_compiling() and (made is None or (is_concrete(made.sides) and not made.sides.is_inference())):
            self._last = (key, made)
        return made


class Constants:
    """Smooth unions for states of one size, number type and device.

    The functions are the last axis and the sides the one before: sums over sides are then sums of rows, which is
    several times faster for a batch than sums within short rows.
    """

    def __init__(self, given: Sides, x: Tensor):
        assert given.sharpness is not None
        A, b, self.sharpness = given.A.transpose(0, 1), given.b.mT, given.sharpness
        self.shape = b.shape
        self.flat = A.flatten(0, 1).to(x)
        # κ (A x - b) at once: positive beyond a side, -inf where there is no side.
        self.rows, self.shifts = (self.sharpness * A.flatten(0, 1)).to(x), (-self.sharpness * b.flatten()).to(x)
        self.buffer = (-b.isfinite().sum(0).to(b).log() / self.sharpness).to(x)
        self.sides = A.movedim(-1, 0).contiguous().to(x)  # (n_x, sides, k)

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Values ``(..., k)`` and gradients ``(..., k, n_x)``."""
        return fused(self._evaluate, self._pull_back, x)  # pyright: ignore[reportReturnType]

    def blend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Values ``(..., k)`` and the weights of the sides ``(..., sides, k)``."""
        flat = torch.nn.functional.linear(x, self.rows, self.shifts)
        total, weight = log_sum_exp(flat.unflatten(-1, self.shape), -2)
        return torch.add(self.buffer, total, alpha=1 / self.sharpness), weight

    def mix(self, weight: Tensor) -> Tensor:
        """``Σ_i weight_i a_i``, ``(..., k, n_x)``."""
        return (weight.unsqueeze(-3) * self.sides).sum(-2).mT

    def rates(self, v: Tensor) -> Tensor:
        """How fast the sides are crossed, ``(..., sides, k)``, by one velocity for each function ``(..., k, n_x)``."""
        return (v.mT.unsqueeze(-2) * self.sides).sum(-3)

    def along(self, weight: Tensor, rate: Tensor) -> Tensor:
        """The change of the weights where the sides are crossed at this rate."""
        return weights_along(weight, rate, self.sharpness, -2)

    def _evaluate(self, x: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor]]:
        value, weight = self.blend(x)
        return (value, self.mix(weight)), (weight,)

    def _pull_back(self, kept: tuple[Tensor], by_value: Tensor, by_gradient: Tensor) -> tuple[Tensor]:
        """``Σ_j by_value_j ∇h_j + ∇²h_j by_gradient_j``: all sides, mixed."""
        (weight,) = kept
        share = torch.addcmul(self.along(weight, self.rates(by_gradient)), weight, by_value.unsqueeze(-2))
        return (share.flatten(-2) @ self.flat,)


def log_sum_exp(scaled: Tensor, axis: int = -1) -> tuple[Tensor, Tensor]:
    """``ln Σ_i exp(s_i)`` over an axis, and its weights, the softmax."""
    weight = torch.softmax(scaled, axis)
    return scaled.amax(axis) - weight.amax(axis).log(), weight  # of the largest, ln λ = s - ln Σ exp


def weights_along(weight: Tensor, rate: Tensor, sharpness: float, axis: int = -1) -> Tensor:
    """The change of ``softmax(κ s)`` where s changes at `rate`: ``κ λ (ṡ - Σ λ ṡ)``."""
    return sharpness * weight * (rate - (weight * rate).sum(axis, keepdim=True))


def weights_along_both(
    weight: Tensor, first: Tensor, second: Tensor, mixed: Tensor, sharpness: float, axis: int = -1
) -> Tensor:
    """The change of `weights_along` by the rate `first` along a second direction, where `first` changes by `mixed`."""
    moved = weights_along(weight, second, sharpness, axis)
    centred = first - (weight * first).sum(axis, keepdim=True)
    shift = mixed - (moved * first + weight * mixed).sum(axis, keepdim=True)
    return sharpness * (moved * centred + weight * shift)
