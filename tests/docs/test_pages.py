"""Every Python block of the README and of the site runs, as a reader would run it; commands and names are real."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from typer.main import get_command

import caffnet
import caffnet.control
import caffnet.deploy
import caffnet.methods
import caffnet.training

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(FENCE.pattern + r"|``.*?``|`[^`\n]*`", FENCE.flags)
ALL = [
    (page.relative_to(ROOT).as_posix(), language.strip(), code)
    for page in PAGES
    for language, code in FENCE.findall(page.read_text())
]
BLOCKS = [
    pytest.param(page, code, id=f"{page}-{number}")
    for number, (page, language, code) in enumerate(ALL)
    if language == "python"
]


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")  # of packages that a reader's script imports
@pytest.mark.parametrize(("page", "code"), BLOCKS)
def test_the_block_runs(page: str, code: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("block")
    monkeypatch.setitem(sys.modules, "block", module)  # torch.compile and pickle look functions up in their module
    exec(compile(code, page, "exec"), vars(module))


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_program_in_c_runs(tmp_path, monkeypatch):
    """The model, the program and the line that compiles it, as they stand in the guide."""
    monkeypatch.chdir(tmp_path)
    blocks = [(language, code) for page, language, code in ALL if page == "docs/guides/deployment.md"]
    exec(next(code for language, code in blocks if language == "python"), {})
    (tmp_path / "main.c").write_text(next(code for language, code in blocks if language == "c"))
    command = next(code for language, code in blocks if language == "sh" and code.startswith("cc "))
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    y = [float(number) for number in re.findall(r"y = \((.*), (.*)\)", done.stdout)[0]]
    assert min(y) >= 0 and sum(y) <= 1 + 1e-5  # printed with six digits


def test_the_pages_have_examples():
    with_code = {page for page, language, _ in ALL if language == "python"}
    assert "README.md" in with_code and len(with_code) >= 12


def test_blocks_that_do_not_run_are_known():
    """An unknown language would be a way around the test above."""
    assert {language for _, language, _ in ALL} <= {
        "python",
        "{.python .no-run}",
        "py",
        "sh",
        "c",
        "text",
        "json",
        "bibtex",
    }
    unrun = [(page, code) for page, language, code in ALL if language == "{.python .no-run}"]
    assert [page for page, _ in unrun] == ["docs/guides/deployment.md"]  # to_aot compiles: tests/deploy/test_aot.py
    for page, language, code in ALL:
        assert language != "py" or code.startswith("--8<--"), f"{page}: 'py' is for recipes, which have their own test"


def commands() -> list:
    found = []
    for page, language, code in ALL:
        if language == "sh":
            lines = [line for line in code.replace("\\\n", " ").splitlines() if line.startswith("caffnet ")]
            found += [pytest.param(page, line, id=f"{page}: {line[:50]}") for line in lines]
    return found


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_exist_with_their_options(page: str, line: str):
    from caffnet_lab.cli import app

    words = shlex.split(line, comments=True)
    group = get_command(app)
    command = group.commands[words[1]]  # type: ignore[attr-defined]
    known = {name for option in command.params for name in option.opts}
    assert {word.split("=")[0] for word in words[2:] if word.startswith("--")} <= known


def documented(page: str) -> set[str]:
    """The objects that a page of the API reference asks for."""
    return set(re.findall(r"^::: caffnet\.?(\S*)", (ROOT / "docs" / "api" / page).read_text(), re.MULTILINE))


def test_the_reference_has_every_public_name():
    core = {
        name.split(".")[-1] for name in documented("sets.md") | documented("projection.md") | documented("modules.md")
    }
    errors = {name for name in caffnet.__all__ if name.endswith("Error")}
    assert core | errors | {"Conflict"} == set(caffnet.__all__)
    for page, module in (
        ("control.md", caffnet.control),
        ("deploy.md", caffnet.deploy),
        ("methods.md", caffnet.methods),
    ):
        prefix = module.__name__.removeprefix("caffnet.") + "."
        names = {name.removeprefix(prefix) for name in documented(page)}
        assert names - {"gym", "sb3"} == set(module.__all__) - {"METHODS"}


def test_links_between_files_lead_somewhere():
    """As they are in the repository, where they are read too; the site is checked by its strict build."""
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]:
        for target in re.findall(r"\]\(([^)#\s]+)", CODE.sub("", page.read_text())):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_files_that_the_pages_name_exist():
    pages = [page for page in PAGES if page.parent.name in ("explanation", "guides", "project", "start", "gallery")]
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages]:
        for name in re.findall(r"`((?:tests|src|docs|release|results|\.github)/[\w./-]+)`", page.read_text()):
            written = "VERSION" in name or "NAME" in name  # stands for many
            assert written or (ROOT / name).exists(), f"{page.name}: {name}"
