"""Hard affine constraints ``lower(x) <= A(x) y <= upper(x)`` on the outputs of neural networks."""

from importlib.metadata import version

from caffnet.backbones import FeedForward, Transformer
from caffnet.constraints import AffineSet
from caffnet.errors import ConstraintError, InfeasibleError
from caffnet.layer import CAffine
from caffnet.model import CAffNet
from caffnet.preparation import prepare
from caffnet.problem import Status
from caffnet.projection import Projection, project

__version__ = version("caffnet")

__all__ = [
    "AffineSet",
    "CAffNet",
    "CAffine",
    "ConstraintError",
    "FeedForward",
    "InfeasibleError",
    "Projection",
    "Status",
    "Transformer",
    "prepare",
    "project",
]
