r"""Bijections from $\mathbb{R}^d$ to the interior of an affine set, with their log-determinants.

**The ray map.** Let c be a point inside ``S = {u : a_i u <= b_i}``. The gauge of S around c,

    γ(v) = max(0, max_i a_i v / (b_i - a_i c)),

measures how far ``c + v`` is from c toward the boundary: γ < 1 inside, γ = 1 on the boundary, γ = 0 where the ray never
meets it. The map keeps the ray and shortens the distance,

    u = c + k(γ(z)) z,    k(γ) = ρ(γ) / γ,    ρ = tanh,

so ``γ(u - c) = ρ(γ(z)) < 1``: every z lands inside, every point inside has exactly one z, and near c the map is the
identity, so z is in the units of u. It is as smooth as ρ where one row is nearest, and continuous where this row
changes.

Its Jacobian is ``k I + k'(γ) z ∇γᵀ``. As γ is homogeneous, ``∇γ z = γ``, and by the matrix determinant lemma

    det = k^(d-1) (k + k' γ) = k^(d-1) ρ'(γ):     log det = (d-1) log k(γ) + log(1 - tanh²γ).

No derivative of the rows is needed. Equalities are solved first: ``u = c + N z`` with N orthonormal, and densities are
densities on the flat of the equalities.

**Closed forms.** In a box every coordinate is mapped separately, ``u = m + r tanh(z / r)``; on a simplex
``u = total · softmax(z, 0)``. The image leaves out a thin shell (`tolerance.shell`), so that rounding breaks no row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import constraints as supports
from torch.distributions.transforms import Transform
from torch.nn import functional as F

from caffnet import tolerance
from caffnet._solve.problem import Status
from caffnet.constraints import BOTH, EQUAL, FREE, LOWER, UPPER, AffineSet, is_kind
from caffnet.errors import ConstraintError
from caffnet.projection import project

#: How far outside, in distances to the rows, a point lies whose projection is a largest ball; and how often more is
#: tried, each time so many times as far.
FAR, TRIES = 2.0**12, 2


class InSet(supports.Constraint):
    """The support of a distribution: the points of an affine set, up to rounding."""

    event_dim = 1  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __init__(self, set: AffineSet):
        self.set = set

    def check(self, value: Tensor) -> Tensor:
        """Return ``(...)``, True for points in the set."""
        return self.set.contains(value)


class RayTransform(Transform):
    """The ray map into the interior of a set, ``(..., d) -> (..., n)`` with ``d = n`` minus the equalities.

    Args:
        set: the set or sets, with batch axes or without; its interior must not be empty.
        centre: a point inside of each, ``(..., n)``; `interior_point` if None.
        stuck: mask ``(...)`` of the sets without an interior: for them every z is mapped to the centre, without an
            error. For policies that must act in every state.

    >>> wedge = AffineSet.inequality([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], [1.0, 0.0, 0.0])
    >>> ray = RayTransform(wedge)
    >>> u = ray(torch.tensor([[5.0, -9.0], [0.0, 0.0]]))
    >>> bool(wedge.violation(u).max() == 0), bool(torch.allclose(u[1], ray.centre))
    (True, True)
    """

    domain = supports.real_vector
    bijective = True

    def __init__(self, set: AffineSet, centre: Tensor | None = None, stuck: Tensor | None = None):
        super().__init__(cache_size=1)
        self.set, self.stuck = (set := typed(set)), stuck
        with torch.no_grad():
            self.centre = interior_point(set) if centre is None else centre
            self.basis = _null_space(set)
            self.rows = _gauge_rows(set, self.centre, stuck)
            if self.basis is not None:
                self.rows = self.rows @ self.basis
        self.d = self.rows.shape[-1]
        self._reach = 1 - tolerance.shell(set.dtype, set.n)
        self.codomain = InSet(set)

    def _gauge(self, z: Tensor) -> Tensor:
        return (self.rows @ z.unsqueeze(-1)).squeeze(-1).amax(-1, keepdim=True).clamp_min(0)

    def _call(self, x: Tensor) -> Tensor:
        moved = _tanhc(self._gauge(x)) * self._reach * x
        if self.stuck is not None:
            moved = torch.where(self.stuck.unsqueeze(-1), 0.0, moved)
        return self.centre + (moved if self.basis is None else (self.basis @ moved.unsqueeze(-1)).squeeze(-1))

    def _inverse(self, y: Tensor) -> Tensor:
        moved = y - self.centre
        if self.basis is not None:
            moved = (self.basis.mT @ moved.unsqueeze(-1)).squeeze(-1)
        far = self._gauge(moved) / self._reach
        inside = far.clamp_max(1 - torch.finfo(y.dtype).eps)
        positive = inside > 0
        safe = torch.where(positive, inside, 0.5)
        return moved / self._reach * torch.where(positive, torch.atanh(safe) / safe, 1.0)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """``log |det ∂u/∂z|``, ``(...)``."""
        gauge = self._gauge(x).squeeze(-1)
        return (self.d - 1) * _tanhc(gauge).log() + _log_slope(gauge) + self.d * math.log(self._reach)

    def forward_shape(self, shape: torch.Size) -> torch.Size:
        """``(..., d) -> (..., n)``."""
        return torch.Size([*shape[:-1], self.set.n])

    def inverse_shape(self, shape: torch.Size) -> torch.Size:
        """``(..., n) -> (..., d)``."""
        return torch.Size([*shape[:-1], self.d])


class BoxTransform(Transform):
    """``u = m + r tanh(z / r)`` in every coordinate, with m and r the middle and half the width of a box.

    >>> BoxTransform(AffineSet.box([0.0, -1.0], [4.0, 1.0]))(torch.tensor([0.0, 100.0]))
    tensor([2.0000, 1.0000])
    """

    domain = supports.real_vector
    bijective = True

    def __init__(self, set: AffineSet):
        super().__init__(cache_size=1)
        if not is_box(set):
            raise ConstraintError(f"BoxTransform needs a box with finite sides, got {set}: use RayTransform.")
        self.set, self.d = (set := typed(set)), set.n
        with torch.no_grad():
            self.centre, self.half = (set.upper + set.lower) / 2, (set.upper - set.lower) / 2
        if not (self.half > 0).all():
            raise ConstraintError("The box has no interior: every upper side must exceed the lower one.")
        self._reach = 1 - tolerance.shell(set.dtype, set.n)
        self.codomain = InSet(set)

    def _call(self, x: Tensor) -> Tensor:
        return self.centre + self._reach * self.half * torch.tanh(x / self.half)

    def _inverse(self, y: Tensor) -> Tensor:
        most = 1 - torch.finfo(y.dtype).eps
        share = ((y - self.centre) / (self._reach * self.half)).clamp(-most, most)
        return self.half * torch.atanh(share)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """``log |det ∂u/∂z|``, ``(...)``."""
        return _log_slope((x / self.half).abs()).sum(-1) + self.d * math.log(self._reach)


class SimplexTransform(Transform):
    """``u = total · softmax(z_1, ..., z_{n-1}, 0)``, onto ``{u > 0, Σ u = total}``.

    The density is over the flat ``Σ u = total``, as it is with `RayTransform`: ``sqrt(n)`` over the first n-1 outputs.

    >>> SimplexTransform(3, total=6.0)(torch.zeros(2))
    tensor([2., 2., 2.])
    """

    domain = supports.real_vector
    bijective = True

    def __init__(self, n: int, total: float | Tensor = 1.0):
        super().__init__(cache_size=1)
        if n < 2:
            raise ConstraintError(f"A simplex needs at least 2 outputs, got {n}.")
        self.n, self.d, self.total = n, n - 1, torch.as_tensor(total)
        if not (self.total > 0).all():
            raise ConstraintError(f"total must be positive, got {self.total.tolist()}.")
        one = torch.ones(1, n, dtype=self.total.dtype if self.total.is_floating_point() else None)
        whole = AffineSet.equality(one, self.total.unsqueeze(-1).to(one)) & AffineSet.box(0.0, None, dim=n).to(
            one.dtype
        )
        self.set, self.codomain = whole, InSet(whole)

    def _call(self, x: Tensor) -> Tensor:
        return self.total.to(x).unsqueeze(-1) * torch.softmax(F.pad(x, (0, 1)), -1)

    def _inverse(self, y: Tensor) -> Tensor:
        log = y.clamp_min(torch.finfo(y.dtype).tiny).log()
        return log[..., :-1] - log[..., -1:]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """``Σ log p_i + (n-1) log total + log sqrt(n)``, ``(...)``."""
        shares = torch.log_softmax(F.pad(x, (0, 1)), -1).sum(-1)
        return shares + self.d * self.total.to(x).log() + 0.5 * math.log(self.n)

    def forward_shape(self, shape: torch.Size) -> torch.Size:
        """``(..., n-1) -> (..., n)``."""
        return torch.Size([*shape[:-1], self.n])

    def inverse_shape(self, shape: torch.Size) -> torch.Size:
        """``(..., n) -> (..., n-1)``."""
        return torch.Size([*shape[:-1], self.d])


def interior_transform(set: AffineSet) -> RayTransform | BoxTransform:
    """Return the map into the interior of a set: coordinate by coordinate for a box, else along rays."""
    return BoxTransform(set) if is_box(set) else RayTransform(set)


def check_raw(name: str, z: Tensor, transform: Transform) -> None:
    """Refuse points of the wrong size."""
    d, set = getattr(transform, "d", None), getattr(transform, "set", None)
    if d is None or set is None or z.shape[-1:] == (d,):
        return
    raise ConstraintError(
        f"{name} must have shape (..., {d}), got {tuple(z.shape)}: one number for each of the {set.n} outputs, less "
        f"one for each of the {set.row_kinds.count(EQUAL)} equalities, which leave {d} directions."
    )


def interior_point(set: AffineSet, near: Tensor | None = None) -> Tensor:
    r"""Return a point well inside each set, ``(..., n)``: of the centres of largest balls, the nearest to a given
    point.

    It solves $\max r$ with $a_i u + |a_i| r \le b_i$ by the projection of ``(near, t)`` on this set of (u, r), with t
    so large that a larger t finds no larger ball.

    An unbounded set may hold balls of any size. The result is then the point nearest to `near` that is the centre of a
    ball of radius 1 in the units of the outputs (or of a 4096th of its distance from the origin, if that is more).

    Args:
        set: its interior must not be empty.
        near: ``(..., n)``; the origin if None.

    >>> interior_point(AffineSet.box([0.0, 0.0], [1.0, 4.0]))   # of all centres, that nearest to the origin
    tensor([0.5000, 0.5000])
    >>> interior_point(AffineSet.box(0.0, None, dim=2))
    tensor([1., 1.])
    """
    centre, radius = largest_ball(set, near)
    empty = ~(radius > 0)
    if empty.any():
        place = tuple(empty.nonzero()[0].tolist()) if set.batch_shape else ()
        raise ConstraintError(
            f"The set has no interior ({int(empty.sum())} of {empty.numel()} samples, first {place}), so a "
            "distribution cannot spread over it: look for such states with caffnet.control.audit, or relax its rows."
        )
    return centre.to(typed(set).dtype)


def depth(set: AffineSet) -> Tensor:
    """Return the radius of the largest ball inside each set, ``(...)``, float64; for an empty set, minus the least
    excess.

    The least excess is the smallest amount by which all rows, scaled to length one, must give way. The depth is minus
    infinity if no amount helps (a row of zeros, or equalities, that cannot hold), and infinity if balls of any size
    fit.

    >>> depth(AffineSet.inequality([[1.0], [-1.0]], [[1.0, 1.0], [-1.0, -1.0]]))
    tensor([ 1.0000, -1.0000], dtype=torch.float64)
    """
    return largest_ball(set, None)[1]


def largest_ball(set: AffineSet, near: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return centres ``(..., n)`` and radii ``(...)`` of largest balls, float64; infinite radii where any size fits.

    If there is a largest ball, no ball is larger than the largest distance from a point of the set to one of its rows:
    the rows that it touches are in balance, ``Σ λ_i a_i = 0`` with ``Σ λ_i |a_i| = 1``, and its radius is the mean
    ``Σ λ_i (b_i - a_i u)`` of the distances from any point u. So a larger ball proves that balls of any size fit.
    """
    wide = set.to(torch.float64)
    start = torch.zeros(set.n, dtype=torch.float64, device=set.device) if near is None else near.double()
    batch = torch.broadcast_shapes(set.batch_shape, start.shape[:-1])
    start = project(start.expand(*batch, set.n).contiguous(), wide, on_infeasible="nearest").value
    lifted, room = _lifted(wide), _room(wide, start)
    far = FAR * room
    answer = project(torch.cat([start, far], -1), lifted, on_infeasible="nearest")
    ball = answer.value
    for _ in range(TRIES):
        if (ball[..., -1:] > 2 * room).all():
            break
        far = FAR * far
        answer = project(torch.cat([start, far], -1), lifted, on_infeasible="nearest", start=answer.active)
        noise = tolerance.feasibility(torch.float64, set.n) * far
        grown = answer.value[..., -1:] > ball[..., -1:] + tolerance.GROWN * ball[..., -1:].abs() + noise
        if not grown.any():
            break
        ball = torch.where(grown, answer.value, ball)
    centre, radius = ball[..., :-1], torch.where(answer.status >= int(Status.INFEASIBLE), -math.inf, ball[..., -1])
    endless = radius > 2 * room.squeeze(-1)
    if endless.any():
        unit = (start.abs().amax(-1, keepdim=True) / FAR).clamp_min(1)
        shrunk = project(start, _tightened(wide, unit), on_infeasible="nearest").value
        centre, radius = torch.where(endless.unsqueeze(-1), shrunk, centre), torch.where(endless, math.inf, radius)
    return centre, radius


def _room(set: AffineSet, point: Tensor) -> Tensor:
    """Return the largest distance from points to a row, ``(..., 1)``, and at least its rounding error."""
    A, b, _ = inequalities(set)
    length = A.norm(dim=-1)
    distance = (b - (A @ point.unsqueeze(-1)).squeeze(-1)).abs() / torch.where(length > 0, length, 1.0)
    known = distance.isfinite() & (length > 0)
    size = point.abs().amax(-1, keepdim=True) / FAR
    room = torch.cat([torch.where(known, distance, 0.0), size], -1).amax(-1, keepdim=True)
    return torch.where(room > 0, room, 1.0)


def _tightened(set: AffineSet, by: Tensor) -> AffineSet:
    """Return the set of points that keep this distance, ``(..., 1)``, from all inequalities."""
    equal = is_kind(set.row_kinds, EQUAL, set.device)
    room = torch.where(equal, 0.0, by * set.A.norm(dim=-1))
    return AffineSet.from_parts(set.A, set.lower + room, set.upper - room, set.labels, set.row_kinds)


def is_inside(set: AffineSet, point: Tensor) -> Tensor:
    """Return ``(...)``, True for points ``(..., n)`` that satisfy every inequality with room to spare."""
    return (_slack(set, point) > 0).all(-1)


def typed(set: AffineSet) -> AffineSet:
    """Return the set with a definite number type: a set written in plain lists takes torch's default."""
    return set.to(torch.get_default_dtype()) if set.weak else set


def is_box(set: AffineSet) -> bool:
    """Return True if a set is a box with finite sides, with one row per coordinate in order."""
    if set.m != set.n or set.row_kinds.strip(BOTH) or set.A.ndim != 2:
        return False
    finite = bool(set.lower.isfinite().all() and set.upper.isfinite().all())
    return finite and bool(torch.equal(set.A, torch.eye(set.n, dtype=set.dtype, device=set.device)))


def inequalities(set: AffineSet) -> tuple[Tensor, Tensor, list[int]]:
    """Write inequalities as ``a u <= b``: rows ``(..., m', n)``, bounds ``(..., m')``, and their rows in the set."""
    above = [i for i, kind in enumerate(set.row_kinds) if kind in (UPPER, BOTH)]
    below = [i for i, kind in enumerate(set.row_kinds) if kind in (LOWER, BOTH)]
    A = torch.cat([set.A[..., above, :], -set.A[..., below, :]], -2)
    batch = torch.broadcast_shapes(set.lower.shape[:-1], set.upper.shape[:-1])
    upper, lower = set.upper.expand(*batch, set.m), set.lower.expand(*batch, set.m)
    return A, torch.cat([upper[..., above], -lower[..., below]], -1), above + below


def _lifted(set: AffineSet) -> AffineSet:
    """Return the set of (centre, radius) of the balls inside a set."""
    A, b, _ = inequalities(set)
    balls = AffineSet.inequality(torch.cat([A, A.norm(dim=-1, keepdim=True)], -1), b)
    equal = [i for i, kind in enumerate(set.row_kinds) if kind == EQUAL]
    if not equal:
        return balls
    return balls & AffineSet.equality(F.pad(set.A[..., equal, :], (0, 1)), set.upper[..., equal])


def _slack(set: AffineSet, point: Tensor) -> Tensor:
    """``b_i - a_i u`` of every inequality, ``(..., m')``."""
    A, b, _ = inequalities(set)
    return b - (A @ point.unsqueeze(-1)).squeeze(-1)


def _gauge_rows(set: AffineSet, centre: Tensor, stuck: Tensor | None) -> Tensor:
    """``a_i / (b_i - a_i c)``, ``(..., m', n)``; zero for infinite bounds, and for sets that are stuck."""
    A, _, rows = inequalities(set)
    if not rows and FREE * set.m != set.row_kinds and EQUAL not in set.row_kinds:
        raise ConstraintError(f"{set} has no rows to stay inside of.")
    slack = _slack(set, centre)
    if stuck is not None:
        slack = torch.where(stuck.unsqueeze(-1), math.inf, slack)
    if not (slack > 0).all():
        names = sorted({set.names[rows[i]] for i in (~(slack > 0)).nonzero()[:, -1].unique().tolist()})
        raise ConstraintError(f"The centre is not inside the set: it touches or breaks {', '.join(names)}.")
    if not rows:
        return torch.zeros(1, set.n, dtype=set.dtype, device=set.device)
    return A / slack.unsqueeze(-1)


def _null_space(set: AffineSet) -> Tensor | None:
    """Return an orthonormal basis of the directions that the equalities allow, ``(..., n, d)``; None for all."""
    equal = [i for i, kind in enumerate(set.row_kinds) if kind == EQUAL]
    if not equal:
        return None
    Q, R = torch.linalg.qr(set.A[..., equal, :].mT, mode="complete")
    diagonal = R.diagonal(dim1=-2, dim2=-1).abs()
    if len(equal) > set.n or not (diagonal > tolerance.rank(set.dtype, set.n) * diagonal.amax(-1, keepdim=True)).all():
        raise ConstraintError("The equalities depend on each other: leave out those that follow from the rest.")
    if len(equal) == set.n:
        raise ConstraintError("The equalities leave a single point: a distribution cannot spread over it.")
    return Q[..., len(equal) :]


def _tanhc(gauge: Tensor) -> Tensor:
    """``tanh(γ) / γ``, 1 at 0."""
    positive = gauge > 0
    safe = torch.where(positive, gauge, 1.0)
    return torch.where(positive, torch.tanh(safe) / safe, 1.0)


def _log_slope(gauge: Tensor) -> Tensor:
    """``log(1 - tanh²γ)`` without cancellation, for γ >= 0."""
    return 2 * (math.log(2) - gauge - F.softplus(-2 * gauge))
