"""Runs the tests of the core with a kernel that was compiled with sanitizers, in a copy of the package.

``python tests/kernel/sanitize.py -fsanitize=address,undefined -fno-sanitize-recover=all``. Needs gcc, whose runtime
libraries are loaded before Python's own.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TESTS = [
    "compromise",
    "defects",
    "gradient",
    "literal",
    "metric",
    "multipliers",
    "nasty",
    "properties",
    "qp",
    "soft_rows",
    "strict",
    "structure",
]


def load_build(package: Path) -> Any:
    """`caffnet._kernel.build` of a copy, by its path."""
    spec = importlib.util.spec_from_file_location("kernel_build", package / "_kernel" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def library(compiler: list[str], name: str) -> str:
    """The path of a library of the compiler."""
    return subprocess.check_output([*compiler, f"-print-file-name={name}"], text=True).strip()


def main(flags: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "src" / "caffnet"
        shutil.copytree(ROOT / "src" / "caffnet", package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        build = load_build(package)
        compiler = build.find_compiler()
        build.build(compiler=compiler, extra=flags)
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(library(compiler, name) for name in ("libasan.so", "libstdc++.so")),
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(package.parent),
        }
        where = "import caffnet; print(caffnet.__file__)"
        found = subprocess.check_output([sys.executable, "-c", where], text=True, env=environment, cwd=ROOT)
        if Path(found.strip()).parent != package:
            raise RuntimeError(f"The tests would run with {found.strip()}, not with the copy {package}.")
        files = [f"tests/test_{name}.py" for name in TESTS]
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files]
        return subprocess.run(command, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
