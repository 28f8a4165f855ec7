"""Shapes with formulas for their derivatives: stay inside a polytope or a box, or outside circles and polytopes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from caffnet.constraints import ArrayLike
from caffnet.control.barriers.base import Barrier, labels
from caffnet.control.barriers.unions import Constants, Sides, Unions, weights_along_both
from caffnet.errors import ConstraintError


class InsidePolytope(Barrier):
    """Stay inside ``{x : A x <= b}``: ``h = b - A x``, one function per row.

    Args:
        A: rows over the whole state, ``(k, n_x)``.
        b: ``(k,)``.
        names: one label per row.
    """

    def __init__(self, A: ArrayLike, b: ArrayLike, names: Sequence[str] | None = None):
        self.A, self.b = constant("A", A), constant("b", b)
        if self.A.ndim != 2 or self.b.shape != self.A.shape[:1]:
            raise ConstraintError(
                f"A must have shape (k, n_x) and b (k,), got {tuple(self.A.shape)} and {tuple(self.b.shape)}."
            )
        self._slopes = -self.A
        self.names = labels(names, len(self.b))

    def __call__(self, x: Tensor) -> Tensor:
        """``b - A x``, ``(..., k)``."""
        return self._evaluate(x)[0]

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``b - A x`` and ``-A``."""
        value, slopes = self._evaluate(x)
        return value, slopes if x.ndim == 1 else slopes.expand(*x.shape[:-1], *slopes.shape)

    def _evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The values, and ``-A`` of all states."""
        if x.shape[-1] != self.A.shape[1]:
            raise ConstraintError(f"x must have shape (..., {self.A.shape[1]}), got {tuple(x.shape)}.")
        slopes, b = _like(self._slopes, x), self.b.to(x)
        # Of one state, in one operation.
        return (torch.addmv(b, slopes, x) if x.ndim == 1 else torch.nn.functional.linear(x, slopes, b)), slopes

    def evaluate_along(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return `evaluate` and zero: the functions are affine."""
        value, gradient = self.evaluate(x)
        return value, gradient, torch.zeros_like(gradient)

    def third(self, x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """Zero."""
        return x.new_zeros(*x.shape[:-1], *self.A.shape)

    def sides(self, n_x: int) -> Sides | None:
        """One half-space per function."""
        return Sides(self._slopes.unsqueeze(1), -self.b.unsqueeze(1), None) if n_x == self.A.shape[1] else None


class InsideBox(InsidePolytope):
    """Stay within ``lower <= x <= upper``: all upper sides first, then all lower ones; infinite sides are left out.

    Args:
        lower: ``(n_x,)``, ``-inf`` where there is no side.
        upper: ``(n_x,)``.
        names: one per entry of the state, ``n_x`` of them, from which the sides are named ("speed <= 2"); or one per
            finite side, in their order.

    >>> box = InsideBox([-5.0, -4.0, -torch.inf], [1.0, 2.0, torch.inf])
    >>> box(torch.tensor([0.0, 0.0, 9.0]))
    tensor([1., 2., 5., 4.])
    """

    def __init__(self, lower: ArrayLike, upper: ArrayLike, names: Sequence[str] | None = None):
        low, high = constant("lower", lower, infinite=True), constant("upper", upper, infinite=True)
        if low.ndim != 1 or low.shape != high.shape:
            raise ConstraintError(
                f"lower and upper must both have shape (n_x,), got {tuple(low.shape)} and {tuple(high.shape)}."
            )
        if (low > high).any():
            raise ConstraintError(f"lower must not exceed upper, got {low.tolist()} and {high.tolist()}.")
        entries = [f"x{i}" for i in range(len(low))] if names is None else names
        one = torch.eye(len(low), dtype=torch.float64)
        A, b = torch.cat([one, -one]), torch.cat([high, -low])
        finite = b.isfinite()
        super().__init__(A[finite], b[finite], _sides(entries, low, high, finite))


def _sides(names: Sequence[str], low: Tensor, high: Tensor, finite: Tensor) -> Sequence[str]:
    """A label for every finite side, from names of entries or of sides."""
    there = int(finite.sum())
    if isinstance(names, str) or len(names) not in (len(low), there):
        raise ConstraintError(
            f"names must be a list of {len(low)} labels, one per entry of the state, or {there}, one per finite side "
            f"(upper sides first), got {names!r}."
        )
    if len(names) != len(low):
        return names
    sides = [f"{name} <= {float(v):g}" for name, v in zip(names, high, strict=True)]
    sides += [f"{name} >= {float(v):g}" for name, v in zip(names, low, strict=True)]
    return [side for side, kept in zip(sides, finite, strict=True) if kept]


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
        self.centres, self.radii = constant("centres", centres), constant("radii", radii)
        self.position = check_position(position)
        if self.centres.ndim != 2 or self.centres.shape[1] != len(self.position):
            hint = ": one circle is written OutsideCircles([centre], [radius])" if self.centres.ndim == 1 else ""
            raise ConstraintError(
                f"centres must have shape (k, {len(self.position)}), got {tuple(self.centres.shape)}{hint}."
            )
        if self.radii.shape != self.centres.shape[:1]:
            raise ConstraintError(f"radii must have one entry per centre, got shape {tuple(self.radii.shape)}.")
        if not (self.radii >= 0).all():
            raise ConstraintError(f"radii must not be negative, got {self.radii.tolist()}.")
        self.squares = self.radii.square()
        self.names = tuple(f"circle {i}" for i in range(len(self.centres)))

    def __call__(self, x: Tensor) -> Tensor:
        """``|p - c|² - r²``, ``(..., k)``."""
        return self.evaluate(x)[0]

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``|p - c|² - r²`` and ``2 (p - c)`` in the columns of the position."""
        offset = _located(x, self.position).unsqueeze(-2) - _like(self.centres, x)  # (..., k, d)
        value = offset.square().sum(-1) - _like(self.squares, x)
        return value, spread(2 * offset, self.position, x.shape[-1])

    def evaluate_along(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `evaluate`; the gradient changes by twice the position's part of v."""
        value, gradient = self.evaluate(x)
        change = spread(2 * _located(v, self.position).unsqueeze(-2), self.position, x.shape[-1])
        return value, gradient, change.expand_as(gradient)

    def third(self, x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """Zero: h is quadratic."""
        return x.new_zeros(*x.shape[:-1], len(self.radii), x.shape[-1])


class OutsidePolytopes(Barrier):
    """Keep a position out of convex polytopes ``{p : A_j p <= b_j}``: one smooth union of sides per polytope.

    Args:
        polytopes: pairs ``(A_j, b_j)`` of shapes ``(m_j, d)`` and ``(m_j,)``, rows pointing outwards; see `hull_rows`.
        sharpness: the κ of the smooth union.
        position: which entries of the state are the position.

    All polytopes are evaluated at once: those with fewer sides are padded with sides that never matter.

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
        self.position, self.sharpness = check_position(position), check_sharpness(sharpness)
        given = list(polytopes)
        if not given:
            raise ConstraintError("OutsidePolytopes needs at least one polytope, got none.")
        if any(not isinstance(polytope, Sequence) or len(polytope) != 2 for polytope in given):
            raise ConstraintError(
                "A polytope is a pair (A, b) of rows and bounds: for one given by its corners, pass hull_rows(corners)."
            )
        pairs = [(constant("A", A), constant("b", b)) for A, b in given]
        for A, b in pairs:
            if A.ndim != 2 or A.shape[1] != len(self.position) or b.shape != A.shape[:1]:
                raise ConstraintError(
                    f"A polytope is a pair of shapes (m, {len(self.position)}) and (m,), "
                    f"got {tuple(A.shape)} and {tuple(b.shape)}."
                )
        sides = max(len(b) for _, b in pairs)
        self.A = torch.stack([torch.cat([A, A.new_zeros(sides - len(A), A.shape[1])]) for A, _ in pairs])
        self.b = torch.stack([torch.cat([b, b.new_full((sides - len(b),), math.inf)]) for _, b in pairs])
        self.names = tuple(f"obstacle {j}" for j in range(len(pairs)))
        self._unions = Unions(self.sides)

    def __call__(self, x: Tensor) -> Tensor:
        """The smooth unions, ``(..., k)``."""
        return self._at(x).blend(x)[0]

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The smooth unions, and ``Σ_i softmax(κ h_i) a_i`` in the columns of the position."""
        return self._at(x).evaluate(x)

    def evaluate_along(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `evaluate`, and the sides mixed with the change of their weights."""
        here = self._at(x)
        value, weight = here.blend(x)
        return value, here.mix(weight), here.mix(here.along(weight, here.rates(v.unsqueeze(-2))))

    def third(self, x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """The sides, mixed with the second change of their weights."""
        here = self._at(x)
        _, weight = here.blend(x)
        first, second = here.rates(v.unsqueeze(-2)), here.rates(w.unsqueeze(-2))
        return here.mix(weights_along_both(weight, first, second, torch.zeros_like(first), self.sharpness, -2))

    def sides(self, n_x: int) -> Sides:
        """Those of the polytopes."""
        check_entries(n_x, self.position)
        return Sides(spread(self.A, self.position, n_x), self.b, self.sharpness)

    def _at(self, x: Tensor) -> Constants:
        here = self._unions.at(x)
        assert here is not None
        return here


def spread(columns: Tensor, position: tuple[int, ...], n_x: int) -> Tensor:
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


def check_position(given: Sequence[int]) -> tuple[int, ...]:
    """Check the indices of the position, which must differ."""
    position = tuple(given)
    if not position or min(position) < 0 or len(set(position)) < len(position):
        raise ConstraintError(f"position must name different entries of the state, counted from 0, got {position}.")
    return position


def check_entries(n_x: int, position: tuple[int, ...]) -> None:
    """Refuse states that have no such position."""
    if n_x <= max(position):
        raise ConstraintError(f"x must have the entries {position}, its position, got {n_x} entries.")


def _located(x: Tensor, position: tuple[int, ...]) -> Tensor:
    """The position in states ``(..., n_x)``, ``(..., d)``."""
    check_entries(x.shape[-1], position)
    first = position[0]
    if position == tuple(range(first, first + len(position))):  # a view, not a copy
        return x[..., first : first + len(position)]
    return x[..., list(position)]


def constant(name: str, value: ArrayLike, infinite: bool = False) -> Tensor:
    """Data of a barrier: kept in float64, and used in the number type and on the device of the state."""
    given = torch.as_tensor(value, dtype=torch.float64).detach()
    if given.isnan().any() or not (infinite or given.isfinite().all()):
        raise ConstraintError(f"{name} must be {'' if infinite else 'finite '}numbers, got {given.tolist()}.")
    return given


def check_sharpness(sharpness: float) -> float:
    """Refuse a κ that is not positive and finite."""
    if not 0 < sharpness < math.inf:
        raise ConstraintError(f"sharpness must be positive and finite, got {sharpness!r}.")
    return float(sharpness)
