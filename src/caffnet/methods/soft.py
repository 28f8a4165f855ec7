"""Soft constraints: a penalty in the loss and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from caffnet.constraints import AffineSet
from caffnet.methods.base import Guarantee, Method
from caffnet.methods.penalty import Penalty


class Soft(Method):
    r"""The raw output, trained with $objective + 100\, ReLU(A y - b)$.

    Args:
        backbone: any module ``x -> f``.
        constraint: an `AffineSet`, or any function ``x -> AffineSet``.
        penalty: the form of the penalty; the paper's text writes ``Penalty(100)``, its code ``Penalty(100, power=2,
            batch="sum")``.

    >>> import torch
    >>> limits = AffineSet.box(0.0, 1.0, dim=2)
    >>> method = Soft(nn.Identity(), limits)
    >>> output = method.run(torch.tensor([[3.0, 0.5]]))
    >>> output.y, method.loss(torch.tensor(1.0), output)
    (tensor([[3.0000, 0.5000]]), tensor(201.))
    """

    name = "soft"
    title = "Soft-constrained"
    guarantee = Guarantee.NONE
    closed_form = True

    def __init__(
        self,
        backbone: nn.Module,
        constraint: AffineSet | Callable[[Any], AffineSet],
        *,
        penalty: Penalty | None = Penalty(100.0),  # noqa: B008  (immutable)
    ):
        super().__init__(backbone, constraint, penalty=penalty)

    def forward(self, x: Any, nominal: Tensor | None = None) -> Tensor:
        """Return the raw output. Only the loss needs the set, so one that depends on x is not built here."""
        f = self.raw(x, nominal)
        if self.constraint is None:
            self._check_outputs(f, self.set_at())
        return f

    def enforce(self, f: Tensor, set: AffineSet) -> Tensor:
        """The raw output."""
        return f
