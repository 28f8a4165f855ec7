"""What every search returns: one sub-constraint per sample, and nothing about gradients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Choice(NamedTuple):
    """The chosen sub-constraint γ of every sample, in ``k`` slots.

    Attributes:
        rows: the row in each slot, ``(B, k)``; unused slots hold 0.
        sides: ``+1`` upper bound, ``-1`` lower bound, ``0`` unused slot; ``(B, k)``, int8.
        pinv: ``A_γ⁺`` of the scaled rows, ``(B, n, k)``, zero in unused slots.
        found: whether a feasible candidate was seen, ``(B,)``.
    """

    rows: Tensor
    sides: Tensor
    pinv: Tensor
    found: Tensor

    def take(self, samples: Tensor) -> Choice:
        """Only these samples."""
        return Choice(*(t[samples] for t in self))

    def put(self, samples: Tensor, other: Choice) -> Choice:
        """This choice with the given samples replaced; the slots grow as needed."""
        k = max(self.rows.shape[-1], other.rows.shape[-1])
        pairs = zip(self.widen(k), other.widen(k), strict=True)
        return Choice(
            *(a.to(kind := torch.promote_types(a.dtype, b.dtype)).index_copy(0, samples, b.to(kind)) for a, b in pairs)
        )

    def widen(self, k: int) -> Choice:
        """The same choice in `k` slots."""
        extra = k - self.rows.shape[-1]
        if extra == 0:
            return self
        grown = [torch.nn.functional.pad(t, (0, extra)) for t in self[:3]]
        return Choice(grown[0], grown[1], grown[2], self.found)

    def held(self, m: int) -> Tensor:
        """The side of each of the `m` rows: +1, -1, or 0 for a row that is not in γ; ``(B, m)``, int8."""
        marks = torch.zeros(self.rows.shape[0], m, dtype=torch.int8, device=self.rows.device)
        return marks.scatter_add(-1, self.rows, self.sides) if self.rows.shape[-1] else marks

    @classmethod
    def nothing(cls, samples: int, n: int, like: Tensor) -> Choice:
        """No rows for any sample."""
        rows = torch.zeros(samples, 0, dtype=torch.long, device=like.device)
        found = torch.zeros(samples, dtype=torch.bool, device=like.device)
        return cls(rows, rows.to(torch.int8), like.new_zeros(samples, n, 0), found)


def distance(difference: Tensor, norm: float) -> Tensor:
    """The p-norm over the last axis, safe from overflow."""
    if difference.shape[-1] == 0:
        return difference.new_zeros(difference.shape[:-1])
    size = difference.abs()
    top = size.amax(-1)
    if norm == float("inf"):
        return top
    if norm == 1:
        return size.sum(-1)
    unit = torch.where(top > 0, top, 1.0)
    ratio = size / unit.unsqueeze(-1)
    total = (ratio * ratio).sum(-1).sqrt() if norm == 2 else ratio.pow(norm).sum(-1).pow(1 / norm)
    return unit * torch.where(top > 0, total, 0.0)
