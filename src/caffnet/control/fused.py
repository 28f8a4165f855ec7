"""Several operations as one node of the autograd graph, with a formula for their derivative.

A rollout is made of small operations, and back-propagation through them one by one takes longer than their arithmetic.
If the derivative of a piece has a formula, the piece becomes one node. Transforms, compilers, forward mode and
derivatives of derivatives use the plain operations: the formula is a faster way to the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from caffnet._solve.tracing import in_forward_mode, may_branch, no_autocast

#: ``(*inputs) -> (outputs, kept)``; `kept` are tensors for the backward pass.
Function: TypeAlias = Callable[..., tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]
#: ``(kept, *gradients of outputs) -> gradients of inputs``.
PullBack: TypeAlias = Callable[..., tuple[Tensor | None, ...]]


def fused(function: Function, pull_back: PullBack, *given: Tensor) -> tuple[Tensor, ...]:
    """Return the outputs of a function, as one node if a derivative is needed and no transform or compiler runs."""
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    if not wanted or in_forward_mode() or not may_branch(*given):
        return function(*given)[0]
    return _Fused.apply(function, pull_back, *given)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Function, pull_back: PullBack, *given: Tensor) -> tuple[Tensor, ...]:
        outputs, kept = function(*given)
        ctx.function, ctx.pull_back, ctx.count = function, pull_back, len(given)
        ctx.save_for_backward(*given, *kept)
        return outputs

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor):
        saved = ctx.saved_tensors  # read once: torch.utils.checkpoint allows no more
        given, kept = saved[: ctx.count], saved[ctx.count :]
        if not torch.is_grad_enabled() and may_branch(*incoming):
            with no_autocast(incoming[0].device.type):
                return None, None, *ctx.pull_back(kept, *incoming)
        wanted = ctx.needs_input_grad[2:]
        with torch.enable_grad():
            # Views: inputs may depend on each other, and each is asked for its own part only.
            own = [t.view_as(t) for t in given]
            inputs = [t for t, want in zip(own, wanted, strict=True) if want]
            outputs = ctx.function(*own)[0]
            slopes = iter(torch.autograd.grad(outputs, inputs, incoming, create_graph=True, allow_unused=True))
        return None, None, *(next(slopes) if want else None for want in wanted)
