"""From barriers to hard constraints on the input.

Along the system the barrier changes as ``dh/dt = L_f h + L_g h u``. If every input satisfies

    L_f h(x) + L_g h(x) u  >=  -α(h(x))          (α of class K: strictly increasing, α(0) = 0),

then h can decay towards zero but never cross it: a state that starts safe stays safe. The condition is affine in `u`,
one row per function: ``-L_g h(x) u <= L_f h(x) + α(h(x))``.

The argument is for inputs that change at every instant. An input that is held for `dt` leaves
``h(t + dt) = h + dt (L_f h + L_g h u) + O(dt²) >= (1 - α' dt) h + O(dt²)``: keep ``α' dt`` well below 1, leave a
`margin` for the second order, and look at ``barrier(path.states).min()``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from caffnet import tolerance
from caffnet._solve.problem import Status
from caffnet._solve.tracing import is_compiling, is_concrete
from caffnet.constraints import UPPER, AffineSet
from caffnet.control.barriers import Barrier
from caffnet.control.systems import ControlAffine, check_states
from caffnet.errors import ConstraintError, InfeasibleError
from caffnet.layer import CAffine
from caffnet.projection import Projection, project

ClassK: TypeAlias = Callable[[Tensor], Tensor]


def linear(slope: float = 1.0) -> ClassK:
    """``α(h) = slope · h``."""
    _check_positive(slope=slope)
    return partial(_linear, slope=slope)


def power(slope: float = 1.0, exponent: float = 3.0) -> ClassK:
    """``α(h) = slope · sign(h) |h|^exponent``: gentle near the boundary, free far away from it."""
    _check_positive(slope=slope)
    if not 1 <= exponent < math.inf:
        raise ConstraintError(f"exponent must be at least 1, got {exponent!r}: below, α has no derivative at 0.")
    return partial(_power, slope=slope, exponent=exponent) if exponent > 1 else linear(slope)


def saturating(slope: float = 1.0, limit: float = 1.0) -> ClassK:
    """``α(h) = limit · tanh(slope · h / limit)``: never asks to approach faster than `limit`."""
    _check_positive(slope=slope, limit=limit)
    return partial(_saturating, slope=slope, limit=limit)


# Named functions, which can be pickled.


def _linear(h: Tensor, slope: float) -> Tensor:
    return slope * h


def _power(h: Tensor, slope: float, exponent: float) -> Tensor:
    # At 0, α' = 0; α'' may be infinite, but α is odd: 0 lies between its two sides, where autograd would give NaN.
    size = torch.where(h == 0, 1.0, h).abs()
    return slope * h.sign() * size**exponent


def _saturating(h: Tensor, slope: float, limit: float) -> Tensor:
    return limit * torch.tanh(h * (slope / limit))


class BarrierConstraint:
    r"""The inputs that keep a system safe, $x \mapsto \{u : -L_g h(x) u \le L_f h(x) + \alpha(h(x)),\; u \in U\}$.

    Use it wherever the library takes a function ``x -> AffineSet``: in `CAffine`, in `CAffNet`, or in `SafetyFilter`.

    Args:
        system: the dynamics.
        barrier: functions that must stay >= 0.
        class_k: the α; `linear(1.0)` if None.
        inputs: limits on the input that hold everywhere, as an `AffineSet` in ``R^n_u``.
        margin: keep ``h >= margin``, for what happens while an input is held.

    Differentiable with respect to the state. States ``(..., n_x)`` give a set with rows ``(..., m, n_u)``.

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
    ):
        _check_system(system, "BarrierConstraint(system, barrier)")
        if inputs is not None and (inputs.n != system.n_u or inputs.A.ndim != 2):
            raise ConstraintError(f"inputs must be one set in R^{system.n_u} without batch axes, got {inputs}.")
        if not 0 <= margin < math.inf:
            raise ConstraintError(f"margin must be at least 0 and finite, got {margin!r}.")
        self.system, self.barrier, self.inputs, self.margin = system, _as_barrier(barrier), inputs, margin
        self.class_k = _as_class_k(class_k)
        self._cast: dict[tuple[torch.dtype, torch.device], AffineSet] = {}

    def __call__(self, x: Tensor) -> AffineSet:
        """The set at the states x ``(..., n_x)``."""
        safe = self.barrier_rows(x)
        return safe if self.inputs is None else safe & self.inputs_like(x)

    def barrier_rows(self, x: Tensor) -> AffineSet:
        """The rows of the barrier alone, without limits on the input."""
        check_states("x", x, self.system.n_x)
        value, gradient = self.barrier.evaluate(x)
        bound = self.class_k(value - self.margin if self.margin else value)
        drifting = self.system.along_drift(gradient, x)
        bound = bound if drifting is None else bound + drifting
        rows = -self.system.along_input(gradient, x)
        names = self.barrier.names or tuple(f"barrier {i}" for i in range(value.shape[-1]))
        lower = bound.new_full((len(names),), -torch.inf)
        return AffineSet.from_parts(rows, lower, bound, names, UPPER * len(names))

    def inputs_like(self, x: Tensor) -> AffineSet:
        """The limits on the input, in the number type and on the device of `x`."""
        assert self.inputs is not None
        key = (x.dtype, x.device)
        if key in self._cast:
            return self._cast[key]
        cast = self.inputs.to(x.device, x.dtype)
        if not is_compiling() and is_concrete(cast.A):  # what a graph is made of must not leave it
            self._cast[key] = cast
        return cast


class HighOrder(Barrier):
    """A barrier that the input reaches only through the drift, raised by one order: ``L_f h + α(h)``.

    If ``L_g h = 0`` everywhere (a position limit on a mass that is moved by forces) the rows of h say nothing about
    the input. Keeping ``ψ = L_f h + α(h) >= 0`` keeps ``h >= 0``, and the input acts on ψ. Use it in place of h, not
    beside it: the row of h is ``0 u <= ψ``, which every input satisfies or none. Start where h and ψ are both >= 0.
    Where the input does reach h, ψ >= 0 says nothing about ``dh/dt``: that is refused.

    Args:
        barrier: functions with ``L_g h = 0``. Others stand beside: ``Stack(HighOrder(position, system), speed)``.
        system: a system with drift.
        class_k: the α; `linear(1.0)` if None.

    >>> from caffnet.control import DoubleIntegrator, InsideBox
    >>> wall = HighOrder(InsideBox([-torch.inf, -torch.inf], [1.0, torch.inf]), DoubleIntegrator(1))
    >>> wall(torch.tensor([0.0, 2.0]))     # 1 m to the wall at 2 m/s
    tensor([-1.])
    """

    def __init__(self, barrier: Barrier, system: ControlAffine, class_k: ClassK | None = None):
        _check_system(system, "HighOrder(barrier, system)")
        if system.drift is None:
            raise ConstraintError(f"{type(system).__name__} has no drift, so no order can be raised along it.")
        self.barrier, self.system = _as_barrier(barrier), system
        self.class_k = _as_class_k(class_k)
        self.names = barrier.names

    def __call__(self, x: Tensor) -> Tensor:
        """``L_f h + α(h)``, ``(..., k)``."""
        value, gradient = self.barrier.evaluate(x)
        self._check_reach(gradient, x)
        drifting = self.system.along_drift(gradient, x)
        assert drifting is not None
        return drifting + self.class_k(value)

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Value and gradient; looks at the numbers before it differentiates, where they cannot be seen."""
        with torch.no_grad():
            self._check_reach(self.barrier.evaluate(x)[1], x)
        return super().evaluate(x)

    def _check_reach(self, gradient: Tensor, x: Tensor) -> None:
        if is_compiling() or not is_concrete(gradient):
            return
        gradient, x = gradient.detach(), x.detach()
        reach = self.system.along_input(gradient, x).abs().amax(-1)
        size = gradient.norm(dim=-1) * self.system.actuation(x).to(x).flatten(-2).norm(dim=-1).unsqueeze(-1)
        reached = (reach > tolerance.reach(x.dtype) * size).reshape(-1, reach.shape[-1]).any(0)
        if reached.any():
            names = self.names or [f"function {i}" for i in range(len(reached))]
            told = ", ".join(name for name, hit in zip(names, reached.tolist(), strict=True) if hit)
            raise ConstraintError(
                f"The input reaches {told} directly (L_g h is not 0), so HighOrder would not keep it: leave it as it "
                "is, beside the others, as in Stack(HighOrder(position, system), speed)."
            )


class SafetyFilter(nn.Module):
    """A policy whose inputs are replaced by the nearest safe ones.

    Args:
        policy: any function ``x -> u``: a controller, a trained network, a human's joystick. What it returns is used in
            the number type and on the device of the state.
        constraint: the safe inputs at each state, a `BarrierConstraint` or any function ``x -> AffineSet``.
        **options: for the layer, as in `caffnet.project`. With ``on_infeasible="nearest"``, where no input is safe,
            the input is the one of least violation within the `inputs` of a `BarrierConstraint`: no actuator does more.

    >>> from caffnet.control import OutsideCircles, Unicycle
    >>> safe = BarrierConstraint(Unicycle(), OutsideCircles([[2.0, 0.0]], [1.0]))
    >>> SafetyFilter(lambda x: torch.tensor([1.0, 0.2]), safe)(torch.tensor([0.5, 0.0, 0.0]))
    tensor([0.4167, 0.2000])
    """

    def __init__(self, policy: Callable[[Tensor], Tensor], constraint: Callable[[Any], AffineSet], **options: Any):
        super().__init__()
        self.policy = policy
        self.layer = CAffine(constraint, **options)

    def forward(self, x: Tensor) -> Tensor:
        """The safe input ``(..., n_u)`` at the states x ``(..., n_x)``."""
        wanted = self._wanted(x)
        return wanted if self.layer.passes else self._filter(wanted, x).value

    def project(self, x: Tensor) -> Projection:
        """As `forward`, with the evidence: whether the filter had to act, and which rows stopped it."""
        return self._filter(self._wanted(x), x)

    def reset(self) -> None:
        """Start a new rollout: forwarded to a policy with memory."""
        if hasattr(self.policy, "reset"):
            self.policy.reset()  # type: ignore[attr-defined]

    def _wanted(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.policy(x)).to(x)

    def _filter(self, wanted: Tensor, x: Tensor) -> Projection:
        try:
            answer = self.layer.project(wanted, x=x)
        except InfeasibleError as error:
            raise explain(error) from None
        safe = self.layer.constraint
        if not isinstance(safe, BarrierConstraint) or safe.inputs is None:
            return answer
        return within_limits(answer, wanted, safe.barrier_rows(x), safe.inputs_like(x), self.layer.options)


def within_limits(
    answer: Projection, wanted: Tensor, safe: AffineSet, limits: AffineSet, options: dict[str, Any]
) -> Projection:
    """The answer with other inputs where nothing is safe: those of least violation that the limits allow.

    Args:
        answer: of ``safe & limits``.
        wanted: the inputs before, ``(..., n_u)``.
        safe: rows that give way.
        limits: rows that do not.
        options: of the answer.
    """
    lost = (answer.status == Status.INFEASIBLE).unsqueeze(-1)
    seen = not is_compiling() and is_concrete(lost)
    if options.get("on_infeasible") != "nearest" or (seen and not lost.any()):
        return answer
    limits = limits.to(wanted.device, wanted.dtype)
    A, lower, upper = (side * tolerance.UNYIELDING for side in (limits.A, limits.lower, limits.upper))
    firm = AffineSet.from_parts(A, lower, upper, limits.labels, limits.row_kinds)
    nearest = project(wanted, safe & firm, on_infeasible="nearest")
    value = project(nearest.value, limits, on_infeasible="nearest", strict=options.get("strict", False)).value
    return dataclasses.replace(
        answer,
        value=torch.where(lost, value, answer.value),
        active=torch.where(lost, nearest.active, answer.active),
    )


def explain(error: InfeasibleError) -> InfeasibleError:
    """The same error; where the input does not reach a barrier, it says so.

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


def _check_system(given: ControlAffine, order: str) -> None:
    if not isinstance(given, ControlAffine):
        raise ConstraintError(f"system must be a ControlAffine, got {type(given).__name__}: the order is {order}.")


def _as_barrier(given: Barrier) -> Barrier:
    if not isinstance(given, Barrier):
        raise ConstraintError(f"barrier must be a Barrier, got {given!r}: wrap a function in FunctionBarrier.")
    return given


def _as_class_k(given: ClassK | None) -> ClassK:
    if given is not None and not callable(given):
        raise ConstraintError(f"class_k must be a function, such as linear({given!r}), got {given!r}.")
    return linear() if given is None else given


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ConstraintError(f"{name} must be positive and finite for a class-K function, got {value!r}.")
