"""CAffNet itself (feed-forward, transformer, Lite), called in the same way as its rivals."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from caffnet.backbones import FeedForward, Transformer
from caffnet.constraints import AffineSet
from caffnet.errors import ConstraintError
from caffnet.methods.base import Guarantee, Method, Output
from caffnet.methods.penalty import Penalty
from caffnet.model import CAffNet as Model
from caffnet.projection import project


class CAffNetMethod(Method):
    """A `caffnet.CAffNet`; subclasses fix its backbone, its null-space head and its search."""

    guarantee = Guarantee.EXACT
    closed_form = True
    network: ClassVar[type[nn.Module]] = nn.Module
    search: ClassVar[str] = "auto"

    def __init__(
        self,
        backbone: nn.Module,
        constraint: AffineSet | Callable[[Any], AffineSet],
        *,
        null: nn.Module | None = None,
        penalty: Penalty | None = None,
        **options: Any,
    ):
        super().__init__(backbone, constraint, penalty=penalty)
        if not isinstance(backbone, self.network):
            raise ConstraintError(
                f"{self.title} needs a {self.network.__name__} backbone, got {type(backbone).__name__}. "
                "Any other module works in caffnet.CAffNet(backbone, constraint, null=...)."
            )
        del self.backbone  # it is a part of the model
        head = self._head(backbone) if null is None else null
        self.model = Model(backbone, constraint, head, **{"search": self.search, **options})

    def _keep(self, constraint: AffineSet | Callable[[Any], AffineSet]) -> None:
        """Keep nothing: the layer of the model has the constraint."""

    def _head(self, backbone: nn.Module) -> nn.Module | None:
        return twin(backbone)

    def set_at(self, x: Any = None) -> AffineSet:
        """The constraints that hold for the input `x`."""
        found = self.model.layer.set_at(x)
        return found if isinstance(found, AffineSet) else found.set

    def run(self, x: Any, nominal: Tensor | None = None) -> Output:
        """As `forward`, with the raw output and the set."""
        f, w = self.model.raw(x, nominal)
        projection = self.model.layer.project(f, w, x=x)
        return Output(projection.value, f, projection.set)

    def enforce(self, f: Tensor, set: AffineSet) -> Tensor:
        """The layer without a null-space vector."""
        return project(f, set, **self.model.layer.options).value

    def extra_repr(self) -> str:
        """Return no text: the layer shows the set."""
        return ""


class CAffNetFF(CAffNetMethod):
    """CAffNet-FF: feed-forward backbone and null-space head, two networks of equal size, as in the paper.

    Args:
        backbone: a `FeedForward`.
        constraint: an `AffineSet`, or any function ``x -> AffineSet``.
        null: the null-space head; None for a fresh network of the backbone's shape.
        penalty: the soft term of the loss; the paper has it with weight 100 here too, where it is always zero.
        **options: of `caffnet.CAffNet` and its layer (`null_start`, `search`, `norm`, `gradient`, ...).
    """

    name = "caffnet-ff"
    title = "CAffNet-FF"
    network = FeedForward
    instead = "soft"


class CAffNetTF(CAffNetMethod):
    """CAffNet-TF: transformer backbone, and a head that shares its embedding. Arguments as CAffNet-FF."""

    name = "caffnet-tf"
    title = "CAffNet-TF"
    network = Transformer
    instead = "soft"


class CAffNetLite(CAffNetFF):
    """CAffNet-Lite: only single rows and minimal faces are looked at. Arguments as CAffNet-FF."""

    name = "caffnet-lite"
    title = "CAffNet-Lite"
    search = "lite"


def twin(backbone: nn.Module) -> nn.Module:
    """Return a second network of the shape of the backbone, with new random weights."""
    if isinstance(backbone, Transformer):
        return backbone.twin()
    other = copy.deepcopy(backbone)
    for module in other.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
    return other
