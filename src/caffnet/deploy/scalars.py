"""A torch function as straight-line C: one assignment per number.

The function is traced for one sample. Its graph is then walked with numbers instead of tensors: a tensor is an array of
places in a list of expressions. What moves numbers about (view, cat, permute, ...) is done to the array of places by
torch itself and costs nothing in C. What computes writes one line per number. Equal lines are written once, what
depends on no input is computed here. For the rows of a set, a few dozen numbers, this is what one would write by hand.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from caffnet.errors import ConstraintError

#: Operations that move numbers: torch does them to the places.
_MOVES = {
    "_reshape_copy",
    "_unsafe_view",
    "alias",
    "cat",
    "clone",
    "detach",
    "diagonal",
    "diagonal_scatter",
    "expand",
    "flatten",
    "flip",
    "gather",
    "index",
    "index_select",
    "lift_fresh",
    "lift_fresh_copy",
    "narrow_copy",
    "permute",
    "repeat",
    "reshape",
    "roll",
    "select",
    "select_scatter",
    "slice",
    "slice_scatter",
    "split",
    "split_with_sizes",
    "squeeze",
    "stack",
    "t",
    "transpose",
    "unbind",
    "unfold",
    "unsqueeze",
    "view",
}

#: Operations on one number at a time. {0}, {1}: operands; functions of math.h end in f for float32.
_TEMPLATES = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "rsub": "{1} - {0}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "reciprocal": "1 / {0}",
    "abs": "fabs#({0})",
    "sqrt": "sqrt#({0})",
    "rsqrt": "1 / sqrt#({0})",
    "exp": "exp#({0})",
    "expm1": "expm1#({0})",
    "log": "log#({0})",
    "log1p": "log1p#({0})",
    "log2": "log2#({0})",
    "exp2": "exp2#({0})",
    "sin": "sin#({0})",
    "cos": "cos#({0})",
    "tan": "tan#({0})",
    "asin": "asin#({0})",
    "acos": "acos#({0})",
    "atan": "atan#({0})",
    "atan2": "atan2#({0}, {1})",
    "sinh": "sinh#({0})",
    "cosh": "cosh#({0})",
    "tanh": "tanh#({0})",
    "floor": "floor#({0})",
    "ceil": "ceil#({0})",
    "pow": "pow#({0}, {1})",
    "sigmoid": "1 / (1 + exp#(-{0}))",
    "relu": "{0} < 0 ? 0 : {0}",
    "sign": "(@)(({0} > 0) - ({0} < 0))",
    # NaN in an operand is the answer, as in torch.
    "maximum": "{0} > {1} || {0} != {0} ? {0} : {1}",
    "minimum": "{0} < {1} || {0} != {0} ? {0} : {1}",
    "where": "{0} != 0 ? {1} : {2}",
    "eq": "(@)({0} == {1})",
    "ne": "(@)({0} != {1})",
    "lt": "(@)({0} < {1})",
    "le": "(@)({0} <= {1})",
    "gt": "(@)({0} > {1})",
    "ge": "(@)({0} >= {1})",
    "logical_not": "(@)({0} == 0)",
    "logical_and": "(@)({0} != 0 && {1} != 0)",
    "logical_or": "(@)({0} != 0 || {1} != 0)",
}
_SAME = {"bitwise_not": "logical_not", "bitwise_and": "logical_and", "bitwise_or": "logical_or"}
_REDUCTIONS = {"sum": "add", "mean": "add", "amax": "maximum", "amin": "minimum", "prod": "mul", "any": "logical_or"}


def write_function(function: Callable[[Tensor], Sequence[Tensor]], x: Tensor, names: Sequence[str]) -> list[str]:
    """The body of a C function that reads ``x[...]`` and writes the results to arrays with these names.

    Args:
        function: made of torch operations, of one sample; it must not branch on the numbers of x.
        x: an example of the sample; its shape and number type are those of the C function.
        names: of the results.

    Raises:
        ConstraintError: the function holds an operation that has no line in C.

    >>> write_function(lambda x: [x.sin() * 2], torch.zeros(1, dtype=torch.float64), ["y"])
    ['const double t1 = sin(x[0]);', 'const double t3 = t1 * 2.0;', 'y[0] = t3;']
    """
    writer = _Writer(x)
    return writer.write(writer.run(_trace(function, x)), names)


def batch_function(function: Callable[[Tensor], Sequence[Tensor]], x: Tensor) -> Callable[[Tensor], list[Tensor]]:
    """The same straight-line program in torch, for samples ``(..., size)``: a function that only adds, multiplies, ...

    For exporters, which trace neither derivatives nor `torch.func.vmap` for any batch.

    >>> double = batch_function(lambda x: [torch.func.jacrev(torch.square)(x)], torch.zeros(2))
    >>> double(torch.tensor([[1.0, 2.0]]))
    [tensor([[[2., 0.],
             [0., 4.]]])]
    """
    writer = _Writer(x)
    results = writer.run(_trace(function, x))
    return lambda samples: writer.compute(results, samples)


def _trace(function: Callable[[Tensor], Sequence[Tensor]], x: Tensor) -> torch.fx.GraphModule:
    rules: Any = dict(torch.export.default_decompositions().items())
    return make_fx(functionalize(function, remove="mutations"), rules)(x)


class _Result(NamedTuple):
    """A result of the function: its shape and the places of its numbers."""

    shape: torch.Size
    places: list[int]


class _Writer:
    """The list of expressions, and the lines of C that compute them."""

    def __init__(self, x: Tensor):
        self.x, self.double = x, x.dtype == torch.float64
        self.expressions: list[str] = []
        self.known: dict[str, int] = {}
        self.inputs: dict[int, int] = {}  # by place
        self.numbers: dict[int, float] = {}
        self.steps: dict[int, tuple[str, str, tuple[int, ...]]] = {}  # operation, line of C, the places that are read

    def run(self, traced: torch.fx.GraphModule) -> list[_Result]:
        """Walk through the graph; the places of the results."""
        values: dict[torch.fx.Node, Any] = {}
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                values[node] = _Places(self._inputs())
            elif node.op == "get_attr":
                values[node] = getattr(traced, str(node.target))
            elif node.op == "call_function":
                args, kwargs = map_arg((node.args, dict(node.kwargs)), values.__getitem__)
                values[node] = self.call(node.target, args, kwargs)
            elif node.op == "output":
                results = (self.places(result) for result in map_arg(node.args[0], values.__getitem__))
                return [_Result(at.shape, at.reshape(-1).tolist()) for at in results]
        raise AssertionError("a graph has an output")

    def _needed(self, results: Sequence[_Result]) -> set[int]:
        """The places that the results depend on."""
        needed = {place for result in results for place in result.places}
        for place, (_, _, read) in reversed(self.steps.items()):
            if place in needed:
                needed.update(read)
        return needed

    def write(self, results: Sequence[_Result], names: Sequence[str]) -> list[str]:
        """The lines of C."""
        needed = self._needed(results)
        lines = [line for place, (_, line, _) in self.steps.items() if place in needed]
        for name, result in zip(names, results, strict=True):
            lines += [f"{name}[{i}] = {self.expressions[place]};" for i, place in enumerate(result.places)]
        return lines

    def compute(self, results: Sequence[_Result], samples: Tensor) -> list[Tensor]:
        """The results for samples ``(..., size)``, in torch."""
        needed, values = self._needed(results), {}
        for place, i in self.inputs.items():
            values[place] = samples[..., i]
        for place, number in self.numbers.items():
            if place in needed:
                values[place] = torch.tensor(number, dtype=samples.dtype)
        for place, (name, _, read) in self.steps.items():
            if place in needed:
                values[place] = _operate(name, *(values[p] for p in read))
        batch = samples.shape[:-1]
        return [
            torch.stack([values[p].expand(batch) for p in result.places], -1).reshape(*batch, *result.shape)
            for result in results
        ]

    def _inputs(self) -> Tensor:
        places = [self.place(f"x[{i}]") for i in range(self.x.numel())]
        self.inputs = {place: i for i, place in enumerate(places)}
        return torch.tensor(places, dtype=torch.int64).reshape(self.x.shape)

    # --------------------------------------------------------------------------------------------- numbers

    def place(self, expression: str) -> int:
        """The place of an expression in the list; a new one where it is not there."""
        if expression not in self.known:
            self.known[expression] = len(self.expressions)
            self.expressions.append(expression)
        return self.known[expression]

    def assign(self, name: str, *operands: int) -> int:
        """The place of an operation on numbers; a line of C where it is new."""
        name = _SAME.get(name, name)
        real, end = ("double", "") if self.double else ("float", "f")
        text = _TEMPLATES[name].replace("#", end).replace("@", real).format(*(self.expressions[p] for p in operands))
        if text not in self.known:
            place = len(self.expressions)
            variable = f"t{place}"
            self.steps[place] = (name, f"const {real} {variable} = {text};", operands)
            self.known[text] = place
            self.expressions.append(variable)
        return self.known[text]

    def constant(self, number: float) -> int:
        text = number_text(number, self.double)
        place = self.place(f"({text})" if text.startswith("-") else text)
        self.numbers[place] = number
        return place

    def places(self, value: Any) -> Tensor:
        """The places of a tensor or number; those of a constant are made."""
        if isinstance(value, _Places):
            return value.at
        tensor = torch.as_tensor(value)
        flat = [self.constant(float(v)) for v in tensor.reshape(-1).tolist()]
        return torch.tensor(flat, dtype=torch.int64).reshape(tensor.shape)

    # --------------------------------------------------------------------------------------------- operations

    def call(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is operator.getitem:
            return args[0][args[1]]
        if not any(isinstance(a, _Places) for a in _leaves((args, kwargs))):
            return target(*args, **kwargs)
        name = str(target).removeprefix("aten.").split(".")[0]
        if name in _MOVES:
            return self._move(name, target, args, kwargs)
        if name in ("squeeze_", "unsqueeze_"):  # left over where torch decomposes a product
            args[0].at = target(args[0].at.clone(), *args[1:])
            return args[0]
        if name in _TEMPLATES or name in _SAME:
            return self._elementwise(name, args, kwargs)
        if name in _REDUCTIONS:
            return self._reduce(name, *args, **kwargs)
        special = getattr(self, f"_do_{name.lstrip('_')}", None)
        if special is None:
            raise ConstraintError(
                f"The constraint function holds the operation {target}, which to_c does not write in C. Write it with "
                "simpler ones, or export the model with to_onnx or to_aot."
            )
        return special(*args, **kwargs)

    def _move(self, name: str, target: Any, args: Any, kwargs: Any) -> Any:
        args = list(args)
        if name in ("cat", "stack"):
            args[0] = [self.places(part) for part in args[0]]
        elif name.endswith("_scatter"):
            args[:2] = [self.places(part) for part in args[:2]]
        else:
            args[0] = self.places(args[0])
        kwargs = {key: value for key, value in kwargs.items() if key not in ("dtype", "memory_format")}
        moved = target(*args, **kwargs)
        return [_Places(part) for part in moved] if isinstance(moved, list | tuple) else _Places(moved)

    def _elementwise(self, name: str, args: Any, kwargs: Any) -> _Places:
        scale = kwargs.get("alpha", 1)
        operands = [self.places(a) for a in args]
        if scale != 1:
            operands[1] = self._map("mul", operands[1], self.places(scale))
        if name == "pow" and not isinstance(args[1], _Places | Tensor) and args[1] == 2:
            return _Places(self._map("mul", operands[0], operands[0]))
        return _Places(self._map(name, *operands))

    def _map(self, name: str, *operands: Tensor) -> Tensor:
        together = torch.broadcast_tensors(*operands)
        lists = zip(*(t.reshape(-1).tolist() for t in together), strict=True)
        return torch.tensor([self.assign(name, *some) for some in lists], dtype=torch.int64).reshape(together[0].shape)

    def _reduce(self, name: str, value: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> _Places:
        places = self.places(value)
        dims = [dims] if isinstance(dims, int) else list(dims or range(places.ndim))
        dims = [d % max(places.ndim, 1) for d in dims]
        kept = [d for d in range(places.ndim) if d not in dims]
        shape = [1 if d in dims else size for d, size in enumerate(places.shape)]
        count = math.prod(places.shape[d] for d in dims)
        flat = places.permute(*kept, *dims).reshape(-1, count).tolist()
        found = [reduce(lambda a, b: self.assign(_REDUCTIONS[name], a, b), line) for line in flat]
        if name == "mean":
            found = [self.assign("div", total, self.constant(count)) for total in found]
        result = torch.tensor(found, dtype=torch.int64)
        return _Places(result.reshape(shape if keepdim else [places.shape[d] for d in kept]))

    def _do_mm(self, a: Any, b: Any) -> _Places:
        left, right = self.places(a), self.places(b).mT
        products = self._map("mul", left.unsqueeze(-2), right.unsqueeze(-3))
        return self._reduce("sum", _Places(products), [-1])

    _do_bmm = _do_mm

    def _do_addmm(self, c: Any, a: Any, b: Any) -> _Places:
        return _Places(self._map("add", self.places(c), self._do_mm(a, b).at))

    def _do_clamp(self, value: Any, low: Any = None, high: Any = None) -> _Places:
        places = self.places(value)
        for name, limit in (("maximum", low), ("minimum", high)):
            places = places if limit is None else self._map(name, places, self.places(limit))
        return _Places(places)

    def _do_full_like(self, value: Any, fill: float, **_: Any) -> Tensor:
        return torch.full(self.places(value).shape, fill, dtype=self.x.dtype)

    def _do_to_copy(self, value: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
        if dtype in (None, self.x.dtype, torch.bool):
            return value
        raise ConstraintError(
            f"The constraint function computes in {dtype} from an input in {self.x.dtype}: to_c writes one number type."
        )

    def _do_constant_pad_nd(self, value: Any, pad: Sequence[int], fill: float = 0) -> _Places:
        return _Places(torch.nn.functional.pad(self.places(value), list(pad), value=self.constant(fill)))


def _operate(name: str, *operands: Tensor) -> Tensor:
    """An operation of `_TEMPLATES` in torch; the truth of a comparison is 1 or 0, as in C."""
    if name == "where":
        return torch.where(operands[0] != 0, *operands[1:])
    if name == "rsub":
        return operands[1] - operands[0]
    found = getattr(torch, name)(*operands)
    return found.to(operands[0].dtype) if found.dtype == torch.bool else found


class _Places:
    """A tensor that depends on the input: the places of its numbers."""

    def __init__(self, at: Tensor):
        self.at = at


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [leaf for part in tree for leaf in _leaves(part)] if isinstance(tree, list | tuple) else [tree]


def number_text(x: float, double: bool = True) -> str:
    """A number in C, exactly."""
    if math.isnan(x):
        return "NAN"
    if math.isinf(x):
        return "INFINITY" if x > 0 else "-INFINITY"
    short = repr(x)
    text = short if len(short) < 8 else x.hex()
    return text if double else f"{text}f"
