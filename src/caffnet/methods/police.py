"""POLICE (Balestriero and LeCun, 2023): a ReLU network that is affine on a chosen region of its input."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from caffnet.constraints import AffineSet
from caffnet.errors import ConstraintError
from caffnet.methods.base import Guarantee, Method, Output, Supports
from caffnet.methods.penalty import Penalty


@dataclasses.dataclass(frozen=True)
class AffineOn:
    """POLICE's own constraint: the map is affine on the convex hull of `vertices` ``(v, n_in)``."""

    vertices: Tensor


class POLICE(Method):
    r"""Shifts hidden units so that all vertices of a region lie on one side of every hinge.

    For unit k let ``h_v`` be its values at the vertices. If their signs differ, take the majority sign s (a tie is
    negative) and add ``-s · min_v (s h_v)`` to the unit, for vertices and data alike: now ``s h_v >= 0`` for all v. The
    hull follows by convexity, so on it every hinge acts linearly and the network is affine.

    It makes the map affine, but the affine map itself is learned. So it cannot enforce a given A and b, or an
    `AffineSet`.

    Args:
        backbone: a stack of `nn.Linear` and ReLU, LeakyReLU or `torch.abs`-like hinges, as `FeedForward`.
        constraint: `AffineOn` the vertices of the region.

    Gradients flow through the shift, not through the vote.

    >>> region = AffineOn(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    >>> method = POLICE(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)), region)
    >>> y = method(torch.cat([region.vertices, region.vertices.mean(0, keepdim=True)]))
    >>> bool(torch.isclose(y[3], y[:3].mean(0)).all())
    True
    """

    name = "police"
    title = "POLICE"
    guarantee = Guarantee.EXACT
    closed_form = True
    supports = Supports(*[False] * 9)

    vertices: Tensor

    def __init__(self, backbone: nn.Module, constraint: AffineOn, *, penalty: Penalty | None = None):
        if not isinstance(constraint, AffineOn):
            self.refuse(
                f"got {type(constraint).__name__}, a condition on the outputs",
                "AffineOn(vertices), a region of the input where the map is affine",
                "METHODS['kkt_hpinn'] for equalities, METHODS['caffnet-ff'] for any set",
            )
        layers = list(backbone.children())
        if not isinstance(backbone, nn.Sequential) or not all(isinstance(layer, LAYERS) for layer in layers):
            raise ConstraintError(
                f"POLICE works unit by unit and needs an nn.Sequential of {', '.join(c.__name__ for c in LAYERS)}, "
                f"got {type(backbone).__name__}({', '.join(type(layer).__name__ for layer in layers)})."
            )
        outputs = _outputs(layers)
        _check_vertices(constraint.vertices, layers)
        free = AffineSet(torch.zeros(0, outputs, dtype=constraint.vertices.dtype))
        super().__init__(backbone, free, penalty=penalty)
        self.register_buffer("vertices", constraint.vertices.detach().clone())

    def _check_structure(self, set: AffineSet) -> None:
        """Check nothing: the output is free."""

    def run(self, x: Any, nominal: Tensor | None = None) -> Output:
        """Pass vertices and data through the layers together."""
        assert isinstance(self.backbone, nn.Sequential)
        batch = x.shape[:-1]
        corners = len(self.vertices)
        h = torch.cat([self.vertices, x.reshape(-1, x.shape[-1])])
        layers = list(self.backbone)
        for place, layer in enumerate(layers):
            h = layer(h)
            if isinstance(layer, nn.Linear) and _bends(layers[place + 1 :]):
                h = h + one_sided_shift(h[:corners])
        y = h[corners:].reshape(*batch, -1)
        y = y if nominal is None else y + nominal
        return Output(y, y, self.set_at().like(y, "the raw output"))

    def enforce(self, f: Tensor, set: AffineSet) -> Tensor:
        """Return f: the network itself was changed."""
        return f


def one_sided_shift(at_vertices: Tensor) -> Tensor:
    """Shift of each unit, ``(units,)``, so that its values at the vertices ``(v, units)`` have one sign."""
    with torch.no_grad():
        positive = (at_vertices > 0).sum(0) * 2 > len(at_vertices)
        sign = torch.where(positive, 1.0, -1.0).to(at_vertices.dtype)
    return -sign * (sign * at_vertices).amin(0).clamp_max(0)


def _bends(after: list[nn.Module]) -> bool:
    """Whether a hinge follows at once; the values of other units may have any sign."""
    others = [layer for layer in after if not isinstance(layer, nn.Identity)]
    return bool(others) and not isinstance(others[0], nn.Linear)


def _check_vertices(vertices: Any, layers: list[nn.Module]) -> None:
    inputs = next(layer.in_features for layer in layers if isinstance(layer, nn.Linear))
    shape = tuple(vertices.shape) if isinstance(vertices, Tensor) else type(vertices).__name__
    if not isinstance(shape, tuple) or len(shape) != 2 or not shape[0] or shape[1] != inputs:
        raise ConstraintError(f"AffineOn needs vertices as a tensor of shape (v, {inputs}), v at least 1, got {shape}.")


def _outputs(layers: list[nn.Module]) -> int:
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if not linear:
        raise ConstraintError("POLICE needs at least one nn.Linear in the backbone, got none.")
    return linear[-1].out_features


class Abs(nn.Module):
    """The absolute value as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        """``|x|``, entry by entry."""
        return x.abs()


LAYERS = (nn.Linear, nn.ReLU, nn.LeakyReLU, Abs, nn.Identity)
