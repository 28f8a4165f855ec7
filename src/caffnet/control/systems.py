"""Control-affine systems ``dx/dt = f(x) + g(x) u``, batched over any leading axes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from caffnet.errors import ConstraintError


class ControlAffine:
    r"""The system $\dot x = f(x) + g(x) u$ with $x \in \mathbb{R}^{n_x}$ and $u \in \mathbb{R}^{n_u}$.

    Args:
        n_x: number of states.
        n_u: number of inputs.
        drift: ``f: (..., n_x) -> (..., n_x)``; None if nothing moves without input.
        actuation: ``g: (..., n_x) -> (..., n_x, n_u)``, or ``(n_x, n_u)`` if it is the same everywhere.

    What both return is used in the number type and on the device of the state.

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
    ):
        self.n_x, self.n_u = n_x, n_u
        self.drift, self.actuation = drift, actuation

    def velocity(self, x: Tensor, u: Tensor) -> Tensor:
        """``dx/dt`` at x ``(..., n_x)`` under u ``(..., n_u)``."""
        self._check(x, u)
        moved = (self._actuated(x) @ u.to(x).unsqueeze(-1)).squeeze(-1)
        return moved if self.drift is None else moved + self._drifted(self.drift, x)

    def along_drift(self, gradient: Tensor, x: Tensor) -> Tensor | None:
        r"""$L_f h = \nabla h \cdot f$, ``(..., k)``, from gradients ``(..., k, n_x)``; None without drift."""
        return None if self.drift is None else (gradient @ self._drifted(self.drift, x).unsqueeze(-1)).squeeze(-1)

    def along_input(self, gradient: Tensor, x: Tensor) -> Tensor:
        r"""$L_g h = \nabla h \, g$, ``(..., k, n_u)``, from gradients ``(..., k, n_x)``."""
        return gradient @ self._actuated(x)

    def _drifted(self, drift: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        moved = drift(x)
        if moved.shape != x.shape:  # any other would broadcast, over states or over samples
            raise ConstraintError(f"drift must give the shape of x, {tuple(x.shape)}, got {tuple(moved.shape)}.")
        return moved.to(x)

    def _actuated(self, x: Tensor) -> Tensor:
        matrix, whole = self.actuation(x), (*x.shape[:-1], self.n_x, self.n_u)
        if matrix.shape not in (whole, whole[-2:]):
            raise ConstraintError(f"actuation must give the shape {whole} or {whole[-2:]}, got {tuple(matrix.shape)}.")
        return matrix.to(x)

    def _check(self, x: Tensor, u: Tensor) -> None:
        check_states("x", x, self.n_x)
        check_vectors("u", u, self.n_u)


def check_states(name: str, value: Tensor, size: int) -> None:
    """Refuse what is no tensor ``(..., size)`` of a floating type."""
    check_vectors(name, value, size)
    if not value.is_floating_point():
        raise ConstraintError(f"{name} must be of a floating type, got {value.dtype}: write {name}.double().")


def check_vectors(name: str, value: Tensor, size: int) -> None:
    """Refuse what is no tensor ``(..., size)``."""
    if not isinstance(value, Tensor):
        raise ConstraintError(f"{name} must be a tensor, got {type(value).__name__}: write torch.as_tensor({name}).")
    if value.ndim == 0 or value.shape[-1] != size:
        raise ConstraintError(f"{name} must have shape (..., {size}), got {tuple(value.shape)}.")


class Unicycle(ControlAffine):
    """State ``(p_x, p_y, θ)``, input ``(v, ω)``: ``dp/dt = v (cos θ, sin θ)``, ``dθ/dt = ω``.

    The products with g are written out: g is mostly zeros.

    >>> Unicycle().velocity(torch.tensor([3.0, 4.0, 0.0]), torch.tensor([0.5, 0.1]))
    tensor([0.5000, 0.0000, 0.1000])
    """

    def __init__(self):
        super().__init__(3, 2, None, self._actuation)

    def _actuation(self, x: Tensor) -> Tensor:
        cos, sin = torch.cos(x[..., 2]), torch.sin(x[..., 2])
        zero, one = torch.zeros_like(cos), torch.ones_like(cos)
        return torch.stack([cos, zero, sin, zero, zero, one], -1).unflatten(-1, (3, 2))

    def velocity(self, x: Tensor, u: Tensor) -> Tensor:
        """``dx/dt``, ``(..., 3)``."""
        self._check(x, u)
        u = u.to(x)
        heading, speed, turn = x[..., 2], u[..., 0], u[..., 1]
        return torch.stack([speed * torch.cos(heading), speed * torch.sin(heading), turn], -1)

    def along_input(self, gradient: Tensor, x: Tensor) -> Tensor:
        """``(∂h/∂p_x cos θ + ∂h/∂p_y sin θ, ∂h/∂θ)``, ``(..., k, 2)``."""
        heading = x[..., 2:3]
        forward = gradient[..., 0] * torch.cos(heading) + gradient[..., 1] * torch.sin(heading)
        return torch.stack([forward, gradient[..., 2]], -1)


class DoubleIntegrator(ControlAffine):
    """A mass in ``axes`` dimensions: state ``(p, v)``, input the acceleration.

    >>> DoubleIntegrator(1).velocity(torch.tensor([5.0, 2.0]), torch.tensor([0.5]))
    tensor([2.0000, 0.5000])
    """

    def __init__(self, axes: int = 2):
        self.axes = axes
        super().__init__(2 * axes, axes, self._drift, self._actuation)

    def _drift(self, x: Tensor) -> Tensor:
        return torch.cat([x[..., self.axes :], torch.zeros_like(x[..., self.axes :])], -1)

    def _actuation(self, x: Tensor) -> Tensor:
        one = torch.eye(self.axes, dtype=x.dtype, device=x.device)
        return torch.cat([torch.zeros_like(one), one]).expand(*x.shape[:-1], 2 * self.axes, self.axes)


def wrap_angle(angle: Tensor) -> Tensor:
    """The same angle in ``[-π, π)``, to rounding at its ends; between them unchanged. The derivative is 1.

    >>> wrap_angle(torch.tensor([3.5, -4.0]))
    tensor([-2.7832,  2.2832])
    """
    return angle - 2 * math.pi * torch.floor((angle + math.pi) / (2 * math.pi))
