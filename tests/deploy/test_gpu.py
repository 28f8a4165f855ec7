"""The kernel for GPUs, as far as a machine without one can tell: it compiles, and the launches carry the right data.

Launches are carried out here by the library of the CPU, thread by thread, from the very bytes that a device would get.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import subprocess
import sys
import types
import warnings

import pytest
import torch
from torch import Tensor

from caffnet import AffineSet, InfeasibleError, KernelError, project
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


class Driver:
    """The functions of `cuda.bindings.driver` that a launch uses; what is launched, `Device` carries out."""

    def __init__(self, device: Device) -> None:
        self.device, self.context, self.error, self.grids = device, 0, 0, []

    def cuCtxGetCurrent(self):
        return 0, self.context

    def cuDeviceGet(self, ordinal: int):
        return 0, f"device {ordinal}"

    def cuDevicePrimaryCtxRetain(self, device: str):
        assert device == "device 1"
        return 0, 77

    def cuCtxSetCurrent(self, context: int):
        self.context = context
        return (0,)

    def cuModuleLoadData(self, code: bytes):
        assert self.context == 77, "a module is loaded into a context"
        return 0, code.decode()

    def cuModuleGetFunction(self, module: str, name: bytes):
        return 0, f"{module}: {name.decode()}"

    def cuLaunchKernel(self, function, *sizes_stream_and_arguments):
        *sizes, shared, stream, at, extra = sizes_stream_and_arguments
        if self.error:
            return (self.error,)
        grid, block = sizes[:3], sizes[3:]
        assert (shared, stream, extra) == (0, 1234, 0) and grid[1:] == block[1:] == [1, 1]
        assert self.context == 77
        module, name = function.split(": ")
        assert module == "code for sm_90"
        lengths = (native._BATCH.size, 8 if name == gpu.SOLVE else native._GRADIENTS.size, 8, 8)
        addresses = (ctypes.c_void_p * len(lengths)).from_address(at)
        arguments = [ctypes.string_at(a, n) for a, n in zip(addresses, lengths, strict=True)]  # pyright: ignore
        self.device.launch(name, arguments, grid[0] * block[0], torch.device("cpu"))
        self.grids.append((grid[0], block[0]))
        return (0,)


@pytest.fixture
def driver(monkeypatch):
    """`launch` itself, with torch on device 1 of a machine, on a stream of the user's."""
    there = Driver(Device())
    bindings = types.ModuleType("cuda.bindings")
    bindings.driver = there  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=1234))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(gpu, "_compiled", lambda architecture: f"code for {architecture}".encode())
    gpu._functions.cache_clear()
    yield there
    gpu._functions.cache_clear()


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


@pytest.mark.parametrize("samples", [1, 63, 64, 150])
def test_the_driver_gets_the_bytes_the_grid_and_the_stream(driver: Driver, samples: int):
    """`launch` as it is; the context of the device is made current first, as a thread of autograd has none."""
    p = problem(DOUBLE, True, True)
    p = p.at(torch.arange(150)[-samples:])
    options = Options(search="active", on_infeasible="nearest")
    expected, count = native.solve(p, options)
    found, bad = gpu.solve(p, options)
    assert all(torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0)) for a, b in zip(expected[:3], found[:3], strict=True))
    assert int(bad) == count
    wanted = (True, True, True, True, True, False)
    here, there = (module.gradient(p.f, p, expected, options, wanted) for module in (native, gpu))
    torch.testing.assert_close(there, here, equal_nan=True)
    assert [name for name, _ in driver.device.launches] == [gpu.SOLVE, gpu.GRADIENT]
    assert driver.grids == [{1: (1, 1), 63: (1, 63), 64: (1, 64), 150: (2, 64)}[samples]] * 2


def test_an_empty_batch_is_launched_too(driver: Driver):
    p = problem(DOUBLE, False, False)
    found, bad = gpu.solve(p.at(torch.arange(0)), Options(search="active", on_infeasible="nearest"))
    assert found.value.shape == (0, 3) and int(bad) == 0


def test_an_error_of_the_driver_is_named(driver: Driver):
    driver.error = 2
    with pytest.raises(KernelError, match="cannot run on the GPU: cuLaunchKernel says 2"):
        gpu.solve(problem(DOUBLE, False, False), Options(search="active"))


def test_rows_to_begin_with_are_packed_for_the_device(device: Device, monkeypatch):
    """A warm start whose samples do not lie one after the other."""
    p, options = problem(DOUBLE, True, False), Options(search="active", on_infeasible="nearest")
    start = native.solve(p, options)[0].active
    turned = start.T.contiguous().T
    assert not turned.is_contiguous()
    seen, launch = [], gpu.launch

    def look(name: str, arguments: list[bytes], threads: int, at: torch.device) -> None:
        seen.append(ctypes.string_at(native._BATCH.unpack(arguments[0])[26], start.numel()))
        launch(name, arguments, threads, at)

    monkeypatch.setattr(gpu, "launch", look)
    gpu.solve(p, options, turned)
    assert seen == [start.numpy().tobytes()]


class There(Tensor):
    """A tensor that says it is on a GPU."""

    is_cpu, is_cuda = False, True  # type: ignore[assignment]


def on_device(p: Problem) -> Problem:
    return p.replace_tensors(*(None if t is None else t.as_subclass(There) for t in p.tensors))


WAITS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "nonzero")


@pytest.mark.parametrize(("on_infeasible", "waits"), [("nan", 0), ("nearest", 0), ("raise", 1)])
def test_nothing_waits_for_the_device_but_what_raises(device: Device, monkeypatch, on_infeasible: str, waits: int):
    """From `run`, forward and backward: the host reads one number, and that only to raise."""
    monkeypatch.setattr(gpu, "is_available", lambda: True)
    monkeypatch.setattr(run, "are_concrete", lambda tensors: True)  # but for their class
    p = problem(DOUBLE, True, True)
    p = on_device(p.replace_tensors(p.f.nan_to_num(), p.w, p.A, p.lower, p.lower.expand(150, 7) + 9, None))
    options = Options(search="active", on_infeasible=on_infeasible)
    asked, wanted = [], (True, True, True, True, True, False)
    for name in WAITS:
        original = getattr(Tensor, name)
        monkeypatch.setattr(
            Tensor, name, lambda t, *a, _n=name, _o=original, **k: (asked.append(_n), _o(t, *a, **k))[1]
        )
    answer = run._native(p, options, None)
    assert asked.count("item") == len(asked) == waits
    found = run.gradient(p.f, p, answer, options, wanted)
    assert len(asked) == waits
    assert [name for name, _ in device.launches] == [gpu.SOLVE, gpu.GRADIENT]
    monkeypatch.undo()
    assert all(t is not None and bool(t.isfinite().all()) for t in found[:5])


def test_without_the_extra_the_cpu_answers_with_one_warning(device: Device, monkeypatch):
    monkeypatch.setattr(gpu, "is_available", lambda: False)
    monkeypatch.setattr(run, "_warned", set())
    p, options = problem(DOUBLE, True, True), Options(search="active", on_infeasible="nearest")
    with pytest.warns(UserWarning, match=r"runs on the CPU.*pip install .*\[gpu\]\""):
        run._native(on_device(p), options, None)
    with warnings.catch_warnings(action="error"):
        answer = run._native(on_device(p), options, None)
    assert not device.launches
    assert torch.equal(answer.value.nan_to_num(9.0), native.solve(p, options)[0].value.nan_to_num(9.0))


def test_the_check_for_machines_with_a_gpu_runs(device: Device, monkeypatch, capsys):
    """`python -m caffnet._kernel.gpu`, with launches carried out here; and it tells a wrong answer."""
    monkeypatch.setattr(gpu, "is_available", lambda: True)
    monkeypatch.setattr(Tensor, "cuda", lambda t: t)
    assert gpu.main() == 0
    assert "The device agrees with the CPU: largest difference" in capsys.readouterr().out
    assert len(device.launches) == 2 * len(list(gpu._checks()))
    original = gpu.solve
    monkeypatch.setattr(
        gpu, "solve", lambda p, options: (lambda a, bad: (a._replace(value=a.value + 1e-9), bad))(*original(p, options))
    )
    assert gpu.main() == 1
    assert "the value differs by" in capsys.readouterr().out


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
