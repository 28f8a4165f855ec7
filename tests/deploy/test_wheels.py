"""The library for other machines: compiled by ziglang, with the same answers."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import caffnet
from caffnet._kernel import build

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
HERE = Path(__file__).parent.parent / "kernel"
#: The first bytes of a library and where the machine is written in it.
FORMATS = {
    "manylinux_2_17_x86_64": (b"\x7fELF", 18, b"\x3e\x00"),
    "manylinux_2_17_aarch64": (b"\x7fELF", 18, b"\xb7\x00"),
    "macosx_10_13_x86_64": (b"\xcf\xfa\xed\xfe", 4, b"\x07\x00\x00\x01"),
    "macosx_11_0_arm64": (b"\xcf\xfa\xed\xfe", 4, b"\x0c\x00\x00\x01"),
    "win_amd64": (b"MZ", None, b"d\x86"),
}


@pytest.mark.parametrize("wheel", build.WHEELS)
def test_every_platform_is_compiled(wheel: str, tmp_path: Path):
    library = build.build_wheel_library(wheel, tmp_path)
    content = library.read_bytes()
    start, place, machine = FORMATS[wheel]
    assert content.startswith(start)
    if place is None:  # a PE file says where its header is
        place = int.from_bytes(content[0x3C:0x40], "little") + 4
    assert content[place : place + len(machine)] == machine
    assert build.is_current(library)
    assert b"caffnet_solve" in content and b"RegisterCustomOps" in content


def test_makefile_and_build_name_the_same_platforms():
    text = (HERE.parent.parent / "Makefile").read_text()
    line = next(line for line in text.splitlines() if line.startswith("WHEELS ="))
    assert line.split("=")[1].split() == list(build.WHEELS)


def test_an_unknown_platform_is_refused(tmp_path: Path):
    with pytest.raises(build.BuildError, match="CAFFNET_WHEEL must be one of manylinux_2_17_x86_64"):
        build.build_wheel_library("amiga", tmp_path)


def test_without_a_compiler_the_library_is_compiled_by_ziglang(tmp_path: Path, monkeypatch):
    """No cc on the PATH; the answers have the same bits."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert build.find_compiler() == [sys.executable, "-m", "ziglang", "cc"]
    library = build.build(tmp_path / build.LIBRARY.name)
    code = (
        "import sys, pathlib; from caffnet._kernel import build; build.LIBRARY = pathlib.Path(sys.argv[1])\n"
        "build.is_current = lambda: True\n"
        "import torch, caffnet; from caffnet._kernel import native; assert native.library_path() == build.LIBRARY\n"
        "torch.manual_seed(0); A, f = torch.randn(40, 9).double(), 9 * torch.randn(30, 9).double()\n"
        "y = caffnet.project(f, caffnet.AffineSet.inequality(A, torch.ones(40).double())).value\n"
        "sys.stdout.write(y.numpy().tobytes().hex())"
    )
    source = str(Path(caffnet.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", code, str(library)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert done.returncode == 0, done.stderr
    torch.manual_seed(0)
    A, f = torch.randn(40, 9).double(), 9 * torch.randn(30, 9).double()
    here = caffnet.project(f, caffnet.AffineSet.inequality(A, torch.ones(40).double())).value
    assert done.stdout == here.numpy().tobytes().hex()


def test_the_vectors_on_aarch64(tmp_path: Path):
    """Bit for bit, under qemu-user."""
    if not shutil.which("qemu-aarch64"):
        pytest.skip("qemu-user is not installed")
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl"]
    flags = ["-std=c11", "-O2", "-ffp-contract=off", f"-I{build.HERE}"]
    files = [str(HERE / "test_vectors.c"), str(build.HERE / "kernel.c"), "-o", str(tmp_path / "test"), "-lm"]
    done = subprocess.run([*zig, *flags, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run(["qemu-aarch64", tmp_path / "test"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith(" passed, 0 failed\n")
