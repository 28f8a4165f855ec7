"""Projection after training: a soft-constrained network that is projected in evaluation only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from caffnet.constraints import AffineSet
from caffnet.methods.base import Output
from caffnet.methods.orthogonal import Orthogonal
from caffnet.methods.penalty import Penalty


class PostHoc(Orthogonal):
    r"""In training $y = f$ with a penalty; in evaluation the nearest point of the set.

    Args:
        backbone: any module ``x -> f``; for a trained one, just call ``.eval()``.
        constraint: an `AffineSet`, or any function ``x -> AffineSet``.
        penalty: the soft term of the training loss.
        **options: of the layer (`search`, `norm`, ...).

    >>> import torch
    >>> method = PostHoc(nn.Identity(), AffineSet.box(0.0, 1.0, dim=2))
    >>> method.train()(torch.tensor([[3.0, 0.5]])), method.eval()(torch.tensor([[3.0, 0.5]]))
    (tensor([[3.0000, 0.5000]]), tensor([[1.0000, 0.5000]]))
    """

    name = "posthoc"
    title = "Projection after training"

    def __init__(
        self,
        backbone: nn.Module,
        constraint: AffineSet | Callable[[Any], AffineSet],
        *,
        penalty: Penalty | None = Penalty(100.0),  # noqa: B008  (immutable)
        **options: Any,
    ):
        super().__init__(backbone, constraint, penalty=penalty, **options)

    def run(self, x: Any, nominal: Tensor | None = None) -> Output:
        """The raw output in training, its projection in evaluation."""
        if not self.training:
            return super().run(x, nominal)
        f, _ = self.model.raw(x, nominal)
        return Output(f, f, self.set_at(x).like(f, "the raw output"))
