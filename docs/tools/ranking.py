"""A hook of MkDocs: the search lists guides before the reference and the reports, which say every word more often."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.pages import Page


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Weigh the words of guides and first steps, not of the lists of messages; the plugin `search` reads the weight."""
    if page.file.src_uri.startswith(("guides/", "start/")) and "troubleshooting" not in page.file.src_uri:
        page.meta.setdefault("search", {})["boost"] = 4
    return markdown
