"""Problems with known answers, and independent implementations to compare with."""

from __future__ import annotations

import importlib.util
import itertools
import json
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from caffnet import AffineSet

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the reference problems are not at {DATA}")


# ------------------------------------------------------------------------------------------------ stored problems


@cache
def data_module(name: str):
    """A Python file of the data folder."""
    spec = importlib.util.spec_from_file_location(name, DATA / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stored_index() -> dict:
    return json.loads((DATA / "index.json").read_text()) if DATA.is_dir() else {}


def nasty_cases() -> list[dict]:
    return data_module("nasty_cases").N if DATA.is_dir() else []


def stored_problem(name: str) -> dict[str, np.ndarray]:
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def set_of(problem: dict, dtype: torch.dtype = torch.float64) -> AffineSet:
    """The set ``{A y <= b, C y = d, l <= y <= u}`` of a stored problem or nasty case."""
    n = problem["A"].shape[-1]

    def read(name: str, default: np.ndarray) -> Tensor:
        return torch.as_tensor(problem.get(name, default)).to(dtype)

    b, d = read("b", np.zeros(0)), read("d", np.zeros(0))
    whole = AffineSet.inequality(read("A", np.zeros(0)).reshape(len(b), n), b)
    if len(d):
        whole = whole & AffineSet.equality(read("C", np.zeros(0)).reshape(len(d), n), d)
    lower, upper = read("l", np.full(n, -np.inf)), read("u", np.full(n, np.inf))
    if (lower > -np.inf).any() or (upper < np.inf).any():
        whole = whole & AffineSet.box(lower, upper)
    return whole


# ------------------------------------------------------------------------------------------------ random problems


def random_problem(seed: int, dtype: torch.dtype = torch.float64) -> tuple[AffineSet, Tensor, Tensor]:
    """A small feasible set with equalities, two-sided rows, duplicates and rank loss, an `f` and a `w`.

    Feasible by construction: every row holds at a hidden point. Half of the problems have small integer data, where
    degenerate vertices and ties are common.
    """
    random = np.random.default_rng(seed)
    n, m, e = int(random.integers(1, 5)), int(random.integers(1, 7)), 0
    if n > 1 and random.random() < 0.4:
        e = int(random.integers(1, n))
    integers = random.random() < 0.5

    def draw(*shape: int) -> np.ndarray:
        return random.integers(-2, 3, shape).astype(float) if integers else random.normal(size=shape)

    A, C, y = draw(m, n), draw(e, n), draw(n)
    if random.random() < 0.3:  # rank loss: all rows in a subspace
        basis = draw(max(n - 1, 1), n)
        A = draw(m, max(n - 1, 1)) @ basis
    if m > 1 and random.random() < 0.3:  # a duplicate, or the opposite of another row
        A[-1] = A[0] * random.choice([1.0, -1.0, 2.0])
    slack = np.abs(draw(m)) * (random.random(m) < 0.8)
    upper = A @ y + slack
    lower = np.where(random.random(m) < 0.3, A @ y - np.abs(draw(m)), -np.inf)
    parts = AffineSet(*(torch.as_tensor(t).to(dtype) for t in (A, lower, upper)))
    if e:
        parts = parts & AffineSet.equality(*(torch.as_tensor(t).to(dtype) for t in (C, C @ y)))
    f = torch.as_tensor(y + 2 * draw(n)).to(dtype)
    w = torch.as_tensor(random.choice([0.3, 1.0, 3.0]) * draw(n)).to(dtype)
    return parts, f, w


# ------------------------------------------------------------------------------------------------ exact answers


def solve_exactly(system: list[list[Fraction]], right: list[Fraction]) -> list[Fraction] | None:
    """Gauss-Jordan in fractions; None for a singular system."""
    size = len(system)
    lines = [[*row, b] for row, b in zip(system, right, strict=True)]
    for column in range(size):
        pivot = next((i for i in range(column, size) if lines[i][column]), None)
        if pivot is None:
            return None
        lines[column], lines[pivot] = lines[pivot], lines[column]
        lines[column] = [x / lines[column][column] for x in lines[column]]
        for i in range(size):
            if i != column and lines[i][column]:
                factor = lines[i][column]
                lines[i] = [x - factor * y for x, y in zip(lines[i], lines[column], strict=True)]
    return [line[-1] for line in lines]


def nearest_exactly(A: list, upper: list, f: list, M: list) -> list[Fraction] | None:
    """The point of {A y <= upper} nearest to f in M by its optimality conditions, in fractions; None: no point."""
    rows, n = [[Fraction(a) for a in row] for row in A], len(f)
    b, goal = [Fraction(x) for x in upper], [Fraction(x) for x in f]
    metric = [[Fraction(x) for x in row] for row in M]
    target = [sum(metric[i][j] * goal[j] for j in range(n)) for i in range(n)]
    for k in range(min(n, len(rows)) + 1):
        for chosen in itertools.combinations(range(len(rows)), k):
            system = [metric[i] + [rows[c][i] for c in chosen] for i in range(n)]
            system += [rows[c] + [Fraction(0)] * k for c in chosen]
            found = solve_exactly(system, target + [b[c] for c in chosen])
            if found is None or any(multiplier < 0 for multiplier in found[n:]):
                continue
            if all(
                sum(a * y for a, y in zip(row, found, strict=False)) <= bound
                for row, bound in zip(rows, b, strict=True)
            ):
                return found[:n]
    return None


# ------------------------------------------------------------------------------------------------ the paper, literally


def literal_candidates(set: AffineSet, f: np.ndarray, w: np.ndarray) -> list[tuple[np.ndarray, tuple]]:
    """Every feasible ``P_γ`` of the paper's equation over independent γ, with pseudo-inverses.

    Equalities are in every γ; a two-sided row offers either side. The filter has the tolerance of the brief.
    """
    A, lower, upper = (t.numpy() for t in (set.A, set.lower, set.upper))
    m, n = A.shape
    equal = lower == upper
    options = [(i, +1) for i in range(m) if not equal[i] and upper[i] < np.inf]
    options += [(i, -1) for i in range(m) if not equal[i] and lower[i] > -np.inf]
    fixed = [(i, +1) for i in np.flatnonzero(equal)]
    fixed = [fixed[j] for j in independent(A[[i for i, _ in fixed]])]
    found = []
    for k in range(0 if fixed else 1, n + 1):
        for some in itertools.combinations(options, k):
            rows = [i for i, _ in fixed] + [i for i, _ in some]
            if len(set_of_rows(rows)) < len(rows) or len(independent(A[rows])) < len(rows):
                continue
            bounds = np.array([upper[i] if side > 0 else lower[i] for i, side in (*fixed, *some)])
            inverse = np.linalg.pinv(A[rows])
            y = f - inverse @ (A[rows] @ f - bounds) + (np.eye(n) - inverse @ A[rows]) @ w
            y = y - inverse @ (A[rows] @ y - bounds)
            if satisfies(set, y, f):
                found.append((y, tuple(some)))
    return found


def set_of_rows(rows: list[int]) -> set[int]:
    return set(rows)


def independent(rows: np.ndarray) -> list[int]:
    """Indices of a maximal independent subset, greedily from the first row."""
    kept: list[int] = []
    for i in range(len(rows)):
        trial = rows[[*kept, i]]
        size = np.linalg.norm(trial, axis=1, keepdims=True)
        if (size > 0).all() and np.linalg.matrix_rank(trial / size, tol=1e-9) == len(trial):
            kept.append(i)
    return kept


def satisfies(set: AffineSet, y: np.ndarray, f: np.ndarray) -> bool:
    A, lower, upper = (t.numpy() for t in (set.A, set.lower, set.upper))
    size = np.abs(A).sum(1) * (np.abs(y).max() + np.abs(f).max())
    value = A @ y
    bound = np.maximum(np.where(np.isfinite(lower), np.abs(lower), 0), np.where(np.isfinite(upper), np.abs(upper), 0))
    allowed = 8 * len(y) * np.finfo(float).eps * (size + bound)
    return bool((value <= upper + allowed).all() and (value >= lower - allowed).all())


def length(difference: np.ndarray, norm: float) -> float:
    return float(np.linalg.norm(difference, norm))
