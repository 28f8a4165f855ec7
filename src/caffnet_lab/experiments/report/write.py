"""Writes the whole report to a folder: the page of the paper's experiments, and that of the yardsticks."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from caffnet_lab.experiments.config import PAPER_TASKS, PROTOCOLS, QUICK_FOLDER
from caffnet_lab.experiments.files import write_atomically
from caffnet_lab.experiments.records import RecordError, read_records, read_timings
from caffnet_lab.experiments.report import yardsticks
from caffnet_lab.experiments.report.aims import aims_table
from caffnet_lab.experiments.report.claims import claims_table
from caffnet_lab.experiments.report.figures import figures, save
from caffnet_lab.experiments.report.formats import as_csv, as_latex, as_markdown, latex_document, latex_figure
from caffnet_lab.experiments.report.groups import Group, group_records, main_groups, sources
from caffnet_lab.experiments.report.null_space import null_space_table
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
from caffnet_lab.experiments.report.yardstick_figures import yardstick_figures
from caffnet_lab.markup import markdown as escape

INTRODUCTION = (
    "Written by `caffnet report` from the records; rows in italics are the paper's. Three experiments:",
    "",
    "- **pwc**: learn a function of one variable between piecewise bounds; 50 training points, 400 test points.",
    "- **opt**: learn to solve a non-convex program with 5 variables, 5 inequalities and 3 equalities, without labels; "
    "1000 training and 1000 test points; each seed is another program.",
    "- **cbf**: learn to drive a unicycle past three obstacles to the origin, from 300 states for 15 s; the test is "
    "one state for 10 s, its cost the sum of squared distances and corrections with the final state weighted most.",
    "",
    "Two protocols: “paper” repeats the authors' training; “ours” is what we recommend, stated above each table.",
    "",
    MEASURES,
)


@dataclasses.dataclass(frozen=True)
class Page:
    """One of the two pages of a report.

    Attributes:
        stem: of its files.
        title: above it.
        introduction: lines of Markdown.
        measures: what the columns mean.
        tasks: their sections, by name, with their titles.
        tables: of one task.
        figures: of one task, by name, with captions.
        summary: the table for the beginning, None for none.
    """

    stem: str
    title: str
    introduction: tuple[str, ...]
    measures: str
    tasks: dict[str, str]
    tables: Callable[[str], list[Table]]
    figures: Callable[[str], dict[str, tuple[str, Figure]]]
    summary: Table | None


def write_report(folders: Sequence[Path], out: Path, markdown_to: Path | None = None) -> list[Path]:
    """Tables, figures and the pages, from all records below `folders`.

    Args:
        folders: where records are.
        out: where the report goes.
        markdown_to: write the Markdown here as well, with its figures in ``figures/<name>`` beside it; that of the
            yardsticks goes to ``yardsticks.md`` in the same folder.

    Returns:
        The files written: ``report.md``, ``report.tex``, ``report.html``, ``tables/*.csv|tex``, ``figures/*.png|pdf``;
        where there are yardsticks the same three under ``yardsticks``.

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
    for page, target in (
        (_paper_page(groups, timings), markdown_to),
        (_yardsticks_page(groups), markdown_to and markdown_to.with_name("yardsticks.md")),
    ):
        mine = [record for record in records if record["config"]["task"] in page.tasks]
        times = [timing for timing in timings if timing["task"] in page.tasks]
        if mine or times:
            written += _write_page(page, mine, times, out, target)
    return written


def _paper_page(groups: list[Group], timings: Sequence[dict[str, Any]]) -> Page:
    def drawn(task: str) -> dict[str, tuple[str, Figure]]:
        found = {}
        for protocol in PROTOCOLS:
            for name, (caption, figure) in figures(main_groups(groups, task, protocol), optima(groups)).items():
                found[f"{protocol}-{name}"] = (f"Protocol “{protocol}”. {caption}", figure)
        return found

    mine = [group for group in groups if group.task in PAPER_TASKS]
    absent = [f"“{p}”" for p in PROTOCOLS if not any(group.protocol == p for group in mine)]
    lacking = (f"There are no runs under the protocol {' or '.join(absent)}.", "") if absent and mine else ()
    return Page(
        "report",
        "Results",
        (*INTRODUCTION, "", *lacking),
        MEASURES,
        NAMES,
        lambda task: task_tables(mine, timings, task),
        drawn,
        summary_table(mine),
    )


def _yardsticks_page(groups: list[Group]) -> Page:
    return Page(
        "yardsticks",
        "The field's yardsticks",
        (*yardsticks.INTRODUCTION, "", yardsticks.MEASURES, ""),
        yardsticks.MEASURES,
        yardsticks.NAMES,
        lambda task: yardsticks.yardstick_tables(groups, task),
        lambda task: yardstick_figures([group for group in groups if group.task == task]),
        null_space_table(groups),
    )


def _write_page(
    page: Page, records: list[dict[str, Any]], timings: list[dict[str, Any]], out: Path, markdown_to: Path | None
) -> list[Path]:
    """One page in all formats."""
    written: list[Path] = []

    def write(name: str, content: bytes | str) -> None:
        path = out / name
        write_atomically(path, content.encode() if isinstance(content, str) else content)
        written.append(path)

    sections: dict[str, tuple[list[Table], list[tuple[str, bytes]]]] = {}
    markdown = [f"# {page.title}", "", *page.introduction]
    latex: list[str] = []

    def add(table: Table) -> None:
        markdown.append(as_markdown(table))
        latex.append(as_latex(table))
        write(f"tables/{table.name}.tex", latex[-1])
        write(f"tables/{table.name}.csv", as_csv(table))

    if page.summary is not None:
        add(page.summary)
    for task, title in page.tasks.items():
        tables = page.tables(task)
        if not tables:
            continue
        markdown += [f"## {title}", ""]
        pictures: list[tuple[str, bytes]] = []
        for table in tables:
            add(table)
        for name, (caption, figure) in page.figures(task).items():
            stem = f"figures/{task}-{name}"
            png = save(figure, "png")
            write(f"{stem}.png", png)
            write(f"{stem}.pdf", save(figure, "pdf"))
            pictures.append((caption, png))
            latex.append(latex_figure(f"{stem}.pdf", caption))
            shown = escape(caption)
            markdown += [f"![{shown}]({stem}.png)", "", f"*{shown}*", ""]
        sections[task] = (tables, pictures)
    last = [table for table in (speed_table(timings, page.stem),) if table is not None]
    for table in last:
        add(table)
    markdown += ["## Where the runs were made", "", *(f"- {escape(line)}" for line in sources(records or timings)), ""]
    write(f"{page.stem}.md", "\n".join(markdown))
    if markdown_to is not None:
        written += _publish("\n".join(markdown), [path for path in written if path.suffix == ".png"], markdown_to)
    write(f"{page.stem}.tex", latex_document(page.measures, latex))
    write(f"{page.stem}.html", build_page(page, sections, last, records or timings))
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
    """Tables of results, then of claims and goals, then of other settings."""
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
