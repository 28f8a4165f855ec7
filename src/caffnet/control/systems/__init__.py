"""Control-affine systems ``dx/dt = f(x) + g(x) u``, batched over any leading axes."""

from caffnet.control.systems.base import ControlAffine
from caffnet.control.systems.integrator import DoubleIntegrator, Integrator
from caffnet.control.systems.mechanics import CartPole, PlanarQuadrotor, TwoLinkArm
from caffnet.control.systems.vehicles import Bicycle, Unicycle, wrap_angle

__all__ = [
    "Bicycle",
    "CartPole",
    "ControlAffine",
    "DoubleIntegrator",
    "Integrator",
    "PlanarQuadrotor",
    "TwoLinkArm",
    "Unicycle",
    "wrap_angle",
]
