"""Reading of numbers from users: conversion to tensors, and checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from caffnet._solve import sparse
from caffnet.constraints.shapes import joint_axes
from caffnet.errors import ConstraintError, DtypeError

ArrayLike: TypeAlias = Tensor | np.ndarray | Sequence[Any] | float | int


def as_tensors(**given: ArrayLike | None) -> tuple[dict[str, Tensor | None], bool]:
    """Return all arguments as tensors of one floating type, and True if that type was only assumed ("weak")."""
    tensors: dict[str, Tensor | None] = {}
    strong: dict[str, torch.dtype] = {}
    for name, value in given.items():
        if value is None:
            tensors[name] = None
            continue
        value = _from_scipy(value) if hasattr(value, "tocoo") else value
        typed = isinstance(value, Tensor | np.ndarray) or holds_tensor(value)
        tensor = value if isinstance(value, Tensor) else read_array(value, name)
        if tensor.is_complex():
            raise DtypeError(f"{name} is {tensor.dtype}; constraints are real: write rows for both of its parts.")
        if tensor.dtype in (torch.float16, torch.bfloat16):
            raise DtypeError(f"{name} is {tensor.dtype}; constraints need float32 or float64: write {name}.float().")
        if tensor.is_nested:
            raise ConstraintError(
                f"{name} is a nested tensor; all samples of a set have the same number of rows: fill up with rows of "
                "zeros and infinite bounds, or build one set for each sample."
            )
        if tensor.layout != torch.strided:
            tensor = sparse.store(tensor) if name in ("A", "C", "G") else tensor.to_dense()
        tensors[name] = tensor
        if typed and tensor.is_floating_point():
            strong[name] = tensor.dtype
    if len(set(strong.values())) > 1:
        types = ", ".join(f"{name} is {dtype}" for name, dtype in strong.items())
        name, dtype = next(iter(strong.items()))
        raise DtypeError(
            f"All parts of a constraint must share one number type, got {types}: convert one of them, as in "
            f"torch.as_tensor({name}, dtype={next(t for t in strong.values() if t != dtype)})."
        )
    dtype = next(iter(strong.values()), torch.float64)
    devices = {t.device for t in tensors.values() if t is not None and t.ndim}
    if len(devices) > 1:
        raise ConstraintError(f"All parts of a constraint must be on one device, got {sorted(map(str, devices))}.")
    device = next(iter(devices), None)
    return {k: None if t is None else t.to(dtype=dtype, device=device) for k, t in tensors.items()}, not strong


def _from_scipy(value: Any) -> Tensor:
    """Read a sparse matrix of scipy, in any of its formats."""
    if value.ndim != 2:
        return read(value)
    entries = value.tocoo()
    return torch.sparse_coo_tensor(
        torch.as_tensor(np.stack([entries.row, entries.col])),
        torch.as_tensor(entries.data),
        entries.shape,
        check_invariants=True,
    )


def read_array(value: Any, name: str) -> Tensor:
    """As `read`, with an error that names the argument."""
    if isinstance(value, str):
        raise ConstraintError(f"{name} must be an array of numbers, got the text {value!r}.")
    if callable(value):
        raise ConstraintError(
            f"{name} must be an array of numbers, got {type(value).__name__}: what depends on the input is computed in "
            "a constraint function, x -> AffineSet."
        )
    try:
        return read(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # torch says the last of shapes in lists
        raise ConstraintError(f"{name} cannot be read as an array of numbers: {error}") from None


def read(value: Any) -> Tensor:
    """Read an array with its number type, lists and scalars in double precision; stack tensors in lists."""
    if hasattr(value, "toarray"):  # a sparse matrix of scipy
        value = value.toarray()
    if isinstance(value, np.ndarray):
        return torch.tensor(value)
    if isinstance(value, Sequence) and holds_tensor(value):
        parts = [v if isinstance(v, Tensor) else read(v) for v in value]
        typed = [p.dtype for p, v in zip(parts, value, strict=True) if holds_tensor(v)]
        floating = sorted({str(t) for t in typed if t.is_floating_point})
        if len(floating) > 1:
            raise ValueError(f"its tensors must share one number type, got {' and '.join(floating)}: convert one.")
        wanted = next((t for t in typed if t.is_floating_point), torch.float64)
        return torch.stack(torch.broadcast_tensors(*(p.to(wanted) for p in parts)))
    return torch.as_tensor(value, dtype=torch.float64)


def holds_tensor(value: Any) -> bool:
    """Return True if a value is a tensor, or a sequence that contains one."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return isinstance(value, Tensor)
    return any(holds_tensor(v) for v in value)


def read_rows(rows: ArrayLike, bound: ArrayLike, *names: str) -> tuple[Tensor, Tensor, bool]:
    """Return rows and their right side as tensors, and True if their number type was only assumed."""
    parts, weak = as_tensors(**{names[0]: rows, names[1]: bound})
    matrix = read_matrix(parts[names[0]], names[0])
    return matrix, read_bound(parts[names[1]], matrix, names[1], names[0]), weak


def read_matrix(rows: Tensor | None, name: str) -> Tensor:
    """Read rows ``(..., m, n)``."""
    if rows is None or rows.ndim < 2:
        shape = None if rows is None else tuple(rows.shape)
        raise ConstraintError(f"{name} must have shape (..., m, n), got {shape}. A single row a is written [a].")
    return rows


def read_bound(bound: Tensor | None, A: Tensor, name: str, rows: str = "A") -> Tensor:
    """Read a bound ``(..., m)``; a scalar is repeated for every row, a missing bound is infinite.

    `name` and `rows` are what the user calls the bound and A.
    """
    m = A.shape[-2]
    if bound is None:
        return torch.full((m,), -math.inf if name == "lower" else math.inf, dtype=A.dtype, device=A.device)
    if bound.ndim == 0:
        return bound.expand(m)
    if bound.shape[-1] != m:
        hint = ""
        if m == 1 and bound.ndim == 1:
            hint = f" One bound per sample is written {name}.unsqueeze(-1)."
        elif bound.shape[-2:] == (m, 1):
            hint = " A trailing axis of size 1 is removed with .squeeze(-1)."
        elif bound.shape[-1] == 1:
            hint = f" One number for all rows of a sample is written {name}.expand(*{name}.shape[:-1], {m})."
        if bound.shape[-1] == A.shape[-1]:
            hint += f" {'Or is' if hint else 'Is'} {rows} transposed? It has one line for each constraint."
        raise ConstraintError(
            f"{name} must have shape (..., {m}), one entry for each row of {rows} {tuple(A.shape)}, "
            f"got {tuple(bound.shape)}.{hint}"
        )
    batch, axes = bound.shape[:-1], A.shape[:-2]
    if axes and len(batch) > len(axes):
        raise ConstraintError(
            f"{name} {tuple(bound.shape)} has more batch axes than {rows} {tuple(A.shape)}: "
            f"give {rows} the same leading axes ({rows}.unsqueeze or {rows}.expand) if that is meant."
        )
    joint_axes(name, batch, rows, axes)
    return bound


def read_sides(lower: Tensor | None, upper: Tensor | None, A: Tensor) -> tuple[Tensor, Tensor]:
    """Read both bounds of the rows of A, with `read_bound`."""
    low, high = read_bound(lower, A, "lower"), read_bound(upper, A, "upper")
    joint_axes("lower", low.shape[:-1], "upper", high.shape[:-1])
    return low, high
