"""# Repair a frozen model

**The problem.** A network plans how much to spend on five channels, from four market signals. It was trained on past
plans, audited, and must stay as it is. Now there is a budget: at most 2 in total, at most 1 per channel. Plans that
break it must be changed, and they should still earn as much as possible.

**The usual alternative** is to scale a plan down until it fits, or to project it. Both are feasible. Neither considers
the earnings.

**Here** a feasible plan of the frozen network is kept, bit for bit. For the other plans a second, small network
chooses the point on the face: the paper's null-space head `w`, trained alone.
"""

import sys

import matplotlib.pyplot as plt
import torch

from caffnet import AffineSet, CAffNet, FeedForward, project

quick = "--quick" in sys.argv
torch.manual_seed(0)

# %%
# ## Data
#
# Channel `i` earns `a_i(x) log(1 + 4 y_i)`. The old plans had no budget, and channels have changed since.

past = 0.4 * torch.randn(4, 5)
now = past + 0.3 * torch.randn(4, 5)


def earnings(x, y):
    return ((x @ now).exp() * (4 * y.clamp_min(0)).log1p()).sum(-1)


def old_plan(x):
    return 0.5 * (x @ past).exp()


train, test = torch.randn(4000, 4), torch.randn(1000, 4)
limits = AffineSet.inequality(torch.ones(1, 5), [2.0], names=["budget"]) & AffineSet.box(0.0, 1.0, dim=5)

# %%
# The network that was audited: it imitates the old plans.

planner = FeedForward(4, 5, hidden=64, layers=2)
optimiser = torch.optim.Adam(planner.parameters(), 2e-3)
for _ in range(50 if quick else 1000):
    batch = train[torch.randint(len(train), (256,))]
    loss = (planner(batch) - old_plan(batch)).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
planner.requires_grad_(False)
broken = ~limits.contains(planner(test))
print(f"{100 * broken.float().mean():.0f} % of its plans break the new budget")

# %%
# ## Repair
#
# Freeze the planner, train `w` alone. It starts at zero, so the first plan is the projection. Both searches are tried:
# `full` is the paper's map, in which the candidate nearest to `f` wins, of all faces; `active` has the candidates of
# two faces only, those of the projections of `f + w` and of `f`.


def repair(search):
    model = CAffNet(planner, limits, null=FeedForward(4, 5, hidden=64, layers=2), search=search)
    optimiser = torch.optim.Adam(model.null.parameters(), 1e-3)
    history = []
    for _ in range(10 if quick else 2000):
        batch = train[torch.randint(len(train), (256,))]
        loss = -earnings(batch, model(batch)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        history.append(-loss.item())
    return model, history


repaired = {f"repaired, {search}": repair(search) for search in ("full", "active")}

# %%
# ## Compare
#
# The best possible plan of each market comes from 300 projected gradient steps: slow, and only where the earnings are
# known.


def best(x):
    y = project(old_plan(x), limits).value
    for _ in range(5 if quick else 300):
        y = y.requires_grad_()
        (slope,) = torch.autograd.grad(earnings(x, y).sum(), y)
        y = project(y.detach() + 0.02 * slope, limits).value
    return y


with torch.no_grad():
    raw = planner(test)
    scaled = raw.clamp(0, 1) * (2 / raw.clamp(0, 1).sum(-1, keepdim=True)).clamp_max(1)
    plans = {"scaled down": scaled, "projected": project(raw, limits).value}
    plans |= {name: model(test) for name, (model, _) in repaired.items()}
top = best(test).detach()
ideal = earnings(test, top)
lost = {name: 100 * (1 - earnings(test, y) / ideal)[broken] for name, y in plans.items()}
for name, loss in lost.items():
    rows = limits.violation(plans[name]).max()
    print(f"{name:16} loses {loss.mean():5.2f} % of the best, at worst {loss.max():5.1f} %; rows broken by {rows:.0e}")
same = all(torch.equal(plans[name][~broken], raw[~broken]) for name in repaired)
print("plans that were feasible are unchanged, bit for bit:", same)
assert same and all(limits.contains(y).all() for y in plans.values())
assert quick or lost["repaired, active"].mean() < 0.5 * lost["projected"].mean()

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
for name, (_, history) in repaired.items():
    smooth = torch.tensor(history).unfold(0, min(50, len(history)), 1).mean(-1)
    left.plot(smooth, label=name, color=f"C{list(lost).index(name)}")
left.set(xlabel="step", ylabel="earnings", title="training w alone")
for name, loss in lost.items():
    right.plot(loss.sort().values, torch.linspace(0, 100, len(loss)), label=name)
right.set(xlabel="earnings lost (%)", ylabel="share of changed plans (%)", title="new markets", xlim=(0, 30))
right.legend()
figure.tight_layout()

# %%
# ## What to watch for
#
# - **Use `search="active"` for repair.** In the paper's map a large `w` makes a candidate lose against a vertex that
#   is nearer to `f`. Here these plans lose more than the projection alone.
# - `w` acts only where `f` is infeasible. A plan that fits is never touched, even if a better one exists.
# - Where `f` leaves the set the output jumps by the size of `w`. If that matters, pass `null_limit`.
# - If `f` may be trained as well, do that instead and leave `null` out: [Train well](../guides/training.md).
# - If the objective is quadratic and known, no training is needed: project in its metric
#   ([Search, gradient and metric](../guides/choosing.md#norm-and-metric)).
