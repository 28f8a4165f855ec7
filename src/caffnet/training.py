"""Aids for training through the layer: a warm-up, and a measure of how many samples get no gradient."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from caffnet.errors import ConstraintError
from caffnet.layer import CAffine
from caffnet.model import CAffNet


class WarmUp:
    """Switches the layer off in the first epochs of training; in evaluation it is always on.

    Use it with a penalty on ``set.violation(y)`` in the loss, so that the raw outputs are near the set before the layer
    is switched on. The state can be saved with the rest of a checkpoint.

    Args:
        model: any module that contains `CAffine` layers.
        epochs: number of epochs for which the layers are off in training.

    >>> from caffnet import AffineSet, CAffNet, FeedForward
    >>> model = CAffNet(FeedForward(1, 1), AffineSet.box(0.0, 1.0, dim=1))
    >>> warmup = WarmUp(model, epochs=2)
    >>> for epoch in range(3):
    ...     print(model.layer.enabled)
    ...     warmup.step()
    False
    False
    True
    """

    def __init__(self, model: nn.Module, epochs: int):
        self.layers = [module for module in model.modules() if isinstance(module, CAffine)]
        if not self.layers:
            raise ConstraintError(f"{type(model).__name__} contains no CAffine layer to warm up.")
        if not isinstance(epochs, numbers.Real):
            raise ConstraintError(f"epochs must be a number, got {epochs!r}.")
        self.epochs, self.epoch = epochs, 0
        self._set()

    def step(self) -> None:
        """Call once after every epoch."""
        self.epoch += 1
        self._set()

    def state_dict(self) -> dict[str, int]:
        """Return the state for a checkpoint."""
        return {"epoch": self.epoch, "epochs": self.epochs}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the state from a checkpoint."""
        self.epoch, self.epochs = state["epoch"], state["epochs"]
        self._set()

    def _set(self) -> None:
        for layer in self.layers:
            layer.enabled = self.epoch >= self.epochs


def zero_gradient_share(
    model: CAffNet, x: Any, loss: Callable[[Tensor], Tensor], nominal: Tensor | None = None
) -> float:
    """Return the share of samples from which the backbone learns nothing although their output has a gradient.

    Args:
        model: the network.
        x: a batch of inputs.
        loss: a scalar function of the outputs ``(..., n)``.
        nominal: as in ``model(x, nominal)``.

    A sample counts if its gradient with respect to the raw output f is exactly zero while the gradient with respect to
    y is not.
    """
    with torch.enable_grad():
        f, w = model.raw(x, nominal)
        f = f.detach().requires_grad_()
        y = model.layer(f, None if w is None else w.detach(), x=x)
        value = loss(y)
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ConstraintError(f"The loss must be a tensor of one number, got {got}: write .sum() or .mean().")
        to_output, to_raw = torch.autograd.grad(value, (y, f), allow_unused=False)
    wanted = (to_output != 0).any(-1)
    if not wanted.any():
        return 0.0
    dead = wanted & (to_raw == 0).all(-1)
    return float(dead.sum() / wanted.sum())
