"""The messages of the library, read from its source: what they say, with … for what is filled in."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Message:
    """One message; `place` is where it is raised."""

    text: str
    place: str


def read_messages(folder: Path) -> list[Message]:
    """Every text that is raised as an error or given as a warning by the files of a folder."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            text = _text_of(node)
            if text is not None and len(re.findall(r"[a-z]{2,}", text.replace("…", " "))) >= 1:
                found.append(Message(text, f"{path.relative_to(folder).as_posix()}:{getattr(node, 'lineno', 0)}"))
    return found


def _text_of(node: ast.AST) -> str | None:
    """The text of ``SomeError(text)`` or ``warnings.warn(text)``, wherever it stands; None for other code."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    name = ast.unparse(node.func)
    if name != "warnings.warn" and not name.split(".")[-1].endswith("Error"):
        return None
    return re.sub(r"\s+", " ", re.sub(r"…(\s*…)+", "…", _skeleton(node.args[0]))).strip()


def _skeleton(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_skeleton(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _skeleton(node.left) + _skeleton(node.right)
    return "…"
