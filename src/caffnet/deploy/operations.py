"""The operations of a traced graph, applied to places instead of numbers: a tensor is an array of places of
`Assignments`.

Operations that only move numbers (view, cat, permute, ...) are applied to the array of places by torch itself and cost
nothing. Operations that compute write one assignment per number. Every argument of an operation is either kept or
refused: none is dropped. Truth values are 1 and 0; whole numbers made from them (a count, an index) are treated like
other numbers.
"""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NoReturn

import torch
from torch import Tensor

from caffnet.deploy.assignments import TEMPLATES, Assignments
from caffnet.errors import ConstraintError

#: Operations that only move numbers: torch applies them to the places.
MOVES = {
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
#: Operations that use only the shape of a tensor: their results are constants.
_FILLED = {
    "_new_zeros_with_same_feature_meta",
    "full_like",
    "new_full",
    "new_ones",
    "new_zeros",
    "ones_like",
    "zeros_like",
}
_SAME = {
    "bitwise_not": "logical_not",
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
    "bitwise_xor": "logical_xor",
    "sgn": "sign",
}
_REDUCTIONS = {
    "sum": "add",
    "mean": "add",
    "amax": "maximum",
    "amin": "minimum",
    "prod": "mul",
    "any": "logical_or",
    "all": "logical_and",
}
_EMPTY = {"sum": 0.0, "mean": math.nan, "prod": 1.0, "any": 0.0, "all": 1.0}
#: Operations whose whole numbers are small: counts of truth values, and indices.
_COUNTING = {"sum", "cumsum", "add", "sub", "mul", "where", "max", "min", "argmax", "argmin", "_to_copy"}
#: Arguments with these names do not affect the numbers, or are checked by the type of the result.
_OF_STORAGE = {"device", "dtype", "layout", "memory_format", "non_blocking", "pin_memory", "sparse_grad"}
#: Operations that torch marks as random but that are random in training only.
_RANDOM_IN_TRAINING = re.compile("dropout|attention|rrelu")


class Places:
    """A tensor that depends on the input: the places of its numbers, and the number type that torch gives it."""

    def __init__(self, at: Tensor, dtype: torch.dtype = torch.float64):
        self.at, self.dtype = at, dtype


def refuse_random(target: Any) -> None:
    """Refuse an operation that draws random numbers."""
    if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) and not _RANDOM_IN_TRAINING.search(str(target)):
        raise ConstraintError(
            f"The model draws random numbers ({target}), which an exported program does not: draw them outside, and "
            "pass them as part of the input."
        )


class Operations:
    """Applies the operations of a graph to places.

    Args:
        program: receives the assignments.
        dtype: the number type of the input.
        remedy: a sentence for the message about an operation that cannot be written: what to do instead.
    """

    def __init__(self, program: Assignments, dtype: torch.dtype, remedy: str):
        self.program, self.dtype, self.remedy = program, dtype, remedy
        self.target: Any = None  # the operation at hand

    def call(self, target: Any, args: Any, kwargs: Any, like: Any) -> Any:
        """Return the result of an operation; `like` are the tensors that torch returns for it."""
        if target is operator.getitem:
            return args[0][args[1]]
        refuse_random(target)
        self.target = target
        if not any(isinstance(a, Places) for a in _leaves((args, kwargs))):
            return target(*args, **kwargs)
        name = _name_of(target)
        if not hasattr(target, "_schema"):
            self._refuse()
        if name in ("squeeze_", "unsqueeze_"):  # left over where torch decomposes a product
            args[0].at = target(args[0].at.clone(), *args[1:])
            return args[0]
        given = _by_name(target, args, kwargs)
        if name in MOVES and not any(isinstance(given.get(key), Places) for key in ("index", "indices")):
            return self._typed(self._move(args, kwargs), like)
        if name in _FILLED:
            return torch.full(like.shape, _fill_of(name, given), dtype=like.dtype)
        simple = _SAME.get(name, name)
        if simple in TEMPLATES:
            found = self._elementwise(simple, given, like)
        elif name in _REDUCTIONS:
            found = self._bound(self._do_reduce, {**given, "name": name})
        else:
            special = getattr(self, f"_do_{name.lstrip('_')}", None)
            if special is None:
                self._refuse()
            found = self._bound(special, given)
        return self._typed(found, like)

    def places(self, value: Any) -> Tensor:
        """Return the places of a tensor or number; add those of a constant."""
        if isinstance(value, Places):
            return value.at
        tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
        flat = [self.program.constant(float(v)) for v in tensor.reshape(-1).tolist()]
        return torch.tensor(flat, dtype=torch.int64).reshape(tensor.shape)

    # --------------------------------------------------------------------------------------------- refusals

    def _refuse(self, reason: str = "") -> NoReturn:
        raise ConstraintError(
            f"The constraint function holds the operation {self.target}{reason}, which has no straight-line program. "
            f"{self.remedy}"
        )

    def _bound(self, method: Callable[..., Any], given: dict[str, Any]) -> Any:
        """Return the result of a method; refuse an argument that it does not take."""
        taken = inspect.signature(method).parameters
        for key, value in given.items():
            if key not in taken:
                self._refuse(f" with {key}={value!r}")
        return method(**given)

    def _typed(self, found: Any, like: Any) -> Any:
        """Give places the number type of the result of torch; refuse a program that would compute in another type."""
        if isinstance(found, list | tuple):
            return [self._typed(part, other) for part, other in zip(found, like, strict=True)]
        name = _name_of(self.target)
        whole = like.dtype == torch.int64 and (name in MOVES or name in _COUNTING)
        if not (like.dtype in (self.dtype, torch.bool) or whole):
            raise ConstraintError(
                f"The constraint function computes in {like.dtype} from an input in {self.dtype} ({self.target}): a "
                "straight-line program has one number type. Convert numbers with .to(x.dtype)."
            )
        assert found.at.shape == like.shape, f"{self.target}: {found.at.shape} instead of {like.shape}"
        found.dtype = like.dtype
        return found

    # --------------------------------------------------------------------------------------------- kinds of operations

    def _move(self, args: Any, kwargs: Any) -> Any:
        args = list(args)
        if isinstance(args[0], list | tuple):
            args[0] = [self.places(part) for part in args[0]]
        elif "_scatter" in str(self.target):
            args[:2] = [self.places(part) for part in args[:2]]
        else:
            args[0] = self.places(args[0])
        if any(isinstance(a, Places) for a in _leaves((args, kwargs))):
            self._refuse(" at places that depend on the input")
        moved = self.target(*args, **{key: value for key, value in kwargs.items() if key not in _OF_STORAGE})
        return [Places(part) for part in moved] if isinstance(moved, list | tuple) else Places(moved)

    def _elementwise(self, name: str, given: dict[str, Any], like: Tensor) -> Places:
        count = len(set(re.findall(r"\{\d\}", TEMPLATES[name])))
        values, options = list(given.values())[:count], dict(list(given.items())[count:])
        operands = [self.places(value) for value in values]
        scale, rounding = options.pop("alpha", 1), options.pop("rounding_mode", None)
        for key, value in options.items():
            self._refuse(f" with {key}={value!r}")
        if scale != 1:
            operands[1] = self._map("mul", operands[1], self.places(scale))
        if rounding == "floor":
            return Places(self._floor_divide(*operands))
        if name == "pow" and not isinstance(values[1], Places | Tensor) and values[1] == 2:
            return Places(self._map("mul", operands[0], operands[0]))
        if name == "add" and like.dtype == torch.bool:
            name = "logical_or"
        found = self._map(name, *operands)
        return Places(self._map("trunc", found) if rounding == "trunc" else found)

    def _map(self, name: str, *operands: Tensor) -> Tensor:
        together = torch.broadcast_tensors(*operands)
        lists = zip(*(t.reshape(-1).tolist() for t in together), strict=True)
        found = [self.program.assign(name, *some) for some in lists]
        return torch.tensor(found, dtype=torch.int64).reshape(together[0].shape)

    def _number(self, value: float) -> Tensor:
        return torch.tensor(self.program.constant(float(value)))

    def _lines(self, places: Tensor, dims: Any) -> tuple[list[list[int]], list[int], list[int]]:
        """Return the numbers that are reduced together, and the result's shapes with and without the reduced axes."""
        dims = [dims] if isinstance(dims, int) else list(dims or range(places.ndim))
        dims = [d % max(places.ndim, 1) for d in dims] if places.ndim else []
        kept = [d for d in range(places.ndim) if d not in dims]
        count, lines = math.prod(places.shape[d] for d in dims), math.prod(places.shape[d] for d in kept)
        flat = places.permute(*kept, *dims).reshape(lines, count).tolist()
        shape = [1 if d in dims else size for d, size in enumerate(places.shape)]
        return flat, shape, [places.shape[d] for d in kept]

    def _do_reduce(self, name: str, x: Any, dim: Any = None, keepdim: bool = False) -> Places:
        places = self.places(x)
        if name in ("any", "all") and x.dtype != torch.bool:
            places = self._map("ne", places, self._number(0))
        flat, shape, short = self._lines(places, dim)
        assign, constant = self.program.assign, self.program.constant
        found = [
            reduce(lambda a, b: assign(_REDUCTIONS[name], a, b), line) if line else constant(_EMPTY[name])
            for line in flat
        ]
        if name == "mean":
            found = [assign("div", total, constant(len(line))) for total, line in zip(found, flat, strict=True)]
        return Places(torch.tensor(found, dtype=torch.int64).reshape(shape if keepdim else short))

    # --------------------------------------------------------------------------------------------- division

    def _leans(self, rest: Tensor, b: Tensor) -> Tensor:
        """Return 1 where a remainder is not 0 and its sign differs from that of the divisor, else 0."""
        zero = self._number(0)
        other = self._map("logical_xor", self._map("lt", rest, zero), self._map("lt", b, zero))
        return self._map("logical_and", self._map("ne", rest, zero), other)

    def _floor_divide(self, a: Tensor, b: Tensor) -> Tensor:
        """``floor(a / b)`` of the exact quotient, as torch computes it: 1 // 0.1 is 9."""
        zero, one = self._number(0), self._number(1)
        rest, plain = self._map("fmod", a, b), self._map("div", a, b)
        whole = self._map("div", self._map("sub", a, rest), b)
        whole = self._map("where", self._leans(rest, b), self._map("sub", whole, one), whole)
        floor = self._map("floor", whole)
        beyond = self._map("gt", self._map("sub", whole, floor), self._number(0.5))
        floor = self._map("where", beyond, self._map("add", floor, one), floor)
        return self._map("where", self._map("eq", b, zero), plain, floor)

    def _do_rsub(self, x: Any, other: Any, alpha: float = 1) -> Places:
        """``other - alpha x``."""
        places = self.places(x) if alpha == 1 else self._map("mul", self.places(x), self._number(alpha))
        return Places(self._map("sub", self.places(other), places))

    def _do_remainder(self, x: Any, other: Any) -> Places:
        """``x % other`` with the sign of the divisor, as torch computes it."""
        divisor = self.places(other)
        rest = self._map("fmod", self.places(x), divisor)
        return Places(self._map("where", self._leans(rest, divisor), self._map("add", rest, divisor), rest))

    # --------------------------------------------------------------------------------------------- products

    def _do_mm(self, x: Any, mat2: Any) -> Places:
        left, right = self.places(x), self.places(mat2).mT
        products = self._map("mul", left.unsqueeze(-2), right.unsqueeze(-3))
        return self._do_reduce("sum", Places(products), -1)

    _do_bmm = _do_mm

    def _do_mv(self, x: Any, vec: Any) -> Places:
        return self._do_reduce("sum", Places(self._map("mul", self.places(x), self.places(vec))), -1)

    def _plus(self, x: Any, product: Places, beta: float, alpha: float) -> Places:
        """``beta x + alpha product``."""
        first, second = self.places(x), product.at
        first = first if beta == 1 else self._map("mul", first, self._number(beta))
        second = second if alpha == 1 else self._map("mul", second, self._number(alpha))
        return Places(self._map("add", first, second))

    def _do_addmm(self, x: Any, mat1: Any, mat2: Any, beta: float = 1, alpha: float = 1) -> Places:
        return self._plus(x, self._do_mm(mat1, mat2), beta, alpha)

    def _do_baddbmm(self, x: Any, batch1: Any, batch2: Any, beta: float = 1, alpha: float = 1) -> Places:
        return self._plus(x, self._do_mm(batch1, batch2), beta, alpha)

    def _do_addmv(self, x: Any, mat: Any, vec: Any, beta: float = 1, alpha: float = 1) -> Places:
        return self._plus(x, self._do_mv(mat, vec), beta, alpha)

    # --------------------------------------------------------------------------------------------- along an axis

    def _do_softmax(self, x: Any, dim: int, half_to_float: bool = False) -> Places:
        """As torch, from the difference to the largest: no term overflows."""
        if half_to_float:
            self._refuse(" in half precision")
        largest = self._do_reduce("amax", x, dim, keepdim=True).at
        parts = self._map("exp", self._map("sub", self.places(x), largest))
        return Places(self._map("div", parts, self._do_reduce("sum", Places(parts), dim, keepdim=True).at))

    def _do_linalg_vector_norm(self, x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False) -> Places:
        places = self.places(x)
        if ord == 2:
            squares = self._do_reduce("sum", Places(self._map("mul", places, places)), dim, keepdim)
            return Places(self._map("sqrt", squares.at))
        name = {1: "sum", math.inf: "amax", -math.inf: "amin"}.get(ord)
        if name is None:
            self._refuse(f" with ord={ord!r}")
        return self._do_reduce(name, Places(self._map("abs", places)), dim, keepdim)

    def _do_var(self, x: Any, dim: Any = None, correction: float | None = None, keepdim: bool = False) -> Places:
        """The variance; without a correction it is 1."""
        places = self.places(x)
        count = len(self._lines(places, dim)[0][0])
        deviations = self._map("sub", places, self._do_reduce("mean", x, dim, keepdim=True).at)
        total = self._do_reduce("sum", Places(self._map("mul", deviations, deviations)), dim, keepdim).at
        return Places(self._map("div", total, self._number(max(count - (1 if correction is None else correction), 0))))

    def _cumulate(self, name: str, x: Any, dim: int) -> Places:
        places = self.places(x)
        if not places.ndim or not places.shape[dim]:
            return Places(places)
        parts = list(places.unbind(dim))
        for k in range(1, len(parts)):
            parts[k] = self._map(name, parts[k - 1], parts[k])
        return Places(torch.stack(parts, dim))

    def _do_cumsum(self, x: Any, dim: int) -> Places:
        return self._cumulate("add", x, dim)

    def _do_cumprod(self, x: Any, dim: int) -> Places:
        return self._cumulate("mul", x, dim)

    def _extreme(self, name: str, x: Any, other: Any, dim: int | None, keepdim: bool) -> Any:
        """Return the largest or smallest number of all, of two tensors, or along an axis with its first index."""
        if other is not None:
            return Places(self._map(f"{name}imum", self.places(x), self.places(other)))
        if dim is None:
            return self._do_reduce(f"a{name}", x)
        places = self.places(x)
        parts = list(places.unbind(dim)) if places.ndim else [places]
        best, index = parts[0], self._number(0).expand(parts[0].shape)
        for k, part in enumerate(parts[1:], 1):
            better = self._map("gt" if name == "max" else "lt", part, best)
            broken = self._map("logical_and", self._map("isnan", part), self._map("eq", best, best))  # the first NaN
            better = self._map("logical_or", better, broken)
            best, index = self._map("where", better, part, best), self._map("where", better, self._number(k), index)
        return [Places(t.unsqueeze(dim) if keepdim and places.ndim else t) for t in (best, index)]

    def _do_max(self, x: Any, other: Any = None, dim: int | None = None, keepdim: bool = False) -> Any:
        return self._extreme("max", x, other, dim, keepdim)

    def _do_min(self, x: Any, other: Any = None, dim: int | None = None, keepdim: bool = False) -> Any:
        return self._extreme("min", x, other, dim, keepdim)

    def _do_argmax(self, x: Any, dim: int | None = None, keepdim: bool = False) -> Places:
        if dim is None:
            x, dim = Places(self.places(x).reshape(-1)), 0
        return self._extreme("max", x, None, dim, keepdim)[1]

    def _do_argmin(self, x: Any, dim: int | None = None, keepdim: bool = False) -> Places:
        if dim is None:
            x, dim = Places(self.places(x).reshape(-1)), 0
        return self._extreme("min", x, None, dim, keepdim)[1]

    # --------------------------------------------------------------------------------------------- chosen numbers

    def _do_gather(self, x: Any, dim: int, index: Places) -> Places:
        """The numbers at an index that depends on the input, by comparing it with every place."""
        places, at = self.places(x), index.at
        if not places.ndim:
            return Places(places.expand(at.shape))
        own = places.transpose(dim, -1)
        short = at.transpose(dim, -1)
        own = own[tuple(slice(size) for size in short.shape[:-1])]
        found = own[..., :1].expand(short.shape)
        for k in range(1, own.shape[-1]):
            chosen = self._map("eq", short, self._number(k))
            found = self._map("where", chosen, own[..., k : k + 1].expand(short.shape), found)
        return Places(found.transpose(dim, -1))

    def _do_scatter(self, x: Any, dim: int, index: Any, src: Any = None, value: float | None = None) -> Places:
        """Write numbers to an index, one after the other."""
        new = self.places(value if src is None else src)
        if not isinstance(index, Places):
            source = new if new.ndim else new.expand(index.shape)
            return Places(self.places(x).scatter(dim, index, source))
        if not self.places(x).ndim:
            return Places(new.reshape(()))
        at = index.at.transpose(dim, -1)
        into = self.places(x).transpose(dim, -1).clone()
        new = new.transpose(dim, -1) if new.ndim else new.expand(at.shape)
        part = tuple(slice(size) for size in at.shape[:-1])
        for j in range(at.shape[-1]):
            for k in range(into.shape[-1]):
                chosen = self._map("eq", at[..., j], self._number(k))
                into[(*part, k)] = self._map("where", chosen, new[(*part, j)], into[(*part, k)])
        return Places(into.transpose(dim, -1))

    def _do_index_put(self, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Places:
        """``x[indices] = values``, or ``+=``: by places that are known, or by one mask of the shape of x."""
        places, new = self.places(x), self.places(values)
        if any(isinstance(index, Places) for index in indices):
            mask = indices[0]
            masks = len(indices) == 1 and mask.dtype == torch.bool and mask.at.shape == places.shape
            if accumulate or not masks or new.numel() != 1:
                self._refuse(" at places that depend on the input")
            return Places(self._map("where", mask.at, new.reshape(()), places))
        numbered = torch.arange(places.numel()).reshape(places.shape)
        where = tuple(slice(None) if index is None else index for index in indices)
        chosen, flat = numbered[where], places.reshape(-1).tolist()
        for target, source in zip(
            chosen.reshape(-1).tolist(), new.expand(chosen.shape).reshape(-1).tolist(), strict=True
        ):
            flat[target] = self.program.assign("add", flat[target], source) if accumulate else source
        return Places(torch.tensor(flat, dtype=torch.int64).reshape(places.shape))

    def _do_copy(self, x: Any, src: Any) -> Places:
        """The source in the shape of x."""
        shape = self.places(x).shape
        return Places(self.places(src).expand(shape))

    def _do_clamp(self, x: Any, min: Any = None, max: Any = None) -> Places:
        places = self.places(x)
        for name, limit in (("maximum", min), ("minimum", max)):
            places = places if limit is None else self._map(name, places, self.places(limit))
        return Places(places)

    def _do_to_copy(self, x: Any, to: torch.dtype | None = None) -> Places:
        """The same numbers in another type; a truth value is whether a number is not 0."""
        places = self.places(x)
        if to is None:
            return Places(places)
        if to == torch.bool and x.dtype != torch.bool:
            return Places(self._map("ne", places, self._number(0)))
        if not to.is_floating_point and x.dtype.is_floating_point:
            self._refuse(f" from {x.dtype} to {to}")
        return Places(places)

    def _do_constant_pad_nd(self, x: Any, pad: Sequence[int], value: float = 0) -> Places:
        filled = self.program.constant(float(value))
        return Places(torch.nn.functional.pad(self.places(x), list(pad), value=filled))


def _name_of(target: Any) -> str:
    """The name of an operation, without that of its overload."""
    return str(target).removeprefix("aten.").split(".")[0]


def _by_name(target: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of an operation by the names of its schema (x for self), without those of no effect."""
    schema = target._schema.arguments
    given = dict(zip((argument.name for argument in schema), args, strict=False)) | dict(kwargs)
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    to = {"to": given["dtype"]} if _name_of(target) == "_to_copy" and given.get("dtype") else {}
    kept = {
        key: value
        for key, value in given.items()
        if key not in _OF_STORAGE and not (key in defaults and _is_default(value, defaults[key]))
    }
    return {("x" if key == "self" else key): value for key, value in kept.items()} | to


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (
        not isinstance(value, Places | Tensor) and not isinstance(default, Tensor) and bool(value == default)
    )


def _fill_of(name: str, given: dict[str, Any]) -> Any:
    """The number that a new tensor is filled with."""
    return given.get("fill_value", 1 if "ones" in name else 0)


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [leaf for part in tree for leaf in _leaves(part)] if isinstance(tree, list | tuple) else [tree]
