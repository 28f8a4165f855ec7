"""dcopf-*: the cheapest dispatch of the generators of a grid, for any loads. Linear costs, linear (DC) flows.

    min cᵀp   s.t.   Σ p = Σ load,   least <= p <= most,   flow_least <= F_g p + F(-load) <= flow_most

An input has, for each bus with a load, the load over its nominal value, centred and scaled: nominal times a common
factor in [0.8, 1.1] times an independent one in [0.9, 1.1]. Draws that no dispatch can serve are kept aside.
dcopf-118-n1 is secured against the loss of any one branch that is no bridge, where the others may carry `EMERGENCY`
times their limit: 32 931 rows with two sides.

**Without learning.** The projection of ``m - t c / |c|`` minimises ``t cᵀp / |c| + ½ |p - m|²``: from some t on it is
an optimum of the linear program.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from caffnet import AffineSet, Status, project
from caffnet._install import install_command
from caffnet.constraints import BOTH, EQUAL
from caffnet_lab.experiments.problem import Evaluation
from caffnet_lab.experiments.yardsticks.data import find
from caffnet_lab.experiments.yardsticks.grid import read_grid
from caffnet_lab.experiments.yardsticks.yardstick import Yardstick

CASES = {
    **{"dcopf-14": "14_ieee", "dcopf-30": "30_ieee", "dcopf-89": "89_pegase"},
    **{"dcopf-118": "118_ieee", "dcopf-300": "300_ieee", "dcopf-118-n1": "118_ieee"},
}
SECURED = ("dcopf-118-n1",)
EMERGENCY = 1.5  # times the limit of a branch, after another is lost
SEED = 17
#: Loads for training, for the choice of settings and for the test.
SIZES = {name: (500, 100, 100) if name in SECURED else (2000, 500, 500) for name in CASES}
DRAWN = 1.7  # times as many draws: of those of 89 buses a third cannot be served
COMMON, OWN = (0.8, 1.1), (0.9, 1.1)
CENTRE, SPREAD = 0.95, 0.15  # of the factors
PART = 250  # draws at a time: the bounds of 32 931 rows fill the memory
FAR = 1e6  # the t above, per unit
SERVED = 1e-9  # per unit, of rows that HiGHS was not given


class DispatchProblem(Yardstick):
    """One grid, and random loads.

    Args:
        name: of the task.
        seed: of the run, not used here: the grid and its loads are always the same.

    Attributes:
        cost: of each generator that can be moved, $/h per unit, ``(n_out,)``.
        middle: of the powers that each can have.
        aside: draws that no dispatch serves.
    """

    correction_rate = 1e-4
    shared_rows = True
    warm_start = "first"  # one grid: most of its rows bind for any loads

    def __init__(self, name: str, seed: int = 0):
        super().__init__()
        del seed
        self.name = name
        grid = read_grid(find(f"pglib_opf_case{CASES[name]}.m"))
        if grid.cost[:, 0].any():
            raise ValueError(f"{name} has quadratic costs, but this task is a linear program.")
        moves = grid.most > grid.least
        at = grid.generator_bus[moves]
        given = -grid.shunt  # injected whatever is chosen
        np.add.at(given, grid.generator_bus[~moves], grid.least[~moves])
        loads = np.flatnonzero(grid.load)
        flows = grid.secured_flows(EMERGENCY) if name in SECURED else grid.flows()
        count = int(moves.sum())
        self.n_in, self.n_out, self.branches = len(loads), count, len(grid.ends)
        rows = np.concatenate([np.ones((1, count)), flows.transfer[:, at], np.eye(count)])
        self.A = torch.from_numpy(rows)
        # Bounds are fixed + drawn @ load: what the loads draw has to be made good by the generators.
        still = flows.constant + flows.transfer @ given
        self.lower_fixed, self.upper_fixed = (
            torch.from_numpy(np.concatenate([[-given.sum()], limit - still, power[moves]]))
            for limit, power in ((flows.least, grid.least), (flows.most, grid.most))
        )
        drawn = [np.ones((1, len(loads))), flows.transfer[:, loads], np.zeros((count, len(loads)))]
        self.drawn = torch.from_numpy(np.concatenate(drawn))
        self.nominal_load = torch.from_numpy(grid.load[loads])
        self._sides = EQUAL + BOTH * (len(rows) - 1)
        self._names = ("balance", *flows.names, *(f"generator {i}" for i in np.flatnonzero(moves)))
        self.cost = torch.from_numpy(grid.cost[moves, 1])
        self.cost_of_others = float(grid.cost[:, 2].sum() + grid.cost[~moves, 1] @ grid.least[~moves])
        self.nominal = self.middle = torch.from_numpy((grid.least[moves] + grid.most[moves]) / 2)
        self.train, self.valid, self.test = self._draw(sum(SIZES[name])).split(SIZES[name])
        self.scale = float(self.objective(self.middle).abs())

    def _draw(self, wanted: int) -> Tensor:
        """Draw `wanted` inputs that can be served; the others are kept in `aside`."""
        stream, count = np.random.RandomState(SEED), math.ceil(DRAWN * wanted)
        common = stream.uniform(*COMMON, (count, 1))
        factors = torch.from_numpy(common * stream.uniform(*OWN, (count, self.n_in)))
        inputs = (factors - CENTRE) / SPREAD
        served = torch.cat([self._serves(part) for part in inputs.split(PART)])
        self.aside = inputs[~served]
        if int(served.sum()) < wanted:
            raise ValueError(
                f"{self.name}: only {int(served.sum())} of {count} draws can be served, {wanted} are wanted."
            )
        return inputs[served][:wanted]

    def _serves(self, x: Tensor) -> Tensor:
        middle = self.middle.expand(len(x), -1)
        found = project(middle, self.build_set(x), search="active", on_infeasible="nan")
        return found.status < Status.INFEASIBLE

    def load_at(self, x: Tensor) -> Tensor:
        """The loads of inputs x ``(..., n_in)``, per unit."""
        return self.nominal_load * (CENTRE + SPREAD * x)

    def build_set(self, x: Tensor) -> AffineSet:
        """Balance, flows, powers; the rows are shared by all inputs."""
        drawn = self.load_at(x) @ self.drawn.mT
        return AffineSet.from_parts(
            self.A, self.lower_fixed + drawn, self.upper_fixed + drawn, self._names, self._sides
        )

    def objective(self, y: Tensor) -> Tensor:
        """The cost of a dispatch in $/h, ``(...)``."""
        return y @ self.cost + self.cost_of_others

    def evaluate_points(self, y: Tensor, exact: bool = False) -> Evaluation:
        """As in every yardstick; also, for a figure, the flows of the sample with the largest load."""
        found = super().evaluate_points(y, exact)
        here, shown = self.build_set(self.test), int(self.load_at(self.test).sum(-1).argmax())
        flow = (self.A @ y[shown])[1 : self.branches + 1]
        low, high = (bound[shown, 1 : self.branches + 1] for bound in (here.lower, here.upper))
        share = 2 * (flow - low) / (high - low) - 1  # from -1 at the lower limit to 1 at the upper one
        return Evaluation(found.metrics, found.curves | {"flows": share.tolist()})

    def optimal_values(self) -> Tensor:
        """Optimum by HiGHS, once in a process."""
        return _optimal_values(self.name)

    @property
    def rows(self) -> dict[str, Callable[[], Tensor]]:
        """See `tasks.METHODS`."""
        return {
            "highs": self.solve_with_highs,
            "highs-warm": self.solve_with_warm_highs,
            "constant": self.project_constant,
            "direction": self.project_direction,
        }

    def project_constant(self) -> Tensor:
        """The projection of the middle of all powers."""
        return self._project(self.middle)

    def project_direction(self) -> Tensor:
        """The projection of a point far away in the direction in which the cost falls."""
        return self._project(self.middle - FAR * self.cost / self.cost.norm())

    def _project(self, point: Tensor) -> Tensor:
        """The projection of one point for every load."""
        points = point.expand(len(self.test), -1)
        return project(points, self.build_set(self.test), search="active", start="first").value

    def solve_with_warm_highs(self) -> Tensor:
        """HiGHS through its own interface: one model whose bounds change, begun with the basis of the sample before."""
        try:
            import highspy  # pyright: ignore[reportMissingImports]
        except ImportError as missing:
            raise ImportError(f"The warm HiGHS row needs highspy: {install_command('experiments')}.") from missing
        here, count = self.build_set(self.test.double()), self.n_out
        lower, upper = here.lower.cpu().numpy(), here.upper.cpu().numpy()
        rows = self.A.double().cpu().numpy()[:-count]
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = count, len(rows)
        model.col_cost_ = self.cost.double().cpu().numpy()
        model.col_lower_, model.col_upper_ = lower[0, -count:], upper[0, -count:]
        model.row_lower_, model.row_upper_ = lower[0, :-count], upper[0, :-count]
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.arange(0, rows.size + 1, count)
        model.a_matrix_.index_, model.a_matrix_.value_ = np.tile(np.arange(count), len(rows)), rows.ravel()
        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
        solver.passModel(model)
        index, answers = np.arange(len(rows), dtype=np.int32), []
        for low, high in zip(lower[:, :-count], upper[:, :-count], strict=True):
            solver.changeRowsBounds(len(rows), index, low, high)  # pyright: ignore[reportAttributeAccessIssue]
            solver.run()
            if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
                raise RuntimeError(f"HiGHS failed: {solver.modelStatusToString(solver.getModelStatus())}.")
            answers.append(np.array(solver.getSolution().col_value))
        return torch.from_numpy(np.stack(answers)).to(self.test)

    def solve_with_highs(self) -> Tensor:
        """HiGHS through scipy, one sample after the other.

        Rows of lost branches are added once an answer breaks them, until no answer breaks any: an optimum over fewer
        rows that satisfies all rows is the optimum.
        """
        try:
            from scipy.optimize import linprog
        except ImportError as missing:
            raise ImportError(f"The HiGHS row needs scipy: {install_command('experiments')}.") from missing
        here = self.build_set(self.test.double())
        A, c = self.A.double().cpu().numpy(), self.cost.double().cpu().numpy()
        lower, upper = here.lower.cpu().numpy(), here.upper.cpu().numpy()
        flows = np.arange(1, len(A) - self.n_out)
        known = flows[: self.branches]
        powers = np.stack([lower[0, -self.n_out :], upper[0, -self.n_out :]], 1)
        answers = []
        for low, high in zip(lower, upper, strict=True):
            while True:
                found = linprog(
                    c,
                    A_ub=np.concatenate([A[known], -A[known]]),
                    b_ub=np.concatenate([high[known], -low[known]]),
                    A_eq=A[:1],
                    b_eq=high[:1],
                    bounds=powers,
                    method="highs",
                )
                if found.status != 0:
                    raise RuntimeError(f"HiGHS failed: {found.message}")
                value = A[flows] @ found.x
                broken = flows[np.maximum(value - high[flows], low[flows] - value) > SERVED]
                more = np.setdiff1d(broken, known)
                if not len(more):
                    break
                known = np.concatenate([known, more])
            answers.append(found.x)
        return torch.from_numpy(np.stack(answers)).to(self.test)


@functools.cache
def _optimal_values(name: str) -> Tensor:
    problem = DispatchProblem(name)
    return problem.objective(problem.solve_with_highs())
