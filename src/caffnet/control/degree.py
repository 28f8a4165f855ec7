"""The relative degree: after how many derivatives the input acts on a barrier. Checked over samples, once.

A barrier of degree one has ``L_g h ≠ 0``: its rows speak of the input. One of degree two has ``L_g h = 0`` everywhere,
and belongs into a `HighOrder`. Which it is can be seen at a few states; a state where ``L_g h`` happens to vanish is no
evidence against degree one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet.control.barriers.base import Barrier
from caffnet.control.systems.base import ControlAffine, check_states
from caffnet.errors import ConstraintError

SAMPLES = 32
#: States are looked at in these sizes: a shape may be small, and an angle near zero says little.
SIZES = (0.3, 3.0)


def check_reached(barrier: Barrier, system: ControlAffine, samples: Tensor | None) -> None:
    """Refuse functions that the input reaches at no sample: their rows would be ``0 u <= b``."""
    reached = _reach(barrier, system, samples)
    if reached is None or (hit := reached.any(0)).all():
        return
    raise ConstraintError(
        f"The input does not reach {_told(barrier, ~hit)}: L_g h = 0 at all {len(reached)} states looked at, so "
        "its relative degree is 2 or more. Raise it: HighOrder(barrier, system) in place of the barrier, once per "
        "derivative that is missing. (If it is reached elsewhere, pass samples, states where it is.)"
    )


def check_not_reached(barrier: Barrier, system: ControlAffine, samples: Tensor | None) -> None:
    """Refuse functions that the input reaches: raised by an order, they would not be kept."""
    reached = _reach(barrier, system, samples)
    if reached is None or not (hit := reached.any(0)).any():
        return
    raise ConstraintError(
        f"The input reaches {_told(barrier, hit)} directly (L_g h is not 0), so HighOrder would not keep it: leave it "
        "as it is, beside the others, as in Stack(HighOrder(position, system), speed)."
    )


def _reach(barrier: Barrier, system: ControlAffine, samples: Tensor | None) -> Tensor | None:
    """Check whether ``L_g h ≠ 0``, ``(samples, k)``, where all is finite; None if nothing can be seen."""
    for x in _states(system, samples):
        try:
            with torch.no_grad():
                _, gradient = barrier.evaluate(x)
                reach = system.along_input(gradient, x).abs().amax(-1)
                size = gradient.norm(dim=-1) * system.actuation(x).to(x).flatten(-2).norm(dim=-1).unsqueeze(-1)
        except RuntimeError:  # a network in another number type
            continue
        seen = (reach.isfinite() & size.isfinite()).all(-1)
        return (reach > tolerance.reach(x.dtype) * size)[seen] if seen.any() else None
    return None


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
