"""The polynomial search: the sub-constraint that is active at the Euclidean projection of ``g = f + w``.

That projection is always one of the paper's candidates (its active rows, reduced to independent ones, are a γ), and a
dual active-set method finds it in about ``|γ|`` steps whatever the number of subsets. (Where ``g`` itself is inside, no
row is active; then the row nearest to ``g`` is taken.) When ``w`` is not zero, the rows active at the projection of
``f`` give a second candidate; if it is feasible and nearer to `f`, it wins.

This is the batched version, on any device. On the CPU the same method runs compiled, one sample at a time (`kernel`).
Measured side by side with DAQP, the fastest C solver we know, in a loop over the same batches (`caffnet bench`), the
kernel takes about half of its time for 8 to 64 outputs, less for 100 outputs with 50 equalities: its loop has no Python
in it, and rows that hold are rarely looked at again. So DAQP is a rival in the benchmark, not a part of the library.
"""

from __future__ import annotations

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet.rows import Rows, apply, pick_rows
from caffnet.search import dual
from caffnet.search.contract import Choice, distance
from caffnet.search.flat import flat_point


def choose(rows: Rows, f: Tensor, g: Tensor, norm: float) -> Choice:
    """Per sample the γ of the projection of `g`, or of `f` where that is feasible and nearer to `f`.

    The arithmetic is float64 whatever the user's type: a solver's answer is only as good as its numbers.
    """
    rows, f, g = rows.to(torch.float64), f.double(), g.double()
    choice, _ = by_dual(rows, g)
    choice = never_empty(rows, choice, g)
    shifted = (g != f).any(-1).nonzero().squeeze(-1)
    if shifted.numel() == 0:
        return choice
    # The second candidate: the flat that is active at the projection of f, with the null-space shift w.
    some = rows.take(shifted)
    start, target = f[shifted], g[shifted]
    first = choice.take(shifted)
    second, _ = by_dual(some, start)
    here, there = (flat_point(some, option, target) for option in (first, second))
    feasible = second.found & some.accepts(there, torch.maximum(start.abs(), target.abs()))
    nearer = distance(there - start, norm) < distance(here - start, norm)
    better = feasible & (nearer | ~first.found)
    return choice.put(shifted[better], second.take(better.nonzero().squeeze(-1)))


def never_empty(rows: Rows, choice: Choice, g: Tensor) -> Choice:
    """The choice with `nearest_plane` where no row was chosen: a sub-constraint has at least one."""
    free = (choice.found & (choice.sides == 0).all(-1)).nonzero().squeeze(-1)
    return choice.put(free, nearest_plane(rows.take(free), g[free])) if free.numel() else choice


def nearest_plane(rows: Rows, g: Tensor) -> Choice:
    """For a `g` inside the set (while `f` is not): the single row whose plane is nearest to `g`.

    The ball around `g` that touches this plane lies in the set, and the touching point is a candidate: feasible always.
    """
    value = apply(rows.A, g)
    length = torch.linalg.vector_norm(rows.A, dim=-1)
    gaps = torch.stack([rows.upper - value, value - rows.lower], -1) / length.unsqueeze(-1)  # a zero row has no plane
    gap, side = torch.where(gaps.isfinite(), gaps, torch.inf).min(-1)
    row = gap.argmin(-1, keepdim=True)
    sign = torch.where(side.gather(-1, row) == 0, 1, -1).to(torch.int8)
    active = torch.zeros(value.shape, dtype=torch.int8, device=g.device).scatter(-1, row, sign)
    return from_active(rows, active, torch.ones(g.shape[0], dtype=torch.bool, device=g.device))


def by_dual(rows: Rows, g: Tensor) -> tuple[Choice, Tensor]:
    """The face of the projection of `g` by `dual`, and the multipliers of rows in conflict where there is none."""
    outcome = dual.project(rows, g)
    return from_active(rows, outcome.active, outcome.found), outcome.conflict


def from_active(rows: Rows, active: Tensor, found: Tensor) -> Choice:
    """The choice with the rows marked in ``active (B, m)`` and all equalities, reduced to independent rows.

    Slots are filled from the left, equalities first. A row that depends on those before it has a vanishing diagonal
    entry in its factor; it names the same flat and is left out.
    """
    rows = rows.to(torch.float64)
    equal = (rows.lower == rows.upper) & rows.lower.isfinite()
    marked = torch.where(equal, torch.ones_like(active, dtype=torch.int8), active.to(torch.int8))
    while True:
        rank = torch.where(marked == 0, 2, torch.where(equal, 0, 1)).to(torch.int8)
        count = (marked != 0).sum(-1)
        order = rank.argsort(dim=-1, stable=True)[:, : int(count.max()) if count.numel() else 0]
        sides = marked.gather(-1, order)
        order = torch.where(sides != 0, order, 0)
        pinv, dependent = _invert(pick_rows(rows.A, order), count, tolerance.rank(rows.dtype, rows.n))
        several = dependent.any(-1)
        if not several.any():
            return Choice(order, sides, pinv, found)
        # Only the first is sure to depend on the others: what follows it was measured against noise.
        first = order.gather(-1, dependent.to(torch.int8).argmax(-1, keepdim=True))
        marked = torch.where(several.unsqueeze(-1), marked.scatter(-1, first, 0), marked)


def _invert(chosen: Tensor, count: Tensor, cut: float) -> tuple[Tensor, Tensor]:
    """``A_γ⁺ = Q R⁻ᵀ`` from ``A_γᵀ = Q R``, ``(B, n, k)``, and which rows depend on those before them, ``(B, k)``.

    Samples with the same number of rows are factorised together, each at its own width: the bits of one sample do not
    depend on what else is in the batch.
    """
    samples, slots, n = chosen.shape
    pinv = chosen.new_zeros(samples, n, slots)
    dependent = torch.zeros(samples, slots, dtype=torch.bool, device=chosen.device)
    for k in count.unique().tolist():
        some = (count == k).nonzero().squeeze(-1)
        A = chosen[some, :k]
        Q, R = torch.linalg.qr(A.mT)
        width = min(k, n)
        diagonal = torch.nn.functional.pad(R.diagonal(dim1=-2, dim2=-1).abs(), (0, k - width))
        poor = diagonal <= cut * torch.linalg.vector_norm(A, dim=-1)
        dependent[some, :k] = poor
        sound = (~poor.any(-1)).nonzero().squeeze(-1)  # the others are factorised again without the dependent row
        if sound.numel():
            pinv[some[sound], :, :k] = torch.linalg.solve_triangular(R[sound], Q[sound].mT, upper=True).mT
    return pinv, dependent
