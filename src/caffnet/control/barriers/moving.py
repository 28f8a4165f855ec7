r"""Shapes that move with time: $\tilde h(x, t) = h(x - E s(t))$, where s(t) is how far the shape has moved.

With ``q = x - E s(t)``, E putting a displacement in the columns of the position,

    ∂h̃/∂x = ∇h(q),    ∂h̃/∂t = -∇h(q) E ṡ,

and along ``(v, τ)`` the gradient changes with ``c = ∇²h(q) (v - τ E ṡ)`` by ``(c, -c E ṡ - τ ∇h(q) E s̈)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from caffnet._solve.tracing import is_exporting
from caffnet.constraints import ArrayLike
from caffnet.control.barriers.base import Barrier, as_barrier
from caffnet.control.barriers.shapes import check_position, constant, spread
from caffnet.errors import ConstraintError

Path = Callable[[Tensor], Tensor]


class Moving(Barrier):
    """A barrier around a moving obstacle; the state of the system does not contain the time.

    Args:
        barrier: the barrier at ``t = 0``, such as `OutsideCircles`.
        path: the displacement: a constant velocity ``(d,)``, or a function of t ``() -> (d,)`` of torch operations
            with ``path(0) = 0``, differentiated twice by torch.
        position: indices of the entries of the state that are the position.

    >>> from caffnet.control import OutsideCircles, with_time
    >>> ball = Moving(OutsideCircles([[2.0, 0.0]], [1.0]), [-1.0, 0.0])   # comes from the right
    >>> ball(with_time(torch.tensor([0.0, 0.0]), torch.tensor(0.5)))      # 1.5² - 1
    tensor([1.2500])
    """

    moving = True

    def __init__(self, barrier: Barrier, path: ArrayLike | Path, position: Sequence[int] = (0, 1)):
        if as_barrier(barrier).moving:
            raise ConstraintError("The barrier moves already: write one path that is the sum of both.")
        self.barrier, self.position, self.names = barrier, check_position(position), barrier.names
        self.path: Path | None = path if callable(path) else None
        self.velocity = None if callable(path) else constant("path", path)
        if self.velocity is not None and self.velocity.shape != (len(self.position),):
            raise ConstraintError(
                f"path must be a velocity of shape ({len(self.position)},) or a function of time, "
                f"got shape {tuple(self.velocity.shape)}."
            )

    def __call__(self, x: Tensor) -> Tensor:
        """``h(x - E s(t))``, ``(..., k)``, from states with time ``(..., n_x + 1)``."""
        place, _, _ = self._motion(x)
        return self.barrier(x[..., :-1] - place)

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """With the gradient over the state and, last, over time."""
        place, speed, _ = self._motion(x)
        value, gradient = self.barrier.evaluate(x[..., :-1] - place)
        return value, self._in_time(gradient, -_dot(gradient, speed))

    def evaluate_along(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As the derivation above."""
        place, speed, bend = self._motion(x)
        tau = v[..., -1:]
        value, gradient, change = self.barrier.evaluate_along(x[..., :-1] - place, v[..., :-1] - tau * speed)
        rate = -_dot(change, speed) - tau * _dot(gradient, bend)
        return value, self._in_time(gradient, -_dot(gradient, speed)), self._in_time(change, rate)

    @staticmethod
    def _in_time(gradient: Tensor, rate: Tensor) -> Tensor:
        return torch.cat([gradient, rate.unsqueeze(-1)], -1)

    def _motion(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``E s``, ``E ṡ`` and ``E s̈`` at the times of the states, ``(..., n_x)`` each."""
        time, n_x = x[..., -1], x.shape[-1] - 1

        def whole(part: Tensor) -> Tensor:
            return spread(part, self.position, n_x)

        if self.path is None:
            assert self.velocity is not None
            speed = whole(self.velocity.to(x))
            return time.unsqueeze(-1) * speed, speed.expand(*x.shape[:-1], n_x), torch.zeros_like(x[..., :-1])
        if is_exporting():
            raise ConstraintError("A path that is a function is differentiated, which torch.export does not hold.")
        path, one = self.path, torch.ones_like(time)

        def at(t: Tensor) -> Tensor:
            return path(t) if t.ndim == 0 else torch.func.vmap(at)(t)

        def moved(t: Tensor) -> tuple[Tensor, Tensor]:
            return torch.func.jvp(at, (t,), (one,))  # pyright: ignore[reportReturnType]

        (place, speed), (_, bend) = torch.func.jvp(moved, (time,), (one,))  # pyright: ignore[reportAssignmentType]
        return whole(place.to(x)), whole(speed.to(x)), whole(bend.to(x))


def _dot(gradient: Tensor, v: Tensor) -> Tensor:
    """``∇h v``, ``(..., k)``."""
    return (gradient @ v.unsqueeze(-1)).squeeze(-1)
