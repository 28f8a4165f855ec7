"""Mechanical systems: `PlanarQuadrotor`, `CartPole`, `TwoLinkArm`."""

from __future__ import annotations

import torch
from torch import Tensor

from caffnet.control.systems.base import ControlAffine, check_positive


class PlanarQuadrotor(ControlAffine):
    """A quadrotor in a vertical plane: state ``(p_x, p_z, θ, v_x, v_z, ω)``, input ``(thrust, torque)``.

    ``dv/dt = (-sin θ, cos θ) thrust / mass - (0, gravity)``, ``dω/dt = torque / inertia``.

    The thrust acts on the second derivative of a position, the torque only on the fourth, through the tilt θ. So a row
    for a position (by one `HighOrder`) depends on the thrust alone, and not even on it where the thrust points along
    the wall. Two remedies: limit the tilt by another row, so that the thrust keeps its effect (for floors and
    ceilings); or make the thrust a state and its second derivative the input, so that all inputs act at the fourth
    order.

    >>> PlanarQuadrotor().velocity(torch.zeros(6), torch.tensor([10.81, 0.01]))[3:]
    tensor([0., 1., 1.])
    """

    def __init__(self, mass: float = 1.0, inertia: float = 0.01, gravity: float = 9.81):
        check_positive(mass=mass, inertia=inertia)
        self.mass, self.inertia, self.gravity = float(mass), float(inertia), float(gravity)
        super().__init__(6, 2, self._drift, self._actuation)

    def _drift(self, x: Tensor) -> Tensor:
        pull = torch.tensor([0.0, -self.gravity, 0.0], dtype=x.dtype, device=x.device)
        return torch.cat([x[..., 3:], pull.expand(*x.shape[:-1], 3)], -1)

    def _actuation(self, x: Tensor) -> Tensor:
        tilt = x[..., 2]
        zero, turn = torch.zeros_like(tilt), torch.full_like(tilt, 1 / self.inertia)
        rows = [zero, zero, zero, zero, zero, zero]
        rows += [-torch.sin(tilt) / self.mass, zero, torch.cos(tilt) / self.mass, zero, zero, turn]
        return torch.stack(rows, -1).unflatten(-1, (6, 2))

    def along_input(self, gradient: Tensor, x: Tensor) -> Tensor:
        """``((∂h/∂v_z cos θ - ∂h/∂v_x sin θ) / mass, ∂h/∂ω / inertia)``, ``(..., k, 2)``."""
        tilt = x[..., 2:3]
        lift = (gradient[..., 4] * torch.cos(tilt) - gradient[..., 3] * torch.sin(tilt)) / self.mass
        return torch.stack([lift, gradient[..., 5] / self.inertia], -1)

    def pull_back(self, gradient: Tensor, x: Tensor) -> Tensor:
        """The gradient over the positions, moved to the velocities."""
        return torch.nn.functional.pad(gradient[..., :3], (3, 0))

    def push(self, x: Tensor, w: Tensor) -> Tensor:
        """The velocities of w, as rates of the positions."""
        return torch.nn.functional.pad(w[..., 3:], (0, 3))

    def bend(self, gradient: Tensor, x: Tensor, w: Tensor) -> Tensor:
        """Zero: the drift is linear but for a constant."""
        return torch.zeros_like(gradient)


class CartPole(ControlAffine):
    r"""A pole on a cart: state ``(p, θ, dp/dt, dθ/dt)``, input the force on the cart; θ = 0 is upright.

    With a point mass m at the end of the pole of length l, on a cart of mass M,

        p̈ (M + m sin²θ) = F + m sin θ (l θ̇² - g cos θ),        l θ̈ = g sin θ - p̈ cos θ.

    >>> CartPole().velocity(torch.zeros(4), torch.tensor([1.0]))
    tensor([ 0.,  0.,  1., -2.])
    """

    def __init__(self, cart: float = 1.0, pole: float = 0.1, length: float = 0.5, gravity: float = 9.81):
        check_positive(cart=cart, pole=pole, length=length)
        self.cart, self.pole, self.length, self.gravity = float(cart), float(pole), float(length), float(gravity)
        super().__init__(4, 1, self._drift, self._actuation, self._jacobian)

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``sin θ``, ``cos θ``, the moved mass ``M + m sin²θ``, and the cart's acceleration without force."""
        sin, cos = torch.sin(x[..., 1]), torch.cos(x[..., 1])
        moved = self.cart + self.pole * sin.square()
        return sin, cos, moved, self.pole * sin * (self.length * x[..., 3].square() - self.gravity * cos) / moved

    def _drift(self, x: Tensor) -> Tensor:
        sin, cos, _, push = self._parts(x)
        return torch.stack([x[..., 2], x[..., 3], push, (self.gravity * sin - cos * push) / self.length], -1)

    def _actuation(self, x: Tensor) -> Tensor:
        _, cos, moved, _ = self._parts(x)
        zero = torch.zeros_like(moved)
        return torch.stack([zero, zero, 1 / moved, -cos / (self.length * moved)], -1).unsqueeze(-1)

    def _jacobian(self, x: Tensor) -> Tensor:
        sin, cos, moved, push = self._parts(x)
        spin, zero, one = x[..., 3], torch.zeros_like(sin), torch.ones_like(sin)
        inner = self.length * spin.square() - self.gravity * cos
        by_angle = self.pole * (cos * inner + self.gravity * sin.square()) / moved
        by_angle = by_angle - push * 2 * self.pole * sin * cos / moved
        by_spin = 2 * self.pole * self.length * sin * spin / moved
        swing = (self.gravity * cos + sin * push - cos * by_angle) / self.length
        rows = [zero, zero, one, zero, zero, zero, zero, one]
        rows += [zero, by_angle, zero, by_spin, zero, swing, zero, -cos * by_spin / self.length]
        return torch.stack(rows, -1).unflatten(-1, (4, 4))


class TwoLinkArm(ControlAffine):
    r"""Two links in a vertical plane with a mass at each end: state ``(q, dq/dt)``, input the torques.

    $M(q)\ddot q + c(q, \dot q) + g(q) = u$, with angles from the horizontal, the second one relative to the first.

    The drift's second half is ``a = M⁻¹ r`` with ``r = -c - g``, so its derivative by any variable z is
    ``M⁻¹ (∂r/∂z - ∂M/∂z a)``; only q₂ is in M.

    >>> arm = TwoLinkArm(gravity=0.0)
    >>> arm.velocity(torch.zeros(4), torch.tensor([0.0, 1.0]))
    tensor([ 0.,  0., -2.,  5.])
    """

    def __init__(
        self,
        lengths: tuple[float, float] = (1.0, 1.0),
        masses: tuple[float, float] = (1.0, 1.0),
        gravity: float = 9.81,
    ):
        check_positive(length_1=lengths[0], length_2=lengths[1], mass_1=masses[0], mass_2=masses[1])
        self.lengths, self.masses, self.gravity = lengths, masses, float(gravity)
        self._couple = masses[1] * lengths[0] * lengths[1]
        super().__init__(4, 2, self._drift, self._actuation, self._jacobian)

    def mass_matrix(self, x: Tensor) -> Tensor:
        """``M(q)``, ``(..., 2, 2)``: a metric that weighs a change of acceleration by its inertia."""
        (l1, l2), (m1, m2) = self.lengths, self.masses
        swing = self._couple * torch.cos(x[..., 1])
        outer = torch.full_like(swing, m2 * l2**2)
        first = (m1 + m2) * l1**2 + outer + 2 * swing
        return torch.stack([first, outer + swing, outer + swing, outer], -1).unflatten(-1, (2, 2))

    def tip(self, x: Tensor) -> Tensor:
        """The position of the end of the second link, ``(..., 2)``."""
        first, both = x[..., 0], x[..., 0] + x[..., 1]
        near, far = (torch.stack([torch.cos(angle), torch.sin(angle)], -1) for angle in (first, both))
        return self.lengths[0] * near + self.lengths[1] * far

    def _inverse_mass(self, x: Tensor) -> Tensor:
        matrix = self.mass_matrix(x)
        a, b, d = matrix[..., 0, 0], matrix[..., 0, 1], matrix[..., 1, 1]
        return torch.stack([d, -b, -b, a], -1).unflatten(-1, (2, 2)) / (a * d - b * b)[..., None, None]

    def _forces(self, x: Tensor) -> Tensor:
        """``r = -c - g``, ``(..., 2)``."""
        (l1, l2), (m1, m2) = self.lengths, self.masses
        q1, q2, w1, w2 = x.unbind(-1)
        bend = self._couple * torch.sin(q2)
        outer = m2 * self.gravity * l2 * torch.cos(q1 + q2)
        inner = (m1 + m2) * self.gravity * l1 * torch.cos(q1)
        return torch.stack([bend * (2 * w1 + w2) * w2 - inner - outer, -bend * w1.square() - outer], -1)

    def _drift(self, x: Tensor) -> Tensor:
        falling = (self._inverse_mass(x) @ self._forces(x).unsqueeze(-1)).squeeze(-1)
        return torch.cat([x[..., 2:], falling], -1)

    def _actuation(self, x: Tensor) -> Tensor:
        return torch.nn.functional.pad(self._inverse_mass(x), (0, 0, 2, 0))

    def _jacobian(self, x: Tensor) -> Tensor:
        (l1, l2), (m1, m2) = self.lengths, self.masses
        q1, q2, w1, w2 = x.unbind(-1)
        inverse = self._inverse_mass(x)
        a1, a2 = (inverse @ self._forces(x).unsqueeze(-1)).squeeze(-1).unbind(-1)
        bend, swing = self._couple * torch.sin(q2), self._couple * torch.cos(q2)
        outer = m2 * self.gravity * l2 * torch.sin(q1 + q2)
        inner = (m1 + m2) * self.gravity * l1 * torch.sin(q1)
        by_first = torch.stack([inner + outer, outer], -1)
        by_second = torch.stack([swing * (2 * w1 + w2) * w2 + outer, outer - swing * w1.square()], -1)
        by_second = by_second + bend.unsqueeze(-1) * torch.stack([2 * a1 + a2, a1], -1)  # - ∂M/∂q₂ a
        by_spin = torch.stack([2 * bend * w2, -2 * bend * w1], -1)
        by_other = torch.stack([2 * bend * (w1 + w2), torch.zeros_like(bend)], -1)
        lower = inverse @ torch.stack([by_first, by_second, by_spin, by_other], -1)
        upper = torch.nn.functional.pad(torch.eye(2, dtype=x.dtype, device=x.device), (2, 0))
        return torch.cat([upper.expand(*x.shape[:-1], 2, 4), lower], -2)
