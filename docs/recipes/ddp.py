"""Several processes: ``torchrun --nproc-per-node 2 docs/recipes/ddp.py``.

Use ``on_infeasible="nan"`` or ``"nearest"`` where empty sets can occur: an error in one process leaves the others
waiting.
"""

import gc
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from caffnet import AffineSet, CAffNet, FeedForward, Status


def limits(x):
    """The outputs add up to the first input, and none is negative."""
    return AffineSet.equality([[1.0, 1.0, 1.0]], x[..., :1], names=["total"]) & AffineSet.box(0.0, None, dim=3)


class Answer(torch.nn.Module):
    """DistributedDataParallel watches `forward`: let it return the status as well."""

    def __init__(self, model: CAffNet):
        super().__init__()
        self.model = model

    def forward(self, x):
        answer = self.model.project(x)
        return answer.value, answer.status


def train() -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // dist.get_world_size()))
    torch.manual_seed(0)  # the same weights everywhere
    model = CAffNet(FeedForward(2, 3, hidden=64), limits, gradient="tangent", on_infeasible="nan")
    parallel = DistributedDataParallel(Answer(model))
    x = torch.rand(256, 2)
    x[0, 0] = -1.0  # an empty set: shares of a negative total
    data = TensorDataset(x, x[:, :1] * torch.tensor([0.5, 0.3, 0.2]))
    sampler = DistributedSampler(data)
    optimiser = torch.optim.Adam(parallel.parameters(), 1e-3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch, target in DataLoader(data, batch_size=32, sampler=sampler):
            value, status = parallel(batch)
            usable = ((status != Status.INFEASIBLE) & (status != Status.INVALID)).unsqueeze(-1)
            error = torch.where(usable, value - target, 0.0)  # every process calls backward, whatever its samples
            optimiser.zero_grad()
            error.square().mean().backward()
            optimiser.step()
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    mean = weights.clone()
    dist.all_reduce(mean)
    assert torch.allclose(mean / dist.get_world_size(), weights)
    with torch.no_grad():
        assert limits(x[1:]).contains(model(x[1:])).all()
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes, the same weights, all rows hold")


def main() -> None:
    dist.init_process_group("gloo")  # "nccl" on GPUs
    train()
    gc.collect()  # DistributedDataParallel, a reference cycle, holds the group: its threads must end before Python does
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
