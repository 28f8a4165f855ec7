"""Safe control: control-affine systems and barrier functions as hard affine constraints on the input.

    system      dx/dt = f(x) + g(x) u                                    `ControlAffine`, `Unicycle`, `Integrator`, ...
    barriers    h(x) >= 0 where the state is safe                        `InsideBox`, `OutsidePolytopes`, `Moving`, ...
    order       ψ = L_f h + α(h), if the input acts through the drift    `HighOrder`
    rows        -L_g h(x) u <= L_f h(x) + α(h(x))                        `BarrierConstraint`: x -> AffineSet
    goals       V(x) falls, at the price of a weight where it cannot     `LyapunovConstraint`: soft rows
    audit       looks for states without an admissible input             `audit`
    filter      the input nearest to a policy's that satisfies the rows  `SafetyFilter`, or a `CAffNet` to be trained
    rollout     states and inputs over time, differentiable              `rollout`
    policies    distributions over sets, with exact log-probabilities    `InteriorNormal`, `StochasticPolicy`, ...

A Gymnasium environment and action filters are in `caffnet.control.gym` (needs the extra ``control``), policies of
Stable-Baselines3 in `caffnet.control.sb3` (needs ``rl``).
"""

from caffnet.control.auditing import Audit, audit
from caffnet.control.barriers import (
    Barrier,
    FunctionBarrier,
    InsideBox,
    InsidePolytope,
    Intersection,
    Moving,
    OutsideCircles,
    OutsidePolytopes,
    Stack,
    Union,
    hull_corners,
    hull_rows,
    with_time,
)
from caffnet.control.class_k import linear, power, saturating
from caffnet.control.distributions import InteriorNormal, ProjectedNormal, TruncatedNormal
from caffnet.control.high_order import HighOrder
from caffnet.control.interior import BoxTransform, RayTransform, SimplexTransform, interior_point, interior_transform
from caffnet.control.lyapunov import LyapunovConstraint, Quadratic
from caffnet.control.pid import PID, UnicyclePID, body_frame_error
from caffnet.control.policies import InteriorActor, StochasticPolicy
from caffnet.control.safety import BarrierConstraint, SafetyFilter
from caffnet.control.sampled import hold_reserve
from caffnet.control.simulation import Trajectory, limit_gradient, rk4, rollout
from caffnet.control.systems import (
    Bicycle,
    CartPole,
    ControlAffine,
    DoubleIntegrator,
    Integrator,
    PlanarQuadrotor,
    TwoLinkArm,
    Unicycle,
    wrap_angle,
)

__all__ = [
    "PID",
    "Audit",
    "Barrier",
    "BarrierConstraint",
    "Bicycle",
    "BoxTransform",
    "CartPole",
    "ControlAffine",
    "DoubleIntegrator",
    "FunctionBarrier",
    "HighOrder",
    "InsideBox",
    "InsidePolytope",
    "Integrator",
    "InteriorActor",
    "InteriorNormal",
    "Intersection",
    "LyapunovConstraint",
    "Moving",
    "OutsideCircles",
    "OutsidePolytopes",
    "PlanarQuadrotor",
    "ProjectedNormal",
    "Quadratic",
    "RayTransform",
    "SafetyFilter",
    "SimplexTransform",
    "Stack",
    "StochasticPolicy",
    "Trajectory",
    "TruncatedNormal",
    "TwoLinkArm",
    "Unicycle",
    "UnicyclePID",
    "Union",
    "audit",
    "body_frame_error",
    "hold_reserve",
    "hull_corners",
    "hull_rows",
    "interior_point",
    "interior_transform",
    "limit_gradient",
    "linear",
    "power",
    "rk4",
    "rollout",
    "saturating",
    "with_time",
    "wrap_angle",
]
