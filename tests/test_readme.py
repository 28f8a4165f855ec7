"""Every Python block of the README and of the docs is extracted and run, as a reader would run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(page, code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize(("page", "code"), BLOCKS)
def test_the_block_runs(page: Path, code: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, f"{page.name}", "exec"), {"__name__": "__main__"})


def test_the_readme_has_examples():
    assert len([b for b in BLOCKS if "README" in str(b.id)]) >= 5
