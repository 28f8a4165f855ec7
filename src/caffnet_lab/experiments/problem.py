"""An experiment: data, constraints, a loss and an evaluation.

The same `AffineSet` goes to the layer, to the penalty and to the metrics: what is enforced is what is measured.
"""

from __future__ import annotations

import abc
import dataclasses
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from caffnet import AffineSet, Prepared, prepare
from caffnet.constraints import BOTH, EQUAL, LOWER, UPPER
from caffnet_lab.experiments.shape import COUNTED


class Loss(NamedTuple):
    """The loss of a batch, as sums over its samples.

    Attributes:
        cost: what is minimised.
        penalty: the violations, squared (or not, see `penalty_of`), before the weight.
        worst: the largest violation, for display; no gradient.
    """

    cost: Tensor
    penalty: Tensor
    worst: Tensor


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Result on the test set.

    Attributes:
        metrics: numbers, possibly in groups.
        curves: lists of numbers, for the figures.
    """

    metrics: dict[str, Any]
    curves: dict[str, Any]


class Problem(abc.ABC):
    """One experiment for one seed.

    Attributes:
        name: of the task, as in `caffnet run`.
        n_in: inputs of a network.
        n_out: outputs of a network.
        train: training inputs, ``(N, n_in)``.
        test: test inputs, ``(M, n_in)``.
        shared_rows: whether `A` is the same for all inputs, and only the bounds differ.
        encoder: what a network sees of an input; None for the input itself.
        correction_rate: of DC3's corrections, as published: 1e-7, for power flow 1e-4.
        starts_at_zero: whether the raw output of an untrained network is zero: then it learns a correction.
        warm_start: of layers without w; ``"first"`` where the samples of a batch mostly meet the same rows.
    """

    name: str
    n_in: int
    n_out: int
    train: Tensor
    test: Tensor
    correction_rate: float = 1e-7
    starts_at_zero: bool = False
    warm_start: bool | str = False
    encoder: nn.Module | None = None
    shared_rows: bool = False

    def __init__(self) -> None:
        self._last: tuple[Tensor, AffineSet] | None = None
        self._plans: dict[str, Prepared] = {}

    @abc.abstractmethod
    def build_set(self, x: Tensor) -> AffineSet:
        """The constraints at the inputs x ``(..., n_in)``."""

    @abc.abstractmethod
    def loss(self, model: nn.Module, x: Tensor, penalty: str = "squared") -> Loss:
        """The training loss of a batch of inputs; `penalty` as in `penalty_of`."""

    @abc.abstractmethod
    def evaluate(self, model: nn.Module, exact: bool = False) -> Evaluation:
        """All metrics on the test set; `exact` as in `violation_metrics`."""

    @abc.abstractmethod
    def forward_for_timing(self, model: nn.Module) -> Callable[[], Any]:
        """The inference whose time is reported as T_test."""

    def solve(self, name: str) -> tuple[Tensor, float]:
        """Answers to the test set by a row that is not trained, and the milliseconds that they took.

        Raises:
            NotImplementedError: the task has no such row.
        """
        raise NotImplementedError(f"{self.name} has no row {name}.")

    def evaluate_points(self, y: Tensor, exact: bool = False) -> Evaluation:
        """`evaluate` for given answers to the test set, where the task has rows that are not trained."""
        raise NotImplementedError(f"{self.name} judges models, not answers.")

    def judge(self, name: str) -> tuple[Evaluation, float]:
        """The evaluation of a row that is not trained, and the milliseconds that its answers took."""
        answers, milliseconds = self.solve(name)
        return self.evaluate_points(answers), milliseconds

    def constraint(self, x: Tensor) -> AffineSet:
        """`build_set`, remembered for the last input: layer, penalty and metric ask one after the other."""
        if self._last is None or self._last[0] is not x:
            self._last = (x, self.build_set(x))
        return self._last[1]

    def enforced(self, search: str) -> Callable[[Tensor], AffineSet | Prepared]:
        """The constraints as a layer with this search wants them: prepared, where `A` is the same for all inputs."""

        def at(x: Tensor) -> Prepared:
            here = self.constraint(x)
            if search not in self._plans:
                self._plans[search] = prepare(here, search)
            return self._plans[search].with_bounds(here.lower, here.upper)

        return at if self.shared_rows else self.constraint

    def to(self, device: torch.device, dtype: torch.dtype) -> Problem:
        """Move all data; the draws themselves are always float64 on the CPU."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(self, name, value.to(device, dtype))
        self._last = None
        self._plans.clear()
        return self


def penalty_of(violation: Tensor, form: str) -> tuple[Tensor, Tensor]:
    """The penalty of violations ``(..., m)`` and the largest of them.

    ``"squared"`` is what the authors' code minimises, ``"linear"`` what the paper writes. An equality is one row here
    and two in the paper, of which only one is ever broken: the sums agree.
    """
    amount = violation.square().sum() if form == "squared" else violation.sum()
    return amount, violation.detach().max()


def one_sided(set: AffineSet, y: Tensor) -> tuple[Tensor, Tensor]:
    """Violations as the paper counts them: one column per inequality ``(..., k)`` and one per equality ``(..., e)``."""
    value = (set.A @ y.unsqueeze(-1)).squeeze(-1)
    over, under = (value - set.upper).clamp_min(0), (set.lower - value).clamp_min(0)
    above = [i for i, side in enumerate(set.row_kinds) if side in (UPPER, BOTH)]
    below = [i for i, side in enumerate(set.row_kinds) if side in (LOWER, BOTH)]
    equal = [i for i, side in enumerate(set.row_kinds) if side == EQUAL]
    return torch.cat([over[..., above], under[..., below]], -1), torch.maximum(over, under)[..., equal]


def exact_inequalities(set: AffineSet, y: Tensor) -> Tensor:
    """The inequality columns of `one_sided` in exact arithmetic, rounded once.

    Evaluating ``a y - b`` in floating point errs by a few units in the last place, in both directions. A claim that a
    row holds *exactly* has to be measured without that error.
    """
    A, y, lower, upper = (t.detach().double().cpu() for t in (set.A, y, set.lower, set.upper))
    samples = y.shape[:-1].numel()
    rows = A.expand(*y.shape[:-1], set.m, set.n).reshape(samples, set.m, set.n).tolist()
    bounds = [t.expand(*y.shape[:-1], set.m).reshape(samples, set.m).tolist() for t in (lower, upper)]
    sides = [(i, 1) for i, side in enumerate(set.row_kinds) if side in (UPPER, BOTH)]
    sides += [(i, -1) for i, side in enumerate(set.row_kinds) if side in (LOWER, BOTH)]
    table = []
    for a, point, low, high in zip(rows, y.reshape(samples, set.n).tolist(), *bounds, strict=True):
        exact = [Fraction(value) for value in point]
        values = [sum(Fraction(entry) * value for entry, value in zip(row, exact, strict=True)) for row in a]
        excess = (values[i] - Fraction(high[i]) if sign > 0 else Fraction(low[i]) - values[i] for i, sign in sides)
        table.append([max(0.0, float(amount)) for amount in excess])
    return torch.tensor(table, dtype=torch.float64)


def violation_metrics(set: AffineSet, y: Tensor, exact: bool = False) -> dict[str, dict[str, float | int]]:
    """Statistics of the violations at y, by kind; with `exact` also of the inequalities in exact arithmetic."""
    inequality, equality = one_sided(set, y)
    found = {"inequality": summarise_violations(inequality)}
    if equality.shape[-1]:
        found["equality"] = summarise_violations(equality)
    if exact:
        found["exact_inequality"] = summarise_violations(exact_inequalities(set, y))
    return found


def summarise_violations(rows: Tensor) -> dict[str, float | int]:
    """Statistics of violations ``(samples, rows)``.

    ``mean_of_max`` is what the paper's tables call "Max": the mean over samples of the largest row. ``max`` is the true
    maximum, ``percent`` the share above 1e-6, ``exact_zeros`` the number of entries that are exactly 0.
    """
    rows = rows.detach().double().reshape(-1, rows.shape[-1])
    return {
        "mean_of_max": rows.amax(-1).mean().item(),
        "max": rows.max().item(),
        "mean": rows.mean().item(),
        "percent": 100 * (rows > COUNTED).double().mean().item(),
        "exact_zeros": int((rows == 0).sum()),
        "entries": rows.numel(),
    }


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all work, so that times are right."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_forward(forward: Callable[[], Any], device: torch.device, budget: float = 1.0) -> float:
    """Median time of a call in milliseconds, after warm-up, synchronised; about `budget` seconds are spent."""
    times: list[float] = []
    with torch.no_grad():
        for _ in range(2):
            forward()
        end = time.perf_counter() + budget
        while len(times) < 3 or (time.perf_counter() < end and len(times) < 100):
            synchronise(device)
            start = time.perf_counter()
            forward()
            synchronise(device)
            times.append(time.perf_counter() - start)
    return 1e3 * sorted(times)[len(times) // 2]
