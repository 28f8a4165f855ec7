"""Compiles the kernel: for the build of a wheel, and in a clone whose C files have changed.

It needs only the standard library and no other file of the package, so that a build can run it by its path. The
compiler is `CC`, else cc, gcc or clang of the system, else `ziglang` (which a build requests if there is no other).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
NAMES = {"win32": "caffnet.dll", "darwin": "libcaffnet.dylib", "linux": "libcaffnet.so"}
LIBRARY = HERE / NAMES.get(sys.platform, NAMES["linux"])
# The platforms of the wheels, and what `zig cc -target` calls them: the oldest systems that each tag promises.
WHEELS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "macosx_10_13_x86_64": "x86_64-macos.10.13",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "win_amd64": "x86_64-windows-gnu",
}
# Products are not fused and sums not reordered, so that the bits do not depend on the compiler.
FLAGS = ["-std=c11", "-O3", "-fPIC", "-fvisibility=hidden", "-Werror=implicit-function-declaration"]
FLAGS += ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
VECTORS = {"avx2": ["-mavx2", "-mfma"], "avx512": ["-mavx512f", "-mavx512dq", "-mavx512vl", "-mfma"]}


#: Files of the library that call the kernel and are not part of it.
SHELLS = ("dispatch.c", "onnx.c")


class BuildError(RuntimeError):
    """The kernel could not be compiled."""


def source_hash() -> str:
    """Sixteen digits that change with every C file."""
    digest = hashlib.sha256()
    for path in sorted([*HERE.glob("*.c"), *HERE.glob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return "x" + digest.hexdigest()[:16]


def is_current(library: Path = LIBRARY) -> bool:
    """Return True if a library exists and was compiled from the present C files."""
    return library.exists() and f"caffnet-sources:{source_hash()};".encode() in library.read_bytes()


def find_compiler() -> list[str] | None:
    """The command of a C compiler, or None."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    return None


def build_wheel_library(wheel: str, folder: Path) -> Path:
    """Compile the library of another platform with `ziglang`; the file in the folder.

    Args:
        wheel: a tag of `WHEELS`.
        folder: the folder for the file.
    """
    if wheel not in WHEELS:
        raise BuildError(f"CAFFNET_WHEEL must be one of {', '.join(WHEELS)}, got {wheel!r}.")
    folder.mkdir(parents=True, exist_ok=True)
    system = {"win": "win32", "macosx": "darwin", "manylinux": "linux"}[wheel.split("_")[0]]
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", WHEELS[wheel]]
    return build(folder / NAMES[system], compiler, ["-s"], system, WHEELS[wheel].split("-")[0])


def build(
    target: Path = LIBRARY,
    compiler: list[str] | None = None,
    extra: list[str] | None = None,
    system: str = sys.platform,
    machine: str = platform.machine(),
) -> Path:
    """Compile the library.

    Args:
        target: the file; it is replaced in one step.
        compiler: the command; `find_compiler` if None.
        extra: more flags, for example ``["-fsanitize=address"]``.
        system: the system that the library is for, as in `sys.platform`.
        machine: the machine that the library is for, as in `platform.machine`.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    compiler = compiler or find_compiler()
    if compiler is None:
        raise BuildError("There is no C compiler: install gcc or clang, set CC, or pip install ziglang.")
    flags = [*FLAGS, *shlex.split(os.environ.get("CFLAGS", "")), *(extra or [])]
    x86 = machine.lower() in ("x86_64", "amd64")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        jobs = [("kernel.c", "baseline", ["-DISA=baseline"])]
        jobs += [("kernel.c", name, [f"-DISA={name}", *options]) for name, options in VECTORS.items() if x86]
        jobs += [
            ("dispatch.c", "dispatch", [f"-DCAFFNET_SOURCES={source_hash()}", *(["-DCAFFNET_AVX"] if x86 else [])])
        ]
        jobs += [("onnx.c", "onnx", [])]
        objects = [f"{folder}/{name}.o" for _, name, _ in jobs]
        lines = [
            [*compiler, *flags, *more, "-c", str(HERE / source), "-o", made]
            for (source, _, more), made in zip(jobs, objects, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, lines))
        made = Path(folder) / target.name
        math = [] if system == "win32" else ["-lm"]
        # An undefined function is an error here, as on other systems, and not only when the library is loaded.
        # Functions of sanitizers are defined by the program.
        whole = ["-Wl,-z,defs"] if system == "linux" and not any("sanitize" in flag for flag in flags) else []
        _run([*compiler, *flags, "-shared", *objects, "-o", str(made), *math, *whole])
        os.replace(made, target)
    return target


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise BuildError(f"{shlex.join(command)} cannot be run: {error}") from None
    if done.returncode:
        raise BuildError(f"{shlex.join(command)} failed:\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    sys.stdout.write(f"{build()}\n")
