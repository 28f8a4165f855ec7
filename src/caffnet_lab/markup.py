"""Text of any origin inside Markdown and CSV: shown as it is, never interpreted. No torch here."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: What Markdown would act on: escapes, code, cells, emphasis, formulas, tags, links and character entities.
_ACTIVE = re.compile(r"[\\`|*~$]|<(?=[A-Za-z/!?])|(?<=])\(|&(?=#?\w+;)")
#: How a spreadsheet recognises a formula.
_FORMULA = ("=", "+", "-", "@")


def one_line(text: str) -> str:
    r"""The text with every run of white space as one space.

    >>> one_line("a\n\n# b")
    'a # b'
    """
    return " ".join(text.split())


def markdown(text: str) -> str:
    r"""The text for a cell or a line of Markdown.

    >>> print(markdown("a|b `c` <script> x < 3 [seed 1](u)"))
    a\|b \`c\` \<script> x < 3 [seed 1]\(u)
    """
    return _ACTIVE.sub(r"\\\g<0>", one_line(text))


def markdown_row(cells: Sequence[str]) -> str:
    """The line of a Markdown table; its cells are Markdown already."""
    return "| " + " | ".join(cells) + " |"


def code_block(lines: Sequence[str], language: str = "") -> list[str]:
    """The lines as a block of Markdown, whose fence is longer than any that they have.

    >>> code_block(["echo ```"], "sh")
    ['````sh', 'echo ```', '````']
    """
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *lines, fence]


def csv_text(text: str) -> str:
    """The text for a cell of CSV: what a spreadsheet would compute is marked as text.

    >>> csv_text("=1+1"), csv_text("NN")
    ("'=1+1", 'NN')
    """
    text = one_line(text)
    return f"'{text}" if text.startswith(_FORMULA) else text
