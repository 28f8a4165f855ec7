"""The polynomial search: the sub-constraint that is active at the Euclidean projection of ``g = f + w``.

That projection is always one of the paper's candidates (its active rows, reduced to independent ones, are a γ), and a
dual active-set method finds it in about ``|γ|`` steps whatever the number of subsets. (Where ``g`` itself is inside, no
row is active; then the row nearest to ``g`` is taken.) When ``w`` is not zero, the rows active at the projection of
``f`` give a second candidate; if it is feasible and nearer to `f`, it wins.

On the CPU the steps are done by DAQP (C, one sample at a time, 5 to 50 microseconds each); elsewhere, and wherever
its answer does not pass the optimality conditions, by `dual`.
"""

from __future__ import annotations

import daqp
import numpy as np
import torch
from torch import Tensor

from caffnet import tolerance
from caffnet.rows import Rows, apply, largest, magnitude, pick_rows, product
from caffnet.search import dual
from caffnet.search.contract import Choice, distance
from caffnet.search.flat import flat_point

_INFINITE = 1e30  # DAQP's word for "no bound"
_EQUALITY = 5  # DAQP's flag for a row that is always active
_OPTIMAL = 1


def choose(rows: Rows, f: Tensor, g: Tensor, norm: float) -> Choice:
    """Per sample the γ of the projection of `g`, or of `f` where that is feasible and nearer to `f`.

    The arithmetic is float64 whatever the user's type: a solver's answer is only as good as its numbers.
    """
    rows, f, g = rows.to(torch.float64), f.double(), g.double()
    choice = nearest_face(rows, g)
    choice = never_empty(rows, choice, g)
    shifted = (g != f).any(-1).nonzero().squeeze(-1)
    if shifted.numel() == 0:
        return choice
    # The second candidate: the flat that is active at the projection of f, with the null-space shift w.
    some = rows.take(shifted)
    start, target = f[shifted], g[shifted]
    first = choice.take(shifted)
    second = nearest_face(some, start)
    here, there = (flat_point(some, option, target) for option in (first, second))
    feasible = second.found & some.accepts(there, torch.maximum(start.abs(), target.abs()))
    nearer = distance(there - start, norm) < distance(here - start, norm)
    better = feasible & (nearer | ~first.found)
    return choice.put(shifted[better], second.take(better.nonzero().squeeze(-1)))


def nearest_face(rows: Rows, g: Tensor) -> Choice:
    """The independent rows active at the Euclidean projection of `g`."""
    if g.device.type != "cpu":
        return by_dual(rows, g)[0]
    active, solved = _daqp(rows, g)
    choice = from_active(rows, active, solved)
    doubtful = (~(solved & is_optimal(rows, choice, g))).nonzero().squeeze(-1)
    if doubtful.numel():
        choice = choice.put(doubtful, by_dual(rows.take(doubtful), g[doubtful])[0])
    return choice


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


def is_optimal(rows: Rows, choice: Choice, g: Tensor) -> Tensor:
    """Whether the chosen flat gives the Euclidean projection: feasible, and multipliers of the right sign."""
    y = flat_point(rows, choice, g)
    multiplier = product(choice.pinv.mT, g - y) * choice.sides
    equal = (rows.lower == rows.upper).gather(-1, choice.rows)
    spread = choice.pinv.abs().sum(-2) * (largest(y) + largest(g))
    noise = tolerance.feasibility(rows.dtype, rows.n) * spread
    return rows.accepts(y, g) & ((multiplier >= -noise) | equal).all(-1)


def _daqp(rows: Rows, g: Tensor) -> tuple[Tensor, Tensor]:
    """One DAQP run per sample: which rows end active at which side, and whether it reported an optimum.

    The variable is ``z = y - g``, so that the objective is ``|z|²``. DAQP's tolerance is absolute; the bounds are
    divided by the largest violation, which makes it relative to what the projection has to move.
    """
    samples, m, n = g.shape[0], rows.m, rows.n
    at = apply(rows.A, g)
    low, high = (rows.lower - at).double(), (rows.upper - at).double()
    size = torch.maximum(torch.maximum(low, -high).amax(-1, keepdim=True), torch.full_like(low[:, :1], 0.0))
    size = torch.where(size > 0, size, 1.0)
    scale = largest(g) + torch.maximum(magnitude(rows.lower), magnitude(rows.upper)).amax(-1, keepdim=True)
    unit = (scale / size).clamp(min=1.0).squeeze(-1).tolist()
    low, high = (low / size).clamp(min=-_INFINITE).numpy(), (high / size).clamp(max=_INFINITE).numpy()
    A = np.ascontiguousarray(rows.A.double().numpy())
    sense = np.where((rows.lower == rows.upper).numpy(), _EQUALITY, 0).astype(np.int32)
    zero, identity = np.zeros(n), np.eye(n)
    levels = tolerance.solver(rows.dtype, n)
    active = np.zeros((samples, m), dtype=np.int8)
    solved = np.zeros(samples, dtype=bool)
    for i in range(samples):
        matrix = A if rows.shared else A[i]
        for level in levels:
            allowed = level if level == levels[0] else min(level * unit[i], 0.1)
            _, _, flag, info = daqp.solve(
                identity,
                zero,
                matrix,
                high[i],
                low[i],
                sense[i],
                primal_tol=allowed,
                dual_tol=levels[0],
                iter_limit=10_000,
            )
            multiplier = np.asarray(info["lam"])
            solved[i] = flag == _OPTIMAL and np.isfinite(multiplier).all()
            if solved[i]:
                active[i] = np.sign(multiplier)
                break
    return torch.from_numpy(active), torch.from_numpy(solved)
