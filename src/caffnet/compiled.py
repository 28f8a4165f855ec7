"""A batch through the compiled kernel: which batches it serves, its arrays, its threads.

`kernel` is imported with the first batch, not with the library: numba takes a third of a second to load, and the very
first call on a machine compiles for some seconds (afterwards the code comes from the cache on disk). Set
``CAFFNET_KERNEL=0`` to do without it; the points are the same to rounding. Where several sub-constraints describe one
point, another may be reported.
"""

from __future__ import annotations

import functools
import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from caffnet import tolerance
from caffnet.problem import Options, Problem, Solution

ENABLED = os.environ.get("CAFFNET_KERNEL", "1") != "0"

_SEARCHES = {"full": 0, "lite": 1, "active": 2}
_WORTH_A_THREAD = 20_000  # numbers in A for one more thread: what is computed while a thread is woken


def serves(f: Tensor, options: Options) -> bool:
    """Whether a batch is for the kernel: on the CPU, and decided in floating point."""
    return ENABLED and f.device.type == "cpu" and not options.strict and f.numel() > 0


def solve(problem: Problem, options: Options, start: Tensor | None = None) -> tuple[Solution, int]:
    """The answers, and how many samples are undecided (status -1): those are for the torch path.

    Args:
        problem: tensors without a graph.
        options: with a definite search.
        start: the sides of rows to begin with, ``(B, m)``.
    """
    p = problem
    samples, n = p.f.shape
    m = p.A.shape[-2]
    kind = p.f.dtype
    value = torch.empty(samples, n, dtype=torch.float64)
    status, held = torch.empty(samples, dtype=torch.int8), torch.empty(samples, m, dtype=torch.int8)
    given = (
        array(p.f),
        _absent(n) if p.w is None else array(p.w),
        array(p.A if p.A.ndim == 3 else p.A.unsqueeze(0)),
        array(once(p.lower)),
        array(once(p.upper)),
        _unmarked(m) if start is None else start.contiguous().numpy(),
        _SEARCHES[options.search],
        options.norm,
        kind == torch.float32,
        _tolerances(kind, n),
    )
    taken = value.numpy(), status.numpy(), held.numpy()
    undecided = sum(_in_parts(_kernel().solve, samples, m * n, given, taken))
    return Solution(value.to(kind), status, held, None), undecided


def differentiate(
    v: Tensor, problem: Problem, value: Tensor, held: Tensor, tangent: bool, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...] | None:
    """Gradients for f, w, A, lower and upper, where `wanted`; None if the torch path must do it."""
    p = problem
    samples, n = p.f.shape
    m = p.A.shape[-2]
    kind = p.f.dtype
    shapes = ((samples, n), (samples, n), (1, m, n) if p.A.ndim == 2 else (samples, m, n), (samples, m), (samples, m))
    wanted = (True, wanted[1] and p.w is not None, *wanted[2:])  # f is always computed
    grads = [
        torch.zeros(shape if want else (0, *shape[1:]), dtype=torch.float64)
        for shape, want in zip(shapes, wanted, strict=True)
    ]
    given = (
        array(v),
        array(p.f),
        _absent(n) if p.w is None else array(p.w),
        array(p.A if p.A.ndim == 3 else p.A.unsqueeze(0)),
        array(once(p.lower)),
        array(once(p.upper)),
        array(value),
        held.numpy(),
        tangent,
        kind == torch.float32,
        _tolerances(kind, n),
    )
    summed = p.A.ndim == 2 and wanted[2]  # into one place: not by several threads
    taken = tuple(t.numpy() for t in grads)
    if not all(_in_parts(_kernel().differentiate, samples, 0 if summed else m * n, given, taken)):
        return None
    done = [t.to(kind) if want else None for t, want in zip(grads, wanted, strict=True)]
    if summed and done[2] is not None:
        done[2] = done[2][0]
    return tuple(done)


def array(t: Tensor) -> np.ndarray:
    """The numbers of a tensor as the kernel wants them: float64, one after the other in memory."""
    if t.requires_grad:
        t = t.detach()
    if t.is_neg():
        t = t.resolve_neg()
    if t.dtype is not torch.float64:
        t = t.double()
    return (t if t.is_contiguous() else t.contiguous()).numpy()


def once(bound: Tensor) -> Tensor:
    """A bound that all samples share, as one line."""
    return bound[:1] if bound.stride(0) == 0 else bound


@functools.cache
def _absent(n: int) -> np.ndarray:
    return np.empty((0, n))


@functools.cache
def _unmarked(m: int) -> np.ndarray:
    return np.empty((0, m), dtype=np.int8)


@functools.cache
def _kernel() -> Any:
    from caffnet import kernel

    return kernel


@functools.cache
def _tolerances(dtype: torch.dtype, n: int) -> Any:
    return _kernel().Tolerances(
        tolerance.feasibility(dtype, n),
        tolerance.search(n),
        tolerance.rank(dtype, n),
        tolerance.tie(dtype, n),
        tolerance.underflow(dtype),
        *tolerance.SQUARABLE,
    )


# ------------------------------------------------------------------------------------------------- threads


def _in_parts(task: Any, samples: int, size: int, given: tuple, taken: tuple) -> list:
    """The samples in as many parts as torch may use threads; the kernel runs without the interpreter's lock."""
    parts = min(torch.get_num_threads(), max(samples * size // _WORTH_A_THREAD, 1), samples)
    if parts == 1:
        return [task(*given, 0, samples, *taken)]
    step = math.ceil(samples / parts)
    edges = [(first, min(first + step, samples)) for first in range(0, samples, step)]
    others = [_pool(os.getpid()).submit(task, *given, *edge, *taken) for edge in edges[1:]]
    return [task(*given, *edges[0], *taken), *(other.result() for other in others)]


@functools.cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Threads of this process: a forked child inherits the object but not its threads, and makes its own."""
    return ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="caffnet")
