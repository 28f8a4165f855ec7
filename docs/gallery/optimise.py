"""# Learning to optimise

**The problem.** DC3's task: for every input `x`, find the `y` of least cost under `A y = x` and `G y <= h`. The cost is
not convex: `½ yᵀQy + pᵀ sin(y)`. A network should answer in microseconds what a solver answers in milliseconds.

**The usual alternatives.** DC3 completes the equalities and corrects the inequalities by gradient steps. It is nearly
feasible. A penalty with a projection after training is feasible, but not trained for its projected answers.

**Here** the network is trained through the layer, on the cost alone. No optimal answers are needed for training.
"""

import sys
import time

import matplotlib.pyplot as plt
import torch

from caffnet import AffineSet, FeedForward, project
from caffnet.methods import METHODS, Penalty, fit

quick = "--quick" in sys.argv
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)

# %%
# ## The task
#
# 30 outputs, 15 equalities, 15 inequalities, made as in DC3's paper: `h` is such that a feasible point exists for
# every `x` in the box from -1 to 1.

n, e, m = 30, 15, 15
Q, p = torch.diag(torch.rand(n)), torch.rand(n)
A, G = torch.randn(e, n), torch.randn(m, n)
h = (G @ torch.linalg.pinv(A)).abs().sum(-1)
inequalities = AffineSet.inequality(G, h)


def limits(x):
    return AffineSet.equality(A, x) & inequalities


def cost(y):
    return 0.5 * (y @ Q * y).sum(-1) + (p * y.sin()).sum(-1)


train, test = 2 * torch.rand(3000, e) - 1, 2 * torch.rand(200, e) - 1

# %%
# ## The best answers
#
# Without learning: gradient steps, each projected on the set. For a small non-convex problem this is a solver.


def optimum(x, steps):
    y = project(torch.zeros(len(x), n), limits(x)).value
    for _ in range(10 if quick else steps):
        y = project(y - 0.3 * (y @ Q + p * y.cos()), limits(x)).value
    return y


start = time.perf_counter()
best = optimum(test, 300)
solver_time = (time.perf_counter() - start) / len(test)

# %%
# ## Three networks
#
# They have equal size and the same training. `caffnet.methods` has the rivals and one training loop for all.

torch.manual_seed(1)
models = {
    "DC3": METHODS["dc3"](FeedForward(e, n, hidden=128), limits, lr=1e-3),
    "penalty, then projected": METHODS["soft"](FeedForward(e, n, hidden=128), limits, penalty=Penalty(10.0, power=2)),
    "through the layer": METHODS["orthogonal"](FeedForward(e, n, hidden=128), limits, gradient="tangent"),
}
history, answers, took = {}, {}, {}
for name, model in models.items():
    history[name] = fit(model, train, lambda y, _: cost(y).mean(), epochs=1 if quick else 40, batch=100)
    history[name] += fit(model, train, lambda y, _: cost(y).mean(), epochs=1 if quick else 20, batch=100, lr=1e-4)
    model.eval()
    with torch.no_grad():
        start = time.perf_counter()
        y = model(test)
        answers[name] = project(y, limits(test)).value if "projected" in name else y
        took[name] = (time.perf_counter() - start) / len(test)

# %%
# ## Compare

gaps = {}
for name, y in answers.items():
    broken = limits(test).violation(y).amax(-1)
    gaps[name] = 100 * (cost(y) - cost(best)) / cost(best).abs()
    share = 100 * (broken > 1e-6).double().mean()
    told = f"gap {gaps[name].mean():6.3f} %, worst {gaps[name].max():6.2f} %, infeasible {share:3.0f} %"
    print(f"{name:24} {told}, by {broken.max():.0e}, {1e6 * took[name]:4.0f} µs a sample")
print(f"projected gradient steps take {1e6 * solver_time:.0f} µs a sample")
assert limits(test).contains(answers["through the layer"]).all()
assert quick or gaps["through the layer"].mean() < gaps["DC3"].mean()

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.3))
for name in answers:
    left.plot(history[name], label=name)
    right.plot(gaps[name].clamp_min(1e-4).sort().values, torch.linspace(0, 100, len(test)), label=name)
left.axhline(cost(optimum(train, 100)).mean(), color="black", lw=0.8, ls="--", label="the optimum")
left.set(xlabel="epoch", ylabel="cost", title="training inputs")
right.set(xscale="log", xlabel="distance to the optimum (%)", ylabel="share of test inputs (%)", title="new inputs")
left.legend(fontsize=8, loc="upper right")
figure.tight_layout()

# %%
# ## What to watch for
#
# - A cost below the optimum is not a success: such an answer breaks rows. Look at the gap and at the broken rows.
# - If the cost is convex and quadratic, do not train: one projection in its metric is the optimum.
# - `gradient="tangent"` matters here: at the optimum many rows are active, and with the exact gradient an answer never
#   leaves them again.
# - The full task has 100 outputs: `caffnet run dc3-nonconvex`, with seeds and intervals in
#   [the yardsticks](../yardsticks.md).
