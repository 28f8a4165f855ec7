"""Rows that give way at the price of a weight: their slacks are additional outputs.

    min 1/2 |y - f|_M² + 1/2 Σ weight_i slack_i²   with   lower_i <= a_i y - slack_i <= upper_i   for the soft rows i

is the projection of ``(f, 0)`` on rows ``(a_i, -e_i)`` in the metric ``diag(M, weight)``: the same strictly convex
problem with one more output for each soft row. So all features apply: searches, `strict`, w (which is 0 in the slacks),
and gradients, also in the weight. A slack is measured in units of its row, the power of two near ``|a_i|_1``; this
keeps the rows well scaled and changes no bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from caffnet._solve.face import times, times_power, unit_exponent
from caffnet._solve.problem import Problem, is_diagonal


def widen(p: Problem, weighted: Tensor, weight: Tensor) -> Problem:
    """The problem with a slack for each row that has a weight.

    Args:
        p: the problem, in which these rows are like the others.
        weighted: the indices of these rows, ``(k,)``.
        weight: their weights, ``(B, k)``, or ``(k,)`` for all samples.
    """
    n, k, unit = p.f.shape[-1], weighted.shape[0], _units(p, weighted)
    slots = torch.eye(p.A.shape[-2], dtype=p.A.dtype, device=p.A.device).index_select(-1, weighted)  # (m, k)
    A = torch.cat([p.A, -slots * unit.unsqueeze(-2)], -1)
    price = weight * unit * unit
    zero = p.f.new_zeros(*p.f.shape[:-1], k)
    w = None if p.w is None else torch.cat([p.w, zero], -1)
    return p.replace_tensors(
        torch.cat([p.f, zero], -1), w, A, p.lower, p.upper, _join(p.metric, price.unsqueeze(-2), n)
    )


def at(p: Problem, weighted: Tensor, y: Tensor) -> Tensor:
    """The slacks that the rows need at the points y, ``(B, k)``, in their units."""
    rows, lower, upper = p.A.index_select(-2, weighted), p.lower[..., weighted], p.upper[..., weighted]
    value = times(rows, y)
    return (value - value.clamp(lower, upper)) / _units(p, weighted)


def _units(p: Problem, weighted: Tensor) -> Tensor:
    """The power of two near ``|a_i|_1``, ``(..., k)``."""
    exponent = -unit_exponent(p.A.index_select(-2, weighted).detach())
    return times_power(torch.ones_like(exponent), exponent)


def _join(metric: Tensor | None, price: Tensor, n: int) -> Tensor:
    """``diag(M, price)``, diagonal if M is."""
    batch, k = price.shape[:-2], price.shape[-1]
    if metric is None:
        metric = price.new_ones(1, n)
    batch = torch.broadcast_shapes(metric.shape[:-2], batch)
    metric, price = (t.expand(*batch, *t.shape[-2:]) for t in (metric, price))
    if is_diagonal(metric):
        return torch.cat([metric, price], -1)
    corner = metric.new_zeros(*batch, n, k)
    below = torch.cat([corner.mT, torch.diag_embed(price.squeeze(-2))], -1)
    return torch.cat([torch.cat([metric, corner], -1), below], -2)
