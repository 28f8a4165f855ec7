"""Control Lyapunov functions: rows that drive a state to its goal, and give way where safety requires it.

V >= 0 is zero at the goal. It falls along the system if ``L_f V + L_g V u <= -α(V)``, which is the row of the barrier
``h = -V`` for an odd α. Barriers come first, so this row is soft, at the price of a weight (CLF-CBF).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from caffnet.constraints import AffineSet, ArrayLike
from caffnet.control.barriers.base import Barrier, FunctionBarrier, labels
from caffnet.control.barriers.shapes import constant
from caffnet.control.class_k import ClassK
from caffnet.control.safety import BarrierConstraint
from caffnet.control.systems.base import ControlAffine
from caffnet.errors import ConstraintError


class LyapunovConstraint:
    r"""The set of inputs that make V fall, $x \mapsto \{u : L_f V(x) + L_g V(x) u \le -\alpha(V(x)) + slack\}$.

    Join it with barriers: ``lambda x: safe(x) & goal(x)``. The nearest input then minimises
    ``1/2 |u - f|² + 1/2 weight slack²`` within the barriers and the limits.

    Args:
        system: the dynamics.
        function: V: a `Quadratic`, another `Barrier` with its derivatives, or any function as in `FunctionBarrier`.
        class_k: the α, an odd function; `linear(1.0)` if None, for an exponential decay.
        weight: the price of falling more slowly, positive: one number, or one per function; differentiable.
        samples: as in `BarrierConstraint`.

    >>> from caffnet import project
    >>> from caffnet.control import Integrator
    >>> goal = LyapunovConstraint(Integrator(1, 1), Quadratic([[1.0]]), weight=100.0)
    >>> goal(torch.tensor([2.0]))       # 4 u <= -4 + slack
    AffineSet(1 row in R^1)
    >>> project(torch.zeros(1), goal(torch.tensor([2.0]))).value    # all but 1 / 1600 of the way
    tensor([-0.9994])
    """

    def __init__(
        self,
        system: ControlAffine,
        function: Barrier | Callable[..., Tensor],
        class_k: ClassK | None = None,
        weight: ArrayLike = 100.0,
        *,
        samples: Tensor | None = None,
    ):
        self.function = function if isinstance(function, Barrier) else FunctionBarrier(function, names=["V"])
        self._falling = BarrierConstraint(system, _Negative(self.function), class_k, samples=samples)
        self.weight = weight if isinstance(weight, Tensor) else constant("weight", weight)

    def __repr__(self) -> str:
        return f"LyapunovConstraint({self._falling.system}, {self.function})"

    def __call__(self, x: Tensor | Sequence[Tensor], t: Tensor | float | None = None) -> AffineSet:
        """The set at the states x ``(..., n_x)`` and, if V moves, the time t ``(...)``."""
        rows = self._falling(x, t)
        return rows.soft(self.weight.to(rows.A))


class Quadratic(Barrier):
    """``V(x) = (x - centre)ᵀ P (x - centre)`` with P positive definite, and formulas for its derivatives.

    Args:
        matrix: P, ``(n_x, n_x)``; only its symmetric part counts.
        centre: the goal, ``(n_x,)``; the origin if None.
        names: a list of one label.

    >>> Quadratic([[2.0, 0.0], [0.0, 1.0]], [1.0, 0.0])(torch.zeros(2))
    tensor([2.])
    """

    def __init__(self, matrix: ArrayLike, centre: ArrayLike | None = None, names: Sequence[str] | None = None):
        given = constant("matrix", matrix)
        if given.ndim != 2 or given.shape[0] != given.shape[1]:
            raise ConstraintError(f"matrix must have shape (n_x, n_x), got {tuple(given.shape)}.")
        self.matrix = (given + given.mT) / 2
        least = float(torch.linalg.eigvalsh(self.matrix)[0])
        if not least > 0:
            raise ConstraintError(f"matrix must be positive definite; its smallest eigenvalue is {least:.4g}.")
        self.centre = given.new_zeros(len(given)) if centre is None else constant("centre", centre)
        if self.centre.shape != given.shape[:1]:
            raise ConstraintError(f"centre must have shape ({len(given)},), got {tuple(self.centre.shape)}.")
        self.names = labels(names, 1) or ("V",)

    def __call__(self, x: Tensor) -> Tensor:
        """``V(x)``, ``(..., 1)``."""
        away = x - self.centre.to(x)
        return ((away @ self.matrix.to(x)) * away).sum(-1, keepdim=True)

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """V and ``2 P (x - centre)``."""
        away = x - self.centre.to(x)
        half = away @ self.matrix.to(x)
        return (half * away).sum(-1, keepdim=True), 2 * half.unsqueeze(-2)

    def evaluate_along(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Also ``2 P v``."""
        value, gradient = self.evaluate(x)
        return value, gradient, 2 * (v @ self.matrix.to(x)).unsqueeze(-2)

    def third(self, x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(v).unsqueeze(-2)


class _Negative(Barrier):
    """``h = -V``."""

    def __init__(self, function: Barrier):
        self.function, self.names, self.moving = function, function.names, function.moving

    def __call__(self, x: Tensor) -> Tensor:
        return -self.function(x)

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = self.function.evaluate(x)
        return -value, -gradient
