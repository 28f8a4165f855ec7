"""IPOPT: the optimiser itself, one nonlinear program per input. Not a network, and not differentiable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from caffnet import tolerance
from caffnet._install import install_command
from caffnet.constraints import AffineSet
from caffnet.errors import ConstraintError, InfeasibleError
from caffnet.methods.base import Guarantee, Method
from caffnet.methods.penalty import Penalty

Objective = Callable[[Any, Any, Any], Any]


def nearest(casadi: Any, y: Any, f: Any) -> Any:
    """``|y - f|²``: with this objective the optimiser projects the raw output."""
    return casadi.sumsqr(y - f)


class IPOPT(Method):
    r"""$y = \arg\min_{y \in S(x)} objective(y, f)$ by an interior-point method, through casadi's bundled IPOPT.

    Args:
        backbone: any module ``x -> f`` that computes what the objective needs. For an objective of y alone use
            ``nn.Identity()`` if the input has n entries, else any module with n outputs.
        constraint: an `AffineSet`, or any function ``x -> AffineSet``.
        objective: a function ``(casadi, y, f)`` that returns a casadi expression, ``y`` and ``f`` being columns of n;
            the default projects f on the set.
        tol: IPOPT's tolerance, in the units of the rows (the published comparisons: 1e-4).
        start: ``"least_squares"``, the smallest solution of the equalities (published), or ``"raw"``, f itself.
        options: further options of IPOPT.
        penalty: not used, as nothing is trained.

    >>> method = IPOPT(nn.Identity(), AffineSet.inequality([[1.0, 1.0]], [1.0]), tol=1e-8)
    >>> method(torch.tensor([[2.0, 1.0]])).round(decimals=4)
    tensor([[1., 0.]])
    """

    name = "ipopt"
    title = "IPOPT"
    guarantee = Guarantee.SOLVER
    closed_form = False
    differentiable = False

    def __init__(
        self,
        backbone: nn.Module,
        constraint: AffineSet | Callable[[Any], AffineSet],
        *,
        objective: Objective = nearest,
        tol: float = 1e-4,
        start: str = "least_squares",
        options: dict[str, Any] | None = None,
        penalty: Penalty | None = None,
    ):
        super().__init__(backbone, constraint, penalty=penalty)
        if start not in ("least_squares", "raw"):
            raise ConstraintError(f"start must be 'least_squares' or 'raw', got {start!r}.")
        self.objective, self.tol, self.start, self.options = objective, tol, start, options or {}
        self._solvers: dict[tuple[int, int], Any] = {}

    def enforce(self, f: Tensor, set: AffineSet) -> Tensor:
        """One program per sample."""
        batch = f.shape[:-1]
        raw = _flat(f, batch, set.n)
        A, lower, upper = (
            _flat(set.A, batch, set.m, set.n),
            _flat(set.lower, batch, set.m),
            _flat(set.upper, batch, set.m),
        )
        solver = self._solver(set.m, set.n)
        answers = np.zeros_like(raw)
        for i in range(len(raw)):
            equal = lower[i] == upper[i]
            begin = raw[i] if self.start == "raw" else least_squares(A[i][equal], upper[i][equal], set.dtype)
            data = np.concatenate([raw[i], A[i].ravel(order="F")])
            solved = solver(x0=begin, p=data, lbg=lower[i], ubg=upper[i])
            if not solver.stats()["success"]:
                raise _failure(solver.stats()["return_status"], np.unravel_index(i, batch) if batch else ())
            answers[i] = np.asarray(solved["x"]).ravel()
        return torch.as_tensor(answers.reshape(f.shape), dtype=f.dtype, device=f.device)

    def _solver(self, m: int, n: int) -> Any:
        """Return the parametric program for a shape: the rows and f are its parameters."""
        if (m, n) not in self._solvers:
            try:
                import casadi
            except ImportError as error:
                raise ImportError(f"IPOPT comes with casadi: {install_command('methods')}.") from error
            y, data = casadi.MX.sym("y", n), casadi.MX.sym("data", n + m * n)
            f, A = data[:n], casadi.reshape(data[n:], m, n)
            program = {"x": y, "p": data, "f": self.objective(casadi, y, f), "g": A @ y}
            quiet = {"print_time": 0, "ipopt": {"print_level": 0, "sb": "yes", "tol": self.tol, **self.options}}
            self._solvers[m, n] = casadi.nlpsol("ipopt", "ipopt", program, quiet)
        return self._solvers[m, n]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the solvers, which can be neither copied nor pickled; they are rebuilt on demand."""
        return {**self.__dict__, "_solvers": {}}


def least_squares(C: np.ndarray, d: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The smallest solution of ``C y = d``, ``(n,)``, for rows in any units, judged in the precision of the data."""
    exponent = np.frexp(np.abs(C).max(axis=1, initial=0.0))[1]  # scale the rows to one size by powers of two
    C, d = np.ldexp(C, -exponent[:, None]), np.ldexp(d, -exponent)
    return np.linalg.pinv(C, rcond=tolerance.rank(dtype, C.shape[1])) @ d


def _flat(t: Tensor, batch: torch.Size, *core: int) -> np.ndarray:
    """One line per sample, float64."""
    return t.detach().expand(*batch, *core).reshape(-1, *core).double().cpu().numpy()


def _failure(status: str, sample: tuple[Any, ...]) -> ConstraintError:
    index = tuple(int(i) for i in sample)
    message = f"IPOPT stopped at sample {index} with {status}"
    if status == "Infeasible_Problem_Detected":
        return InfeasibleError(f"{message}: no point satisfies its rows.", [index], [])
    return ConstraintError(f"{message}. Pass another start, or options={{'max_iter': ...}}.")
