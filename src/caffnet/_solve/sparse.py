"""Sparse rows: a matrix that all samples share, stored by its entries.

A matrix is stored as sparse if it was given as sparse and has more than `WORTH` places, or if it is the identity of a
box and has more than `LARGE` places: then it is a CSR tensor with 32-bit indices, and no array of its full size is
made. Any other matrix is an ordinary tensor. So `A` of a small set is an ordinary tensor, and the memory of a large
sparse set grows with its entries.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet._solve.tracing import is_compiling

#: Largest number of places of a box that is stored in full, as an ordinary tensor: 8 MB in float64.
LARGE = 2**20
#: Largest number of places of a sparse matrix that is stored in full: the general method is then as fast.
WORTH = 2**16


def is_sparse(A: Tensor) -> bool:
    """Check whether a matrix is kept as its entries."""
    return A.is_sparse_csr


def store(A: Tensor) -> Tensor:
    """A matrix of any layout as it is kept: entries if it is sparse and large, else in full."""
    if A.layout == torch.strided:
        return A
    if A.ndim != 2 or A.shape[0] * A.shape[1] <= WORTH:
        return A.to_dense()
    if is_sparse(A):
        return from_entries(A.crow_indices(), A.col_indices(), A.values(), A.shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the layout is in beta
        A = A.to_sparse_coo().coalesce()
    places, values = A.indices(), A.values()
    return from_entries(_starts(places[0], A.shape[0]), places[1], values, A.shape[1])


def from_entries(starts: Tensor, columns: Tensor, values: Tensor, n: int) -> Tensor:
    """A CSR matrix with 32-bit indices; `values` keep their gradient."""
    if values.numel() >= 2**31:
        raise ValueError(f"A sparse matrix may have 2^31 entries at most, got {values.numel()}.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.sparse_csr_tensor(starts.int(), columns.int(), values, (starts.shape[0] - 1, n))


def _starts(rows: Tensor, m: int) -> Tensor:
    """The start of each of the m rows in a sorted list of row numbers."""
    return torch.searchsorted(rows.contiguous(), torch.arange(m + 1, device=rows.device))


def identity(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The identity, as it is kept."""
    if n * n <= LARGE or is_compiling():
        return torch.eye(n, dtype=dtype, device=device)
    ones = torch.ones(n, dtype=dtype, device=device)
    places = torch.arange(n + 1, dtype=torch.int32, device=device)
    return from_entries(places, places[:-1], ones, n)


def stack(first: Tensor, second: Tensor) -> Tensor:
    """The rows of both matrices, one of which may be sparse."""
    if not (is_sparse(first) or is_sparse(second)):
        return torch.cat([first, second], -2)
    starts, columns, values = zip(*(entries(A) for A in (first, second)), strict=True)
    below = starts[1][1:] + starts[0][-1]
    return from_entries(torch.cat([starts[0], below]), torch.cat(columns), torch.cat(values), first.shape[-1])


def entries(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Starts of the rows ``(m + 1,)``, columns and values ``(entries,)`` of a matrix ``(m, n)`` of any kind."""
    if is_sparse(A):
        return A.crow_indices(), A.col_indices(), A.values()
    rows, columns = (A.detach() != 0).nonzero(as_tuple=True)
    return _starts(rows, A.shape[0]).int(), columns.int(), A[rows, columns]


def product(A: Tensor, y: Tensor) -> Tensor:
    """``A y`` for points ``(..., n)``: ``(..., m)``."""
    if not is_sparse(A):
        return (A @ y.unsqueeze(-1)).squeeze(-1)
    starts, columns, values = entries(A)
    terms = values * y[..., columns.long()]
    rows = torch.repeat_interleave(starts.diff().long())
    return torch.zeros(*y.shape[:-1], A.shape[0], dtype=terms.dtype, device=y.device).index_add(-1, rows, terms)


def row_sizes(A: Tensor) -> Tensor:
    """``|a_i|_1`` of every row, ``(..., m)``."""
    if not is_sparse(A):
        return A.abs().sum(-1)
    starts, _, values = entries(A)
    return values.new_zeros(A.shape[0]).index_add(0, torch.repeat_interleave(starts.diff().long()), values.abs())


def sizes_at(A: Tensor, y: Tensor, everything: Tensor) -> Tensor:
    """The size of the numbers whose rounding counts in each row at `y`, ``(..., m)``, as ``size_at`` in rows.c has it.

    That is ``2 |A| |y|``, but at least what float64 loses of `everything`, the size of all outputs in units of the row.
    """
    n = A.shape[-1]
    share = tolerance.feasibility(torch.float64, n) / tolerance.feasibility(y.dtype, n)
    if share >= 1:
        return everything
    size = like(A, A.values().abs()) if is_sparse(A) else A.abs()
    return torch.maximum(torch.minimum(2 * product(size, y.abs()), everything), share * everything)


def largest(y: Tensor) -> Tensor:
    """``|y|_inf`` with its axis kept."""
    return y.abs().amax(-1, keepdim=True) if y.shape[-1] else y.new_zeros(*y.shape[:-1], 1)


def numbers(A: Tensor) -> Tensor:
    """The numbers that a tensor of any kind holds."""
    return A.values() if is_sparse(A) else A


def row_key(A: Tensor) -> Tensor:
    """Two numbers for every row of a sparse matrix, ``(m, 2)``, that change with its entries."""
    weights = 1.0 + torch.frac(torch.arange(A.shape[1], device=A.device, dtype=A.dtype) * 0.6180339887498949)
    return torch.stack([product(A, weights), row_sizes(A)], -1)


def place_of(A: Tensor, entry: int) -> list[int]:
    """The row and the column of an entry of a sparse matrix."""
    return [int(torch.searchsorted(A.crow_indices(), entry, right=True)) - 1, int(A.col_indices()[entry])]


def like(A: Tensor, values: Tensor) -> Tensor:
    """A matrix with the places of a sparse `A` and other values."""
    return from_entries(A.crow_indices(), A.col_indices(), values, A.shape[1])
