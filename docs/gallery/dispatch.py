"""# Economic dispatch with line limits and prices

**The problem.** Six generators must meet the loads of six buses at the least cost, every few minutes, without
overloading a line. The loads `x` change; power balance and line flows depend on them.

**The usual alternatives.** A solver for every load vector: exact, one at a time. A network with a penalty: fast, and
its plans overload lines.

**Here** the constraints are rows that depend on `x`. A quadratic program is one projection in the metric of its cost,
so the layer alone is the solver, for a whole batch, and its derivative gives the **prices**. A network that is trained
through the layer needs no metric and is always feasible.
"""

import sys
import time

import daqp
import matplotlib.pyplot as plt
import numpy as np
import torch

from caffnet import AffineSet, CAffNet, FeedForward, prepare, project

quick = "--quick" in sys.argv
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)

# %%
# ## The grid
#
# Eight lines, in the linear (DC) model: flows are `F (y - x)` for generation `y` and loads `x` at the buses. Each
# generator costs `½ q y² + c y`.

ends = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (1, 4), (0, 3)]
incidence = torch.zeros(8, 6)
for line, (a, b) in enumerate(ends):
    incidence[line, a], incidence[line, b] = 1.0, -1.0
susceptance = torch.tensor([5.0, 4.0, 6.0, 3.0, 5.0, 4.0, 2.0, 3.0])
weighted = susceptance.unsqueeze(-1) * incidence
F = weighted @ torch.linalg.pinv(incidence.T @ weighted)
limit = torch.tensor([0.45, 0.5, 0.5, 0.45, 0.5, 0.5, 0.3, 0.35])
q, c = torch.tensor([1.0, 1.5, 3.0, 2.0, 4.0, 2.5]), torch.tensor([1.0, 1.2, 2.0, 1.5, 3.0, 2.5])


def cost(y):
    return (0.5 * q * y.square() + c * y).sum(-1)


# %%
# ## The constraints
#
# The rows are the same for every load and only the bounds change, so the rows are prepared once.

lines = AffineSet(F, -limit, limit, names=[f"line {a}-{b}" for a, b in ends])
rows = prepare(AffineSet.equality(torch.ones(1, 6), [0.0], names=["balance"]) & lines & AffineSet.box(0.0, 2.0, dim=6))


def limits(x):
    flow, whole = x @ F.T, torch.ones(6).expand(x.shape)
    total = x.sum(-1, keepdim=True)
    lower = torch.cat([total, flow - limit, 0 * whole], -1)
    return rows.with_bounds(lower, torch.cat([total, flow + limit, 2 * whole], -1))


def loads(samples):
    return torch.tensor([0.6, 0.4, 0.9, 0.5, 1.0, 0.3]) * (0.6 + 0.8 * torch.rand(samples, 6))


train, test = loads(2000), loads(500)

# %%
# ## No learning: the layer is the solver
#
# The cheapest plan is the projection of `-c / q`, the cheapest plan without constraints, in the metric `q`.


def solve(x):
    return project((-c / q).expand(x.shape), limits(x).with_metric(q))


def fastest(call):
    times = []
    for _ in range(2 if quick else 10):
        start = time.perf_counter()
        answer = call()
        times.append(1e3 * (time.perf_counter() - start))
    return answer, min(times)


programs = []
for x in test:
    s = limits(x).set
    sense = np.where(s.lower == s.upper, 5, 0).astype(np.int32)
    programs.append((*(t.numpy() for t in (q.diag(), c, s.A, s.upper, s.lower)), sense))
optimum, batch_time = fastest(lambda: solve(test).value)
one_by_one, loop_time = fastest(lambda: np.stack([daqp.solve(*program)[0] for program in programs]))
print(f"500 dispatches: {batch_time:.1f} ms by the layer, {loop_time:.1f} ms in a loop over DAQP")
print(f"the two agree to {np.abs(one_by_one - optimum.numpy()).max():.0e}")

# %%
# ## Prices
#
# The price at a bus, the cost of one more unit of load there, is the derivative of the least cost with respect to that
# load. The layer is differentiable in its bounds, so one `backward` computes all prices.


def prices(x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(cost(solve(x).value).sum(), x)[0]


step = 1e-5 * torch.eye(6)
base = test[0]
difference = (cost(solve(base + step).value) - cost(solve(base - step).value)) / 2e-5
print("prices at six buses:", [round(value, 3) for value in prices(base).tolist()])
print(f"against differences: {(prices(base) - difference).abs().max():.0e}")

# %%
# ## A network, with a penalty and through the layer
#
# Both have the same size and training. The loss is the cost; the soft one also pays for broken rows.


def fit(model, penalty):
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    steps = 20 if quick else 1500
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        x = train[torch.randint(len(train), (128,))]
        y = model(x)
        loss = cost(y).mean() + penalty * limits(x).set.violation(y).square().sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return model(test)


plans = {
    "network with a penalty": fit(FeedForward(6, 6, hidden=64, layers=2), 100.0),
    "network through the layer": fit(CAffNet(FeedForward(6, 6, hidden=64, layers=2), limits, gradient="tangent"), 0.0),
    "optimum": optimum,
}
gaps = {}
for name, y in plans.items():
    broken = limits(test).set.violation(y).amax(-1)
    gaps[name] = 100 * (cost(y) / cost(optimum) - 1)
    share = 100 * (broken > 1e-6).double().mean()
    print(f"{name:26} cost {gaps[name].mean():+7.3f} %, infeasible {share:3.0f} %, by {broken.max():.0e}")
assert (limits(test).set.contains(plans["network through the layer"])).all()
assert quick or gaps["network through the layer"].mean() < 1.0

# %%
scales = torch.linspace(0.6, 1.4, 60).unsqueeze(-1)
growing = scales * torch.tensor([0.6, 0.4, 0.9, 0.5, 1.0, 0.3])
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
left.plot(scales, prices(growing), label=[f"bus {i}" for i in range(6)])
left.legend(fontsize=8)
left.set(xlabel="load, as a share of a usual day", ylabel="price at each bus", title="one price until a line is full")
for name in list(plans)[:2]:
    flow = ((plans[name] - test) @ F.T / limit).abs().amax(-1)
    right.hist(100 * flow.numpy(), bins=40, alpha=0.7, label=name)
right.axvline(100, color="black", lw=0.8)
right.set(xlabel="fullest line (% of its limit)", ylabel="test loads", title="500 new loads")
right.legend(fontsize=8)
figure.tight_layout()

# %%
# ## What to watch for
#
# - A bound of shape `(B,)` needs an axis for the rows; here all bounds are `(B, 15)`.
# - Prices bend where a line reaches its limit. With linear costs they would jump there, and any price between the two
#   is right.
# - With linear costs the metric is not positive definite. Project a point far along `-c` instead, as in
#   [the yardsticks](../yardsticks.md), or call `solve_qp`: [Programs and prices](../guides/programs.md).
# - A load that no plan can serve raises `InfeasibleError` and names the lines in conflict:
#   [Empty sets](../guides/infeasible.md).
