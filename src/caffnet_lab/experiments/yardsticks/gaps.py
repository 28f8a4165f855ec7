"""Distances of answers from the optimum, sample by sample."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

QUANTILES = 101  # of the distribution that a record keeps
LEAST = 1e-12  # of a gap in a geometric mean: below, the optimum itself is not known


def gap_metrics(objective: Tensor, optimum: Tensor) -> dict[str, float]:
    """Statistics of ``objective - optimum``, both ``(samples,)``.

    ``mean``, ``max`` and ``min`` are in the units of the objective, ``geometric`` is the geometric mean that SnareNet
    reports, ``percent`` the mean over the mean optimum, ``max_percent`` the largest of the samples, each over its own.

    >>> found = gap_metrics(torch.tensor([-9.0, -2.0]), torch.tensor([-10.0, -2.0]))
    >>> found["mean"], found["max"], round(found["percent"], 3), round(found["max_percent"], 3)
    (0.5, 1.0, 8.333, 10.0)
    """
    gap = objective.double() - optimum.double()
    return {
        "mean": gap.mean().item(),
        "max": gap.max().item(),
        "min": gap.min().item(),
        "geometric": gap.clamp_min(LEAST).log().mean().exp().item(),
        "percent": 100 * (gap.mean() / optimum.double().mean().abs()).item(),
        "max_percent": percent_gaps(objective, optimum).max().item(),
    }


def percent_gaps(objective: Tensor, optimum: Tensor) -> Tensor:
    """The gap of each sample in percent of its optimum, ``(samples,)``."""
    return 100 * (objective.double() - optimum.double()) / optimum.double().abs()


def gap_curve(objective: Tensor, optimum: Tensor) -> dict[str, Any]:
    """The quantiles of `percent_gaps`, from the smallest to the largest, for a figure."""
    share = torch.linspace(0, 1, QUANTILES, dtype=torch.float64)
    return {"gap_percent": percent_gaps(objective, optimum).cpu().quantile(share).tolist()}
