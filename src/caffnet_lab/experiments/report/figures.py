"""The figures of the paper, drawn from records."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Polygon, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from caffnet_lab.experiments.report.groups import FIRST_EPOCHS, TITLES, Group
from caffnet_lab.experiments.report.tables import optima
from caffnet_lab.experiments.shape import is_number

#: Colours that colour-blind readers can distinguish (Okabe and Ito).
COLOURS = {
    **{"ipopt": "#000000", "daqp": "#000000", "highs": "#000000", "highs-warm": "#000000"},
    **{
        "base": "#BBBBBB",
        "mint": "#999999",
        "constant": "#BBBBBB",
        "minimiser": "#999999",
        "direction": "#777777",
        "sequential": "#444444",
    },
    **{"orthogonal": "#8B2500", "dc3": "#009E73", "fsnet": "#F0E442", "rayen": "#44AA99"},
    "nn": "#E69F00",
    "hardnet": "#0072B2",
    "caffnet-ff": "#D55E00",
    "caffnet-ff-lite": "#CC79A7",
    "caffnet-ff-each": "#332288",
    "caffnet-tf": "#009E73",
    "post-hoc": "#56B4E9",
    "repair": "#882255",
}
#: Methods that often coincide with another one, which then shows through.
DASHED = {"hardnet": (0, (5, 2)), "caffnet-ff-lite": (0, (3, 2))}
GREY, LIGHT = "#555555", "#ECECEC"
#: Words that stay readable where a line crosses them.
OUTLINED: Any = {"path_effects": [withStroke(linewidth=2, foreground="white", alpha=0.8)], "zorder": 6}
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "lines.linewidth": 1.4,
    "pdf.fonttype": 42,
}
#: The seeds that the paper draws.
FIGURE_SEED = {"pwc": 6, "cbf": 10}
LEAST_GAP = 1e-3  # of a loss summed over 1000 samples: what lies below is solved
DPI = 200
PENALTIES = "The losses of NN and HardNet include their penalty, 100 times the squared violations."
#: Where a figure is one of the paper's.
PAPER_FIGURES = {
    **{("pwc", "functions"): "Figure 4", ("pwc", "loss"): "Figure 5"},
    **{("cbf", "trajectories"): "Figure 6", ("cbf", "inputs"): "Figure 7"},
}

Drawing = Callable[[list[Group]], Figure | None]


def figures(groups: list[Group], best: dict[int, float] | None = None) -> dict[str, tuple[str, Figure]]:
    """Every figure that these groups (one per method, of one task and protocol) allow: name -> (caption, figure).

    `best` is IPOPT's objective of each seed of opt, if it is known from elsewhere too.
    """
    if not groups:
        return {}
    task = groups[0].task
    words = "Training loss above the lowest of all methods with the same seed" if task == "opt" else "Training loss"
    longest = max(group.epochs for group in groups if group.method != "ipopt" or len(groups) == 1)
    part = f", first {FIRST_EPOCHS} epochs" if longest > FIRST_EPOCHS else ""
    part += f" (cut off at {LEAST_GAP:g})" if task == "opt" else ""
    wanted: list[tuple[str, str, Drawing]] = [
        ("loss", f"{words}{part}: median over seeds and neighbouring epochs, range shaded. {PENALTIES}", training_loss)
    ]
    if task == "pwc":
        caption = "Learned functions and the feasible region (white). Thin lines: the other seeds."
        wanted.insert(0, ("functions", caption, learned_functions))
    if task == "opt":
        caption = "Distance of the mean objective from IPOPT's, seed by seed."
        caption += " Dropout is off." if any(group.values("dropout_on.objective") for group in groups) else ""
        best = optima(groups) if best is None else best
        if any(gap < 0 for group in groups for gap in _gaps(group, best).values()):
            caption += (
                " Open triangles: below IPOPT's objective, which needs a violation of the constraints or a better "
                "local optimum."
            )
        wanted.append(("gap", caption, partial(optimality_gap, best=best)))
        caption = (
            "Repair: a soft network, trained and then frozen, projected as it is (left) and with only w trained "
            "(right): distance of the mean objective from IPOPT's, seed by seed."
        )
        wanted.append(("repair", caption, partial(repaired, best=best)))
    if task == "cbf":
        drawn_seeds = {_drawn_record(group, groups)["config"]["seed"] for group in groups}
        seed = f", seed {drawn_seeds.pop()}" if len(drawn_seeds) == 1 else ""
        caption = (
            f"Trajectories from the test state{seed}. Thin lines: the other seeds. Dotted: the box of allowed states. "
            "Within the circle the robot is put on the goal."
        )
        wanted.insert(0, ("trajectories", caption, trajectories))
        caption = (
            f"Inputs along the test trajectory{seed}, with their limits (dotted). Grey: speeds that obstacles and "
            "state box forbid at the state reached; there the nominal controller is evaluated too."
        )
        wanted.insert(1, ("inputs", caption, control_inputs))
    drawn = {}
    with matplotlib.rc_context(STYLE):
        for name, caption, draw in wanted:
            figure = draw(groups)
            if figure is not None:
                shown = [
                    g for g in groups if name != "loss" or g.method != "post-hoc"
                ]  # post-hoc has the loss of the NN
                numbered = PAPER_FIGURES.get((task, name))
                caption = f"{numbered} of the paper. {caption}" if numbered else caption
                drawn[name] = (f"{caption}{_settings(shown)}", figure)
    return drawn


def save(figure: Figure, kind: str) -> bytes:
    """A figure as PNG or PDF; the same records give the same bytes."""
    out = io.BytesIO()
    metadata = {"Software": None} if kind == "png" else {"CreationDate": None, "Producer": None, "Creator": None}
    with matplotlib.rc_context(STYLE):
        figure.savefig(out, format=kind, dpi=DPI, metadata=metadata)
    return out.getvalue()


# ---------------------------------------------------------------------------------------------------- pwc


def learned_functions(groups: list[Group]) -> Figure | None:
    """One panel per method: the learned function between the bounds."""
    shown = [group for group in groups if "y" in group.records[0]["curves"]]
    if not shown:
        return None
    columns = 2 if len(shown) > 1 else 1
    lines = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(3.5 * columns, 2.5 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for ax, group in zip(axes, shown, strict=False):
        main = _drawn_record(group, shown)
        curves = main["curves"]
        x, low, high = curves["x"], curves["lower"], curves["upper"]
        bottom, top = min(low) - 1.0, max(high) + 1.0
        ax.fill_between(x, [bottom] * len(x), low, color=LIGHT, linewidth=0)
        ax.fill_between(x, high, [top] * len(x), color=LIGHT, linewidth=0)
        ax.plot(x, low, color=GREY, linewidth=0.6)
        ax.plot(x, high, color=GREY, linewidth=0.6, label="tightest bounds")
        ax.plot(x, curves["target"], color="black", linestyle=(0, (4, 2)), linewidth=1.0, label="target")
        colour = COLOURS[group.method]
        for record in group.records:
            if record is not main:
                ax.plot(record["curves"]["x"], record["curves"]["y"], color=colour, linewidth=0.5, alpha=0.35)
        ax.plot(x, curves["y"], color=colour, label="learned")
        worst = main["evaluation"]["inequality"]["max"]
        words = f"violation up to {_short(worst)}" if worst else "no violation"
        ax.set_title(f"{TITLES[group.method]}, seed {main['config']['seed']}: {words}")
        ax.set_xlim(-2, 2)
        ax.set_ylim(bottom, top)
    for ax in axes[len(shown) :]:
        ax.set_visible(False)
    for ax in axes[-columns:]:
        ax.set_xlabel("$x$")
    for ax in axes[::columns]:
        ax.set_ylabel("$y$")
    _shared_legend(figure, axes[0], "learned", "outside upper center")
    return figure


# ---------------------------------------------------------------------------------------------------- training


def training_loss(groups: list[Group]) -> Figure | None:
    """Loss against epochs; in opt, where every seed is another problem, above the lowest loss seen with that seed."""
    shown = [g for g in groups if g.records[0]["training"] and g.records[0]["training"]["history"]["epoch"]]
    shown = [group for group in shown if group.method != "post-hoc"]
    if not shown:
        return None
    relative = shown[0].task == "opt"
    lowest = lowest_losses(shown) if relative else {}
    figure = Figure(figsize=(6.0, 3.0), layout="constrained")
    ax = figure.subplots()
    for group in shown:
        curves = {record["config"]["seed"]: _loss_curve(record) for record in group.records}
        epochs = sorted(set.intersection(*(set(curve) for curve in curves.values())))
        above = [[curve[epoch] - lowest.get(seed, 0.0) for seed, curve in curves.items()] for epoch in epochs]
        colour = COLOURS[group.method]
        if len(curves) > 1:
            ax.fill_between(epochs, [min(v) for v in above], [max(v) for v in above], color=colour, alpha=0.15, lw=0)
        middle = _steady([statistics.median(v) for v in above])
        dashes = DASHED.get(group.method, "-")
        ax.plot(epochs, middle, color=colour, label=TITLES[group.method], linewidth=1.2, linestyle=dashes)
    ax.set_yscale("log")
    if relative:
        ax.set_ylim(bottom=max(LEAST_GAP, ax.get_ylim()[0]))
    ax.set_xlim(left=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("Epoch")
    ax.set_ylabel("Training loss above the lowest" if relative else "Training loss (sum over samples)")
    figure.legend(loc="outside right upper")
    return figure


def _steady(values: list[float]) -> list[float]:
    """The median of each value and its neighbours, 5 % of the curve: one that jumps between two levels stays a line.

    >>> _steady([1.0] * 20 + [9.0] + [1.0] * 19)[20]
    1.0
    """
    half = len(values) // 40
    return [statistics.median(values[max(i - half, 0) : i + half + 1]) for i in range(len(values))]


def _loss_curve(record: dict[str, Any]) -> dict[int, float]:
    """The loss by epoch; infinite where it was NaN or too large to draw."""
    history = record["training"]["history"]
    pairs = zip(history["epoch"], history["loss"], strict=True)
    return {epoch: loss if is_number(loss) else math.inf for epoch, loss in pairs if epoch < FIRST_EPOCHS}


def lowest_losses(groups: list[Group]) -> dict[int, float]:
    """Of every seed, over all methods and epochs."""
    found: dict[int, float] = {}
    for record in (record for group in groups for record in group.records):
        losses = [loss for loss in record["training"]["history"]["loss"] if is_number(loss)]
        found[record["config"]["seed"]] = min([*losses, found.get(record["config"]["seed"], math.inf)])
    return found


# ---------------------------------------------------------------------------------------------------- opt


def optimality_gap(groups: list[Group], best: dict[int, float]) -> Figure | None:
    """One dot per method and seed; what equals IPOPT lies at the bottom."""
    shown = [group for group in groups if group.method != "ipopt" and _gaps(group, best)]
    if not shown:
        return None
    seeds = sorted(seed for seed in best if any(seed in group.seeds for group in shown))
    figure = Figure(figsize=(6.0, 2.8), layout="constrained")
    ax = figure.subplots()
    sizes = [abs(gap) for group in shown for gap in _gaps(group, best).values() if gap] or [1.0]
    bottom = min(sizes) / 2
    ax.set_yscale("log")
    ax.set_ylim(bottom, max(sizes) * 2)
    width = 0.7 / len(shown)
    for i, group in enumerate(shown):
        gaps = _gaps(group, best)
        places = {seed: seeds.index(seed) + (i - (len(shown) - 1) / 2) * width for seed in gaps}
        above = [(places[seed], gap or bottom) for seed, gap in gaps.items() if gap >= 0]
        below = [(places[seed], -gap) for seed, gap in gaps.items() if gap < 0]
        style: dict[str, Any] = {"color": COLOURS[group.method], "s": 26, "zorder": 3}
        ax.scatter([p for p, _ in above], [g for _, g in above], label=TITLES[group.method], **style)
        if below:
            edge = COLOURS[group.method]
            x, y = [p for p, _ in below], [g for _, g in below]
            ax.scatter(x, y, s=26, c="none", marker="v", edgecolors=edge, zorder=3)
    for i in range(len(seeds) - 1):
        ax.axvline(i + 0.5, color=LIGHT, linewidth=0.8)
    ax.set_xticks(range(len(seeds)), [f"seed {seed}" for seed in seeds])
    ax.set_xlim(-0.5, len(seeds) - 0.5)
    ax.set_ylabel("|objective - IPOPT|")
    figure.legend(loc="outside right upper", handletextpad=0.2)
    return figure


def repaired(groups: list[Group], best: dict[int, float]) -> Figure | None:
    """One line per seed, from the projection of the frozen network to the result with w trained."""
    before, after = (
        next((_gaps(group, best) for group in groups if group.method == name), {}) for name in ("post-hoc", "repair")
    )
    seeds = sorted(before.keys() & after.keys())
    if not seeds:
        return None
    figure = Figure(figsize=(4.2, 2.8), layout="constrained")
    ax = figure.subplots()
    labels: list[tuple[float, list[int]]] = []
    for seed in sorted(seeds, key=lambda seed: abs(after[seed])):
        end = abs(after[seed])
        ax.plot([0, 1], [abs(before[seed]), end], color=COLOURS["repair"], marker="o", markersize=4, linewidth=1.0)
        if labels and end < 1.3 * labels[-1][0]:  # separate labels would overlap
            labels[-1][1].append(seed)
        else:
            labels.append((end, [seed]))
    for height, ended in labels:
        label = f"seed{'s' if len(ended) > 1 else ''} {', '.join(map(str, sorted(ended)))}"
        ax.annotate(label, (1, height), xytext=(6, -3), textcoords="offset points", fontsize=8)
    ax.set_yscale("log")
    ax.set_xlim(-0.25, 1.45)
    ax.set_xticks([0, 1], ["f projected", "w trained"])
    ax.set_ylabel("|objective - IPOPT|")
    return figure


def _gaps(group: Group, best: dict[int, float]) -> dict[int, float]:
    """Gap between a method's objective and IPOPT's, by seed."""
    found = zip(group.seeds, group.values("objective"), strict=True)
    return {seed: value - best[seed] for seed, value in found if seed in best}


# ---------------------------------------------------------------------------------------------------- cbf


def trajectories(groups: list[Group]) -> Figure | None:
    """The plane with obstacles, start, goal and every method's path."""
    shown = [group for group in groups if "states" in group.records[0]["curves"]]
    if not shown:
        return None
    figure = Figure(figsize=(5.6, 4.2), layout="constrained")
    ax = figure.subplots()
    scene = shown[0].records[0]["curves"]
    for i, corners in enumerate(scene["obstacles"]):
        ax.add_patch(Polygon(corners, facecolor="#BDBDBD", edgecolor="#777777", linewidth=0.7, zorder=1))
        middle = (sum(c[0] for c in corners) / len(corners), sum(c[1] for c in corners) / len(corners))
        ax.annotate(f"$\\mathcal{{O}}_{i + 1}$", middle, ha="center", va="center", fontsize=9, **OUTLINED)
    ax.add_patch(Circle((0, 0), scene["goal_radius"], facecolor="none", edgecolor="black", linewidth=0.9, zorder=4))
    ax.annotate("goal", (0, 0), xytext=(4, 9), textcoords="offset points", fontsize=8, **OUTLINED)
    for group in shown:
        main = _drawn_record(group, shown)
        colour = COLOURS[group.method]
        for record in group.records:
            path = record["curves"]["states"]
            style = {"linewidth": 1.6, "zorder": 3} if record is main else {"linewidth": 0.5, "alpha": 0.4, "zorder": 2}
            label = f"{TITLES[group.method]} ({_outcome(group)})" if record is main else None
            dashes = DASHED.get(group.method, "-") if record is main else "-"
            ax.plot([s[0] for s in path], [s[1] for s in path], color=colour, label=label, linestyle=dashes, **style)
    start = scene["states"][0]
    ax.plot(start[0], start[1], "o", color="black", markersize=4, zorder=5)
    ax.annotate("start", (start[0], start[1]), xytext=(2, -12), textcoords="offset points", fontsize=8)
    (left, bottom), (right, top) = scene["box"]
    ax.add_patch(Rectangle((left, bottom), right - left, top - bottom, fill=False, edgecolor=GREY, lw=0.6, ls=":"))
    ax.set_aspect("equal")
    points = [s for g in shown for r in g.records for s in r["curves"]["states"]]
    points += [c for corners in scene["obstacles"] for c in corners]
    ax.set_xlim(max(left - 0.1, min(p[0] for p in points) - 0.4), min(right + 0.1, max(p[0] for p in points) + 0.6))
    ax.set_ylim(max(bottom - 0.1, min(p[1] for p in points) - 0.4), min(top + 0.1, max(p[1] for p in points) + 0.4))
    ax.set_xlabel("$p_x$ (m)")
    ax.set_ylabel("$p_y$ (m)")
    figure.legend(loc="outside lower center", ncols=2, handlelength=1.6)
    return figure


def control_inputs(groups: list[Group]) -> Figure | None:
    """Speed and turn rate over time, one column per method, with the nominal controller and the limits."""
    shown = [group for group in groups if "inputs" in group.records[0]["curves"]]
    if not shown:
        return None
    figure = Figure(figsize=(max(2.3 * len(shown) + 0.4, 3.6), 3.2), layout="constrained")  # the legend needs 3.6
    axes = figure.subplots(2, len(shown), sharex=True, sharey="row", squeeze=False)
    for column, group in enumerate(shown):
        record = _drawn_record(group, shown)
        curves = record["curves"]
        time = [i * curves["dt"] for i in range(len(curves["inputs"]))]
        for k, (name, limits) in enumerate(zip(("$v$ (m/s)", "$\\omega$ (rad/s)"), curves["limits"], strict=True)):
            ax: Axes = axes[k][column]
            for limit in limits:
                ax.axhline(limit, color=GREY, linewidth=0.7, linestyle=":")
            nominal, taken = [u[k] for u in curves["nominal"]], [u[k] for u in curves["inputs"]]
            ax.plot(time, nominal, color=GREY, linewidth=0.9, linestyle=(0, (4, 2)), label="nominal (PID)")
            if k == 0 and curves.get("allowed_speed"):
                most = [limits[1] if v is None else min(v, limits[1]) for v in curves["allowed_speed"]]
                ax.fill_between(time, most, [limits[1]] * len(time), color="#DADADA", linewidth=0, label="not safe")
                ax.set_ylim(limits[0] - 0.12, limits[1] * 1.1)
            ax.plot(time, taken, color=COLOURS[group.method], label="applied")
            if column == 0:
                ax.set_ylabel(name)
        axes[0][column].set_title(TITLES[group.method])
        axes[1][column].set_xlabel("Time (s)")
    _shared_legend(figure, axes[0][0], "applied", "outside lower center")
    return figure


# ---------------------------------------------------------------------------------------------------- shared


def _drawn_record(group: Group, shown: list[Group]) -> dict[str, Any]:
    """The seed that the paper draws, else the first, among those that all methods have (or, if none, this method)."""
    shared = set.intersection(*(set(other.seeds) for other in shown)) or set(group.seeds)
    wanted = FIGURE_SEED.get(group.task)
    seed = wanted if wanted in shared else min(shared)
    return next(record for record in group.records if record["config"]["seed"] == seed)


def _outcome(group: Group) -> str:
    """Numbers of seeds that collide and that arrive."""
    runs = len(group.records)
    hits, arrived = (int(sum(group.values(key))) for key in ("collided", "arrived"))
    return f"collides {hits}/{runs}, arrives {arrived}/{runs}" if hits else f"safe, arrives {arrived}/{runs}"


def _shared_legend(figure: Figure, ax: Axes, coloured: str, place: Any) -> None:
    """One legend for all panels; the line that has another colour in each is grey."""
    handles, labels = ax.get_legend_handles_labels()
    handles[labels.index(coloured)] = Line2D([], [], color="#888888")
    figure.legend(handles, labels, loc=place, ncols=len(labels), handlelength=1.8)


def _settings(groups: list[Group]) -> str:
    """Differences from the protocol, for the caption."""
    changed = {TITLES[group.method]: group.changes for group in groups if group.changes}
    if len(set(changed.values())) == 1:
        return f" Not the protocol's: {next(iter(changed.values()))}."
    return "".join(f" {name}: {text}." for name, text in changed.items())


def _short(value: float) -> str:
    return f"{value:.1e}" if value < 1e-3 else f"{value:.2f}"
