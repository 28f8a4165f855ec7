"""An extension of Griffe: the examples in docstrings (``>>>``) become blocks of code on the pages."""

from __future__ import annotations

import re
from typing import Any

import griffe

# From a prompt to the next empty line; examples that follow each other without text stay one block.
_EXAMPLE = re.compile(r"^( *)>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts fences around examples."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object, if it has one."""
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(
                lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", obj.docstring.value
            )
