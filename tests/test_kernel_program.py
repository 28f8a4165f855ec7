"""The kernel as a C program without Python: the answers and gradients stored in kernel/vectors.h, bit for bit."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import caffnet
from caffnet._kernel import build

HERE = Path(__file__).parent / "kernel"
KERNEL = Path(caffnet.__file__).parent / "_kernel"
COMPILER = build.find_compiler()
FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-ffp-contract=off", f"-I{KERNEL}"]

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")


def compiled(source: str, target: Path, *flags: str) -> Path:
    """A program made of one file of tests/kernel and the kernel."""
    assert COMPILER is not None
    command = [*COMPILER, *FLAGS, *flags, str(HERE / source), str(KERNEL / "kernel.c"), "-o", str(target), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


@needs_compiler
def test_answers_and_gradients_have_the_stored_bits(tmp_path: Path):
    done = subprocess.run([compiled("test_vectors.c", tmp_path / "test", "-O2")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    passed, _, rest = done.stdout.partition(" passed, ")
    assert int(passed) >= 300
    assert rest.startswith("0 failed")


@needs_compiler
def test_the_comparison_notices_a_change(tmp_path: Path):
    """The first status that is stored is replaced by another; all else passes, also without optimisation."""
    for name in ("test_vectors.c", "guard.h", "vectors.h"):
        text = (HERE / name).read_text()
        if name == "vectors.h":
            text, count = re.subn(r'(", (?:NULL|"[-.+]*"), )"\d', r'\1"4', text, count=1)
            assert count == 1
        (tmp_path / name).write_text(text)
    program = compiled(str(tmp_path / "test_vectors.c"), tmp_path / "test", "-O0")
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "problem 0: the status differs" in done.stdout
    assert done.stdout.endswith(" 1 failed\n")
