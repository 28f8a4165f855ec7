"""The paper's layer, word for word: every subset of up to n rows of ``A y <= b``, one pseudo-inverse each.

Each equality is a pair of inequalities, each sample has its own `A` (the paper's is a function of the input), and a
candidate is accepted with the authors' absolute tolerance. Feasible for n of a few units only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from caffnet import AffineSet
from caffnet_lab.bench.tasks import Task

TOLERANCE = 1e-10  # the authors'


def subsets(m: int, n: int) -> int:
    """Number of sub-constraints.

    >>> subsets(11, 5)
    1023
    """
    return sum(math.comb(m, k) for k in range(1, min(m, n) + 1))


def rows_of(task: Task) -> int:
    """The rows of ``A y <= b``: an equality is two."""
    return task.inequalities + 2 * task.equalities


def needed_bytes(task: Task) -> int:
    """Memory of the largest group of subsets: A_γ, its pseudo-inverse, factors of the SVD, and the candidates."""
    m, n = rows_of(task), task.n
    largest = max(math.comb(m, k) * (5 * k * n + 3 * n + m) for k in range(1, min(m, n) + 1))
    return 8 * task.batch * (largest + subsets(m, n) * n)


def build(task: Task) -> Callable[[Tensor], Tensor]:
    """The map ``f -> y`` of a task."""
    s = task.standard()
    A = torch.cat([s.G, s.C, -s.C], -2)
    A = A.expand(task.batch, -1, -1).contiguous() if task.shared else A
    b = torch.cat([s.h, s.d, -s.d], -1)
    return enumeration(A, b, range(1, min(A.shape[-2:]) + 1))


def of_set(rows: AffineSet, batch: int, lite: bool = False) -> Callable[[Tensor], Tensor]:
    """The same for a set, a row for each side of each of its rows; `lite` looks at single rows and vertices only."""
    above, below = (bound.isfinite().reshape(-1, rows.m).any(0) for bound in (rows.upper, rows.lower))
    A = torch.cat([rows.A[..., above, :], -rows.A[..., below, :]], -2)
    b = torch.cat([rows.upper[..., above], -rows.lower[..., below]], -1)
    m, n = A.shape[-2:]
    sizes = (1, min(m, n)) if lite else range(1, min(m, n) + 1)
    return enumeration(A.expand(batch, m, n).contiguous(), b.expand(batch, m), sizes)


def enumeration(A: Tensor, b: Tensor, sizes: Sequence[int]) -> Callable[[Tensor], Tensor]:
    """The map ``f -> y`` for rows ``A y <= b``, ``(B, m, n)`` and ``(B, m)``, with subsets of these sizes."""
    m, n = A.shape[-2:]
    groups = [torch.tensor(list(itertools.combinations(range(m), k))) for k in sizes]

    def project(f: Tensor) -> Tensor:
        candidates, feasible = [], []
        for rows in groups:
            some, bound = A[:, rows], b[:, rows]  # (B, C, k, n) and (B, C, k)
            inverse = torch.linalg.pinv(some)
            gap = (some @ f[:, None, :, None]).squeeze(-1) - bound
            point = f.unsqueeze(1) - (inverse @ gap.unsqueeze(-1)).squeeze(-1)
            candidates.append(point)
            feasible.append((point @ A.mT <= b.unsqueeze(1) + TOLERANCE).all(-1))
        points, ok = torch.cat(candidates, 1), torch.cat(feasible, 1)
        distance = torch.where(ok, (points - f.unsqueeze(1)).detach().square().sum(-1), math.inf)
        best = distance.argmin(-1)
        chosen = points.gather(1, best[:, None, None].expand(-1, 1, n)).squeeze(1)
        inside = ((A @ f.unsqueeze(-1)).squeeze(-1) <= b + TOLERANCE).all(-1, keepdim=True)
        return torch.where(inside, f, chosen)

    return project
