"""# A portfolio with sector limits and turnover

**The problem.** Every week, choose the weights of twelve assets from noisy signals. Rules: weights add up to 1, none is
negative or above 20 %, no sector above 45 %, and at most 20 % of the portfolio is traded.

**The usual alternative** is a softmax network: its weights add up. Limits and turnover go into a penalty, and are
broken when it matters; or the weights are clipped and scaled afterwards, which trades more than allowed.

**Here** all rules are rows. Turnover is an absolute value, `Σ|w - w_old| <= 0.2`. It becomes affine with two outputs
per asset, the amounts bought and sold.
"""

import sys

import matplotlib.pyplot as plt
import torch

from caffnet import AffineSet, CAffNet, FeedForward, InfeasibleError, Status, prepare, project

quick = "--quick" in sys.argv
torch.manual_seed(0)
assets, weeks = 12, (60 if quick else 500)

# %%
# ## Data
#
# Signals fade over some weeks and carry nonlinear information about next week's returns. Most of a return is noise.

sectors = torch.eye(3).repeat_interleave(4, -1)  # three sectors of four assets


def market(paths):
    noise, signal = torch.randn(paths, weeks, assets), [torch.randn(paths, assets)]
    for week in range(weeks - 1):
        signal.append(0.95 * signal[-1] + 0.31 * noise[:, week])
    signal = torch.stack(signal, 1)
    mean = 0.004 * torch.tanh(2 * signal) * (1 + signal.mean(-1, keepdim=True))
    factor = 0.015 * torch.randn(paths, weeks, 1)
    return signal, mean + factor + 0.02 * torch.randn(paths, weeks, assets)


train, test = market(64), market(200)

# %%
# ## The rules
#
# The outputs are the amounts bought and sold, 24 numbers `(b, s) >= 0`; the weights are `w_old + b - s`. The rows
# are the same every week; the bounds depend on the old weights, which are a part of the input.

buy, sell = torch.eye(assets), -torch.eye(assets)
rows = torch.cat([torch.cat([buy, sell], -1), torch.cat([sectors, -sectors], -1), torch.ones(1, 24)])
balance = AffineSet.equality(torch.cat([torch.ones(1, 12), -torch.ones(1, 12)], -1), [0.0], names=["self-financing"])
names = [f"asset {i}" for i in range(12)] + ["sector A", "sector B", "sector C", "turnover"]
ready = prepare(balance & AffineSet(rows, 0.0, 1.0, names=names) & AffineSet.box(0.0, 0.2, dim=24))


def rules(x):
    old = x[..., assets:]
    zero, spread = torch.zeros_like(old[..., :1]), torch.ones_like(old)
    lower = torch.cat([zero, -old, -(old @ sectors.T), zero, 0 * spread, 0 * spread], -1)
    upper = torch.cat([zero, 0.2 - old, 0.45 - old @ sectors.T, zero + 0.2, 0.2 * spread, 0.2 * spread], -1)
    return ready.with_bounds(lower, upper)


# %%
# ## Train
#
# A policy maps signals and old weights to trades. The loss is that of an investor, along paths of 20 weeks: the mean
# earnings less their variance, after the costs of trading.


class Trader(torch.nn.Module):
    """Wanted weights as trades; `free` for the layer, else by a softmax, which adds up: the usual alternative."""

    def __init__(self, free):
        super().__init__()
        self.net, self.free = FeedForward(24, 12, hidden=64, layers=2), free

    def forward(self, x):
        old = x[..., assets:]
        wanted = self.net(torch.cat([x[..., :assets], 12 * old - 1], -1))
        trade = (old + 0.05 * wanted if self.free else wanted.softmax(-1)) - old
        return torch.cat([trade.clamp_min(0), (-trade).clamp_min(0)], -1)


def invest(model, signal, returns):
    old = torch.full((len(signal), assets), 1 / assets)
    earned, broken = [], []
    for week in range(signal.shape[1]):
        x = torch.cat([signal[:, week], old], -1)
        trades = model(x)
        broken.append(rules(x).set.violation(trades).amax(-1))
        old = old + trades[:, :assets] - trades[:, assets:]
        earned.append((old * returns[:, week]).sum(-1) - 0.001 * trades.sum(-1))
    return torch.stack(earned, -1), torch.stack(broken, -1)


def fit(model, penalty=0.0):
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(3 if quick else 400):
        path = torch.randint(len(train[0]), (32,))
        week = int(torch.randint(weeks - 20, ()))
        earned, broken = invest(model, *(t[path, week : week + 20] for t in train))
        loss = -100 * (earned.mean() - 2 * earned.var()) + penalty * broken.square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


models = {
    "softmax": fit(Trader(free=False)),
    "softmax with a penalty": fit(Trader(free=False), 1000.0),
    "through the layer": fit(CAffNet(Trader(free=True), rules, gradient="tangent")),
}

# %%
# ## Compare
#
# On paths that were not used for training. The yearly Sharpe ratio is the mean of the earnings over their deviation,
# times √52.

span = 20 if quick else 100
results = {}
for name, model in models.items():
    with torch.no_grad():
        earned, broken = results[name] = invest(model, *(t[:, :span] for t in test))
    sharpe = earned.mean() / earned.std() * 52**0.5
    share = 100 * (broken > 1e-5).float().mean()
    print(
        f"{name:23} {5200 * earned.mean():5.1f} % a year, Sharpe {sharpe:.2f}, weeks with a broken rule {share:3.0f} %"
    )
assert results["through the layer"][1].max() < 1e-5

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.3))
for name, (earned, broken) in results.items():
    left.plot(100 * earned.cumsum(-1).mean(0), label=name)
    worst = 100 * broken.flatten().sort().values[::100]
    right.plot(torch.linspace(0, 100, len(worst)), worst)
left.set(xlabel="week", ylabel="earned (%), mean of 200 paths", title="new paths")
left.legend(fontsize=8)
right.set(xlabel="share of weeks (%)", ylabel="worst rule broken by (% of the portfolio)", title="rules")
figure.tight_layout()

# %%
# ## When prices move the weights
#
# Above, the old weights are those that were bought. In a real account prices move them: here one asset has grown to
# 35 %. Selling 15 % and buying 15 % of others is more than the turnover allows, so the set is empty.

old = torch.full((1, assets), 0.65 / 11)
old[:, 0] = 0.35
x = torch.cat([torch.zeros(1, assets), old], -1)
keep = torch.zeros(1, 24)  # buy and sell nothing
try:
    project(keep, rules(x))
except InfeasibleError as error:
    named = [name for name in error.conflicts[0].names if not name.startswith("row ")]
    print("no trades keep all rules; in conflict:", ", ".join(named))

# %%
# Make the turnover soft. The other rules hold, and the portfolio is traded as little above 20 % as they allow. As the
# constraint of a `CAffNet`, `forgiving` gives the same answers as `rules` wherever these exist.

turnover = AffineSet.inequality(torch.ones(1, 24), [0.2], names=["turnover"])


def forgiving(x):
    hard = rules(x).set
    upper = hard.upper.clone()
    upper[..., 16] = torch.inf  # the turnover: after the balance, 12 assets and 3 sectors
    return hard.with_bounds(upper=upper) & turnover.soft()


answer = project(keep, forgiving(x))
new = old + answer.value[:, :assets] - answer.value[:, assets:]
status, traded = Status(int(answer.status)).name, answer.value.sum()
print(f"{status}: traded {100 * traded:.0f} %, largest asset {100 * new.max():.0f} %")
assert answer.status == Status.RELAXED and new.max() < 0.2 + 1e-6

# %%
# ## What to watch for
#
# - Compare only what is allowed: the free softmax trades far more than 20 % a week.
# - The rows allow buying and selling the same asset in one week; only the costs prevent it.
# - The old weights must satisfy the limits, or a small turnover cannot repair them: the set is then empty, and the
#   error names the rules in conflict. Where weights drift with prices, make the turnover soft, as above.
# - Bounds that depend on the output of the step before make training recurrent: gradients flow through them. Detach
#   `old` in `rules` if that is not wanted.
