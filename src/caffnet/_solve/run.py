"""Solves a batch: by the kernel, as one opaque operation for tracers, or as plain arithmetic for export.

`torch.compile`, `torch.export` and `torch.func.vmap` cannot look into compiled code, so for them the kernel is one
operation: graphs call it (and it still raises errors), a mapped axis becomes more samples. For C++ the operation is
defined with the same kernel (`caffnet.deploy`). For graphs that must run without it, the sub-constraints are enumerated
in plain arithmetic (`graph`).
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from caffnet._install import install_command
from caffnet._kernel import gpu, native
from caffnet._solve import graph, sparse
from caffnet._solve.infeasible import report
from caffnet._solve.problem import CORES, Answer, Options, Problem
from caffnet._solve.tracing import (
    are_concrete,
    is_batched_gradient,
    is_compiling,
    is_exporting_plain,
    no_autocast,
)


def solve(problem: Problem, options: Options, start: Tensor | None = None, value_only: bool = False) -> Answer:
    """Answer every sample, without gradients; `gradient` computes those.

    Args:
        problem: the data.
        options: with a definite search.
        start: the sides of rows to begin with, ``(B, m)``, int8, or None.
        value_only: the status and the active rows are not needed and may be missing.

    Raises:
        ConstraintError, InfeasibleError: as in `report`.
    """
    if is_compiling():
        if is_exporting_plain():
            with no_autocast(problem.f.device.type):
                return graph.solve(problem, options)
        return _opaque(problem, options)
    if are_concrete(problem.tensors) and not is_batched_gradient(problem.f):
        return _native(problem, options, start, value_only)
    return _opaque(problem, options)


def _native(problem: Problem, options: Options, start: Tensor | None, value_only: bool = False) -> Answer:
    near = problem.f.is_cpu
    if not near and problem.f.is_cuda and gpu.is_available() and not sparse.is_sparse(problem.A):
        answer, count = gpu.solve(problem, options, start)
        if options.on_infeasible == "raise" and count.item():  # the one wait for the device
            report(problem.replace_tensors(*_moved("cpu", *problem.tensors)), Answer(*_moved("cpu", *answer)), options)
        return answer
    here = problem if near else _on_cpu(problem)
    start = start if start is None else start.cpu()
    answer, bad = native.solve(here, options, start, value_only)
    if bad and options.on_infeasible == "raise":
        if value_only:  # the report reads all of it
            answer, _ = native.solve(here, options, start)
        report(here, answer, options)
    return answer if near else Answer(*_moved(problem.f.device, *answer))


def rows_of_first(problem: Problem, options: Options) -> Tensor | None:
    """The active rows of the first sample's answer for every sample, ``(B, m)``; None for one sample, or in a graph."""
    samples = problem.f.shape[0]
    if is_compiling() or samples < 2 or not are_concrete(problem.tensors):
        return None
    first = _native(problem.at(slice(0, 1)).detach(), dataclasses.replace(options, on_infeasible="nan"), None)
    return first.active.expand(samples, -1)


def gradient(
    v: Tensor, problem: Problem, answer: Answer, options: Options, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients for f, w, A, lower, upper and the metric, where `wanted`, by the kernel."""
    if is_compiling() or not are_concrete((v, *problem.tensors)) or is_batched_gradient(v):
        tensors = (v, *problem.tensors, answer.value, answer.status, answer.active)
        rules = (options.search, options.norm, options.strict, options.on_infeasible, options.gradient)
        found = iter(torch.ops.caffnet.gradient(*tensors, list(wanted), problem.row_kinds, problem.soft, *rules))
        return tuple(next(found) if want else None for want in wanted)
    if problem.f.is_cpu:
        return native.gradient(v, problem, answer, options, wanted)
    if problem.f.is_cuda and gpu.is_available() and not sparse.is_sparse(problem.A):
        return gpu.gradient(v, problem, answer, options, wanted)
    found = native.gradient(v.cpu(), _on_cpu(problem), Answer(*_moved("cpu", *answer)), options, wanted)
    return tuple(_moved(problem.f.device, *found))


def minimise(problem: Problem, options: Options, start: Tensor | None = None) -> tuple[Answer, Tensor]:
    """The minima of ``y'My/2 + q'y``, with M the metric and q in place of f, and their multipliers ``(B, m)``.

    Multipliers are NaN where they do not prove the minimum. Nothing is raised.
    """
    (start,) = _moved("cpu", start)
    if problem.f.is_cpu:
        return native.minimise(problem, options, start)
    answer, multipliers = native.minimise(_on_cpu(problem), options, start)
    return Answer(*_moved(problem.f.device, *answer)), multipliers.to(problem.f.device)


def solve_system(problem: Problem, answer: Answer, v: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
    """Solve ``[M Aᵀ; A 0] [p; s] = [v; u]`` on the faces of an answer: p ``(B, n)`` and s ``(B, m)``."""
    if problem.f.is_cpu:
        return native.solve_system(problem, answer, v, u)
    p, s = native.solve_system(_on_cpu(problem), Answer(*_moved("cpu", *answer)), *_moved("cpu", v, u))
    return p.to(v.device), s.to(v.device)


def _moved(device: torch.device | str, *tensors: Tensor | None) -> list[Any]:
    return [None if t is None else t.to(device) for t in tensors]


_warned: set[str] = set()


def _on_cpu(problem: Problem) -> Problem:
    """The same problem in the memory of the CPU, where the kernel runs."""
    kind = problem.f.device.type
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(
            f"The projection runs on the CPU: tensors on {kind} are copied there and back. "
            f"Move the layer to the CPU to save the copies, or {install_command('gpu')} for an NVIDIA GPU.",
            stacklevel=2,
        )
    return problem.replace_tensors(*_moved("cpu", *problem.tensors))


# ------------------------------------------------------------------------------------------------- for tracers


def pack(problem: Problem, options: Options) -> tuple:
    """Pack everything but the tensors into numbers and texts, which is all that an operation takes."""
    p = problem
    # Each name follows its length, as it may be empty or contain any character. A row without a name has length -1.
    labels = "" if p.labels is None else "".join("-1:" if name is None else f"{len(name)}:{name}" for name in p.labels)
    chosen = (options.search, options.norm, options.strict, options.on_infeasible, options.gradient, options.budget)
    # Tolerances for C++, which has no tolerance.py.
    tolerances = list(native.tolerances(p.f.dtype, operator.index(p.f.shape[-1])))
    return (p.row_kinds, labels, list(p.batch_shape), *chosen, tolerances, p.soft)


def unpack(
    tensors: Sequence[Any], row_kinds: str, labels: str, batch_shape: Sequence[int], *options: Any
) -> tuple[Problem, Options]:
    """The inverse of `pack`."""
    names: list[str | None] = []
    while labels:
        size, _, labels = labels.partition(":")
        length = max(int(size), 0)
        names.append(None if size == "-1" else labels[:length])
        labels = labels[length:]
    f, w, A, lower, upper, metric = tensors
    *chosen, _, soft = options
    problem = Problem(f, w, A, lower, upper, metric, row_kinds, tuple(names) or None, tuple(batch_shape), soft)
    return problem, _known_options(*chosen)


_known_options = functools.lru_cache(maxsize=1024)(Options)


def _opaque(problem: Problem, options: Options) -> Answer:
    return Answer(*torch.ops.caffnet.solve(*problem.tensors, *pack(problem, options)))


_TENSORS = "Tensor f, Tensor? w, Tensor A, Tensor lower, Tensor upper, Tensor? metric"
_PACKED = (
    "str row_kinds, str labels, SymInt[] batch_shape, str search, float norm, bool strict, str on_infeasible, "
    "str gradient, int budget, float[] tolerances, str soft"
)
# Defined by schema, not by decorator: that adds three layers of Python to every call of a compiled graph.
_operations = torch.library.Library("caffnet", "DEF")
#: Of the operation that graphs hold; deploy/sources/torch_operator.cpp defines the same one for C++.
SOLVE_SCHEMA = f"solve({_TENSORS}, {_PACKED}) -> (Tensor, Tensor, Tensor)"
_operations.define(SOLVE_SCHEMA)
# It takes only the packed data that it reads: every argument costs time in every call of a compiled graph.
_operations.define(
    f"gradient(Tensor v, {_TENSORS}, Tensor value, Tensor status, Tensor active, bool[] wanted, str row_kinds, "
    "str soft, str search, float norm, bool strict, str on_infeasible, str gradient) -> Tensor[]"
)


def _solve_op(*given: Any):
    """`_native` as one operation that tracers see from outside."""
    return _native(*unpack(given[:6], *given[6:]), None)[:3]


def _solve_shapes(*given: Any):
    f, A = given[0], given[2]
    samples, n = f.shape
    status = f.new_empty(samples, dtype=torch.int8)
    return f.new_empty(samples, n), status, f.new_empty(samples, A.shape[-2], dtype=torch.int8)


def _gradient_op(v: Tensor, *more: Any):
    """`gradient` as one operation, of those that are wanted."""
    f, w, A, lower, upper, metric, value, status, active, wanted, row_kinds, soft, *rules = more
    problem = Problem(f, w, A, lower, upper, metric, row_kinds, None, (), soft)
    found = gradient(v, problem, Answer(value, status, active), _known_options(*rules), wanted)
    return [t for t in found if t is not None]


def _gradient_shapes(v: Tensor, *more: Any):
    return [t.new_empty(t.shape) for t, want in zip(more[:6], more[9], strict=True) if want]


for _device in ("CPU", "CUDA"):
    _operations.impl("solve", _solve_op, _device)
    _operations.impl("gradient", _gradient_op, _device)
torch.library.register_fake("caffnet::solve", _solve_shapes, lib=_operations)
torch.library.register_fake("caffnet::gradient", _gradient_shapes, lib=_operations)


# A mapped axis is more samples: fold it into the lines, and unfold the answers.


def _fold(size: int, tensors: Sequence[Any], dims: Sequence[Any], cores: Sequence[int]) -> tuple[list[Any], int]:
    """Tensors with the mapped axis folded into their lines; what all samples share stays shared."""
    lines = next(
        t.shape[1 if dim == 0 else 0]
        for t, dim, core in zip(tensors, dims, cores, strict=True)
        if core == 1 and t is not None
    )
    folded = []
    for t, dim, core in zip(tensors, dims, cores, strict=True):
        if t is None or (dim is None and t.ndim == core):
            folded.append(t)
            continue
        t = t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
        if t.ndim == core + 1:  # shared by the lines, not by the mapped axis
            t = t.unsqueeze(1).expand(size, lines, *t.shape[1:])
        folded.append(t.reshape(size * lines, *t.shape[2:]))
    return folded, lines


def _solve_mapped(info: Any, in_dims: Any, *given: Any):
    size = info.batch_size
    tensors = [given[0].movedim(in_dims[0], 0) if in_dims[0] is not None else given[0].expand(size, *given[0].shape)]
    folded, lines = _fold(size, (*tensors, *given[1:6]), (0, *in_dims[1:6]), CORES)
    row_kinds, labels, batch_shape, *options = given[6:]
    answers = torch.ops.caffnet.solve(*folded, row_kinds, labels, [size, *batch_shape], *options)
    return tuple(t.reshape(size, lines, *t.shape[1:]) for t in answers), (0, 0, 0)


torch.library.register_vmap("caffnet::solve", _solve_mapped, lib=_operations)
