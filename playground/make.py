"""Writes docs/playground.html: the page with the kernel as WebAssembly inside. ``python playground/make.py``."""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from caffnet._kernel import build, native

HERE = Path(__file__).parent
TARGET = HERE.parent / "docs" / "playground.html"
EXPORTS = ("page_array", "page_rows", "page_solve", "page_conflict")


def compile_module(source: Path, exports: tuple[str, ...], target: Path) -> Path:
    """A WebAssembly module of a C file and the kernel, which imports nothing."""
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-wasi", "-mexec-model=reactor", "-Os", "-s"]
    command += ["-std=c11", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", f"-I{build.HERE}"]
    command += [f"-Wl,--export={name}" for name in exports]
    subprocess.run([*command, str(source), str(build.HERE / "kernel.c"), "-o", str(target)], check=True)
    return target


def main(target: Path = TARGET) -> None:
    """Compile, fill in the page, write it."""
    with tempfile.TemporaryDirectory() as folder:
        module = compile_module(HERE / "page.c", EXPORTS, Path(folder) / "page.wasm").read_bytes()
    page = (HERE / "playground.html").read_text()
    numbers = ", ".join(repr(x) for x in native.tolerances(torch.float64, 2))
    page = page.replace("@WASM@", base64.b64encode(module).decode()).replace("@TOLERANCES@", f"[{numbers}]")
    page = page.replace("<title>", f"<!-- caffnet-sources:{build.source_hash()}; by playground/make.py -->\n<title>", 1)
    target.write_text(page)
    sys.stdout.write(f"{target}: {len(page) / 1000:.0f} kB, the kernel {len(module) / 1000:.0f} kB\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
