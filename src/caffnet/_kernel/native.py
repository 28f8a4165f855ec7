"""Calls the kernel: loads the library, packs the arguments of kernel.h, shares a batch among threads.

The library is compiled when the package is installed (hatch_build.py). A call passes one struct of addresses and
numbers, so it costs a few microseconds; the lock of the interpreter is released during the call.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import struct
import sys
from array import array
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet._install import in_clone
from caffnet._kernel import build, memory
from caffnet._solve import sparse
from caffnet._solve.problem import CORES, Answer, Options, Problem, Status, is_diagonal
from caffnet._solve.tracing import constant
from caffnet.errors import KernelError

SEARCHES = {"full": 0, "lite": 1, "active": 2, "paper": 3}
_ACTIVE = SEARCHES["active"]
_WORTH_A_THREAD = 20_000  # numbers in A for one more thread: what is computed while a thread is woken
_LONG = 2e8  # multiply-adds: about a second; such a call runs beside the main thread, which Ctrl-C can then stop

_UNDECIDED = 7  # the status that kernel.h has for sparse rows on which a search does not end
_FULL = 2**23  # numbers in A and in one factor for which a sparse problem may be written in full
_BATCH = struct.Struct("32q11d")
_GRADIENTS = struct.Struct("12q")
_SYSTEM = struct.Struct("6q")


# ------------------------------------------------------------------------------------------------- the library


@functools.cache
def _library() -> ctypes.CDLL:
    """The compiled kernel, checked against the C files beside it; in a clone it is compiled again when they change."""
    path = build.LIBRARY
    remedy = (
        f"Compile it with `python {build.__file__}`."
        if in_clone()
        else "Install the package again: pip install --force-reinstall --no-deps caffnet."
    )
    try:
        if in_clone() and not build.is_current():
            sys.stderr.write("caffnet: compiling the kernel, once after its source has changed\n")
            build.build()
        if not build.is_current():
            raise KernelError(f"The compiled kernel {path} is missing, or was compiled from other C files. {remedy}")
        library = ctypes.CDLL(str(path))
    except (OSError, AttributeError, build.BuildError) as error:
        raise KernelError(f"The compiled kernel {path} cannot be loaded: {error}. {remedy}") from None
    pointer = ctypes.c_void_p
    library.caffnet_workspace.argtypes = [ctypes.c_int64] * 4
    library.caffnet_workspace.restype = ctypes.c_int64
    library.caffnet_workspace_sparse.argtypes = [ctypes.c_int64, ctypes.c_int64, pointer]
    library.caffnet_workspace_sparse.restype = ctypes.c_int64
    library.caffnet_kept.argtypes = [ctypes.c_int64] * 2
    library.caffnet_kept.restype = ctypes.c_int64
    library.caffnet_solve.argtypes = [ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, pointer]
    library.caffnet_solve.restype = ctypes.c_int64
    library.caffnet_gradient.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, pointer]
    library.caffnet_gradient.restype = None
    library.caffnet_minimise.argtypes = [ctypes.c_char_p, pointer, ctypes.c_int64, ctypes.c_int64, pointer]
    library.caffnet_minimise.restype = ctypes.c_int64
    library.caffnet_system.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, pointer]
    library.caffnet_system.restype = None
    library.caffnet_conflict.argtypes = [ctypes.c_char_p, ctypes.c_int64, pointer, pointer, pointer]
    library.caffnet_conflict.restype = None
    return library


def library_path() -> Path:
    """The compiled kernel as a file, up to date; it is also a library of operators for ONNX Runtime."""
    _library()
    return build.LIBRARY


@functools.lru_cache(maxsize=1024)
def workspace_size(n: int, m: int, search: int, metric: bool = False) -> int:
    """Bytes of workspace for one call at a time; `search` is a number of `SEARCHES`."""
    return _library().caffnet_workspace(n, m, search, metric)


@constant
def tolerances(dtype: torch.dtype, n: int) -> tuple[float, ...]:
    """The fields of CaffnetTolerances."""
    return (
        tolerance.feasibility(dtype, n),
        tolerance.search(n),
        tolerance.rank(dtype, n),
        tolerance.tie(dtype, n),
        tolerance.underflow(dtype),
        tolerance.strict_margin(dtype, n),
        tolerance.fine_rank(n),
        tolerance.EMPTY,
        tolerance.optimal(dtype),
        tolerance.DELICATE,
    )


_known_tolerances = functools.lru_cache(maxsize=1024)(tolerances)


@functools.lru_cache(maxsize=1024)
def _text(text: str) -> tuple[bytes, int]:
    """Return the characters of a text and their address. The caller keeps the characters while it uses the address."""
    characters = text.encode()
    return characters, ctypes.cast(ctypes.c_char_p(characters), ctypes.c_void_p).value or 0


# ------------------------------------------------------------------------------------------------- arrays


def contiguous(t: Tensor, core: int) -> Tensor:
    """Return a tensor whose samples (``core`` last axes each) are contiguous, or one sample that all share."""
    if t.is_neg():
        t = t.resolve_neg()
    if t.is_contiguous():
        return t
    if t.ndim > core and t.stride(0) == 0 and t[0].is_contiguous():
        return t
    return t.contiguous()


def _array(t: Tensor, core: int, samples: int) -> tuple[Tensor, int, int]:
    """Return a tensor of so many samples in the form of `contiguous`, its step and its address."""
    if t.is_neg() or not t.is_contiguous():
        t = contiguous(t, core)
    return t, 0 if samples < 2 or t.ndim <= core else t.stride(0), t.data_ptr()


class Batch:
    """A CaffnetBatch, with the tensors whose addresses it contains."""

    __slots__ = (
        *("samples", "n", "m", "search", "entries", "size", "metric", "cancel", "kept", "packed"),
        *("_starts", "_key"),
    )

    def __init__(
        self,
        p: Problem,
        options: Options,
        answer: Answer,
        start: Tensor | None,
        may_cancel: bool = False,
        device_texts: tuple[Tensor, Tensor] | None = None,
        keep: bool = False,
    ):
        f, w, A, lower, upper, metric, row_kinds, _, _, soft_rows = p
        starts, columns, A = sparse.entries(A) if sparse.is_sparse(A) else (None, None, A)
        (samples, n), dtype, m, search = f.shape, f.dtype, len(row_kinds), SEARCHES[options.search]
        f, f_step, f_at = _array(f, 1, samples)
        w, w_step, w_at = (None, 0, 0) if w is None else _array(w, 1, samples)
        A, A_step, A_at = _array(A, 2, samples)
        lower, lower_step, lower_at = _array(lower, 1, samples)
        upper, upper_step, upper_at = _array(upper, 1, samples)
        metric, metric_step, metric_at = (None, 0, 0) if metric is None else _array(metric, 2, samples)
        entries = None if starts is None else A.shape[0]
        size = m * n if entries is None else entries  # numbers in a matrix: a measure of work
        self.samples, self.n, self.m, self.search, self.size = samples, n, m, search, size
        self._starts, self.entries, self.metric = starts, entries, metric is not None
        if device_texts is None:
            (kinds, kinds_at), (soft, soft_at) = _text(row_kinds), _text(soft_rows)
        else:
            (kinds, kinds_at), (soft, soft_at) = ((t, t.data_ptr()) for t in device_texts)
        value, status, active, choice = answer
        unread = None
        if status is _UNREAD:
            unread = array("b", bytes(samples * (m + 1)))
            status_at = unread.buffer_info()[0]
            active_at = status_at + samples
        else:
            status_at, active_at = status.data_ptr(), active.data_ptr()
        if entries is not None:
            steps = 100.0
        elif search == _ACTIVE or (w is None and options.norm == 2):
            steps = n
        else:
            steps = 2.0 ** min(m, 3 * n, 40)
        start = None if start is None else start.contiguous()
        self.cancel = cancel = ctypes.c_int32(0) if may_cancel and samples * size * steps > _LONG else None
        self.kept = (f, w, A, starts, columns, lower, upper, metric, kinds, soft, start, answer, unread)
        self._key = None
        if keep and A_step == 0 and metric is None and size >= memory.WORTH:
            key = (A_at, n, m, size, search, dtype is torch.float32)
            self._key = key if memory.comes_again(key) else None
        self.packed = _BATCH.pack(
            n,
            m,
            samples,
            dtype is torch.float32,
            search,
            options.strict,
            options.on_infeasible == "nearest",
            options.gradient == "tangent",
            metric is not None and is_diagonal(metric),
            self._key is not None,
            f_step,
            w_step,
            A_step,
            lower_step,
            upper_step,
            metric_step,
            f_at,
            w_at,
            A_at,
            lower_at,
            upper_at,
            metric_at,
            0 if starts is None else starts.data_ptr(),
            0 if columns is None else columns.data_ptr(),
            kinds_at,
            soft_at if soft_rows else 0,
            0 if start is None else start.data_ptr(),
            value.data_ptr(),
            status_at,
            active_at,
            0 if choice is None else choice.data_ptr(),
            0 if cancel is None else ctypes.addressof(cancel),
            options.norm,
            *_known_tolerances(dtype, n),
        )

    @property
    def workspace(self) -> int:
        """Bytes of workspace for one call at a time."""
        if self._starts is not None:
            return _library().caffnet_workspace_sparse(self.n, self.m, self._starts.data_ptr())
        return workspace_size(self.n, self.m, self.search, self.metric)

    def run(self, call: Callable[..., Any], *more: Any, size: int | None = None) -> list:
        """Call a function of the kernel on all samples, in as many threads as torch may use; its results.

        Args:
            call: called with the batch, `more`, the first sample, the last one and workspace. It runs without the lock
                of the interpreter.
            more: further arguments.
            size: a measure of the work on one sample; the size of its matrix if None.
        """
        packed, room, samples = self.packed, self.workspace, self.samples
        worth = samples * (self.size if size is None else size) // _WORTH_A_THREAD
        parts = min(torch.get_num_threads(), worth, samples) if worth > 1 else 1
        if parts == 1 and self.cancel is None:
            return [call(packed, *more, 0, samples, self._memory(room))]

        def part(first: int, last: int) -> Any:
            return call(packed, *more, first, last, self._memory(room))

        return _in_parts(part, samples, parts, self.cancel)

    def _memory(self, room: int) -> int:
        """The address of workspace for the thread that asks."""
        if self._key is None:
            return memory.scratch(room)
        beside = _library().caffnet_kept(self.size, 0 if self.entries is None else self.m)
        return memory.kept(self._key, room + beside)


_UNREAD = torch.empty(0, dtype=torch.int8)  # placeholder for a status and active rows that are not needed


def empty_answer(f: Tensor, m: int, search: str, value_only: bool = False) -> Answer:
    """Room for the answers of a batch, or for their values."""
    value = torch.empty_like(f) if f.is_contiguous() else torch.empty_like(f, memory_format=torch.contiguous_format)
    if value_only:
        return Answer(value, _UNREAD, _UNREAD)
    (samples, n), at, int8 = f.shape, f.device, torch.int8
    return Answer(
        value,
        torch.empty(samples, dtype=int8, device=at),
        torch.empty(samples, m, dtype=int8, device=at),
        torch.empty(samples, n, dtype=torch.int32, device=at) if search == "paper" else None,
    )


# ------------------------------------------------------------------------------------------------- the calls


def solve(
    problem: Problem, options: Options, start: Tensor | None = None, value_only: bool = False
) -> tuple[Answer, int]:
    """Answer every sample; also returns how many are INFEASIBLE or INVALID.

    Args:
        problem: tensors on the CPU; their gradients are ignored.
        options: with a definite search.
        start: the sides of rows to begin with, ``(B, m)``, int8.
        value_only: the status and the active rows are not needed and may be missing.
    """
    value_only = value_only and options.search != "paper" and not sparse.is_sparse(problem.A)
    answer = empty_answer(problem.f, len(problem.row_kinds), options.search, value_only)
    batch = Batch(problem, options, answer, start, may_cancel=True, keep=True)
    bad = sum(batch.run(_library().caffnet_solve))
    return (answer, _decide_in_full(problem, options, answer)) if bad and batch.entries is not None else (answer, bad)


def _decide_in_full(problem: Problem, options: Options, answer: Answer) -> int:
    """Solve samples with A in full where the sparse search did not end; returns the number of bad samples.

    These are mostly empty sets, or sets without an interior. Where A is too large in full, they are INVALID.
    """
    open = (answer.status == _UNDECIDED).nonzero().squeeze(-1)
    if len(open):
        dense = _in_full(problem)
        if dense is None:
            answer.status[open] = Status.INVALID
        else:
            found, _ = solve(dense.at(open), options)
            for to, part in zip(answer[:3], found[:3], strict=True):
                to[open] = part  # pyright: ignore[reportOptionalSubscript]
    return int((answer.status >= Status.INFEASIBLE).sum())


def _in_full(problem: Problem) -> Problem | None:
    """The same problem with all numbers of A, if they and the workspace are a few hundred MB at most."""
    m, n = problem.A.shape[-2:]
    if not sparse.is_sparse(problem.A) or n * (m + n) > _FULL:
        return None
    f, w, A, lower, upper, metric = problem.tensors
    return problem.replace_tensors(f, w, A.to_dense(), lower, upper, metric)


def gradient(
    v: Tensor, problem: Problem, answer: Answer, options: Options, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients for f, w, A, lower, upper and the metric, where `wanted`, for an incoming gradient `v`."""
    p = problem
    to_f = torch.empty_like(p.f, memory_format=torch.contiguous_format) if wanted[0] else None
    to_w = torch.empty_like(to_f if to_f is not None else p.f) if wanted[1] and p.w is not None else None
    # Sums over rows and samples are kept in double precision.
    A = sparse.numbers(p.A)
    sums = [
        torch.zeros(t.shape, dtype=torch.float64) if want and t is not None else None
        for t, want in zip((A, p.lower, p.upper, p.metric), wanted[2:], strict=True)
    ]
    v = contiguous(v, 1)
    batch = Batch(p, options, answer, None, keep=True)
    # Sums over all samples go to one place, so they run in one thread.
    summed = any(t is not None and t.ndim <= core for t, core in zip(sums, CORES[2:], strict=True))
    batch.run(_library().caffnet_gradient, pack_gradients(v, to_f, to_w, sums), size=0 if summed else None)
    to_A, *others = (None if t is None else t.to(p.f.dtype) for t in sums)
    return to_f, to_w, to_A if to_A is None or A is p.A else sparse.like(p.A, to_A), *others


def pack_gradients(v: Tensor, to_f: Tensor | None, to_w: Tensor | None, sums: list[Tensor | None]) -> bytes:
    """A CaffnetGradients: `v` as `contiguous` gave it, `sums` for A, lower, upper and the metric."""
    _, v_step, v_at = _array(v, 1, v.shape[0])
    return _GRADIENTS.pack(
        v_at,
        v_step,
        *(0 if t is None else t.data_ptr() for t in (to_f, to_w, *sums)),
        *(0 if t is None else t.stride(0) if t.ndim > core else 0 for t, core in zip(sums, CORES[2:], strict=True)),
    )


def minimise(problem: Problem, options: Options, start: Tensor | None = None) -> tuple[Answer, Tensor]:
    """Minimise ``y'My/2 + q'y`` with M the metric and q in place of f; as `solve`, with multipliers ``(B, m)``."""
    answer = empty_answer(problem.f, problem.A.shape[-2], options.search)
    multipliers = torch.empty(answer.active.shape, dtype=problem.f.dtype)
    batch = Batch(problem, options, answer, start, may_cancel=True)
    batch.run(_library().caffnet_minimise, multipliers.data_ptr())
    return answer, multipliers


def solve_system(problem: Problem, answer: Answer, v: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
    """Solve ``[M Aᵀ; A 0] [p; s] = [v; u]`` on the faces of an answer: p ``(B, n)`` and s ``(B, m)``."""
    batch = Batch(problem, Options(search="active"), answer, None)
    v, v_step, v_at = _array(v, 1, batch.samples)
    u, u_step, u_at = (None, 0, 0) if u is None else _array(u, 1, batch.samples)
    p, s = (torch.empty(batch.samples, size, dtype=v.dtype) for size in (batch.n, batch.m))
    system = _SYSTEM.pack(v_at, u_at, v_step, u_step, p.data_ptr(), s.data_ptr())
    batch.run(_library().caffnet_system, system)
    return p, s


def conflict(problem: Problem, options: Options, sample: int) -> tuple[Tensor, float, float]:
    """Multipliers ``(m,)`` of the rows in conflict in an infeasible sample, the gap and the radius of the proof."""
    problem = _in_full(problem) or problem
    answer = empty_answer(problem.f, problem.A.shape[-2], options.search)
    batch = Batch(problem, options, answer, None)
    multipliers, proof = torch.zeros(batch.m, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    _library().caffnet_conflict(
        batch.packed, sample, multipliers.data_ptr(), proof.data_ptr(), memory.scratch(batch.workspace)
    )
    return multipliers, *proof.tolist()


# ------------------------------------------------------------------------------------------------- threads


def _in_parts(task: Callable[[int, int], Any], samples: int, parts: int, cancel: ctypes.c_int32 | None) -> list:
    """Divide the samples among threads, including this one unless Ctrl-C must be able to stop the others."""
    step = max(math.ceil(samples / parts), 1)
    edges = [(first, min(first + step, samples)) for first in range(0, samples, step)]
    here = edges[:0] if cancel is not None else edges[:1]
    others: list[Future] = [_pool(os.getpid()).submit(task, *edge) for edge in edges[len(here) :]]
    try:
        return [*(task(*edge) for edge in here), *(other.result() for other in others)]
    except BaseException:
        if cancel is not None:
            cancel.value = 1
        for other in others:
            other.exception()
        raise


@functools.cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the threads of this process; a forked child inherits the object without threads, and makes new ones."""
    return ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="caffnet")
