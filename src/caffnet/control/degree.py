"""A check of the relative degree: the derivative of a barrier on which the input acts. Done once, at sampled states.

A barrier of degree one has ``L_g h ≠ 0``: its rows depend on the input. A barrier of degree two has ``L_g h = 0``
everywhere and needs a `HighOrder`. A few states show which it is; a single state where ``L_g h`` happens to vanish is
not evidence against degree one. At the same states a `HighOrder` is compared with the system of its constraint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet.control.barriers.base import Barrier
from caffnet.control.systems.base import ControlAffine, check_states, wrong_drift
from caffnet.errors import ConstraintError

T = TypeVar("T")
SAMPLES = 32
#: Sizes of the sampled states: a shape may be small, and angles near zero show little.
SIZES = (0.3, 3.0)


def check_reached(barrier: Barrier, system: ControlAffine, samples: Tensor | None) -> None:
    """Refuse functions that the input reaches at no sample: their rows would be ``0 u <= b``."""
    reached = reach(barrier, system, samples)
    if reached is None or (hit := reached.any(0)).all():
        return
    raise ConstraintError(
        f"The input does not reach {_told(barrier, ~hit)}: L_g h = 0 at all {len(reached)} states looked at, so "
        "its relative degree is 2 or more. Write HighOrder(barrier, system) in place of the barrier, once per missing "
        "derivative. (If the input reaches it elsewhere, pass samples: states where it does.)"
    )


def check_not_reached(barrier: Barrier, system: ControlAffine, samples: Tensor | None) -> None:
    """Refuse functions that the input reaches directly: a `HighOrder` would not keep them."""
    reached = reach(barrier, system, samples)
    if reached is None or not (hit := reached.any(0)).any():
        return
    raise ConstraintError(
        f"The input reaches {_told(barrier, hit)} directly (L_g h is not 0), so HighOrder would not keep it: leave it "
        "as it is, beside the others, as in Stack(HighOrder(position, system), speed)."
    )


def check_drift(system: ControlAffine, samples: Tensor | None) -> None:
    """Refuse a drift of another size than the state, at the states of the other checks.

    One that fails at these states is left to its first call: it may be on another device, or take single states only.
    """
    if system.drift is None:
        return
    for x in _states(system, samples):
        try:
            with torch.no_grad():
                moved = system.drift(x)
                size = moved.shape[-1:]
        except Exception:  # in the function of the user
            continue
        if size != x.shape[-1:]:
            raise wrong_drift(moved, x)


def check_same_system(raised: ControlAffine, system: ControlAffine, samples: Tensor | None) -> None:
    """Refuse a `HighOrder` that was built on another system than that of its constraint.

    Two systems count as the same if they have the same drift and actuation at the sampled states.
    """
    if raised is system:
        return
    same = (raised.n_x, raised.n_u) == (system.n_x, system.n_u)
    seen = _look("The system", system, samples, lambda x: (_moves(raised, x), _moves(system, x))) if same else None
    if seen is not None:
        x, (first, second) = seen
        size = torch.maximum(first.abs(), second.abs())
        same = not bool(((first - second).abs() > tolerance.reach(x.dtype) * size.amax(0)).any())
    if not same:
        raise ConstraintError(
            f"HighOrder was built on another system ({type(raised).__name__} with {raised.n_x} states) than the "
            f"constraint ({type(system).__name__} with {system.n_x} states), and would raise along the wrong drift: "
            "pass the same system to both."
        )


def reach(barrier: Barrier, system: ControlAffine, samples: Tensor | None) -> Tensor | None:
    """Mask ``(samples, k)``: True where ``L_g h ≠ 0``, False where it is not finite. None without samples.

    Functions that fail, or that are finite at no sample, are refused, because their degree is not known.
    """

    def of(x: Tensor) -> tuple[Tensor, Tensor]:
        _, gradient = barrier.evaluate(x)
        size = gradient.norm(dim=-1) * system.actuation(x).to(x).flatten(-2).norm(dim=-1).unsqueeze(-1)
        return system.along_input(gradient, x).abs().amax(-1), size

    seen = _look("The barrier", system, samples, of)
    if seen is None:
        return None
    x, (reached, size) = seen
    known = reached.isfinite() & size.isfinite()
    if not (finite := known.any(0)).all():
        raise ConstraintError(
            f"The gradient of {_told(barrier, ~finite)} is finite at none of the {len(x)} states looked at, so its "
            "degree is not known: look for 0/0, log or sqrt in it, or pass samples: states where it is defined."
        )
    return known & (reached > tolerance.reach(x.dtype) * size)


def _look(
    what: str, system: ControlAffine, samples: Tensor | None, function: Callable[[Tensor], T]
) -> tuple[Tensor, T] | None:
    """Return the states and a function of them, in the first number type that it accepts; None without states."""
    failed: RuntimeError | None = None
    for x in _states(system, samples):
        try:
            with torch.no_grad():
                return x, function(x)
        except RuntimeError as error:  # a network in another number type
            failed = failed or error
    if failed is None:
        return None
    raise ConstraintError(
        f"{what} cannot be evaluated at the states looked at: {str(failed).splitlines()[0]} Write torch.where in place "
        "of an if on values (batches come by vmap); for a function in another number type or on another device pass "
        "samples: states that it accepts, or an empty tensor for no check."
    ) from failed


def _moves(system: ControlAffine, x: Tensor) -> Tensor:
    """Return drift and actuation at the states, side by side, ``(s, ...)``."""
    actuation = system.actuation(x).to(x).expand(len(x), system.n_x, system.n_u)
    return torch.cat([system.drift_at(x).unsqueeze(-1), actuation], -1)


def _states(system: ControlAffine, samples: Tensor | None) -> list[Tensor]:
    if samples is not None:
        check_states("samples", samples, system.n_x)
        return [samples.reshape(-1, system.n_x)] if len(samples) else []
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(len(SIZES), SAMPLES, system.n_x, dtype=torch.float64, generator=generator)
    x = torch.cat([size * part for size, part in zip(SIZES, drawn, strict=True)])
    return [x, x.float()]


def _told(barrier: Barrier, which: Tensor) -> str:
    names = barrier.names or [f"function {i}" for i in range(len(which))]
    return ", ".join(name for name, hit in zip(names, which.tolist(), strict=True) if hit)
