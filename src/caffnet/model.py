"""CAffNet: a backbone, a null-space head and the CAffine layer."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from caffnet._solve.tracing import is_compiling, is_concrete, undo_autocast
from caffnet.constraints import ArrayLike, broadcasts
from caffnet.errors import ConstraintError
from caffnet.layer import CAffine, Constraint, NullVector
from caffnet.projection import Projection


class CAffNet(nn.Module):
    r"""A network whose output satisfies its constraints: $y = P^*(f_\theta(x), w_\phi(x))$.

    Args:
        backbone: any module ``x -> f``, ``(..., n)``, trained or not.
        constraint: an `AffineSet`, or any function ``x -> AffineSet``.
        null: a module ``x -> w``, ``(..., n)``, that learns where on a face to land; None for the orthogonal
            projection.
        null_start: ``"zero"`` sets the last linear map of `null` to zero, so that training starts from the orthogonal
            projection. A large `w` at the start drives outputs into vertices, where the exact gradient vanishes.
            ``"random"`` leaves `null` as it is, which is the paper's start.
        lazy_null: evaluate `null` only for samples whose f is not feasible, as w has no effect elsewhere. Needs an x
            and an f with one batch axis, x a tensor. (`null` is evaluated for all samples in graphs, with `strict` and
            with equalities, which no f satisfies.) The answers and gradients are the same to rounding if `null` treats
            every sample separately: no batch statistics, no dropout.
        null_limit: a number c: w is shortened to ``c · dist(f, S)`` where it is longer, and the output no longer jumps
            where f leaves the set. None is the paper's map. (Not for exported graphs.)
        metric: the metric of distances, as in `CAffine`.
        **options: for the layer, as in `project`.

    **The jump, and its removal.** In the paper's map the output is f inside the set and near ``f + w`` just outside:
    where f crosses the boundary it jumps by the size of w. With `null_limit` w becomes

        w' = w · min(1, c d / |w|),    d = dist(f, S) = |f - P(f)|,  P the Euclidean projection.

    As f approaches the set, d and so w' go to 0, and with them the distance from f to the output:

        |P*(f, w') - f| <= (1 + 2c) d.

    For the projection q of ``f + w'`` on the set is a candidate, ``|q - f| <= dist(f + w', S) + |w'| <= d + 2 |w'|``;
    and if ``f + w'`` is inside the set, its foot on the nearest row is one, no farther from it than the boundary
    between it and f, so within ``2 |w'|`` of f. The answer is the candidate nearest to f. (Where the face of P(f) has
    room for w', that candidate is within ``sqrt(1 + c²) d``.) So the output is continuous where f leaves the set; where
    the face changes it still jumps, by no more than ``2 (1 + 2c) d``. ``search="lite"`` leaves out faces and
    jumps for that reason.

    Everything in w' is differentiated: w, and the factor by w, by f and by the set through d. Where the limit holds,
    only the direction of w counts, so its gradient is orthogonal to w. With ``gradient="tangent"`` this part stays
    exact. d costs one more projection; where f is inside it is 0. In a metric, d is the length of the way from f to its
    projection in that metric, which may be longer than the way to the nearest point.

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
        lazy_null: bool = False,
        null_limit: float | None = None,
        metric: ArrayLike | None = None,
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
        if null is not None and not isinstance(null, nn.Module):
            raise ConstraintError(f"null must be a module x -> w, or None, got {type(null).__name__}.")
        self.backbone = backbone
        self.null = null
        self.lazy_null = lazy_null
        self.layer = CAffine(constraint, null_limit=null_limit, metric=metric, **options)
        if null is not None and null_start == "zero":
            _silence(null)

    def forward(self, x: Any, nominal: Tensor | None = None) -> Tensor:
        """Return the constrained output. `nominal` is added to the raw output: the network then learns a correction."""
        f = self._output(x, nominal)
        return self.layer(f, self._null_vector(x, f), x=x)

    def project(self, x: Any, nominal: Tensor | None = None) -> Projection:
        """Do the same as `forward`, with diagnostics: status, active rows, violation."""
        f = self._output(x, nominal)
        return self.layer.project(f, self._null_vector(x, f), x=x)

    def raw(self, x: Any, nominal: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the raw output f and the null-space vector w of all samples."""
        return self._output(x, nominal), None if self.null is None else undo_autocast(self.null(x))

    def _output(self, x: Any, nominal: Tensor | None) -> Tensor:
        f = self.backbone(x)
        if not isinstance(f, Tensor):
            raise ConstraintError(
                f"The backbone must return one tensor (..., n), got {type(f).__name__}: wrap it in a module that "
                "returns its output alone. The order is CAffNet(backbone, constraint)."
            )
        f = undo_autocast(f)
        if nominal is None:
            return f
        if not isinstance(nominal, Tensor):
            raise ConstraintError(
                f"nominal must be a tensor, got {type(nominal).__name__}: write torch.as_tensor(nominal)."
            )
        if nominal.shape[-1:] != f.shape[-1:] or not broadcasts(nominal.shape, f.shape):
            raise ConstraintError(
                f"nominal is added to the output of the backbone {tuple(f.shape)}: it must have the same shape, or "
                f"{tuple(f.shape[-1:])} for all samples, got {tuple(nominal.shape)}."
            )
        return f + nominal

    def _null_vector(self, x: Any, f: Tensor) -> NullVector:
        """Return w, or a function that computes it for the samples that the layer asks for."""
        if self.null is None:
            return None
        lazy = self.lazy_null and isinstance(x, Tensor) and f.ndim == 2 <= x.ndim and x.shape[0] == f.shape[0]
        return partial(self._null_at, x, f) if lazy else self.null(x)

    def _null_at(self, x: Tensor, f: Tensor, asked: Tensor) -> Tensor:
        """Return the null-space vector ``(B, n)``, zero where `asked` ``(B,)`` is False."""
        assert self.null is not None
        if is_compiling() or not is_concrete(asked):
            return self.null(x)
        if not asked.any():
            if not torch.is_grad_enabled():
                return torch.zeros_like(f)
            # Evaluate one sample, so that the weights get a gradient (of zero), as they would if all were evaluated.
            asked = torch.arange(len(asked), device=asked.device) == 0
        if asked.all():
            return self.null(x)
        some = self.null(x[asked])
        return some.new_zeros(len(asked), some.shape[-1]).index_put((asked,), some)


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
