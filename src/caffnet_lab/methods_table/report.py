"""The living Table 1 as Markdown, HTML and JSON. It reads a `Table` and computes nothing."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from caffnet.methods import METHODS
from caffnet_lab.markup import markdown, markdown_row
from caffnet_lab.methods_table.families import FAMILIES
from caffnet_lab.methods_table.table import PAPER, Cell, Table

TITLE = "Methods that constrain the output of a network, measured"
INTRODUCTION = (
    "Every method of the paper's Table 1 on random constraints of each kind: does the output satisfy them, does "
    "training lower the loss, and how long does a sample take? The conditions of the measurement are at the end."
)


def write(table: Table, folder: Path) -> list[Path]:
    """Write ``methods.md``, ``methods.html`` and ``methods.json`` into a folder; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in (
        ("methods.md", to_markdown(table)),
        ("methods.html", to_html(table)),
        ("methods.json", to_json(table)),
    ):
        path = folder / name
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def to_json(table: Table) -> str:
    """Everything that was measured; what is not a number becomes null."""
    return json.dumps(_plain(dataclasses.asdict(table)), indent=1, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "inf" if math.isinf(value) else None
    return value


# ---------------------------------------------------------------------------------------------------- the parts


def satisfaction_text(cell: Cell) -> str:
    """Text of a cell: ``holds 4e-16``, ``93% violated, 1.2``, ``refuses``."""
    if cell.status == "refused":
        return "refuses"
    found = f"holds {cell.worst:.0e}" if cell.violated == 0 else f"{share(cell.violated)} violated, {cell.worst:.1g}"
    found += f", {cell.errors} refused" if cell.errors else ""
    return found if cell.status == "measured" else f"refuses; forced: {found}"


def share(part: float) -> str:
    """A percentage that never rounds a positive share to 0."""
    return "<1%" if 0 < part < 0.01 else f"{part:.0%}"


def training_text(cell: Cell) -> str:
    """``1.2 -> 0.4, then 4e-16``: the loss before and after, and the worst violation afterwards."""
    if cell.learns is None:
        return "-"
    return f"{cell.loss_before:.3g} → {cell.loss_after:.3g}, then {cell.trained_worst:.0e}"


def time_text(cell: Cell) -> str:
    """Microseconds per sample."""
    return "-" if math.isnan(cell.microseconds) else f"{cell.microseconds:.3g}"


def rows_of_paper(table: Table) -> tuple[list[str], list[list[str]]]:
    """The paper's Table 1, with what was measured beside it."""
    header = ["Method", "Constraint (paper)", "Eq./Ineq.", "Guarantee (paper)", "Computation", "Univ. approx."]
    header += ["declared guarantee", "families that hold", "worst where supported", "learns"]
    rows = []
    for name in _methods(table):
        cells = table.of(name)
        supported = [cell for cell in cells if cell.supported]
        trained = [cell for cell in cells if cell.learns is not None]
        worst = f"{max(cell.worst for cell in supported):.1e}" if supported else "-"
        rows.append(
            [
                METHODS[name].title,
                *PAPER[name],
                METHODS[name].guarantee.value.replace("_", " "),
                f"{sum(cell.holds for cell in cells)} of {len(cells)}",
                worst,
                f"{sum(bool(cell.learns) for cell in trained)} of {len(trained)}" if trained else "-",
            ]
        )
    return header, rows


def matrix(table: Table, text: Callable[[Cell], str]) -> tuple[list[str], list[list[str]]]:
    """Methods by families."""
    families = list(dict.fromkeys(cell.family for cell in table.cells))
    header = ["Method", *(FAMILIES[family].title for family in families)]
    return header, [[METHODS[name].title, *map(text, table.of(name))] for name in _methods(table)]


def rows_of_claims(table: Table) -> tuple[list[str], list[list[str]]]:
    """Claims of the paper, and whether the measurements agree."""
    said = {True: "seen", False: "not seen", None: "not measurable"}
    rows = [[METHODS[c.method].title, c.claim, said[c.seen], c.evidence] for c in table.claims]
    return ["Method", "The paper says", "", "Evidence"], rows


def _methods(table: Table) -> list[str]:
    return list(dict.fromkeys(cell.method for cell in table.cells))


def _conditions(table: Table) -> str:
    return "; ".join(f"{key}: {value}" for key, value in table.conditions.items())


SECTIONS = (
    ("The paper's Table 1, with measurements", rows_of_paper, ""),
    (
        "Satisfaction",
        lambda table: matrix(table, satisfaction_text),
        "Untrained networks with large outputs. The largest violation over all instances; where samples are violated, "
        "their share and the largest violation. "
        "Rows have length one. 'refuses': the method raises an error that says why; 'forced': its formula was computed "
        "nevertheless, outside of its assumptions.",
    ),
    (
        "Training",
        lambda table: matrix(table, training_text),
        "The method's whole loss before and after a short training, and the largest violation of the trained network "
        "on new inputs.",
    ),
    (
        "Time",
        lambda table: matrix(table, time_text),
        "Microseconds per sample in evaluation, 1000 samples at once (IPOPT: 20, one after the other).",
    ),
    ("The paper's claims", rows_of_claims, ""),
)


# ---------------------------------------------------------------------------------------------------- the files


def to_markdown(table: Table) -> str:
    """All parts as Markdown tables."""
    parts = [f"# {TITLE}\n\n{INTRODUCTION}\n"]
    for title, build, note in SECTIONS:
        header, rows = build(table)
        lines = [header, ["---"] * len(header), *rows]
        body = "\n".join(markdown_row([markdown(entry) for entry in line]) for line in lines)
        parts.append(f"## {title}\n\n{note + chr(10) * 2 if note else ''}{body}\n")
    parts.append(f"## Conditions\n\n{markdown(_conditions(table))}\n")
    return "\n".join(parts)


STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #2a9d4a2e; --bad: #d93b3b33; --off: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1500px; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p { max-width: 60rem; opacity: .8; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .6rem; text-align: left; vertical-align: top; }
th { font-weight: 600; } tbody th { white-space: nowrap; position: sticky; left: 0; background: Canvas; }
.good { background: var(--good); } .bad { background: var(--bad); } .off { background: var(--off); opacity: .7; }
"""


def to_html(table: Table) -> str:
    """One self-contained page; a refused cell shows its message under the pointer."""
    messages = {(METHODS[c.method].title, FAMILIES[c.family].title): c.message for c in table.cells if c.message}
    parts = [f"<h1>{html.escape(TITLE)}</h1><p>{html.escape(INTRODUCTION)}</p>"]
    for title, build, note in SECTIONS:
        header, rows = build(table)
        head = "".join(f"<th>{html.escape(entry)}</th>" for entry in header)
        body = "".join(_html_row(header, row, messages if title == "Satisfaction" else {}) for row in rows)
        note = f"<p>{html.escape(note)}</p>" if note else ""
        parts.append(
            f"<h2>{html.escape(title)}</h2>{note}"
            f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )
    parts.append(f"<h2>Conditions</h2><p>{html.escape(_conditions(table))}</p>")
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f"{meta}<title>{html.escape(TITLE)}</title><style>{STYLE}</style>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'


def _html_row(header: list[str], row: list[str], messages: dict[tuple[str, str], str]) -> str:
    cells = [f"<th>{html.escape(row[0])}</th>"]
    for column, entry in zip(header[1:], row[1:], strict=True):
        message = messages.get((row[0], column), "")
        tip = f' title="{html.escape(message, quote=True)}"' if message else ""
        cells.append(f'<td class="{_colour(entry)}"{tip}>{html.escape(entry)}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _colour(entry: str) -> str:
    if entry.startswith("holds") or entry == "seen":
        return "good"
    if "violated, " in entry or entry == "not seen":
        return "bad"
    return "off" if entry in ("refuses", "-", "not measurable") else ""
