"""Results of a contestant: calls without arguments, ready to be timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from caffnet_lab.bench.tasks import Task


class Refused(Exception):
    """A contestant does not take part in a task; the message says why."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Resources of a run.

    Attributes:
        threads: for torch and for every rival that has threads.
        memory_bytes: a contestant that says it needs more is not started.
        seconds: a contestant whose single call takes longer is not called again, nor at larger sizes.
    """

    threads: int = 1
    memory_bytes: int = 8 * 2**30
    seconds: float = 30.0


@dataclasses.dataclass(frozen=True)
class Ready:
    """The calls of one contestant on one task.

    Attributes:
        forward: without gradient, returns y.
        train: forward and backward, returns y and the gradient of f; None for a solver without gradient.
        euclidean: whether y is meant to be the Euclidean projection.
        constrained: whether y is meant to satisfy the constraints.
    """

    forward: Callable[[], Tensor]
    train: Callable[[], tuple[Tensor, Tensor | None]] | None = None
    euclidean: bool = True
    constrained: bool = True


def of_map(call: Callable[[Tensor], Tensor], task: Task) -> Ready:
    """From a differentiable map ``f -> y``."""
    f = task.f.detach()

    def forward() -> Tensor:
        with torch.no_grad():
            return call(f)

    def train() -> tuple[Tensor, Tensor]:
        start = f.detach().requires_grad_()
        y = call(start)
        (gradient,) = torch.autograd.grad(y, start, task.v)
        return y.detach(), gradient

    return Ready(forward, train)
