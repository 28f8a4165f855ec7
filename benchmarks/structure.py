"""The figures of docs/structure.md: large sets with a structure, beside plain methods and solvers.

Run ``python benchmarks/structure.py > table.md``, or with words of the tasks wanted; rivals take part where installed.
One thread, float64, the same data for all; times are of the processor, the least of several runs, per sample, forward
(and with backward for ours); the distance is to our answer. Solvers get everything that the samples share once, and are
asked for 1e-9.
"""

# Optional packages, some without types:
# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false

from __future__ import annotations

import dataclasses
import itertools
import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.optimize
import scipy.sparse as sp
import torch
from torch import Tensor

from caffnet import AffineSet, project
from caffnet._solve import sparse
from caffnet_lab.experiments.yardsticks.grid import read_grid

DOUBLE, TOLERANCE = torch.float64, 1e-9
YARDSTICKS = Path(__file__).resolve().parents[2] / "shared" / "data" / "yardsticks"


@dataclasses.dataclass
class Task:
    """A batch of projections; `plain` is the direct method in numpy, if there is one."""

    name: str
    set: AffineSet
    f: Tensor
    plain: Callable[[np.ndarray], np.ndarray] | None = None
    note: str = ""


def stream() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def normal(at: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=at)


def uniform(at: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, dtype=DOUBLE, generator=at)


# ------------------------------------------------------------------------------------------------- tasks


def box(n: int) -> Task:
    at = stream()
    low, high = -uniform(at, n), uniform(at, n)
    below, above = low.numpy(), high.numpy()
    return Task(
        f"box, n = {n}", AffineSet.box(low, high), normal(at, 4, n), lambda f: np.clip(f, below, above), "np.clip"
    )


def simplex(n: int) -> Task:
    def by_sorting(f: np.ndarray) -> np.ndarray:
        u = np.sort(f)[::-1]
        c = np.cumsum(u) - 1
        k = np.nonzero(u * np.arange(1, n + 1) > c)[0][-1]
        return np.maximum(f - c[k] / (k + 1), 0)

    set = AffineSet.equality(torch.ones(1, n, dtype=DOUBLE), [1.0]) & AffineSet.box(0.0, None, dim=n)
    return Task(f"simplex, n = {n}", set, normal(stream(), 4, n), by_sorting, "sort")


def budget(n: int) -> Task:
    at = stream()
    a, low, high = uniform(at, n), -0.1 * uniform(at, n), uniform(at, n)
    x, below, above = a.numpy(), low.numpy(), high.numpy()

    def by_halving(f: np.ndarray) -> np.ndarray:
        near, far = 0.0, float(np.max((f - below) / x))
        for _ in range(60):
            middle = 0.5 * (near + far)
            near, far = (middle, far) if x @ np.clip(f - middle * x, below, above) > 1 else (near, middle)
        return np.clip(f - far * x, below, above)

    set = AffineSet.inequality(a.unsqueeze(0), [1.0]) & AffineSet.box(low, high)
    return Task(f"budget + box, n = {n}", set, normal(at, 4, n), by_halving, "60 bisections of numpy")


def chain(n: int) -> Task:
    columns = torch.stack([torch.arange(n - 1), torch.arange(1, n)], 1).reshape(-1)
    signs = torch.tensor([-1.0, 1.0], dtype=DOUBLE).repeat(n - 1)
    set = AffineSet(sparse.from_entries(torch.arange(0, 2 * n - 1, 2), columns, signs, n), 0.0)

    def pooled(f: np.ndarray) -> np.ndarray:
        return scipy.optimize.isotonic_regression(f).x

    return Task(f"monotone, n = {n}", set, normal(stream(), 4, n), pooled, "isotonic_regression of scipy, in C++")


def flow(nodes: int, arcs: int) -> Task:
    at = stream()
    ends = torch.tensor(
        [(k, (k + 1) % nodes) if k < nodes else torch.randperm(nodes, generator=at)[:2].tolist() for k in range(arcs)]
    )
    C = torch.zeros(nodes, arcs, dtype=DOUBLE)
    C[ends[:, 0], torch.arange(arcs)] = 1
    C[ends[:, 1], torch.arange(arcs)] = -1
    inside = uniform(at, 16, arcs)
    rows = sparse.from_entries(*sparse.entries(C), arcs)
    set = AffineSet.equality(rows, inside @ C.T) & AffineSet.box(0.0, 1.0, dim=arcs)
    return Task(f"network flow, {nodes} nodes, {arcs} arcs", set, inside + 0.5 * normal(at, 16, arcs))


def equalities(m: int, n: int) -> Task:
    at = stream()
    C, inside = normal(at, m, n), normal(at, 256, n)
    lift = torch.linalg.pinv(C)
    keep, right = (torch.eye(n, dtype=DOUBLE) - lift @ C).numpy(), (inside @ C.T @ lift.T).numpy()
    set, f = AffineSet.equality(C, inside @ C.T), normal(at, 256, n)
    index = {row.tobytes(): i for i, row in enumerate(f.numpy())}
    return Task(
        f"{m} equalities shared by the batch, n = {n}",
        set,
        f,
        lambda g: g @ keep + right[index[g.tobytes()]],
        "one product",
    )


def dispatch(case: str) -> list[Task]:
    """Limits of generators and, by PTDF rows, of branches, with other loads in every sample; none without data."""
    path = YARDSTICKS / f"pglib_opf_{case}_ieee.m"
    if not path.exists():
        sys.stderr.write(f"{path} is not there: {case} is left out\n")
        return []
    grid, at, samples = read_grid(path), stream(), 64
    F, constant, flow_least, flow_most, load, shunt, least, most = (
        torch.from_numpy(t).to(DOUBLE)
        for t in (
            grid.transfer,
            grid.constant,
            grid.flow_least,
            grid.flow_most,
            grid.load,
            grid.shunt,
            grid.least,
            grid.most,
        )
    )
    n = len(least)
    drawn = load * (0.9 + 0.1 * uniform(at, samples, len(load))) + shunt
    base = constant - drawn @ F.T  # the flows without generation
    limits = torch.isfinite(flow_least) | torch.isfinite(flow_most)
    rows = AffineSet.equality(torch.ones(1, n, dtype=DOUBLE), drawn.sum(-1, keepdim=True)) & AffineSet.box(least, most)
    rows &= AffineSet(
        F[:, torch.from_numpy(grid.generator_bus)][limits],
        (flow_least - base)[:, limits],
        (flow_most - base)[:, limits],
    )
    f = least + (most - least) * uniform(at, samples, n)
    return [Task(f"PTDF of {case}, {n} generators, {int(limits.sum())} branches", rows, f)]


# ------------------------------------------------------------------------------------------------- contestants


def least(call: Callable[[], object], runs: int = 7, seconds: float = 6.0) -> float:
    """Milliseconds of the processor, which others on a busy machine do not lengthen."""
    call()
    times: list[float] = []
    while len(times) < runs and sum(times) < seconds:
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return 1e3 * min(times)


def csc(set: AffineSet) -> sp.csc_matrix:
    starts, columns, values = (t.numpy() for t in sparse.entries(set.A))
    return sp.csr_matrix((values, columns, starts), (set.m, set.n)).tocsc()


def bounds(task: Task) -> tuple[np.ndarray, np.ndarray]:
    return tuple(t.expand(len(task.f), -1).numpy() for t in (task.set.lower, task.set.upper))  # pyright: ignore


def osqp(task: Task) -> Callable[[], np.ndarray]:
    import osqp as package

    if task.set.n > 2000:
        raise MemoryError("seconds to minutes for one sample")
    low, high = bounds(task)
    solver, f = package.OSQP(), task.f.numpy()
    options = {"verbose": False, "eps_abs": TOLERANCE, "eps_rel": TOLERANCE, "max_iter": 100_000, "polishing": True}
    solver.setup(sp.eye(task.set.n, format="csc"), -f[0], csc(task.set), low[0], high[0], **options)

    def run() -> np.ndarray:
        y = np.empty_like(f)
        for i in range(len(f)):
            solver.update(q=-f[i], l=low[i], u=high[i])
            y[i] = solver.solve().x
        return y

    return run


def daqp(task: Task) -> Callable[[], np.ndarray]:
    import daqp as package

    n = task.set.n
    if n > 1000:
        raise MemoryError("dense")
    low, high = (np.clip(t, -1e30, 1e30) for t in bounds(task))
    A, f, sense = (
        csc(task.set).toarray(),
        task.f.numpy(),
        np.array([5 * (k == "=") for k in task.set.row_kinds], np.int32),
    )

    def run() -> np.ndarray:
        return np.stack([package.solve(np.eye(n), -f[i], A, high[i], low[i], sense)[0] for i in range(len(f))])

    return run


def highs(task: Task) -> Callable[[], np.ndarray]:
    import highspy

    n, f = task.set.n, task.f.numpy()
    if n > 1000:
        raise MemoryError("its QP is dense in the active rows: minutes for one sample")
    low, high = bounds(task)
    A = csc(task.set)

    def one(i: int) -> np.ndarray:
        solver = highspy.Highs()
        solver.silent()
        model = highspy.HighsModel()
        lp = model.lp_
        lp.num_col_, lp.num_row_, lp.col_cost_ = n, task.set.m, -f[i]
        lp.col_lower_, lp.col_upper_ = np.full(n, -np.inf), np.full(n, np.inf)
        lp.row_lower_, lp.row_upper_ = low[i], high[i]
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = A.indptr, A.indices, A.data
        model.hessian_.dim_ = n
        model.hessian_.start_, model.hessian_.index_, model.hessian_.value_ = np.arange(n + 1), np.arange(n), np.ones(n)
        solver.passModel(model)
        solver.run()
        return np.array(solver.getSolution().col_value)

    return lambda: np.stack([one(i) for i in range(len(f))])


def moreau(task: Task) -> Callable[[], np.ndarray]:
    import cvxpy as cp
    from cvxpylayers.torch import CvxpyLayer  # pyright: ignore[reportPrivateImportUsage]

    n, m = task.set.n, task.set.m
    if n > 2000:
        raise MemoryError("minutes for the layer itself")
    low, high = (t.expand(len(task.f), -1) for t in (task.set.lower, task.set.upper))
    A = csc(task.set).tocsr()
    equal = np.array([k == "=" for k in task.set.row_kinds])
    up, down = ~equal & np.isfinite(high[0].numpy()), ~equal & np.isfinite(low[0].numpy())
    y, f = cp.Variable(n), cp.Parameter(n)
    rules, given, values = [], [f], []
    for mask, side, make in (
        (equal, high, lambda a, b: a == b),
        (up, high, lambda a, b: a <= b),
        (down, low, lambda a, b: a >= b),
    ):
        if mask.any():
            b = cp.Parameter(int(mask.sum()))
            rules.append(make(A[mask] @ y, b))
            given.append(b)
            values.append(side[:, torch.from_numpy(mask)])
    del m
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"ipm_settings": {"tol_gap_abs": TOLERANCE, "tol_gap_rel": TOLERANCE, "tol_feas": TOLERANCE}}
        layer = CvxpyLayer(
            cp.Problem(cp.Minimize(0.5 * cp.sum_squares(y - f)), rules),
            given,
            [y],
            solver="MOREAU",
            solver_args=options,
        )
    return lambda: layer(task.f, *values)[0].detach().numpy()


RIVALS = {"OSQP": osqp, "DAQP": daqp, "HiGHS": highs, "moreau": moreau}


def measure(task: Task) -> list[str]:
    """A line of the table."""
    f, samples = task.f, len(task.f)
    answer = project(f, task.set)
    leaf = f.clone().requires_grad_()
    v = torch.ones_like(f)
    ours = least(lambda: project(f, task.set)) / samples
    both = least(lambda: torch.autograd.grad(project(leaf, task.set).value, leaf, v)) / samples
    cells = [task.name, f"{ours:.3g}", f"{both:.3g}"]
    points = f.numpy()
    if task.plain is None:
        cells.append("")
    else:
        plain = task.plain
        took = least(lambda: [plain(g) for g in points]) / samples
        apart = max(np.abs(plain(g) - y).max() for g, y in zip(points, answer.value.numpy(), strict=True))
        cells.append(f"{took:.3g} ({apart:.0e}; {task.note})")
    for name, build in RIVALS.items():
        try:
            run = build(task)
            apart = np.abs(run() - answer.value.numpy()).max()
            cells.append(f"{least(run, 3) / samples:.3g} ({apart:.0e})")
        except (ImportError, MemoryError) as error:
            cells.append("" if isinstance(error, ImportError) else "-")
        sys.stderr.write(f"{task.name}: {name}\n")
    return cells


def main() -> None:
    """Write the table."""
    torch.set_num_threads(1)
    tasks = [box(100_000), simplex(10_000), budget(10_000), chain(10_000), simplex(1000), budget(300), chain(1000)]
    tasks += [flow(180, 600), flow(360, 1200), equalities(100, 200), *dispatch("case300")]
    head = ["task", "ours", "with backward", "direct", *RIVALS]
    wanted = [task for task in tasks if not sys.argv[1:] or any(word in task.name for word in sys.argv[1:])]
    for cells in itertools.chain([head, ["---"] * len(head)], map(measure, wanted)):
        sys.stdout.write("| " + " | ".join(cells) + " |\n")
        sys.stdout.flush()
    sys.stderr.write(
        f"largest memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB\n"
    )


if __name__ == "__main__":
    main()
