"""The rivals, each as its documentation says, each imported only when it is called for.

All get the same float64 data as one-sided rows and native equalities, shared matrices where the batch shares them,
and are asked for 1e-9 where they can be asked. Constraints are converted before the clock starts.
"""

# Optional packages, some without types, none installed where the types are checked:
# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false

from __future__ import annotations

import os
import types
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from caffnet_lab.bench.ready import Limits, Ready, Refused, of_map
from caffnet_lab.bench.tasks import Task

TOLERANCE = 1e-9
PINET_ITERATIONS = 1000
_INFINITE, _EQUALITY = 1e30, 5
_INTERIOR = {"tol_gap_abs": TOLERANCE, "tol_gap_rel": TOLERANCE, "tol_feas": TOLERANCE}


# ------------------------------------------------------------------------------------------------- torch layers


def cvxpylayers(task: Task, limits: Limits) -> Ready:
    """Through diffcp, the default of cvxpylayers; of diffcp's solvers Clarabel, the most accurate."""
    return _cvxpy(task, None, {"solve_method": "Clarabel", **_INTERIOR})


def moreau(task: Task, limits: Limits) -> Ready:
    """With Moreau as the solver of cvxpylayers."""
    return _cvxpy(task, "MOREAU", {"ipm_settings": _INTERIOR})


def _cvxpy(task: Task, solver: str | None, options: dict[str, Any]) -> Ready:
    import cvxpy as cp
    from cvxpylayers.torch import CvxpyLayer  # pyright: ignore[reportPrivateImportUsage]

    s = task.standard()
    y, f, h = cp.Variable(task.n), cp.Parameter(task.n), cp.Parameter(s.h.shape[-1])
    parameters, values = [f, h], [s.h]

    def matrix(rows: Tensor) -> Any:
        if task.shared:  # a constant is cheaper than a parameter
            return rows.numpy()
        parameters.append(cp.Parameter(tuple(rows.shape[-2:])))
        values.append(rows)
        return parameters[-1]

    rules = [matrix(s.G) @ y <= h]
    if task.equalities:
        C = matrix(s.C)
        d = cp.Parameter(task.equalities)
        parameters.append(d)
        values.append(s.d)
        rules.append(C @ y == d)
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(y - f)), rules)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = CvxpyLayer(problem, parameters=parameters, variables=[y], solver=solver, solver_args=options)
    return of_map(lambda f: layer(f, *values)[0], task)


def qpth(task: Task, limits: Limits) -> Ready:
    """Qpth's batched interior-point method."""
    from qpth.qp import QPFunction

    s = task.standard()
    Q, none = torch.eye(task.n, dtype=torch.float64), torch.empty(0, dtype=torch.float64)
    C, d = (s.C, s.d) if task.equalities else (none, none)
    solve = QPFunction(verbose=-1, check_Q_spd=False)
    return of_map(lambda f: solve(Q, -f, s.G, s.h, C, d), task)


def proxsuite(task: Task, limits: Limits) -> Ready:
    """ProxSuite's QPLayer. It takes half of the cores by itself; here it gets the threads of the run."""
    from proxsuite.torch import qplayer

    library: Any = qplayer
    library.os = types.SimpleNamespace(cpu_count=lambda: 2 * limits.threads)
    s = task.standard()
    Q, none = torch.eye(task.n, dtype=torch.float64), torch.empty(0, dtype=torch.float64)
    C, d = (s.C, s.d) if task.equalities else (none, none)
    low = torch.full_like(s.h, -1e20)
    solve = qplayer.QPFunction(eps=TOLERANCE, omp_parallel=limits.threads > 1)
    return of_map(lambda f: solve(Q, -f, C, d, s.G, low, s.h)[0], task)


# ------------------------------------------------------------------------------------------------- JAX layers


def _import_jax() -> Any:
    """JAX in double precision, with four threads at least.

    With two threads, as it has on two cores, two triangular solves at once wait for each other forever (jaxlib 0.10,
    qpax at n = 1000).
    """
    os.environ.setdefault("NPROC", str(max(4, os.cpu_count() or 1)))
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax


def _of_jax(call: Any, task: Task) -> Ready:
    """From a batched JAX function ``f -> y``, compiled; arrays are converted outside of the clock's reach."""
    jax = _import_jax()
    f, v = jax.numpy.asarray(task.f.numpy()), jax.numpy.asarray(task.v.numpy())

    def both(f: Any, v: Any) -> Any:
        y, back = jax.vjp(call, f)
        return y, back(v)[0]

    forward, train = jax.jit(call), jax.jit(both)

    def read(value: Any) -> Tensor:
        return torch.from_numpy(np.array(value))

    return Ready(
        lambda: read(forward(f).block_until_ready()),
        lambda: tuple(read(t) for t in jax.block_until_ready(train(f, v))),  # pyright: ignore[reportArgumentType]
    )


def qpax(task: Task, limits: Limits) -> Ready:
    """The interior-point method of qpax, differentiable with respect to its data; its gradient is smoothed."""
    jax = _import_jax()
    import qpax as package

    s = task.standard()
    Q = jax.numpy.eye(task.n)
    rows = None if task.shared else 0
    G, h, C, d = (jax.numpy.asarray(t.numpy()) for t in (s.G, s.h, s.C, s.d))

    def one(f: Any, G: Any, h: Any, C: Any, d: Any) -> Any:
        return package.solve_qp_primal(Q, -f, C, d, G, h, solver_tol=TOLERANCE)

    many = jax.vmap(one, in_axes=(0, rows, 0, rows, 0))
    return _of_jax(lambda f: many(f, G, h, C, d), task)


def pinet(task: Task, limits: Limits) -> Ready:
    """Pinet's operator splitting, where all samples share A."""
    if not task.shared:
        raise Refused("its rows are fixed when the layer is built: one A for all samples")
    jax = _import_jax()
    import pinet as package

    if not hasattr(package, "ProjectionInstance"):
        raise Refused("not installed: pinet-hcnn (the package named pinet is another one)")
    s = task.standard()
    G, h, C, d = (jax.numpy.asarray(t.numpy()) for t in (s.G, s.h, s.C, s.d))
    lower = jax.numpy.full_like(h, -jax.numpy.inf)
    inequality = package.AffineInequalityConstraint(G[None], lower[:, :, None], h[:, :, None])
    equality = package.EqualityConstraint(C[None], d[:, :, None], var_b=True) if task.equalities else None
    layer = package.Project(eq_constraint=equality, ineq_constraint=inequality)

    def call(f: Any) -> Any:
        right = package.EqualityConstraintsSpecification(b=d[:, :, None]) if task.equalities else None
        point = package.ProjectionInstance(x=f[:, :, None], eq=right)
        found = layer.call(y_raw=point, n_iter=PINET_ITERATIONS, n_iter_bwd=PINET_ITERATIONS)
        return found[0].x[:, :, 0]

    return _of_jax(call, task)


# ------------------------------------------------------------------------------------------------- raw solvers


def _loop(solve: Any, task: Task) -> Ready:
    """From a solver of one sample ``(i, f_i) -> y_i``."""
    f = task.f.numpy()

    def forward() -> Tensor:
        y = np.empty_like(f)
        for i in range(len(f)):
            y[i] = solve(i, f[i])
        return torch.from_numpy(y)

    return Ready(forward)


def daqp(task: Task, limits: Limits) -> Ready:
    """DAQP in the variable ``y - f``: the form in which its setup is cheapest (the objective is ``|z|²``)."""
    import daqp as package

    # Two-sided rows stay one row: DAQP takes them as they are.
    A = task.set.A.numpy()
    lower = task.set.lower.expand(task.batch, -1).clamp(min=-_INFINITE).numpy()
    upper = task.set.upper.expand(task.batch, -1).clamp(max=_INFINITE).numpy()
    equal = [_EQUALITY if side == "=" else 0 for side in task.set.row_kinds]
    sense, identity, zero = np.array(equal, dtype=np.int32), np.eye(task.n), np.zeros(task.n)
    A = np.ascontiguousarray(A)

    f = task.f.numpy()

    def forward() -> Tensor:
        at = f @ A.T if task.shared else (A @ f[:, :, None])[:, :, 0]
        low, high, y = lower - at, upper - at, np.empty_like(f)
        for i in range(len(f)):
            rows = A if task.shared else A[i]
            y[i] = package.solve(
                identity, zero, rows, high[i], low[i], sense, primal_tol=TOLERANCE, dual_tol=TOLERANCE
            )[0]
        y += f
        return torch.from_numpy(y)

    return Ready(forward)


def quadprog(task: Task, limits: Limits) -> Ready:
    """Goldfarb and Idnani's method."""
    import quadprog as package

    s = task.standard()
    rows = np.concatenate([s.C.numpy(), -s.G.numpy()], -2)
    columns = np.ascontiguousarray(np.swapaxes(rows, -1, -2))
    bound = np.concatenate([s.d.numpy(), -s.h.numpy()], -1)
    identity = np.eye(task.n)

    def solve(i: int, f: np.ndarray) -> np.ndarray:
        C = columns if task.shared else columns[i]
        return package.solve_qp(identity, f, C, bound[i], task.equalities, True)[0]

    return _loop(solve, task)


def piqp(task: Task, limits: Limits) -> Ready:
    """PIQP's dense interior-point method."""
    import piqp as package

    s = task.standard()
    G, h, C, d = (t.numpy() for t in (s.G, s.h, s.C, s.d))
    identity = np.eye(task.n, order="F")
    G, C = (np.asfortranarray(t) if task.shared else [np.asfortranarray(one) for one in t] for t in (G, C))

    def data(i: int, f: np.ndarray) -> dict[str, Any]:
        given = {"c": -f, "h_u": h[i]}
        return {**given, "b": d[i]} if task.equalities else given

    def matrices(i: int) -> dict[str, Any]:
        given = {"G": G if task.shared else G[i]}
        return {**given, "A": C if task.shared else C[i]} if task.equalities else given

    solver = package.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = TOLERANCE
    solver.setup(P=identity, **data(0, task.f[0].numpy()), **matrices(0))

    def solve(i: int, f: np.ndarray) -> np.ndarray:
        solver.update(**data(i, f), **({} if task.shared else matrices(i)))
        solver.solve()
        return solver.result.x

    return _loop(solve, task)


def clarabel(task: Task, limits: Limits) -> Ready:
    """Clarabel's interior-point method; it is made again for every sample, as its interface wants it."""
    import clarabel as package
    from scipy import sparse

    s = task.standard()
    rows = np.concatenate([s.C.numpy(), s.G.numpy()], -2)
    matrices = [sparse.csc_matrix(one) for one in (rows[None] if task.shared else rows)]
    bound, identity = np.concatenate([s.d.numpy(), s.h.numpy()], -1), sparse.eye(task.n, format="csc")
    settings = package.DefaultSettings()
    settings.verbose, settings.max_threads = False, limits.threads
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = TOLERANCE
    cones = [package.ZeroConeT(task.equalities), package.NonnegativeConeT(rows.shape[-2] - task.equalities)]

    def solve(i: int, f: np.ndarray) -> np.ndarray:
        matrix = matrices[0 if task.shared else i]
        return np.array(package.DefaultSolver(identity, -f, matrix, bound[i], cones, settings).solve().x)

    return _loop(solve, task)


def osqp(task: Task, limits: Limits) -> Ready:
    """OSQP, polished; set up once, from where the sample before ended, if the samples share A."""
    import osqp as package
    from scipy import sparse

    A = task.set.A.numpy()
    matrices = [sparse.csc_matrix(one) for one in (A[None] if task.shared else A)]
    lower, upper = (side.expand(task.batch, -1).numpy() for side in (task.set.lower, task.set.upper))
    identity = sparse.eye(task.n, format="csc")

    def made(i: int, f: np.ndarray) -> Any:
        solver = package.OSQP()
        solver.setup(
            *(identity, -f, matrices[0 if task.shared else i], lower[i], upper[i]),
            verbose=False,
            eps_abs=TOLERANCE,
            eps_rel=TOLERANCE,
            max_iter=100_000,
            polishing=True,
        )
        return solver

    kept = made(0, task.f[0].numpy()) if task.shared else None

    def solve(i: int, f: np.ndarray) -> np.ndarray:
        if kept is None:
            return np.array(made(i, f).solve().x)
        kept.update(q=-f, l=lower[i], u=upper[i])
        return np.array(kept.solve().x)

    return _loop(solve, task)
