"""The scripts of the gallery run in their quick form; what the pages show is what the scripts gave."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
cells = pytest.importorskip("cells")
NAMES = [path.stem for path in cells.scripts()]

QUICK = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import cells
record = cells.run(Path(sys.argv[2]), Path("figures"), quick=True)
print(sum(len(output["figures"]) for output in record["outputs"]), len(record["outputs"]))
"""


@pytest.mark.parametrize("name", NAMES)
def test_the_script_runs(name: str, tmp_path: Path):
    """In a process of its own: scripts set number types and seeds. Warnings are errors there."""
    words = [sys.executable, "-c", QUICK, str(ROOT / "docs" / "tools"), str(ROOT / "docs" / "gallery" / f"{name}.py")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    figures, outputs = map(int, done.stdout.split())
    assert figures == len(list((tmp_path / "figures").glob("*.png"))) >= 1
    assert outputs == len(cells.read_cells(ROOT / "docs" / "gallery" / f"{name}.py"))


@pytest.mark.parametrize("name", NAMES)
def test_the_record_is_that_of_the_script(name: str):
    """If the code has changed: `make gallery GALLERY=NAME`."""
    path = ROOT / "docs" / "gallery" / f"{name}.py"
    record = cells.read_record(path)
    assert record["source"] == cells.source_hash(path) and not record["quick"]
    figures = [figure for output in record["outputs"] for figure in output["figures"]]
    assert figures and all((path.parent / "figures" / figure).is_file() for figure in figures)
    page = cells.render(path)
    assert page.startswith("# ") and "## What to watch for" in page and "**The problem.**" in page


@pytest.mark.parametrize("name", NAMES)
def test_the_text_keeps_its_lines(name: str):
    """An editor that fills paragraphs joins the items of a list, and leaves their indents between words."""
    for cell in cells.read_cells(ROOT / "docs" / "gallery" / f"{name}.py"):
        joined = re.findall(r"[.:;!?)`*] +[-*] .*", cell.text) + re.findall(r"\S {2,}\S.*", cell.text)
        assert not joined, f"{name}: one line for each item: {joined}"


def test_the_gallery_has_every_script():
    index, site = (ROOT / "docs" / "gallery" / "index.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    for name in NAMES:
        assert f"({name}.py)" in index and f"gallery/{name}.md" in site
    shown = {path.name for path in (ROOT / "docs" / "gallery" / "figures").glob("*")}
    kept = {
        f for name in NAMES for o in cells.read_record(cells.GALLERY / f"{name}.py")["outputs"] for f in o["figures"]
    }
    assert shown == kept


def test_cells_are_text_and_code(tmp_path: Path):
    script = tmp_path / "example.py"
    script.write_text('"""# Title\n\ntext"""\n\nimport sys\n\n# %%\n# ## Part\n#\n# more\n\nprint(len(sys.argv))\n')
    first, head, part = cells.read_cells(script)
    assert first.text == "# Title\n\ntext" and head.code == "import sys" and head.line == 5
    assert part.text == "## Part\n\nmore" and part.code == "print(len(sys.argv))" and part.line == 12
    record = cells.run(script, tmp_path / "figures", quick=True)
    assert record["outputs"][2] == {"printed": "2", "figures": []}
    before = cells.source_hash(script)
    script.write_text(script.read_text().replace("more", "less"))
    assert cells.source_hash(script) == before  # text does not count
    script.write_text(script.read_text().replace("len", "str"))
    assert cells.source_hash(script) != before


def test_a_script_leaves_the_number_type_as_it_was(tmp_path: Path):
    script = tmp_path / "example.py"
    code = "import torch\n\ntorch.set_default_dtype(torch.float16)\nprint(torch.ones(1).dtype)\n"
    script.write_text(f'"""# Title"""\n\n{code}')
    usual = torch.get_default_dtype()
    assert cells.run(script, tmp_path, quick=True)["outputs"][-1]["printed"] == "torch.float16"
    assert torch.get_default_dtype() == usual


def test_links_of_scripts_lead_to_their_pages():
    """In the sources they lead to the scripts, which exist there; other files stay as they are."""
    pages = pytest.importorskip("pages")
    source = "[a](../gallery/repair.py), [b](../gallery/repair.py#data), [c](../recipes/plain.py), `x](repair.py`"
    led = "[a](../gallery/repair.md), [b](../gallery/repair.md#data), [c](../recipes/plain.py), `x](repair.py`"
    assert pages.link_pages(source, "guides") == led
    assert pages.link_pages("[a](repair.py)", "gallery") == "[a](repair.md)"
    assert pages.link_pages("[a](repair.py)", "recipes") == "[a](repair.py)"
