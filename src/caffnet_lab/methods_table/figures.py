"""The paper's Figures 1, 2, 3 and 8, drawn from what the methods really return, and the error by width.

Figures 4 to 7 are drawn from records, see `caffnet report`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from caffnet import AffineSet, project
from caffnet._install import install_command
from caffnet.control.pid import body_frame_error
from caffnet.methods import HardNet
from caffnet_lab.methods_table.approximation import approximation

INK, SET, EDGE, GOOD, BAD = "#1d2733", "#8fb8de", "#4a6b8a", "#1b7f4d", "#c8342b"
SHADES = ("#5b3a9e", "#d98200", "#0f8b8d")


def draw_all(folder: Path, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Draw all figures into a folder; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in (
        ("figure1_dependent_rows", figure_1()),
        ("figure2_framework", figure_2()),
        ("figure3_null_space", figure_3()),
        ("figure8_body_frame", figure_8()),
        ("approximation", approximation()),
    ):
        for kind in formats:
            path = folder / f"{name}.{kind}"
            figure.savefig(path, dpi=200, bbox_inches="tight")
            written.append(path)
    return written


# ---------------------------------------------------------------------------------------------------- Figure 1


def dependent_rows() -> tuple[AffineSet, Tensor]:
    """Two parallel half-planes, ``a y <= 1.2`` and ``a y <= 0.2``, and raw outputs that violate both."""
    a = torch.tensor([0.6, 0.8], dtype=torch.float64)
    limits = AffineSet.inequality(torch.stack([a, a]), torch.tensor([1.2, 0.2], dtype=torch.float64))
    along = torch.tensor([-0.8, 0.6], dtype=torch.float64)
    places = ((-1.25, 1.95), (-0.1, 2.25), (0.75, 1.9))
    return limits, torch.stack([s * along + t * a for s, t in places])


def figure_1() -> Any:
    """HardNet leaves the set where rows are dependent, CAffNet does not."""
    limits, f = dependent_rows()
    hardnet = HardNet(nn.Identity(), limits, check=False)(f)
    caffnet = project(f, limits).value
    figure, axes = _panels()
    along: dict[str, Any] = {"rotation": -36.87, "rotation_mode": "anchor", "ha": "center", "fontsize": 9}
    for axis, title, y in zip(
        axes, ("(a) HardNet projection", "(b) CAffNet projection"), (hardnet, caffnet), strict=True
    ):
        _region(axis, limits, span=2.6)
        for start, end, violation in zip(f, y, limits.violation(y).amax(-1), strict=True):
            inside = float(violation) < 1e-9
            _arrow(axis, start, end, GOOD if inside else BAD)
            axis.plot(*end, "o" if inside else "X", color=GOOD if inside else BAD, ms=8, mec="white", mew=0.9, zorder=5)
            axis.plot(*start, "o", color=INK, ms=6, zorder=5)
        axis.annotate("$f_\\theta(x)$", f[1], (7, 5), textcoords="offset points", color=INK, fontsize=11)
        axis.text(-2.35, -2.25, "feasible for both rows", color="#2a5d8f", fontsize=10)
        for bound, side in zip(limits.upper.tolist(), ("bottom", "top"), strict=True):
            place = (bound * limits.A[0] + 1.75 * torch.tensor([-0.8, 0.6])).tolist()
            label = f"$0.6\\,y_1 + 0.8\\,y_2 = {bound:g}$"
            axis.text(*place, label, va=side, color=EDGE, **along)
        worst = float(limits.violation(y).max())
        text = f"violation {worst:.2f}" if worst > 1e-9 else "no violation"
        axis.set_title(title, fontsize=12, color=INK, pad=8)
        axis.text(
            0.97, 0.04, text, transform=axis.transAxes, ha="right", color=BAD if worst > 1e-9 else GOOD, fontsize=11
        )
    return figure


# ---------------------------------------------------------------------------------------------------- Figure 2


def four_rows() -> AffineSet:
    """A bounded set with four edges, of Figures 2 and 3."""
    return AffineSet.inequality(
        torch.tensor([[0.0, 1.0], [1.0, 0.6], [-1.0, 0.3], [0.3, -1.0]], dtype=torch.float64),
        torch.tensor([0.6, 1.4, 1.5, 1.6], dtype=torch.float64),
    )


def candidates(limits: AffineSet, f: Tensor, w: Tensor) -> dict[tuple[int, ...], Tensor]:
    """``P_γ`` for every choice γ of one or two rows with upper bounds, by the paper's formula."""
    found = {}
    for size in (1, 2):
        for rows in itertools.combinations(range(limits.m), size):
            some, bound = limits.A[list(rows)], limits.upper[list(rows)]
            inverse = torch.linalg.pinv(some)
            found[rows] = f - inverse @ (some @ f - bound) + (torch.eye(2, dtype=f.dtype) - inverse @ some) @ w
    return found


def figure_2() -> Any:
    """The framework in three steps: two networks, a candidate for every choice of rows, the nearest feasible one."""
    limits = four_rows()
    f, w = (torch.tensor(point, dtype=torch.float64) for point in ((-0.25, 1.75), (0.6, 0.15)))
    figure, axes = _panels(3)
    titles = (
        "(a) Networks: $f_\\theta(x)$ and $w_\\phi(x)$",
        "(b) A candidate $P_\\gamma$ for every choice of rows",
        "(c) The feasible candidate nearest to $f_\\theta(x)$",
    )
    found = candidates(limits, f, w)
    y = project(f, limits, w).value
    for axis, title in zip(axes, titles, strict=True):
        _region(axis, limits, span=2.6)
        axis.plot(*f, "o", color=INK, ms=6, zorder=6)
        axis.annotate("$f_\\theta(x)$", f, (-6, -16), textcoords="offset points", color=INK, fontsize=11, ha="right")
        axis.set_title(title, fontsize=11, color=INK, pad=8)
    _arrow(axes[0], f, f + w, SHADES[0], style=":", head="->")
    axes[0].annotate("$w_\\phi(x)$", f + w, (2, 6), textcoords="offset points", color=SHADES[0], fontsize=11)
    axes[0].text(-0.35, -0.75, "$A(x)\\,y \\leq b(x)$", color="#2a5d8f", fontsize=11, ha="center")
    for axis in axes[1:]:
        for rows, point in found.items():
            good = bool(limits.contains(point))
            face = GOOD if good else "white"
            axis.plot(*point, "os"[len(rows) - 1], mfc=face, mec=GOOD if good else BAD, ms=6.5, mew=1.4, zorder=5)
    axes[1].text(
        0.97,
        0.03,
        "circles: one row, squares: two; hollow: outside",
        transform=axes[1].transAxes,
        ha="right",
        fontsize=8,
    )
    _arrow(axes[2], f, y, GOOD)
    axes[2].annotate("$P^*(x)$", y, (-8, -18), textcoords="offset points", color=GOOD, fontsize=11)
    return figure


# ---------------------------------------------------------------------------------------------------- Figure 3


def figure_3() -> Any:
    """Output by the null-space vector w: along an edge, or at a vertex.

    Hollow circles are candidates ``P_γ`` that leave the set: the nearest feasible one is then the vertex.
    """
    limits = four_rows()
    cases = (
        ("(a) Projection onto an edge", (-0.15, 1.75), ((0.0, 0.0), (-0.85, 0.3), (0.95, 0.15))),
        ("(b) Projection onto a vertex", (1.55, 1.35), ((0.0, 0.0), (-0.25, 0.8), (0.75, -0.1))),
    )
    figure, axes = _panels()
    for axis, side, (title, raw, shifts) in zip(axes, ("center", "left"), cases, strict=True):
        f = torch.tensor(raw, dtype=torch.float64)
        _region(axis, limits, span=2.6)
        for size, shift, colour in zip((13, 9, 5.5), shifts, SHADES, strict=True):
            w = torch.tensor(shift, dtype=torch.float64)
            y = project(f, limits, w).value
            if w.any():
                _arrow(axis, f, f + w, colour, style=":", head="->")
            for candidate in _left_out(limits, f, w):
                axis.plot(*torch.stack([f + w, candidate], -1), ":", color=colour, lw=0.9, alpha=0.75, zorder=2)
                axis.plot(*candidate, "o", mfc="white", mec=colour, ms=6, mew=1.3, zorder=3)
            _arrow(axis, f, y, colour)
            label = f"$w=({shift[0]:g},\\,{shift[1]:g})$" if w.any() else "$w=0$"
            at_vertex = "vertex" in title
            axis.plot(*y, "o", color=colour, ms=size if at_vertex else 8, mec="white", mew=0.9, zorder=5, label=label)
        axis.plot(*f, "o", color=INK, ms=6, zorder=6)
        axis.annotate("$f_\\theta(x)$", f, (0, 12), textcoords="offset points", color=INK, fontsize=11, ha=side)
        axis.text(-0.35, -0.75, "$A(x)\\,y \\leq b(x)$", color="#2a5d8f", fontsize=11, ha="center")
        legend = axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncol=3, fontsize=9.5, frameon=False)
        for handle in legend.legend_handles:
            handle.set_markersize(8)
        axis.set_title(title, fontsize=12, color=INK, pad=8)
    axes[1].text(0.97, 0.04, "hollow: candidates outside the set", transform=axes[1].transAxes, ha="right", fontsize=9)
    return figure


def _left_out(limits: AffineSet, f: Tensor, w: Tensor) -> list[Tensor]:
    """The candidates on single rows that f violates which are not in the set."""
    found = []
    for row, bound in zip(limits.A, limits.upper, strict=True):
        if row @ f > bound:
            candidate = f + w - row * (row @ (f + w) - bound) / (row @ row)
            if not limits.contains(candidate):
                found.append(candidate)
    return found


# ---------------------------------------------------------------------------------------------------- Figure 8


def figure_8() -> Any:
    """The errors that the nominal controller of cbf works with: the way to the goal in the axes of the robot."""
    robot, goal = (torch.tensor(state, dtype=torch.float64) for state in ((1.0, 0.7, 0.5), (3.4, 3.0, 0.0)))
    ahead, side, _ = body_frame_error(robot, goal).tolist()
    place, there, heading = robot[:2], goal[:2], float(robot[2])
    along = torch.tensor([math.cos(heading), math.sin(heading)], dtype=torch.float64)
    left = torch.tensor([-math.sin(heading), math.cos(heading)], dtype=torch.float64)
    corner = place + ahead * along
    (figure, (axis,)) = _panels(1)
    for axes, name in ((along, "$X_B$"), (left, "$Y_B$")):
        end = place + 3.9 * axes if name == "$X_B$" else place + 2.2 * axes
        _arrow(axis, place, end, EDGE)
        axis.annotate(name, end, (4, -12), textcoords="offset points", color=EDGE, fontsize=11)
    axis.plot(*torch.stack([place, there], -1), ":", color=INK, lw=1.2)
    for start, end, colour, text, offset in (
        (place, corner, GOOD, "$e_{\\mathrm{long}}$", (8, -16)),
        (corner, there, BAD, "$e_{\\mathrm{lat}}$", (8, 0)),
    ):
        axis.plot(*torch.stack([start, end], -1), color=colour, lw=2.6, solid_capstyle="butt", zorder=5)
        label = f"{text} = {ahead if start is place else side:.2f}"
        axis.annotate(label, (start + end) / 2, offset, textcoords="offset points", color=colour, fontsize=11)
    axis.plot(*place, "o", color=INK, ms=8, zorder=6)
    axis.annotate("$(p_x, p_y)$", place, (-6, -18), textcoords="offset points", color=INK, fontsize=11)
    axis.plot(*there, "*", color=INK, ms=12, zorder=6)
    axis.annotate("$(p_{x,ref}, p_{y,ref})$", there, (-30, 10), textcoords="offset points", color=INK, fontsize=11)
    turn = torch.linspace(0.0, heading, 30, dtype=torch.float64)
    axis.plot(place[0] + 0.8 * torch.cos(turn), place[1] + 0.8 * torch.sin(turn), color=EDGE, lw=1)
    axis.plot([float(place[0]), float(place[0]) + 1.1], [float(place[1])] * 2, color=EDGE, lw=0.8, ls="--")
    axis.annotate("$\\theta$", place + torch.tensor([0.88, 0.12]), color=EDGE, fontsize=11)
    axis.set(xlim=(-0.4, 5.2), ylim=(0, 4), xlabel="$p_x$", ylabel="$p_y$", aspect="equal")
    for edge in ("top", "right"):
        axis.spines[edge].set_visible(False)
    return figure


# ---------------------------------------------------------------------------------------------------- parts


def _panels(count: int = 2) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"Figures need matplotlib: {install_command('experiments')}.") from error
    figure = Figure(figsize=(4.6 * count, 4.5), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False)[0]


def _region(axis: Any, limits: AffineSet, span: float) -> None:
    """Shade the set and draw the boundary of every row."""
    ticks = torch.linspace(-span, span, 700, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1)
    inside = (limits.violation(grid).amax(-1) == 0).double()
    axis.contourf(ticks, ticks, inside, levels=[0.5, 1.5], colors=[SET], alpha=0.38, zorder=0)
    for row, bound in zip(limits.A, limits.upper, strict=True):
        along = torch.stack([-row[1], row[0]]) / row.norm()
        middle = row * bound / row.norm() ** 2
        ends = torch.stack([middle - 9 * along, middle + 9 * along])
        axis.plot(ends[:, 0], ends[:, 1], color=EDGE, lw=1.1, zorder=1)
    axis.set(xlim=(-span, span), ylim=(-span, span), xlabel="$y_1$", ylabel="$y_2$", aspect="equal")
    axis.tick_params(labelsize=9, colors="#5a6672")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _arrow(axis: Any, start: Tensor, end: Tensor, colour: str, style: str = "-", head: str = "-|>") -> None:
    look = {"arrowstyle": head, "color": colour, "lw": 1.6, "ls": style, "shrinkA": 3, "shrinkB": 5}
    axis.annotate("", xy=end.tolist(), xytext=start.tolist(), arrowprops=look, zorder=4)
