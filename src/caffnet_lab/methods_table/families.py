"""Random constraints of every kind that the table compares methods on.

A problem is a set, or a function ``x -> AffineSet``, of n = 4 outputs and 3 inputs in [-1, 1]. It always has a point:
a hidden map ``y*(x)`` is drawn first, and every bound leaves it room (or goes through it, for an equality). Rows have
length one, so a violation is a distance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from caffnet import AffineSet
from caffnet.methods.base import unit_rows

INPUTS, OUTPUTS = 3, 4

Constraint: TypeAlias = AffineSet | Callable[[Tensor], AffineSet]


class Draw:
    """Random numbers of one problem, in float64 from its own generator, handed out in the asked number type."""

    def __init__(self, seed: int, dtype: torch.dtype):
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Uniform numbers."""
        return (low + (high - low) * torch.rand(*shape, generator=self.generator, dtype=torch.float64)).to(self.dtype)

    def rows(self, m: int) -> Tensor:
        """M rows of length one."""
        return unit_rows(self.normal(m, OUTPUTS))

    def point(self) -> Tensor:
        """The hidden point y*."""
        return self.normal(OUTPUTS)

    def point_of_x(self) -> Callable[[Tensor], Tensor]:
        """The hidden map y*(x)."""
        W, c = self.normal(OUTPUTS, INPUTS), self.normal(OUTPUTS)
        return lambda x: torch.tanh(x @ W.T) + c

    def rows_of_x(self, m: int) -> Callable[[Tensor], Tensor]:
        """M rows of length one that turn with the input."""
        start, slope = self.rows(m), 0.3 * self.normal(INPUTS, m, OUTPUTS)
        return lambda x: unit_rows(start + torch.einsum("bi,imn->bmn", x, slope))


def _through(rows: Tensor, point: Tensor) -> Tensor:
    """The value of the rows at the hidden point."""
    return (rows @ point.unsqueeze(-1)).squeeze(-1)


def fixed(draw: Draw) -> Constraint:
    """Three inequalities, the same for all inputs."""
    A = draw.rows(3)
    return AffineSet.inequality(A, _through(A, draw.point()) + draw.uniform(0.1, 1.0, 3))


def bounds_of_x(draw: Draw) -> Constraint:
    """Three fixed rows with bounds b(x)."""
    A, point, room = draw.rows(3), draw.point_of_x(), draw.uniform(0.1, 1.0, 3)
    return lambda x: AffineSet.inequality(A, point(x) @ A.T + room)


def rows_of_x(draw: Draw) -> Constraint:
    """Three rows A(x) with bounds b(x)."""
    A, point, room = draw.rows_of_x(3), draw.point_of_x(), draw.uniform(0.1, 1.0, 3)
    return lambda x: AffineSet.inequality(A(x), _through(A(x), point(x)) + room)


def equality(draw: Draw) -> Constraint:
    """Two equalities, the same for all inputs."""
    C = draw.rows(2)
    return AffineSet.equality(C, _through(C, draw.point()))


def equality_bounds_of_x(draw: Draw) -> Constraint:
    """Two fixed rows with C y = d(x)."""
    C, point = draw.rows(2), draw.point_of_x()
    return lambda x: AffineSet.equality(C, point(x) @ C.T)


def equality_rows_of_x(draw: Draw) -> Constraint:
    """Two equalities C(x) y = d(x)."""
    C, point = draw.rows_of_x(2), draw.point_of_x()
    return lambda x: AffineSet.equality(C(x), _through(C(x), point(x)))


def both(draw: Draw) -> Constraint:
    """One equality and two inequalities, the same for all inputs."""
    A, C, point = draw.rows(2), draw.rows(1), draw.point()
    inequality = AffineSet.inequality(A, _through(A, point) + draw.uniform(0.1, 1.0, 2))
    return inequality & AffineSet.equality(C, _through(C, point))


def more_rows(draw: Draw) -> Constraint:
    """Ten inequalities for four outputs."""
    A = draw.rows(10)
    return AffineSet.inequality(A, _through(A, draw.point()) + draw.uniform(0.1, 1.0, 10))


def dependent_rows(draw: Draw) -> Constraint:
    """Four inequalities of rank two: no more rows than outputs, but linearly dependent."""
    A = unit_rows(draw.normal(4, 2) @ draw.rows(2))
    return AffineSet.inequality(A, _through(A, draw.point()) + draw.uniform(0.1, 1.0, 4))


def empty_interior(draw: Draw) -> Constraint:
    """Two opposite inequalities that meet, and two more: a set without interior."""
    A, point = draw.rows(3), draw.point()
    b = _through(A, point) + torch.cat([draw.uniform(0.0, 0.0, 1), draw.uniform(0.1, 1.0, 2)])
    return AffineSet.inequality(torch.cat([A, -A[:1]]), torch.cat([b, -b[:1]]))


def cone(draw: Draw) -> Constraint:
    """Six homogeneous inequalities A y <= 0 that leave an interior."""
    A, inside = draw.rows(6), draw.point()
    return AffineSet.inequality(torch.where((A @ inside > 0).unsqueeze(-1), -A, A), 0.0)


def everything(draw: Draw) -> Constraint:
    """Eight rows A(x) for four outputs, two of them dependent, and an equality C(x), all bounds of x."""
    A, C, point = draw.rows_of_x(6), draw.rows_of_x(1), draw.point_of_x()
    room = draw.uniform(0.1, 1.0, 8)

    def limits(x: Tensor) -> AffineSet:
        rows = A(x)
        rows = torch.cat([rows, unit_rows(rows[:, :1] + rows[:, 1:2]), rows[:, :1]], -2)
        inequality = AffineSet.inequality(rows, _through(rows, point(x)) + room)
        return inequality & AffineSet.equality(C(x), _through(C(x), point(x)))

    return limits


@dataclasses.dataclass(frozen=True)
class Family:
    """A kind of constraint: its short title, how one is drawn, and what a method must support for it."""

    title: str
    draw: Callable[[Draw], Constraint]
    needs: tuple[str, ...]


_OF_X = ("input_dependent_b", "input_dependent_A")

FAMILIES: dict[str, Family] = {
    "fixed": Family("fixed A, b", fixed, ("inequality", "inhomogeneous")),
    "b(x)": Family("b(x)", bounds_of_x, ("inequality", "inhomogeneous", "input_dependent_b")),
    "A(x)": Family("A(x), b(x)", rows_of_x, ("inequality", "inhomogeneous", *_OF_X)),
    "equality": Family("C y = d", equality, ("equality", "inhomogeneous")),
    "equality b(x)": Family("C y = d(x)", equality_bounds_of_x, ("equality", "inhomogeneous", "input_dependent_b")),
    "equality A(x)": Family("C(x) y = d(x)", equality_rows_of_x, ("equality", "inhomogeneous", *_OF_X)),
    "both": Family("equality and inequality", both, ("equality", "inequality", "inhomogeneous")),
    "m > n": Family("m > n", more_rows, ("inequality", "inhomogeneous", "more_rows")),
    "dependent": Family("dependent rows", dependent_rows, ("inequality", "inhomogeneous", "dependent_rows")),
    "empty interior": Family(
        "empty interior", empty_interior, ("inequality", "inhomogeneous", "dependent_rows", "empty_interior")
    ),
    "cone": Family("cone A y <= 0", cone, ("inequality", "more_rows")),
    "all at once": Family(
        "all at once",
        everything,
        ("equality", "inequality", "inhomogeneous", "more_rows", "dependent_rows", *_OF_X),
    ),
}
