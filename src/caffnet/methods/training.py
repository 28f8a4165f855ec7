"""One training loop for every method."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from caffnet.methods.base import Method, UnsupportedError


def fit(
    method: Method,
    x: Tensor,
    objective: Callable[[Tensor, Tensor], Tensor],
    *,
    epochs: int = 100,
    batch: int | None = None,
    lr: float = 1e-3,
    seed: int = 0,
) -> list[float]:
    """Train a method with Adam and return the mean objective of every epoch (the task's, without the method's terms).

    Args:
        method: the method to train.
        x: inputs, ``(samples, n_in)``.
        objective: a scalar ``objective(y, index)`` of the outputs of the samples ``x[index]``.
        epochs: passes over the data.
        batch: samples per step; all of them if None.
        lr: learning rate.
        seed: seed of the shuffling.
    """
    if not method.differentiable:
        raise UnsupportedError(f"{method.title} is an optimiser, nothing is trained: call it on the test inputs.")
    optimizer = torch.optim.Adam(method.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(seed)
    history = []
    method.train()
    for epoch in range(epochs):
        method.start_epoch(epoch)
        order = torch.randperm(len(x), generator=generator)
        total = 0.0
        for index in order.split(batch or len(x)):
            output = method.run(x[index])
            task = objective(output.y, index)
            optimizer.zero_grad()
            method.loss(task, output).backward()
            optimizer.step()
            total += float(task.detach()) * len(index)
        history.append(total / len(x))
    return history
