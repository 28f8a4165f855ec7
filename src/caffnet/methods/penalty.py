"""The soft term that the papers add to the loss, in all forms that they use."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from caffnet.constraints import EQUAL, AffineSet
from caffnet.errors import ConstraintError

ROWS = ("sum", "mean", "max", "norm")
BATCH = ("mean", "sum", "none")


@dataclasses.dataclass(frozen=True)
class Penalty:
    r"""Cost of a violation: $weight \cdot \sum_i r_i^{power}$ with $r = \max(A y - upper,\; lower - A y,\; 0)$.

    An equality is one row, whose violation is $|c_i y - d_i|$: the same cost as its two inequalities together.

    Args:
        weight: the factor; 100 in the CAffNet paper, 10 in HardNet's code.
        power: 1 for the paper's text, 2 for its code and HardNet's.
        rows: reduction over the rows of a sample: ``"sum"``, ``"mean"``, ``"max"``, or ``"norm"``, the Euclidean norm
            (DC3, with ``power=1``).
        batch: reduction over the samples: ``"mean"``, ``"sum"``, or ``"none"``.
        balance: None to treat all rows alike, else the share ``e`` of the equalities in
            ``(1 - e) inequalities + e equalities`` (DC3: 0.5).

    >>> limits = AffineSet.inequality([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
    >>> Penalty()(limits, torch.tensor([[3.0, 4.0]])), Penalty(1.0, rows="norm")(limits, torch.tensor([[3.0, 4.0]]))
    (tensor(700.), tensor(5.))
    """

    weight: float = 100.0
    power: float = 1
    rows: str = "sum"
    batch: str = "mean"
    balance: float | None = None

    def __post_init__(self):
        for name, value, known in (("rows", self.rows, ROWS), ("batch", self.batch, BATCH)):
            if value not in known:
                raise ConstraintError(f"{name} must be one of {', '.join(known)}, got {value!r}.")
        if not self.power >= 1:
            raise ConstraintError(f"power must be at least 1, got {self.power!r}.")
        if self.balance is not None and not 0 <= self.balance <= 1:
            raise ConstraintError(f"balance must be in [0, 1], got {self.balance!r}.")

    def __call__(self, set: AffineSet, y: Tensor) -> Tensor:
        """The penalty of the outputs y ``(..., n)``: a scalar, or ``(...)`` with ``batch="none"``."""
        broken = set.violation(y)  # (..., m)
        if self.balance is None:
            cost = self._over_rows(broken)
        else:
            equal = torch.tensor([side == EQUAL for side in set.row_kinds], device=broken.device)
            cost = self.balance * self._over_rows(broken[..., equal])
            cost = cost + (1 - self.balance) * self._over_rows(broken[..., ~equal])
        cost = self.weight * cost
        return {"mean": cost.mean, "sum": cost.sum, "none": lambda: cost}[self.batch]()

    def _over_rows(self, broken: Tensor) -> Tensor:
        if not broken.shape[-1]:
            return broken.sum(-1)
        if self.rows == "norm":
            return torch.linalg.vector_norm(broken, dim=-1) ** self.power
        cost = broken**self.power
        return {"sum": cost.sum, "mean": cost.mean, "max": cost.amax}[self.rows](-1)
