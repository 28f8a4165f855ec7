"""One self-contained HTML page: tables, figures and where the numbers come from."""

from __future__ import annotations

import base64
import html
import re
from typing import TYPE_CHECKING, Any

from caffnet_lab.experiments.report.formats import as_html, unbroken
from caffnet_lab.experiments.report.groups import sources
from caffnet_lab.experiments.report.tables import Table

if TYPE_CHECKING:
    from caffnet_lab.experiments.report.write import Page

STYLE = """
:root { color-scheme: light dark; --line: #d5d5d5; --soft: #f5f5f5; --text: #1c1c1c; --dim: #666; --back: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --line: #444; --soft: #242424; --text: #e6e6e6; --dim: #a0a0a0; --back: #181818; }
  img { background: #fff; border-radius: 4px; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 0 auto;
  max-width: 76rem; padding: 1rem 1.5rem 4rem; }
h1 { font-size: 1.7rem; margin: 1.5rem 0 .3rem; } h2 { margin: 2.5rem 0 .5rem; border-bottom: 1px solid var(--line); }
h3 { margin: 1.8rem 0 .3rem; font-size: 1.05rem; }
p.note, figcaption, .introduction { color: var(--dim); font-size: .88rem; max-width: 60rem; margin: .2rem 0 .6rem; }
nav a { margin-right: 1.2rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .84rem; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top;
  font-variant-numeric: tabular-nums; }
th { border-bottom: 2px solid var(--dim); vertical-align: bottom; } th:first-child, td:first-child { text-align: left; }
td, .number { white-space: nowrap; } td:first-child { white-space: normal; min-width: 9rem; max-width: 18rem; }
.prose th, .prose td { text-align: left; white-space: normal; }
tr.paper td { color: var(--dim); font-style: italic; background: var(--soft); } small { color: var(--dim); }
details { margin: .5rem 0; color: var(--dim); font-size: .84rem; } pre { overflow-x: auto; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem 2rem; align-items: flex-start; }
@media (max-width: 40rem) {
  body { padding: .5rem .8rem 3rem; } h1 { font-size: 1.35rem; } nav a { display: inline-block; padding: .3rem 0; }
  th, td { padding: .25rem .4rem; } td:first-child { max-width: 11rem; } .prose td { min-width: 12rem; }
  table:not(.prose) th:first-child, table:not(.prose) td:first-child { position: sticky; left: 0;
    background: var(--back); }
  table:not(.prose) tr.paper td:first-child { background: var(--soft); }
}
"""


def build_page(
    page: Page,
    sections: dict[str, tuple[list[Table], list[tuple[str, bytes]]]],
    last: list[Table],
    records: list[dict[str, Any]],
) -> str:
    """The page.

    Args:
        page: titles, introduction, and the table for the beginning.
        sections: for each task its tables and its figures (caption, PNG).
        last: tables for the end.
        records: for the list of machines and versions; of times, where there is nothing else.
    """
    parts = [] if page.summary is None else [as_html(page.summary)]
    for task, (tables, pictures) in sections.items():
        parts.append(f'<h2 id="{task}">{html.escape(page.tasks[task])}</h2>')
        parts += [as_html(table) for table in tables]
        parts.append(f'<div class="figures">{"".join(_figure(*picture) for picture in pictures)}</div>')
    parts += [as_html(table) for table in last]
    links = "".join(f'<a href="#{task}">{html.escape(page.tasks[task])}</a>' for task in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>CAffNet: {html.escape(page.title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>CAffNet: {html.escape(page.title)}</h1>"
        f"<p>From {len(records)} records. Rows in italics are published numbers.</p>"
        f"<nav>{links}</nav>{_introduction(page.introduction)}"
        f"{''.join(parts)}{_sources(records)}</body></html>\n"
    )


def _introduction(lines: tuple[str, ...]) -> str:
    """The Markdown above the tables: paragraphs and lists with **bold** and `code`."""
    blocks: list[str] = []
    for line in lines:
        text = re.sub(r"`(.+?)`", r"<code>\1</code>", unbroken(html.escape(line)))
        text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)
        if line.startswith("- "):
            item = f"<li>{text[2:]}</li>"
            if blocks and blocks[-1].endswith("</ul>"):
                blocks[-1] = blocks[-1].removesuffix("</ul>") + item + "</ul>"
            else:
                blocks.append(f"<ul>{item}</ul>")
        elif line:
            blocks.append(f"<p>{text}</p>")
    return f'<div class="introduction">{"".join(blocks)}</div>'


def _figure(caption: str, png: bytes) -> str:
    data = base64.b64encode(png).decode()
    text = html.escape(caption)
    image = f'<img alt="{text}" src="data:image/png;base64,{data}" width="640">'
    return f"<figure>{image}<figcaption>{unbroken(text)}</figcaption></figure>"


def _sources(records: list[dict[str, Any]]) -> str:
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in sources(records))
    return f"<h2>Where the runs were made</h2><ul>{lines}</ul>"
