"""A torch function as a straight-line program: one assignment per number.

The function is traced for one sample. Its graph is then walked with places of numbers instead of tensors
(`operations`), which gives a list of `assignments`. Constants are computed here. For the rows of a set, a few dozen
numbers, the program is what one would write by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from caffnet.deploy.assignments import Assignments, Result
from caffnet.deploy.operations import Operations, Places
from caffnet.errors import ConstraintError

_IN_C = "Write it with simpler ones; to_onnx and to_aot may hold it, where no derivative is taken of it."
_IN_GRAPHS = (
    "Write it with simpler ones, or define evaluate(x) in a subclass of Barrier, with the gradient written out."
)


class StraightLine:
    """The program of a function.

    Args:
        function: made of torch operations, of one sample; it must not branch on the numbers of x.
        x: an example of the sample; its shape and number type are those of the program.
        remedy: a sentence for the message about an operation that cannot be written: what to do instead.

    Raises:
        ConstraintError: the function contains an operation that cannot be written.

    >>> StraightLine(lambda x: [x.sin() * 2], torch.zeros(1, dtype=torch.float64)).lines(["y"])
    ['const double t1 = sin(x[0]);', 'const double t3 = t1 * 2.0;', 'y[0] = t3;']
    """

    def __init__(self, function: Callable[[Tensor], Sequence[Tensor]], x: Tensor, remedy: str = _IN_C):
        self._assignments = Assignments(x)
        self._results = _walk(_trace(function, x), self._assignments, x.dtype, remedy)

    def lines(self, names: Sequence[str]) -> list[str]:
        """Return the body of a C function that reads ``x[...]`` and writes the results to arrays with these names."""
        return self._assignments.write(self._results, names)

    def __call__(self, samples: Tensor) -> list[Tensor]:
        """Compute the results for samples ``(..., size)``, by the same assignments in torch."""
        return self._assignments.compute(self._results, samples)


def batch_function(function: Callable[[Tensor], Sequence[Tensor]], x: Tensor) -> StraightLine:
    """Return the straight-line program as a function in torch, for samples ``(..., size)``: it only adds, multiplies,
    ...

    For exporters, which trace neither derivatives nor `torch.func.vmap` for any batch.

    >>> double = batch_function(lambda x: [torch.func.jacrev(torch.square)(x)], torch.zeros(2))
    >>> double(torch.tensor([[1.0, 2.0]]))
    [tensor([[[2., 0.],
             [0., 4.]]])]
    """
    return StraightLine(function, x, _IN_GRAPHS)


def _trace(function: Callable[[Tensor], Sequence[Tensor]], x: Tensor) -> torch.fx.GraphModule:
    rules: Any = dict(torch.export.default_decompositions().items())
    try:
        traced = make_fx(functionalize(function, remove="mutations"), rules)(x)
    except RuntimeError as error:
        if "trying to get value out of a tracing tensor" not in str(error):
            raise
        raise ConstraintError(
            "The constraint function reads a number that depends on its input (a branch, .item(), an index), but a "
            "program can hold only one branch: write torch.where, or torch.gather for an index."
        ) from None
    traced.graph.eliminate_dead_code()
    return traced


def _walk(traced: torch.fx.GraphModule, program: Assignments, dtype: torch.dtype, remedy: str) -> list[Result]:
    """Walk through the graph and return the places of the results."""
    operations = Operations(program, dtype, remedy)
    values: dict[torch.fx.Node, Any] = {}
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            values[node] = Places(program.input_places, dtype)
        elif node.op == "get_attr":
            values[node] = getattr(traced, str(node.target))
        elif node.op == "call_function":
            args, kwargs = map_arg((node.args, dict(node.kwargs)), values.__getitem__)
            values[node] = operations.call(node.target, args, kwargs, node.meta.get("val"))
        elif node.op == "output":
            results = (operations.places(result) for result in map_arg(node.args[0], values.__getitem__))
            return [Result(at.shape, at.reshape(-1).tolist()) for at in results]
    raise AssertionError("a graph has an output")
