"""2000 problems with the answers of Python, as one file that every other home of the kernel reads.

Sizes n = 1..40 and m = 1..200, float32 and float64, with and without w and a metric, all searches; random, degenerate
(small integers: rows repeat, depend on each other and meet in points), boxes, equalities, empty sets, data with NaN.

The file is little-endian: the number of problems and of tolerances (int64); then for each problem n, m, single, search,
strict, nearest, w or not, status, how many numbers its metric has (int64; n if it is diagonal), the norm and the
tolerances (double), the kinds of the rows (8 bytes each), and f, w, A, lower, upper, metric, value (double; float32
numbers are doubles too).
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from caffnet import AffineSet, project
from caffnet._kernel import native

COUNT = 2000
FULL_ROWS = 6  # more rows are searched by "active"


class Vector(NamedTuple):
    """A problem without batch axes and its answer."""

    f: Tensor
    w: Tensor | None
    A: Tensor
    lower: Tensor
    upper: Tensor
    metric: Tensor | None  # (n, n), or (1, n) if it is diagonal
    row_kinds: str
    search: str
    norm: float
    strict: bool
    nearest: bool
    value: Tensor
    status: int


def problems(count: int = COUNT) -> Iterator[Vector]:
    """The problems, the same ones at every call."""
    dice, stream = random.Random(17), torch.Generator().manual_seed(17)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=stream)

    def integers(*shape: int) -> Tensor:
        return torch.randint(-2, 3, shape, generator=stream).double()

    for k in range(count):
        kind = ("random", "random", "integers", "box", "empty", "equalities", "invalid")[k % 7]
        n = min(40, int(41 ** dice.random()))
        m = n if kind == "box" else min(200, int(201 ** dice.random()))
        if kind == "empty":
            m = max(m, 2)
        whole = kind == "integers"
        draw = integers if whole else normal
        A = torch.eye(n, dtype=torch.float64) if kind == "box" else draw(m, n)
        f, w = 3 * draw(n), draw(n) if dice.random() < 0.4 else None
        centre = A @ (0.3 * draw(n))
        room = draw(m).abs() + (0.0 if whole else 0.1)
        lower, upper = centre - room, centre + room
        free = torch.rand(m, dtype=torch.float64, generator=stream)
        lower = torch.where(free < 0.5, -torch.inf, lower)
        if kind == "equalities":
            equal = torch.arange(m) < min(m, n) // 3 + 1
            lower, upper = torch.where(equal, centre, lower), torch.where(equal, centre, upper)
        if kind == "empty":
            A[1], lower[1], upper[1] = -A[0], -torch.inf, -upper[0] - 0.5
        if kind == "invalid":
            bad = dice.choice([f, A, upper])
            bad.view(-1)[dice.randrange(bad.numel())] = dice.choice([torch.nan, -torch.inf])
        single = dice.random() < 0.5
        dtype = torch.float32 if single else torch.float64
        f, A, lower, upper = (t.to(dtype) for t in (f, A, lower, upper))
        w = None if w is None else w.to(dtype)
        search = dice.choice(["full", "lite", "paper", "active"]) if m <= FULL_ROWS and n <= 4 else "active"
        norm, strict, nearest = dice.choice([2.0, 2.0, 1.0, float("inf")]), dice.random() < 0.2, dice.random() < 0.7
        set = AffineSet(A, lower, upper)
        if search != "paper" and norm == 2.0 and dice.random() < 0.5:
            root = normal(n, n) / n**0.5
            full, diagonal = root @ root.T + torch.eye(n, dtype=torch.float64), 0.2 + normal(n).square()
            set = set.with_metric(dice.choice([full, diagonal]).to(dtype))
        on_infeasible = "nearest" if nearest else "nan"
        answer = project(f, set, w, search=search, norm=norm, strict=strict, on_infeasible=on_infeasible)
        status = int(answer.status)
        yield Vector(
            f, w, A, lower, upper, set.metric, set.row_kinds, search, norm, strict, nearest, answer.value, status
        )


def write(path: Path, vectors: list[Vector]) -> Path:
    """The file that is described above."""
    fields = len(native.tolerances(torch.float64, 1))
    parts = [struct.pack("<2q", len(vectors), fields)]
    for v in vectors:
        n, m = len(v.f), len(v.A)
        whole = (n, m, v.f.dtype == torch.float32, native.SEARCHES[v.search], v.strict, v.nearest, v.w is not None)
        parts.append(struct.pack("<9q", *whole, v.status, 0 if v.metric is None else v.metric.numel()))
        parts.append(struct.pack(f"<{1 + fields}d", v.norm, *native.tolerances(v.f.dtype, n)))
        parts.append(struct.pack(f"<{m}q", *v.row_kinds.encode()))
        for t in (v.f, v.w, v.A, v.lower, v.upper, v.metric, v.value):
            if t is not None:
                parts.append(t.double().contiguous().numpy().tobytes())
    path.write_bytes(b"".join(parts))
    return path
