"""The problems that every contestant gets: the same numbers for all, from fixed seeds, in float64.

A task is a batch of raw outputs `f` with their sets. The map that is timed is the Euclidean projection (w = 0), the one
that all contestants can compute. Building the set from the network's input is not timed: it is the same for all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from caffnet import AffineSet
from caffnet.constraints import BOTH, EQUAL, LOWER, UPPER
from caffnet_lab.experiments.cbf import DrivingProblem
from caffnet_lab.experiments.opt import SolverProblem
from caffnet_lab.experiments.pwc import bounds

SEED = 1
GROWTH = (2, 4, 8, 16, 32, 64, 128, 256)
GROWTH_BATCH, GROWTH_ROWS = 256, 4


@dataclasses.dataclass(frozen=True)
class Standard:
    """The set in the form of solvers: ``G y <= h`` and ``C y = d``, every row with one finite side.

    Attributes:
        G: ``(m, n)`` if shared by the batch, else ``(B, m, n)``.
        h: ``(B, m)``.
        C: ``(e, n)`` or ``(B, e, n)``; e may be 0.
        d: ``(B, e)``.
    """

    G: Tensor
    h: Tensor
    C: Tensor
    d: Tensor


@dataclasses.dataclass(frozen=True)
class Task:
    """A batch of projections.

    Attributes:
        name: unique, as in ``dc3-200``.
        family: what it belongs to, as in ``dc3``.
        x: the backbone's input, ``(B, n_in)``.
        f: the points to project, ``(B, n)``.
        v: the upstream gradient, ``(B, n)``.
        set: the constraints; `A` is ``(m, n)`` where the batch shares it.
    """

    name: str
    family: str
    x: Tensor
    f: Tensor
    v: Tensor
    set: AffineSet

    @property
    def batch(self) -> int:
        """The number of samples."""
        return self.f.shape[0]

    @property
    def n(self) -> int:
        """The number of outputs."""
        return self.f.shape[1]

    @property
    def shared(self) -> bool:
        """Check whether all samples have the same `A`."""
        return self.set.A.ndim == 2

    @property
    def inequalities(self) -> int:
        """One-sided inequalities: a row with two sides counts twice, as it does in ``A y <= b``."""
        return sum({UPPER: 1, LOWER: 1, BOTH: 2}.get(side, 0) for side in self.set.row_kinds)

    @property
    def equalities(self) -> int:
        """Equality rows."""
        return sum(side == EQUAL for side in self.set.row_kinds)

    @property
    def input_bytes(self) -> int:
        """Size of the tensors that the layer is given: f, A and both bounds."""
        return sum(t.numel() * t.element_size() for t in (self.f, self.set.A, self.set.lower, self.set.upper))

    def standard(self) -> Standard:
        """The set in one-sided rows."""
        sides = self.set.row_kinds
        up = [i for i, side in enumerate(sides) if side in (UPPER, BOTH)]
        low = [i for i, side in enumerate(sides) if side in (LOWER, BOTH)]
        equal = [i for i, side in enumerate(sides) if side == EQUAL]
        A, lower, upper = self.set.A, self.set.lower, self.set.upper
        lower, upper = (t.expand(self.batch, -1) for t in (lower, upper))
        return Standard(
            torch.cat([A[..., up, :], -A[..., low, :]], -2).contiguous(),
            torch.cat([upper[:, up], -lower[:, low]], -1).contiguous(),
            A[..., equal, :].contiguous(),
            upper[:, equal].contiguous(),
        )


def _normal(stream: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=stream)


def _stream() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)


def pwc() -> Task:
    """The paper's piecewise bounds at 500 points: n = 1, two lower and two upper bounds."""
    stream = _stream()
    x = torch.linspace(-2, 2, 500, dtype=torch.float64).unsqueeze(-1)
    lower, upper = bounds(x)
    f = 0.5 * (lower.amax(-1, keepdim=True) + upper.amin(-1, keepdim=True)) + 2 * _normal(stream, 500, 1)
    set = AffineSet.from_parts(x.new_ones(2, 1), lower, upper, None, (BOTH, BOTH))
    return Task("pwc", "pwc", x, f, _normal(stream, 500, 1), set)


def opt() -> Task:
    """The paper's optimisation task at its 1000 test points: n = 5, five inequalities, three equalities, shared A."""
    stream, problem = _stream(), SolverProblem(SEED)
    x = problem.test
    return Task("opt", "opt", x, _normal(stream, len(x), 5), _normal(stream, len(x), 5), problem.build_set(x))


def cbf(batch: int) -> Task:
    """The paper's control task at safe states: n = 2, 13 rows, one A per state; f is random, around the limits."""
    stream, problem = _stream(), DrivingProblem(SEED)
    x = problem.train
    with torch.no_grad():
        set = problem.build_set(x)
    f = torch.cat([0.5 + _normal(stream, len(x), 1), 0.5 * _normal(stream, len(x), 1)], -1)
    v = _normal(stream, len(x), 2)
    if batch == 1:  # a state where the layer has something to do
        outside = (~set.contains(f)).nonzero()[0, 0]
        x, f, v = (t[outside : outside + 1] for t in (x, f, v))
        set = set[outside : outside + 1]
    return Task(f"cbf-{batch}", "cbf", x, f, v, set)


def dc3(batch: int) -> Task:
    """The task of DC3: n = 100, 50 inequalities, 50 equalities, shared A, feasible by the bound of that paper."""
    stream = _stream()
    C, G = _normal(stream, 50, 100), _normal(stream, 50, 100)
    h = (G @ torch.linalg.pinv(C)).abs().sum(-1)
    x = 2 * torch.rand(batch, 50, dtype=torch.float64, generator=stream) - 1
    upper = torch.cat([h.expand(batch, -1), x], -1)
    lower = torch.cat([torch.full((batch, 50), -math.inf, dtype=torch.float64), x], -1)
    set = AffineSet.from_parts(torch.cat([G, C]), lower, upper, None, (UPPER,) * 50 + (EQUAL,) * 50)
    f, v = 2 * _normal(stream, batch, 100), _normal(stream, batch, 100)
    return Task(f"dc3-{batch}", "dc3", x, f, v, set)


def growth(n: int, batch: int = GROWTH_BATCH) -> Task:
    """``m = 4n`` random rows per sample around a hidden feasible point; about half of n rows end active."""
    stream = _stream()
    m = GROWTH_ROWS * n
    A = _normal(stream, batch, m, n) / math.sqrt(n)
    inside = _normal(stream, batch, n)
    b = (A @ inside.unsqueeze(-1)).squeeze(-1) + _normal(stream, batch, m).abs()
    f, v = inside + _normal(stream, batch, n), _normal(stream, batch, n)
    set = AffineSet.from_parts(A, torch.full_like(b, -math.inf), b, None, (UPPER,) * m)
    return Task(f"growth-{n}", "growth", _normal(stream, batch, n), f, v, set)


#: name -> how to make it; in the order of the report.
TASKS: dict[str, Callable[[], Task]] = {
    "pwc": pwc,
    "opt": opt,
    "cbf-300": lambda: cbf(300),
    "cbf-1": lambda: cbf(1),
    "dc3-200": lambda: dc3(200),
    "dc3-1000": lambda: dc3(1000),
    **{f"growth-{n}": (lambda n=n: growth(n)) for n in GROWTH},
}
QUICK = ("pwc", "opt", "cbf-300", "cbf-1", "dc3-200", "growth-2", "growth-4", "growth-8", "growth-16", "growth-32")


def select(wanted: list[str] | None, quick: bool = False) -> list[str]:
    """Names of tasks; a family names all of its own (``growth``).

    Raises:
        ValueError: a name is not known.

    >>> select(["cbf", "growth-8"])
    ['cbf-300', 'cbf-1', 'growth-8']
    """
    known = [name for name in TASKS if not quick or name in QUICK]
    if not wanted:
        return known
    chosen: set[str] = set()
    for word in wanted:
        found = {word} & TASKS.keys() or {name for name in known if name.split("-")[0] == word}
        if not found:
            names = dict.fromkeys([*(name.split("-")[0] for name in TASKS), *TASKS])  # families, then tasks
            raise ValueError(f"There is no task {word!r}: use one of {', '.join(names)}, or everyday.")
        chosen |= found
    return [name for name in TASKS if name in chosen]
