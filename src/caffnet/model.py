"""CAffNet: a backbone, a null-space head and the CAffine layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from caffnet.errors import ConstraintError
from caffnet.layer import CAffine, Constraint
from caffnet.projection import Projection


class CAffNet(nn.Module):
    r"""A network whose output satisfies its constraints: $y = P^*(f_\theta(x), w_\phi(x))$.

    Args:
        backbone: any module ``x -> f``, ``(..., n)``; trained already or to be trained.
        constraint: an `AffineSet`, or any function ``x -> AffineSet``.
        null: a module ``x -> w``, ``(..., n)``, that learns where on a face to land; None for the orthogonal
            projection.
        null_start: ``"zero"`` sets the last linear map of `null` to zero, so that training starts from the orthogonal
            projection. A large `w` at the start drives outputs into vertices, where the exact gradient vanishes.
            ``"random"`` leaves `null` as it is, which is the paper's start.
        **options: for the layer, as in `project`.

    >>> import torch
    >>> from caffnet import AffineSet, FeedForward
    >>> model = CAffNet(FeedForward(3, 2), AffineSet.box(0.0, 1.0, dim=2), null=FeedForward(3, 2))
    >>> bool(AffineSet.box(0.0, 1.0, dim=2).contains(model(torch.randn(8, 3))).all())
    True
    """

    def __init__(
        self,
        backbone: nn.Module,
        constraint: Constraint,
        null: nn.Module | None = None,
        *,
        null_start: str = "zero",
        **options: Any,
    ):
        super().__init__()
        if null_start not in ("zero", "random"):
            raise ConstraintError(f"null_start must be 'zero' or 'random', got {null_start!r}.")
        if not callable(backbone):
            raise ConstraintError(
                f"backbone must be a module x -> f, got {type(backbone).__name__}: the order is "
                "CAffNet(backbone, constraint)."
            )
        self.backbone = backbone
        self.null = null
        self.layer = CAffine(constraint, **options)
        if null is not None and null_start == "zero":
            _silence(null)

    def forward(self, x: Any, nominal: Tensor | None = None) -> Tensor:
        """The constrained output. `nominal` is added to the raw output: the network then learns a correction."""
        f, w = self.raw(x, nominal)
        return self.layer(f, w, x=x)

    def project(self, x: Any, nominal: Tensor | None = None) -> Projection:
        """As `forward`, with the evidence: status, active rows, violation."""
        f, w = self.raw(x, nominal)
        return self.layer.project(f, w, x=x)

    def raw(self, x: Any, nominal: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The raw output f and the null-space vector w."""
        f = _full(self.backbone(x))
        if nominal is not None:
            f = f + nominal
        return f, None if self.null is None else _full(self.null(x))


def _full(output: Tensor) -> Tensor:
    """What autocast left in half precision, in float32 again (exactly): the layer needs it."""
    half = output.dtype in (torch.float16, torch.bfloat16)
    return output.float() if half and torch.is_autocast_enabled(output.device.type) else output


def _silence(null: nn.Module) -> None:
    """Set the last linear map to zero: its own gradient is not zero, so it learns from the first step on."""
    linear = [module for module in null.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ConstraintError(
            f"{type(null).__name__} has no nn.Linear to start at zero: make its output zero yourself "
            "and pass null_start='random'."
        )
    nn.init.zeros_(linear[-1].weight)
    if linear[-1].bias is not None:
        nn.init.zeros_(linear[-1].bias)
