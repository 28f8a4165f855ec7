"""A hook of MkDocs: keeps numbers (1.2e-10, 32 931, <= 0.25, 256 MiB) and options (--name) on one line."""

from __future__ import annotations

import re
from typing import Any

_CODE = re.compile(r"(<(pre|code|math|svg)\b.*?</\2>|<[^>]*>)", re.DOTALL)
_NUMBER = re.compile(
    r"(?:&[lg]t;= )?(?<![\w.])-?\d*\.?\d+(?:e[+-]?\d+)?"
    r"(?:(?: \d+)+(?![\w.])| (?:±|of) \d+(?:\.\d+)?(?![\w.])|(?: (?:%|µs|ms|s|kB|MB|GB|MiB)(?!\w))?)",
    re.ASCII,
)
_OPTION = re.compile(r"<code>(?=-[^<]{1,24}</code>)")


def on_page_content(content: str, **_: Any) -> str:
    """Mark the numbers of the text and the options of commands; other code, formulas and tags stay as they are."""
    parts = _CODE.split(_OPTION.sub('<code class="number">', content))
    # split() returns the text, the piece that was left out, and the name of its tag, in turn
    return "".join(_NUMBER.sub(_mark, part) if i % 3 == 0 else part for i, part in enumerate(parts) if i % 3 < 2)


def _mark(match: re.Match[str]) -> str:
    number = match[0]
    return f'<span class="number">{number}</span>' if "-" in number or " " in number else number
