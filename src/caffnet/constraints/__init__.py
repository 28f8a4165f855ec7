"""Constraints: sets, the kinds of their rows, and soft rows."""

from caffnet.constraints import collation as collation  # so that default_collate knows sets
from caffnet.constraints.affine_set import AffineSet, in_place_of
from caffnet.constraints.reading import ArrayLike
from caffnet.constraints.rows import BOTH, EQUAL, FREE, LOWER, UPPER, Labels, is_kind, row_names
from caffnet.constraints.shapes import broadcasts, joint_axes, joint_shape
from caffnet.constraints.softness import HARD, SOFT, SOFT_IF_NEAREST, WEIGHTED, Softness

__all__ = [
    "BOTH",
    "EQUAL",
    "FREE",
    "HARD",
    "LOWER",
    "SOFT",
    "SOFT_IF_NEAREST",
    "UPPER",
    "WEIGHTED",
    "AffineSet",
    "ArrayLike",
    "Labels",
    "Softness",
    "broadcasts",
    "in_place_of",
    "is_kind",
    "joint_axes",
    "joint_shape",
    "row_names",
]
