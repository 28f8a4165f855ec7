"""Class-K functions: strictly increasing, ``α(0) = 0``. They bound how fast a barrier may be approached.

Each has formulas for its `slope` α' and `curve` α'', which barriers of higher order need (see `HighOrder`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from caffnet.errors import ConstraintError

ClassK: TypeAlias = Callable[[Tensor], Tensor]


@runtime_checkable
class WithSlope(Protocol):
    """A class-K function with formulas for its derivatives."""

    def __call__(self, h: Tensor, /) -> Tensor:
        """``α(h)``."""
        ...

    def slope(self, h: Tensor, /) -> Tensor:
        """``α'(h)``, of the shape of h."""
        ...

    def curve(self, h: Tensor, /) -> Tensor:
        """``α''(h)``, of the shape of h."""
        ...


def linear(slope: float = 1.0) -> WithSlope:
    """``α(h) = slope · h``."""
    _check_positive(slope=slope)
    return _Linear(float(slope))


def power(slope: float = 1.0, exponent: float = 3.0) -> WithSlope:
    """``α(h) = slope · sign(h) |h|^exponent``: gentle near the boundary, free far away from it."""
    _check_positive(slope=slope)
    if not 1 <= exponent < math.inf:
        raise ConstraintError(f"exponent must be at least 1, got {exponent!r}: below, α has no derivative at 0.")
    return _Power(float(slope), float(exponent)) if exponent > 1 else linear(slope)


def saturating(slope: float = 1.0, limit: float = 1.0) -> WithSlope:
    """``α(h) = limit · tanh(slope · h / limit)``: never asks to approach faster than `limit`."""
    _check_positive(slope=slope, limit=limit)
    return _Saturating(float(slope), float(limit))


def as_class_k(given: ClassK | None) -> WithSlope:
    """Return `linear(1.0)` for None; give a user's function its slope by automatic differentiation."""
    if given is None:
        return linear()
    if not callable(given):
        raise ConstraintError(f"class_k must be a function, such as linear({given!r}), got {given!r}.")
    return given if isinstance(given, WithSlope) else _Given(given)


@dataclasses.dataclass(frozen=True)
class _Linear:
    rate: float

    def __call__(self, h: Tensor) -> Tensor:
        return h if self.rate == 1 else self.rate * h

    def slope(self, h: Tensor) -> Tensor:
        return torch.full_like(h, self.rate)

    def curve(self, h: Tensor) -> Tensor:
        return torch.zeros_like(h)


@dataclasses.dataclass(frozen=True)
class _Power:
    rate: float
    exponent: float

    def __call__(self, h: Tensor) -> Tensor:
        return self.rate * h.sign() * self._size(h) ** self.exponent

    def slope(self, h: Tensor) -> Tensor:
        inside = (h != 0).to(h)
        return self.rate * self.exponent * inside * self._size(h) ** (self.exponent - 1)

    def curve(self, h: Tensor) -> Tensor:
        inside = torch.where(h == 0, 0.0, h.sign())
        return self.rate * self.exponent * (self.exponent - 1) * inside * self._size(h) ** (self.exponent - 2)

    @staticmethod
    def _size(h: Tensor) -> Tensor:
        # At 0, α' = 0; α'' may be infinite, but α is odd: 0 lies between its two sides, where autograd would give NaN.
        return torch.where(h == 0, 1.0, h).abs()


@dataclasses.dataclass(frozen=True)
class _Saturating:
    rate: float
    limit: float

    def __call__(self, h: Tensor) -> Tensor:
        return self.limit * torch.tanh(h * (self.rate / self.limit))

    def slope(self, h: Tensor) -> Tensor:
        return self.rate * (1 - torch.tanh(h * (self.rate / self.limit)).square())

    def curve(self, h: Tensor) -> Tensor:
        bent = torch.tanh(h * (self.rate / self.limit))
        return -2 * self.rate**2 / self.limit * bent * (1 - bent.square())


@dataclasses.dataclass(frozen=True)
class _Given:
    """A user's function, applied elementwise."""

    function: ClassK

    def __call__(self, h: Tensor) -> Tensor:
        return self.function(h)

    def slope(self, h: Tensor) -> Tensor:
        return torch.func.jvp(self.function, (h,), (torch.ones_like(h),))[1]

    def curve(self, h: Tensor) -> Tensor:
        return torch.func.jvp(self.slope, (h,), (torch.ones_like(h),))[1]


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ConstraintError(f"{name} must be positive and finite for a class-K function, got {value!r}.")
