"""A hook of MkDocs: the site must not fetch anything from elsewhere when it is read."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

_FETCHED = re.compile(r'<(?:script|img|iframe|source)[^>]* src="?(https?:[^" >]+)|<link[^>]* href="?(https?:[^" >]+)')


def on_post_build(config: MkDocsConfig) -> None:
    """Look through every page for addresses that a browser would load by itself; links to follow are free."""
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        for script, link in _FETCHED.findall(page.read_text()):
            raise PluginError(f"{page.relative_to(config.site_dir)} fetches {script or link}: bring it along.")
