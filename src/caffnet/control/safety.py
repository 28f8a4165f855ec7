"""From barriers to hard constraints on the input.

Along the system the barrier changes as ``dh/dt = ∂h/∂t + L_f h + L_g h u``. If every input satisfies

    ∂h/∂t + L_f h(x) + L_g h(x) u  >=  -α(h(x))          (α of class K: strictly increasing, α(0) = 0),

then h can decay towards zero but never cross it: a state that starts safe stays safe. The condition is affine in `u`,
one row per function: ``-L_g h(x) u <= L_f h(x) + ∂h/∂t + α(h(x))``.

This holds for inputs that change at every instant, and for the system as modelled. For inputs that are held and for
disturbances the rows need a reserve: see `reserve` and `disturbance` of `BarrierConstraint`, and `sampled`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from caffnet._solve.tracing import is_compiling, is_concrete, no_autocast
from caffnet.constraints import HARD, SOFT_IF_NEAREST, UPPER, AffineSet, ArrayLike, Softness
from caffnet.control.barriers.base import Barrier, as_barrier, with_time
from caffnet.control.barriers.shapes import constant
from caffnet.control.class_k import ClassK, as_class_k
from caffnet.control.degree import check_drift, check_reached, check_same_system, reach
from caffnet.control.high_order import HighOrder
from caffnet.control.systems.base import ControlAffine, InTime, check_states, check_system, check_tensor
from caffnet.errors import ConstraintError, DtypeError, InfeasibleError
from caffnet.layer import CAffine
from caffnet.projection import Projection

_HALF = (torch.float16, torch.bfloat16)


class BarrierConstraint:
    r"""The set of inputs that keep a system safe, $x \mapsto \{u : -L_g h(x) u \le L_f h(x) + \alpha(h(x)),\; u \in
    U\}$.

    Use it wherever the library takes a function ``x -> AffineSet``: in `CAffine`, in `CAffNet`, or in `SafetyFilter`.

    Args:
        system: the dynamics.
        barrier: functions that must stay >= 0. If it moves, the constraint takes the time too: ``safe(x, t)``, or
            ``safe((x, t))`` where one argument is asked for, as by ``layer(f, x=(x, t))``.
        class_k: the α; `linear(1.0)` if None.
        inputs: limits on the input that hold everywhere, as an `AffineSet` in ``R^n_u``. They are hard. Where no input
            within them is safe, barriers give way if ``on_infeasible="nearest"`` is asked for, with the status RELAXED:
            by the least largest violation that the limits allow. Else they are hard too, and that raises or is NaN.
        margin: keep ``h >= margin``; with a `HighOrder`, for the innermost h.
        reserve: keep ``dh/dt + α(h) >= reserve``, one number or one per function: what may be lost while an input is
            held, see `hold_reserve`.
        disturbance: a velocity ``w`` with ``|w_i| <= disturbance_i`` may be added to the system, one number or one per
            state: the rows hold for the worst case, which costs ``Σ_i |∂h/∂x_i| disturbance_i``. One that acts
            directly on the function inside a `HighOrder` is refused.
        samples: states ``(s, n_x)`` at which the relative degree is checked, and that a `HighOrder` was built on the
            same system; random ones if None, an empty tensor for no check. With a moving barrier they have the time as
            last entry.

    Differentiable with respect to the state. States ``(..., n_x)`` give a set with rows ``(..., m, n_u)``: those of the
    barrier first, then the limits.

    >>> from caffnet.control import OutsideCircles, Unicycle
    >>> limits = AffineSet.box(-1.0, 1.0, dim=2)
    >>> safe = BarrierConstraint(Unicycle(), OutsideCircles([[2.0, 0.0]], [1.0]), inputs=limits)
    >>> safe(torch.tensor([0.5, 0.0, 0.0])).upper     # (2 - 0.5)² - 1² left: v may be at most 1.25 / 3
    tensor([1.2500, 1.0000, 1.0000])
    """

    def __init__(
        self,
        system: ControlAffine,
        barrier: Barrier,
        class_k: ClassK | None = None,
        inputs: AffineSet | None = None,
        margin: float = 0.0,
        *,
        reserve: ArrayLike | None = None,
        disturbance: ArrayLike | None = None,
        samples: Tensor | None = None,
    ):
        check_system(system, "BarrierConstraint(system, barrier)")
        if inputs is not None and not isinstance(inputs, AffineSet):
            raise ConstraintError(
                f"inputs must be an AffineSet, got {type(inputs).__name__}: "
                f"write AffineSet.box(-1.0, 1.0, dim={system.n_u})."
            )
        if inputs is not None and (inputs.n != system.n_u or inputs.A.ndim != 2):
            raise ConstraintError(f"inputs must be one set in R^{system.n_u} without batch axes, got {inputs}.")
        if not 0 <= margin < math.inf:
            raise ConstraintError(f"margin must be at least 0 and finite, got {margin!r}.")
        self.system, self.barrier, self.inputs, self.margin = system, as_barrier(barrier), inputs, margin
        self.class_k = as_class_k(class_k)
        self.reserve = None if reserve is None else _not_negative("reserve", reserve)
        self.disturbance = None if disturbance is None else _not_negative("disturbance", disturbance, system.n_x)
        self._kept = barrier.lowered(margin) if margin else barrier
        self._system = InTime(system) if barrier.moving else system
        self._same: dict[tuple[torch.dtype, torch.device, torch.Size], _Same] = {}
        check_reached(self.barrier, self._system, samples)
        places = None if samples is None else samples[..., : system.n_x]
        check_drift(system, places)
        for raised in _raised(self.barrier):
            plain = raised.system.system if isinstance(raised.system, InTime) else raised.system
            check_same_system(plain, system, places)
        if self.disturbance is not None:
            check_undisturbed(self.barrier, self.disturbance, samples)

    def __repr__(self) -> str:
        limits = "" if self.inputs is None else f", inputs={self.inputs}"
        return f"BarrierConstraint({self.system}, {self.barrier}{limits})"

    def __call__(self, x: Tensor | Sequence[Tensor], t: Tensor | float | None = None) -> AffineSet:
        """The set at the states x ``(..., n_x)`` and, if the barrier moves, the time t ``(...)``."""
        states = self._states(x, t)
        with no_autocast(states.device.type):
            rows, bound = self._rows(states)
        same = self._same_for(bound)
        if same.A is not None and same.upper is not None:
            rows, bound = torch.cat([rows, same.A], -2), torch.cat([bound, same.upper], -1)
        return AffineSet.from_parts(rows, same.lower, bound, same.names, same.kinds, None, same.softness)

    def within(self, limits: AffineSet) -> BarrierConstraint:
        """Return the constraint with more limits on the input."""
        other = copy.copy(self)
        other.inputs = limits if self.inputs is None else self.inputs.to(limits.device, limits.dtype) & limits
        other._same = {}
        return other

    def _rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``-L_g h`` ``(..., k, n_u)`` and the bound ``(..., k)``."""
        value, gradient = self._kept.evaluate(x)
        bound = self.class_k(value)
        drifting = self._system.along_drift(gradient, x)
        bound = bound if drifting is None else bound + drifting
        if self.reserve is not None:
            bound = bound - self.reserve.to(x)
        if self.disturbance is not None:
            bound = bound - gradient[..., : self.system.n_x].abs() @ self.disturbance.to(x)
        return -self._system.along_input(gradient, x), bound

    def _states(self, x: Tensor | Sequence[Tensor], t: Tensor | float | None) -> Tensor:
        """Return the states as the barrier takes them, with the time if it moves."""
        if isinstance(x, tuple) and len(x) == 2:
            x, t = x
        check_states("x", x, self.system.n_x)  # pyright: ignore[reportArgumentType]
        assert isinstance(x, Tensor)
        if not self.barrier.moving:
            return x
        if t is None:
            raise ConstraintError("The barrier moves, so the set depends on the time: pass (x, t) in place of x.")
        return with_time(x, t)

    def _same_for(self, bound: Tensor) -> _Same:
        """Return the data that do not depend on the state, for bounds of this shape, number type and device."""
        key = (bound.dtype, bound.device, bound.shape)
        if not is_compiling() and key in self._same:
            return self._same[key]
        count, batch = bound.shape[-1], bound.shape[:-1]
        lower = torch.full((count,), -torch.inf, dtype=bound.dtype, device=bound.device)
        names: tuple[str | None, ...] = self.barrier.names or tuple(f"barrier {i}" for i in range(count))
        kinds, softness = UPPER * count, Softness(SOFT_IF_NEAREST * count)
        A = upper = None
        if self.inputs is not None:
            limits = self.inputs.to(bound.device, bound.dtype)
            A, upper = limits.A.expand(*batch, *limits.A.shape), limits.upper.expand(*batch, limits.m)
            lower = torch.cat([lower, limits.lower])
            names, kinds = names + (limits.labels or (None,) * limits.m), kinds + limits.row_kinds
            soft = limits.softness or Softness(HARD * limits.m)
            softness = Softness(softness.kinds + soft.kinds, soft.weight)
        made = _Same(A, lower, upper, names, kinds, softness)
        # What a graph is made of must not leave it, nor what inference mode has made.
        if not is_compiling() and is_concrete(lower) and not lower.is_inference():
            if len(self._same) > 64:  # for batches whose size changes in every call
                self._same.clear()
            self._same[key] = made
        return made


class _Same(NamedTuple):
    """Data that do not depend on the state: limits on the input, lower bounds of all rows, kinds and names of rows."""

    A: Tensor | None
    lower: Tensor
    upper: Tensor | None
    names: tuple[str | None, ...]
    kinds: str
    softness: Softness


class SafetyFilter(nn.Module):
    """A policy whose inputs are replaced by the nearest safe ones.

    Args:
        policy: any function ``x -> u``: a controller, a trained network, a joystick. Its result is converted to the
            number type and device of the state; for a state in half precision to float32, as half cannot keep a
            constraint.
        constraint: the safe inputs at each state, a `BarrierConstraint` or any function ``x -> AffineSet``.
        timed: the policy takes the time too, ``(x, t) -> u``.
        **options: for the layer, as in `caffnet.project`. With ``on_infeasible="nearest"``, where no input is safe,
            the barriers of a `BarrierConstraint` give way and its `inputs` do not: actuators cannot exceed their
            limits.

    >>> from caffnet.control import OutsideCircles, Unicycle
    >>> safe = BarrierConstraint(Unicycle(), OutsideCircles([[2.0, 0.0]], [1.0]))
    >>> SafetyFilter(lambda x: torch.tensor([1.0, 0.2]), safe)(torch.tensor([0.5, 0.0, 0.0]))
    tensor([0.4167, 0.2000])
    """

    def __init__(
        self,
        policy: Callable[..., Tensor],
        constraint: Callable[[Any], AffineSet],
        *,
        timed: bool = False,
        **options: Any,
    ):
        super().__init__()
        if not callable(policy) or isinstance(policy, BarrierConstraint):
            raise _no_policy(type(policy).__name__)
        self.policy, self.timed = policy, timed
        self.layer = CAffine(constraint, **options)

    def forward(self, x: Tensor, t: Tensor | float | None = None) -> Tensor:
        """The safe input ``(..., n_u)`` at the states x ``(..., n_x)``; t is the time, where the barrier moves."""
        wanted = self._wanted(x, t)
        return wanted if self.layer.passes else self._filter(wanted, x, t).value

    def project(self, x: Tensor, t: Tensor | float | None = None) -> Projection:
        """Do the same as `forward`, with diagnostics: the status, and the rows that stopped the input."""
        return self._filter(self._wanted(x, t), x, t)

    def reset(self) -> None:
        """Start a new rollout: resets a policy that has memory."""
        if hasattr(self.policy, "reset"):
            self.policy.reset()  # type: ignore[attr-defined]

    def _wanted(self, x: Tensor, t: Tensor | float | None) -> Tensor:
        check_tensor("x", x)
        wanted = self.policy(x, t) if self.timed else self.policy(x)
        if wanted is None or isinstance(wanted, AffineSet):
            raise _no_policy(f"x -> {'None' if wanted is None else 'AffineSet'}")
        return torch.as_tensor(wanted).to(x.device, torch.float32 if x.dtype in _HALF else x.dtype)

    def _filter(self, wanted: Tensor, x: Tensor, t: Tensor | float | None) -> Projection:
        try:
            return self.layer.project(wanted, x=x if t is None else (x, t))
        except InfeasibleError as error:
            raise explain(error) from None


def _no_policy(got: str) -> ConstraintError:
    return ConstraintError(
        f"policy must be a function x -> u, got {got}: the order is SafetyFilter(policy, constraint)."
    )


def in_double(function: Callable[[Any], AffineSet]) -> Callable[[Any], AffineSet]:
    """Return the function ``x -> AffineSet`` for x in float64, with an error that says so where number types differ."""

    def called(x: Any) -> AffineSet:
        try:
            return function(x)
        except DtypeError as error:
            raise DtypeError(
                f"{error} The constraint function is called in float64: write constants as lists, or x.new_tensor(...)."
            ) from error

    return called


def over_actions(rows: AffineSet, n: int) -> AffineSet:
    """Return the rows over n actions, marked by `before_limits`."""
    rows = before_limits(rows)
    check_actions(rows, rows.n, n)
    return rows


def check_actions(constraint: Any, size: int, n: int) -> None:
    """Refuse a constraint over vectors of another size than the actions."""
    if size != n:
        raise ConstraintError(f"The constraint must be over the {n} actions, got {constraint}.")


def before_limits(rows: AffineSet) -> AffineSet:
    """Mark the rows to give way before the limits with ``on_infeasible="nearest"``, unless some are soft already."""
    if not isinstance(rows, AffineSet):
        raise ConstraintError(
            f"The constraint must be an AffineSet or return one, got {type(rows).__name__}: "
            "for A u <= b, return AffineSet.inequality(A, b)."
        )
    return rows.soft(when="nearest") if rows.softness is None else rows


def explain(error: InfeasibleError) -> InfeasibleError:
    """Return the error, with a note if the input does not reach a barrier.

    A conflict has ``Σ μ_i a_i = 0``: if it is one row, that row is zero, ``L_g h = 0``. A bound at the wrong infinity
    is a conflict by itself, whatever its row.
    """
    single = [told for told in error.conflicts if told.proven and len(told.rows) == 1 and math.isfinite(told.gap)]
    names = ", ".join(sorted({told.names[0] for told in single}))
    if not names:
        return error
    return InfeasibleError(
        f"{error}\nThe input does not reach {names}: the row is zero (L_g h = 0), and no input can help. "
        "If it acts only through the drift, use HighOrder(barrier, system) in place of the barrier; if h has no slope "
        "here (∇h = 0, as at the centre of a circle), keep away from such states.",
        error.samples,
        error.conflicts,
    )


def check_undisturbed(barrier: Barrier, disturbance: Tensor, samples: Tensor | None) -> None:
    """Refuse a disturbance that acts directly on the h inside a `HighOrder`: ψ >= 0 would no longer keep h >= 0."""
    for raised in _raised(barrier):
        below = raised.barrier
        n = len(disturbance) + below.moving
        felt = ControlAffine(n, n, None, _Felt(disturbance))
        reached = reach(below, felt, None if samples is None else samples[..., :n])
        if reached is not None and reached.any():
            raise ConstraintError(
                f"The disturbance acts directly on a function under HighOrder ({', '.join(below.names or ('h',))}), "
                "which its rows cannot compensate for: give a disturbance of the states that the input moves, 0 for "
                "the others."
            )


def _raised(barrier: Barrier) -> list[HighOrder]:
    """Return every `HighOrder` inside a barrier, including itself."""
    if isinstance(barrier, HighOrder):
        return [barrier, *_raised(barrier.barrier)]
    inside = getattr(barrier, "parts", None) or getattr(barrier, "barrier", None) or ()
    parts = inside if isinstance(inside, tuple) else (inside,)
    return [below for part in parts for below in _raised(part)]


class _Felt:
    """A disturbance in the form of an actuation: one input per state that it moves."""

    def __init__(self, size: Tensor):
        self.size = size

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.pad(self.size, (0, x.shape[-1] - len(self.size))).diag().to(x)


def _not_negative(name: str, given: ArrayLike, size: int | None = None) -> Tensor:
    """Check one number, or one per entry: finite and not negative."""
    value = constant(name, given)
    if value.ndim > 1 or (size is not None and value.ndim == 1 and len(value) != size) or not (value >= 0).all():
        shape = "one per function" if size is None else f"{size} of them"
        raise ConstraintError(f"{name} must be one number >= 0 or {shape}, got {value.tolist()}.")
    return value.expand(size) if size is not None else value
