"""A straight-line program on numbers: one assignment each, as lines of C and as operations of torch.

A number is identified by its place in a list of expressions. Equal assignments are written once; those that no result
needs are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from caffnet.deploy.known import Known

#: Operations on one number at a time. {0}, {1}: operands; functions of math.h end in f for float32.
TEMPLATES = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
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
    "log10": "log10#({0})",
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
    "asinh": "asinh#({0})",
    "acosh": "acosh#({0})",
    "atanh": "atanh#({0})",
    "erf": "erf#({0})",
    "hypot": "hypot#({0}, {1})",
    "floor": "floor#({0})",
    "ceil": "ceil#({0})",
    "trunc": "trunc#({0})",
    "round": "rint#({0})",
    "fmod": "fmod#({0}, {1})",
    "pow": "pow#({0}, {1})",
    "sigmoid": "1 / (1 + exp#(-{0}))",
    "relu": "{0} < 0 ? 0 : {0}",
    "sign": "(@)(({0} > 0) - ({0} < 0))",
    # NaN in an operand is the answer, as in torch.
    "maximum": "{0} > {1} || {0} != {0} ? {0} : {1}",
    "minimum": "{0} < {1} || {0} != {0} ? {0} : {1}",
    "where": "{0} != 0 ? {1} : {2}",
    "isnan": "(@)({0} != {0})",
    "eq": "(@)({0} == {1})",
    "ne": "(@)({0} != {1})",
    "lt": "(@)({0} < {1})",
    "le": "(@)({0} <= {1})",
    "gt": "(@)({0} > {1})",
    "ge": "(@)({0} >= {1})",
    "logical_not": "(@)({0} == 0)",
    "logical_and": "(@)({0} != 0 && {1} != 0)",
    "logical_or": "(@)({0} != 0 || {1} != 0)",
    "logical_xor": "(@)(({0} != 0) != ({1} != 0))",
}


class Result(NamedTuple):
    """A result of the program: its shape and the places of its numbers."""

    shape: torch.Size
    places: list[int]


class Assignments:
    """A list of expressions, and the assignments that compute them from an input ``x``."""

    def __init__(self, x: Tensor):
        self.double = x.dtype == torch.float64
        self.expressions: list[str] = []
        self.known: dict[str, int] = {}
        self.numbers: dict[int, float] = {}
        self.steps: dict[int, tuple[str, str, tuple[int, ...]]] = {}  # operation, line of C, the places that are read
        self._facts = Known()
        places = [self.place(f"x[{i}]") for i in range(x.numel())]
        self.inputs = {place: i for i, place in enumerate(places)}
        self.input_places = torch.tensor(places, dtype=torch.int64).reshape(x.shape)

    def place(self, expression: str) -> int:
        """Return the place of an expression in the list; add it if it is missing."""
        if expression not in self.known:
            self.known[expression] = len(self.expressions)
            self.expressions.append(expression)
        return self.known[expression]

    def assign(self, name: str, *operands: int) -> int:
        """Return the place of an operation of `TEMPLATES` on numbers; add a line of C if it is new."""
        shorter = self._facts.shorter(name, operands)
        if shorter is not None:
            return self.assign(shorter[0], operands[0], self.constant(shorter[1]))
        if name == "div" and self._facts.is_one(operands[1]):
            name = "mul"  # faster, and the same
        before = self.steps.get(operands[0])
        if len(operands) == 2 and before and not self._facts.changes(name, operands[1], (before[0], before[2][-1])):
            return operands[0]
        real, end = ("double", "") if self.double else ("float", "f")
        text = TEMPLATES[name].replace("#", end).replace("@", real).format(*(self.expressions[p] for p in operands))
        if text not in self.known:
            place = len(self.expressions)
            variable = f"t{place}"
            self.steps[place] = (name, f"const {real} {variable} = {text};", operands)
            self._facts.learn(place, name, operands)
            self.known[text] = place
            self.expressions.append(variable)
        return self.known[text]

    def constant(self, number: float) -> int:
        """Return the place of a constant number."""
        text = number_text(number, self.double)
        place = self.place(f"({text})" if text.startswith("-") else text)
        self.numbers[place] = number
        self._facts.learn_constant(place, number)
        return place

    def _needed(self, results: Sequence[Result]) -> set[int]:
        """Return the places that the results depend on."""
        needed = {place for result in results for place in result.places}
        for place, (_, _, read) in reversed(self.steps.items()):
            if place in needed:
                needed.update(read)
        return needed

    def write(self, results: Sequence[Result], names: Sequence[str]) -> list[str]:
        """Return the lines of C, with the results in arrays of these names."""
        needed = self._needed(results)
        lines = [line for place, (_, line, _) in self.steps.items() if place in needed]
        for name, result in zip(names, results, strict=True):
            lines += [f"{name}[{i}] = {self.expressions[place]};" for i, place in enumerate(result.places)]
        return lines

    def compute(self, results: Sequence[Result], samples: Tensor) -> list[Tensor]:
        """Compute the results for samples ``(..., size)``, in torch."""
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
            torch.stack([values[p].expand(batch) for p in result.places], -1).reshape((*batch, *result.shape))
            if result.places
            else samples.new_zeros((*batch, *result.shape))
            for result in results
        ]


def _operate(name: str, *operands: Tensor) -> Tensor:
    """Compute an operation of `TEMPLATES` in torch; a comparison gives 1 or 0, as in C."""
    if name == "where":
        return torch.where(operands[0] != 0, *operands[1:])
    found = getattr(torch, name)(*operands)
    return found.to(operands[0].dtype) if found.dtype == torch.bool else found


def number_text(x: float, double: bool = True) -> str:
    """Write a number in C, exactly."""
    if math.isnan(x):
        return "NAN"
    if math.isinf(x):
        return "INFINITY" if x > 0 else "-INFINITY"
    short = repr(x)
    text = short if len(short) < 8 else x.hex()
    return text if double else f"{text}f"
