"""A hook of MkDocs: every figure leads to its file, so that a wide one can be read on a small screen."""

from __future__ import annotations

import re
from typing import Any

_IMAGE = re.compile(r'(<a\b.*?</a>)|(<img\b[^>]*?\bsrc="([^"]+)"[^>]*>)', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Put a link around every image that is not inside of one."""
    return _IMAGE.sub(lambda found: found[1] or f'<a href="{found[3]}" title="full size">{found[2]}</a>', content)
