"""# A conservation law

**The problem.** A network predicts the next state of a substance that drifts and spreads along a ring, on 48 cells,
many steps ahead. Its mass never changes, it is never negative, and its maximum never rises.

**The usual alternatives.** A plain network, whose mass drifts with every step; a penalty on the mass, as in
physics-informed training, which makes the drift smaller.

**Here** the three laws are a set that depends on the state: one equality and a box. The layer keeps them in every step
of any rollout, whatever the network does.
"""

import sys

import matplotlib.pyplot as plt
import torch
from torch import nn

from caffnet import AffineSet, CAffNet

quick = "--quick" in sys.argv
torch.manual_seed(0)
cells = 48

# %%
# ## Data
#
# The true step: upwind drift and diffusion. Starts are sums of a few bumps.

shift, spread = 0.4, 0.15


def true_step(u):
    drift = shift * (u.roll(1, -1) - u)
    return u + drift + spread * (u.roll(1, -1) - 2 * u + u.roll(-1, -1))


def starts(samples):
    place = torch.arange(cells) / cells
    centre, width, height = torch.rand(3, samples, 3, 1).unbind(0)
    distance = (place - centre + 0.5) % 1 - 0.5
    return (height * torch.exp(-((distance / (0.03 + 0.08 * width)) ** 2))).sum(1)


def rollout(step, u, steps):
    states = [u]
    for _ in range(steps):
        states.append(step(states[-1]))
    return torch.stack(states)


with torch.no_grad():
    train = rollout(true_step, starts(200), 40).flatten(0, 1)
    test = rollout(true_step, starts(50), 20 if quick else 300)

# %%
# ## The laws as a set
#
# The mass of the next state is that of this one; its values lie between zero and the largest value now.


def laws(u):
    mass = AffineSet.equality(u.new_ones(1, cells), u.sum(-1, keepdim=True), names=["mass"])
    top = u.amax(-1, keepdim=True).clamp_min(0)
    return mass & AffineSet.box(torch.zeros_like(u), top.expand_as(u))


# %%
# ## Three networks
#
# A small convolution on the ring predicts the change. All three have the same size, data and steps.


class Change(nn.Module):
    def __init__(self):
        super().__init__()
        ring = {"padding": 2, "padding_mode": "circular"}
        self.net = nn.Sequential(nn.Conv1d(1, 16, 5, **ring), nn.SiLU(), nn.Conv1d(16, 1, 5, **ring))

    def forward(self, u):
        return u + self.net(u.unsqueeze(-2)).squeeze(-2)


def fit(model, penalty=0.0):
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    steps = 10 if quick else 1500
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        u = train[torch.randint(len(train), (64,))]
        v = model(u)
        loss = (v - true_step(u)).square().mean() + penalty * (v.sum(-1) - u.sum(-1)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model


models = {
    "plain": fit(Change()),
    "penalty": fit(Change(), 1e-3),
    "layer": fit(CAffNet(Change(), laws, gradient="tangent")),
}

# %%
# ## Compare
#
# Rolled out for 300 steps, far beyond the 40 of the training data.

paths = {}
with torch.no_grad():
    for name, model in models.items():
        paths[name] = rollout(model, test[0], len(test) - 1)
        off = (paths[name].sum(-1) / test[0].sum(-1) - 1).abs().amax(-1)
        error = (paths[name][-1] - test[-1]).norm(dim=-1) / test[-1].norm(dim=-1)
        least = paths[name].min()
        print(f"{name:8} mass off by {100 * off[-1]:.1e} %, least value {least:+.1e}, error {100 * error.mean():.1f} %")
drift = (paths["layer"].sum(-1) / test[0].sum(-1) - 1).abs().max()
assert drift < 1e-4 and paths["layer"].min() >= 0

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
for name, path in paths.items():
    off = (path.sum(-1) / test[0].sum(-1) - 1).abs().amax(-1)
    left.semilogy(100 * off.clamp_min(1e-9), label=name)
left.set(xlabel="step", ylabel="mass off by (%)", title="worst of 50 starts")
left.legend()
for name, path in paths.items():
    right.plot(path[-1, 0], label=name)
right.plot(test[-1, 0], "k--", lw=1, label="truth")
top = float(test[-1, 0].max())
right.set(xlabel="cell", title=f"one start after {len(test) - 1} steps", ylim=(-top, 3 * top))
right.legend()
figure.tight_layout()

# %%
# ## What to watch for
#
# - The mass of step `k` is taken from step `k - 1`, so rounding adds up: some 1e-7 per step in float32. Pass the mass
#   of the start along with the state if this matters.
# - A law that is only nearly true (an open boundary) must be a two-sided row with some room, or left out.
# - The layer enforces laws, not accuracy. It helps here because wrong mass is the error that grows. A plain network
#   that is trained for longer, or over several steps, drifts later; it still drifts.
# - Nonlinear laws (energy) are not affine in the next state. Linearise them around this state, or choose variables in
#   which they are.
