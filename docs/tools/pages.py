"""A hook of MkDocs: every script of the gallery becomes a page."""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))  # hooks are not a package

import cells


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add ``gallery/NAME.md`` for ``gallery/NAME.py``."""
    for path in cells.scripts():
        files.append(File.generated(config, f"gallery/{path.stem}.md", content=cells.render(path)))
    return files
