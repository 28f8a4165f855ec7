"""Scripts of the gallery as cells: text in comments, code, and what the code printed and drew when it ran.

A script begins with a docstring, which is Markdown, as are the comments at the head of a cell; ``# %%`` begins a cell.
Run as it is, a script is an ordinary program. ``--quick`` among its arguments asks for its quick form.

``python docs/tools/cells.py [NAME ...]`` runs scripts in full and keeps their output: one record ``records/NAME.json``
and figures ``figures/NAME-*.png`` beside them. The record has the hash of the script: a test can tell when it is old.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import hashlib
import io
import json
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GALLERY = Path(__file__).resolve().parents[1] / "gallery"


@dataclasses.dataclass(frozen=True)
class Cell:
    """Markdown, then code; `line` is where the code begins in the script, from 1."""

    text: str
    code: str
    line: int


def scripts() -> list[Path]:
    """All scripts of the gallery, by name."""
    return sorted(GALLERY.glob("*.py"))


def read_cells(path: Path) -> list[Cell]:
    """The cells of a script; the first has the docstring as its text."""
    source = path.read_text()
    lines = source.splitlines()
    first = ast.parse(source).body[0]
    if not isinstance(first, ast.Expr) or first.end_lineno is None:
        raise ValueError(f"{path.name} must begin with a docstring, got {type(first).__name__}.")
    cells = [Cell(ast.literal_eval(first.value).strip(), "", 0)]
    start = first.end_lineno
    marks = [i for i in range(start, len(lines)) if lines[i].startswith("# %%")] + [len(lines)]
    for i, (here, after) in enumerate(zip([start - 1, *marks], marks, strict=False)):
        begin = here + 1
        text = []
        while i and begin < after and lines[begin].startswith("#"):  # before the first mark there is code only
            text.append(lines[begin].removeprefix("#").removeprefix(" "))
            begin += 1
        code = lines[begin:after]
        while code and not code[0].strip():
            code, begin = code[1:], begin + 1
        if text or any(code):
            cells.append(Cell("\n".join(text), "\n".join(code).rstrip(), begin + 1))
    return cells


def source_hash(path: Path) -> str:
    """Tells one version of the code from another; text and layout do not count."""
    tree = ast.parse(path.read_text())
    return hashlib.sha256("\n".join(map(ast.unparse, tree.body[1:])).encode()).hexdigest()[:16]


def run(path: Path, figures: Path, quick: bool) -> dict[str, Any]:
    """Run a script cell by cell; what each printed and drew, and the seconds of processor time."""
    import matplotlib
    import torch

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    namespace: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    outputs: list[dict[str, Any]] = []
    before, sys.argv = sys.argv, [str(path), *(["--quick"] if quick else [])]
    usual = torch.get_default_dtype()  # a script may set another; the next one must not get it
    start, drawn = time.process_time(), 0
    try:
        for cell in read_cells(path):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), warnings.catch_warnings():
                warnings.simplefilter("error")
                exec(compile("\n" * (cell.line - 1) + cell.code, str(path), "exec"), namespace)
            names = []
            for number in plt.get_fignums():
                drawn += 1
                names.append(f"{path.stem}-{drawn}.png")
                figures.mkdir(parents=True, exist_ok=True)
                plt.figure(number).savefig(figures / names[-1], dpi=110, bbox_inches="tight")
            plt.close("all")
            outputs.append({"printed": printed.getvalue().rstrip(), "figures": names})
    finally:
        sys.argv = before
        torch.set_default_dtype(usual)
        plt.close("all")
    seconds = round(time.process_time() - start, 1)
    return {"source": source_hash(path), "quick": quick, "seconds": seconds, "outputs": outputs}


def read_record(path: Path) -> dict[str, Any]:
    """What a script printed and drew when it last ran in full."""
    return json.loads((GALLERY / "records" / f"{path.stem}.json").read_text())


def render(path: Path) -> str:
    """The page of a script, in Markdown."""
    record = read_record(path)
    parts = []
    for cell, output in zip(read_cells(path), record["outputs"], strict=True):
        parts.append(cell.text)
        if cell.code:
            parts.append(f"```py\n{cell.code}\n```")
        if output["printed"]:
            parts.append(f'```text title="prints"\n{output["printed"]}\n```')
        parts += [f"![{Path(name).stem}](figures/{name})" for name in output["figures"]]
    parts.append(
        f"---\n\nThe script is `docs/gallery/{path.name}`; in full it took {record['seconds']:.0f} s on one core. "
        f"Its quick form runs in the tests: `python docs/gallery/{path.name} --quick`."
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def main(names: Sequence[str]) -> None:
    """Run these scripts in full, or all of them, and keep what they give."""
    (GALLERY / "records").mkdir(exist_ok=True)
    for path in scripts():
        if names and path.stem not in names:
            continue
        record = run(path, GALLERY / "figures", quick=False)
        (GALLERY / "records" / f"{path.stem}.json").write_text(json.dumps(record, indent=1) + "\n")
        print(f"{path.stem}: {record['seconds']} s")


if __name__ == "__main__":
    main(sys.argv[1:])
