"""A hook of MkDocs: every script of the gallery becomes a page; the page before them has their time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))  # hooks are not a package

import cells


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add ``gallery/NAME.md`` for ``gallery/NAME.py``."""
    for path in cells.scripts():
        files.append(File.generated(config, f"gallery/{path.stem}.md", content=cells.render(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Add the time of all scripts to the index of the gallery."""
    if page.file.src_uri != "gallery/index.md":
        return markdown
    times = [cells.read_record(path)["seconds"] for path in cells.scripts()]
    return f"{markdown}\nAll {len(times)} scripts in full took {sum(times):.0f} s on one core.\n"
