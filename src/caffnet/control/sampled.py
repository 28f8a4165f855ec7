r"""Inputs held between samples: the reserve that makes a sampled controller safe.

A controller samples the state every `dt` and holds its input until the next sample. With ``φ(x, u) = dh/dt + α(h)``
the condition of the barrier is ``φ >= 0``; it is imposed at the samples and must hold between them. While u is held, φ
changes at the rate

    φ̇(x, u) = ∂φ/∂x (f(x) + g(x) u),

so that ``φ(x(t_k), u) >= dt · sup (-φ̇)`` keeps ``φ >= 0`` until the next sample, and so ``h >= 0``. That supremum over
the states and inputs in question, times `dt`, is the `reserve` of `BarrierConstraint`, one number per function. It is
bounded by ``L M`` if φ has the Lipschitz constant L in x and the state is never faster than M.

**Disturbances.** With a velocity w that is added to the system, ``|w_i| <= δ_i``, the rows hold for the worst:

    φ(x, u) = L_f h + L_g h u + α(h) - Σ_i |∂h/∂x_i| δ_i  <=  dh/dt + α(h)      for every such w.

Between the samples w moves the state, and so changes φ, at worst at the rate

    φ̇ = ∂φ/∂x (f + g u + w)  >=  ∂φ/∂x (f + g u) - Σ_i |∂φ/∂x_i| δ_i,

which is the rate that the reserve covers. In the bound ``L M`` the speed is at most ``|f + g u| + |δ|``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from caffnet.constraints import AffineSet, ArrayLike
from caffnet.control.barriers.base import with_time
from caffnet.control.barriers.shapes import constant
from caffnet.control.safety import BarrierConstraint
from caffnet.control.systems.base import check_count, check_positive
from caffnet.errors import ConstraintError
from caffnet.projection import project

#: Points so many sizes away from a set project on its corners.
OUTSIDE = 2.0**10


def hold_reserve(
    constraint: BarrierConstraint,
    dt: float,
    *,
    lipschitz: ArrayLike | None = None,
    speed: float | None = None,
    lower: ArrayLike | None = None,
    upper: ArrayLike | None = None,
    times: tuple[float, float] = (0.0, 0.0),
    samples: int = 4096,
    factor: float = 1.2,
) -> Tensor:
    """The reserve, ``(k,)``, that makes inputs held for `dt` safe: pass it as ``BarrierConstraint(..., reserve=...)``.

    Either from bounds that you know, a guarantee:

    Args:
        constraint: without a reserve; its `inputs` bound the held input, its `disturbance` the velocities that are
            added.
        dt: how long an input is held.
        lipschitz: Lipschitz constant of ``φ(·, u)`` for every admissible u, one number or one per function.
        speed: a bound on ``|f + g u|`` (and, of a moving barrier, on the speed of the state with its time); the length
            of the disturbance is added.

    Or from samples, an estimate:

        lower: the box of states, ``(n_x,)``.
        upper: the other corner of the box.
        times: the interval of time, for a moving barrier.
        samples: number of states (Sobol points), each with a random admissible input and an extreme one.
        factor: multiplies the largest rate that was seen, as larger rates may exist.

    >>> from caffnet.control import InsideBox, Integrator
    >>> box = AffineSet.box(-1.0, 1.0, dim=1)
    >>> safe = BarrierConstraint(Integrator(1, 1), InsideBox([-1.0], [1.0]), inputs=box)
    >>> hold_reserve(safe, 0.1, lipschitz=1.0, speed=1.0)   # φ = ±u + 1 ∓ x changes by at most |u|
    tensor([0.1000, 0.1000], dtype=torch.float64)
    >>> hold_reserve(safe, 0.1, lower=[-1.0], upper=[1.0], factor=1.0)
    tensor([0.1000, 0.1000], dtype=torch.float64)
    """
    if not 0 < dt < math.inf:
        raise ConstraintError(f"dt must be positive and finite, got {dt!r}.")
    if constraint.reserve is not None:
        raise ConstraintError("The constraint has a reserve already: call hold_reserve with the constraint without it.")
    known = lipschitz is not None and speed is not None
    if known == (lower is not None and upper is not None):
        raise ConstraintError("Give bounds (lipschitz and speed) or a box to sample (lower and upper), one of the two.")
    check_positive(factor=factor)
    check_count("samples", samples)
    if lipschitz is not None and speed is not None:
        rates, count = constant("lipschitz", lipschitz), len(_rates(constraint, *_nowhere(constraint))[0])
        fastest = speed if constraint.disturbance is None else speed + float(constraint.disturbance.norm())
        if not (rates >= 0).all() or not speed >= 0 or rates.shape not in ((), (1,), (count,)):
            raise ConstraintError(
                f"lipschitz must be one number >= 0, or one for each of {count} functions, and speed a number >= 0, "
                f"got {rates.tolist()} and {speed!r}."
            )
        return (dt * fastest * rates).expand(count).clone()
    assert lower is not None
    assert upper is not None
    low, high = constant("lower", lower), constant("upper", upper)
    if low.shape != (constraint.system.n_x,) or low.shape != high.shape or not (low <= high).all():
        raise ConstraintError(
            f"lower and upper must be corners of a box of states, ({constraint.system.n_x},) each and in order, "
            f"got {low.tolist()} and {high.tolist()}."
        )
    states = _spread_out(low, high, times, samples)
    fastest = torch.zeros(())
    for u in _held_inputs(constraint, samples, low.dtype):
        fastest = torch.maximum(fastest, (-_rates(constraint, states, u)).amax(0))
    return factor * dt * fastest.clamp_min(0)


@torch.enable_grad()
def _rates(constraint: BarrierConstraint, z: Tensor, u: Tensor) -> Tensor:
    """``φ̇``, ``(samples, k)``, at states with time ``(samples, n_x + 1)`` under inputs ``(samples, n_u)``.

    The least that a disturbance makes of it.
    """
    n = constraint.system.n_x

    def phi(z: Tensor) -> Tensor:
        rows = constraint(z[..., :n], z[..., n])
        k = rows.m - (0 if constraint.inputs is None else constraint.inputs.m)
        return rows.upper[..., :k] - (rows.A[..., :k, :] @ u.unsqueeze(-1)).squeeze(-1)

    velocity = with_time(constraint.system.velocity(z[..., :n], u), 1.0)
    z = z.detach().requires_grad_()
    value = phi(z)
    # One backward pass per function: a sample has a gradient of its own.
    slopes = [torch.autograd.grad(value[:, i].sum(), z, retain_graph=True)[0] for i in range(value.shape[-1])]
    rates = torch.stack([(slope * velocity).sum(-1) for slope in slopes], -1)
    if constraint.disturbance is None:
        return rates
    wind = constraint.disturbance.to(z)
    return rates - torch.stack([slope[..., :n].abs() @ wind for slope in slopes], -1)


def _nowhere(constraint: BarrierConstraint) -> tuple[Tensor, Tensor]:
    one = torch.ones(1, constraint.system.n_x + 1, dtype=torch.float64)
    return one, torch.zeros(1, constraint.system.n_u, dtype=torch.float64)


def _spread_out(low: Tensor, high: Tensor, times: tuple[float, float], samples: int) -> Tensor:
    """Sobol points of a box with time, ``(samples, n_x + 1)``."""
    corner = torch.cat([low, low.new_tensor(times[:1])])
    size = torch.cat([high, high.new_tensor(times[1:])]) - corner
    unit = torch.quasirandom.SobolEngine(len(corner), scramble=True, seed=0).draw(samples, dtype=low.dtype)
    return corner + size * unit


def _held_inputs(constraint: BarrierConstraint, samples: int, dtype: torch.dtype) -> list[Tensor]:
    """Admissible inputs, ``(samples, n_u)``: spread out, and at the corners, where a rate is mostly largest."""
    n_u = constraint.system.n_u
    if constraint.inputs is None:
        raise ConstraintError(
            "Without limits on the input the rates are not bounded: give BarrierConstraint its inputs."
        )
    limits: AffineSet = constraint.inputs.to(dtype)
    bounds, length = torch.cat([limits.lower, limits.upper]).abs(), limits.A.norm(dim=-1)
    most = torch.where(bounds.isfinite(), bounds, 0.0).sum()
    size = (1 + most) / F.pad(length[length > 0], (0, 1), value=1.0).min()  # of the set, roughly
    out = torch.randn(samples, n_u, dtype=dtype, generator=torch.Generator().manual_seed(0))
    corners = project(OUTSIDE * size * out, limits).value
    if corners.abs().max() > OUTSIDE / 4 * size:  # they lie as far out as what was projected
        raise ConstraintError("The inputs are not bounded, so the rates are not: give limits on every input.")
    share = torch.rand(samples, 1, dtype=dtype, generator=torch.Generator().manual_seed(1))
    return [corners, share * corners + (1 - share) * corners.flip(0)]
