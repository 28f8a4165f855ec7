"""The kernel on an NVIDIA GPU: compiled for the device by NVRTC at the first call, one launch for a batch.

It is the same C source (gpu.cu wraps it), so it decides, proves and differentiates as on the CPU. A thread takes one
sample after the other; its workspace is global memory. The host waits only for the count of bad samples, and only if
they raise an error. ``python -m caffnet._kernel.gpu`` compares the device with the CPU; with
``sm_70 sm_80`` it compiles for these and prints registers and spills.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet._install import install_command
from caffnet._kernel import build, native
from caffnet._solve.problem import CORES, Answer, Options, Problem
from caffnet.errors import KernelError

SOLVE, GRADIENT = "caffnet_solve_batch", "caffnet_gradient_batch"
BLOCK = 64  # threads in a block: samples take different numbers of steps, so few threads should wait for each other
MOST_WORKSPACE = 2**30  # bytes of workspace; a larger batch reuses it
# Headers of the C library that the files include; NVRTC has the functions built in.
_HEADERS = {
    "math.h": "#define HUGE_VAL __longlong_as_double(0x7ff0000000000000LL)\n"
    "#define NAN __longlong_as_double(0x7ff8000000000000LL)\n",
    "stddef.h": "#define NULL 0\n",
    "string.h": "",
    "stdint.h": "typedef signed char int8_t; typedef int int32_t; typedef long long int64_t;\n"
    "typedef unsigned int uint32_t; typedef unsigned long long uint64_t; typedef unsigned long long uintptr_t;\n",
}


@functools.cache
def is_available() -> bool:
    """Check whether there is a GPU and the package of the extra ``gpu``."""
    if not torch.cuda.is_available() or importlib.util.find_spec("cuda") is None:
        return False
    return importlib.util.find_spec("cuda.bindings") is not None


# ------------------------------------------------------------------------------------------------- the calls


def solve(problem: Problem, options: Options, start: Tensor | None = None) -> tuple[Answer, Tensor]:
    """Answer every sample where the tensors are; also returns how many are bad, ``(1,)``, on the device."""
    answer = native.empty_answer(problem.f, problem.A.shape[-2], options.search)
    texts = _texts(problem, problem.f.device)
    start = None if start is None else start.to(problem.f.device)
    batch = native.Batch(problem, options, answer, start, device_texts=texts)
    bad = torch.zeros(1, dtype=torch.int64, device=problem.f.device)
    memory, room, threads = _workspace(batch, problem.f.device)
    launch(SOLVE, [batch.packed, *map(_word, (memory.data_ptr(), room, bad.data_ptr()))], threads, problem.f.device)
    return answer, bad


def gradient(
    v: Tensor, problem: Problem, answer: Answer, options: Options, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients for f, w, A, lower, upper and the metric, where `wanted`, for an incoming gradient `v`."""
    p, device = problem, problem.f.device
    samples = p.f.shape[0]
    to_f = torch.empty_like(p.f, memory_format=torch.contiguous_format) if wanted[0] else None
    to_w = torch.empty_like(p.f, memory_format=torch.contiguous_format) if wanted[1] and p.w is not None else None
    # One line for each sample, summed afterwards: samples must not write to one place.
    lines = [
        torch.zeros(samples, *t.shape[t.ndim - core :], dtype=torch.float64, device=device)
        if want and t is not None
        else None
        for t, want, core in zip((p.A, p.lower, p.upper, p.metric), wanted[2:], CORES[2:], strict=True)
    ]
    batch = native.Batch(p, options, answer, None, device_texts=_texts(p, device))
    to = native.pack_gradients(v := native.contiguous(v, 1), to_f, to_w, lines)
    memory, room, threads = _workspace(batch, device)
    launch(GRADIENT, [batch.packed, to, *map(_word, (memory.data_ptr(), room))], threads, device)
    del v  # alive until the launch is queued
    sums = [
        None if t is None or whole is None else (t.sum(0) if whole.ndim == core else t).to(p.f.dtype)
        for t, whole, core in zip(lines, (p.A, p.lower, p.upper, p.metric), CORES[2:], strict=True)
    ]
    return to_f, to_w, *sums


def _texts(problem: Problem, device: torch.device) -> tuple[Tensor, Tensor]:
    """The kinds of the rows, and which are soft, in the memory of the device."""
    return _text(problem.row_kinds, device), _text(problem.soft, device)


@functools.lru_cache(maxsize=64)
def _text(text: str, device: torch.device) -> Tensor:
    return torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8).to(device)


def _workspace(batch: native.Batch, device: torch.device) -> tuple[Tensor, int, int]:
    """Memory, the bytes of each thread, and the number of threads."""
    room = -(-batch.workspace // 64) * 64
    threads = max(1, min(batch.samples, MOST_WORKSPACE // room))
    threads = threads if threads < BLOCK else threads // BLOCK * BLOCK
    return torch.empty(threads * room, dtype=torch.uint8, device=device), room, threads


def _word(number: int) -> bytes:
    return number.to_bytes(8, "little")


# ------------------------------------------------------------------------------------------------- the device


def compile_for(architecture: str, verbose: bool = False) -> tuple[bytes, str]:
    """Compile the kernel for an architecture; return it and the messages of the compiler. Needs no GPU.

    Args:
        architecture: ``"sm_80"`` gives machine code, ``"compute_80"`` its intermediate form (PTX), in a few seconds.
        verbose: also report the registers and the spilled memory.

    Raises:
        KernelError: it does not compile.
    """
    from cuda.bindings import nvrtc  # pyright: ignore

    files = {path.name: path.read_text() for path in (*build.HERE.glob("*.c"), *build.HERE.glob("*.h"))} | _HEADERS
    names, texts = [name.encode() for name in files], [text.encode() for text in files.values()]
    source = (build.HERE / "gpu.cu").read_text().encode()
    _, program = nvrtc.nvrtcCreateProgram(source, b"gpu.cu", len(names), texts, names)
    # Products are not fused, as on the CPU.
    options = [f"--gpu-architecture={architecture}".encode(), b"--fmad=false", b"--std=c++17"]
    options += [b"--ptxas-options=-v"] if verbose else []
    (failed,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * (size + 1)  # written in place: two bytes at least, as Python shares its objects of one byte
    nvrtc.nvrtcGetProgramLog(program, log)
    said = log.decode(errors="replace").strip("\0 \n")
    if failed:
        raise KernelError(f"The kernel does not compile for {architecture}: {said[-4000:]}")
    machine = architecture.startswith("sm_")
    _, size = (nvrtc.nvrtcGetCUBINSize if machine else nvrtc.nvrtcGetPTXSize)(program)
    code = b" " * size
    (nvrtc.nvrtcGetCUBIN if machine else nvrtc.nvrtcGetPTX)(program, code)
    return code, said


def _compiled(architecture: str) -> bytes:
    """The machine code for an architecture: compiled once, then kept in the cache of the user.

    Compiling takes a minute or more; the name of the file depends on everything that is compiled.
    """
    texts = [path.read_bytes() for path in sorted(build.HERE.glob("*.[ch]*")) if path.suffix in (".c", ".h", ".cu")]
    digest = hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "caffnet"
    path = cache / f"{architecture}-{digest}.cubin"
    if path.exists():
        return path.read_bytes()
    code, _ = compile_for(architecture)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, not answers
        cache.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(code)
        os.replace(fresh, path)
    return code


@functools.cache
def _functions(device: int) -> dict[str, int]:
    """The functions of the kernel on a device."""
    from cuda.bindings import driver  # pyright: ignore

    major, minor = torch.cuda.get_device_capability(device)
    code = _compiled(f"sm_{major}{minor}")
    module = _ask(driver.cuModuleLoadData, code)
    return {name: _ask(driver.cuModuleGetFunction, module, name.encode()) for name in (SOLVE, GRADIENT)}


def _ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the driver; its result."""
    error, *given = function(*arguments)
    if error:
        raise KernelError(f"The kernel cannot run on the GPU: {function.__name__} says {error}.")
    return given[0] if given else None


def _enter(device: int) -> None:
    """Make torch's context of the device current, in a thread that has none, as those of the backward pass."""
    from cuda.bindings import driver  # pyright: ignore

    if not int(_ask(driver.cuCtxGetCurrent)):
        _ask(driver.cuCtxSetCurrent, _ask(driver.cuDevicePrimaryCtxRetain, _ask(driver.cuDeviceGet, device)))


def launch(name: str, arguments: Sequence[bytes], threads: int, device: torch.device) -> None:
    """Queue one launch on torch's current stream of the device."""
    from cuda.bindings import driver  # pyright: ignore

    with torch.cuda.device(device):
        place = torch.cuda.current_device()
        _enter(place)
        function = _functions(place)[name]
        stream = torch.cuda.current_stream(device).cuda_stream
        kept = [ctypes.create_string_buffer(a, len(a)) for a in arguments]
        addresses = (ctypes.c_void_p * len(kept))(*(ctypes.addressof(a) for a in kept))
        block = min(threads, BLOCK)
        grid = -(-threads // block)
        at = ctypes.addressof(addresses)
        _ask(driver.cuLaunchKernel, function, grid, 1, 1, block, 1, 1, 0, stream, at, 0)


def main(*architectures: str) -> int:
    """Compare the device with the CPU on random problems; or compile, and print the registers and memory used."""
    for architecture in architectures:
        code, said = compile_for(architecture, verbose=True)
        for name in (SOLVE, GRADIENT):
            used = re.search(rf"for {name}\n.*?(\d+) bytes spill stores.*?Used (\d+) registers", said, re.DOTALL)
            spilled, registers = used.groups() if used else ("?", "?")
            sys.stdout.write(f"{architecture} {name}: {registers} registers, {spilled} bytes spilled\n")
        sys.stdout.write(f"{architecture}: {len(code)} bytes\n")
    if architectures:
        return 0
    if not is_available():
        sys.stdout.write(f"There is no GPU here, or cuda-bindings is missing: {install_command('gpu')}.\n")
        return 2
    worst = 0.0
    for name, problem, options in _checks():
        there = problem.replace_tensors(*(None if t is None else t.cuda() for t in problem.tensors))  # pyright: ignore
        (here, bad), (found, count) = native.solve(problem, options), solve(there, options)
        wanted = (True, *(t is not None for t in problem.tensors[1:]))
        slopes = native.gradient(problem.f, problem, here, options, wanted)
        others = gradient(there.f, there, found, options, wanted)
        if int(count) != bad or not torch.equal(here.status, found.status.cpu()):
            sys.stdout.write(f"{name}: the status differs.\n")
            return 1
        for what, a, b in zip(_CHECKED, (here.value, *slopes), (found.value, *others), strict=True):
            if a is None or b is None:
                continue
            b, size = b.cpu(), a.abs().nan_to_num(0.0).max().clamp_min(1)
            difference = float(((a - b).abs() / size).nan_to_num(0.0).max())
            if difference > tolerance.exported(a.dtype) or not torch.equal(a.isnan(), b.isnan()):
                sys.stdout.write(f"{name}: {what} differs by {difference:.1e}.\n")
                return 1
            worst = max(worst, difference)
    sys.stdout.write(f"The device agrees with the CPU: largest difference {worst:.1e}.\n")
    return 0


_CHECKED = ("the value", *(f"the gradient for {what}" for what in ("f", "w", "A", "lower", "upper", "the metric")))


def _checks() -> Iterator[tuple[str, Problem, Options]]:
    """Random problems, small and large: empty sets, NaN, with w, a metric and soft rows."""
    stream = torch.Generator()  # its first state is always the same
    sizes = ((1, 3, 100, "full"), (1, 3, 100, "active"), (2, 13, 2000, "active"), (8, 32, 300, "active"))
    for n, m, samples, search in (*sizes, (30, 105, 100, "active")):
        for dtype in (torch.float32, torch.float64):
            for more in ("alone", "with w", "with a metric", "with soft rows"):
                f, w, A, upper, root = (
                    torch.randn(*shape, dtype=torch.float64, generator=stream).to(dtype)
                    for shape in ((samples, n), (samples, n), (m, n), (samples, m), (samples, n, n))
                )
                f[0, 0] = torch.nan
                problem = Problem(
                    3 * f,
                    w if more == "with w" else None,
                    A,
                    upper - upper.abs() - 1,
                    upper,
                    root @ root.mT + torch.eye(n, dtype=dtype) if more == "with a metric" else None,
                    "B" * m,
                    None,
                    (samples,),
                    "s" + "." * (m - 1) if more == "with soft rows" else "",
                )
                options = Options(search=search, on_infeasible="nearest")
                yield f"n = {n}, m = {m}, {search}, {dtype}, {more}", problem, options


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
