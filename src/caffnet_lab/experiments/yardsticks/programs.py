"""dc3-simple, dc3-nonconvex, hardnet-opt, snarenet-noncvx: programs with 100 variables, 50 equalities, 50 inequalities.

    min ½ yᵀQy + pᵀy   (simple)   or   ½ yᵀQy + pᵀ sin y      s.t.   C y = x,  G y <= h,   x uniform in [-1, 1]⁵⁰

with a diagonal Q. They differ in the seed, and in the order in which numpy's legacy stream draws the parts.

**Without learning.** The simple program is a projection: of ``-p / Q`` in the metric Q. For the others a convex
majorant is one. With ``p >= 0`` the second derivative ``Q - p sin y`` is at most ``H = Q + p``, so

    y' = argmin  g(y)ᵀ(y' - y) + ½ (y' - y)ᵀH(y' - y)  =  the projection of  y - g(y) / H  in the metric H,

g the gradient, never has a larger objective than y: the row "sequential" repeats it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from caffnet._install import install_command
from caffnet_lab.experiments.opt import ProgramProblem, solve_with_ipopt
from caffnet_lab.experiments.yardsticks.metric import project_in_metric
from caffnet_lab.experiments.yardsticks.yardstick import Yardstick

VARIABLES, INEQUALITIES, EQUALITIES, SAMPLES = 100, 50, 50, 10_000
REPEATS = 50  # of the row "sequential"
TOLERANCE = 1e-9  # of DAQP


@dataclasses.dataclass(frozen=True)
class Instance:
    """Choice of the program.

    Attributes:
        seed: of numpy's legacy stream.
        inputs_last: the inputs are drawn after the inequalities, not between equalities and inequalities; then the
            inequalities come before the equalities.
        convex: without the sine.
        splits: numbers of training and validation inputs; the rest is for the test.
    """

    seed: int
    inputs_last: bool
    convex: bool
    splits: tuple[int, int]


INSTANCES = {
    "dc3-simple": Instance(17, inputs_last=False, convex=True, splits=(7952, 1024)),
    "dc3-nonconvex": Instance(17, inputs_last=False, convex=False, splits=(7952, 1024)),
    "hardnet-opt": Instance(17, inputs_last=True, convex=False, splits=(8334, 833)),
    "snarenet-noncvx": Instance(2025, inputs_last=True, convex=False, splits=(8334, 833)),
}


class LearnedProgram(Yardstick, ProgramProblem):
    """One of the four programs.

    Args:
        name: of the task.
        seed: of the run, not used here: the program is always the same.

    >>> LearnedProgram("dc3-simple").test.shape
    torch.Size([1024, 50])
    """

    def __init__(self, name: str, seed: int = 0):
        del seed
        self.name, self.instance = name, INSTANCES[name]
        stream = np.random.RandomState(self.instance.seed)
        Q, p = stream.random_sample(VARIABLES), stream.random_sample(VARIABLES)

        def rows(count: int) -> np.ndarray:
            return stream.normal(size=(count, VARIABLES))

        if self.instance.inputs_last:
            G, C = rows(INEQUALITIES), rows(EQUALITIES)
            inputs = stream.uniform(-1, 1, (SAMPLES, EQUALITIES))
        else:
            C, inputs, G = rows(EQUALITIES), stream.uniform(-1, 1, (SAMPLES, EQUALITIES)), rows(INEQUALITIES)
        ProgramProblem.__init__(self, Q, p, G, C)
        train, valid = self.instance.splits
        self.train, self.valid, self.test = torch.from_numpy(inputs).split((train, valid, SAMPLES - train - valid))

    def objective(self, y: Tensor) -> Tensor:
        """``½ yᵀQy + pᵀy``, or with the sine, ``(...)``."""
        if self.instance.convex:
            return (0.5 * self.Q * y.square() + self.p * y).sum(-1)
        return ProgramProblem.objective(self, y)

    def optimal_values(self) -> Tensor:
        """Optimum by DAQP or IPOPT, in float64; once in a process."""
        return _optimal_values(self.name)

    @property
    def rows(self) -> dict[str, Callable[[], Tensor]]:
        """See `tasks.METHODS`."""
        always = {"constant": self.project_constant, "minimiser": self.project_minimiser}
        if self.instance.convex:
            return always | {"daqp": self.solve_with_daqp}
        return always | {"sequential": self.repeat_projections}

    def project_constant(self) -> Tensor:
        """The point nearest to the origin."""
        return self.enforce_plainly(torch.zeros_like(self.p))

    def enforce_plainly(self, point: Tensor) -> Tensor:
        """The projection of one point ``(n,)`` for every test input, ``(M, n)``."""
        return project_in_metric(self._everywhere(point), self.build_set(self.test), torch.ones_like(self.p))

    def project_minimiser(self) -> Tensor:
        """The projection, in the metric Q, of the minimiser without constraints; the optimum of a convex program."""
        lowest = -self.p / self.Q if self.instance.convex else self.lowest_point()
        return project_in_metric(self._everywhere(lowest), self.build_set(self.test), self.Q.sqrt())

    def lowest_point(self) -> Tensor:
        """The minimiser of ``½ Q t² + p sin t`` in each variable, ``(n,)``.

        There ``Q t = -p cos t``, so ``|t| <= p / Q``; and a full wave nearer to the origin the sine is the same and the
        square smaller, so it lies in ``[-π, 0]``. A fine grid, then Newton's method.
        """
        grid = torch.linspace(-torch.pi, 0, 2001, dtype=self.Q.dtype, device=self.Q.device).unsqueeze(-1)
        t = grid[(0.5 * self.Q * grid.square() + self.p * grid.sin()).argmin(0), 0]
        for _ in range(5):
            t = t - (self.Q * t + self.p * t.cos()) / (self.Q - self.p * t.sin())
        return t

    def repeat_projections(self) -> Tensor:
        """The answers after so many projections in the metric H, see above."""
        H, here, y = self.Q + self.p, self.build_set(self.test), self.project_minimiser()
        for _ in range(REPEATS):
            gradient = self.Q * y + self.p * y.cos()
            y = project_in_metric(y - gradient / H, here, H.sqrt())
        return y

    def solve_with_daqp(self) -> Tensor:
        """An active-set solver for quadratic programs, one sample after the other."""
        try:
            import daqp
        except ImportError as missing:
            raise ImportError(f"The DAQP row needs daqp: {install_command('experiments')}.") from missing
        here = self.build_set(self.test).to(torch.float64)
        Q, p = np.diag(self.Q.double().cpu().numpy()), self.p.double().cpu().numpy()
        A = np.ascontiguousarray(here.A.cpu().numpy())
        lower, upper = here.lower.clamp_min(-1e30).cpu().numpy(), here.upper.cpu().numpy()
        sense = np.array([0] * len(self.h) + [5] * self.n_in, dtype=np.int32)  # 5 is an equality
        limits = {"primal_tol": TOLERANCE, "dual_tol": TOLERANCE}
        answers = [daqp.solve(Q, p, A, u, b, sense, **limits)[0] for u, b in zip(upper, lower, strict=True)]
        return torch.from_numpy(np.stack(answers)).to(self.test)

    def _everywhere(self, point: Tensor) -> Tensor:
        return point.expand(len(self.test), -1)


@functools.cache
def _optimal_values(name: str) -> Tensor:
    problem = LearnedProgram(name)
    answers = problem.solve_with_daqp() if problem.instance.convex else solve_with_ipopt(problem)[0]
    return problem.objective(answers)
