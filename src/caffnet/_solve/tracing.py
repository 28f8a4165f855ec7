"""All checks for compilers, exporters and function transforms of torch, in one place."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C import _is_tracing, _len_torch_dispatch_stack
from torch._C._functorch import (  # pyright: ignore[reportMissingImports]
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
    peek_interpreter_stack,
)

_PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)

#: Whether a tensor is an incoming gradient with a mapped axis: `torch.autograd.grad(..., is_grads_batched=True)`.
is_batched_gradient = is_legacy_batchedtensor


def is_concrete(t: Tensor) -> bool:
    """Check whether a tensor holds numbers: not a meta, fake or recorded (tracing) or mapped (torch.func) one."""
    if type(t) not in _PLAIN or _len_torch_dispatch_stack():
        return False
    return not (t.is_meta or is_functorch_wrapped_tensor(t) or is_batched_gradient(t))


def are_concrete(tensors: Iterable[Tensor | None]) -> bool:
    """Check whether all of these hold numbers, and no transform or recorder (make_fx, fake tensors) is at work.

    Batched gradients (`is_batched_gradient`) are not found: they arrive in backward only, as one tensor.
    """
    if peek_interpreter_stack() is not None or _len_torch_dispatch_stack():
        return False
    for t in tensors:  # not all(...): a generator costs more than the checks
        if t is None:
            continue
        if type(t) not in _PLAIN or t.is_meta:
            return False
    return True


#: Whether torch.compile or torch.export traces this code.
is_compiling = torch.compiler.is_compiling
#: Whether torch.export traces this code: the graph may run without Python.
is_exporting = torch.compiler.is_exporting


_Function = TypeVar("_Function", bound=Callable[..., Any])


def constant(function: _Function) -> _Function:
    """Mark a function of numbers and texts: compiled graphs take its result as a constant and do not trace it.

    Compiled graphs check everything that they trace in every call. The decorator
    torch.compiler.assume_constant_result does the same, but imports dynamo, which takes longer than everything else.
    """
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


_plain: list[bool] = []  # one entry for each context of `plain_operations`; not a ContextVar, which dynamo cannot read


@contextlib.contextmanager
def plain_operations() -> Iterator[None]:
    """A context in which exported graphs hold plain operations only, not the operation of the library."""
    _plain.append(True)
    try:
        yield
    finally:
        _plain.pop()


def is_exporting_plain() -> bool:
    """Check whether graphs to export hold plain operations only: in `plain_operations`, or in torch.onnx.export."""
    return is_exporting() and _wants_plain()


@constant  # dynamo, as in export(strict=True), would trace the second call as False
def _wants_plain() -> bool:
    return len(_plain) > 0 or torch.onnx.is_in_onnx_export()


@constant
def is_jit_tracing() -> bool:
    """Check whether torch.jit.trace traces this code."""
    return _is_tracing()  # what torch.jit.is_tracing says outside of a script


def in_transform() -> bool:
    """Return True inside a transform of torch.func, even if it does not involve our tensors."""
    return peek_interpreter_stack() is not None


def in_forward_mode() -> bool:
    """Check whether derivatives are carried forward; torch.func.jvp does it too."""
    return torch.autograd.forward_ad._current_level >= 0


def may_branch(*tensors: Tensor | None) -> bool:
    """Check whether code may branch on the numbers of these tensors: not in a graph, nor under a transform."""
    if is_compiling() or not are_concrete(tensors):
        return False
    return not any(t is not None and is_batched_gradient(t) for t in tensors)


def remember(function: Callable[..., Any]) -> Callable[..., Any]:
    """Cache the results of a function; torch.compile traces the function itself."""
    cached = functools.lru_cache(maxsize=1024, typed=True)(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return function(*args, **kwargs)
        try:
            return cached(*args, **kwargs)
        except TypeError:  # a list as an argument: the function says what is wrong with it
            return function(*args, **kwargs)

    return call


_NOTHING = contextlib.nullcontext()


def no_autocast(device: str) -> contextlib.AbstractContextManager:
    """A context without autocast: half precision would move ``A y`` by a part in a hundred."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else _NOTHING


def undo_autocast(t: Any) -> Any:
    """A tensor that autocast left in half precision, in float32 again (exactly); anything else as it is."""
    if isinstance(t, Tensor) and t.dtype in (torch.float16, torch.bfloat16):
        return t.float() if torch.is_autocast_enabled(t.device.type) else t
    return t
