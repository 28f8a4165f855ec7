"""The CAffine layer: `project` as a module, with a fixed or an input-dependent constraint."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from caffnet._solve.prepare import Prepared, prepare
from caffnet._solve.problem import check_options
from caffnet._solve.tracing import full_precision, in_transform, is_compiling, is_concrete, may_branch, no_autocast
from caffnet.constraints import EQUAL, AffineSet, joint_shape, row_names
from caffnet.errors import ConstraintError, DtypeError
from caffnet.projection import Projection, project_checked

Constraint: TypeAlias = AffineSet | Prepared | Callable[[Any], AffineSet | Prepared]
NullVector: TypeAlias = Tensor | Callable[[Tensor], Tensor] | None


OPTIONS = frozenset(inspect.signature(check_options).parameters)


class CAffine(nn.Module):
    r"""Puts an output into the set: $y = P^*(f, w)$ of `project`, trainable end to end.

    Args:
        constraint: an `AffineSet` that holds for every input, or any function ``x -> AffineSet``.
        warm_start: begin every search with the rows of the call before, when the batch has the same shape: for steps
            of a controller or a sweep, where few rows change. The answers are the same to rounding.
        **options: ``search, norm, strict, on_infeasible, gradient, budget``, as in `project`.

    A fixed set is prepared once, its data are buffers: they are saved in the ``state_dict`` and move with ``.to()``.
    A model file thus brings its constraint along; where that is another one, loading it warns and names the rows.
    A set written in plain lists takes torch's default number type, as the parameters of any module do.

    >>> layer = CAffine(AffineSet.box(-1.0, 1.0, dim=2))
    >>> layer(torch.tensor([[3.0, 0.5]]))
    tensor([[1.0000, 0.5000]])
    """

    A: Tensor
    lower: Tensor
    upper: Tensor

    def __init__(self, constraint: Constraint, *, warm_start: bool = False, **options: Any):
        super().__init__()
        unknown = set(options) - OPTIONS
        if unknown:
            raise TypeError(
                f"CAffine has no option {unknown.pop()!r}; the options are {', '.join(sorted(OPTIONS))} and warm_start."
            )
        if isinstance(constraint, Prepared):
            options = {"search": constraint.search, **options}
            constraint = constraint.set
        self.options, self._options, self.warm_start = options, check_options(**options), warm_start
        self._rows_before: Tensor | None = None
        #: While False and the module is in training mode, `f` passes unchanged (see `caffnet.training.WarmUp`).
        self.enabled = True
        self.constraint: Callable[[Any], AffineSet | Prepared] | None = None
        self._prepared: Prepared | None = None
        if isinstance(constraint, AffineSet):
            if any(t.requires_grad for t in (constraint.A, constraint.lower, constraint.upper)):
                raise ConstraintError(
                    "A fixed set is kept in buffers, its gradient would be lost: "
                    "pass a function, CAffine(lambda x: set)."
                )
            fixed = constraint.to(torch.get_default_dtype()) if constraint.weak else constraint
            self._rows = (constraint.row_kinds, constraint.labels)
            for name in ("A", "lower", "upper"):
                self.register_buffer(name, getattr(fixed, name).detach().clone())
            self.register_load_state_dict_pre_hook(_warn_of_other_rows)
            self.register_load_state_dict_post_hook(_prepare_again)
            self._prepare()
        elif callable(constraint):
            self.constraint = constraint
        else:
            raise ConstraintError(
                f"The constraint must be an AffineSet or a function x -> AffineSet, got {type(constraint).__name__}."
            )

    def forward(self, f: Tensor, w: NullVector = None, *, x: Any = None) -> Tensor:
        """The constrained output ``(..., n)``, from raw output f, null-space vector w and the network's input x.

        `w` may be a function: it is asked for w ``(..., n)`` with a mask ``(...)`` of the samples for which it may
        matter, those whose `f` is not feasible (all of them in graphs, with `strict` or with equalities).
        """
        return f if self.passes else self.project(f, w, x=x).value

    @property
    def passes(self) -> bool:
        """Whether `f` passes unchanged: in training mode, while the layer is not enabled."""
        return self.training and not self.enabled

    def project(self, f: Tensor, w: NullVector = None, *, x: Any = None) -> Projection:
        """As `forward`, with diagnostics: status, active rows, violation."""
        constraints = self._constraints(x)
        self._check(f, constraints)
        if callable(w):
            w = w(self._in_need_of_w(f, constraints))
        options = self._options
        if isinstance(constraints, Prepared) and options.search == "auto":
            options = options.searching(constraints.search)
        if not self.warm_start or is_compiling():
            return project_checked(f, constraints, w, options)
        m = (constraints.set if isinstance(constraints, Prepared) else constraints).m
        before = self._rows_before
        fits = before is not None and before.shape == (*f.shape[:-1], m) and before.device == f.device
        answer = project_checked(f, constraints, w, options, before if fits else None)
        if is_concrete(answer.active) and not in_transform():  # what a transform maps over must not leave it
            self._rows_before = answer.active
        return answer

    def set_at(self, x: Any = None) -> AffineSet:
        """The constraints that hold for the input `x`."""
        constraints = self._constraints(x)
        return constraints.set if isinstance(constraints, Prepared) else constraints

    def _constraints(self, x: Any) -> AffineSet | Prepared:
        if self._prepared is not None:
            return self._prepared
        if x is None or self.constraint is None:
            raise ConstraintError("The constraint depends on the input: call layer(f, w, x=x).")
        with no_autocast(device := x.device.type if isinstance(x, Tensor) else "cpu"):
            made = self.constraint(full_precision(x, device) if isinstance(x, Tensor) else x)
        if not isinstance(made, AffineSet | Prepared):
            raise ConstraintError(
                f"The constraint function must return an AffineSet, got {type(made).__name__}: "
                "for A y <= b, return AffineSet.inequality(A, b)."
            )
        return made

    def _in_need_of_w(self, f: Tensor, constraints: AffineSet | Prepared) -> Tensor:
        """The samples whose f is not feasible, ``(...)``; all, if that cannot be told or an equality makes it sure."""
        everywhere = torch.ones(f.shape[:-1], dtype=torch.bool, device=f.device)
        set = constraints.set if isinstance(constraints, Prepared) else constraints
        if not may_branch(f) or self._options.strict or EQUAL in set.row_kinds:
            return everywhere
        try:
            with torch.no_grad(), no_autocast(f.device.type):
                # Rounding and NaN aside: to ask for too many does no harm.
                outside = ~(set.violation(f.detach()) <= 0).all(-1)
        except ConstraintError:  # `project` will say what is wrong
            return everywhere
        return outside if outside.shape == everywhere.shape else everywhere

    def _check(self, f: Tensor, constraints: AffineSet | Prepared) -> None:
        """What `project` would take in good faith, or blame on the wrong thing."""
        if self.constraint is None:
            if f.dtype in (torch.float32, torch.float64) and f.dtype != self.A.dtype:
                raise DtypeError(
                    f"The layer's constraint is {self.A.dtype}, f is {f.dtype}: "
                    f"convert the layer, layer.to({f.dtype}), or the set before, set.to({f.dtype})."
                )
            return
        mine = f.shape[:-1]
        axes = (constraints.set if isinstance(constraints, Prepared) else constraints).batch_shape
        if len(mine) > len(axes) > 0 and 1 in mine and joint_shape(mine, axes) != mine:
            raise ConstraintError(
                f"f has the batch axes {tuple(mine)}, the constraints at x {tuple(axes)}: every f would meet every "
                "set. A stray axis of size 1 in f? If this is meant, call project(f, set)."
            )

    def _prepare(self) -> None:
        """Factorise the fixed set from its buffers, in their number type and on their device."""
        if self.A.dtype not in (torch.float32, torch.float64):
            raise DtypeError(
                f"The layer works in float32 or float64, not in {self.A.dtype}: half cannot keep a constraint."
            )
        if any(t.isnan().any() for t in (self.A, self.lower, self.upper)):
            raise ConstraintError("A fixed set must be made of numbers, got NaN in A, lower or upper.")
        row_kinds, labels = self._rows
        fixed = AffineSet.from_parts(self.A, self.lower, self.upper, labels, row_kinds)
        search, budget = self.options.get("search", "auto"), self.options.get("budget")
        self._prepared = prepare(fixed, search, budget=budget)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CAffine:
        super()._apply(fn, recurse)
        if self._prepared is not None:
            self._prepare()  # not moved with the buffers: a factorisation in float32 is useless in float64
        return self

    def extra_repr(self) -> str:
        """What the layer prints of itself."""
        what = "input-dependent" if self._prepared is None else repr(self._prepared)
        return ", ".join([what, *(f"{name}={value!r}" for name, value in self.options.items())])


def _warn_of_other_rows(module: CAffine, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Before a state dict is loaded: its constraint replaces that of the layer, which the user may not expect."""
    names = [prefix + name for name in ("A", "lower", "upper")]
    if not all(name in state for name in names):
        return  # left out on purpose, or torch says so
    pairs = [(state[name], old) for name, old in zip(names, (module.A, module.lower, module.upper), strict=True)]
    if any(new.shape != old.shape or new.isnan().any() for new, old in pairs):
        return  # an error is to come
    A, lower, upper = (_differs(new, old) for new, old in pairs)
    rows = (A.any(-1) | lower | upper).reshape(-1, lower.shape[-1]).any(0)
    if rows.any():
        named = zip(row_names(module._rows[1], len(rows)), rows.tolist(), strict=True)
        first, others = [name for name, differs in named if differs][:5], int(rows.sum()) - 5
        told = ", ".join(first) + (f" and {others} more rows" if others > 0 else "")
        warnings.warn(
            f"The loaded state has another constraint than the layer was built with, in {told}; the loaded one holds "
            f"from now on. To keep the layer's, leave {', '.join(names)} out of the state and load with strict=False.",
            stacklevel=2,
        )


def _differs(new: Tensor, old: Tensor) -> Tensor:
    """Where two tensors are different numbers, not the same ones in float32 and float64."""
    short = torch.float32 if torch.float32 in (new.dtype, old.dtype) else old.dtype
    return new.to(old.device, short) != old.to(short)


def _prepare_again(module: CAffine, _: object) -> None:
    """After a state dict was loaded: other rows, other sides, other factorisation."""
    loaded = AffineSet(module.A, module.lower, module.upper)
    module._rows = (loaded.row_kinds, module._rows[1])
    module._prepare()
