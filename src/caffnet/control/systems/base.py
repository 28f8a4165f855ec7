"""The general control-affine system ``dx/dt = f(x) + g(x) u``."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable

import torch
from torch import Tensor

from caffnet._solve.tracing import is_exporting
from caffnet.errors import ConstraintError


class ControlAffine:
    r"""The system $\dot x = f(x) + g(x) u$ with $x \in \mathbb{R}^{n_x}$ and $u \in \mathbb{R}^{n_u}$.

    Args:
        n_x: number of states.
        n_u: number of inputs.
        drift: ``f: (..., n_x) -> (..., n_x)``; None if nothing moves without input.
        actuation: ``g: (..., n_x) -> (..., n_x, n_u)``, or ``(n_x, n_u)`` if it is the same everywhere.
        drift_jacobian: ``∂f/∂x: (..., n_x) -> (..., n_x, n_x)``, or ``(n_x, n_x)``; by automatic differentiation if
            None. Barriers of higher order use it at every step.

    Their results are converted to the number type and device of the state.

    >>> pendulum = ControlAffine(
    ...     2, 1,
    ...     drift=lambda x: torch.stack([x[..., 1], torch.sin(x[..., 0])], -1),
    ...     actuation=lambda x: torch.tensor([[0.0], [1.0]]).expand(*x.shape[:-1], 2, 1),
    ... )
    >>> pendulum.velocity(torch.tensor([0.0, 2.0]), torch.tensor([0.5]))
    tensor([2.0000, 0.5000])
    """

    def __init__(
        self,
        n_x: int,
        n_u: int,
        drift: Callable[[Tensor], Tensor] | None,
        actuation: Callable[[Tensor], Tensor],
        drift_jacobian: Callable[[Tensor], Tensor] | None = None,
    ):
        for name, given, shape, constant in (
            ("drift", drift, "n_x", "drift.expand_as(x)"),
            ("actuation", actuation, "n_x, n_u", "actuation"),
            ("drift_jacobian", drift_jacobian, "n_x, n_x", "drift_jacobian"),
        ):
            if not callable(given) and (given is not None or name == "actuation"):
                raise ConstraintError(
                    f"{name} must be a function x -> (..., {shape}), got {type(given).__name__}: "
                    f"write lambda x: {constant}."
                )
        self.n_x, self.n_u = n_x, n_u
        self.drift, self.actuation, self.drift_jacobian = drift, actuation, drift_jacobian

    def __repr__(self) -> str:
        return f"{type(self).__name__}({counted(self.n_x, 'state')}, {counted(self.n_u, 'input')})"

    def velocity(self, x: Tensor, u: Tensor) -> Tensor:
        """``dx/dt`` at x ``(..., n_x)`` under u ``(..., n_u)``."""
        self._check(x, u)
        moved = times(self._actuated(x), u.to(x))
        return moved if self.drift is None else moved + self.drift_at(x)

    def held(self, x: Tensor, u: Tensor, dt: float) -> Tensor | None:
        """Return the step of `rk4` in closed form, ``(..., n_x)``, or None if the system has no closed form."""
        return None

    def drift_at(self, x: Tensor) -> Tensor:
        """``f(x)``, ``(..., n_x)``; zero without drift."""
        if self.drift is None:
            return torch.zeros_like(x)
        moved = self.drift(x)
        if moved.shape != x.shape:  # any other shape would broadcast, over states or over samples
            raise wrong_drift(moved, x)
        return moved.to(x)

    def along_drift(self, gradient: Tensor, x: Tensor) -> Tensor | None:
        r"""$L_f h = \nabla h \cdot f$, ``(..., k)``, from gradients ``(..., k, n_x)``; None without drift."""
        return None if self.drift is None else times(gradient, self.drift_at(x))

    def along_input(self, gradient: Tensor, x: Tensor) -> Tensor:
        r"""$L_g h = \nabla h \, g$, ``(..., k, n_u)``, from gradients ``(..., k, n_x)``."""
        return gradient @ self._actuated(x)

    def pull_back(self, gradient: Tensor, x: Tensor) -> Tensor:
        r"""$\nabla h \, \partial f / \partial x$, ``(..., k, n_x)``, from gradients ``(..., k, n_x)``."""
        if self.drift is None:
            return torch.zeros_like(gradient)
        if self.drift_jacobian is None:
            return gradient @ self._automatic_jacobian(x)
        matrix, whole = self.drift_jacobian(x), (*x.shape, self.n_x)
        if matrix.shape not in (whole, whole[-2:]):
            raise ConstraintError(f"drift_jacobian must give the shape {whole} or {whole[-2:]}, got {matrix.shape}.")
        return gradient @ matrix.to(x)

    def push(self, x: Tensor, w: Tensor) -> Tensor:
        r"""$\partial f / \partial x \, w$, ``(..., n_x)``: how the drift changes along w."""
        if self.drift_jacobian is not None:
            return times(self.drift_jacobian(x).to(x), w)
        return torch.func.jvp(self.drift_at, (x,), (w,))[1]

    def bend(self, gradient: Tensor, x: Tensor, w: Tensor) -> Tensor:
        """Return the change of `pull_back` along w, ``(..., k, n_x)``, for a fixed gradient."""
        return torch.func.jvp(lambda x: self.pull_back(gradient, x), (x,), (w,))[1]

    def _automatic_jacobian(self, x: Tensor) -> Tensor:
        if is_exporting():
            raise ConstraintError(
                "The derivative of the drift comes from automatic differentiation, which torch.export does not hold: "
                "pass drift_jacobian to the system."
            )
        if x.numel() == 0:  # vmap takes no empty batch
            return x.new_zeros(*x.shape, self.n_x)
        flat = torch.func.vmap(torch.func.jacrev(self.drift_at))(x.reshape(-1, self.n_x))
        return flat.reshape(*x.shape, self.n_x)

    def _actuated(self, x: Tensor) -> Tensor:
        matrix, whole = self.actuation(x), (*x.shape[:-1], self.n_x, self.n_u)
        if matrix.shape not in (whole, whole[-2:]):
            raise ConstraintError(f"actuation must give the shape {whole} or {whole[-2:]}, got {tuple(matrix.shape)}.")
        return matrix.to(x)

    def _check(self, x: Tensor, u: Tensor) -> None:
        check_states("x", x, self.n_x)
        check_vectors("u", u, self.n_u)


def times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Products ``(..., k)`` of matrices ``(..., k, n)`` and vectors ``(..., n)``; of one vector in one operation."""
    return matrix @ vector if vector.ndim == 1 else (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def check_states(name: str, value: Tensor, size: int) -> None:
    """Check for a tensor ``(..., size)`` of a floating type."""
    check_vectors(name, value, size)
    if not value.is_floating_point():
        raise ConstraintError(f"{name} must be of a floating type, got {value.dtype}: write {name}.double().")


def check_vectors(name: str, value: Tensor, size: int) -> None:
    """Check for a tensor ``(..., size)``."""
    check_tensor(name, value)
    if value.ndim == 0 or value.shape[-1] != size:
        raise ConstraintError(f"{name} must have shape (..., {size}), got {tuple(value.shape)}.")


def check_tensor(name: str, value: Tensor) -> None:
    """Check for a tensor."""
    if not isinstance(value, Tensor):
        raise ConstraintError(f"{name} must be a tensor, got {type(value).__name__}: write torch.as_tensor({name}).")


def wrong_drift(moved: Tensor, x: Tensor) -> ConstraintError:
    """Return the error for a drift of another shape than the states."""
    return ConstraintError(f"drift must give the shape of x, {tuple(x.shape)}, got {tuple(moved.shape)}.")


def counted(number: int, what: str) -> str:
    """Return a number with its noun: "1 state", "2 states"."""
    return f"{number} {what}{'s' * (number != 1)}"


def check_system(given: ControlAffine, order: str) -> None:
    """Check for a `ControlAffine`."""
    if not isinstance(given, ControlAffine):
        raise ConstraintError(f"system must be a ControlAffine, got {type(given).__name__}: the order is {order}.")


def check_positive(**values: float) -> None:
    """Refuse a mass, a length or the like that is not positive and finite."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ConstraintError(f"{name} must be positive and finite, got {value!r}.")


def check_count(name: str, value: int) -> None:
    """Refuse a number of samples or steps that is not whole and positive."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
        raise ConstraintError(f"{name} must be a whole number >= 1, got {value!r}.")


class InTime(ControlAffine):
    """A system whose state carries the time as its last entry: ``(dx/dt, dt/dt) = (f + g u, 1)``."""

    def __init__(self, system: ControlAffine):
        self.system = system
        super().__init__(system.n_x + 1, system.n_u, self._drift, self._actuation)

    def __repr__(self) -> str:
        return repr(self.system)

    def _drift(self, x: Tensor) -> Tensor:
        return torch.cat([self.system.drift_at(x[..., :-1]), torch.ones_like(x[..., -1:])], -1)

    def _actuation(self, x: Tensor) -> Tensor:
        return torch.nn.functional.pad(self.system.actuation(x[..., :-1]).to(x), (0, 0, 0, 1))

    def along_drift(self, gradient: Tensor, x: Tensor) -> Tensor:
        """``L_f h + ∂h/∂t``."""
        moved, rate = self.system.along_drift(gradient[..., :-1], x[..., :-1]), gradient[..., -1]
        return rate if moved is None else moved + rate

    def along_input(self, gradient: Tensor, x: Tensor) -> Tensor:
        """As of the system: no input moves the time."""
        return self.system.along_input(gradient[..., :-1], x[..., :-1])

    def pull_back(self, gradient: Tensor, x: Tensor) -> Tensor:
        """As of the system, which does not depend on time."""
        return torch.nn.functional.pad(self.system.pull_back(gradient[..., :-1], x[..., :-1]), (0, 1))

    def push(self, x: Tensor, w: Tensor) -> Tensor:
        """As of the system."""
        return torch.nn.functional.pad(self.system.push(x[..., :-1], w[..., :-1]), (0, 1))

    def bend(self, gradient: Tensor, x: Tensor, w: Tensor) -> Tensor:
        """As of the system."""
        return torch.nn.functional.pad(self.system.bend(gradient[..., :-1], x[..., :-1], w[..., :-1]), (0, 1))
