"""Barrier functions: the state is safe where every ``h(x) >= 0``.

A barrier may hold several functions at once, ``h: (..., n_x) -> (..., k)``. Any function will do: its gradient comes
from automatic differentiation. The shapes that robots meet have theirs written out, which is several times faster.

**Smooth union.** Being outside a polytope means being beyond *one* of its sides: ``max_i h_i >= 0``. With

    h = (ln Σ_i exp(κ h_i) - ln m) / κ          one has    max_i h_i - ln(m)/κ  <=  h  <=  max_i h_i,

so ``h >= 0`` is sufficient, and  ``∇h = Σ_i λ_i ∇h_i`` with ``λ = softmax(κ h_i)``: weights that sum to one. (Weights
``exp(κ (h_i - h))`` with the buffered h would sum to m and overstate the gradient m times.)

**Smooth intersection.** ``h = -ln(Σ_i exp(-κ h_i)) / κ  <=  min_i h_i``, with weights ``softmax(-κ h_i)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from caffnet._solve.tracing import is_exporting
from caffnet.constraints import ArrayLike
from caffnet.errors import ConstraintError


class GradientExportError(ConstraintError):
    """torch.export met a barrier whose gradient comes from automatic differentiation."""


class Barrier:
    """Functions ``h_1 ... h_k`` of the state. Subclasses define ``__call__``, and `evaluate` if they can do better."""

    #: One label per function; None for none.
    names: tuple[str, ...] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """``h(x)``, ``(..., k)``, from states ``(..., n_x)``."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(x).")

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``h(x)`` ``(..., k)`` and its gradient ``(..., k, n_x)``; both can be differentiated again."""

        def checked(states: Tensor) -> Tensor:
            value = self(states)
            if value.ndim != states.ndim:
                raise ConstraintError(
                    f"{type(self).__name__} must give shape (k,) for one state, got {tuple(value.shape)} for "
                    f"{tuple(states.shape)}: a single function needs a last axis of size 1, as of h.unsqueeze(-1)."
                )
            return value

        def twice(state: Tensor) -> tuple[Tensor, Tensor]:
            return (value := checked(state)), value

        if is_exporting():
            raise GradientExportError(
                f"The gradient of {type(self).__name__} comes from automatic differentiation, which torch.export does "
                "not hold: define evaluate(x) in a subclass, with the gradient written out, or export with "
                "caffnet.deploy, which differentiates."
            )
        if x.numel() == 0:  # vmap takes no empty batch
            value = checked(x)
            return value, value.new_zeros(*value.shape, x.shape[-1])
        flat = x.reshape(-1, x.shape[-1])
        gradient, value = torch.func.vmap(torch.func.jacrev(twice, has_aux=True))(flat)
        batch = x.shape[:-1]
        return value.reshape(*batch, *value.shape[1:]), gradient.reshape(*batch, *gradient.shape[1:])


class FunctionBarrier(Barrier):
    """Any function as a barrier.

    Args:
        function: ``(n_x,) -> (k,)``, or ``(n_x,) -> ()`` for a single one, made of torch operations. It is given one
            state at a time, batches by ``torch.func.vmap``; so ``(..., n_x) -> (..., k)`` will do as well. As usual
            under vmap it must not draw random numbers or branch on values.
        names: one label per function.

    >>> slow = FunctionBarrier(lambda x: 1.0 - x[2].square(), names=["speed"])
    >>> value, gradient = slow.evaluate(torch.tensor([0.0, 0.0, 0.5]))
    >>> value, gradient
    (tensor([0.7500]), tensor([[ 0.,  0., -1.]]))
    >>> slow(torch.zeros(4, 5, 3)).shape
    torch.Size([4, 5, 1])
    """

    def __init__(self, function: Callable[[Tensor], Tensor], names: Sequence[str] | None = None):
        self.function = function
        self.names = _labels(names)

    def __call__(self, x: Tensor) -> Tensor:
        """``h(x)``, ``(..., k)``."""
        if x.ndim == 1:
            return torch.atleast_1d(self.function(x))
        value = torch.func.vmap(self)(x.reshape(-1, x.shape[-1]))
        return value.reshape(*x.shape[:-1], *value.shape[1:])


class InsidePolytope(Barrier):
    """Stay inside ``{x : A x <= b}``: ``h = b - A x``, one function per row.

    Args:
        A: rows over the whole state, ``(k, n_x)``.
        b: ``(k,)``.
        names: one label per row.
    """

    def __init__(self, A: ArrayLike, b: ArrayLike, names: Sequence[str] | None = None):
        self.A, self.b = _constant("A", A), _constant("b", b)
        if self.A.ndim != 2 or self.b.shape != self.A.shape[:1]:
            raise ConstraintError(
                f"A must have shape (k, n_x) and b (k,), got {tuple(self.A.shape)} and {tuple(self.b.shape)}."
            )
        self.names = _labels(names, len(self.b))

    def __call__(self, x: Tensor) -> Tensor:
        """``b - A x``, ``(..., k)``."""
        if x.shape[-1] != self.A.shape[1]:
            raise ConstraintError(f"x must have shape (..., {self.A.shape[1]}), got {tuple(x.shape)}.")
        return _like(self.b, x) - x @ _like(self.A, x).mT

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``b - A x`` and ``-A``."""
        return self(x), -_like(self.A, x).expand(*x.shape[:-1], *self.A.shape)


class InsideBox(InsidePolytope):
    """Stay within ``lower <= x <= upper``: all upper sides first, then all lower ones; infinite sides are left out.

    >>> box = InsideBox([-5.0, -4.0, -torch.inf], [1.0, 2.0, torch.inf])
    >>> box(torch.tensor([0.0, 0.0, 9.0]))
    tensor([1., 2., 5., 4.])
    """

    def __init__(self, lower: ArrayLike, upper: ArrayLike, names: Sequence[str] | None = None):
        low, high = _constant("lower", lower, infinite=True), _constant("upper", upper, infinite=True)
        if low.ndim != 1 or low.shape != high.shape:
            raise ConstraintError(
                f"lower and upper must both have shape (n_x,), got {tuple(low.shape)} and {tuple(high.shape)}."
            )
        if (low > high).any():
            raise ConstraintError(f"lower must not exceed upper, got {low.tolist()} and {high.tolist()}.")
        labels = _labels(names, len(low)) or [f"x{i}" for i in range(len(low))]
        one = torch.eye(len(low), dtype=torch.float64)
        A, b = torch.cat([one, -one]), torch.cat([high, -low])
        finite = b.isfinite()
        sides = [f"{name} <= {float(v):g}" for name, v in zip(labels, high, strict=True)]
        sides += [f"{name} >= {float(v):g}" for name, v in zip(labels, low, strict=True)]
        super().__init__(A[finite], b[finite], [side for side, kept in zip(sides, finite, strict=True) if kept])


class OutsideCircles(Barrier):
    """Keep a position out of circles (balls): ``h = |p - c|² - r²``, one function per circle.

    Args:
        centres: ``(k, d)``.
        radii: ``(k,)``.
        position: which entries of the state are the position.

    >>> OutsideCircles([[0.0, 0.0]], [1.0])(torch.tensor([2.0, 0.0, 0.3]))
    tensor([3.])
    """

    def __init__(self, centres: ArrayLike, radii: ArrayLike, position: Sequence[int] = (0, 1)):
        self.centres, self.radii = _constant("centres", centres), _constant("radii", radii)
        self.position = _position(position)
        if self.centres.ndim != 2 or self.centres.shape[1] != len(self.position):
            raise ConstraintError(
                f"centres must have shape (k, {len(self.position)}), got {tuple(self.centres.shape)}."
            )
        if self.radii.shape != self.centres.shape[:1]:
            raise ConstraintError(f"radii must have one entry per centre, got shape {tuple(self.radii.shape)}.")
        if not (self.radii >= 0).all():
            raise ConstraintError(f"radii must not be negative, got {self.radii.tolist()}.")
        self.names = tuple(f"circle {i}" for i in range(len(self.centres)))

    def __call__(self, x: Tensor) -> Tensor:
        """``|p - c|² - r²``, ``(..., k)``."""
        return self.evaluate(x)[0]

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``|p - c|² - r²`` and ``2 (p - c)`` in the columns of the position."""
        offset = _located(x, self.position).unsqueeze(-2) - _like(self.centres, x)  # (..., k, d)
        value = offset.square().sum(-1) - _like(self.radii, x).square()
        return value, _spread(2 * offset, self.position, x.shape[-1])


class OutsidePolytopes(Barrier):
    """Keep a position out of convex polytopes ``{p : A_j p <= b_j}``: one smooth union of its sides per polytope.

    Args:
        polytopes: pairs ``(A_j, b_j)`` of shapes ``(m_j, d)`` and ``(m_j,)``, rows pointing outwards; see `hull_rows`.
        sharpness: the κ of the smooth union.
        position: which entries of the state are the position.

    All polytopes are evaluated at once: those with fewer sides are filled up with sides that never matter.

    >>> square = ([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], [1.0, 1.0, 1.0, 1.0])
    >>> OutsidePolytopes([square])(torch.tensor([3.0, 0.0, 0.3]))
    tensor([1.8614])
    """

    def __init__(
        self,
        polytopes: Sequence[tuple[ArrayLike, ArrayLike]],
        sharpness: float = 10.0,
        position: Sequence[int] = (0, 1),
    ):
        self.position, self.sharpness = _position(position), _positive(sharpness)
        given = list(polytopes)
        if not given:
            raise ConstraintError("OutsidePolytopes needs at least one polytope, got none.")
        if any(not isinstance(polytope, Sequence) or len(polytope) != 2 for polytope in given):
            raise ConstraintError(
                "A polytope is a pair (A, b) of rows and bounds: for one given by its corners, pass hull_rows(corners)."
            )
        pairs = [(_constant("A", A), _constant("b", b)) for A, b in given]
        for A, b in pairs:
            if A.ndim != 2 or A.shape[1] != len(self.position) or b.shape != A.shape[:1]:
                raise ConstraintError(
                    f"A polytope is a pair of shapes (m, {len(self.position)}) and (m,), "
                    f"got {tuple(A.shape)} and {tuple(b.shape)}."
                )
        sides = max(len(b) for _, b in pairs)
        self.A = torch.stack([torch.cat([A, A.new_zeros(sides - len(A), A.shape[1])]) for A, _ in pairs])
        self.b = torch.stack([torch.cat([b, b.new_full((sides - len(b),), math.inf)]) for _, b in pairs])
        self.buffer = torch.tensor([math.log(len(b)) for _, b in pairs], dtype=torch.float64) / self.sharpness
        self.names = tuple(f"obstacle {j}" for j in range(len(pairs)))

    def __call__(self, x: Tensor) -> Tensor:
        """The smooth unions, ``(..., k)``."""
        return torch.logsumexp(self.sharpness * self._sides(x), -1) / self.sharpness - _like(self.buffer, x)

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The smooth unions, and ``Σ_i softmax(κ h_i) a_i`` in the columns of the position."""
        scaled = self.sharpness * self._sides(x)
        total = torch.logsumexp(scaled, -1, keepdim=True)
        weight = torch.exp(scaled - total).unsqueeze(-2)  # the softmax, (..., k, 1, sides)
        value = total.squeeze(-1) / self.sharpness - _like(self.buffer, x)
        return value, _spread((weight @ _like(self.A, x)).squeeze(-2), self.position, x.shape[-1])

    def _sides(self, x: Tensor) -> Tensor:
        """``A_j p - b_j``, ``(..., k, sides)``: positive beyond a side, ``-inf`` where there is no side."""
        p = _located(x, self.position)
        A = _like(self.A, x)
        return (p @ A.flatten(0, 1).mT).unflatten(-1, A.shape[:2]) - _like(self.b, x)


class Stack(Barrier):
    """All functions of several barriers, one after the other: every one of them must be >= 0."""

    def __init__(self, *parts: Barrier):
        if not parts:
            raise ConstraintError("A stack needs at least one barrier, got none.")
        self.parts = parts
        labels = [part.names for part in parts]
        self.names = None if None in labels else tuple(name for names in labels for name in names or ())

    def __call__(self, x: Tensor) -> Tensor:
        """``(..., k_1 + k_2 + ...)``."""
        return torch.cat([part(x) for part in self.parts], -1)

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The values and gradients of the parts."""
        values, gradients = zip(*(part.evaluate(x) for part in self.parts), strict=True)
        return torch.cat(values, -1), torch.cat(gradients, -2)


class Intersection(Barrier):
    """Safe where *all* of the functions are >= 0, as one smooth function that never exceeds their minimum.

    Args:
        *parts: barriers; all their functions take part.
        sharpness: the κ; the larger, the nearer to the minimum and the less smooth.

    >>> Intersection(InsideBox([-1.0], [1.0]), sharpness=50)(torch.tensor([0.0]))
    tensor([0.9861])
    """

    sign, names = -1.0, ("intersection",)

    def __init__(self, *parts: Barrier, sharpness: float = 10.0):
        self.parts, self.sharpness = Stack(*parts), _positive(sharpness)

    def __call__(self, x: Tensor) -> Tensor:
        """``(..., 1)``."""
        return self._blend(self.parts(x))

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The blend, and the gradients of the parts with the softmax weights."""
        value, gradient = self.parts.evaluate(x)
        weight = torch.softmax(self.sign * self.sharpness * value, -1).unsqueeze(-2)
        return self._blend(value), weight @ gradient

    def _blend(self, value: Tensor) -> Tensor:
        return -torch.logsumexp(-self.sharpness * value, -1, keepdim=True) / self.sharpness


class Union(Intersection):
    """Safe where *any* of the parts is, as one smooth function that never exceeds their maximum.

    A part with several functions is safe where all of them are >= 0, here as everywhere: its smooth intersection takes
    part. So the union of two rooms, each a box with four walls, is one room or the other.

    Args:
        *parts: barriers.
        sharpness: the κ; the larger, the nearer to the maximum and the less smooth.

    >>> left_or_right = Union(InsidePolytope([[1.0]], [-1.0]), InsidePolytope([[-1.0]], [-1.0]))
    >>> left_or_right(torch.tensor([[-2.0], [0.0], [2.0]]))
    tensor([[ 0.9307],
            [-1.0000],
            [ 0.9307]])
    """

    sign, names = 1.0, ("union",)

    def __init__(self, *parts: Barrier, sharpness: float = 10.0):
        super().__init__(*(Intersection(part, sharpness=sharpness) for part in parts), sharpness=sharpness)

    def _blend(self, value: Tensor) -> Tensor:
        return (torch.logsumexp(self.sharpness * value, -1, keepdim=True) - math.log(value.shape[-1])) / self.sharpness


def hull_corners(points: ArrayLike) -> Tensor:
    """The corners of the convex hull of points ``(v, 2)`` in the plane, counter-clockwise, ``(m, 2)``, float64.

    >>> hull_corners([[0, 0], [1, 0], [0, 1], [1, 1], [0.5, 0.5]]).tolist()
    [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
    """
    given = _constant("points", points)
    if given.ndim != 2 or given.shape[1] != 2:
        raise ConstraintError(f"points must have shape (v, 2), points in the plane, got {tuple(given.shape)}.")
    ordered = sorted((a, b) for a, b in given.tolist())

    def chain(way: list[tuple[float, float]]) -> list[tuple[float, float]]:
        kept: list[tuple[float, float]] = []
        for p in way:
            while len(kept) > 1 and _turn(kept[-2], kept[-1], p) <= 0:
                kept.pop()
            kept.append(p)
        return kept[:-1]

    corners = chain(ordered) + chain(ordered[::-1])
    if len(corners) < 3:
        raise ConstraintError(
            f"The hull of {len(ordered)} points has no inside: three points not on a line are needed."
        )
    return torch.tensor(corners, dtype=torch.float64)


def hull_rows(points: ArrayLike) -> tuple[Tensor, Tensor]:
    """The convex hull of points in the plane as ``{p : A p <= b}`` with unit outward rows.

    Args:
        points: ``(v, 2)``, in any order; points inside the hull are ignored.

    Returns:
        ``A`` ``(m, 2)`` and ``b`` ``(m,)``, float64, counter-clockwise.

    >>> hull_rows([[0, 0], [1, 0], [0, 1], [1, 1], [0.5, 0.5]])[1]
    tensor([0., 1., 1., 0.], dtype=torch.float64)
    """
    corners = hull_corners(points)
    edge = corners.roll(-1, 0) - corners
    normal = torch.stack([edge[:, 1], -edge[:, 0]], 1) / edge.norm(dim=1, keepdim=True)
    return normal, (normal * corners).sum(1)


def _turn(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    """Positive if the way a -> b -> c turns left."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _spread(columns: Tensor, position: tuple[int, ...], n_x: int) -> Tensor:
    """Gradients over the position ``(..., k, d)`` as gradients over the state ``(..., k, n_x)``."""
    if position == tuple(range(len(position))):
        return torch.nn.functional.pad(columns, (0, n_x - len(position)))
    whole = columns.new_zeros(*columns.shape[:-1], n_x)
    return whole.index_copy(-1, torch.tensor(position, device=columns.device), columns)


def _like(constant: Tensor, x: Tensor) -> Tensor:
    """The constant in the number type and on the device of the states."""
    if not x.is_floating_point():
        raise ConstraintError(f"x must be of a floating type, got {x.dtype}: write x.double().")
    return constant.to(x)


def _position(given: Sequence[int]) -> tuple[int, ...]:
    position = tuple(given)
    if not position or min(position) < 0 or len(set(position)) < len(position):
        raise ConstraintError(f"position must name different entries of the state, counted from 0, got {position}.")
    return position


def _located(x: Tensor, position: tuple[int, ...]) -> Tensor:
    """The position in states ``(..., n_x)``, ``(..., d)``."""
    if x.shape[-1] <= max(position):
        raise ConstraintError(f"x must have the entries {position}, its position, got {x.shape[-1]} entries.")
    return x[..., list(position)]


def _constant(name: str, value: ArrayLike, infinite: bool = False) -> Tensor:
    """Data of a barrier: kept in float64, and used in the number type and on the device of the state."""
    given = torch.as_tensor(value, dtype=torch.float64).detach()
    if given.isnan().any() or not (infinite or given.isfinite().all()):
        raise ConstraintError(f"{name} must be {'' if infinite else 'finite '}numbers, got {given.tolist()}.")
    return given


def _labels(names: Sequence[str] | None, count: int | None = None) -> tuple[str, ...] | None:
    """One label each; a single text would be taken for a list of letters."""
    if names is None:
        return None
    if isinstance(names, str) or (count is not None and len(names) != count):
        wanted = "one label per function" if count is None else f"{count} label{'s' * (count != 1)}"
        raise ConstraintError(f"names must be a list of {wanted}, got {names!r}.")
    return tuple(names)


def _positive(sharpness: float) -> float:
    if not 0 < sharpness < math.inf:
        raise ConstraintError(f"sharpness must be positive and finite, got {sharpness!r}.")
    return float(sharpness)
