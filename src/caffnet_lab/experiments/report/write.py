"""Writes the whole report to a folder."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from caffnet_lab.experiments.config import PROTOCOLS, QUICK_FOLDER, TASKS
from caffnet_lab.experiments.files import write_atomically
from caffnet_lab.experiments.records import RecordError, read_records, read_timings
from caffnet_lab.experiments.report.aims import aims_table
from caffnet_lab.experiments.report.claims import claims_table
from caffnet_lab.experiments.report.figures import figures, save
from caffnet_lab.experiments.report.formats import as_csv, as_latex, as_markdown, latex_document, latex_figure
from caffnet_lab.experiments.report.groups import Group, group_records, main_groups, sources
from caffnet_lab.experiments.report.page import build_page
from caffnet_lab.experiments.report.summary import summary_table
from caffnet_lab.experiments.report.tables import (
    MEASURES,
    NAMES,
    Table,
    gap_table,
    optima,
    results_table,
    speed_table,
    variants_table,
)
from caffnet_lab.markup import markdown as escape

INTRODUCTION = (
    "Written by `caffnet report` from the records; rows in italics are the paper's. Three experiments:",
    "",
    "- **pwc**: learn a function of one variable between piecewise bounds; 50 training points, 400 test points.",
    "- **opt**: learn to solve a non-convex program with 5 variables, 5 inequalities and 3 equalities, without labels; "
    "1000 training and 1000 test points; a seed is another program.",
    "- **cbf**: learn to drive a unicycle past three obstacles to the origin, from 300 states for 15 s; the test is "
    "one state for 10 s, its cost the sum of squared distances and corrections with the final state weighted most.",
    "",
    "Three protocols: “paper” repeats the authors' training; “fair” gives all methods plain networks with the same "
    "number of parameters; “ours” is what we recommend, stated above each table.",
    "",
    MEASURES,
)


def write_report(folders: Sequence[Path], out: Path, markdown_to: Path | None = None) -> list[Path]:
    """Tables, figures and the page, from all records below `folders`.

    Args:
        folders: where records are.
        out: where the report goes.
        markdown_to: write the Markdown here as well, with its figures in ``figures/<name>`` beside it.

    Returns:
        The files written: ``report.md``, ``report.tex``, ``report.html``, ``tables/*.csv|tex``, ``figures/*.png|pdf``.

    Raises:
        RecordError: there are no records, or one cannot be read.
    """
    for folder in folders:
        if not folder.is_dir():
            raise RecordError(
                f"There is no folder {folder}: name one with records, as in caffnet report {QUICK_FOLDER}, or do a run "
                "first (caffnet run pwc --quick)."
            )
    records, timings = read_records(*folders), read_timings(*folders)
    if not records and not timings:
        raise RecordError(f"No records below {', '.join(map(str, folders))}: do a run first (caffnet run pwc --quick).")
    groups = group_records(records)
    written: list[Path] = []

    def write(name: str, content: bytes | str) -> None:
        path = out / name
        write_atomically(path, content.encode() if isinstance(content, str) else content)
        written.append(path)

    sections: dict[str, tuple[list[Table], list[tuple[str, bytes]]]] = {}
    absent = [f"“{p}”" for p in PROTOCOLS if not any(group.protocol == p for group in groups)]
    markdown = ["# Results", "", *INTRODUCTION, ""]
    markdown += [f"There are no runs under the protocol {' or '.join(absent)}.", ""] if absent and records else []
    latex: list[str] = []

    def add(table: Table) -> None:
        markdown.append(as_markdown(table))
        latex.append(as_latex(table))
        write(f"tables/{table.name}.tex", latex[-1])
        write(f"tables/{table.name}.csv", as_csv(table))

    summary = summary_table(groups)
    if summary is not None:
        add(summary)
    for task in TASKS:
        tables = task_tables(groups, timings, task)
        if not tables:
            continue
        markdown += [f"## {NAMES[task]}", ""]
        pictures: list[tuple[str, bytes]] = []
        for table in tables:
            add(table)
        for protocol in PROTOCOLS:
            for name, (caption, figure) in figures(main_groups(groups, task, protocol), optima(groups)).items():
                stem = f"figures/{task}-{protocol}-{name}"
                png = save(figure, "png")
                write(f"{stem}.png", png)
                write(f"{stem}.pdf", save(figure, "pdf"))
                caption = f"Protocol “{protocol}”. {caption}"
                pictures.append((caption, png))
                latex.append(latex_figure(f"{stem}.pdf", caption))
                shown = escape(caption)
                markdown += [f"![{shown}]({stem}.png)", "", f"*{shown}*", ""]
        sections[task] = (tables, pictures)
    last = [table for table in (speed_table(timings),) if table is not None]
    for table in last:
        add(table)
    markdown += ["## Where the runs were made", "", *(f"- {escape(line)}" for line in sources(records or timings)), ""]
    write("report.md", "\n".join(markdown))
    if markdown_to is not None:
        written += _publish("\n".join(markdown), [path for path in written if path.suffix == ".png"], markdown_to)
    write("report.tex", latex_document(MEASURES, latex))
    write("report.html", build_page(summary, sections, last, records or timings))
    return written


def _publish(markdown: str, shown: list[Path], target: Path) -> list[Path]:
    """The Markdown alone with the figures that it shows, for a folder of documentation."""
    folder = target.parent / "figures" / target.stem
    folder.mkdir(parents=True, exist_ok=True)
    for path in shown:
        shutil.copyfile(path, folder / path.name)
    write_atomically(target, (markdown.replace("](figures/", f"](figures/{target.stem}/") + "\n").encode())
    return [target, *(folder / path.name for path in shown)]


def task_tables(groups: list[Group], timings: Sequence[dict[str, Any]], task: str) -> list[Table]:
    """Results, then what they say, then other settings."""
    tables: list[Table | None] = []
    variants: list[Table | None] = []
    for protocol in PROTOCOLS:
        mine = main_groups(groups, task, protocol)
        if not mine:
            continue
        tables.append(results_table(mine, task, protocol))
        tables.append(gap_table(groups, protocol) if task == "opt" else None)
        others = [g for g in groups if (g.task, g.protocol) == (task, protocol) and g not in mine]
        variants.append(variants_table(others, task, protocol))
    tables += [claims_table(groups, timings, task), aims_table(groups, timings, task), *variants]
    return [table for table in tables if table is not None]
