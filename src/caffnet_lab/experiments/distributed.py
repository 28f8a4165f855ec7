"""Several processes, one global batch: what `torchrun` starts."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from caffnet_lab.experiments.config import ConfigError


@dataclasses.dataclass(frozen=True)
class Group:
    """The processes that train one model together; a single one by default."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Check whether this process writes files and shows progress."""
        return self.rank == 0

    def share(self, x: Tensor) -> Tensor:
        """This process's part of a global batch ``(N, ...)``."""
        return x if self.size == 1 else x[self.rank :: self.size].contiguous()

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def largest(self, value: Tensor) -> Tensor:
        """The maximum over all processes."""
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value, dist.ReduceOp.MAX)
        return value

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            dist.barrier()


def started_by_torchrun() -> bool:
    """Check whether this process is one of several."""
    size = os.environ.get("WORLD_SIZE", "1")
    try:
        return int(size) > 1
    except ValueError:
        raise ConfigError(
            f"The variable WORLD_SIZE must be a whole number, got {size!r}: unset it, or start with torchrun."
        ) from None


@contextlib.contextmanager
def process_group(device: str) -> Iterator[Group]:
    """The processes that `torchrun` started: gloo on CPUs, nccl on GPUs. Inside of another one, that one."""
    if not started_by_torchrun():
        yield Group()
        return
    if dist.is_initialized():
        yield Group(dist.get_rank(), dist.get_world_size())
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    try:
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
    except ValueError as error:  # variables that torchrun sets
        raise ConfigError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but the processes do not find each other ({error}): unset it, "
            "or start with torchrun."
        ) from None
    try:
        yield Group(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
