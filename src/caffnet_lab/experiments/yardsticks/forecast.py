"""forecast-*: forecasts of series that add up and cannot be negative.

Every series has a base forecast ŷ of its own; together they do not add up. With W the covariance of their errors the
best coherent forecast is ``S b`` with (MinT)

    b = argmin (ŷ - S b)ᵀ W⁻¹ (ŷ - S b)   s.t.  b >= 0.

Let ``SᵀW⁻¹S = RᵀR`` with R upper triangular and ``b̂ = (SᵀW⁻¹S)⁻¹SᵀW⁻¹ŷ``, the answer without the bounds. Then in the
variable ``z = R b`` the answer is the plain projection of ``R b̂`` on ``{z : R⁻¹z >= 0}``. So a network gives z, all
methods work on that set, and its forecasts are ``S R⁻¹ z``: they add up whatever z is.

A network gets the base forecasts and adds a correction to ``R b̂``; without one, what remains is non-negative MinT.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from caffnet import AffineSet, project
from caffnet._install import install_command
from caffnet.constraints import LOWER
from caffnet.methods import Method
from caffnet_lab.experiments.problem import Evaluation, Loss, Problem, penalty_of, violation_metrics
from caffnet_lab.experiments.shape import COUNTED
from caffnet_lab.experiments.yardsticks.data import find
from caffnet_lab.experiments.yardsticks.hierarchy import base_forecasts, read_hierarchy, shrunk_covariance

#: Times in a season; and at the end of the series, how many are for the choice of settings and for the test.
SEASONS = {"forecast-tourismsmall": 4, "forecast-labour": 12, "forecast-wiki2": 7}
VALID = {"forecast-tourismsmall": 4, "forecast-labour": 48, "forecast-wiki2": 28}
TEST = {"forecast-tourismsmall": 8, "forecast-labour": 96, "forecast-wiki2": 56}
#: W: of the errors as they are ("shrunk"), of each series by itself ("variances"), or the same for all ("equal").
COVARIANCES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "shrunk": shrunk_covariance,
    "variances": lambda errors: np.diag(np.diag(shrunk_covariance(errors))),
    "equal": lambda errors: errors.var(0).mean() * np.eye(errors.shape[1]),
}
#: The one with the lowest score of non-negative MinT in the validation times.
COVARIANCE = {"forecast-tourismsmall": "equal", "forecast-labour": "shrunk", "forecast-wiki2": "equal"}
TOLERANCE = 1e-10  # of DAQP
ROUNDING = 1e-12  # of the largest bottom forecast: what is nearer to zero is zero
FACTOR = 3.0  # inputs are base forecasts in standard deviations, over this


class ForecastProblem(Problem):
    """One hierarchy; a sample is a time and a lead, from one step to a season.

    Args:
        name: of the task.
        seed: of the run, not used here: the data are always the same.

    Attributes:
        sums: S, ``(n, b)``.
        root: R, ``(b, b)``.
        train_scale: mean squared error of the last known value as a forecast, summed over the series.
        test_scale: the same of the test samples: what a score is measured by.
    """

    shared_rows = True
    starts_at_zero = True
    correction_rate = 1e-3  # of rows of length one

    def __init__(self, name: str, seed: int = 0):
        super().__init__()
        del seed
        self.name, season = name, SEASONS[name]
        series = read_hierarchy(find("hierarchical") / name.removeprefix("forecast-"), season)
        S, values = series.sums, series.values
        last = len(values) - TEST[name]
        first = last - VALID[name]
        # W comes from forecasts of one step in the training times: it does not see what is forecast later.
        errors = (values - base_forecasts(values, season, 1, first))[season + 1 : first]
        inverse = np.linalg.inv(COVARIANCES[COVARIANCE[name]](errors))
        self.n_in, self.n_out = S.shape
        self.sums = torch.from_numpy(S)
        metric = S.T @ inverse @ S
        self.root = torch.linalg.cholesky(torch.from_numpy((metric + metric.T) / 2)).mT.contiguous()
        self.unroot = torch.linalg.inv(self.root)
        self.mint = torch.from_numpy(np.linalg.solve(metric, S.T @ inverse))  # ŷ -> b̂
        self.centre = torch.from_numpy(values[:first].mean(0))
        self.spread = FACTOR * torch.from_numpy(values[:first].std(0)).clamp_min(1e-9)
        parts: list[list[np.ndarray]] = [[], [], []]
        targets: list[list[np.ndarray]] = [[], [], []]
        unchanged: list[list[np.ndarray]] = [[], [], []]
        for lead in range(1, season + 1):
            base, start = base_forecasts(values, season, lead, first), season + lead
            for i, (begin, end) in enumerate(((start, first), (first, last), (last, len(values)))):
                parts[i].append(base[begin:end])
                targets[i].append(values[begin:end])
                unchanged[i].append(values[begin - lead : end - lead])
        naive = [
            np.square(np.concatenate(a) - np.concatenate(b)).sum(1) for a, b in zip(targets, unchanged, strict=True)
        ]
        self.train_scale, _, self.test_scale = (float(error.mean()) for error in naive)
        inputs = [(torch.from_numpy(np.concatenate(part)) - self.centre) / self.spread for part in parts]
        _, self.valid_target, self.test_target = later = [torch.from_numpy(np.concatenate(part)) for part in targets]
        # The targets of a batch are further columns of its inputs.
        self.train, self.valid, self.test = torch.cat([inputs[0], later[0]], -1), inputs[1], inputs[2]

    def build_set(self, x: Tensor) -> AffineSet:
        """``R⁻¹ z >= 0``, whatever the input; rows of length one, so that penalties are of the size of the errors."""
        del x
        zero = self.unroot.new_zeros(self.n_out)
        rows = nn.functional.normalize(self.unroot, dim=-1)
        return AffineSet.from_parts(rows, zero, zero + math.inf, None, LOWER * self.n_out)

    def base_at(self, x: Tensor) -> Tensor:
        """The base forecasts of inputs, ``(..., n)``."""
        return self.centre + self.spread * x

    def nominal_at(self, x: Tensor) -> Tensor:
        """``R b̂`` of inputs, ``(..., b)``."""
        return self.base_at(x) @ (self.root @ self.mint).mT

    def forecasts(self, z: Tensor) -> Tensor:
        """All series, ``(..., n)``; they add up by construction."""
        return self.bottom(z) @ self.sums.mT

    def bottom(self, z: Tensor) -> Tensor:
        """The bottom series, ``(..., b)``. What rounding leaves below zero of a feasible z is zero."""
        b = z @ self.unroot.mT
        return torch.where(b.abs() <= ROUNDING * b.abs().amax(-1, keepdim=True), b.clamp_min(0), b)

    def loss(self, model: nn.Module, x: Tensor, penalty: str = "squared") -> Loss:
        """The sum over samples of squared errors over `train_scale`, with the terms that a rival's own loss has."""
        known, target = x.split(self.n_in, -1)
        if isinstance(model, Method):
            output = model.run(known, self.nominal_at(known))
            z, cost = output.y, len(x) * model.loss(self.errors(output.y, target).mean(), output)
        else:
            z = model(known, self.nominal_at(known))
            cost = self.errors(z, target).sum()
        return Loss(cost, *penalty_of(self.build_set(known).violation(z), penalty))

    def errors(self, z: Tensor, target: Tensor) -> Tensor:
        """Squared errors of all series together, over `train_scale`, ``(...)``."""
        return (self.forecasts(z) - target).square().sum(-1) / self.train_scale

    def evaluate(self, model: nn.Module, exact: bool = False) -> Evaluation:
        """Result of `evaluate_points` for the forecasts of the test set."""
        with torch.no_grad():
            z = model(self.test, self.nominal_at(self.test))
            return self.evaluate_points(self.forecasts(z), exact)

    def evaluate_points(self, y: Tensor, exact: bool = False) -> Evaluation:
        """Score, coherence and signs of forecasts of all series, ``(samples, n)``."""
        bottom, count = y[..., -self.n_out :], len(y)
        signs = AffineSet.box(y.new_zeros(self.n_out), None)
        apart = (y - bottom @ self.sums.mT).abs().amax(-1)
        broken = (y < 0).any(-1) | (apart > COUNTED * y.abs().amax(-1))
        metrics = {
            "score": ((y - self.test_target).square().sum(-1).mean() / self.test_scale).item(),
            "incoherence": apart.max().item(),
            "negative": 100 * (y < 0).double().mean().item(),
            "infeasible": 100 * broken.double().mean().item(),
            **violation_metrics(signs, bottom, exact),
        }
        worst = int((self.test_target[:, -self.n_out :] == 0).double().mean(0).argmax())  # most often zero
        shown = slice(0, count // SEASONS[self.name])  # of one step
        curves = {
            "target": self.test_target[shown, -self.n_out :][:, worst].tolist(),
            "forecast": bottom[shown, worst].tolist(),
        }
        return Evaluation(metrics, curves)

    def forward_for_timing(self, model: nn.Module) -> Callable[[], Tensor]:
        """All test samples in one call."""
        return lambda: self.forecasts(model(self.test, self.nominal_at(self.test)))

    def solve(self, name: str) -> tuple[Tensor, float]:
        """Forecasts that need no learning, and the milliseconds of the second call."""
        rows = {
            "base": self.take_base,
            "mint": self.take_mint,
            "daqp": self.take_daqp,
            "minimiser": self.take_projection,
        }
        if name not in rows:
            return super().solve(name)
        rows[name]()
        start = time.perf_counter()
        found = rows[name]()
        return found, 1e3 * (time.perf_counter() - start)

    def take_base(self) -> Tensor:
        """The base forecasts, which do not add up."""
        return self.base_at(self.test)

    def take_mint(self) -> Tensor:
        """MinT without bounds: forecasts add up, and may be negative."""
        return self.base_at(self.test) @ (self.sums @ self.mint).mT

    def take_projection(self) -> Tensor:
        """Non-negative MinT: the projection of R b̂."""
        nominal = self.nominal_at(self.test)
        return self.forecasts(project(nominal, self.build_set(self.test), search="active").value)

    def take_daqp(self) -> Tensor:
        """The same by a solver for quadratic programs, one sample after the other."""
        try:
            import daqp
        except ImportError as missing:
            raise ImportError(f"The DAQP row needs daqp: {install_command('experiments')}.") from missing
        root, points = self.root.double().cpu().numpy(), self.nominal_at(self.test).double().cpu().numpy()
        metric, size = root.T @ root, np.sqrt(np.diag(root.T @ root))
        # In units in which the diagonal of the metric is 1.
        H, none = metric / np.outer(size, size), np.zeros((0, len(root)))
        lower, upper, sense = np.zeros(len(root)), np.full(len(root), 1e30), np.zeros(len(root), dtype=np.int32)
        limits = {"primal_tol": TOLERANCE, "dual_tol": TOLERANCE}
        linear = -(points @ root) / size
        found = [daqp.solve(H, line, none, upper, lower, sense, **limits)[0] / size for line in linear]
        return torch.from_numpy(np.stack(found)).to(self.test).clamp_min(0) @ self.sums.mT
