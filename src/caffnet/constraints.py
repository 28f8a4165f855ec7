"""Constraints: the set ``S = {y : lower <= A y <= upper}``.

One canonical form says everything: an equality has ``lower == upper``, a one-sided row has an infinite side, a box
is ``A = I``. A set is plain immutable data. It may carry leading batch axes (one set per sample), and an
input-dependent constraint is any function ``x -> AffineSet``.

Nothing here knows how a point of the set is found; what is enforced is measured by the same object.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from caffnet import tolerance
from caffnet._solve import sparse
from caffnet._solve.tracing import is_compiling, is_concrete, remember
from caffnet.errors import ConstraintError, DtypeError

ArrayLike: TypeAlias = Tensor | np.ndarray | Sequence[Any] | float | int
Labels: TypeAlias = tuple[str | None, ...] | None

# The kind of a row: which of its sides can bind. Known from the constructor, not from the numbers, so that it is still
# known while a graph is traced. One character each: the kinds of a set are a string.
EQUAL, UPPER, LOWER, BOTH, FREE = "=", "<", ">", "B", "-"
# Whether a row may give way: never; where the set is empty; there, if the nearest point is asked for; at a price.
HARD, SOFT, SOFT_IF_NEAREST, WEIGHTED = ".", "s", "n", "w"


class Softness(NamedTuple):
    """Which rows of a set may give way.

    Attributes:
        kinds: one character per row: ``"."`` hard; ``"s"`` gives way where the set is empty; ``"n"`` does so if
            ``on_infeasible="nearest"``, else it is hard; ``"w"`` gives way at the price of its weight.
        weight: the weights of the rows ``"w"`` in their order, ``(..., k)``; None if there are none.
    """

    kinds: str
    weight: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Softness:
        """The same rows with their weights changed."""
        return self if self.weight is None else Softness(self.kinds, change(self.weight))


class AffineSet:
    r"""The affine set $\{y \in \mathbb{R}^n : lower \le A y \le upper\}$.

    Args:
        A: the rows, ``(..., m, n)``.
        lower: lower bounds, ``(..., m)`` or a scalar; ``None`` or ``-inf`` means no bound.
        upper: upper bounds, ``(..., m)`` or a scalar; ``None`` or ``+inf`` means no bound.
        names: one label per row, used in every message.

    Tensors (sparse ones too), numpy arrays, nested lists and scalars are accepted. Tensors and floating-point arrays
    keep their number type (and tensors their gradient); lists, scalars and integers take the type of whatever they
    meet. Tensors are kept, not copied: do not change them in place afterwards. A sparse `A` that is large stays sparse,
    and so does the identity of a large box: memory and time grow with the entries.

    In a dataset, sets of equal shape become one set with a batch axis (`torch.utils.data.default_collate` knows them).

    >>> s = AffineSet.inequality([[1.0, 1.0]], [1.0], names=["total"]) & AffineSet.box(0.0, 1.0, dim=2)
    >>> s
    AffineSet(3 rows in R^2)
    >>> s.violation(torch.tensor([1.0, 0.5]))
    tensor([0.5000, 0.0000, 0.0000])
    """

    def __init__(
        self,
        A: ArrayLike,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
        names: Sequence[str] | None = None,
    ):
        parts, weak = _as_tensors(A=A, lower=lower, upper=upper)
        rows = _matrix(parts["A"], "A")
        bounds = [_bound(parts[side], rows, side) for side in ("lower", "upper")]
        self._fill(rows, bounds[0], bounds[1], names, None, weak)

    def _fill(
        self,
        A: Tensor,
        lower: Tensor,
        upper: Tensor,
        labels: Sequence[str | None] | None,
        row_kinds: str | None,
        weak: bool,
        metric: Tensor | None = None,
        softness: Softness | None = None,
    ) -> None:
        m = A.shape[-2]
        if isinstance(labels, str) or (labels is not None and len(labels) != m):
            given = f"the text {labels!r}" if isinstance(labels, str) else f"{len(labels)} names"
            raise ConstraintError(f"names must be a list with one name for each of the {m} rows, got {given}.")
        self._A, self._lower, self._upper = A, lower, upper
        self._labels = None if labels is None else tuple(None if name is None else str(name) for name in labels)
        self._row_kinds = _inspect_kinds(lower, upper) if row_kinds is None else row_kinds
        self._weak, self._metric, self._softness = weak, metric, softness

    @classmethod
    def _build(
        cls,
        A: Tensor,
        lower: Tensor,
        upper: Tensor,
        labels: Sequence[str | None] | None,
        row_kinds: str | None,
        weak: bool,
        metric: Tensor | None = None,
        softness: Softness | None = None,
    ) -> AffineSet:
        """From tensors already checked."""
        built = cls.__new__(cls)
        built._fill(A, lower, upper, labels, row_kinds, weak, metric, softness)
        return built

    @classmethod
    def inequality(cls, A: ArrayLike, b: ArrayLike, names: Sequence[str] | None = None) -> AffineSet:
        r"""$\{y : A y \le b\}$, with A ``(..., m, n)`` and b ``(..., m)``."""
        rows, bound, weak = _read_rows(A, b, "A", "b")
        below = torch.full((rows.shape[-2],), -math.inf, dtype=rows.dtype, device=rows.device)
        return cls._build(rows, below, bound, names, UPPER * rows.shape[-2], weak)

    @classmethod
    def equality(cls, C: ArrayLike, d: ArrayLike, names: Sequence[str] | None = None) -> AffineSet:
        r"""$\{y : C y = d\}$, with C ``(..., m, n)`` and d ``(..., m)``. Each equality stays one row."""
        rows, bound, weak = _read_rows(C, d, "C", "d")
        return cls._build(rows, bound, bound, names, EQUAL * rows.shape[-2], weak)

    @classmethod
    def box(
        cls,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
        dim: int | None = None,
        names: Sequence[str] | None = None,
    ) -> AffineSet:
        r"""$\{y : lower \le y \le upper\}$; ``dim`` is needed when both bounds are scalars."""
        parts, weak = _as_tensors(lower=lower, upper=upper)
        given = [bound for bound in parts.values() if bound is not None]
        if not given:
            raise ConstraintError("A box needs a lower or an upper bound, got neither.")
        sizes = {bound.shape[-1] for bound in given if bound.ndim}
        if dim is not None:
            sizes.add(dim)
        if len(sizes) != 1:
            hint = "write box(lower, upper, dim=n)" if not sizes else f"the sizes {sorted(sizes)} disagree"
            raise ConstraintError(f"A box must have one number of outputs: {hint}.")
        A = sparse.identity(sizes.pop(), given[0].dtype, given[0].device)
        bounds = [_bound(parts[side], A, side) for side in ("lower", "upper")]
        return cls._build(A, bounds[0], bounds[1], names, None, weak)

    @classmethod
    def from_parts(
        cls,
        A: Tensor,
        lower: Tensor,
        upper: Tensor,
        labels: Sequence[str | None] | None,
        row_kinds: Sequence[str],
        metric: Tensor | None = None,
        softness: Softness | None = None,
    ) -> AffineSet:
        """Put a set together again from its `A`, `lower`, `upper`, `labels`, `row_kinds`, `metric` and `softness`."""
        kinds = "".join(row_kinds)
        if len(kinds) != A.shape[-2] or kinds.strip(EQUAL + UPPER + LOWER + BOTH + FREE):
            raise ConstraintError(f"row_kinds must be {A.shape[-2]} characters of '=<>B-', one per row, got {kinds!r}.")
        return cls._build(A, lower, upper, labels, kinds, False, metric, softness)

    # ------------------------------------------------------------------------------------------------ what it is

    @property
    def A(self) -> Tensor:
        """The rows, ``(..., m, n)``; a CSR tensor where they are kept sparse."""
        return self._A

    @property
    def lower(self) -> Tensor:
        """Lower bounds, ``(..., m)``, ``-inf`` where there is none."""
        return self._lower

    @property
    def upper(self) -> Tensor:
        """Upper bounds, ``(..., m)``, ``+inf`` where there is none."""
        return self._upper

    @property
    def metric(self) -> Tensor | None:
        """The metric M of distances, ``(..., n, n)``, or ``(..., 1, n)`` if diagonal; None for the Euclidean one."""
        return self._metric

    @property
    def softness(self) -> Softness | None:
        """Which rows may give way, as `soft` has said; None if all are hard."""
        return self._softness

    @property
    def slacks(self) -> int:
        """The number of rows that give way at the price of a weight."""
        return 0 if self._softness is None else self._softness.kinds.count(WEIGHTED)

    @property
    def m(self) -> int:
        """The number of rows."""
        return self._A.shape[-2]

    @property
    def n(self) -> int:
        """The number of outputs."""
        return self._A.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """The number type of the data."""
        return self._A.dtype

    @property
    def device(self) -> torch.device:
        """Where the data are."""
        return self._A.device

    @property
    def batch_shape(self) -> torch.Size:
        """The leading axes: one set per index. Empty for a set that all samples share."""
        axes = torch.Size() if self._metric is None else self._metric.shape[:-2]
        if self._softness is not None and self._softness.weight is not None:
            axes = joint_shape(axes, self._softness.weight.shape[:-1])
        if self._A.ndim == 2 and self._lower.ndim == 1 and self._upper.ndim == 1:
            return axes
        return joint_shape(self._A.shape[:-2], self._lower.shape[:-1], self._upper.shape[:-1], axes)

    @property
    def row_kinds(self) -> str:
        """Which sides of each row can bind, one character per row.

        ``"="`` equality, ``"<"`` upper bound, ``">"`` lower bound, ``"B"`` both, ``"-"`` none.
        """
        return self._row_kinds

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each row; where none was given, its place: ``row 0``, ``row 1``, ..."""
        return row_names(self._labels, self.m)

    @property
    def labels(self) -> Labels:
        """The names that were given; None for a row, or for all, without."""
        return self._labels

    @property
    def weak(self) -> bool:
        """Whether the number type was assumed, not given: lists, scalars and integers take any type."""
        return self._weak

    def __repr__(self) -> str:
        batch = f", batch {tuple(self.batch_shape)}" if self.batch_shape else ""
        return f"AffineSet({self.m} rows in R^{self.n}{batch})"

    # ------------------------------------------------------------------------------------------------ new from old

    def __and__(self, other: AffineSet) -> AffineSet:
        """The intersection: the rows of both, batch axes broadcast."""
        if not isinstance(other, AffineSet):
            return NotImplemented
        if self.n != other.n:
            raise ConstraintError(f"Both sets of `&` must have the same outputs, got n={self.n} and n={other.n}.")
        first, second = _meet(self, other)
        try:
            joint_shape(self.batch_shape, other.batch_shape)
        except RuntimeError:
            raise ConstraintError(
                f"The batch axes of both sets of `&` must broadcast, "
                f"got {tuple(self.batch_shape)} and {tuple(other.batch_shape)}."
            ) from None
        if first.metric is not None and second.metric is not None and first.metric is not second.metric:
            raise ConstraintError("Only one set of `&` may have a metric: write (a & b).with_metric(M).")
        metric = second.metric if first.metric is None else first.metric
        batch = joint_shape(first.A.shape[:-2], second.A.shape[:-2])
        if batch and (sparse.is_sparse(first.A) or sparse.is_sparse(second.A)):
            raise ConstraintError(
                f"Sparse rows are shared by all samples, got rows with the batch axes {tuple(batch)}: write "
                "set.to_dense() & other, or give all samples the same A."
            )
        A = sparse.stack(*(s.A.expand(*batch, s.m, s.n) if batch else s.A for s in (first, second)))
        lower, upper = (_stack_bounds(a, b) for a, b in ((first.lower, second.lower), (first.upper, second.upper)))
        labels = None
        if self._labels is not None or other._labels is not None:
            labels = (self._labels or (None,) * self.m) + (other._labels or (None,) * other.m)
        weak = self._weak and other._weak
        softness = _join_softness(first, second)
        return self._build(A, lower, upper, labels, self._row_kinds + other._row_kinds, weak, metric, softness)

    def to(self, *args: Any, **kwargs: Any) -> AffineSet:
        """The same set with another dtype or on another device; arguments as in ``torch.Tensor.to``."""
        A, lower, upper = (t.to(*args, **kwargs) for t in (self._A, self._lower, self._upper))
        typed = "dtype" in kwargs or any(isinstance(arg, torch.dtype | Tensor) for arg in args)
        metric = None if self._metric is None else self._metric.to(*args, **kwargs)
        softness = None if self._softness is None else self._softness.map(lambda t: t.to(*args, **kwargs))
        return self._build(A, lower, upper, self._labels, self._row_kinds, self._weak and not typed, metric, softness)

    def with_metric(self, metric: ArrayLike, *, diagonal: bool | None = None) -> AffineSet:
        r"""The same set, in which the nearest point is the one with the least $\|y - f\|_M = \sqrt{(y-f)^T M (y-f)}$.

        Args:
            metric: M, positive definite, ``(..., n, n)``; only its symmetric part counts. Or its diagonal ``(..., n)``.
            diagonal: whether `metric` is the diagonal; None: if it has one axis.

        A constraint function returns its set with a metric: ``lambda x: set_at(x).with_metric(M(x))``.
        The closed form of a sub-constraint is then the point of its flat nearest to ``f + w`` in M; gradients reach M.

        >>> s = AffineSet.equality([[1.0, 1.0]], [0.0]).with_metric([3.0, 1.0])
        >>> from caffnet import project
        >>> project(torch.tensor([4.0, 0.0]), s).value  # the first output is three times as dear
        tensor([ 3., -3.])
        """
        here, given = self._beside(metric, "metric")
        if given.ndim == 1 if diagonal is None else diagonal:
            given = given.unsqueeze(-2)
        if given.ndim < 2 or given.shape[-1] != self.n or given.shape[-2] not in (1, self.n):
            raise ConstraintError(
                f"The metric must have shape (..., {self.n}, {self.n}), or (..., {self.n}) for a diagonal (write "
                f"diagonal=True if that has batch axes), got {tuple(torch.as_tensor(metric).shape)}."
            )
        try:
            joint_shape(self.batch_shape, given.shape[:-2])
        except RuntimeError:
            raise ConstraintError(
                f"The batch axes of the metric {tuple(given.shape[:-2])} and of the set {tuple(self.batch_shape)} do "
                "not broadcast."
            ) from None
        parts = here.A, here.lower, here.upper, self._labels, self._row_kinds, here.weak
        return self._build(*parts, given, here.softness)

    def _beside(self, data: ArrayLike, name: str) -> tuple[AffineSet, Tensor]:
        """This set and data that go with it, in one number type and on one device."""
        typed = isinstance(data, Tensor | np.ndarray) or _holds_tensor(data)
        given = _as_tensors(**{name: data})[0][name]
        assert given is not None
        here = self.to(given.dtype) if self._weak and typed and given.is_floating_point() else self
        if not typed or given.ndim == 0:
            given = given.to(here.device, here.dtype)
        if given.dtype != here.dtype or given.device != here.device:
            raise DtypeError(
                f"The {name} is {given.dtype} on {given.device}, the constraints are {here.dtype} on {here.device}: "
                "convert one of them."
            )
        return here, given

    def soft(self, weight: ArrayLike | None = None, *, when: str = "always") -> AffineSet:
        r"""The same set with rows that may give way; join it with hard rows by ``&``.

        Args:
            weight: None: the rows give way only where the whole set is empty, and then together, by the least largest
                violation in their own units that leaves a point within the hard rows. Else the price of giving way,
                positive, ``(..., m)`` or one number: the answer minimises
                $\tfrac12 \|y - f\|^2 + \tfrac12 \sum_i weight_i \, slack_i^2$ over the hard rows, with $slack_i$ the
                violation of row i. Gradients reach it.
            when: with ``weight=None``, ``"nearest"`` makes the rows soft only if ``on_infeasible="nearest"`` is asked
                for; else they are hard, and an empty set raises or is NaN.

        An answer whose soft rows gave way has the status RELAXED. It is an answer, whatever `on_infeasible` is: that is
        for hard rows that exclude each other, and in its least violation the soft ones have no say.

        >>> from caffnet import project
        >>> limits, wish = AffineSet.box(-1.0, 1.0, dim=1), AffineSet.box(3.0, None, dim=1)
        >>> project(torch.zeros(1), limits & wish.soft()).value  # 3 is out of reach
        tensor([1.])
        >>> project(torch.zeros(1), limits & wish.soft(weight=0.25)).value  # y² + (3 - y)² / 4 is least at 0.6
        tensor([0.6000])
        """
        if when not in ("always", "nearest"):
            raise ConstraintError(f'when must be "always" or "nearest", got {when!r}.')
        if weight is None:
            softness = Softness((SOFT if when == "always" else SOFT_IF_NEAREST) * self.m)
            return self._build(*self._parts(), self._metric, softness)
        if when != "always":
            raise ConstraintError('Rows with a weight always give way at its price: leave when="nearest" out.')
        here, given = self._beside(weight, "weight")
        given = given.expand(self.m) if given.ndim == 0 else given
        if given.shape[-1] != self.m:
            raise ConstraintError(
                f"weight must be one number or have shape (..., {self.m}), one for each row, got {tuple(given.shape)}."
            )
        try:
            joint_shape(self.batch_shape, given.shape[:-1])
        except RuntimeError:
            raise ConstraintError(
                f"The batch axes of the weight {tuple(given.shape[:-1])} and of the set {tuple(self.batch_shape)} do "
                "not broadcast."
            ) from None
        if not is_compiling() and is_concrete(given) and not ((given > 0) & (given < math.inf)).all():
            wrong = given[~((given > 0) & (given < math.inf))].flatten()[0].item()
            raise ConstraintError(
                f"weight must be positive and finite, got {wrong}: leave rows that never give way hard, and rows "
                "without a price out."
            )
        return self._build(*here._parts(), here.metric, Softness(WEIGHTED * self.m, given))

    def without_soft(self) -> AffineSet:
        """The rows that are hard, or hard unless the nearest point is asked for, alone.

        >>> (AffineSet.box(0.0, 1.0, dim=2) & AffineSet.inequality([[1.0, 1.0]], [1.0]).soft()).without_soft()
        AffineSet(2 rows in R^2)
        """
        if self._softness is None or not set(self._softness.kinds) & {SOFT, WEIGHTED}:
            return self
        kept = [i for i, kind in enumerate(self._softness.kinds) if kind in (HARD, SOFT_IF_NEAREST)]
        A, lower, upper = self._A[..., kept, :], self._lower[..., kept], self._upper[..., kept]
        labels = None if self._labels is None else [self._labels[i] for i in kept]
        kinds, soft = ("".join(text[i] for i in kept) for text in (self._row_kinds, self._softness.kinds))
        softness = Softness(soft) if SOFT_IF_NEAREST in soft else None
        return self._build(A, lower, upper, labels, kinds, self._weak, self._metric, softness)

    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Labels, str, bool]:
        return self._A, self._lower, self._upper, self._labels, self._row_kinds, self._weak

    def with_bounds(self, lower: ArrayLike | None = None, upper: ArrayLike | None = None) -> AffineSet:
        """The same rows with other bounds ``(..., m)``: the way to write "A is fixed, b depends on the input".

        A bound that is left out stays; an equality takes whichever is given for both. Sides that are infinite in this
        set must stay so: the numbers of this set say which sides there are, and are otherwise of no account. What all
        samples share is scaled, recognised and factorised once for a batch.

        >>> demand = AffineSet.equality([[1.0, 1.0, 1.0]], [0.0], names=["demand"]) & AffineSet.box(0.0, 1.0, dim=3)
        >>> demand.with_bounds(upper=torch.rand(5, 4))
        AffineSet(4 rows in R^3, batch (5,))
        """
        typed = next((t.dtype for t in (lower, upper) if isinstance(t, Tensor) and t.is_floating_point()), None)
        old, kinds = self.to(typed) if self._weak and typed is not None else self, self._row_kinds
        low, high = old.check_bounds(old.lower if lower is None else lower, old.upper if upper is None else upper)
        if EQUAL in kinds and (lower is None) != (upper is None):
            equal = is_kind(kinds, EQUAL, old.device)
            low, high = (torch.where(equal, high, low), high) if lower is None else (low, torch.where(equal, low, high))
        if kinds != BOTH * old.m:
            _check_kinds(low, high, old)
        return self._build(old.A, low, high, self._labels, kinds, old.weak, old.metric, old.softness)

    def to_dense(self) -> AffineSet:
        """The same set with `A` in full, whatever its size."""
        return self._build(self._A.to_dense(), *self._parts()[1:], self._metric, self._softness)

    def __deepcopy__(self, memo: dict) -> AffineSet:
        A, lower, upper = (sparse.copy(t) for t in (self._A, self._lower, self._upper))
        metric = None if self._metric is None else sparse.copy(self._metric)
        softness = None if self._softness is None else self._softness.map(sparse.copy)
        return self._build(A, lower, upper, self._labels, self._row_kinds, self._weak, metric, softness)

    def pin_memory(self, device: Any = None) -> AffineSet:
        """The same set in page-locked memory, as ``DataLoader(..., pin_memory=True)`` asks for."""
        given = () if device is None else (device,)
        A, lower, upper = (t.pin_memory(*given) for t in (self._A, self._lower, self._upper))
        metric = None if self._metric is None else self._metric.pin_memory(*given)
        softness = None if self._softness is None else self._softness.map(lambda t: t.pin_memory(*given))
        return self._build(A, lower, upper, self._labels, self._row_kinds, self._weak, metric, softness)

    def expand(self, batch: torch.Size) -> AffineSet:
        """The same set for a batch of this shape: rows of a part get its axes, rows of all stay as they are."""
        if self._A.ndim == 2 or self._A.shape[:-2] == batch:
            return self
        A = self._A.expand(*batch, self.m, self.n)
        return self._build(A, *self._parts()[1:], self._metric, self._softness)

    def check_bounds(self, lower: ArrayLike, upper: ArrayLike) -> tuple[Tensor, Tensor]:
        """Other bounds for the same rows as tensors; shapes and number types are checked."""
        parts, _ = _as_tensors(A=self._A, lower=lower, upper=upper)
        return tuple(_bound(parts[side], self._A, side) for side in ("lower", "upper"))  # pyright: ignore

    def __getitem__(self, index: Any) -> AffineSet:
        """The sets at these places of the batch; a tensor that the whole batch shares stays shared."""
        batch = self.batch_shape
        if not batch:
            raise ConstraintError("This set has no batch axes to index.")

        def pick(t: Tensor, core: int) -> Tensor:
            shared = t.ndim == core
            return t if shared else t.expand(*batch, *t.shape[t.ndim - core :])[index]

        A, lower, upper = pick(self._A, 2), pick(self._lower, 1), pick(self._upper, 1)
        metric = None if self._metric is None else pick(self._metric, 2)
        softness = None if self._softness is None else self._softness.map(lambda t: pick(t, 1))
        return self._build(A, lower, upper, self._labels, self._row_kinds, self._weak, metric, softness)

    # ------------------------------------------------------------------------------------------------ measuring

    def violation(self, y: ArrayLike) -> Tensor:
        r"""How far each row is broken, $\max(A y - upper,\; lower - A y,\; 0)$, ``(..., m)``, in the user's units."""
        here, point = self._facing(y)
        value = sparse.product(here.A, point)
        return torch.maximum(value - here.upper, here.lower - value).clamp_min(0)

    def contains(self, y: ArrayLike) -> Tensor:
        """Whether `y` is in the set up to rounding, ``(...)``: within the tolerance that the layer promises."""
        here, point = self._facing(y)
        value = sparse.product(here.A, point)
        row = sparse.row_sizes(here.A)
        size = 2 * row * point.abs().amax(-1, keepdim=True) if self.n else 0 * row
        share = tolerance.feasibility(here.dtype, self.n)
        above = value - here.upper - share * here.upper.abs()
        below = here.lower - value - share * here.lower.abs()
        return (torch.maximum(above, below) <= share * size + tolerance.underflow(here.dtype)).all(-1)

    def _facing(self, y: ArrayLike) -> tuple[AffineSet, Tensor]:
        """The set and the point in one number type."""
        point = y if isinstance(y, Tensor) else _read(y).to(self.dtype).to(self.device)
        if point.ndim == 0 or point.shape[-1] != self.n:
            raise ConstraintError(f"y must have shape (..., {self.n}), got {tuple(point.shape)}.")
        try:
            joint_shape(point.shape[:-1], self.batch_shape)
        except RuntimeError:
            raise ConstraintError(
                f"The batch axes of y {tuple(point.shape[:-1])} and of the set {tuple(self.batch_shape)} "
                "do not broadcast."
            ) from None
        if not point.is_floating_point():
            raise DtypeError(f"y is {point.dtype}; a point needs float32 or float64: write y.to({self.dtype}).")
        return self.like(point, "y"), point

    def like(self, point: Tensor, name: str) -> AffineSet:
        """This set in the number type and on the device of `point`, if that needs no rounding the user did not ask for.

        A set written in lists and scalars takes any type; data that came with a type are never cast behind the
        user's back.
        """
        if point.device != self.device:
            if not self._weak:
                raise ConstraintError(
                    f"{name} is on {point.device}, the constraints are on {self.device}: write set.to({name}.device)."
                )
            return self.to(point.device).like(point, name)
        if point.dtype == self.dtype:
            return self
        if point.dtype not in (torch.float32, torch.float64):
            raise DtypeError(
                f"{name} is {point.dtype}; the layer works in float32 or float64: write {name}.float() "
                "(and keep the layer outside of half-precision code)."
            )
        if not self._weak:
            raise DtypeError(
                f"{name} is {point.dtype}, the constraints are {self.dtype}: write set.to({point.dtype}) "
                f"or {name}.to({self.dtype})."
            )
        return self.to(point.dtype)


# ---------------------------------------------------------------------------------------------------- reading input


def _as_tensors(**given: ArrayLike | None) -> tuple[dict[str, Tensor | None], bool]:
    """All arguments as tensors of one floating type, and whether that type was merely assumed ("weak")."""
    tensors: dict[str, Tensor | None] = {}
    strong: dict[str, torch.dtype] = {}
    for name, value in given.items():
        if value is None:
            tensors[name] = None
            continue
        typed = isinstance(value, Tensor | np.ndarray) or _holds_tensor(value)
        try:
            tensor = value if isinstance(value, Tensor) else _read(value)
        except (TypeError, ValueError) as error:
            raise ConstraintError(f"{name} cannot be read as an array of numbers: {error}") from None
        if tensor.is_complex() or tensor.dtype in (torch.float16, torch.bfloat16):
            raise DtypeError(f"{name} is {tensor.dtype}; constraints need float32 or float64: write {name}.float().")
        if tensor.layout != torch.strided:
            tensor = sparse.store(tensor) if name in ("A", "C") else tensor.to_dense()
        tensors[name] = tensor
        if typed and tensor.is_floating_point():
            strong[name] = tensor.dtype
    if len(set(strong.values())) > 1:
        types = ", ".join(f"{name} is {dtype}" for name, dtype in strong.items())
        raise DtypeError(f"All parts of a constraint must share one number type, got {types}.")
    dtype = next(iter(strong.values()), torch.float64)
    devices = {t.device for t in tensors.values() if t is not None and t.ndim}
    if len(devices) > 1:
        raise ConstraintError(f"All parts of a constraint must be on one device, got {sorted(map(str, devices))}.")
    device = next(iter(devices), None)
    return {k: None if t is None else t.to(dtype=dtype, device=device) for k, t in tensors.items()}, not strong


def _read(value: Any) -> Tensor:
    """An array is copied with its type; lists and scalars are read in double precision, tensors in lists stacked."""
    if isinstance(value, np.ndarray):
        return torch.tensor(value)
    if isinstance(value, Sequence) and _holds_tensor(value):
        parts = [v if isinstance(v, Tensor) else _read(v) for v in value]
        typed = next((p.dtype for p, v in zip(parts, value, strict=True) if _holds_tensor(v)), torch.float64)
        return torch.stack(torch.broadcast_tensors(*(p.to(typed) for p in parts)))
    return torch.as_tensor(value, dtype=torch.float64)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return isinstance(value, Tensor)
    return any(_holds_tensor(v) for v in value)


def _read_rows(rows: ArrayLike, bound: ArrayLike, *names: str) -> tuple[Tensor, Tensor, bool]:
    """Rows and their right side as tensors, and whether their number type was merely assumed."""
    parts, weak = _as_tensors(**{names[0]: rows, names[1]: bound})
    matrix = _matrix(parts[names[0]], names[0])
    return matrix, _bound(parts[names[1]], matrix, "upper"), weak


def _matrix(rows: Tensor | None, name: str) -> Tensor:
    if rows is None or rows.ndim < 2:
        shape = None if rows is None else tuple(rows.shape)
        raise ConstraintError(f"{name} must have shape (..., m, n), got {shape}. A single row a is written [a].")
    return rows


def _bound(bound: Tensor | None, A: Tensor, side: str) -> Tensor:
    """A bound as ``(..., m)``; a scalar is repeated for every row, a missing one is infinite."""
    m = A.shape[-2]
    if bound is None:
        return torch.full((m,), -math.inf if side == "lower" else math.inf, dtype=A.dtype, device=A.device)
    if bound.ndim == 0:
        return bound.expand(m)
    if bound.shape[-1] != m:
        raise ConstraintError(
            f"The {side} bound must have shape (..., {m}), one entry for each row of A {tuple(A.shape)}, "
            f"got {tuple(bound.shape)}. A trailing axis of size 1 is removed with .squeeze(-1)."
        )
    batch, axes = bound.shape[:-1], A.shape[:-2]
    if axes and len(batch) > len(axes):
        raise ConstraintError(
            f"The {side} bound {tuple(bound.shape)} has more batch axes than A {tuple(A.shape)}: "
            "give A the same leading axes (A.unsqueeze or A.expand) if that is meant."
        )
    try:
        joint_shape(batch, axes)
    except RuntimeError:
        raise ConstraintError(
            f"The batch axes of the {side} bound {tuple(bound.shape)} and of A {tuple(A.shape)} do not broadcast."
        ) from None
    return bound


_KIND_OF = bytes.maketrans(bytes(range(5)), "".join((FREE, UPPER, LOWER, BOTH, EQUAL)).encode())


def _inspect_kinds(lower: Tensor, upper: Tensor) -> str:
    """The kinds of the rows from their bounds: a side counts if it can bind in at least one sample.

    Every side counts while the numbers cannot be looked at.
    """
    m = lower.shape[-1]
    if is_compiling() or not all(is_concrete(t) for t in (lower, upper)):
        return BOTH * m
    with torch.no_grad():
        lower, upper = (torch.atleast_2d(t) for t in torch.broadcast_tensors(lower, upper))
        axes = tuple(range(lower.ndim - 1))
        below = ~(lower == -math.inf).all(axes)
        above = ~(upper == math.inf).all(axes)
        # An equal infinite pair is no equality but a row that can never hold; it stays two-sided.
        equal = ((lower == upper) & lower.isfinite()).all(axes)
        code = torch.where(equal, 4, below.byte() * 2 + above.byte()).to(torch.uint8)
    return bytes(code.cpu().numpy()).translate(_KIND_OF).decode()


@remember
def is_kind(row_kinds: str, kinds: str, device: torch.device) -> Tensor:
    """Which rows are of one of these kinds, ``(m,)``."""
    return torch.tensor([kind in kinds for kind in row_kinds], dtype=torch.bool, device=device)


def _check_kinds(lower: Tensor, upper: Tensor, old: AffineSet) -> None:
    """Refuse bounds on sides that the set does not have."""
    if is_compiling() or not (is_concrete(lower) and is_concrete(upper)) or old.m == 0:
        return
    kinds, device = old.row_kinds, old.device
    with torch.no_grad():
        wrong = (is_kind(kinds, UPPER + FREE, device) & (lower > -math.inf)).long()
        wrong = wrong + 2 * (is_kind(kinds, LOWER + FREE, device) & (upper < math.inf)).long()
        wrong = wrong + 4 * (is_kind(kinds, EQUAL, device) & (lower != upper)).long()
        if not wrong.any():
            return
        place = wrong.reshape(-1, old.m).amax(0)
    row = int(place.nonzero()[0])
    what = {1: "a lower bound", 2: "an upper bound", 3: "both bounds", 4: "two different bounds"}[int(place[row])]
    raise ConstraintError(
        f"{old.names[row]} was prepared as {kinds[row]!r} and got {what}: prepare a set that has both sides."
    )


def row_names(labels: Labels, m: int) -> tuple[str, ...]:
    """Names of the m rows in messages: their label, or their place."""
    return tuple(f"row {i}" if label is None else label for i, label in enumerate(labels or (None,) * m))


def joint_shape(*shapes: torch.Size) -> torch.Size:
    """`torch.broadcast_shapes`, which takes longer than a small projection, only where shapes differ."""
    first = next((shape for shape in shapes if shape), torch.Size(()))
    if not is_compiling() and all(shape == first for shape in shapes if shape):
        return first
    return torch.broadcast_shapes(*shapes)


def _meet(first: AffineSet, second: AffineSet) -> tuple[AffineSet, AffineSet]:
    """Both sets in one number type and on one device; what was merely assumed gives way."""
    if first.device != second.device and (first.weak or second.weak):
        first, second = (first.to(second.device), second) if first.weak else (first, second.to(first.device))
    if first.device != second.device:
        raise ConstraintError(f"Both sets of `&` must be on one device, got {first.device} and {second.device}.")
    if first.dtype == second.dtype:
        return first, second
    if first._weak:
        return first.to(second.dtype), second
    if second._weak:
        return first, second.to(first.dtype)
    raise DtypeError(f"Both sets of `&` must share one number type, got {first.dtype} and {second.dtype}.")


def _stack_bounds(a: Tensor, b: Tensor) -> Tensor:
    batch = joint_shape(a.shape[:-1], b.shape[:-1])
    return torch.cat([a.expand(*batch, a.shape[-1]), b.expand(*batch, b.shape[-1])], -1)


def _join_softness(first: AffineSet, second: AffineSet) -> Softness | None:
    """Which rows of an intersection may give way."""
    if first.softness is None and second.softness is None:
        return None
    parts = [s.softness or Softness(HARD * s.m) for s in (first, second)]
    weights = [part.weight for part in parts if part.weight is not None]
    weight = _stack_bounds(*weights) if len(weights) == 2 else weights[0] if weights else None
    return Softness(parts[0].kinds + parts[1].kinds, weight)


# ---------------------------------------------------------------------------------------------------- in a dataset


def _collate(batch: Sequence[AffineSet], **_: Any) -> AffineSet:
    """Make one set with a batch axis in front of sets of equal shape, as `torch.utils.data.default_collate` does.

    A name that all give to a row is kept. A side of a row can bind if it can in one of the sets.
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
    metrics = [s.metric for s in sets]
    if any(t is None for t in metrics) != all(t is None for t in metrics):
        raise ConstraintError("All sets of a batch must have a metric, or none.")
    shape = torch.broadcast_shapes(*(t.shape for t in metrics if t is not None))
    metric = torch.stack([t.expand(shape) for t in metrics if t is not None]) if metrics[0] is not None else None
    softness = sets[0].softness
    if any((s.softness and s.softness.kinds) != (softness and softness.kinds) for s in sets):
        raise ConstraintError("All sets of a batch must have the same soft rows.")
    if softness is not None and softness.weight is not None:
        weights = [s.softness.weight for s in sets if s.softness is not None and s.softness.weight is not None]
        shape = torch.broadcast_shapes(*(t.shape for t in weights))
        softness = Softness(softness.kinds, torch.stack([t.expand(shape) for t in weights]))
    labels = [s.labels or (None,) * s.m for s in sets]
    names = [given[0] if len(set(given)) == 1 else None for given in zip(*labels, strict=True)]
    kinds = "".join(map(_join_kinds, zip(*(s.row_kinds for s in sets), strict=True)))
    known = names if any(name is not None for name in names) else None
    return AffineSet._build(parts[0], parts[1], parts[2], known, kinds, all(s.weak for s in sets), metric, softness)


def _join_kinds(kinds: Sequence[str]) -> str:
    """The kind of a row that has one of these kinds in every sample."""
    if set(kinds) == {EQUAL}:
        return EQUAL
    below, above = (any(kind in sides + BOTH + EQUAL for kind in kinds) for sides in (LOWER, UPPER))
    return (FREE, UPPER, LOWER, BOTH)[2 * below + above]


# The manual of `default_collate` says to add a type to this map, which has no public address.
getattr(sys.modules[default_collate.__module__], "default_collate_fn_map", {})[AffineSet] = _collate
