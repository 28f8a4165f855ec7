"""Barrier functions: the state is safe where every ``h(x) >= 0``.

base      `Barrier`, any function as one, several as one, and time
unions    smooth unions of half-spaces, several at once
shapes    polytopes, boxes, circles, with formulas for their derivatives
combine   smooth unions and intersections
moving    shapes that move with time
hull      obstacles from their corners
"""

from caffnet.control.barriers.base import Barrier, FunctionBarrier, GradientExportError, Stack, with_time
from caffnet.control.barriers.combine import Intersection, Union
from caffnet.control.barriers.hull import hull_corners, hull_rows
from caffnet.control.barriers.moving import Moving
from caffnet.control.barriers.shapes import InsideBox, InsidePolytope, OutsideCircles, OutsidePolytopes

__all__ = [
    "Barrier",
    "FunctionBarrier",
    "GradientExportError",
    "InsideBox",
    "InsidePolytope",
    "Intersection",
    "Moving",
    "OutsideCircles",
    "OutsidePolytopes",
    "Stack",
    "Union",
    "hull_corners",
    "hull_rows",
    "with_time",
]
