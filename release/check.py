"""What must agree before a version is tagged: `make release` runs this last. ``python release/check.py [--tree-only]``.

Prints one line per fact that does not hold, and ends with 1 if there is one.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHEELS = ("manylinux_2_17_x86_64", "manylinux_2_17_aarch64", "macosx_10_13_x86_64", "macosx_11_0_arm64", "win_amd64")


def check_files(root: Path) -> list[str]:
    """Version and changelog, in all files that name them."""
    version = version_of(root)
    wrong = []
    for name, pattern in (
        ("CITATION.cff", rf"^version: {re.escape(version)}$"),
        ("release/conda/recipe.yaml", rf'^  version: "{re.escape(version)}"$'),
    ):
        if not re.search(pattern, (root / name).read_text(), re.MULTILINE):
            wrong.append(f"{name} has another version than pyproject.toml, which says {version}.")
    changelog = (root / "CHANGELOG.md").read_text()
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE):
        wrong.append(f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)': rename Unreleased, with the date.")
    unreleased = re.search(r"^## Unreleased\n(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE)
    if unreleased and unreleased[1].strip():
        wrong.append("CHANGELOG.md has lines under Unreleased: move them into the section of the version.")
    notes = root / "docs" / "project" / f"notes-{version}.md"
    if not notes.is_file():
        wrong.append(f"{notes.relative_to(root).as_posix()} is missing: what is new, for users.")
    return wrong


def check_dist(root: Path) -> list[str]:
    """One wheel per platform with its kernel in it, and the source distribution, all of this version; nothing else."""
    version, dist = version_of(root), root / "dist"
    wanted = {f"caffnet-{version}-py3-none-{wheel}.whl" for wheel in WHEELS} | {f"caffnet-{version}.tar.gz"}
    there = {path.name for path in dist.glob("*")}
    wrong = [f"dist lacks {name}: make wheels." for name in sorted(wanted - there)]
    wrong += [f"dist has {name}, which is not of this version: make wheels." for name in sorted(there - wanted)]
    for name in sorted(wanted & there):
        if name.endswith(".whl"):
            with zipfile.ZipFile(dist / name) as wheel:
                files = wheel.namelist()
            kernel = [f for f in files if re.fullmatch(r"caffnet/_kernel/\w+\.(so|dylib|dll)", f)]
            if len(kernel) != 1:
                wrong.append(f"{name} must hold one compiled kernel, got {kernel}.")
        else:
            with tarfile.open(dist / name) as source:
                files = [f.partition("/")[2] for f in source.getnames()]
            wrong += [f"{name} lacks {part}." for part in ("LICENSE", "hatch_build.py") if part not in files]
        wrong += [f"{name} lacks {part}." for part in ("caffnet/py.typed",) if not any(f.endswith(part) for f in files)]
    return wrong


def check_repository(root: Path) -> list[str]:
    """Nothing is uncommitted, and the tag is free or here."""
    version, wrong = version_of(root), []

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    if git("status", "--porcelain"):
        wrong.append("There are uncommitted changes: commit them, then build again.")
    if git("tag", "--list", f"v{version}") and git("rev-list", "-n1", f"v{version}") != git("rev-parse", "HEAD"):
        wrong.append(f"The tag v{version} is on another commit: choose the next version.")
    return wrong


def version_of(root: Path) -> str:
    """The version in pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]


def main() -> int:
    """Print what is wrong; 1 if something is."""
    wrong = check_files(ROOT) + check_repository(ROOT)
    if "--tree-only" not in sys.argv:
        wrong += check_dist(ROOT)
    for line in wrong:
        print(line)
    version = version_of(ROOT)
    print(f"{len(wrong)} things to mend before {version}." if wrong else f"{version} is ready: git tag v{version}.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
