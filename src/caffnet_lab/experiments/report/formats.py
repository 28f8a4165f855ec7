"""A table as Markdown, LaTeX, CSV or HTML."""

from __future__ import annotations

import csv
import html
import io
import re

from caffnet_lab.experiments.report.tables import Cell, Table
from caffnet_lab.markup import code_block, csv_text, markdown, markdown_row, one_line

DASH = "–"
LARGE = 1e5  # from here on with a power of ten


def number(value: float | None) -> str:
    """Four decimals where that says something, else a power of ten.

    >>> number(-0.34941), number(8.9e-16), number(720600.0), number(0.0), number(26.28)
    ('-0.3494', '8.9e-16', '7.206e+05', '0', '26.28')
    """
    if value is None:
        return DASH
    size = abs(value)
    if size == 0:
        return "0"
    if size < 5e-5:
        return f"{value:.1e}"
    if size >= LARGE:
        return f"{value:.3e}"
    return f"{value:.4f}" if size < 10 else f"{value:.2f}"


def cell_text(cell: Cell) -> str:
    """``mean (spread)``."""
    if cell.text is not None:
        return cell.text
    return number(cell.mean) + ("" if cell.spread is None else f" ({_spread(cell)})") + cell.remark


def _spread(cell: Cell) -> str:
    """The spread, with a power of ten where the mean has one.

    >>> _spread(Cell(720600.0, 69090.0)), _spread(Cell(0.0045, 0.0057))
    ('6.909e+04', '0.0057')
    """
    large = cell.mean is not None and abs(cell.mean) >= LARGE and cell.spread
    return f"{cell.spread:.3e}" if large else number(cell.spread)


def as_markdown(table: Table) -> str:
    """A pipe table under a heading."""
    lines = [f"### {table.title}", "", table.note, ""]
    lines += [markdown_row([markdown(column) for column in table.columns])]
    lines += [markdown_row(["---"] + ["---" if table.prose else "---:"] * (len(table.columns) - 1))]
    for i, row in enumerate(table.rows):
        texts = [markdown(cell_text(cell)) for cell in row]
        lines.append(markdown_row([f"*{text}*" if i in table.quiet and text != DASH else text for text in texts]))
    lines += ["", *code_block(table.commands, "sh")] if table.commands else []
    return "\n".join(lines) + "\n"


def as_latex(table: Table) -> str:
    """A booktabs table, to be read by a document with ``booktabs`` and ``graphicx``."""
    body = []
    for i, row in enumerate(table.rows):
        texts = [_tex(cell_text(cell)) for cell in row]
        body.append("  " + " & ".join(rf"\textit{{{text}}}" if i in table.quiet else text for text in texts) + r" \\")
    return "\n".join(
        [
            r"\begin{table*}[!htbp]",
            rf"  \caption{{{_tex(table.title)}. {_tex(table.note)}}}\label{{tab:{table.name}}}",
            r"  \centering\resizebox{\textwidth}{!}{%",
            r"  \begin{tabular}{l" + (r"p{.4\textwidth}" if table.prose else "r") * (len(table.columns) - 1) + "}",
            r"  \toprule",
            "  " + " & ".join(_tex(column) for column in table.columns) + r" \\",
            r"  \midrule",
            *body,
            r"  \bottomrule",
            r"  \end{tabular}}",
            r"\end{table*}",
            "",
        ]
    )


TEX = str.maketrans(
    {symbol: f"\\{symbol}" for symbol in "_%&#{}$"}
    | {symbol: f"${symbol}$" for symbol in "<>"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    | {"ω": r"$\omega$", "θ": r"$\theta$", "α": r"$\alpha$", "–": "--", "“": "``", "”": "''", "’": "'"}
)


def _tex(text: str) -> str:
    text = re.sub(
        r"(?<![\w-])-(?=\d)", "−", one_line(text).replace("<=", "≤").replace(">=", "≥")
    )  # minus signs, no hyphens
    return text.translate(TEX).replace("≤", r"$\le$").replace("≥", r"$\ge$").replace("−", "$-$")


def latex_figure(path: str, caption: str) -> str:
    """A figure on its own."""
    picture = rf"  \centering\includegraphics[width=.6\textwidth]{{{path}}}"
    return "\n".join([r"\begin{figure*}[!htbp]", picture, rf"  \caption{{{_tex(caption)}}}", r"\end{figure*}", ""])


def latex_document(note: str, parts: list[str]) -> str:
    """A document of tables and figures after a note, which pdflatex takes."""
    head = [
        r"\documentclass[10pt]{article}",
        r"\usepackage[landscape,margin=15mm]{geometry}",
        r"\usepackage{booktabs,graphicx}",
        r"\setlength{\belowcaptionskip}{6pt}",
        r"\begin{document}",
    ]
    return "\n".join([*head, "", rf"\noindent {_tex(note)}", "", *parts, r"\end{document}", ""])


def as_csv(table: Table) -> str:
    """All digits; a mean, its standard deviation and remarks in columns of their own."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = list(zip(*table.rows, strict=True))
    spread = [any(cell.spread is not None for cell in column) for column in columns]
    remark = [any(cell.remark for cell in column) for column in columns]
    header: list[str] = []
    for column, two, three in zip(table.columns, spread, remark, strict=True):
        header += [column, *[f"{column} std"] * two, *[f"{column} remark"] * three]
    writer.writerow(header)
    for row in table.rows:
        line: list[str] = []
        for cell, two, three in zip(row, spread, remark, strict=True):
            line.append(_digits(cell.mean) if cell.text is None else csv_text(cell.text))
            line += [*[_digits(cell.spread)] * two, *[csv_text(cell.remark.strip(", "))] * three]
        writer.writerow(line)
    return out.getvalue()


def _digits(value: float | None) -> str:
    return "" if value is None else repr(value)


def as_html(table: Table) -> str:
    """A table element with its heading and note."""
    head = "".join(f"<th>{unbroken(html.escape(column))}</th>" for column in table.columns)
    body = []
    for i, row in enumerate(table.rows):
        cells = "".join(f"<td>{unbroken(_break_spread(cell))}</td>" for cell in row)
        body.append(f'<tr class="paper">{cells}</tr>' if i in table.quiet else f"<tr>{cells}</tr>")
    kind = ' class="prose"' if table.prose else ""
    typed = html.escape("\n".join(table.commands))
    commands = f"<details><summary>Commands</summary><pre>{typed}</pre></details>" if typed else ""
    return (
        f'<section><h3>{html.escape(table.title)}</h3><p class="note">{unbroken(html.escape(table.note))}</p>'
        f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>{commands}</section>"
    )


def unbroken(text: str) -> str:
    """HTML whose numbers with a sign stay on one line; a browser would break after the sign.

    >>> unbroken("at most 1.2e-10, seeds 2 6")
    'at most <span class="number">1.2e-10</span>, seeds 2 6'
    """
    return re.sub(r"(?<![\w.&#])(-?\d[\d.]*e[-+]\d+|-\d[\d.]*)(?![\w;])", r'<span class="number">\1</span>', text)


def _break_spread(cell: Cell) -> str:
    """The spread on a line of its own: columns stay narrow."""
    if cell.text is not None or cell.spread is None:
        return html.escape(cell_text(cell))
    return f"{number(cell.mean)}<br><small>({_spread(cell)}){html.escape(cell.remark)}</small>"
