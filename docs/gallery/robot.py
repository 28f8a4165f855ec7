"""# A safe robot

**The problem.** A robot on a plane must reach a goal behind three round obstacles, with limited speed. It must never
touch one, whatever its policy does: not while it learns, and not in places it has never seen.

**The usual alternatives.** A penalty for collisions in training: the policy collides while it learns, and rarely
afterwards. A safety filter around a fixed controller: safe, but the controller does not know about the filter and gets
stuck in front of obstacles.

**Here** the barrier's rows are the constraint of a `CAffNet`: the same filter, as the last layer of the policy.
Training goes through it, so the policy learns to drive *with* it. Where there is no derivative to follow, the same rows
are the constraint of an agent that learns from rewards.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback

from caffnet import AffineSet, CAffNet, FeedForward
from caffnet.control import BarrierConstraint, Integrator, OutsideCircles, SafetyFilter, linear, rollout
from caffnet.control.gym import ControlEnv, SafeActions
from caffnet.control.sb3 import SafeSACPolicy

quick = "--quick" in sys.argv
torch.manual_seed(0)

# %%
# ## The robot and its rules
#
# The input is the velocity, at most 1 in each direction. `BarrierConstraint` turns `h(x) >= 0` into rows on it:
# a function from the state to an `AffineSet`. The margin is for rounding.

robot = Integrator(2, order=1)
obstacles = OutsideCircles([[2.0, 0.0], [3.0, 1.4], [3.0, -1.4]], [0.8, 0.6, 0.6])
speed = AffineSet.box(-1.0, 1.0, dim=2, names=["vx", "vy"])
safe = BarrierConstraint(robot, obstacles, linear(3.0), speed, margin=0.02)
goal = torch.tensor([4.5, 0.0])


def starts(samples):
    return torch.tensor([-0.5, -1.0]) + torch.tensor([1.0, 2.0]) * torch.rand(samples, 2)


def drive(policy, x, steps=100):
    return rollout(robot, policy, x, steps=steps, dt=0.1)


def straight(x):
    return (2 * (goal - x)).clamp(-1, 1)


# %%
# ## Train through the filter, and with a penalty
#
# Both policies correct the same controller, `straight`. The cost is the distance to the goal over the whole path,
# through the simulator. The soft policy pays for collisions.


class Corrected(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = FeedForward(2, 2, hidden=64, layers=2, activation=torch.nn.SiLU)
        torch.nn.init.zeros_(self.net[-1].weight)
        torch.nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        return straight(x) + 2 * self.net(x - goal)


class Clamped(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x).clamp(-1, 1)


def fit(policy, penalty):
    optimiser = torch.optim.Adam(policy.parameters(), 3e-3)
    steps = 2 if quick else 150
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    touched = 0
    for _ in range(steps):
        states = drive(policy, starts(64), 10 if quick else 80).states
        room = obstacles(states)
        touched += int((room.amin((-1, -2)) < 0).sum())
        loss = (states - goal).norm(dim=-1).mean() + penalty * room.clamp_max(0).square().sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return policy, touched


soft, soft_crashes = fit(Clamped(Corrected()), 100.0)
layer, layer_crashes = fit(CAffNet(Corrected(), safe, gradient="tangent"), 0.0)
print(f"collisions while learning: {soft_crashes} with a penalty, {layer_crashes} through the filter")

# %%
# ## Compare
#
# From 200 new starts, half of them outside the training region.

new = torch.cat([starts(100), starts(100) + torch.tensor([-1.0, 0.0])])
paths = {}
with torch.no_grad():
    for name, policy in {
        "filter around a controller": SafetyFilter(straight, safe),
        "penalty": soft,
        "through the filter": layer,
    }.items():
        paths[name] = drive(policy, new, 20 if quick else 150).states
        least = obstacles(paths[name]).amin((-1, -2))
        arrived = (paths[name][:, -1] - goal).norm(dim=-1) < 0.2
        told = f"arrived {100 * arrived.float().mean():3.0f} %, collided {100 * (least < 0).float().mean():3.0f} %"
        print(f"{name:27} {told}, least room {least.min():+.3f}")
assert obstacles(paths["through the filter"]).min() > 0 and layer_crashes == 0


# %%
def draw(axis, name):
    for centre, radius in zip(obstacles.centres, obstacles.radii, strict=True):
        axis.add_patch(plt.Circle(centre.tolist(), float(radius), color="0.75"))
    axis.plot(*goal, "k*", ms=10)
    axis.set(title=name, aspect="equal", xlim=(-1.7, 5), ylim=(-2.4, 2.4))


figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True)
for axis, (name, states) in zip(axes, paths.items(), strict=True):
    draw(axis, name)
    axis.plot(*states[::10].permute(2, 1, 0), lw=0.8)
figure.tight_layout()

# %%
# ## Reinforcement learning
#
# Where the simulator has no derivative, an agent learns from rewards: here the distance to the goal, at every step.
# `SafeActions` around the environment replaces whatever would break a row, random exploration included; `SafeSACPolicy`
# maps the policy of SAC into the inside of the set at each state, with exact log-probabilities. It is compared with
# plain SAC, which pays for collisions. Both learn from starts all over the plane and are tested from those on the left.


def world(penalty):
    def cost(x, u):
        room = obstacles(torch.from_numpy(x)).clamp_max(0).sum()
        return float(distance(x) - penalty * room)

    def start(random):
        while True:
            x = random.uniform([-0.5, -2.0], [5.0, 2.0])
            if obstacles(torch.from_numpy(x)).min() > 0.03:
                return x

    return ControlEnv(robot, start, cost, -1.0, 1.0, obstacles, lambda x: distance(x) < 0.25, steps=40, dt=0.2)


def distance(x):
    return np.linalg.norm(x - goal.numpy())


class Touched(BaseCallback):
    """Counts the steps that end in an obstacle."""

    count = 0

    def _on_step(self):
        self.count += sum(info["barrier"] < 0 for info in self.locals["infos"])
        return True


def learn(env, policy, **arguments):
    options = {"learning_rate": 1e-3, "batch_size": 128, "gamma": 0.97, "ent_coef": 0.05, "learning_starts": 400}
    model = SAC(policy, env, policy_kwargs={"net_arch": [64, 64], **arguments}, seed=0, device="cpu", **options)
    touched = Touched()
    model.learn(40 if quick else 2500, touched)
    return env, model, touched.count


agents = {
    "SAC, penalty": learn(world(10.0), "MlpPolicy"),
    "SAC, safe": learn(SafeActions(world(0.0), safe), SafeSACPolicy, constraint=safe),
}
tracks = {}
for name, (env, model, touched) in agents.items():
    tracks[name], collided, arrived = [], 0, 0
    for x in starts(2 if quick else 50):
        seen, info = env.reset(options={"start": x.numpy()})
        track, least, terminated, truncated = [seen], info["barrier"], False, False
        while not (terminated or truncated):
            seen, _, terminated, truncated, info = env.step(model.predict(seen, deterministic=True)[0])
            track, least = [*track, seen], min(least, info["barrier"])
        tracks[name].append(np.array(track))
        collided, arrived = collided + (least < 0), arrived + terminated
    told = f"arrived {arrived}, collided {collided} of {len(tracks[name])}"
    print(f"{name:12} collisions while learning {touched:3}; after it: {told}")
assert touched == collided == 0  # of the last, the safe one

# %%
figure, axes = plt.subplots(1, 2, figsize=(6.8, 3.2), sharey=True)
for axis, (name, found) in zip(axes, tracks.items(), strict=True):
    draw(axis, name)
    for track in found:
        axis.plot(*track.T, lw=0.8)
figure.tight_layout()

# %%
# ## What to watch for
#
# - The guarantee is for inputs that change at every instant. While an input is held for `dt`, `h` may fall by a
#   second-order term; keep `slope · dt` below 1 (here 0.3 and 0.6), or pass a `reserve`.
# - A filter alone can get stuck where the straight way to the goal leads into an obstacle: it does not plan a way
#   around.
# - Leave `null` out in closed loop: jumps of `w` become jumps of the path.
# - With forces instead of velocities a position has relative degree two: use `HighOrder`, in
#   [Safe control](../guides/control.md). That guide also says which action is stored in reinforcement learning, and
#   why random warm-up needs `SafeActions`.
