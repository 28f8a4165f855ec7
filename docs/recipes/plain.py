"""A plain training loop: checkpoints that resume, samples without an answer left out of the loss.

``python docs/recipes/plain.py [CHECKPOINT [EPOCHS]]``; run it again with more epochs to resume.
"""

import sys
from pathlib import Path

import torch

from caffnet import AffineSet, CAffNet, FeedForward


def limits(x):
    """Shares of three uses add up to the first input, and none exceeds the second."""
    total = AffineSet.equality([[1.0, 1.0, 1.0]], x[..., :1], names=["total"])
    return total & AffineSet.box(0.0, x[..., 1:2].expand(*x.shape[:-1], 3), names=["a", "b", "c"])


def main(checkpoint: str = "state.pt", epochs: str = "20") -> None:
    torch.manual_seed(0)
    x = torch.rand(512, 2) + torch.tensor([0.0, 0.5])
    target = x[:, :1] * torch.tensor([0.5, 0.3, 0.2])
    model = CAffNet(FeedForward(2, 3, hidden=64), limits, gradient="tangent", on_infeasible="nan")
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    start = 0
    if Path(checkpoint).exists():  # tensors and numbers only, so torch.load is safe
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        start = state["epoch"]
    for epoch in range(start, int(epochs)):
        for batch in torch.randperm(len(x)).split(64):
            answer = model.project(x[batch])
            usable = answer.answered
            if not usable.any():
                continue
            loss = (answer.value[usable] - target[batch][usable]).square().mean()
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
        torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "epoch": epoch + 1}, checkpoint)
    model.eval()
    with torch.no_grad():
        y = model(x)
    assert limits(x).contains(y).all()
    print(f"epoch {max(start, int(epochs))}, loss {(y - target).square().mean():.2e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
