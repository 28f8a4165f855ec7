"""Sets in a dataset: `torch.utils.data.default_collate` stacks them to one set."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from caffnet._solve import sparse
from caffnet.constraints.affine_set import AffineSet
from caffnet.constraints.rows import join_kinds
from caffnet.constraints.softness import Softness
from caffnet.errors import ConstraintError, DtypeError


def collate(batch: Sequence[AffineSet], **_: Any) -> AffineSet:
    """Make one set with a batch axis in front of sets of equal shape, as `torch.utils.data.default_collate` does.

    The name of a row is kept if all sets have the same one. A side of a row can bind if it can bind in one of the sets.
    """
    shapes = list(dict.fromkeys((*s.batch_shape, s.m, s.n) for s in batch))
    if len(shapes) > 1:
        raise ConstraintError(
            f"The sets of a batch must have equal shapes, got {shapes[0]} and {shapes[1]} (rows and outputs last): "
            "give all the same rows, with infinite bounds where there is none, or pass a collate_fn that keeps a list."
        )
    types = list(dict.fromkeys(s.dtype for s in batch if not s.weak))
    if len(types) > 1:
        raise DtypeError(
            f"The sets of a batch must share one number type, got {types[0]} and {types[1]}: write set.to({types[0]})."
        )
    sets = [s.to(types[0]) if types and s.weak else s for s in batch]
    if any(sparse.is_sparse(s.A) for s in sets):
        raise ConstraintError("Sets with sparse rows cannot be stacked: collate their bounds, and share one A.")
    parts = []
    for name, core in (("A", 2), ("lower", 1), ("upper", 1)):
        tensors = [getattr(s, name) for s in sets]
        tensors = [t.expand(*s.batch_shape, *t.shape[t.ndim - core :]) for s, t in zip(sets, tensors, strict=True)]
        parts.append(torch.stack(tensors))
    # A metric or weights without the batch axes of their set get them, as the rows do: the new axis is in front.
    axes = sets[0].batch_shape
    metrics = [s.metric for s in sets]
    if any(t is None for t in metrics) != all(t is None for t in metrics):
        raise ConstraintError("All sets of a batch must have a metric, or none.")
    shape = torch.broadcast_shapes((*axes, 1, 1), *(t.shape for t in metrics if t is not None))
    metric = torch.stack([t.expand(shape) for t in metrics if t is not None]) if metrics[0] is not None else None
    softness = sets[0].softness
    if any((s.softness and s.softness.kinds) != (softness and softness.kinds) for s in sets):
        raise ConstraintError("All sets of a batch must have the same soft rows.")
    if softness is not None and softness.weight is not None:
        weights = [s.softness.weight for s in sets if s.softness is not None and s.softness.weight is not None]
        shape = torch.broadcast_shapes((*axes, 1), *(t.shape for t in weights))
        softness = Softness(softness.kinds, torch.stack([t.expand(shape) for t in weights]))
    labels = [s.labels or (None,) * s.m for s in sets]
    names = [given[0] if len(set(given)) == 1 else None for given in zip(*labels, strict=True)]
    kinds = "".join(map(join_kinds, zip(*(s.row_kinds for s in sets), strict=True)))
    known = names if any(name is not None for name in names) else None
    weak = all(s.weak for s in sets)
    return AffineSet.from_parts(parts[0], parts[1], parts[2], known, kinds, metric, softness, weak=weak)


# The manual of `default_collate` says to add a type to this map, which has no public address.
getattr(sys.modules[default_collate.__module__], "default_collate_fn_map", {})[AffineSet] = collate
