"""Writes problems.json: generated problems with exact answers. ``python tests/reference/make_reference.py``.

Every number of a problem is a float32, so that it is the same problem in both number types. DAQP guesses the active
rows; a proof in rational arithmetic makes the guess an answer, and a sample without one is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import daqp
import numpy as np

from exact import conflict_gap, prove_projection

HERE = Path(__file__).parent
INF = math.inf
Set = tuple[np.ndarray, np.ndarray, np.ndarray]  # A, lower, upper


def short(array: Any) -> np.ndarray:
    """Numbers that float32 holds exactly, as float64."""
    return np.asarray(array, dtype=np.float32).astype(float)


def joined(*sets: Set) -> Set:
    """The rows of all."""
    return tuple(np.concatenate(parts) for parts in zip(*sets, strict=True))  # type: ignore[return-value]


def box(n: int, low: float, high: float) -> Set:
    """The same bounds for every output."""
    return np.eye(n), np.full(n, low), np.full(n, high)


def at_most(A: Any, b: Any) -> Set:
    """Rows with an upper bound."""
    return short(A), np.full(len(b), -INF), short(b)


def exactly(A: Any, b: Any) -> Set:
    """Equalities."""
    return short(A), short(b), short(b)


# ------------------------------------------------------------------------------------------------ families


def dense(r: np.random.Generator) -> Set:
    """Random half-spaces around a hidden point."""
    n = int(r.integers(2, 9))
    A, y = r.normal(size=(3 * n, n)), r.normal(size=n)
    return at_most(A, A @ y + r.exponential(size=3 * n))


def two_sided(r: np.random.Generator) -> Set:
    """Rows with both bounds, some of them close together."""
    n = int(r.integers(2, 7))
    A, y = short(r.normal(size=(2 * n, n))), r.normal(size=n)
    width = r.choice([0.01, 1.0], size=2 * n)
    return A, short(A @ y - width), short(A @ y + width)


def portfolio(r: np.random.Generator) -> Set:
    """Shares of ten assets: they add up, none is large, sectors are limited."""
    sectors = (r.random((3, 10)) < 0.4).astype(float)
    return joined(exactly(np.ones((1, 10)), [1.0]), box(10, 0.0, 0.25), at_most(sectors, [0.5, 0.5, 0.75]))


def dispatch(r: np.random.Generator) -> Set:
    """Power of six generators on a meshed grid of six buses: balance, limits, flows in the linear model."""
    ends = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (1, 4), (0, 3)]
    incidence = np.zeros((len(ends), 6))
    for line, (a, b) in enumerate(ends):
        incidence[line, a], incidence[line, b] = 1.0, -1.0
    weight = np.diag(r.uniform(1, 10, len(ends)))
    flows = weight @ incidence @ np.linalg.pinv(incidence.T @ weight @ incidence)
    load = r.uniform(0.2, 1.0, 6)
    limit, shift = r.uniform(1.0, 1.5, len(ends)), flows @ load  # the loads alone, each met at its bus, flow nothing
    A = short(flows)
    lines = A, short(shift - limit), short(shift + limit)
    return joined(exactly(np.ones((1, 6)), [load.sum()]), box(6, 0.0, 2.0), lines)


def hierarchy(_: np.random.Generator) -> Set:
    """Seven series: a total, two regions, four towns; sums agree, none is negative."""
    sums = [[1, -1, -1, 0, 0, 0, 0], [0, 1, 0, -1, -1, 0, 0], [0, 0, 1, 0, 0, -1, -1]]
    return joined(exactly(sums, np.zeros(3)), (np.eye(7), np.zeros(7), np.full(7, INF)))


def flow(r: np.random.Generator) -> Set:
    """Flows on the nine edges of a graph of five nodes: what comes in goes out, within capacities."""
    ends = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (2, 4), (3, 4), (0, 3), (1, 4)]
    balance = np.zeros((5, 9))
    for edge, (a, b) in enumerate(ends):
        balance[a, edge], balance[b, edge] = 1.0, -1.0
    known = short(r.integers(0, 4, 9) / 2.0)  # halves: sums are exact, so the dependent balances agree
    return joined(exactly(balance, balance @ known), box(9, 0.0, 2.0))


def control(r: np.random.Generator) -> Set:
    """Five forces on a mass: limits on force, position and speed at every step; the plan of a predictive controller."""
    step, horizon = 0.5, 5
    moved, faster = np.zeros((horizon, horizon)), np.zeros((horizon, horizon))
    for k in range(horizon):
        for j in range(k + 1):
            faster[k, j] = step
            moved[k, j] = step * step * (k - j + 0.5)
    start = r.uniform(-0.5, 0.5)
    A = short(np.concatenate([moved, faster]))
    high = np.concatenate([np.full(horizon, 1.0 - start), np.full(horizon, 0.75)])
    low = np.concatenate([np.full(horizon, -1.0 - start), np.full(horizon, -0.75)])
    return joined(box(horizon, -1.0, 1.0), (A, short(low), short(high)))


def degenerate(r: np.random.Generator) -> Set:
    """Small integers, and more rows through one vertex than there are outputs."""
    n = int(r.integers(2, 5))
    A, y = r.integers(-2, 3, (2 * n + 2, n)).astype(float), r.integers(-2, 3, n).astype(float)
    return at_most(A, A @ y + r.integers(0, 2, 2 * n + 2) * r.integers(0, 3, 2 * n + 2))


def dependent(r: np.random.Generator) -> Set:
    """All rows in a subspace, with copies, multiples and opposites."""
    n = int(r.integers(3, 6))
    basis = r.integers(-2, 3, (n - 1, n)).astype(float)
    A = r.integers(-1, 2, (n + 2, n - 1)) @ basis
    A = np.concatenate([A, 2 * A[:2], -A[:1]])
    y = r.integers(-1, 2, n).astype(float)
    b = A @ y + r.integers(0, 3, len(A))
    b[-3:-1] = 2 * b[:2]
    return at_most(A, b)


def flat(r: np.random.Generator) -> Set:
    """No interior: two rows that together are an equality."""
    n = int(r.integers(2, 6))
    a, y = r.integers(-3, 4, (1, n)).astype(float), r.integers(-2, 3, n).astype(float)
    A = np.concatenate([a, -a, r.integers(-2, 3, (n + 1, n))])
    slack = np.concatenate([[0, 0], r.integers(1, 4, n + 1)])
    return at_most(A, A @ y + slack)


def scaled(r: np.random.Generator) -> Set:
    """Rows in units from a billionth to a billion."""
    n = int(r.integers(2, 6))
    A, y = r.normal(size=(2 * n, n)), r.normal(size=n)
    unit = 2.0 ** r.integers(-30, 31, 2 * n)
    A = short(A)
    return A * unit[:, None], np.full(2 * n, -INF), short(A @ y + r.exponential(size=2 * n)) * unit


def steep(r: np.random.Generator) -> Set:
    """Pairs of nearly parallel rows, a part in 2^12 apart."""
    n = int(r.integers(2, 5))
    first = r.integers(-8, 9, (n, n)) / 8.0
    second = first + r.integers(-1, 2, (n, n)) / 4096.0
    y = r.integers(-2, 3, n) / 2.0
    A = np.concatenate([first, second])
    return at_most(A, A @ y + r.integers(0, 2, 2 * n) / 8.0)


FAMILIES: dict[str, tuple[Callable[[np.random.Generator], Set], int]] = {
    "dense": (dense, 8),
    "two-sided": (two_sided, 6),
    "portfolio": (portfolio, 4),
    "dispatch": (dispatch, 6),
    "hierarchy": (hierarchy, 1),
    "flow": (flow, 4),
    "control": (control, 4),
    "degenerate": (degenerate, 12),
    "dependent": (dependent, 8),
    "flat": (flat, 6),
    "scaled": (scaled, 6),
    "steep": (steep, 8),
}


# ------------------------------------------------------------------------------------------------ answers


def guess(A: np.ndarray, lower: np.ndarray, upper: np.ndarray, f: np.ndarray) -> list[tuple[int, int]]:
    """The rows that pull at the projection of f, as DAQP sees them; equalities are reduced to independent ones."""
    n = len(f)
    size = np.maximum(np.abs(A).max(1), 1e-300)
    rows = np.ascontiguousarray(A / size[:, None])
    high, low = np.where(np.isfinite(upper), upper / size, 1e30), np.where(np.isfinite(lower), lower / size, -1e30)
    sense = np.where(lower == upper, 5, 0).astype(np.int32)
    _, _, flag, info = daqp.solve(np.eye(n), -f, rows, high, low, sense, primal_tol=1e-11, dual_tol=1e-11)
    if flag not in (1, 2):
        return []
    pull = np.asarray(info["lam"])
    order = [int(i) for i in np.argsort(-np.abs(pull)) if abs(pull[i]) > 1e-9 or lower[i] == upper[i]]
    chosen: list[int] = []
    for i in sorted(order, key=lambda i: lower[i] != upper[i]):
        if np.linalg.matrix_rank(rows[[*chosen, i]], tol=1e-9) == len(chosen) + 1:
            chosen.append(i)
    return [(i, 1 if pull[i] > 0 or lower[i] == upper[i] else -1) for i in sorted(chosen)]


def make_problem(name: str, seed: int) -> dict[str, Any]:
    """One set with six points: near and far ones, the same rounded to integers, and one that is its own projection."""
    random = np.random.default_rng([sum(map(ord, name)), seed])
    A, lower, upper = FAMILIES[name][0](random)
    rows, low, high = A.tolist(), lower.tolist(), upper.tolist()
    samples = []
    n = A.shape[1]
    points = [short(scale * random.normal(size=n)) for scale in (0.3, 1.0, 3.0, 30.0)]
    for f in (*points, np.round(points[1]), np.round(points[2])):
        active = guess(A, lower, upper, f)
        y = prove_projection(rows, low, high, f.tolist(), active)
        if y is None:
            raise SystemExit(f"{name} {seed}: no proof for {f.tolist()} with {active}")
        samples.append({"f": f.tolist(), "y": [float(value) for value in y], "active": active})
    return {"name": f"{name}-{seed}", "A": rows, "lower": low, "upper": high, "samples": samples}


def make_empty(seed: int) -> dict[str, Any]:
    """A set that is empty by construction: integers μ with ``Σ μ_i a_i = 0`` and ``Σ μ_i b_i < 0``."""
    random = np.random.default_rng([7, seed])
    n = int(random.integers(1, 6))
    k = int(random.integers(1, n + 1))
    weights = random.integers(1, 4, k)
    part = random.integers(-3, 4, (k, n)).astype(float)
    part[np.arange(k), np.arange(k)] = random.choice([-3.0, 3.0], k)  # no part vanishes
    last = -(weights[:, None] * part).sum(0, keepdims=True)
    b = random.integers(-3, 4, k).astype(float)
    gap = float(random.choice([-1.0, -0.25, -2.0]))
    A = np.concatenate([part, last])
    bounds = np.concatenate([b, [gap - weights @ b]])
    multipliers = {i: Fraction(int(w)) for i, w in enumerate([*weights, 1])}
    left, found = conflict_gap(A.tolist(), [-INF] * len(A), bounds.tolist(), multipliers)
    assert not any(left) and found == Fraction(gap)
    # The least violation: t with Σ μ (b + t) = 0, if nothing else is in conflict.
    return {
        "name": f"empty-{seed}",
        "A": A.tolist(),
        "lower": [-INF] * len(A),
        "upper": bounds.tolist(),
        "least": float(-found / sum(multipliers.values())),
    }


def main() -> None:
    """All families, all seeds."""
    problems = [make_problem(name, seed) for name, (_, count) in FAMILIES.items() for seed in range(count)]
    empty = [make_empty(seed) for seed in range(12)]
    lines = [json.dumps(problem) for problem in problems], [json.dumps(problem) for problem in empty]
    text = '{"problems": [\n' + ",\n".join(lines[0]) + '\n], "empty": [\n' + ",\n".join(lines[1]) + "\n]}\n"
    (HERE / "problems.json").write_text(text)
    print(f"{len(problems)} problems, {len(empty)} empty sets, {len(text) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
