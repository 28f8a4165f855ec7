"""Save and load as model hubs do: `model.safetensors` with the weights and the set, `config.json` with the rest.

``python docs/recipes/hub.py [FOLDER]``
"""

import sys

import torch
from huggingface_hub import PyTorchModelHubMixin

from caffnet import AffineSet, CAffNet, FeedForward


class Allocator(CAffNet, PyTorchModelHubMixin):
    """A network with a fixed set. Its arguments are what JSON holds; the mixin writes them into the config.

    Args:
        n_in: inputs of the network.
        rows: A, ``m`` lists of ``n`` numbers.
        lower: lower bounds; None where there is none, as JSON has no infinity.
        upper: upper bounds, likewise.
        names: one per row.
        hidden: width of the network.
    """

    def __init__(
        self,
        n_in: int,
        rows: list[list[float]],
        lower: list[float | None],
        upper: list[float | None],
        names: list[str],
        hidden: int = 64,
    ):
        low = [-torch.inf if bound is None else bound for bound in lower]
        high = [torch.inf if bound is None else bound for bound in upper]
        limits = AffineSet(rows, low, high, names=names)
        super().__init__(FeedForward(n_in, limits.n, hidden=hidden), limits, gradient="tangent")


def main(folder: str = "allocator") -> None:
    model = Allocator(
        n_in=4,
        rows=[[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        lower=[1.0, 0.0, 0.0, 0.0],
        upper=[1.0, None, None, 0.5],
        names=["total", "first", "second", "third"],
    )
    model.save_pretrained(folder)  # or push_to_hub("name/model")
    again = Allocator.from_pretrained(folder)
    x = torch.randn(10, 4)
    y = again(x)
    assert torch.equal(y, model(x))
    limits = again.layer.set_at()
    assert limits.contains(y).all() and limits.names[0] == "total"
    print(limits, "came with the model")


if __name__ == "__main__":
    main(*sys.argv[1:])
