"""The Euclidean projection by a dual active-set method, batched, in plain torch, on any device.

For ``min |y - g|²`` over the rows, Goldfarb and Idnani's method keeps ``y`` at the projection of ``g`` on the flat of
the rows collected so far, with multipliers ``λ >= 0``, and adds a violated row ``a`` at a time:

    z = N a           how y can move to satisfy the row without leaving the flat
    r = (A_γ⁺)ᵀ a     how the multipliers move meanwhile
    t = min( (a y - b) / (a z),  min over r_j > 0 of λ_j / r_j )

If the first term wins, the row joins γ; if the second, row ``j`` has lost its multiplier and leaves. If neither
exists, ``a - Σ r_j a_j = 0`` with ``r <= 0`` and ``b - Σ r_j b_j < 0``: no point satisfies all rows, and these
numbers prove it (Farkas). Every step raises the dual objective, so no set γ returns.

This is the search that decides in hard cases; it runs in float64, with the tolerances of the user's number type.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet.rows import Rows, apply, largest, magnitude, product


class Outcome(NamedTuple):
    """What the method found for every sample.

    Attributes:
        active: ``(B, m)``, +1 where the upper bound is in γ, -1 where the lower bound is, else 0.
        found: whether a point satisfies all rows up to rounding, ``(B,)``.
        conflict: ``(B, m)``: if not found, multipliers (positive: of the upper bound, negative: of the lower) of rows
            that exclude each other; zero when the iteration limit was reached instead.
    """

    active: Tensor
    found: Tensor
    conflict: Tensor


def project(rows: Rows, g: Tensor) -> Outcome:
    """The active rows of the projection of `g`, or the rows in conflict.

    The data are taken as exact first; only where they then contradict each other, as rounded to the user's type.
    """
    rows, g = rows.to(torch.float64), g.to(torch.float64)
    outcome = _run(dataclasses.replace(rows, dtype=torch.float64), g)
    if rows.dtype != torch.float64:
        left = (~outcome.found).nonzero().squeeze(-1)
        again = _run(rows.take(left), g[left])
        outcome = Outcome(*(a.index_copy(0, left, b) for a, b in zip(outcome, again, strict=True)))
    return outcome


def _run(rows: Rows, g: Tensor) -> Outcome:
    samples, n, m = g.shape[0], rows.n, rows.m
    state = _State(rows, g)
    found = torch.zeros(samples, dtype=torch.bool, device=g.device)
    conflict = g.new_zeros(samples, m)
    # A row whose own bounds cross is in conflict with itself.
    share = tolerance.feasibility(rows.dtype, n)
    crossed = rows.lower - rows.upper > share * (magnitude(rows.lower) + magnitude(rows.upper)) + tolerance.underflow(
        rows.dtype
    )
    conflict = torch.where(crossed, 1.0, conflict)
    live = (~crossed.any(-1)).nonzero().squeeze(-1)
    for _ in range(20 * (m + n) + 100):
        if live.numel() == 0:
            break
        finished, stuck = state.step(live, conflict)
        found[live[finished]] = True
        live = live[~(finished | stuck)]
    return Outcome(state.active, found, conflict)


class _State:
    """One projection per sample, all in fixed slots so that the batch moves together.

    A slot holds an *oriented* row: times -1 if its lower bound is meant, so that every row reads ``a y <= b``.
    """

    def __init__(self, rows: Rows, g: Tensor):
        samples, n, slots = g.shape[0], rows.n, max(min(rows.n, rows.m), 1)
        self.rows, self.g, self.y = rows, g, g.clone()
        self.pinv = g.new_zeros(samples, n, slots)
        self.null = torch.eye(n, dtype=g.dtype, device=g.device).repeat(samples, 1, 1)
        self.slot_row = torch.full((samples, slots), -1, dtype=torch.long, device=g.device)
        self.multiplier = g.new_zeros(samples, slots)
        self.target = g.new_zeros(samples, slots)
        self.active = torch.zeros(samples, rows.m, dtype=torch.int8, device=g.device)
        # The row being added: -1 for none, with its side and the multiplier it has so far.
        self.entering = torch.full((samples,), -1, dtype=torch.long, device=g.device)
        self.entering_side = g.new_zeros(samples)
        self.entering_multiplier = g.new_zeros(samples)
        self.equal = rows.lower == rows.upper
        self.length = torch.linalg.vector_norm(rows.A, dim=-1).clamp_min(tolerance.underflow(rows.dtype))

    def step(self, live: Tensor, conflict: Tensor) -> tuple[Tensor, Tensor]:
        """One step of every live sample; returns which have finished and which are stuck (no feasible point)."""
        finished = self._select(live)
        stuck = torch.zeros_like(finished)
        moving = live[~finished]
        if moving.numel():
            stuck[~finished] = self._move(moving, conflict)
        return finished, stuck

    def _select(self, live: Tensor) -> Tensor:
        """Where no row is entering, pick the one violated by the longest way; none left means finished."""
        rows, y = self.rows.take(live), self.y[live]
        excess = rows.excess(y)
        outside = (excess > rows.allowance(y, self.g[live])) & (self.active[live] == 0)
        length = self.length if rows.shared else self.length[live]
        score = torch.where(outside, excess / length, -math.inf)
        if rows.m == 0:
            return torch.ones(live.shape, dtype=torch.bool, device=live.device)
        top, row = score.max(-1)
        idle = self.entering[live] < 0
        picks = idle & (top > -math.inf)
        chosen = live[picks]
        row = row[picks]
        value = apply(rows.A, y)[picks].gather(-1, row.unsqueeze(-1)).squeeze(-1)
        over = value - self.rows.upper[chosen, row]
        under = self.rows.lower[chosen, row] - value
        self.entering[chosen] = row
        self.entering_side[chosen] = torch.where(over >= under, 1.0, -1.0).to(value.dtype)
        self.entering_multiplier[chosen] = 0
        return idle & ~picks

    def _move(self, s: Tensor, conflict: Tensor) -> Tensor:
        rows = self.rows
        row, side = self.entering[s], self.entering_side[s]
        a = side.unsqueeze(-1) * (rows.A[row] if rows.shared else rows.A[s, row])
        bound = side * torch.where(side > 0, rows.upper[s, row], rows.lower[s, row])
        null, pinv, y = self.null[s], self.pinv[s], self.y[s]
        z = product(null, product(null, a))
        r = product(pinv.mT, a)
        gain = (a * z).sum(-1)
        cut = tolerance.rank(rows.dtype, rows.n)
        dependent = (z * z).sum(-1) <= cut**2 * (a * a).sum(-1)
        violation = (a * y).sum(-1) - bound
        full = torch.where(dependent, math.inf, violation / torch.where(dependent, 1.0, gain))
        # Only inequalities may leave; a coefficient that is rounding noise drives nothing out.
        slot_row, multiplier = self.slot_row[s], self.multiplier[s]
        filled = slot_row >= 0
        may_leave = filled & ~self.equal[s].gather(-1, slot_row.clamp_min(0)) if rows.m else filled
        noise = cut * pinv.abs().sum(-2) * largest(a)
        ratio = torch.where(may_leave & (r > noise), multiplier.clamp_min(0) / r, math.inf)
        partial, leaving = ratio.min(-1)
        t = torch.minimum(full, partial)
        blocked = t == math.inf
        t = torch.where(blocked, 0.0, t)
        self.multiplier[s] = multiplier - t.unsqueeze(-1) * r
        self.entering_multiplier[s] += t
        self.y[s] = torch.where(dependent.unsqueeze(-1), y, y - t.unsqueeze(-1) * z)
        enters = ~blocked & (full <= partial)
        self._add(s[enters], z[enters], r[enters], gain[enters], bound[enters])
        drops = ~blocked & ~enters
        self._drop(s[drops], leaving[drops])
        self._blame(s[blocked], r[blocked], conflict)
        return blocked

    def _add(self, s: Tensor, z: Tensor, r: Tensor, gain: Tensor, bound: Tensor) -> None:
        if s.numel() == 0:
            return
        pinv, null = self.pinv[s], self.null[s]
        c = z / gain.unsqueeze(-1)
        pinv = pinv - c.unsqueeze(-1) * r.unsqueeze(-2)
        slot = (self.slot_row[s] < 0).to(torch.int8).argmax(-1)
        each = torch.arange(s.shape[0], device=s.device)
        side, row = self.entering_side[s], self.entering[s]
        pinv[each, :, slot] = c
        self.pinv[s] = pinv
        size = (z * z).sum(-1)
        self.null[s] = null - z.unsqueeze(-1) * z.unsqueeze(-2) / size[:, None, None]
        self.slot_row[s, slot] = row
        self.multiplier[s, slot] = self.entering_multiplier[s]
        self.target[s, slot] = bound
        self.active[s, row] = side.to(torch.int8)
        self.entering[s] = -1
        # On the new flat the point is known in closed form: rounding does not pile up over the steps.
        free = product(self.null[s], product(self.null[s], self.g[s]))
        self.y[s] = product(self.pinv[s], self.target[s]) + free

    def _drop(self, s: Tensor, slot: Tensor) -> None:
        if s.numel() == 0:
            return
        each = torch.arange(s.shape[0], device=s.device)
        pinv = self.pinv[s]
        c = pinv[each, :, slot]
        size = (c * c).sum(-1)
        self.null[s] = self.null[s] + c.unsqueeze(-1) * c.unsqueeze(-2) / size[:, None, None]
        share = product(pinv.mT, c) / size.unsqueeze(-1)
        pinv = pinv - c.unsqueeze(-1) * share.unsqueeze(-2)
        pinv[each, :, slot] = 0
        self.pinv[s] = pinv
        self.active[s, self.slot_row[s, slot]] = 0
        self.slot_row[s, slot] = -1
        self.multiplier[s, slot] = 0
        self.target[s, slot] = 0

    def _blame(self, s: Tensor, r: Tensor, conflict: Tensor) -> None:
        """Write down the rows in conflict: the entering one with weight 1, those in γ with weight ``-r``."""
        slot_row = self.slot_row[s]
        filled = slot_row >= 0
        row = slot_row.clamp_min(0)
        side = self.active[s].gather(-1, row).to(r.dtype)
        noise = tolerance.rank(self.rows.dtype, self.rows.n) * r.abs().amax(-1, keepdim=True).clamp_min(1)
        weights = torch.where(filled & (r.abs() > noise), -r * side, 0.0)
        conflict[s] = conflict[s].scatter_add(-1, row, weights)
        conflict[s, self.entering[s]] = self.entering_side[s]
