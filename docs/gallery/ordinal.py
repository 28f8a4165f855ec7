"""# Ordered grades

**The problem.** How severe will a side effect be, grade 0 to 4, at each of four doses? A network reads six features of
a patient and gives the probability that the grade exceeds 0, 1, 2 and 3 at every dose: 16 numbers in two orders. A
higher grade is never more probable to be exceeded than a lower one, or some grade has a negative probability. And a
higher dose is never safer.

**The usual alternatives.** A softmax over the grades for every dose: it keeps the first order, not the second. A
penalty for a wrong order, which makes wrong orders rarer and smaller.

**Here** both orders are rows, `y_i - y_j >= 0`, and the probabilities lie in a box: one fixed set. The layer keeps it
for every patient.
"""

import sys

import matplotlib.pyplot as plt
import torch
from torch import nn

from caffnet import AffineSet, CAffNet, FeedForward, project

quick = "--quick" in sys.argv
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
doses, cuts = 4, 4

# %%
# ## Data
#
# Each of 600 patients got one dose, and one grade was seen. Some patients hardly react to the dose, so noise easily
# teaches a wrong order. The data are invented: the true probabilities are known.

slope, react, width = torch.randn(3, 6)


def truth(x):
    """The probability that the grade exceeds 0, 1, 2, 3, at every dose: (..., 4, 4)."""
    effect = 0.5 * nn.functional.softplus(x @ react - 1)[..., None, None] * torch.arange(doses).unsqueeze(-1)
    level = (x @ slope).tanh()[..., None, None] + effect - torch.tensor([-0.5, 0.3, 1.0, 1.8])
    return (1.5 * level * (1 + (x @ width).sigmoid())[..., None, None]).sigmoid()


def patients(count):
    x, dose = torch.randn(count, 6), torch.randint(doses, (count,))
    exceeded = torch.rand(count, 1) < truth(x)[torch.arange(count), dose]  # True, ..., True, False, ...: one grade
    return x, dose, exceeded.double()


train, test = patients(600), patients(2000)

# %%
# ## The two orders as rows
#
# Neighbours are enough: 12 rows between grades and 12 between doses.

index = torch.arange(doses * cuts).reshape(doses, cuts)
larger = torch.cat([index[:, :-1].flatten(), index[1:].flatten()])
smaller = torch.cat([index[:, 1:].flatten(), index[:-1].flatten()])
unit = torch.eye(doses * cuts)
place = [f"grade > {cut} at dose {dose}" for dose in range(doses) for cut in range(cuts)]
names = [f"{place[i]} >= {place[j]}" for i, j in zip(larger, smaller, strict=True)]
order = AffineSet(unit[larger] - unit[smaller], 0.0, None, names=names)
ordered = order & AffineSet.box(0.0, 1.0, dim=doses * cuts)

# %%
# ## Softmax, with a penalty, and through the layer
#
# All have the same network, data and steps. The loss is the ranked probability score: the squared error of the four
# probabilities at the dose that was given. A small and a large weight of the penalty are tried.


class Grades(nn.Sequential):
    """A softmax over five grades for every dose, added up from the highest grade."""

    def __init__(self):
        super().__init__(*FeedForward(6, doses * (cuts + 1), hidden=64, layers=2))

    def forward(self, x):
        grades = super().forward(x).unflatten(-1, (doses, cuts + 1)).softmax(-1)
        return grades.flip(-1).cumsum(-1).flip(-1)[..., 1:].flatten(-2)


def score(y, dose, exceeded):
    given = y.unflatten(-1, (doses, cuts))[torch.arange(len(y)), dose]
    return (given - exceeded).square().sum(-1).mean()


def fit(penalty=0.0, layer=False):
    torch.manual_seed(1)
    model = CAffNet(Grades(), ordered, gradient="tangent") if layer else Grades()
    optimiser = torch.optim.Adam(model.parameters(), 2e-3, weight_decay=3e-3)
    for _ in range(10 if quick else 400):
        x, dose, exceeded = (t[batch] for batch in [torch.randint(600, (128,))] for t in train)
        y = model(x)
        loss = score(y, dose, exceeded) + penalty * order.violation(y).square().sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


models = {"softmax": fit(), "penalty 10": fit(10.0), "penalty 1000": fit(1000.0), "through the layer": fit(layer=True)}

# %%
# ## Compare
#
# On 2000 new patients: the score, the error against the true probabilities, and the patients who get a wrong order. Two
# of the networks are also projected after training, by one call.

x, dose, exceeded = test
best = truth(x).flatten(-2)
with torch.no_grad():
    answers = {name: model(x) for name, model in models.items()}
for name in ("softmax", "penalty 10"):
    answers[f"{name}, projected"] = project(answers[name], ordered).value
for name, y in answers.items():
    error, broken = (y - best).square().mean().sqrt(), order.violation(y).amax(-1)
    share = 100 * (broken > 1e-9).double().mean()
    told = f"score {score(y, dose, exceeded):.4f}, error {error:.4f}"
    print(f"{name:21} {told}, wrong order {share:5.1f} %, by {broken.max():.0e}")
assert ordered.contains(answers["through the layer"]).all()
before, after = ((answers[name] - best).norm(dim=-1) for name in ("softmax", "softmax, projected"))
assert (after <= before + 1e-12).all()
print(f"projection brings {100 * (after < before - 1e-12).double().mean():.0f} % of the patients nearer to the truth")

# %%
# The patient with the largest fall of the softmax between two doses, and the largest wrong step of every patient, in
# probability.

risk = answers["softmax"].unflatten(-1, (doses, cuts))[..., 1]
worst = (risk[:, :-1] - risk[:, 1:]).amax(-1).argmax()
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.3))
for name in models:
    y = answers[name].unflatten(-1, (doses, cuts))
    left.plot(y[worst, :, 1], "o-", ms=4, label=name)
    broken = order.violation(answers[name]).amax(-1).sort(descending=True).values
    right.plot(torch.linspace(0, 100, len(broken)), broken, label=name)
left.plot(truth(x)[worst, :, 1], "k--", lw=1, label="truth")
left.set(xlabel="dose", ylabel="probability of grade 2 or more", xticks=range(doses), ylim=(0, 1))
left.set_title("worst patient of the softmax")
left.legend(fontsize=8)
right.set(xlabel="share of patients (%)", ylabel="largest wrong step", title="2000 new patients")
right.legend(fontsize=8)
figure.tight_layout()

# %%
# ## What to watch for
#
# - If the order of the grades is the only rule, a softmax keeps it by itself: no layer is needed. The layer is for
#   orders in two directions, or for an order beside other rows.
# - Order alone says little about accuracy. Here a small penalty teaches as much as the layer, but leaves wrong orders;
#   a large one costs accuracy, and still leaves some. Both can be combined: penalise the raw output and project.
# - The projection is never farther from the truth than the raw output, for any patient, as the truth is in the set.
# - Projected probabilities are often equal: a grade then has probability zero. With a logarithm in the loss ask for a
#   gap, such as a lower bound of 0.001 instead of 0 for the rows between grades.
# - One order of many outputs, `y[j] >= y[j + 1]`, is recognised, and solved in linear time from 12 outputs on:
#   [Large sets](../structure.md).
