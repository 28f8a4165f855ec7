"""The rows as the searches see them: scaled, one sample per line, with the test that accepts a point.

Row ``i`` is multiplied by a power of two so that ``1 <= |a_i|_1 < 2``. That is exact, so the set does not change,
and afterwards one number tells how large an error in ``a_i y - b_i`` rounding can explain:

    ``|y|_inf + |f|_inf + |b_i|``  times  ``tolerance.feasibility``.

Shapes here: ``B`` samples, ``m`` rows, ``n`` outputs; ``A`` is ``(m, n)`` when the batch shares it, else ``(B, m, n)``.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet.constraints import has_numbers


@dataclasses.dataclass(frozen=True)
class Rows:
    """Scaled rows ``lower <= A y <= upper``.

    Attributes:
        A: ``(m, n)`` or ``(B, m, n)``.
        lower: ``(B, m)``.
        upper: ``(B, m)``.
        exponent: row ``i`` is the user's row times ``2 ** exponent[i]``; ``(m,)`` or ``(B, m)``.
        dtype: the user's number type, which sets every tolerance (the arithmetic may be finer).
    """

    A: Tensor
    lower: Tensor
    upper: Tensor
    exponent: Tensor
    dtype: torch.dtype

    @property
    def m(self) -> int:
        """The number of rows."""
        return self.A.shape[-2]

    @property
    def n(self) -> int:
        """The number of outputs."""
        return self.A.shape[-1]

    @property
    def shared(self) -> bool:
        """Whether all samples have the same `A`."""
        return self.A.ndim == 2

    def excess(self, y: Tensor) -> Tensor:
        """How far each row is exceeded (negative: room left), ``(B, m)``."""
        value = apply(self.A, y)
        return torch.maximum(value - self.upper, self.lower - value)

    def allowance(self, y: Tensor, start: Tensor) -> Tensor:
        """The excess that rounding can explain at `y`, when `y` was computed from `start`; ``(B, m)``."""
        share = tolerance.feasibility(self.dtype, self.n)  # multiplied first: a sum of huge numbers would overflow
        bound = torch.maximum(magnitude(self.lower), magnitude(self.upper))
        return share * largest(y) + share * largest(start) + share * bound + tolerance.underflow(self.dtype)

    def accepts(self, y: Tensor, start: Tensor) -> Tensor:
        """Whether `y` satisfies every row up to rounding, ``(B,)``."""
        return (self.excess(y) <= self.allowance(y, start)).all(-1)

    def take(self, samples: Tensor) -> Rows:
        """Only these samples."""
        pick = {} if self.shared else {"A": self.A[samples], "exponent": self.exponent[samples]}
        return dataclasses.replace(self, lower=self.lower[samples], upper=self.upper[samples], **pick)

    def moved(self, lower: Tensor, upper: Tensor) -> Rows:
        """The same rows with other (scaled) bounds."""
        return dataclasses.replace(self, lower=lower, upper=upper)

    def to(self, dtype: torch.dtype) -> Rows:
        """The same numbers in another arithmetic; the tolerances stay those of the user's type."""
        A, lower, upper = (t.to(dtype) for t in (self.A, self.lower, self.upper))
        return dataclasses.replace(self, A=A, lower=lower, upper=upper)


def scale_rows(A: Tensor, lower: Tensor, upper: Tensor) -> Rows:
    """Scale every row to unit size by a power of two."""
    exponent = unit_exponent(A)
    return Rows(
        times_power(A, exponent.unsqueeze(-1)),
        times_power(lower, exponent),
        times_power(upper, exponent),
        exponent,
        A.dtype,
    )


def unit_exponent(A: Tensor) -> Tensor:
    """The power of two that brings each row to ``1 <= |a|_1 < 2``; 0 for a zero row.

    (Where the sum overflows, the largest number stands for it; the row then ends below ``2 n``, which serves as well.)
    """
    size = A.abs().sum(-1).clamp(max=torch.finfo(A.dtype).max)
    positive = size > 0
    return -torch.where(positive, torch.where(positive, size, 1.0).log2().floor(), 0.0)


def times_power(t: Tensor, exponent: Tensor) -> Tensor:
    """``t * 2 ** exponent``, exact. In two steps where ``2 ** exponent`` alone overflows, as ``2 ** 1030`` does."""
    normal = -math.log2(torch.finfo(t.dtype).tiny)
    if not torch.compiler.is_compiling() and has_numbers(exponent) and not (exponent.abs() > normal).any():
        return t * exponent.exp2()
    half = (exponent / 2).floor()
    return t * half.exp2() * (exponent - half).exp2()


def apply(A: Tensor, y: Tensor) -> Tensor:
    """``A y`` for every sample: A ``(m, n)`` or ``(B, m, n)``, y ``(B, n)``, result ``(B, m)``."""
    return y @ A.mT if A.ndim == 2 else (A @ y.unsqueeze(-1)).squeeze(-1)


def product(matrix: Tensor, vector: Tensor) -> Tensor:
    """``matrix @ vector`` per sample, summed by hand: the bits of one sample never depend on the rest of the batch.

    (A matrix product picks another kernel, with another order of summation, for a batch of one.)
    """
    return dot(matrix, vector.unsqueeze(-2))


_UNROLL = 8  # up to here a sum of so many products is faster than a product and a reduction over a short axis


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product over the last axis, with broadcasting."""
    n = a.shape[-1]
    if not 0 < n <= _UNROLL:
        return (a * b).contiguous().sum(-1)  # a reduction over another memory layout adds in another order
    total = a[..., 0] * b[..., 0]
    for j in range(1, n):
        total = total + a[..., j] * b[..., j]
    return total


def pick_rows(A: Tensor, index: Tensor) -> Tensor:
    """The rows in each sample's slots: A ``(m, n)`` or ``(B, m, n)``, index ``(B, k)``, result ``(B, k, n)``."""
    return A[index] if A.ndim == 2 else A.gather(-2, index.unsqueeze(-1).expand(*index.shape, A.shape[-1]))


def largest(y: Tensor) -> Tensor:
    """``|y|_inf`` with its axis kept."""
    return y.abs().amax(-1, keepdim=True) if y.shape[-1] else y.new_zeros(*y.shape[:-1], 1)


def magnitude(bound: Tensor) -> Tensor:
    """The size of a bound, 0 where there is none."""
    return torch.where(bound.abs() < math.inf, bound.abs(), 0.0)
