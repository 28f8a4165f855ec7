"""A hook of MkDocs: numbers such as 1.2e-10 stay on one line, which a browser would break after the hyphen."""

from __future__ import annotations

import re
from typing import Any

_CODE = re.compile(r"(<(pre|code|math|svg)\b.*?</\2>|<[^>]*>)", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])-?\d*\.?\d+(?:e[+-]?\d+)?(?: (?:%|µs|ms|s)(?!\w))?", re.ASCII)


def on_page_content(content: str, **_: Any) -> str:
    """Mark the numbers of the text; code, formulas and tags stay as they are."""
    parts = _CODE.split(content)
    # split() returns the text, the piece that was left out, and the name of its tag, in turn
    return "".join(_NUMBER.sub(_mark, part) if i % 3 == 0 else part for i, part in enumerate(parts) if i % 3 < 2)


def _mark(match: re.Match[str]) -> str:
    number = match[0]
    return f'<span class="number">{number}</span>' if "-" in number or " " in number else number
