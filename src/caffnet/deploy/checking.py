"""A comparison of an export with torch before it is written, so that no export differs silently."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet.errors import ConstraintError

Function = Callable[[Tensor], Sequence[Tensor]]


def compare(written: Function, original: Function, x: Tensor, what: str) -> None:
    """Refuse a program that differs from torch at the samples ``(B, ...)``, or at random ones near them.

    Both are rounded, so a number is right if it equals that of torch up to `tolerance.exported`, relative to the
    largest of the results or 1, at some input that differs from x by as little: at a jump, either side is accepted.

    Args:
        written: the program that will be exported, x to tensors ``(B, ...)``.
        original: the function in torch.
        x: the samples.
        what: the name of the results in messages.

    Raises:
        ConstraintError: they differ.
    """
    with torch.no_grad():
        _compare_at(written, original, x, what)
        near = _near(x)
        if _try(original, near) is not None:
            _compare_at(written, original, near, what)


def refuse_difference(
    found: Sequence[Tensor],
    expected: Sequence[Tensor],
    x: Tensor,
    what: str,
    sides: Sequence[Sequence[Tensor]] = (),
    advice: str = "",
) -> None:
    """Refuse results that differ.

    Args:
        found: the results.
        expected: those of torch.
        x: the samples.
        what: the name of the results in messages.
        sides: results of torch at inputs that are the same up to rounding.
        advice: ends the message.
    """
    share, torchs, ours = tolerance.exported(x.dtype), _lines(expected, x), _lines(found, x)
    size = torch.where(torchs.isfinite(), torchs.abs(), 0)
    room = share * size.amax(-1, keepdim=True).clamp_min(1) if size.shape[-1] else size
    for side in sides:
        room = room + (_lines(side, x) - torchs).abs().nan_to_num(0.0, torch.inf)
    same = (ours == torchs) | (ours.isnan() & torchs.isnan())
    wrong = ~(same | ((ours - torchs).abs() <= room))
    if wrong.any():
        sample, number = wrong.nonzero()[0].tolist()
        raise ConstraintError(
            f"The export would differ from torch at {int(wrong.any(-1).sum())} of {len(x)} inputs; at "
            f"{_text(x[sample])}, number {number} of {what} is {torchs[sample, number]:.17g} in torch and "
            f"{ours[sample, number]:.17g} in the export. The model must be made of torch operations, depend on its "
            f"input alone (no random numbers, no counters) and give the same for one sample and for a batch.{advice}"
        )


def _near(x: Tensor) -> Tensor:
    """Random samples near those of x."""
    stream = torch.Generator().manual_seed(2)
    noise = torch.randn(x.shape, dtype=torch.float64, generator=stream).to(x)
    return x + 0.01 * noise * (1 + x.abs())


def _try(function: Function, x: Tensor) -> Sequence[Tensor] | None:
    """Return the results, or None if the function does not accept x."""
    try:
        return function(x)
    except (ValueError, RuntimeError):
        return None


def _compare_at(written: Function, original: Function, x: Tensor, what: str) -> None:
    step = tolerance.exported(x.dtype) * x.abs().clamp_min(1)
    expected = original(x)
    again = _lines(original(x), x)
    repeats = torch.equal(again.nan_to_num(), _lines(expected, x).nan_to_num())
    moved = (_try(original, x + step), _try(original, x - step)) if repeats else ()
    refuse_difference(written(x), expected, x, what, [side for side in moved if side is not None])


def _lines(results: Sequence[Tensor], x: Tensor) -> Tensor:
    """Concatenate all results of each sample, ``(B, ...)``."""
    batch = len(x)
    return torch.cat([t.detach().reshape(batch, -1) for t in results], -1) if results else x.new_zeros(batch, 0)


def _text(sample: Tensor) -> str:
    numbers = [f"{v:.6g}" for v in sample.reshape(-1).tolist()]
    return "x = (" + ", ".join(numbers[:8]) + (", ...)" if len(numbers) > 8 else ")")
