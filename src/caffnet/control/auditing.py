r"""An audit that looks for states without an admissible input: before training, and in the tests of a controller.

A constraint that depends on the state may have no solution in some states: two barriers contradict each other, or one
asks for more than the actuators can do. `audit` looks for such states in a box.

**By samples.** At Sobol points, and again around the worst of them, the depth of the set is measured: the radius r of
the largest ball inside, negative where rows exclude each other (the least by which all must give way). The kernel has
a proof for every state that it reports as INFEASIBLE.

**By proof.** If ``A(x)`` and ``b(x)`` are affine in x, a box of states is settled by linear programs: one input u
serves the whole box if

    A_i(c) u - b_i(c) + Σ_j r_j |∂A_i/∂x_j u - ∂b_i/∂x_j| <= 0      for every row i,

with c its centre and r its half widths, since an affine function is largest in a corner. If no single u serves, the
box is halved; if its centre is infeasible, a state is found. If A does not depend on x, the feasible states are a
convex set, and the corners of the box decide.

The rows are a function of which only values are known. Whether it is affine is tested at every sampled state, at the
corners, and at random states. So "infeasible" is certain and comes with a state; "feasible" holds if the rows are
affine between the tested states too, and the report says so.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from caffnet import tolerance
from caffnet._install import install_command
from caffnet._solve.problem import Status
from caffnet.constraints import EQUAL, AffineSet, ArrayLike
from caffnet.control.barriers.shapes import constant
from caffnet.control.interior import depth, inequalities
from caffnet.control.safety import in_double
from caffnet.control.systems.base import check_count, counted
from caffnet.errors import ConstraintError, InfeasibleError
from caffnet.projection import project

#: Rounds of sampling around the worst states, and how many of them.
ROUNDS, KEPT = 4, 16
#: Most boxes that a proof may look at, and most entries of a state for which every corner of the box is tried.
MOST_BOXES, MOST_CORNERS = 4096, 14
NOT_AFFINE = "the rows are not affine in the state"


@dataclasses.dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Attributes:
        states: the states looked at, ``(samples, n_x)``.
        depths: the depth of the set at each, ``(samples,)``; negative where it is empty.
        infeasible: True for states without an admissible input, ``(samples,)``.
        first: how many of the states are Sobol points; the others were drawn around the worst.
        worst: the state of the smallest depth, ``(n_x,)``.
        conflict: the rows that exclude each other there, with their multipliers; empty if the worst state is feasible.
        proof: ``"feasible"`` (every state of the box, if the rows are affine between the states tested, as they are at
            those), ``"infeasible"`` (a state is known), or why there is none.
        names: names of the entries of a state.
    """

    states: Tensor
    depths: Tensor
    infeasible: Tensor
    first: int
    worst: Tensor
    conflict: tuple[str, ...]
    proof: str
    names: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if no state without an admissible input was found."""
        return self.proof != "infeasible" and not bool(self.infeasible.any())

    @property
    def share(self) -> float:
        """The share of the region without an admissible input, estimated by the Sobol points."""
        return float(self.infeasible[: self.first].double().mean())

    def __str__(self) -> str:
        place = ", ".join(f"{name} = {value:.4g}" for name, value in zip(self.names, self.worst.tolist(), strict=True))
        random, more = self.infeasible[: self.first], self.infeasible[self.first :]
        found = (
            f"{int(random.sum())} of {self.first} random states ({100 * self.share:.3g} % of the region) have no "
            "admissible input"
        )
        lines = [
            f"{found}, and {int(more.sum())} of {len(more)} drawn near the worst one." if len(more) else f"{found}.",
            f"Smallest depth {float(self.depths.min()):.4g} at {place}.",
        ]
        if self.conflict:
            lines.append(f"In conflict there: {', '.join(self.conflict)}.")
        if self.proof == "feasible":
            return "\n".join([*lines, "Proof: feasible, if the rows are affine between the states tested."])
        return "\n".join([*lines, f"Proof: {self.proof}."])

    def draw(self, path: Path | str, axes: tuple[int, int] = (0, 1)) -> Path:
        """Draw the states over two of their entries, coloured by depth; needs matplotlib."""
        from matplotlib.figure import Figure

        if len(self.names) < 2:
            axes = (0, 0)
        figure = Figure((6, 4.5), layout="constrained")
        plot = figure.add_subplot()
        order = torch.argsort(self.depths, descending=True)  # the worst on top
        x, y = self.states[order, axes[0]], self.states[order, axes[1]]
        if axes[0] == axes[1]:
            y = self.depths[order]
        known = self.depths[self.depths.isfinite()].abs()
        most = (float(known.quantile(0.95)) if len(known) else 0.0) or 1.0
        lost = self.infeasible[order]
        dots = plot.scatter(x[~lost], y[~lost], c=self.depths[order][~lost], s=8, cmap="summer_r", vmin=0, vmax=most)
        plot.scatter(x[lost], y[lost], s=8, color="crimson", label="no admissible input")
        plot.legend(loc="upper right", fontsize="small")
        figure.colorbar(dots, label="depth of the set")
        plot.set_xlabel(self.names[axes[0]])
        plot.set_ylabel("depth" if axes[0] == axes[1] else self.names[axes[1]])
        plot.set_title(f"{100 * self.share:.3g} % of the region without an admissible input", fontsize="medium")
        figure.savefig(path, dpi=110)
        return Path(path)


def audit(
    constraint: Callable[[Any], AffineSet],
    lower: ArrayLike,
    upper: ArrayLike,
    *,
    samples: int = 4096,
    times: tuple[float, float] | None = None,
    where: Callable[[Tensor], Tensor] | None = None,
    names: Sequence[str] | None = None,
    prove: bool = True,
) -> Audit:
    """Look for states of a box where the constraint has no solution.

    Args:
        constraint: states ``(..., n_x)`` to sets, such as a `BarrierConstraint`.
        lower: the box of states, ``(n_x,)``.
        upper: the other corner of the box.
        samples: number of Sobol points.
        times: an interval of time, for constraints that take ``(x, t)``; t is then the last entry of a state here.
        where: states ``(..., n_x)`` to bool ``(...)``: only these count, such as ``lambda x: (h(x) >= 0).all(-1)``.
        names: names of the entries of a state.
        prove: try a proof, where the rows are affine in the state at all states tested and `where` is None. Needs scipy
            if A depends on the state.

    >>> from caffnet.control import BarrierConstraint, InsideBox, Integrator
    >>> slow = AffineSet.box(-1.0, 1.0, dim=1)
    >>> safe = BarrierConstraint(Integrator(1, 1), InsideBox([-1.0], [1.0], names=["p"]), inputs=slow)
    >>> print(audit(safe, [-1.0], [1.0], samples=256).proof)
    feasible
    >>> print(audit(safe, [-3.0], [3.0], samples=256))   # beyond 2 it cannot come back fast enough
    84 of 256 random states (32.8 % of the region) have no admissible input, and 257 of 257 drawn near the worst one.
    Smallest depth -0.5 at x0 = 3.
    In conflict there: p <= 1, row 2.
    Proof: infeasible.
    """
    check_count("samples", samples)
    low, high = _box(lower, upper, times)
    called = _names(names, len(low), times)
    rows = in_double(constraint)
    rows = _timed(rows) if times is not None else rows

    def at(z: Tensor) -> AffineSet:
        return rows(z).without_soft()

    states, depths, lost, first = _sample(at, low, high, samples, where)
    proof, found = "not tried", None
    if prove and where is None:
        proof, found = _prove(at, low, high, states)
        if proof == "feasible" and lost.any():  # the rows are affine up to rounding, and that decides here
            proof = f"none, {NOT_AFFINE}"
    if found is not None:  # the proof's own state counts too
        d, empty = _measure(at, found.unsqueeze(0))
        states, depths, lost = torch.cat([states, found.unsqueeze(0)]), torch.cat([depths, d]), torch.cat([lost, empty])
    worst = states[depths.argmin()]
    return Audit(states, depths, lost, first, worst, _conflict(at, worst), proof, called)


def _box(lower: ArrayLike, upper: ArrayLike, times: tuple[float, float] | None) -> tuple[Tensor, Tensor]:
    low, high = constant("lower", lower), constant("upper", upper)
    if low.ndim != 1 or low.shape != high.shape or not (low <= high).all():
        raise ConstraintError(
            f"lower and upper must be the corners of a box, (n_x,) each and in order, got {low.tolist()} and "
            f"{high.tolist()}."
        )
    if times is None:
        return low, high
    return torch.cat([low, low.new_tensor(times[:1])]), torch.cat([high, high.new_tensor(times[1:])])


def _names(names: Sequence[str] | None, count: int, times: tuple[float, float] | None) -> tuple[str, ...]:
    states = count - (times is not None)
    if names is not None and len(names) != states:
        raise ConstraintError(
            f"names must be a list of {counted(states, 'label')}, one for each entry of the state, got {list(names)!r}."
        )
    called = tuple(names or (f"x{i}" for i in range(states)))
    return called if times is None else (*called, "t")


def _timed(constraint: Callable[[Any], AffineSet]) -> Callable[[Tensor], AffineSet]:
    return lambda z: constraint((z[..., :-1], z[..., -1]))


# ------------------------------------------------------------------------------------------------- samples


def _sample(
    at: Callable[[Tensor], AffineSet],
    low: Tensor,
    high: Tensor,
    samples: int,
    where: Callable[[Tensor], Tensor] | None,
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Sample states; return them, their depths, a mask of infeasible ones, and the number of Sobol points."""
    unit = torch.quasirandom.SobolEngine(len(low), scramble=True, seed=0)
    x = low + (high - low) * unit.draw(samples, dtype=torch.float64)
    x = x if where is None else x[where(x)]
    if not len(x):
        raise ConstraintError("No sample of the box satisfies `where`: make the box smaller, or take more samples.")
    states, (depths, lost) = [x], (list(part) for part in zip(_measure(at, x), strict=True))
    width = (high - low) / 8
    for _ in range(ROUNDS):
        every, deep = torch.cat(states), torch.cat(depths)
        worst = every[deep.argsort()[:KEPT]]
        near = worst.repeat(max(samples // (ROUNDS * KEPT), 1), 1)
        near = near + width * (2 * unit.draw(len(near), dtype=torch.float64) - 1)
        near = torch.minimum(torch.maximum(near, low), high)
        near = near if where is None else near[where(near)]
        width = width / 4
        if len(near):
            d, empty = _measure(at, near)
            states.append(near)
            depths.append(d)
            lost.append(empty)
    return torch.cat(states), torch.cat(depths), torch.cat(lost), len(x)


@torch.no_grad()
def _measure(at: Callable[[Tensor], AffineSet], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the depth of the sets at states ``(s, n_x)``, and a mask of empty sets, ``(s,)`` each."""
    sets = at(x).to(torch.float64)
    origin = torch.zeros(len(x), sets.n, dtype=torch.float64)
    status = project(origin, sets, on_infeasible="nan").status.expand(len(x))
    return depth(sets).expand(len(x)).contiguous(), status == int(Status.INFEASIBLE)


def _conflict(at: Callable[[Tensor], AffineSet], x: Tensor) -> tuple[str, ...]:
    set = at(x).to(torch.float64)
    try:
        project(torch.zeros(set.n, dtype=torch.float64), set)
    except InfeasibleError as error:
        return error.conflicts[0].names if error.conflicts else ()
    return ()


# ------------------------------------------------------------------------------------------------- proof


def _prove(at: Callable[[Tensor], AffineSet], low: Tensor, high: Tensor, states: Tensor) -> tuple[str, Tensor | None]:
    """Return the verdict over the box, and a state without an admissible input if there is one."""
    corners = None
    if len(low) <= MOST_CORNERS:
        corners = torch.stack([torch.stack(c) for c in itertools.product(*zip(low, high, strict=True))])
    linear = _affine(at, low, high, states if corners is None else torch.cat([states, corners]))
    if linear is None:
        return f"none, {NOT_AFFINE}", None
    A, b, slopes_A, slopes_b = linear
    if EQUAL in at((low + high) / 2).row_kinds:
        return "none, the set has equalities", None
    if not slopes_A.any():
        if corners is None:
            return f"none, a box in {len(low)} dimensions has too many corners", None
        _, lost = _measure(at, corners)
        return ("infeasible", corners[lost][0]) if lost.any() else ("feasible", None)
    try:
        from scipy.optimize import linprog
    except ImportError:
        return f"none, scipy is not installed ({install_command('methods')})", None
    todo, seen = [(torch.zeros_like(low), torch.ones_like(low))], 0  # in units of half the box, from its centre
    while todo:
        centre, radius = todo.pop()
        seen += 1
        if seen > MOST_BOXES:
            return f"none within {MOST_BOXES} boxes", None
        state = (low + high) / 2 + centre * (high - low) / 2
        if _measure(at, state.unsqueeze(0))[1].any():
            return "infeasible", state
        here = A + (slopes_A * centre[:, None, None]).sum(0), b + (slopes_b * centre[:, None]).sum(0)
        if not _one_input_serves(linprog, *here, slopes_A * radius[:, None, None], slopes_b * radius[:, None]):
            axis = int((radius * ((slopes_A != 0).any(-1).any(-1) | (slopes_b != 0).any(-1))).argmax())
            half = radius.clone()
            half[axis] = radius[axis] / 2
            for side in (-1, 1):
                moved = centre.clone()
                moved[axis] += side * half[axis]
                todo.append((moved, half))
    return "feasible", None


def _affine(at: Callable[[Tensor], AffineSet], low: Tensor, high: Tensor, states: Tensor) -> tuple[Tensor, ...] | None:
    """Return ``A`` and ``b`` at the centre, and their change over half the box along each state; None if not affine.

    The inequalities are ``A u <= b``. An affine function is determined by its values at the centre and on the axes;
    this prediction is checked at `states` and at random states.
    """
    middle, half = (low + high) / 2, (high - low) / 2
    n = len(low)
    random = 2 * torch.rand(4 * n + 8, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1
    shares = torch.cat([torch.zeros(1, n, dtype=torch.float64), torch.eye(n, dtype=torch.float64), random])
    tested = torch.cat([middle + shares * half, states])
    shares = torch.cat([shares, (states - middle) / torch.where(half > 0, half, 1.0)])
    found = _rows(at, tested)
    if found is None:
        return None
    A, b = found
    slopes_A, slopes_b = A[1 : n + 1] - A[0], b[1 : n + 1] - b[0]
    told_A, told_b = A[0] + torch.einsum("sj,jmn->smn", shares, slopes_A), b[0] + shares @ slopes_b
    size_A, size_b = 2 * A.abs().amax(0), 2 * b.abs().amax(0)
    off = tolerance.reach(torch.float64)
    if ((A - told_A).abs() > off * size_A).any() or ((b - told_b).abs() > off * size_b).any():
        return None
    noise = tolerance.rounding(torch.float64, n)
    slopes_A = torch.where(slopes_A.abs() <= noise * size_A, 0.0, slopes_A)
    return A[0], b[0], slopes_A, slopes_b


@torch.no_grad()
def _rows(at: Callable[[Tensor], AffineSet], x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the rows at states ``(s, n_x)`` that have a bound; None if a row has one in some of the states only."""
    A, b, _ = inequalities(at(x).to(torch.float64))
    bounded = b.reshape(-1, b.shape[-1]).isfinite()
    if (bounded.any(0) != bounded.all(0)).any():
        return None
    finite = bounded.all(0)
    return A.expand(len(x), *A.shape[-2:])[:, finite], b.expand(len(x), b.shape[-1])[:, finite]


def _one_input_serves(linprog: Any, A: Tensor, b: Tensor, spread_A: Tensor, spread_b: Tensor) -> bool:
    """Return True if one u satisfies the rows over a box of states, by the linear program at the top of this file."""
    m, n = A.shape
    pairs = [(j, i) for j in range(len(spread_A)) for i in range(m) if spread_A[j, i].any() or spread_b[j, i] != 0]
    size = n + 1 + len(pairs)  # u, the excess, |·| of each pair
    rows, bounds = np.zeros((m + 2 * len(pairs), size)), np.zeros(m + 2 * len(pairs))
    rows[:m, :n], rows[:m, n], bounds[:m] = A.numpy(), -1.0, b.numpy()
    for k, (j, i) in enumerate(pairs):
        rows[i, n + 1 + k] = 1.0
        for sign, row in ((1, m + 2 * k), (-1, m + 2 * k + 1)):
            rows[row, :n], rows[row, n + 1 + k] = sign * spread_A[j, i].numpy(), -1.0
            bounds[row] = sign * float(spread_b[j, i])
    cost = np.zeros(size)
    cost[n] = 1.0
    free = [(None, None)] * n + [(-1.0, None)] + [(0, None)] * len(pairs)
    answer = linprog(cost, rows, bounds, bounds=free)
    return bool(answer.status == 0 and answer.x[n] < 0)
