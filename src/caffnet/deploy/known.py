"""Numbers of a program that are known unless they are NaN, and the operations that this saves.

If one torch operation handles sets of different sizes, the smaller ones are padded with infinite entries. Written out
number by number, this gives ``exp(-inf)``, ``exp(x - x)`` and ``log(1)``: 0, 1 and 0, but NaN where x is NaN or
infinite. They are replaced by cheap operations that are NaN in the same cases.
"""

from __future__ import annotations

import math

#: Replacements of operations on a known number: the cheap operation and its second operand.
_SHORTER = {("exp", -math.inf): ("maximum", 0.0), ("exp", 0.0): ("add", 1.0), ("log", 1.0): ("sub", 1.0)}


class Known:
    """Facts about the numbers of a program: those that are 0, 1 or infinite, and those that equal others."""

    def __init__(self) -> None:
        self._number: dict[int, float] = {}  # 0, 1 or infinite, unless it is NaN
        self._same: dict[int, int] = {}  # the place of the same number, unless it is NaN

    def is_one(self, place: int) -> bool:
        """Return True if the number at a place is 1, unless it is NaN."""
        return self._number_at(place) == 1.0

    def shorter(self, name: str, operands: tuple[int, ...]) -> tuple[str, float] | None:
        """Return the cheap operation and its second operand that give the same number as a function of the first."""
        return _SHORTER.get((name, self._number_at(operands[0])))

    def changes(self, name: str, second: int, before: tuple[str, int]) -> bool:
        """Return True if an operation can change the result of the previous one, whose second operand is known too."""
        if before != (name, second):
            return True
        return not (name == "maximum" or (name == "add" and self._number_at(second) == 0.0))

    def learn_constant(self, place: int, number: float) -> None:
        """Remember the number at a place."""
        if number in (0.0, 1.0, math.inf, -math.inf):
            self._number[place] = number

    def learn(self, place: int, name: str, operands: tuple[int, ...]) -> None:
        """Remember the number at the place of an operation, if it follows from known ones."""
        if name not in ("add", "sub", "mul", "div", "maximum"):
            return
        first, second = operands
        a, b = self._number_at(first), self._number_at(second)
        if name == "maximum" and -math.inf in (a, b):
            self._same[place] = self._root(first if b == -math.inf else second)
        elif name == "sub" and self._root(first) == self._root(second):
            self._number[place] = 0.0
        elif (name == "add" and -math.inf in (a, b)) or (name == "sub" and (a == -math.inf or b == math.inf)):
            self._number[place] = -math.inf  # or NaN, whatever the other one is
        elif math.isfinite(a) and math.isfinite(b):
            self.learn_constant(place, _result_of(name, a, b))

    def _root(self, place: int) -> int:
        return self._same.get(place, place)

    def _number_at(self, place: int) -> float:
        """Return the number at a place (unless it is NaN at run time), or NaN if it is not known."""
        return self._number.get(self._root(place), math.nan)


def _result_of(name: str, a: float, b: float) -> float:
    if name == "div":
        return a / b if b else math.nan
    return {"add": a + b, "sub": a - b, "mul": a * b, "maximum": max(a, b)}[name]
