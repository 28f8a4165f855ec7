"""The CAffine layer: `project` as a module, with a fixed or an input-dependent constraint."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from caffnet._solve import sparse
from caffnet._solve.prepare import Prepared, prepare, set_of
from caffnet._solve.problem import Options, check_options
from caffnet._solve.tracing import (
    in_transform,
    is_compiling,
    is_concrete,
    is_exporting_plain,
    may_branch,
    no_autocast,
    undo_autocast,
)
from caffnet.constraints import EQUAL, AffineSet, ArrayLike, Softness, in_place_of, joint_shape, row_names
from caffnet.constraints.reading import read_array
from caffnet.errors import ConstraintError, DtypeError
from caffnet.projection import Projection, solve_checked, validate

Constraint: TypeAlias = AffineSet | Prepared | Callable[[Any], AffineSet | Prepared]
NullVector: TypeAlias = Tensor | Callable[[Tensor], Tensor] | None


OPTIONS = frozenset(inspect.signature(check_options).parameters)
_HALF = (torch.float16, torch.bfloat16)
_BUFFERS = ("A", "lower", "upper", "metric", "weight")


class CAffine(nn.Module):
    r"""Puts an output into the set: $y = P^*(f, w)$ of `project`, trainable end to end.

    Args:
        constraint: an `AffineSet` that holds for every input, or any function ``x -> AffineSet``.
        warm_start: True to begin every search with the active rows of the previous call, if the batch has the same
            shape: for the steps of a controller or a sweep, where few rows change. ``"first"`` to solve the first
            sample of each batch and begin all others with its rows: for batches that mostly meet the same rows. The
            answers are the same to rounding.
        null_limit: a number c that keeps ``|w| <= c · dist(f, S)``, so that the output no longer jumps where f leaves
            the set; None, the paper's map, takes w as it is. See `CAffNet`.
        metric: the metric of distances for all inputs, as in `project`. For a metric that depends on the input, let the
            function return ``set.with_metric(M)``.
        **options: ``search, norm, strict, on_infeasible, gradient, budget``, as in `project`.

    A fixed set is prepared once. Its data are buffers: they are saved in the ``state_dict`` and move with ``.to()``.
    So a model file contains its constraint; loading a file with another constraint gives a warning that names the
    rows. The same holds for the parameters and buffers of a constraint that is itself a module. Writing into the
    buffers in place, as an average over models does, has no effect: the layer keeps its own copy. Load a state to
    change the set. A set written in plain lists takes torch's default number type, as the parameters of any module do.

    A constraint function is called without autocast, and half-precision tensors in its x (a tensor, or tensors in
    dicts, lists and tuples) are converted to float32: bounds in half precision would be off by a part in a hundred.

    With several processes (DistributedDataParallel) an error in one of them leaves the others waiting until they end
    with "Connection closed"; the message of the error begins with the rank of its process. Where empty sets or NaN can
    occur in training, pass ``on_infeasible="nan"`` (and leave these samples out of the loss, by
    `Projection.answered`) or ``"nearest"``: then no process stops.

    >>> layer = CAffine(AffineSet.box(-1.0, 1.0, dim=2))
    >>> layer(torch.tensor([[3.0, 0.5]]))
    tensor([[1.0000, 0.5000]])
    """

    A: Tensor
    lower: Tensor
    upper: Tensor
    metric: Tensor | None
    weight: Tensor | None

    def __init__(
        self,
        constraint: Constraint,
        *,
        warm_start: bool | str = False,
        null_limit: float | None = None,
        metric: ArrayLike | None = None,
        **options: Any,
    ):
        super().__init__()
        unknown = set(options) - OPTIONS
        if unknown:
            raise TypeError(
                f"CAffine has no option {unknown.pop()!r}; the options are {', '.join(sorted(OPTIONS))}, metric, "
                "null_limit and warm_start."
            )
        if null_limit is not None and (
            isinstance(null_limit, bool) or not isinstance(null_limit, int | float) or not 0 < null_limit < math.inf
        ):
            raise ConstraintError(
                f"null_limit must be a positive number, or None for no limit, got {null_limit!r}: for no w at all, "
                "leave w out."
            )
        self.null_limit = null_limit
        if not isinstance(warm_start, bool) and warm_start != "first":
            raise ConstraintError(f"warm_start must be True, False or 'first', got {warm_start!r}.")
        if isinstance(constraint, Prepared):
            options = {"search": constraint.search, **options}
            constraint = constraint.set
        self.options, self._options, self.warm_start = options, check_options(**options), warm_start
        self._definite: Options | None = None  # the options with the search of a fixed set
        self._rows_before: Tensor | None = None
        #: While False and the module is in training mode, `f` passes unchanged (see `caffnet.training.WarmUp`).
        self.enabled = True
        self.constraint: Callable[[Any], AffineSet | Prepared] | None = None
        self._prepared: Prepared | None = None
        if isinstance(constraint, AffineSet):
            if metric is not None:
                constraint = constraint.with_metric(metric)
            if any(t is not None and t.requires_grad for t in _tensors(constraint)):
                raise ConstraintError(
                    "A fixed set is kept in buffers, its gradient would be lost: "
                    "pass a function, CAffine(lambda x: set)."
                )
            fixed = constraint.to(torch.get_default_dtype()) if constraint.weak else constraint
            self._rows = (constraint.row_kinds, constraint.labels, constraint.softness and constraint.softness.kinds)
            for name, part in zip(_BUFFERS, _tensors(fixed), strict=True):
                self.register_buffer(name, None if part is None else _kept(part.detach()))
            self.register_load_state_dict_pre_hook(_warn_of_other_rows)
            self.register_load_state_dict_post_hook(_prepare_again)
            self._prepare()
        elif callable(constraint):
            self.constraint = constraint
            self.register_buffer("metric", None if metric is None else _read_metric(metric))
            if isinstance(constraint, nn.Module):
                self.register_load_state_dict_pre_hook(_warn_of_other_numbers)
        else:
            raise ConstraintError(
                f"The constraint must be an AffineSet or a function x -> AffineSet, got {type(constraint).__name__}. "
                f"{in_place_of(constraint)}"
            )

    def forward(self, f: Tensor, w: NullVector = None, *, x: Any = None) -> Tensor:
        """Return the constrained output ``(..., n)`` for raw output f, null-space vector w and network input x.

        `w` may be a function from a mask ``(...)`` to w ``(..., n)``. The mask marks the samples for which w may
        matter: those whose `f` is not feasible (all samples in graphs, with `strict` or with equalities).
        """
        return f if self.passes else self._solve(f, w, x, value_only=True)[0]

    @property
    def passes(self) -> bool:
        """Return True if `f` passes unchanged: in training mode, while the layer is not enabled."""
        return self.training and not self.enabled

    def project(self, f: Tensor, w: NullVector = None, *, x: Any = None) -> Projection:
        """Do the same as `forward`, with diagnostics: status, active rows, violation."""
        return Projection(*self._solve(f, w, x))

    def _solve(
        self, f: Tensor, w: NullVector, x: Any, value_only: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, str, AffineSet, Tensor | None]:
        """Return the fields of a `Projection`; `value_only` as in `solve_checked`."""
        constraints, options = self._constraints(x, f), self._options
        f, null = self._read(f, constraints), None
        if w is not None:
            null = undo_autocast(w(self._in_need_of_w(f, constraints)) if callable(w) else w)
        if isinstance(constraints, Prepared) and options.search == "auto":
            if is_exporting_plain():  # such a graph has searches of its own to choose from
                constraints = constraints.set
            else:
                options = self._definite or options.searching(constraints.search)
        if self.null_limit is not None and null is not None:
            null = limit_null(f, null, constraints, options, self.null_limit)
        if self.warm_start is not True or is_compiling():
            return solve_checked(f, constraints, null, options, "first" if self.warm_start else None, value_only)
        m = set_of(constraints).m
        before = self._rows_before
        fits = before is not None and before.shape == (*f.shape[:-1], m) and before.device == f.device
        fields = solve_checked(f, constraints, null, options, before if fits else None)
        active = fields[2]
        if is_concrete(active) and not in_transform():  # what a transform maps over must not leave it
            self._rows_before = active
        return fields

    def set_at(self, x: Any = None) -> AffineSet:
        """Return the constraints for the input `x`."""
        return set_of(self._constraints(x))

    def _constraints(self, x: Any, f: Any = None) -> AffineSet | Prepared:
        if self._prepared is not None:
            return self._prepared
        if x is None or self.constraint is None:
            raise ConstraintError(
                "The constraint depends on the input: call layer(f, x=x). In an nn.Sequential use CAffNet, which "
                "passes x on."
            )
        with no_autocast(_device_type(x) or "cpu"), no_autocast("cpu"):
            made = self.constraint(_without_half(x))
        if not isinstance(made, (AffineSet, Prepared)):
            raise ConstraintError(
                f"The constraint function must return an AffineSet, got {type(made).__name__}. {in_place_of(made)}"
            )
        metric = self._buffers["metric"]  # faster than as an attribute, and there is rarely one
        if metric is None:
            return made
        rows = set_of(made)
        if rows.metric is not None:
            raise ConstraintError(
                "The layer has a metric, and so has the set of its constraint function: give it in one of the two "
                "places."
            )
        kind = rows.dtype
        if rows.weak and isinstance(f, Tensor):  # lists take the type of f
            kind = torch.float64 if f.dtype == torch.float64 else torch.float32
        return made.with_metric(metric.to(kind))

    def _in_need_of_w(self, f: Tensor, constraints: AffineSet | Prepared) -> Tensor:
        """Mask ``(...)`` of the samples whose f is not feasible; all, with equalities or where numbers are unknown."""
        everywhere = torch.ones(f.shape[:-1], dtype=torch.bool, device=f.device)
        set = set_of(constraints)
        if not may_branch(f) or self._options.strict or EQUAL in set.row_kinds:
            return everywhere
        try:
            with torch.no_grad(), no_autocast(f.device.type):
                # Without a tolerance, and NaN counts as outside: marking too many samples does no harm.
                outside = ~(set.violation(f.detach()) <= 0).all(-1)
        except ConstraintError:  # `project` raises the same error
            return everywhere
        return outside if outside.shape == everywhere.shape else everywhere

    def _read(self, f: Tensor, constraints: AffineSet | Prepared) -> Tensor:
        """Return f in full precision; refuse what `project` would take by mistake or report in a misleading way."""
        if not isinstance(f, Tensor):
            raise ConstraintError(f"f must be a tensor, got {type(f).__name__}: write torch.as_tensor(f).")
        if self._prepared is not None:
            own = self._prepared.set.dtype
            if f.dtype is own:
                return f
            f = undo_autocast(f)
            if f.dtype != own and f.dtype in (torch.float32, torch.float64):
                raise DtypeError(
                    f"The layer's constraint is {own}, f is {f.dtype}: "
                    f"convert the layer, layer.to({f.dtype}), or the set before, set.to({f.dtype})."
                )
            return f
        f, mine = undo_autocast(f), f.shape[:-1]
        if len(mine) < 2:  # nothing to mistake
            return f
        axes = set_of(constraints).batch_shape
        if len(mine) > len(axes) > 0 and 1 in mine and joint_shape(mine, axes) != mine:
            raise ConstraintError(
                f"f has the batch axes {tuple(mine)}, the constraints at x {tuple(axes)}: every f would meet every "
                "set. A stray axis of size 1 in f? If this is meant, call project(f, set)."
            )
        return f

    def _prepare(self) -> None:
        """Prepare the fixed set from its buffers, in their number type and on their device."""
        if self.A.dtype not in (torch.float32, torch.float64):
            raise DtypeError(
                f"The layer works in float32 or float64, not in {self.A.dtype}: half cannot keep a constraint."
            )
        if self.A.is_meta:
            raise ConstraintError(
                "A fixed set is made of numbers, and tensors on the meta device have none: build the layer outside of "
                'torch.device("meta"), or pass a function, CAffine(lambda x: set).'
            )
        rows = sparse.store(self.A)
        numbers = (sparse.numbers(rows), self.lower, self.upper, self.metric, self.weight)
        if any(t is not None and t.isnan().any() for t in numbers):
            raise ConstraintError("A fixed set must be made of numbers, got NaN in A, lower, upper, metric or weight.")
        row_kinds, labels, soft = self._rows
        # A copy: an average over models writes inf - inf = NaN for a missing bound into the buffers.
        A, lower, upper = (t.detach().clone() for t in (rows, self.lower, self.upper))
        metric, weight = (None if t is None else t.detach().clone() for t in (self.metric, self.weight))
        softness = None if soft is None else Softness(soft, weight)
        fixed = AffineSet.from_parts(A, lower, upper, labels, row_kinds, metric, softness)
        search, budget = self.options.get("search", "auto"), self.options.get("budget")
        self._prepared = prepare(fixed, search, budget=budget)
        self._definite = self._options.searching(self._prepared.search)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._prepared is not None:
            for name, part in zip(_BUFFERS, _tensors(self._prepared.set), strict=True):
                if part is not None:  # copies: averages are also written into state dicts
                    destination[prefix + name] = _kept(part)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CAffine:
        if self._prepared is None:
            super()._apply(fn, recurse)
            return self
        for name, part in zip(_BUFFERS, _tensors(self._prepared.set), strict=True):
            setattr(self, name, None if part is None else _kept(part))
        super()._apply(fn, recurse)
        self._prepare()
        return self

    def extra_repr(self) -> str:
        """Return the text of the layer in a printed model."""
        what = "input-dependent" if self._prepared is None else repr(self._prepared)
        limit = {} if self.null_limit is None else {"null_limit": self.null_limit}
        return ", ".join([what, *(f"{name}={value!r}" for name, value in {**self.options, **limit}.items())])


def _read_metric(metric: ArrayLike) -> Tensor:
    """Return a metric as a tensor, of its own type or in double precision; each set converts it to its type."""
    return metric if isinstance(metric, Tensor) else read_array(metric, "metric").double()


def _kept(part: Tensor) -> Tensor:
    """Copy a tensor for a buffer: sparse rows as COO, the only sparse layout that `copy.deepcopy` supports."""
    return part.to_sparse_coo() if sparse.is_sparse(part) else part.clone()


def _tensors(set: AffineSet) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    return set.A, set.lower, set.upper, set.metric, set.softness and set.softness.weight


# ------------------------------------------------------------------------------------------------- numbers


def _without_half(x: Any) -> Any:
    """Return the input with its half-precision tensors in float32 (exactly), or the same object if it has none."""
    if isinstance(x, Tensor):
        return x.float() if x.dtype in _HALF else x
    if isinstance(x, Mapping):
        parts = {key: _without_half(part) for key, part in x.items()}
        same = all(part is x[key] for key, part in parts.items())
        return x if same else parts if type(x) is dict else _rebuild(x, parts)
    if isinstance(x, tuple | list):
        parts = [_without_half(part) for part in x]
        if all(new is old for new, old in zip(parts, x, strict=True)):
            return x
        return type(x)(*parts) if hasattr(x, "_fields") else _rebuild(x, parts)
    return x


def _rebuild(x: Any, parts: Any) -> Any:
    """Return the parts in a container of the class of x, or in a plain one if that class cannot be made from them."""
    try:
        return type(x)(parts)
    except TypeError:
        return parts


def _device_type(x: Any) -> str | None:
    """Return the device type of the first tensor in an input, or None."""
    if isinstance(x, Tensor):
        return x.device.type
    parts = x.values() if isinstance(x, Mapping) else x if isinstance(x, tuple | list) else ()
    return next((kind for part in parts if (kind := _device_type(part)) is not None), None)


def limit_null(f: Tensor, w: Tensor, constraints: AffineSet | Prepared, options: Options, share: float) -> Tensor:
    """Shorten w as `null_limit` says: ``w · min(1, share · dist(f, S) / |w|)``, in Euclidean lengths.

    The distance is measured to the plain projection of f and is differentiated with respect to f and the set. Where a
    length is NaN or infinite, w is left as it is, and the projection that follows reports the error.
    """
    if is_exporting_plain():
        raise ConstraintError(
            "null_limit needs a second search, which plain operations do not hold: export a model with "
            "null_limit=None, or with the operator of the library (caffnet.deploy)."
        )
    set, _ = validate(f, constraints, w, options)
    plain = Options(search="active", on_infeasible="nearest", budget=options.budget)
    with no_autocast(f.device.type):
        limit = share * _length(f - solve_checked(f, set, None, plain, value_only=True)[0])
        size = _length(w)
        over = (size > limit) & size.isfinite()
        return w * torch.where(over, limit / torch.where(over, size, 1.0), 1.0)


def _length(t: Tensor) -> Tensor:
    """Return ``|t|_2`` with its axis kept, without overflow; its derivative at 0 is 0."""
    top = sparse.largest(t.detach())
    positive = top > 0
    unit = torch.where(positive, top, 1.0)
    ratio = torch.where(positive, t / unit, 1.0)
    return torch.where(positive, unit * ratio.square().sum(-1, keepdim=True).sqrt(), top)


# ------------------------------------------------------------------------------------------------- loading


def _warn_of_other_numbers(module: CAffine, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Warn, before a state dict is loaded, that its numbers replace those of a constraint that is a module."""
    assert isinstance(module.constraint, nn.Module)
    names = []
    for name, old in module.constraint.state_dict(prefix=f"{prefix}constraint.").items():
        new = state.get(name)
        if not isinstance(new, Tensor) or not isinstance(old, Tensor) or new.shape != old.shape:
            continue  # left out on purpose, or torch says so
        if not is_concrete(new) or not is_concrete(old):
            continue
        if (_differs(new, old) & ~(new.isnan() & old.isnan()).to(old.device)).any():
            names.append(name)
    if names:
        _warn(names, "", "these")


def _warn(changed: list[str], kind: str, names: str) -> None:
    """Warn that a state has changed the numbers of a constraint; `names` are those in the state."""
    more = f" and {len(changed) - 5} more{kind}" if len(changed) > 5 else ""
    warnings.warn(
        f"The loaded state has another constraint than the layer was built with, in {', '.join(changed[:5])}{more}; "
        f"the loaded one holds from now on. To keep the layer's, leave {names} out of the state and load with "
        "strict=False.",
        stacklevel=3,
    )


def _warn_of_other_rows(module: CAffine, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Warn, before a state dict is loaded, that its constraint replaces another constraint of the layer."""
    assert module._prepared is not None
    own = module._prepared.set
    names = [prefix + name for name, part in zip(_BUFFERS, _tensors(own), strict=True) if part is not None]
    if not all(name in state for name in names):
        return  # left out on purpose, or torch says so
    parts = [part for part in _tensors(own) if part is not None]
    pairs = [(sparse.store(state[name]), old) for name, old in zip(names, parts, strict=True)]
    if any(
        new.shape != old.shape or new.layout != old.layout or sparse.numbers(new).isnan().any() for new, old in pairs
    ):
        return  # torch or the layer raises an error for these
    if sparse.is_sparse(own.A):
        pairs[0] = (sparse.row_key(pairs[0][0]), sparse.row_key(own.A))
    A, lower, upper, *others = (_differs(new, old) for new, old in pairs)
    changed = A.any(-1) | lower | upper
    rows = changed.any(tuple(range(changed.ndim - 1))) if changed.ndim > 1 else changed
    if rows.any() or any(t.any() for t in others):
        named = zip(row_names(module._rows[1], len(rows)), rows.tolist(), strict=True)
        changed = [name for name, differs in named if differs] or ["its metric or weights"]
        _warn(changed, " rows", ", ".join(names))


def _differs(new: Tensor, old: Tensor) -> Tensor:
    """Return a mask of the entries that differ; a float64 number and its float32 rounding count as equal."""
    short = torch.float32 if torch.float32 in (new.dtype, old.dtype) else old.dtype
    return new.to(old.device, short) != old.to(short)


def _prepare_again(module: CAffine, _: object) -> None:
    """Prepare the set again after a state dict was loaded, because its rows may have changed."""
    loaded = AffineSet(module.A, module.lower, module.upper)
    module._rows = (loaded.row_kinds, *module._rows[1:])
    module._prepare()
