"""# Coherent, non-negative forecasts

**The problem.** Eight shops in two regions, and their totals: eleven series. Forecasts are made for each. They must
add up, and none may be negative: many shops sell little.

**The usual alternatives.** Bottom-up: forecast the shops and add. MinT: the best linear reconciliation, which may turn
shops negative; clipping them to zero then breaks the sums.

**Here** "adds up and is not negative" is one fixed set. The projection in the metric of the forecast errors *is*
non-negative MinT, in one call for all days; and a network can be trained through it.
"""

import sys

import matplotlib.pyplot as plt
import torch
from torch import nn

from caffnet import AffineSet, CAffNet, project

quick = "--quick" in sys.argv
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)

# %%
# ## Data
#
# Sales of eight shops over three years: a level, a weekly pattern, good and bad times of each region, and noise. Most
# shops sell less than one piece a day.

days, shops = (400 if quick else 1100), 8
t = torch.arange(days).unsqueeze(-1)
level = torch.tensor([4.0, 1.0, 0.5, 0.2, 3.0, 0.8, 0.3, 0.1])
week = 1 + 0.8 * torch.sin(2 * torch.pi * (t + torch.arange(shops)) / 7)
times = [torch.zeros(2)]
for _ in range(days - 1):
    times.append(0.9 * times[-1] + 0.4 * torch.randn(2))
sales = torch.poisson(level * week * torch.stack(times).exp().repeat_interleave(4, -1))
sums = torch.cat([torch.ones(1, 8), torch.eye(2).repeat_interleave(4, -1), torch.eye(8)])  # 11 series from 8 shops
series = sales @ sums.T

# %%
# **Base forecasts**, each series by itself: a linear regression on the last two weeks, fitted on the first part.

window, split = 14, days * 2 // 3
past = series.unfold(0, window, 1)[:-1]  # (days - 14, 11, 14)
target = series[window:]
ones = torch.ones(*past.shape[:2], 1)
features = torch.cat([past, ones], -1).transpose(0, 1)  # one regression per series
weights = torch.linalg.lstsq(features[:, : split - window], target.T[:, : split - window].unsqueeze(-1)).solution
base = (features @ weights).squeeze(-1).T
known, new = slice(0, split - window), slice(split - window, None)
errors = (base - target)[known]
covariance = errors.T @ errors / len(errors) + 1e-3 * torch.eye(11)

# %%
# ## Reconcile
#
# `add_up` has the three sums; together with the box they are the set.

add_up = AffineSet.equality(torch.cat([torch.eye(3), -sums[:3]], -1), torch.zeros(3), names=["all", "north", "south"])
coherent = add_up & AffineSet.box(0.0, None, dim=11)
metric = torch.linalg.inv(covariance)

forecasts = {"base": base, "bottom-up": base[:, 3:] @ sums.T}
forecasts["MinT"] = project(base, add_up, metric=metric).value
forecasts["MinT, clipped"] = forecasts["MinT"].clamp_min(0)
forecasts["MinT, clipped below"] = forecasts["MinT"][:, 3:].clamp_min(0) @ sums.T
forecasts["projected"] = project(base, coherent, metric=metric).value

# %%
# ## Train through the layer
#
# A small network corrects the base forecasts of all series at once; the layer at its end puts them into the set.


class Correction(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(11, 32), nn.SiLU(), nn.Linear(32, 11))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)
        self.scale = target[known].mean(0)

    def forward(self, f):
        return f + 0.2 * self.scale.sqrt() * self.net(f / self.scale)


model = CAffNet(Correction(), coherent, metric=metric, gradient="tangent")
optimiser = torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-3)
unit = errors.square().mean(0)  # every series counts alike
for _ in range(5 if quick else 300):
    batch = torch.randint(split - window, (64,))
    loss = ((model(base[batch]) - target[batch]).square() / unit).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
with torch.no_grad():
    forecasts["trained through"] = model(base)

# %%
# ## Compare
#
# On days that were not used: root mean square error over that of the base forecasts, by level; the largest gap in a
# sum; and how many forecasts are negative.

levels = {"total": [0], "regions": [1, 2], "shops": list(range(3, 11))}
usual = (base - target)[new].square().mean(0)
ratio = {}
for name, y in forecasts.items():
    share = (y - target)[new].square().mean(0) / usual
    ratio[name] = [float(share[i].mean().sqrt()) for i in levels.values()]
    gap, negative = add_up.violation(y[new]).max(), 100 * (y[new] < 0).double().mean()
    told = ", ".join(f"{level} {value:.3f}" for level, value in zip(levels, ratio[name], strict=True))
    print(f"{name:20} {told}; sums off by {gap:.0e}, negative {negative:4.1f} %")
assert coherent.contains(forecasts["projected"]).all() and coherent.contains(forecasts["trained through"]).all()

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
shown = [name for name in forecasts if name not in ("base", "MinT, clipped")]
for i, name in enumerate(shown):
    left.bar(torch.arange(3) + 0.15 * i - 0.3, ratio[name], 0.14, label=name)
left.axhline(1, color="black", lw=0.8)
left.set(ylim=(0.8, None), ylabel="error over that of the base forecasts", xticks=range(3), xticklabels=levels)
left.legend(fontsize=7)
last, shop = slice(-90, None), 3 + int((forecasts["MinT"][new, 3:] < 0).sum(0).argmax())
right.plot(target[last, shop], "k.", ms=3, label="sales")
for name in ("MinT", "projected"):
    right.plot(forecasts[name][last, shop], label=name)
right.axhline(0, color="black", lw=0.8)
right.set(xlabel="day", ylabel="sales", title="one small shop")
right.legend(fontsize=8)
figure.tight_layout()

# %%
# ## What to watch for
#
# - The metric is the *inverse* covariance of the base errors. With few days shrink it (here `1e-3` on the diagonal).
# - Equalities are always active, so every forecast moves: coherence requires it.
# - Training through the layer needs data; with two years only a small correction helps. Compare it with the projection
#   alone, as above and in [the yardsticks](../yardsticks.md).
# - A new shop is a new column of the rows: build the set from the hierarchy, not by hand.
