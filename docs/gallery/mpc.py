"""# Imitate a predictive controller, and run it in C

**The problem.** A mass on a plane is driven to the origin by a force. The force lies in an octagon, and the speed must
stay below 1 in each direction. A predictive controller (MPC) plans 12 steps ahead, too slow for a small machine.

**The usual alternative.** A network imitates the controller, and its outputs are clipped. Clipping handles a box, not
an octagon, and ignores the speed after the step.

**Here** the network ends in a layer with the rows of the next step. It is trained through the layer, exported as plain
C, and answers in microseconds with the same guarantee.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from caffnet import AffineSet, CAffNet, FeedForward, Status, project
from caffnet.deploy import to_c

quick = "--quick" in sys.argv
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)

# %%
# ## The system, and the rows of one step
#
# The state is position and velocity, `v_next = v + dt u`. Twelve rows: eight sides of the octagon, four speed limits.

dt, horizon, top = 0.2, 12, 1.0
angle = torch.arange(8) * torch.pi / 4
sides = torch.stack([angle.cos(), angle.sin()], -1)
faces = torch.cat([torch.eye(2), -torch.eye(2)])
rows = torch.cat([sides, dt * faces])
names = [f"side {i}" for i in range(8)] + ["east", "north", "west", "south"]


def limits(x):
    room = top - x[..., 2:] @ faces.T
    return AffineSet.inequality(rows, torch.cat([torch.ones_like(x).repeat_interleave(2, -1), room], -1), names=names)


def move(x, u):
    velocity = x[..., 2:] + dt * u
    return torch.cat([x[..., :2] + dt * velocity, velocity], -1)


# %%
# ## The expert
#
# The plan of 12 steps minimises squared positions, velocities and forces: a quadratic program with 24 outputs and 144
# rows. It is one projection in the metric of its cost, so a whole batch of plans is one call.

steps = torch.ones(horizon, horizon).tril()
speeds = dt * torch.kron(steps, torch.eye(2))  # velocities from forces
places = dt * torch.kron(steps, torch.eye(2)) @ speeds
hessian = places.T @ places + 0.2 * speeds.T @ speeds + 0.1 * torch.eye(2 * horizon)
plan_rows = torch.cat([torch.kron(torch.eye(horizon), sides), torch.kron(torch.eye(horizon), faces) @ speeds])


def plan(x):
    times = dt * torch.arange(1, horizon + 1).repeat_interleave(2)
    drift = x[..., :2].repeat(1, horizon) + times * x[..., 2:].repeat(1, horizon)
    slope = drift @ places + 0.2 * x[..., 2:].repeat(1, horizon) @ speeds
    free = -torch.linalg.solve(hessian, slope.T).T
    room = (top - x[..., 2:] @ faces.T).repeat(1, horizon)
    bound = torch.cat([torch.ones(len(x), 8 * horizon), room], -1)
    return project(free, AffineSet.inequality(plan_rows, bound), metric=hessian).value[..., :2]


def states(samples):
    return (2 * torch.rand(samples, 4) - 1) * torch.tensor([2.0, 2.0, 0.9, 0.9])


train = states(100 if quick else 4000)
start = time.perf_counter()
target = plan(train)
expert_time = (time.perf_counter() - start) / len(train)

# %%
# ## Imitate
#
# Two networks of the same size: one clipped to the box, one through the layer.


class Clipped(torch.nn.Sequential):
    def forward(self, x):
        return super().forward(x).clamp(-1, 1)


def fit(model):
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    count = 10 if quick else 1500
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, count)
    for _ in range(count):
        batch = torch.randint(len(train), (128,))
        loss = (model(train[batch]) - target[batch]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval()


clipped = fit(Clipped(*FeedForward(4, 2, hidden=32, layers=2)))
policy = fit(CAffNet(FeedForward(4, 2, hidden=32, layers=2), limits, gradient="tangent"))

# %%
# ## In closed loop
#
# From 200 new states, 60 steps each.


def drive(control, x, count):
    path, broken = [x], []
    for _ in range(count):
        u = control(x)
        broken.append(limits(x).violation(u).amax(-1))
        x = move(x, u)
        path.append(x)
    return torch.stack(path), torch.stack(broken)


begin, results = states(20 if quick else 200), {}
with torch.no_grad():
    for name, control in {"expert": plan, "clipped": clipped, "layer": policy}.items():
        path, broken = results[name] = drive(control, begin, 5 if quick else 60)
        share, cost = 100 * (broken > 1e-9).double().mean(), path.square().sum(-1).mean()
        print(f"{name:8} cost {cost:.4f}, steps with a broken limit {share:4.1f} %, by {broken.max():.0e}")
assert results["layer"][1].max() < 1e-12

# %%
# ## In C
#
# `to_c` writes the network, the rows and the kernel as C that allocates nothing; its test program compares 64 answers
# with torch, and times the step.

with tempfile.TemporaryDirectory() as folder:
    to_c(policy, folder, name="robot", inputs=begin)
    sources = [str(path) for path in Path(folder).glob("*.c")]
    program = str(Path(folder) / "test")
    subprocess.run(["cc", "-O2", "-I", folder, "-I", f"{folder}/kernel", *sources, "-o", program, "-lm"], check=True)
    done = subprocess.run([program, "2000" if quick else "200000"], capture_output=True, text=True, check=True)
    print(done.stdout.strip())
print(f"the expert takes {1e6 * expert_time:.0f} µs a plan, in a batch")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
for name, (path, _) in results.items():
    left.plot(*path[:, 0, :2].T, label=name)
left.set(xlabel="x", ylabel="y", title="one path")
left.legend()
octagon = torch.cat([sides, sides[:1]]) / torch.cos(torch.tensor(torch.pi / 8))
turn = torch.tensor(torch.pi / 8)
right.plot(*(octagon @ torch.tensor([[turn.cos(), turn.sin()], [-turn.sin(), turn.cos()]])).T, "k-", lw=0.8)
for i, control in enumerate((clipped, policy), 1):
    right.plot(*control(begin).detach().T, ".", ms=3, color=f"C{i}", label=list(results)[i])
right.set(title="forces, and what is allowed", aspect="equal")
right.legend(fontsize=8)
figure.tight_layout()

# %%
# ## States that already break a limit
#
# A gust can push the mass beyond its top speed. At 1.5 no force of the octagon slows it down to 1 in one step: the set
# is empty, the policy raises an error, and in C the status is 3. Make the speed limits soft where this can happen. The
# octagon stays hard, and the force with the least speed above the limit is taken. Wherever a force keeps all rows, the
# answer is the same as before.


def forgiving(x):
    room = top - x[..., 2:] @ faces.T
    octagon = AffineSet.inequality(sides, torch.ones(8), names=names[:8])
    return octagon & AffineSet.inequality(dt * faces, room, names=names[8:]).soft()


steady = CAffNet(policy.backbone, forgiving)
x = torch.tensor([[0.0, 0.0, 1.5, 0.0]])
for _ in range(4):
    with torch.no_grad():
        answer = steady.project(x)
    status, (u, v) = Status(int(answer.status)).name, answer.value[0].tolist()
    print(f"speed {x[0, 2]:.2f}: force ({u:+.3f}, {v:+.3f}), {status}")
    x = move(x, answer.value)
assert quick or x[0, 2] <= top + 1e-9

# %%
# ## What to watch for
#
# - Rows for one step keep the limits for one step. For a limit on *position*, braking must be possible too: use a
#   barrier of relative degree two, or an invariant set.
# - Imitate the expert in the states that it visits: the states here are random. For a narrow task collect them along
#   its paths.
# - Only Linear, ReLU, SiLU, Tanh and BatchNorm1d are written in C. For any other network export the layer alone.
# - `robot_data.h` states the worst case of a step; use it, not the mean, for a hard deadline.
#   [Deployment](../guides/deployment.md) has the rest.
