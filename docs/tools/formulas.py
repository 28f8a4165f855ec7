"""A hook of MkDocs: formulas become MathML while the site is built, so that no script is fetched and none runs."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    r"""Replace what `pymdownx.arithmatex` marked, ``\(...\)`` and ``\[...\]``."""
    return _FORMULA.sub(_replace, content)


def _replace(match: re.Match[str]) -> str:
    display = "block" if match[2] == "[" else "inline"
    formula = html.unescape(match[3]).strip().replace(r"\arg", r"\operatorname{arg}")
    made = convert(formula, display=display)
    if "\\" in made:
        raise PluginError(f"The formula {formula!r} has a command that latex2mathml does not know: {made}")
    return made
