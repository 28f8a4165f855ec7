"""The class of all barriers, a barrier from any function, and a stack of several.

A barrier may hold several functions at once, ``h: (..., n_x) -> (..., k)``. Any function will do: its gradient comes
from automatic differentiation. Common shapes have formulas for their gradients, which is several times faster.

**Time.** A barrier with ``moving = True`` depends on time, ``h(x, t)``. Its states have the time as their last entry,
``(..., n_x + 1)``: see `with_time`. Its gradient has one more column, ``∂h/∂t``; nothing else changes, as the system is
then ``(dx/dt, dt/dt) = (f + g u, 1)``. Users pass x and t; `BarrierConstraint` joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from caffnet._solve.tracing import is_exporting
from caffnet.control.barriers.unions import Sides, Unions, join
from caffnet.errors import ConstraintError


def with_time(x: Tensor, t: Tensor | float) -> Tensor:
    """Append the time to states ``(..., n_x)`` as one more entry, ``(..., n_x + 1)``; t broadcasts over the batch.

    >>> with_time(torch.zeros(2, 3), 0.5)
    tensor([[0.0000, 0.0000, 0.0000, 0.5000],
            [0.0000, 0.0000, 0.0000, 0.5000]])
    """
    time = torch.as_tensor(t, dtype=x.dtype, device=x.device)
    try:
        column = time.expand(x.shape[:-1]).unsqueeze(-1)
    except RuntimeError:
        raise ConstraintError(
            f"t must be a number or have the batch axes of x, {tuple(x.shape[:-1])}, got shape {tuple(time.shape)}."
        ) from None
    return torch.cat([x, column], -1)


#: Names of functions that `repr` shows.
_SHOWN = 4


class GradientExportError(ConstraintError):
    """torch.export met a barrier whose gradient comes from automatic differentiation."""


class Barrier:
    """Functions ``h_1 ... h_k`` of the state. Subclasses define ``__call__``, and `evaluate` if they have a formula."""

    #: One label per function, or None.
    names: tuple[str, ...] | None = None
    #: True if h depends on time, which is then the last entry of the states.
    moving: bool = False

    def __repr__(self) -> str:
        names = self.names or ("unnamed",)
        more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return f"{type(self).__name__}({', '.join(names[:_SHOWN])}{more})"

    def __call__(self, x: Tensor) -> Tensor:
        """``h(x)``, ``(..., k)``, from states ``(..., n_x)``."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(x).")

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``h(x)`` ``(..., k)`` and its gradient ``(..., k, n_x)``; both can be differentiated again."""

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

    def evaluate_along(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return `evaluate` and the change of the gradient along v ``(..., n_x)``: ``∇²h v``, ``(..., k, n_x)``.

        By forward-mode differentiation of `evaluate`; subclasses override it by a formula.
        """
        if is_exporting():
            raise GradientExportError(
                f"The second derivative of {type(self).__name__} comes from automatic differentiation, which "
                "torch.export does not hold: define evaluate_along(x, v) in a subclass, with it written out."
            )
        (value, gradient), (_, change) = torch.func.jvp(self.evaluate, (x,), (v,))  # pyright: ignore
        return value, gradient, change

    def third(self, x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """Return the change of ``∇²h v`` along w with v fixed: ``∇³h v w``, ``(..., k, n_x)``; for the third order."""
        if is_exporting():
            raise GradientExportError(
                f"The third derivative of {type(self).__name__} comes from automatic differentiation, which "
                "torch.export does not hold: define third(x, v, w) in a subclass, with it written out."
            )
        return torch.func.jvp(lambda x: self.evaluate_along(x, v)[2], (x,), (w,))[1]

    def sides(self, n_x: int) -> Sides | None:
        """Return the half-spaces whose smooth unions the functions are, for states of this size; else None."""
        return None

    def lowered(self, margin: float) -> Barrier:
        """Return the barrier ``h - margin``. For a barrier of higher order, the margin applies to the innermost h."""
        return Lowered(self, margin)


class FunctionBarrier(Barrier):
    """Any function as a barrier.

    Args:
        function: ``(n_x,) -> (k,)``, or ``(n_x,) -> ()`` for a single function, made of torch operations. It gets one
            state at a time, and batches by ``torch.func.vmap``; so ``(..., n_x) -> (..., k)`` works as well. As usual
            under vmap it must not draw random numbers or branch on values.
        names: one label per function.
        moving: the function takes the time too, ``(x, t) -> h``, with t a scalar tensor.

    >>> slow = FunctionBarrier(lambda x: 1.0 - x[2].square(), names=["speed"])
    >>> value, gradient = slow.evaluate(torch.tensor([0.0, 0.0, 0.5]))
    >>> value, gradient
    (tensor([0.7500]), tensor([[ 0.,  0., -1.]]))
    >>> slow(torch.zeros(4, 5, 3)).shape
    torch.Size([4, 5, 1])
    """

    def __init__(self, function: Callable[..., Tensor], names: Sequence[str] | None = None, moving: bool = False):
        self.function, self.moving = function, moving
        self.names = labels(names)

    def __call__(self, x: Tensor) -> Tensor:
        """``h(x)``, ``(..., k)``."""
        if x.ndim == 1:
            return torch.atleast_1d(self.function(x[:-1], x[-1]) if self.moving else self.function(x))
        value = torch.func.vmap(self)(x.reshape(-1, x.shape[-1]))
        return value.reshape(*x.shape[:-1], *value.shape[1:])


class Stack(Barrier):
    """All functions of several barriers in one: all of them must be >= 0."""

    def __init__(self, *parts: Barrier):
        if not parts:
            raise ConstraintError("A stack needs at least one barrier, got none.")
        self.moving = any(part.moving for part in parts)
        self.parts = tuple(in_time(part) for part in parts) if self.moving else parts
        names = [part.names for part in parts]
        self.names = None if None in names else tuple(name for some in names for name in some or ())
        self._unions = Unions(self.sides)

    def __call__(self, x: Tensor) -> Tensor:
        """``(..., k_1 + k_2 + ...)``."""
        together = self._unions.at(x)
        if together is not None:
            return together.blend(x)[0]
        return torch.cat([part(x) for part in self.parts], -1)

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The values and gradients of the parts."""
        together = self._unions.at(x)
        if together is not None:
            return together.evaluate(x)
        values, gradients = zip(*(part.evaluate(x) for part in self.parts), strict=True)
        return torch.cat(values, -1), torch.cat(gradients, -2)

    def evaluate_along(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Those of the parts."""
        values, gradients, changes = zip(*(part.evaluate_along(x, v) for part in self.parts), strict=True)
        return torch.cat(values, -1), torch.cat(gradients, -2), torch.cat(changes, -2)

    def third(self, x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """Those of the parts."""
        return torch.cat([part.third(x, v, w) for part in self.parts], -2)

    def sides(self, n_x: int) -> Sides | None:
        """Those of the parts, where they can be evaluated together."""
        return join([part.sides(n_x) for part in self.parts])

    def lowered(self, margin: float) -> Barrier:
        """Every part keeps the distance."""
        return Stack(*(part.lowered(margin) for part in self.parts))


class Lowered(Barrier):
    """``h - margin``, with the derivatives of h."""

    def __init__(self, barrier: Barrier, margin: float):
        self.barrier, self.margin = barrier, margin
        self.names, self.moving = barrier.names, barrier.moving

    def __call__(self, x: Tensor) -> Tensor:
        """``h(x) - margin``."""
        return self.barrier(x) - self.margin

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As of h."""
        value, gradient = self.barrier.evaluate(x)
        return value - self.margin, gradient

    def evaluate_along(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As of h."""
        value, gradient, change = self.barrier.evaluate_along(x, v)
        return value - self.margin, gradient, change

    def third(self, x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """As of h."""
        return self.barrier.third(x, v, w)


class Resting(Barrier):
    """A barrier that does not depend on time, for states with time: it ignores the last entry of the state."""

    moving = True

    def __init__(self, barrier: Barrier):
        self.barrier, self.names = barrier, barrier.names

    def __call__(self, x: Tensor) -> Tensor:
        """``h(x)``, whatever the time."""
        return self.barrier(x[..., :-1])

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As of h, with ``∂h/∂t = 0``."""
        value, gradient = self.barrier.evaluate(x[..., :-1])
        return value, torch.nn.functional.pad(gradient, (0, 1))

    def evaluate_along(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As of h."""
        value, gradient, change = self.barrier.evaluate_along(x[..., :-1], v[..., :-1])
        return value, torch.nn.functional.pad(gradient, (0, 1)), torch.nn.functional.pad(change, (0, 1))

    def third(self, x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """As of h."""
        return torch.nn.functional.pad(self.barrier.third(x[..., :-1], v[..., :-1], w[..., :-1]), (0, 1))

    def lowered(self, margin: float) -> Barrier:
        """As of h."""
        return Resting(self.barrier.lowered(margin))


def in_time(barrier: Barrier) -> Barrier:
    """Return the barrier for states with time."""
    return barrier if barrier.moving else Resting(barrier)


def as_barrier(given: Barrier) -> Barrier:
    """Return the barrier; refuse any other object."""
    if not isinstance(given, Barrier):
        raise ConstraintError(f"barrier must be a Barrier, got {given!r}: wrap a function in FunctionBarrier.")
    return given


def labels(names: Sequence[str] | None, count: int | None = None) -> tuple[str, ...] | None:
    """Check a list of labels; refuse a single text, which would be read as a list of letters."""
    if names is None:
        return None
    if isinstance(names, str) or (count is not None and len(names) != count):
        wanted = "one label per function" if count is None else f"{count} label{'s' * (count != 1)}"
        raise ConstraintError(f"names must be a list of {wanted}, got {names!r}.")
    return tuple(names)
