"""Versions agree, workflows mirror `make`, and the check before a release finds what is wrong."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("release_check", ROOT / "release" / "check.py")
assert spec is not None and spec.loader is not None
check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
VERSION = check.version_of(ROOT)


def targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def made(text: str) -> set[str]:
    """The targets in commands such as ``make lint build``."""
    words = [line.split() for line in re.findall(r"\bmake ([\w -]+)", text)]
    return {word for line in words for word in line if word.islower()}  # settings, as SECONDS=60, are not


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_make_has(path: Path):
    steps = [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]
    commands = "\n".join(step["run"] for step in steps if "run" in step)
    assert made(commands) and made(commands) <= targets()
    assert all("uses" in step or "run" in step for step in steps)


def test_the_matrix_has_every_platform_and_python():
    tests = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    matrix = tests["jobs"]["test"]["strategy"]["matrix"]
    assert {name.split("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}
    assert matrix["python"] == ["3.11", "3.12", "3.13"]


def test_the_change_check_is_a_part_of_the_workflows():
    """What `.ci/run` asks for, GitHub asks for too."""
    asked = made((ROOT / ".ci" / "run").read_text().split("\n", 1)[1])
    offered = set().union(*(made(path.read_text()) for path in WORKFLOWS))
    assert asked <= offered


def test_the_targets_named_in_the_pages_exist():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = set()
    for page in pages:
        text = page.read_text()
        blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        lines = [line.split("#")[0] for block in blocks for line in block.splitlines() if line.startswith("make ")]
        named |= made("\n".join([*lines, *re.findall(r"`(make [a-z-]+)`", text)]))
    assert named <= targets()


def test_other_files_of_the_project_are_well_formed():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["id"] for hook in hooks} >= {"ruff-check", "ruff-format", "pyright"}
    for template in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"):
        assert {"name", "description", "body"} <= set(yaml.safe_load(template.read_text()))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == VERSION and citation["license"] == "Apache-2.0"
    recipe = yaml.safe_load((ROOT / "release" / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == VERSION


def test_the_wheels_are_those_of_make():
    listed = re.search(r"^WHEELS = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed and tuple(listed[1].split()) == check.WHEELS


# ------------------------------------------------------------------------------------------------ the check itself


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the files that name the version, as they are when it is released."""
    for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md", "release/conda/recipe.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    text = (tmp_path / "CHANGELOG.md").read_text()
    (tmp_path / "CHANGELOG.md").write_text(text.replace("## Unreleased", f"## {VERSION} (2026-12-01)"))
    (tmp_path / "docs" / "project").mkdir(parents=True)
    (tmp_path / "docs" / "project" / f"notes-{VERSION}.md").write_text("# New\n")
    return tmp_path


def test_a_finished_tree_is_ready(tree: Path):
    assert check.check_files(tree) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("CITATION.cff", f"version: {VERSION}", "version: 9.9.9", "CITATION.cff has another version"),
        ("release/conda/recipe.yaml", VERSION, "9.9.9", "recipe.yaml has another version"),
        ("CHANGELOG.md", f"## {VERSION} (2026-12-01)", f"## {VERSION}", "rename Unreleased, with the date"),
        ("CHANGELOG.md", "# Changelog", "# Changelog\n\n## Unreleased\n\n- new", "lines under Unreleased"),
    ],
)
def test_what_does_not_agree_is_told(tree: Path, name: str, old: str, new: str, told: str):
    text = (tree / name).read_text()
    assert old in text
    (tree / name).write_text(text.replace(old, new, 1))
    assert [line for line in check.check_files(tree) if told in line]


def test_missing_notes_are_told(tree: Path):
    (tree / "docs" / "project" / f"notes-{VERSION}.md").unlink()
    assert check.check_files(tree) == [f"docs/project/notes-{VERSION}.md is missing: what is new, for users."]


def test_dist_is_looked_at(tree: Path):
    dist = tree / "dist"
    dist.mkdir()
    name = f"caffnet-{VERSION}-py3-none-win_amd64.whl"
    with zipfile.ZipFile(dist / name, "w") as wheel:
        wheel.writestr("caffnet/py.typed", "")
    (dist / "caffnet-0.0.1.tar.gz").write_bytes(b"")
    told = check.check_dist(tree)
    assert f"dist lacks caffnet-{VERSION}.tar.gz: make wheels." in told
    assert any("caffnet-0.0.1.tar.gz, which is not of this version" in line for line in told)
    assert f"{name} must hold one compiled kernel, got []." in told
    assert len(told) == len(check.WHEELS) - 1 + 3


def test_uncommitted_changes_and_a_used_tag_are_told(tree: Path):
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=tree, check=True, capture_output=True)

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    assert check.check_repository(tree) == []
    git("tag", f"v{VERSION}")
    assert check.check_repository(tree) == []  # the tag is here
    (tree / "new").write_text("x")
    assert check.check_repository(tree) == ["There are uncommitted changes: commit them, then build again."]
    git("add", "-A")
    git("commit", "-qm", "second")
    assert check.check_repository(tree) == [f"The tag v{VERSION} is on another commit: choose the next version."]
