"""Orthogonal projection in the loop: CAffNet without the null-space head."""

from __future__ import annotations

from torch import nn

from caffnet.methods.caffnet import CAffNetMethod


class Orthogonal(CAffNetMethod):
    r"""$y = \arg\min_{y \in S(x)} \|y - f\|_2$, also in training: CAffNet with $w = 0$.

    Args:
        backbone: any module ``x -> f``.
        constraint: an `AffineSet`, or any function ``x -> AffineSet``.
        penalty: the soft term, None for none.
        **options: of the layer (`search`, `norm`, `gradient`, ...).

    >>> import torch
    >>> from caffnet import AffineSet
    >>> Orthogonal(nn.Identity(), AffineSet.box(0.0, 1.0, dim=2))(torch.tensor([[3.0, 0.5]]))
    tensor([[1.0000, 0.5000]])
    """

    name = "orthogonal"
    title = "Orthogonal projection"
    instead = "soft"

    def _head(self, backbone: nn.Module) -> None:
        return None
