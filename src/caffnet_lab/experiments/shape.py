"""The shape of a record: which parts it must have, and of which kind they are. No torch here.

A shape is a dictionary of parts; a part is a `Kind`, a list of them (`Many`) or a shape again. A name that ends in a
question mark may be missing.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any, TypeAlias

LONGEST = 300  # characters of a text
SHOWN = 60  # characters of a value in a message
HUGE = 1e100  # beyond, numbers cannot be averaged or drawn: their squares overflow
COUNTED = 1e-6  # a violation above this counts in the paper's "Num (%)" column


@dataclasses.dataclass(frozen=True)
class Kind:
    """Requirement for a value, in words and as a test."""

    text: str
    accepts: Callable[[Any], bool]


@dataclasses.dataclass(frozen=True)
class Many:
    """A list of values of one kind: of this length if one is given, else of at least so many."""

    item: Kind | Many
    length: int | None = None
    least: int = 1

    @property
    def text(self) -> str:
        """The list in words."""
        if self.length is not None:
            return f"a list of {self.length}"
        return {0: "a list", 1: "a list that is not empty"}.get(self.least, f"a list of at least {self.least}")

    def accepts(self, value: Any) -> bool:
        """Check whether the value is a list of the right length; its values are looked at elsewhere."""
        if not isinstance(value, list):
            return False
        return len(value) == self.length if self.length is not None else len(value) >= self.least


Part: TypeAlias = "Kind | Many | dict[str, Any]"


def is_number(value: Any) -> bool:
    """Check whether a value is a number that can be averaged and drawn.

    >>> [is_number(value) for value in (1, -2.5, True, "1", None, 1e200, 10**400, float("nan"))]
    [True, True, False, False, False, False, False, False]
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= (HUGE if isinstance(value, float) else 2**53)


def is_text(value: Any) -> bool:
    """Check whether a value is one line of text: no control characters, not endless."""
    return isinstance(value, str) and value.isprintable() and len(value) <= LONGEST


def is_word(value: Any) -> bool:
    """Check whether a value is a text of letters, digits, dots, plus and minus signs and underscores.

    >>> is_word("caffnet-ff"), is_word("1e-3"), is_word("a b"), is_word("$(x)"), is_word("")
    (True, True, False, False, False)
    """
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9._+-]{1,80}", value) is not None


def _finite(value: Any) -> bool:
    return is_number(value) or (isinstance(value, float) and math.isfinite(value))


def _whole(value: Any, least: int) -> bool:
    return is_number(value) and isinstance(value, int) and least <= value <= 2**53


NUMBER = Kind("a number up to 1e100", is_number)
POSITIVE = Kind("a number above 0", lambda value: is_number(value) and value > 0)
FLOAT_OR_NULL = Kind("a number or null", lambda value: value is None or isinstance(value, float) or is_number(value))
NUMBER_OR_NULL = Kind("a number or null", lambda value: value is None or is_number(value))
POSITIVE_OR_NULL = Kind("a number above 0 or null", lambda value: value is None or (is_number(value) and value > 0))
WHOLE = Kind("a whole number from 0 to 2**53", lambda value: _whole(value, 0))
COUNT = Kind("a whole number from 1 to 2**53", lambda value: _whole(value, 1))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
TEXT = Kind(f"a line of at most {LONGEST} characters", is_text)
TEXT_OR_NULL = Kind(f"a line of at most {LONGEST} characters or null", lambda value: value is None or is_text(value))
WORD = Kind("a word of letters, digits and the signs . _ + -", is_word)
SCALAR = Kind(
    "a number, true, false or a word", lambda value: isinstance(value, bool) or _finite(value) or is_word(value)
)


def one_of(*known: str) -> Kind:
    """One of some texts."""
    return Kind(f"one of {', '.join(known)}", lambda value: isinstance(value, str) and value in known)


def faults(value: Any, part: Part, where: str = "") -> tuple[list[str], list[str]]:
    """The names of parts that are not there, and sentences about parts that are not what they must be.

    >>> faults({"a": "x", "b": {"c": [1, None]}}, {"a": NUMBER, "b": {"c": Many(NUMBER), "d": TEXT, "e?": TEXT}})
    (['b.d'], ["a must be a number up to 1e100, got 'x'", 'b.c[1] must be a number up to 1e100, got None'])
    """
    if isinstance(part, Kind):
        return [], [] if part.accepts(value) else [_wrong(where, part.text, value)]
    if isinstance(part, Many):
        if not part.accepts(value):
            return [], [_wrong(where, part.text, value)]
        found = (faults(item, part.item, f"{where}[{i}]")[1] for i, item in enumerate(value))
        return [], next((wrong for wrong in found if wrong), [])  # the first says enough
    if not isinstance(value, dict):
        return [], [_wrong(where or "the record", "an object with names", value)]
    absent: list[str] = []
    wrong: list[str] = []
    for name, inner in part.items():
        key = name.removesuffix("?")
        place = f"{where}.{key}" if where else key
        given = value.get(key)
        may_be_null = isinstance(inner, Kind) and inner.accepts(None)
        if given is None and not (key in value and may_be_null):
            absent += [] if name.endswith("?") else [place]
            continue
        deeper = faults(given, inner, place)
        absent += deeper[0]
        wrong += deeper[1]
    return absent, wrong


def every_value(value: Any, kind: Kind, where: str) -> list[str]:
    """Sentences about values of an object with free names that are not of a kind; the names must be words."""
    if not isinstance(value, dict):
        return [_wrong(where, "an object with names", value)]
    wrong = [f"{where} has the name {shown(name)}, which is not {WORD.text}" for name in value if not is_word(name)]
    for name, item in value.items():
        wrong += faults(item, kind, f"{where}.{name}")[1] if is_word(name) else []
    return wrong


def shown(value: Any) -> str:
    r"""The value for a message: in one line, not too long.

    >>> print(shown("a\nb"), shown([1] * 50))
    'a\nb' [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1...
    """
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # lists in lists in lists; a number of thousands of digits
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _wrong(where: str, expected: str, value: Any) -> str:
    return f"{where} must be {expected}, got {shown(value)}"
