"""A hook of MkDocs: every script of the gallery becomes a page; the page before them has their time.

The sources link the scripts, ``gallery/NAME.py``, so that the links work where the files are read as they are. On the
site they lead to the pages.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))  # hooks are not a package

import cells

_SCRIPT = re.compile(r"\]\(([\w./-]+)\.py(?=[)#])")


def link_pages(markdown: str, folder: str) -> str:
    """``](NAME.py)`` becomes ``](NAME.md)`` for the scripts of the gallery; `folder` is that of the text, in docs."""
    pages = {f"gallery/{path.stem}" for path in cells.scripts()}

    def lead(match: re.Match[str]) -> str:
        there = posixpath.normpath(posixpath.join(folder, match[1]))
        return f"]({match[1]}.md" if there in pages else match[0]

    return _SCRIPT.sub(lead, markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add ``gallery/NAME.md`` for ``gallery/NAME.py``."""
    for path in cells.scripts():
        files.append(File.generated(config, f"gallery/{path.stem}.md", content=cells.render(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links of scripts to their pages; add the time of all scripts to the index of the gallery."""
    markdown = link_pages(markdown, posixpath.dirname(page.file.src_uri))
    if page.file.src_uri != "gallery/index.md":
        return markdown
    times = [cells.read_record(path)["seconds"] for path in cells.scripts()]
    return f"{markdown}\nAll {len(times)} scripts in full took {sum(times):.0f} s on one core.\n"
