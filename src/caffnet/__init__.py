"""Hard affine constraints ``lower(x) <= A(x) y <= upper(x)`` on the outputs of neural networks."""

from importlib.metadata import version

from caffnet._solve.infeasible import Conflict
from caffnet._solve.prepare import Prepared, prepare
from caffnet._solve.problem import Status
from caffnet.backbones import FeedForward, Transformer
from caffnet.constraints import AffineSet
from caffnet.errors import BudgetError, ConstraintError, DtypeError, InfeasibleError, KernelError, UnboundedError
from caffnet.l1_ball import project_l1
from caffnet.layer import CAffine
from caffnet.model import CAffNet
from caffnet.optimality import Residuals, residuals
from caffnet.projection import Projection, project
from caffnet.quadratic import Solution, solve_qp

__version__ = version("caffnet")

__all__ = [
    "AffineSet",
    "BudgetError",
    "CAffNet",
    "CAffine",
    "Conflict",
    "ConstraintError",
    "DtypeError",
    "FeedForward",
    "InfeasibleError",
    "KernelError",
    "Prepared",
    "Projection",
    "Residuals",
    "Solution",
    "Status",
    "Transformer",
    "UnboundedError",
    "prepare",
    "project",
    "project_l1",
    "residuals",
    "solve_qp",
]
