"""Frerix, Nießner and Cremers (2020): non-negative combinations of the rays of a cone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from caffnet import tolerance
from caffnet.constraints import AffineSet
from caffnet.methods.base import Guarantee, Method, Supports
from caffnet.methods.cone import generators
from caffnet.methods.linear_programs import one_sided
from caffnet.methods.penalty import Penalty


class Frerix(Method):
    r"""$y = \sum_r |z_r|\, r$ over the rays r of $\{y : A y \le 0\}$, $z = W\, BatchNorm(f) + c$.

    Args:
        backbone: any module ``x -> f``.
        constraint: one `AffineSet` for all inputs, with all bounds zero: a cone. Its rays are found once, by double
            description.
        normalise: batch normalisation before the linear map (published; inputs are then ``(batch, ...)``).
        box: also keep ``-1 <= y <= 1``: divide by ``max(1, |y|_inf)``, which stays in the cone.
        box_epoch: in training the division starts with this epoch (published: 25); in evaluation it is always on.
        penalty: the soft term, none in the paper.

    The weights of the map start uniform in ``(-1/n, 1/n)``, its bias at zero.

    >>> method = Frerix(nn.Identity(), AffineSet.inequality([[-1.0, 0.0], [0.0, -1.0]], 0.0)).eval()
    >>> bool((method(torch.randn(5, 2)) >= 0).all())
    True
    """

    name = "frerix"
    title = "Frerix et al."
    guarantee = Guarantee.EXACT
    closed_form = True
    supports = Supports(input_dependent_b=False, input_dependent_A=False, inhomogeneous=False)

    rays: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        constraint: AffineSet,
        *,
        normalise: bool = True,
        box: bool = False,
        box_epoch: int = 25,
        penalty: Penalty | None = None,
    ):
        super().__init__(backbone, constraint, penalty=penalty)
        A, b, C, d = one_sided(self.set_at())
        if b.any() or d.any():
            self.refuse("a bound is not zero", "a cone, all bounds zero", "METHODS['rayen'] or METHODS['caffnet-ff']")
        share = tolerance.rank(self.A.dtype, self.A.shape[-1])
        rays = torch.as_tensor(generators(A, C, share), dtype=self.A.dtype, device=self.A.device)
        if not len(rays):
            self.refuse("the only point of the cone is the origin", "a cone with at least one ray")
        self.register_buffer("rays", rays)
        n = self.A.shape[-1]
        self.norm = nn.BatchNorm1d(n, dtype=rays.dtype, device=rays.device) if normalise else nn.Identity()
        self.map = nn.Linear(n, len(rays), dtype=rays.dtype, device=rays.device)
        nn.init.uniform_(self.map.weight, -1 / n, 1 / n)
        nn.init.zeros_(self.map.bias)
        self.box, self.box_epoch, self.epoch = box, box_epoch, 0

    def start_epoch(self, epoch: int) -> None:
        """Start the division by the largest entry in epoch `box_epoch`."""
        self.epoch = epoch

    def enforce(self, f: Tensor, set: AffineSet) -> Tensor:
        """Combine the rays."""
        flat = f.reshape(-1, f.shape[-1])
        y = (self.map(self.norm(flat)).abs() @ self.rays).reshape(f.shape)
        if self.box and (not self.training or self.epoch >= self.box_epoch):
            y = y / y.abs().amax(-1, keepdim=True).clamp_min(1.0)
        return y
