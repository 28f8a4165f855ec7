"""The kernel for GPUs, as far as a machine without one can tell: it compiles, and the launches carry the right data.

Launches are carried out here by the library of the CPU, thread by thread, from the very bytes that a device would get.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from caffnet import AffineSet, InfeasibleError, project
from caffnet._kernel import gpu, native
from caffnet._solve import run
from caffnet._solve.problem import Options, Problem

DOUBLE = torch.float64
HAS_NVRTC = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings") is not None


class Device:
    """Carries out launches on the CPU; counts them."""

    def __init__(self) -> None:
        self.launches: list[tuple[str, int]] = []

    def launch(self, name: str, arguments: list[bytes], threads: int, device: torch.device) -> None:
        self.launches.append((name, threads))
        library, batch = native._library(), arguments[0]
        samples = int.from_bytes(batch[16:24], "little")
        words = arguments[1:3] if name == gpu.SOLVE else arguments[2:4]
        memory, room = (int.from_bytes(word, "little") for word in words)
        for thread in range(threads):
            for b in range(thread, samples, threads):
                place = memory + thread * room
                if name == gpu.GRADIENT:
                    library.caffnet_gradient(batch, arguments[1], b, b + 1, place)
                elif library.caffnet_solve(batch, b, b + 1, place):
                    ctypes.c_int64.from_address(int.from_bytes(arguments[-1], "little")).value += 1


@pytest.fixture
def device(monkeypatch) -> Device:
    there = Device()
    monkeypatch.setattr(gpu, "launch", there.launch)
    return there


def problem(dtype: torch.dtype, own_rows: bool, w: bool) -> Problem:
    stream = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=DOUBLE, generator=stream).to(dtype)

    A = draw(150, 7, 3) if own_rows else draw(7, 3)
    upper = draw(150, 7)  # some sets are empty
    f = 3 * draw(150, 3)
    f[4, 1] = torch.nan
    return Problem(
        f, draw(150, 3) if w else None, A, torch.full((7,), -5.0, dtype=dtype), upper, None, "B" * 7, None, (150,)
    )


@pytest.mark.parametrize("w", [False, True])
@pytest.mark.parametrize("own_rows", [False, True])
@pytest.mark.parametrize("search", ["active", "full", "paper"])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_one_launch_gives_the_answers_and_gradients_of_the_cpu(device: Device, dtype, search, own_rows, w):
    p = problem(dtype, own_rows, w)
    options = Options(search=search, on_infeasible="nearest")
    expected, count = native.solve(p, options)
    found, bad = gpu.solve(p, options)
    assert [name for name, _ in device.launches] == [gpu.SOLVE]
    for a, b in zip(expected, found, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a.double().nan_to_num(9.0), b.double().nan_to_num(9.0))
    assert int(bad) == count > 0
    v, wanted = torch.ones_like(p.f), (True, w, True, True, True, False)
    here, there = (module.gradient(v, p, expected, options, wanted) for module in (native, gpu))
    assert [name for name, _ in device.launches] == [gpu.SOLVE, gpu.GRADIENT]
    for a, b in zip(here, there, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


def test_a_large_batch_takes_turns(device: Device, monkeypatch):
    """As many threads as the workspace has room for; every sample has its turn."""
    p, options = problem(DOUBLE, False, False), Options(search="active", on_infeasible="nearest")
    monkeypatch.setattr(gpu, "MOST_WORKSPACE", 70 * native.workspace_size(3, 7, native.SEARCHES["active"]))
    found, _ = gpu.solve(p, options)
    ((_, threads),) = device.launches
    assert threads == 64 < 150
    assert torch.equal(found.value.nan_to_num(9.0), native.solve(p, options)[0].value.nan_to_num(9.0))


def test_the_gpu_is_used_where_it_is_there_and_raises_as_the_cpu(device: Device, monkeypatch):
    """`run` on tensors that say they are on a GPU."""

    class There(Tensor):
        is_cpu, is_cuda = False, True  # type: ignore[assignment]

    monkeypatch.setattr(gpu, "is_available", lambda: True)
    p = problem(DOUBLE, False, False)
    p = p.replace_tensors(p.f.nan_to_num().as_subclass(There), *p.tensors[1:])
    options = Options(search="active", on_infeasible="raise")
    with pytest.raises(InfeasibleError, match="of 150 samples"):
        run._native(p, options, None)
    assert [name for name, _ in device.launches] == [gpu.SOLVE]


def test_without_a_gpu_nothing_of_cuda_is_asked_for():
    code = (
        "import sys, torch, caffnet; caffnet.project(torch.ones(2), caffnet.AffineSet.box(0.0, 0.5, dim=2)); "
        "sys.exit('cuda.bindings.nvrtc' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert not gpu.is_available() or torch.cuda.is_available()
    assert project(torch.ones(2), AffineSet.box(0.0, 0.5, dim=2)).value.tolist() == [0.5, 0.5]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_check_says_that_there_is_no_gpu():
    done = subprocess.run([sys.executable, "-m", "caffnet._kernel.gpu"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "There is no GPU here" in done.stdout


@pytest.mark.skipif(not HAS_NVRTC, reason="cuda-bindings is not installed (pip install cuda-bindings<13 and NVRTC)")
@pytest.mark.parametrize("architecture", ["compute_70", "compute_80", "compute_90"])
def test_it_compiles(architecture: str):
    """To PTX; `make gpu` goes on to machine code, which takes minutes, and tells registers and spills."""
    try:
        code, _ = gpu.compile_for(architecture)
    except RuntimeError as error:
        if "nvrtc" in str(error).lower() and "compile" not in str(error):
            pytest.skip("NVRTC is not installed")
        raise
    for name in (gpu.SOLVE, gpu.GRADIENT):
        assert f".entry {name}(".encode() in code
    assert b"fma.rn.f64" in code  # where fma is meant
    assert bytes([32])[0] == 32, "the log, which is empty, was written into the b' ' that all Python code shares"


def test_compiled_code_is_kept(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gpu, "compile_for", lambda name: calls.append(name) or (b"code", ""))
    assert [gpu._compiled("sm_80") for _ in range(3)] == [b"code"] * 3
    assert calls == ["sm_80"]
    assert [path.suffix for path in (tmp_path / "caffnet").iterdir()] == [".cubin"]
