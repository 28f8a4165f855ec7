"""`caffnet programs`: `solve_qp` side by side with other layers and solvers, in one run.

qp-*        strictly convex programs, Q of each sample its own, two inequalities per output, 128 samples; with the
            gradient of Q and q
mint-*      non-negative reconciliation of forecasts: one Q for all, bounds at zero
opf-*       the cheapest dispatch of PGLib's grids for 1000 loads: linear programs, one A and one q for all

The clock turns in rounds as in `caffnet bench`. With one thread it is the processor's time, which others who use the
machine do not change. All get the same float64 data, and are asked for 1e-9 where they can be asked. The distance is
that of the objective to ours, relative; ours is measured by its own residuals.
"""

# Optional packages, some without types, none installed where the types are checked:
# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from caffnet import AffineSet, residuals, solve_qp
from caffnet_lab.bench.measure import Effort, race
from caffnet_lab.bench.ready import Limits
from caffnet_lab.experiments.yardsticks.dispatch import DispatchProblem
from caffnet_lab.experiments.yardsticks.forecast import ForecastProblem

SEED, BATCH, LOADS = 1, 128, 1000
SIZES = (8, 16, 32, 64, 128)
OURS = "caffnet"
TOLERANCE = 1e-9
_INTERIOR = {"tol_gap_abs": TOLERANCE, "tol_gap_rel": TOLERANCE, "tol_feas": TOLERANCE}


@dataclasses.dataclass(frozen=True)
class Program:
    """A batch of programs ``min y'Qy/2 + q'y``.

    Attributes:
        name: as in ``qp-32``.
        Q: ``(n, n)`` if shared, ``(B, n, n)``, or None for zero.
        q: ``(B, n)``, or ``(n,)`` for all.
        set: the constraints.
        v: the upstream gradient, ``(B, n)``; None where gradients are not compared.
        source: what the program was made from.
    """

    name: str
    Q: Tensor | None
    q: Tensor
    set: AffineSet
    v: Tensor | None = None
    source: Any = None

    def objective(self, y: Tensor) -> Tensor:
        """``(B,)``."""
        curved = 0.0 if self.Q is None else ((self.Q @ y.unsqueeze(-1)).squeeze(-1) * y).sum(-1) / 2
        return curved + (self.q * y).sum(-1)


def curved(n: int) -> Program:
    """Random strictly convex programs around a hidden feasible point; about half of n rows end active."""
    stream = torch.Generator().manual_seed(SEED)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=stream)

    root, A, inside = normal(BATCH, n, n), normal(BATCH, 2 * n, n) / math.sqrt(n), normal(BATCH, n)
    Q = root @ root.mT / n + 0.1 * torch.eye(n, dtype=torch.float64)
    b = (A @ inside.unsqueeze(-1)).squeeze(-1) + normal(BATCH, 2 * n).abs()
    return Program(f"qp-{n}", Q, 2 * normal(BATCH, n), AffineSet.inequality(A, b), normal(BATCH, n))


def reconcile(name: str) -> Program:
    """Non-negative MinT in the bottom series b: ``(ŷ - S b)ᵀ W⁻¹ (ŷ - S b)`` with ``b >= 0``."""
    problem = ForecastProblem(f"forecast-{name}")
    Q = problem.root.mT @ problem.root
    q = -problem.nominal_at(problem.test) @ problem.root
    return Program(f"mint-{name}", Q, q, AffineSet.box(torch.zeros(problem.n_out, dtype=torch.float64), None))


def dispatch(case: str) -> Program:
    """A grid under loads that can be served."""
    problem = DispatchProblem(f"dcopf-{case}")
    problem.test = torch.cat([problem.train, problem.valid, problem.test])[:LOADS]
    return Program(f"opf-{case}", None, problem.cost, problem.build_set(problem.test), None, problem)


PROGRAMS: dict[str, Callable[[], Program]] = {
    **{f"qp-{n}": (lambda n=n: curved(n)) for n in SIZES},
    **{f"mint-{name}": (lambda name=name: reconcile(name)) for name in ("tourismsmall", "labour", "wiki2")},
    **{f"opf-{case}": (lambda case=case: dispatch(case)) for case in ("14", "30", "89", "118", "300")},
}


# ------------------------------------------------------------------------------------------------- contestants

Calls = tuple[Callable[[], Tensor], Callable[[], Any] | None]


def _of_map(call: Callable[[Tensor | None, Tensor], Tensor], p: Program) -> Calls:
    """From a differentiable map ``(Q, q) -> y``; gradients of both."""

    def forward() -> Tensor:
        with torch.no_grad():
            return call(p.Q, p.q)

    def train() -> Any:
        assert p.Q is not None
        Q, q = (t.detach().requires_grad_() for t in (p.Q, p.q))
        return torch.autograd.grad(call(Q, q), (Q, q), p.v)

    return forward, train if p.v is not None else None


def ours(p: Program, limits: Limits) -> Calls:
    """The whole batch in one call."""
    return _of_map(lambda Q, q: solve_qp(Q, q, p.set).value, p)


def ours_alone(p: Program, limits: Limits) -> Calls:
    """One sample at a time, cold."""
    sets = [p.set[i] for i in range(len(p.set.lower))]
    return lambda: torch.stack([solve_qp(p.Q, p.q, set).value for set in sets]), None


def qpth(p: Program, limits: Limits) -> Calls:
    """Qpth's batched interior-point method."""
    from qpth.qp import QPFunction

    solve, none = QPFunction(verbose=-1, check_Q_spd=False), torch.empty(0, dtype=torch.float64)
    return _of_map(lambda Q, q: solve(Q, q, p.set.A, p.set.upper, none, none), p)


def proxsuite(p: Program, limits: Limits) -> Calls:
    """ProxSuite's QPLayer, with the threads of the run."""
    from proxsuite.torch import qplayer

    library: Any = qplayer
    library.os = types.SimpleNamespace(cpu_count=lambda: 2 * limits.threads)
    solve = qplayer.QPFunction(eps=TOLERANCE, omp_parallel=limits.threads > 1)
    none, low = torch.empty(0, dtype=torch.float64), torch.full_like(p.set.upper, -1e20)
    return _of_map(lambda Q, q: solve(Q, q, none, none, p.set.A, low, p.set.upper)[0], p)


def cvxpylayers(p: Program, limits: Limits) -> Calls:
    """Through diffcp with Clarabel."""
    return _cvxpy(p, None, {"solve_method": "Clarabel", **_INTERIOR})


def moreau(p: Program, limits: Limits) -> Calls:
    """With Moreau as the solver of cvxpylayers."""
    return _cvxpy(p, "MOREAU", {"ipm_settings": _INTERIOR})


def _cvxpy(p: Program, solver: str | None, options: dict[str, Any]) -> Calls:
    """The parameter is a root of Q, as its rules ask for: it is given, and gets the gradient."""
    import cvxpy as cp
    from cvxpylayers.torch import CvxpyLayer  # pyright: ignore[reportPrivateImportUsage]

    assert p.Q is not None
    n, m = p.q.shape[-1], p.set.m
    y, root, q, A, b = cp.Variable(n), cp.Parameter((n, n)), cp.Parameter(n), cp.Parameter((m, n)), cp.Parameter(m)
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(root @ y) + q @ y), [A @ y <= b])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = CvxpyLayer(problem, parameters=[root, q, A, b], variables=[y], solver=solver, solver_args=options)
    with_root = dataclasses.replace(p, Q=torch.linalg.cholesky(p.Q).mT.contiguous())
    return _of_map(lambda root, q: layer(root, q, p.set.A, p.set.upper)[0], with_root)


def qpax(p: Program, limits: Limits) -> Calls:
    """The interior-point method of qpax, compiled; arrays are converted outside of the clock's reach."""
    if limits.threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import jax

    jax.config.update("jax_enable_x64", True)
    import qpax as package

    assert p.Q is not None
    assert p.v is not None
    Q, q, A, b, v = (jax.numpy.asarray(t.numpy()) for t in (p.Q, p.q, p.set.A, p.set.upper, p.v))
    C, d = jax.numpy.zeros((0, q.shape[-1])), jax.numpy.zeros(0)

    def one(Q: Any, q: Any, A: Any, b: Any) -> Any:
        return package.solve_qp_primal(Q, q, C, d, A, b, solver_tol=TOLERANCE)

    def both(Q: Any, q: Any) -> Any:
        y, back = jax.vjp(lambda Q, q: jax.vmap(one)(Q, q, A, b), Q, q)
        return y, back(v)

    solve, train = jax.jit(lambda Q, q: jax.vmap(one)(Q, q, A, b)), jax.jit(both)
    return (
        lambda: torch.from_numpy(np.array(solve(Q, q).block_until_ready())),
        lambda: jax.block_until_ready(train(Q, q)),
    )


def _loop(solve: Callable[[np.ndarray], np.ndarray], p: Program) -> Calls:
    linear = p.q.numpy()
    return lambda: torch.from_numpy(np.stack([solve(q) for q in linear])), None


def quadprog(p: Program, limits: Limits) -> Calls:
    """Goldfarb and Idnani's method, in a Python loop."""
    import quadprog as package

    assert p.Q is not None
    Q, rows, zero = p.Q.numpy(), np.eye(p.q.shape[-1]), np.zeros(p.q.shape[-1])
    return _loop(lambda q: package.solve_qp(Q, -q, rows, zero)[0], p)


def clarabel(p: Program, limits: Limits) -> Calls:
    """Clarabel, in a Python loop."""
    import clarabel as package
    from scipy import sparse

    assert p.Q is not None
    n = p.q.shape[-1]
    Q, rows, zero = sparse.triu(sparse.csc_matrix(p.Q.numpy()), format="csc"), -sparse.eye(n, format="csc"), np.zeros(n)
    settings = package.DefaultSettings()
    settings.verbose, settings.max_threads = False, limits.threads
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = TOLERANCE
    cones = [package.NonnegativeConeT(n)]
    return _loop(lambda q: np.array(package.DefaultSolver(Q, q, rows, zero, cones, settings).solve().x), p)


def osqp(p: Program, limits: Limits) -> Calls:
    """OSQP, set up once for all q, warm; in units in which the diagonal of Q is 1."""
    import osqp as package
    from scipy import sparse

    assert p.Q is not None
    n, size = p.q.shape[-1], p.Q.diagonal().sqrt().numpy()
    solver = package.OSQP()
    solver.setup(
        sparse.triu(sparse.csc_matrix(p.Q.numpy() / np.outer(size, size)), format="csc"),
        p.q[0].numpy() / size,
        sparse.eye(n, format="csc"),
        np.zeros(n),
        np.full(n, np.inf),
        verbose=False,
        eps_abs=TOLERANCE,
        eps_rel=TOLERANCE,
        max_iter=100_000,
    )

    def solve(q: np.ndarray) -> np.ndarray:
        solver.update(q=q / size)
        return np.array(solver.solve().x) / size

    return _loop(solve, p)


def highs_warm(p: Program, limits: Limits) -> Calls:
    """HiGHS through its own interface, each from the basis of the sample before."""
    return p.source.solve_with_warm_highs, None


def highs_alone(p: Program, limits: Limits) -> Calls:
    """A model of its own for every sample."""
    loads = p.source.test

    def forward() -> Tensor:
        found = []
        for i in range(len(loads)):
            p.source.test = loads[i : i + 1]
            found.append(p.source.solve_with_warm_highs())
        p.source.test = loads
        return torch.cat(found)

    return forward, None


#: Who takes part in what.
CONTESTANTS: dict[str, dict[str, Callable[[Program, Limits], Calls]]] = {
    "qp": {
        OURS: ours,
        "qpth": qpth,
        "proxsuite": proxsuite,
        "cvxpylayers": cvxpylayers,
        "moreau": moreau,
        "qpax": qpax,
    },
    "mint": {OURS: ours, "quadprog": quadprog, "clarabel": clarabel, "osqp": osqp},
    "opf": {OURS: ours, "highs-warm": highs_warm, f"{OURS}-alone": ours_alone, "highs-alone": highs_alone},
}
PACKAGES = {
    "qpth": ("qpth",),
    "proxsuite": ("proxsuite",),
    "cvxpylayers": ("cvxpylayers",),
    "moreau": ("cvxpylayers", "moreau"),
    "qpax": ("jax", "qpax"),
    "quadprog": ("quadprog",),
    "clarabel": ("clarabel", "scipy"),
    "osqp": ("osqp", "scipy"),
    "highs-warm": ("highspy",),
    "highs-alone": ("highspy",),
}


# ------------------------------------------------------------------------------------------------- one run


@dataclasses.dataclass(frozen=True)
class Line:
    """One contestant on one program: milliseconds of a batch, and how far its objective is from ours, relative."""

    program: str
    contestant: str
    forward: float | None = None
    train: float | None = None
    distance: float | None = None
    violation: float | None = None
    why: str = ""


def select(wanted: list[str] | None) -> list[str]:
    """Names of programs; a family names all of its own.

    Raises:
        ValueError: a name is not known.

    >>> select(["mint", "qp-8"])
    ['qp-8', 'mint-tourismsmall', 'mint-labour', 'mint-wiki2']
    """
    chosen: set[str] = set()
    for word in wanted or PROGRAMS:
        found = {word} & PROGRAMS.keys() or {name for name in PROGRAMS if name.split("-")[0] == word}
        if not found:
            raise ValueError(f"There is no program {word!r}: use one of {', '.join([*CONTESTANTS, *PROGRAMS])}.")
        chosen |= found
    return [name for name in PROGRAMS if name in chosen]


def run(
    names: list[str], limits: Limits, effort: Effort, announce: Callable[[str], None] = lambda line: None
) -> list[Line]:
    """Measure all contestants on these programs; `announce` is called with each step."""
    torch.set_num_threads(limits.threads)
    clock = time.process_time if limits.threads == 1 else time.perf_counter
    lines: list[Line] = []
    for name in names:
        program = PROGRAMS[name]()
        best = solve_qp(program.Q, program.q, program.set)
        left = residuals(best.value, best.multipliers, program.set, program.Q, program.q)
        worst = max(t.max().item() for t in (left.primal, left.dual, left.gap))
        announce(f"{name}: residuals and gap of {OURS} at most {worst:.1e}")
        wanted, calls = best.objective, {}
        found: dict[str, Line] = {}
        for who, build in CONTESTANTS[name.split("-")[0]].items():
            missing = [package for package in PACKAGES.get(who, ()) if importlib.util.find_spec(package) is None]
            found[who] = Line(name, who, why=f"not installed: {', '.join(missing)}" if missing else "")
            if missing:
                continue
            announce(f"{name}: {who}")
            try:
                calls[who] = build(program, limits)
                y = calls[who][0]()
            except Exception as error:  # a rival that fails is a result, not the end of the run
                found[who] = Line(name, who, why=f"failed: {type(error).__name__}: {str(error)[:100]}")
                calls.pop(who, None)
                continue
            apart = ((program.objective(y) - wanted).abs() / wanted.abs().clamp_min(1e-300)).max().item()
            found[who] = dataclasses.replace(
                found[who], distance=apart, violation=program.set.violation(y).max().item()
            )
        for place, direction in enumerate(("forward", "train")):
            turns = {who: call for who, pair in calls.items() if (call := pair[place]) is not None}
            timed = race(turns, effort, clock)
            for who, timing in timed.items():
                found[who] = dataclasses.replace(found[who], **{direction: 1e3 * timing.median})
        lines += found.values()
    return lines


HEADER = ("program", "contestant", "forward, ms", "with backward, ms", "/ ours", "objective off", "violation", "")


def rows(lines: list[Line]) -> list[tuple[str, ...]]:
    """The table: times, and their ratios to ours on the same program; those alone to ours alone."""
    known = {(line.program, line.contestant): line for line in lines}

    def ratio(line: Line, direction: str) -> str:
        base = known.get((line.program, f"{OURS}-alone" if line.contestant.endswith("-alone") else OURS))
        mine, other = getattr(base, direction, None), getattr(line, direction)
        return "-" if mine is None or other is None else f"{other / mine:.2f}"

    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return [
        (
            line.program,
            line.contestant,
            number(line.forward, ".3g"),
            number(line.train, ".3g"),
            f"{ratio(line, 'forward')} / {ratio(line, 'train')}",
            number(line.distance, ".0e"),
            number(line.violation, ".0e"),
            line.why,
        )
        for line in lines
    ]
