"""opt: learn to solve ``min ½ yᵀQy + pᵀ sin y  s.t.  G y <= h, C y = x``, without labels.

The bound ``h_i = Σ_j |(G C⁺)_ij|`` makes every problem with ``|x_j| <= 1`` feasible: ``y = C⁺x`` satisfies it.
`ProgramProblem` is any such program, of the paper or of the yardsticks; `SolverProblem` draws the paper's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from caffnet import AffineSet
from caffnet._install import install_command
from caffnet.constraints import EQUAL, UPPER
from caffnet_lab.experiments.problem import Evaluation, Loss, Problem, penalty_of, violation_metrics

N_OUT, INEQUALITIES, EQUALITIES = 5, 5, 3
SAMPLES, THROWN_AWAY = 1000, 10


class ProgramProblem(Problem):
    """One program with a diagonal Q, for many right-hand sides x.

    Args:
        Q: the diagonal, ``(n,)``.
        p: ``(n,)``.
        G: rows of the inequalities, ``(k, n)``.
        C: rows of the equalities, ``(e, n)``.
    """

    shared_rows = True

    def __init__(self, Q: np.ndarray, p: np.ndarray, G: np.ndarray, C: np.ndarray):
        super().__init__()
        self.Q, self.p = torch.from_numpy(Q), torch.from_numpy(p)
        self.h = torch.from_numpy(np.abs(G @ np.linalg.pinv(C)).sum(1))
        self.A = torch.from_numpy(np.concatenate([G, C]))
        self.n_in, self.n_out = C.shape
        self._sides = UPPER * len(G) + EQUAL * len(C)
        self._names = (*(f"G[{i}]" for i in range(len(G))), *(f"C[{i}]" for i in range(len(C))))

    def build_set(self, x: Tensor) -> AffineSet:
        """The rows [G; C], shared by all inputs; the equalities stay one row each."""
        h = self.h.expand(*x.shape[:-1], len(self.h))
        lower = torch.cat([torch.full_like(h, -math.inf), x], -1)
        return AffineSet.from_parts(self.A, lower, torch.cat([h, x], -1), self._names, self._sides)

    def objective(self, y: Tensor) -> Tensor:
        """``½ yᵀQy + pᵀ sin y``, ``(...)``."""
        return (0.5 * self.Q * y.square() + self.p * torch.sin(y)).sum(-1)

    def loss(self, model: nn.Module, x: Tensor, penalty: str = "squared") -> Loss:
        """The sum of objectives."""
        y = model(x)
        return Loss(self.objective(y).sum(), *penalty_of(self.constraint(x).violation(y), penalty))

    def evaluate(self, model: nn.Module, exact: bool = False) -> Evaluation:
        """Figures of `evaluate_points` for the answers to the test set."""
        with torch.no_grad():
            return self.evaluate_points(model(self.test), exact)

    def evaluate_points(self, y: Tensor, exact: bool = False) -> Evaluation:
        """The mean objective of answers ``(samples, n)``, and the violations of both kinds of rows."""
        metrics = {
            "objective": self.objective(y).mean().item(),
            **violation_metrics(self.build_set(self.test), y, exact),
        }
        return Evaluation(metrics, {})

    def forward_for_timing(self, model: nn.Module) -> Callable[[], Any]:
        """All test points in one call, as a new input: its constraints are part of the answer."""
        return lambda: model(self.test.view_as(self.test))

    def solve(self, name: str) -> tuple[Tensor, float]:
        """The answers of IPOPT."""
        return solve_with_ipopt(self) if name == "ipopt" else super().solve(name)


class SolverProblem(ProgramProblem):
    """1000 training and 1000 test right-hand sides of one random problem.

    Args:
        seed: of numpy's legacy stream, which draws Q, p, G, C and the data in this order. So a seed changes the problem
            itself, not only the run.
    """

    name = "opt"

    def __init__(self, seed: int):
        stream = np.random.RandomState(seed)
        Q, p = stream.uniform(size=N_OUT), stream.uniform(size=N_OUT)
        G = stream.standard_normal((INEQUALITIES, N_OUT))
        C = stream.standard_normal((EQUALITIES, N_OUT))
        super().__init__(Q, p, G, C)
        self.train = torch.from_numpy(stream.uniform(-1, 1, (SAMPLES, EQUALITIES)))
        stream.uniform(-1, 1, (THROWN_AWAY, EQUALITIES))
        self.test = torch.from_numpy(stream.uniform(-1, 1, (SAMPLES, EQUALITIES)))


def solve_with_ipopt(problem: ProgramProblem) -> tuple[Tensor, float]:
    """Solve every test problem with IPOPT, through one parametric solver: the answers, and milliseconds for them all.

    Each solve starts at the least-squares solution of ``C y = x``, as the paper's does.
    """
    try:
        import casadi
    except ImportError as missing:
        raise ImportError(f"The IPOPT row needs casadi: {install_command('experiments')}.") from missing
    Q, p, A, h = (t.double().cpu().numpy() for t in (problem.Q, problem.p, problem.A, problem.h))
    n, k = problem.n_out, len(h)
    y, x = casadi.MX.sym("y", n), casadi.MX.sym("x", problem.n_in)
    program = {
        "x": y,
        "p": x,
        "f": 0.5 * casadi.dot(casadi.DM(Q), y**2) + casadi.dot(casadi.DM(p), casadi.sin(y)),
        "g": casadi.DM(A) @ y - casadi.vertcat(casadi.DM(h), x),
    }
    quiet = {"print_time": False, "ipopt.print_level": 0, "ipopt.sb": "yes", "ipopt.tol": 1e-8}
    solver = casadi.nlpsol("solver", "ipopt", program, quiet)
    lower = np.concatenate([np.full(k, -np.inf), np.zeros(problem.n_in)])
    inverse = np.linalg.pinv(A[k:])
    answers = []
    inputs = problem.test.double().cpu().numpy()
    solver(x0=inverse @ inputs[0], p=inputs[0], lbg=lower, ubg=0.0)  # warm-up
    start = time.perf_counter()
    for sample in inputs:
        found = solver(x0=inverse @ sample, p=sample, lbg=lower, ubg=0.0)
        if not solver.stats()["success"]:
            raise RuntimeError(f"IPOPT failed at x = {sample.tolist()}: {solver.stats()['return_status']}.")
        answers.append(np.array(found["x"]).ravel())
    seconds = time.perf_counter() - start
    return torch.from_numpy(np.stack(answers)).to(problem.test), 1e3 * seconds
