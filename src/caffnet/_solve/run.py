"""Where a batch is solved: by the kernel, as one opaque operation for tracers, or as plain arithmetic to be exported.

`torch.compile` and `torch.func.vmap` cannot look into compiled code, so for them the kernel is one operation: compiled
graphs call it as it is (and it still raises), a mapped axis becomes more samples. An exported graph has no Python behind
it; there the sub-constraints are enumerated in plain arithmetic (`graph`).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from caffnet._kernel import native
from caffnet._solve import graph
from caffnet._solve.infeasible import report
from caffnet._solve.problem import Answer, Options, Problem
from caffnet._solve.tracing import are_concrete, is_compiling, is_exporting, no_autocast


def solve(problem: Problem, options: Options, start: Tensor | None = None) -> Answer:
    """Answer every sample. Gradients are the matter of `gradient`.

    Args:
        problem: the data.
        options: with a definite search.
        start: the sides of rows to begin with, ``(B, m)``, int8, or None.

    Raises:
        ConstraintError, InfeasibleError: as `report` says.
    """
    if is_exporting():
        with no_autocast(problem.f.device.type):
            return graph.solve(problem, options)
    if is_compiling() or not are_concrete(problem.tensors):
        return _opaque(problem, options)
    return _native(problem, options, start)


def _native(problem: Problem, options: Options, start: Tensor | None) -> Answer:
    device, near = problem.f.device, problem.f.is_cpu
    here = problem if near else _on_cpu(problem)
    answer, bad = native.solve(here, options, None if start is None else start.cpu())
    if bad:
        report(here, answer, options)
    if near:
        return answer
    choice = None if answer.choice is None else answer.choice.to(device)
    return Answer(answer.value.to(device), answer.status.to(device), answer.active.to(device), choice)


def gradient(
    v: Tensor, problem: Problem, answer: Answer, options: Options, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients for f, w, A, lower and upper, where `wanted`, by the kernel."""
    device = problem.f.device
    if problem.f.is_cpu:
        return native.gradient(v, problem, answer, options, wanted)
    choice = None if answer.choice is None else answer.choice.cpu()
    there = Answer(answer.value.cpu(), answer.status.cpu(), answer.active.cpu(), choice)
    found = native.gradient(v.cpu(), _on_cpu(problem), there, options, wanted)
    return tuple(None if t is None else t.to(device) for t in found)


_warned: set[str] = set()


def _on_cpu(problem: Problem) -> Problem:
    """The same problem in the memory of the CPU, where the kernel runs."""
    kind = problem.f.device.type
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(
            f"The projection runs on the CPU: tensors on {kind} are copied there and back. "
            "Move the layer to the CPU to save the copies.",
            stacklevel=2,
        )
    return problem.replace_tensors(*(None if t is None else t.cpu() for t in problem.tensors))  # pyright: ignore


# ------------------------------------------------------------------------------------------------- for tracers


def pack(problem: Problem, options: Options) -> tuple:
    """What an operation is told beside tensors: it takes numbers and texts only."""
    p = problem
    labels = "" if p.labels is None else json.dumps(p.labels)
    chosen = (options.search, options.norm, options.strict, options.on_infeasible, options.gradient, options.budget)
    return (p.row_kinds, labels, list(p.batch_shape), *chosen)


def unpack(
    tensors: Sequence[Any], row_kinds: str, labels: str, batch_shape: Sequence[int], *options: Any
) -> tuple[Problem, Options]:
    """The inverse of `pack`."""
    names = tuple(json.loads(labels)) if labels else None
    return Problem(*tensors, row_kinds, names, tuple(batch_shape)), Options(*options)


def _opaque(problem: Problem, options: Options) -> Answer:
    return Answer(*_solve_op(*problem.tensors, *pack(problem, options)))


@torch.library.custom_op("caffnet::solve", mutates_args=())
def _solve_op(
    f: Tensor,
    w: Tensor | None,
    A: Tensor,
    lower: Tensor,
    upper: Tensor,
    row_kinds: str,
    labels: str,
    batch_shape: Sequence[int],
    search: str,
    norm: float,
    strict: bool,
    on_infeasible: str,
    gradient: str,
    budget: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """`_native` as one operation that tracers see from outside."""
    more = (row_kinds, labels, batch_shape, search, norm, strict, on_infeasible, gradient, budget)
    answer = _native(*unpack((f, w, A, lower, upper), *more), None)
    return answer.value, answer.status, answer.active


@_solve_op.register_fake
def _(f: Tensor, w: Tensor | None, A: Tensor, lower: Tensor, upper: Tensor, *more: Any):
    samples, n = f.shape
    status = f.new_empty(samples, dtype=torch.int8)
    return f.new_empty(samples, n), status, f.new_empty(samples, A.shape[-2], dtype=torch.int8)


@torch.library.custom_op("caffnet::gradient", mutates_args=())
def _gradient_op(
    v: Tensor,
    f: Tensor,
    w: Tensor | None,
    A: Tensor,
    lower: Tensor,
    upper: Tensor,
    value: Tensor,
    status: Tensor,
    active: Tensor,
    wanted: Sequence[bool],
    row_kinds: str,
    labels: str,
    batch_shape: Sequence[int],
    search: str,
    norm: float,
    strict: bool,
    on_infeasible: str,
    gradient_kind: str,
    budget: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`gradient` as one operation; what is not wanted is empty."""
    more = (row_kinds, labels, batch_shape, search, norm, strict, on_infeasible, gradient_kind, budget)
    problem, options = unpack((f, w, A, lower, upper), *more)
    found = gradient(v, problem, Answer(value, status, active), options, tuple(wanted))
    first, second, *rest = (f.new_empty(0) if t is None else t for t in found)
    return first, second, rest[0], rest[1], rest[2]


@_gradient_op.register_fake
def _(v: Tensor, f: Tensor, w: Tensor | None, A: Tensor, lower: Tensor, upper: Tensor, *more: Any):
    wanted = more[3]
    shapes = (f, f, A, lower, upper)
    return tuple(
        t.new_empty(t.shape) if want and not (i == 1 and w is None) else f.new_empty(0)
        for i, (t, want) in enumerate(zip(shapes, wanted, strict=True))
    )


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    *tensors, row_kinds, labels, batch_shape, search, norm, strict, on_infeasible, kind, budget = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.more = (row_kinds, labels, list(batch_shape), search, norm, strict, on_infeasible, kind, budget)
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, v: Tensor, *_: Tensor):
    wanted = [bool(need) for need in ctx.needs_input_grad[:5]]
    *tensors, value, status, active = ctx.saved_tensors
    found = _gradient_op(v, *tensors, value, status, active, wanted, *ctx.more)
    return *(t if want else None for t, want in zip(found, wanted, strict=True)), *(None,) * 9


_solve_op.register_autograd(_backward, setup_context=_save)


# A mapped axis is more samples: fold it into the lines, and unfold the answers.


def _fold(size: int, tensors: Sequence[Any], dims: Sequence[Any], cores: Sequence[int]) -> tuple[list[Any], int]:
    """Tensors with the mapped axis folded into their lines; what all samples share stays shared."""
    lines = next(
        t.shape[1 if dim == 0 else 0] for t, dim, core in zip(tensors, dims, cores, strict=True) if core == 1 and t is not None
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


@_solve_op.register_vmap
def _(info: Any, in_dims: Any, *given: Any):
    size = info.batch_size
    tensors = [given[0].movedim(in_dims[0], 0) if in_dims[0] is not None else given[0].expand(size, *given[0].shape)]
    folded, lines = _fold(size, (*tensors, *given[1:5]), (0, *in_dims[1:5]), (1, 1, 2, 1, 1))
    row_kinds, labels, batch_shape, *options = given[5:]
    answers = _solve_op(*folded, row_kinds, labels, [size, *batch_shape], *options)
    return tuple(t.reshape(size, lines, *t.shape[1:]) for t in answers), (0, 0, 0)
