"""The approximation theorem, seen: the error of the layer's output beside that of the network before it, by width.

Without a null-space vector the layer is the Euclidean projection P on a convex set S. A target t that satisfies the
constraints is its own projection, and P does not increase distances, so at every input

    |P(f) - t| = |P(f) - P(t)| <= |f - t|:

whatever family of networks f approximates t, the constrained one does so at least as well. (The paper's proof for w
other than 0 takes for granted that a candidate is feasible, which it need not be.) The networks here have one layer of
random hidden units and a last map by least squares: nothing is left to the luck of a training.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from caffnet import AffineSet, project
from caffnet._install import install_command

WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512)
SEEDS = tuple(range(9))
GRID, POINTS = 64, 4000


@dataclasses.dataclass(frozen=True)
class Errors:
    """The largest errors over new inputs, one value per seed.

    Attributes:
        width: hidden units.
        raw: largest ``|f - t|``.
        constrained: largest ``|P(f) - t|``.
        raw_violation: largest violation of f.
        violation: largest violation of P(f).
    """

    width: int
    raw: list[float]
    constrained: list[float]
    raw_violation: list[float]
    violation: list[float]


def moving_wedge(x: Tensor) -> AffineSet:
    """Four rows in the plane whose directions and bounds turn with the input ``(..., 2)``; zero is always inside."""
    turn = x[..., :1] + torch.tensor([0.0, 1.3, 2.9, 4.4], dtype=x.dtype)
    A = torch.stack([torch.cos(turn), torch.sin(turn)], -1)
    return AffineSet.inequality(A, 0.6 + 0.3 * torch.sin(2 * x[..., 1:] + turn))


def target(x: Tensor) -> Tensor:
    """A continuous function that satisfies the rows, and lies on their boundary for most inputs: ``(..., 2)``."""
    free = torch.stack([torch.sin(3 * x[..., 0]) + x[..., 1], torch.cos(2 * x[..., 1]) * (1 + x[..., 0])], -1)
    return project(free, moving_wedge(x)).value


def errors_at(width: int, seeds: Sequence[int] = SEEDS) -> Errors:
    """Fit networks of one width on a grid of inputs, and compare with the target on others."""
    found = Errors(width, [], [], [], [])
    ticks = torch.linspace(-1, 1, GRID, dtype=torch.float64)
    known = torch.cartesian_prod(ticks, ticks)
    for seed in seeds:
        stream = torch.Generator().manual_seed(seed)
        new = 2 * torch.rand(POINTS, 2, dtype=torch.float64, generator=stream) - 1
        weight = 2 * torch.randn(2, width, dtype=torch.float64, generator=stream)
        bias = 4 * torch.rand(width, dtype=torch.float64, generator=stream) - 2
        last = torch.linalg.lstsq(torch.tanh(known @ weight + bias), target(known), driver="gelsd").solution
        f, t, rows = torch.tanh(new @ weight + bias) @ last, target(new), moving_wedge(new)
        y = project(f, rows).value
        found.raw.append(float((f - t).norm(dim=-1).max()))
        found.constrained.append(float((y - t).norm(dim=-1).max()))
        found.raw_violation.append(float(rows.violation(f).max()))
        found.violation.append(float(rows.violation(y).max()))
    return found


def approximation(widths: Sequence[int] = WIDTHS, seeds: Sequence[int] = SEEDS) -> Any:
    """The figure: largest errors by width, with and without the layer, and the violation that the layer removes."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"Figures need matplotlib: {install_command('experiments')}.") from error
    found = [errors_at(width, seeds) for width in widths]
    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    axis = figure.subplots()
    for name, label, colour, style in (
        ("raw", "largest error of $f$", "#1d2733", "-"),
        ("constrained", "largest error of the layer's output", "#1b7f4d", "-"),
        ("raw_violation", "largest violation of $f$", "#c8342b", ":"),
    ):
        values = [getattr(errors, name) for errors in found]
        axis.fill_between(widths, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.12, lw=0)
        axis.plot(widths, [statistics.median(v) for v in values], style, color=colour, marker="o", ms=4, label=label)
    worst = max(max(errors.violation) for errors in found)
    axis.set(xscale="log", yscale="log", xlabel="hidden units", xticks=list(widths))
    axis.set_xticklabels([str(width) for width in widths])
    axis.minorticks_off()
    axis.set_ylabel("error or violation")
    axis.set_title(f"Violation of the layer's output: at most {worst:.0e}", fontsize=10)
    axis.legend(frameon=False, fontsize=9)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    return figure
