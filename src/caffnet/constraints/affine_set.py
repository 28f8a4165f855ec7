"""The set ``S = {y : lower <= A y <= upper}``.

All constraints have one form: an equality has ``lower == upper``, a one-sided row has an infinite side, a box
is ``A = I``. A set is plain immutable data. It may have leading batch axes (one set per sample), and an
input-dependent constraint is any function ``x -> AffineSet``.

This file has no projection: it only stores sets and measures violations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from caffnet import tolerance
from caffnet._solve import sparse
from caffnet._solve.tracing import is_compiling, is_concrete
from caffnet.constraints.reading import (
    ArrayLike,
    as_tensors,
    holds_tensor,
    read_array,
    read_matrix,
    read_rows,
    read_sides,
)
from caffnet.constraints.rows import (
    BOTH,
    EQUAL,
    FREE,
    LOWER,
    UPPER,
    Labels,
    check_kinds,
    inspect_kinds,
    is_kind,
    read_labels,
    read_labels_again,
    row_names,
)
from caffnet.constraints.shapes import NO_AXES, joint_axes, joint_shape, stack_bounds
from caffnet.constraints.softness import HARD, SOFT, SOFT_IF_NEAREST, WEIGHTED, Softness, join_softness
from caffnet.errors import ConstraintError, DtypeError

_KINDS = EQUAL + UPPER + LOWER + BOTH + FREE


class AffineSet:
    r"""The affine set $\{y \in \mathbb{R}^n : lower \le A y \le upper\}$.

    Args:
        A: the rows, ``(..., m, n)``.
        lower: lower bounds, ``(..., m)`` or a scalar; ``None`` or ``-inf`` means no bound.
        upper: upper bounds, ``(..., m)`` or a scalar; ``None`` or ``+inf`` means no bound.
        names: one label per row, used in messages.

    Tensors (sparse ones too), numpy arrays, nested lists and scalars are accepted. Tensors and floating-point arrays
    keep their number type (and tensors their gradient); lists, scalars and integers take the type of the tensors that
    they are combined with. Tensors are not copied: do not change them in place afterwards. A large sparse `A` stays
    sparse, and so does the identity of a large box: memory and time grow with the number of entries.

    `torch.utils.data.default_collate` stacks the sets of a dataset, if they have equal shapes, to one set with a batch
    axis.

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
        parts, weak = as_tensors(A=A, lower=lower, upper=upper)
        rows = read_matrix(parts["A"], "A")
        lower, upper = read_sides(parts["lower"], parts["upper"], rows)
        self._fill(rows, lower, upper, read_labels(names, rows.shape[-2]), None, weak)

    def _fill(
        self,
        A: Tensor,
        lower: Tensor,
        upper: Tensor,
        labels: Labels,
        row_kinds: str | None,
        weak: bool,
        metric: Tensor | None = None,
        softness: Softness | None = None,
    ) -> None:
        self._A, self._lower, self._upper, self._labels = A, lower, upper, labels
        self._row_kinds = inspect_kinds(lower, upper) if row_kinds is None else row_kinds
        self._weak, self._metric, self._softness = weak, metric, softness

    @classmethod
    def _build(
        cls,
        A: Tensor,
        lower: Tensor,
        upper: Tensor,
        labels: Labels,
        row_kinds: str | None,
        weak: bool,
        metric: Tensor | None = None,
        softness: Softness | None = None,
    ) -> AffineSet:
        """Build a set from tensors that have been checked."""
        built = cls.__new__(cls)
        built._fill(A, lower, upper, labels, row_kinds, weak, metric, softness)
        return built

    @classmethod
    def inequality(cls, A: ArrayLike, b: ArrayLike, names: Sequence[str] | None = None) -> AffineSet:
        r"""$\{y : A y \le b\}$, with A ``(..., m, n)`` and b ``(..., m)``."""
        rows, bound, weak = read_rows(A, b, "A", "b")
        below = torch.full((rows.shape[-2],), -math.inf, dtype=rows.dtype, device=rows.device)
        labels = read_labels(names, rows.shape[-2])
        return cls._build(rows, below, bound, labels, UPPER * rows.shape[-2], weak)

    @classmethod
    def equality(cls, C: ArrayLike, d: ArrayLike, names: Sequence[str] | None = None) -> AffineSet:
        r"""$\{y : C y = d\}$, with C ``(..., m, n)`` and d ``(..., m)``. Each equality stays one row."""
        if d is None:
            raise ConstraintError("d is missing: an equality C y = d needs its right side.")
        rows, bound, weak = read_rows(C, d, "C", "d")
        labels = read_labels(names, rows.shape[-2])
        return cls._build(rows, bound, bound, labels, EQUAL * rows.shape[-2], weak)

    @classmethod
    def box(
        cls,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
        dim: int | None = None,
        names: Sequence[str] | None = None,
    ) -> AffineSet:
        r"""$\{y : lower \le y \le upper\}$; ``dim`` is needed when both bounds are scalars."""
        parts, weak = as_tensors(lower=lower, upper=upper)
        given = [bound for bound in parts.values() if bound is not None]
        if not given:
            raise ConstraintError("A box needs a lower or an upper bound, got neither.")
        sizes = {bound.shape[-1] for bound in given if bound.ndim}
        if dim is not None:
            if isinstance(dim, bool) or not isinstance(dim, int | np.integer | torch.SymInt) or dim < 0:
                hint = ": names are passed as names=" if isinstance(dim, list | tuple | str) else ""
                raise ConstraintError(f"dim must be the number of outputs of the box, got {dim!r}{hint}.")
            sizes.add(dim)
        if len(sizes) != 1:
            hint = "write box(lower, upper, dim=n)" if not sizes else f"the sizes {sorted(sizes)} disagree"
            sides = {"lower": lower, "upper": upper}.items()
            lone = [name for name, t in sides if isinstance(t, Tensor) and t.shape[-1:] == (1,)]
            if lone and len(sizes) == 2:
                write = f"{lone[0]}.expand(*{lone[0]}.shape[:-1], {max(sizes)})"
                hint += f"; one number for all outputs of a sample is written {write}"
            raise ConstraintError(f"A box must have one number of outputs: {hint}.")
        A = sparse.identity(sizes.pop(), given[0].dtype, given[0].device)
        low, high = read_sides(parts["lower"], parts["upper"], A)
        return cls._build(A, low, high, read_labels(names, A.shape[-2]), None, weak)

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
        *,
        weak: bool = False,
    ) -> AffineSet:
        """Build a set from the parts of another one, each passed under its name."""
        kinds = row_kinds if isinstance(row_kinds, str) else "".join(row_kinds)
        if len(kinds) != A.shape[-2] or kinds.strip(_KINDS):
            raise ConstraintError(f"row_kinds must be {A.shape[-2]} characters of '=<>B-', one per row, got {kinds!r}.")
        # A tuple mostly comes from an earlier set.
        read = read_labels_again if isinstance(labels, tuple) else read_labels
        return cls._build(A, lower, upper, read(labels, len(kinds)), kinds, weak, metric, softness)

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
        """The metric M of distances, ``(..., n, n)``, or ``(..., 1, n)`` if diagonal; None for Euclidean distances."""
        return self._metric

    @property
    def softness(self) -> Softness | None:
        """The soft rows and their weights; None if all rows are hard."""
        return self._softness

    @property
    def slacks(self) -> int:
        """The number of rows that give way at the price of a weight."""
        return 0 if self._softness is None else self._softness.kinds.count(WEIGHTED)

    @property
    def m(self) -> int:
        """The number of rows."""
        return len(self._row_kinds)

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
        """The device of the data."""
        return self._A.device

    @property
    def batch_shape(self) -> torch.Size:
        """The leading axes: one set per index. Empty for a set that all samples share."""
        axes = NO_AXES if self._metric is None else self._metric.shape[:-2]
        if self._softness is not None and self._softness.weight is not None:
            axes = joint_shape(axes, self._softness.weight.shape[:-1])
        if self._A.ndim == 2 and self._lower.ndim == 1 and self._upper.ndim == 1:
            return axes
        return joint_shape(self._A.shape[:-2], self._lower.shape[:-1], self._upper.shape[:-1], axes)

    @property
    def row_kinds(self) -> str:
        """The sides of each row that can bind, one character per row.

        ``"="`` equality, ``"<"`` upper bound, ``">"`` lower bound, ``"B"`` both, ``"-"`` none.
        """
        return self._row_kinds

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each row; for rows without a given name ``row 0``, ``row 1``, ... by position."""
        return row_names(self._labels, self.m)

    @property
    def labels(self) -> Labels:
        """The given names: None for a row without one, or for a set without any."""
        return self._labels

    @property
    def weak(self) -> bool:
        """True if the number type was assumed, not given: lists, scalars and integers can take any type."""
        return self._weak

    def __repr__(self) -> str:
        batch = f", batch {tuple(self.batch_shape)}" if self.batch_shape else ""
        return f"AffineSet({self.m} row{'' if self.m == 1 else 's'} in R^{self.n}{batch})"

    def __bool__(self) -> bool:
        """Refuse a truth value: `a and b` would keep the rows of b alone."""
        raise ConstraintError(
            "A set is neither true nor false: join two sets with `a & b`, not `a and b`; to ask whether there is one, "
            "write `set is not None`."
        )

    def __contains__(self, y: object) -> bool:
        """Refuse `y in set`, which Python would answer for all samples at once."""
        raise ConstraintError("Write set.contains(y): `y in set` would be one answer for all samples.")

    # ------------------------------------------------------------------------------------------------ new from old

    def __and__(self, other: AffineSet) -> AffineSet:
        """Return the intersection: the rows of both sets, with broadcast batch axes."""
        if not isinstance(other, AffineSet):
            return self.__rand__(other)
        if self.n != other.n:
            raise ConstraintError(
                f"Both sets of `&` must have the same outputs, got n={self.n} and n={other.n}: a row has a zero for "
                "every output that it does not use."
            )
        first, second = _meet(self, other)
        joint_axes("the first set", self.batch_shape, "the second", other.batch_shape)
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
        lower, upper = (stack_bounds(a, b) for a, b in ((first.lower, second.lower), (first.upper, second.upper)))
        labels = None
        if self._labels is not None or other._labels is not None:
            labels = (self._labels or (None,) * self.m) + (other._labels or (None,) * other.m)
        weak = self._weak and other._weak
        softness = None
        if first.softness is not None or second.softness is not None:
            softness = join_softness(*(s.softness or Softness(HARD * s.m) for s in (first, second)))
        return self._build(A, lower, upper, labels, self._row_kinds + other._row_kinds, weak, metric, softness)

    def __rand__(self, other: object) -> AffineSet:
        """Refuse a constraint function beside `&`, with what to write instead."""
        if callable(other):
            raise ConstraintError(
                f"Only sets are joined by `&`, got {type(other).__name__}: join them where the input is known, "
                "lambda x: fixed & constraint(x)."
            )
        return NotImplemented

    def to(self, *args: Any, **kwargs: Any) -> AffineSet:
        """Return the set in another dtype or on another device; arguments as in ``torch.Tensor.to``."""
        typed = "dtype" in kwargs or any(isinstance(arg, torch.dtype | Tensor) for arg in args)
        found = self._map(lambda t, _: t.to(*args, **kwargs), self._weak and not typed)
        if found.dtype not in (torch.float32, torch.float64):
            raise DtypeError(
                f"Sets are in float32 or float64, got to({found.dtype}): other number types cannot keep a constraint."
            )
        return found

    def _map(self, change: Callable[[Tensor, int], Tensor], weak: bool) -> AffineSet:
        """Return the set with a function applied to every tensor and the number of its axes in one sample."""
        A, lower, upper = change(self._A, 2), change(self._lower, 1), change(self._upper, 1)
        metric = None if self._metric is None else change(self._metric, 2)
        softness = None if self._softness is None else self._softness.map(lambda t: change(t, 1))
        return self._build(A, lower, upper, self._labels, self._row_kinds, weak, metric, softness)

    def with_metric(self, metric: ArrayLike, *, diagonal: bool | None = None) -> AffineSet:
        r"""The same set, in which the nearest point is the one with the least $\|y - f\|_M = \sqrt{(y-f)^T M (y-f)}$.

        Args:
            metric: M, positive definite, ``(..., n, n)``; only its symmetric part counts. Or its diagonal ``(..., n)``.
            diagonal: True if `metric` is the diagonal; None means True if it has one axis. One matrix that is far from
                symmetric is refused, as it may be one diagonal for each sample; False takes it.

        A constraint function returns its set with a metric: ``lambda x: set_at(x).with_metric(M(x))``.
        The closed form of a sub-constraint is then the point of its flat nearest to ``f + w`` in M; gradients reach M.

        >>> s = AffineSet.equality([[1.0, 1.0]], [0.0]).with_metric([3.0, 1.0])
        >>> from caffnet import project
        >>> project(torch.tensor([4.0, 0.0]), s).value  # the first output is three times as expensive
        tensor([ 3., -3.])
        """
        here, given = self._beside(metric, "metric")
        shape = tuple(given.shape)
        if given.ndim == 1 if diagonal is None else diagonal:
            given = given.unsqueeze(-2)
        if given.ndim < 2 or given.shape[-1] != self.n or given.shape[-2] not in (1, self.n):
            raise ConstraintError(
                f"The metric must have shape (..., {self.n}, {self.n}), or (..., {self.n}) for a diagonal (write "
                f"diagonal=True if that has batch axes), got {shape}."
            )
        if diagonal is None and len(shape) == 2 and self.n and not is_compiling() and is_concrete(given):
            turned = given.mT
            if (
                not torch.equal(given, turned)
                and (given - turned).abs().amax() > tolerance.ASYMMETRY * given.abs().amax()
            ):
                raise ConstraintError(
                    f"A metric of shape {shape} is a matrix, and this one is not symmetric: for one diagonal per "
                    "sample write diagonal=True; to use its symmetric part, (M + M.mT) / 2."
                )
        joint_axes("the metric", given.shape[:-2], "the set", self.batch_shape)
        return self._build(*here._parts(), given, here.softness)

    def _beside(self, data: ArrayLike, name: str) -> tuple[AffineSet, Tensor]:
        """Return this set and other data of it in one number type and on one device."""
        typed = isinstance(data, Tensor | np.ndarray) or holds_tensor(data)
        given = as_tensors(**{name: data})[0][name]
        if given is None:
            raise ConstraintError(f"The {name} is missing, got None: leave the call out for a set without one.")
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
        r"""Return the set with soft rows, which may give way; join it with hard rows by ``&``.

        Args:
            weight: None: the rows give way only where the whole set is empty. The largest violation, in their own
                units, is made as small as the hard rows allow, then the next largest, and so on; a row that can be
                kept is kept. A positive number or ``(..., m)``: the price of giving way. The answer minimises
                $\tfrac12 \|y - f\|^2 + \tfrac12 \sum_i weight_i \, slack_i^2$ over the hard rows, with $slack_i$ the
                violation of row i. Gradients reach the weight.
            when: with ``weight=None``, ``"nearest"`` makes the rows soft only if ``on_infeasible="nearest"`` is asked
                for; else they are hard, and an empty set raises or is NaN.

        An answer whose soft rows gave way has the status RELAXED, whatever `on_infeasible` is. `on_infeasible` applies
        if the hard rows exclude each other; soft rows are then ignored.

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
        joint_axes("the weight", given.shape[:-1], "the set", self.batch_shape)
        if not is_compiling() and is_concrete(given) and not ((given > 0) & (given < math.inf)).all():
            wrong = given[~((given > 0) & (given < math.inf))].flatten()[0].item()
            raise ConstraintError(
                f"weight must be positive and finite, got {wrong}: leave rows that never give way hard, and rows "
                "without a price out."
            )
        return self._build(*here._parts(), here.metric, Softness(WEIGHTED * self.m, given))

    def without_soft(self) -> AffineSet:
        """Return the set without its soft rows. Rows of ``soft(when="nearest")`` stay.

        >>> (AffineSet.box(0.0, 1.0, dim=2) & AffineSet.inequality([[1.0, 1.0]], [1.0]).soft()).without_soft()
        AffineSet(2 rows in R^2)
        """
        if self._softness is None or not set(self._softness.kinds) & {SOFT, WEIGHTED}:
            return self
        kept = [i for i, kind in enumerate(self._softness.kinds) if kind in (HARD, SOFT_IF_NEAREST)]
        A, lower, upper = self._A[..., kept, :], self._lower[..., kept], self._upper[..., kept]
        labels = None if self._labels is None else tuple(self._labels[i] for i in kept)
        kinds, soft = ("".join(text[i] for i in kept) for text in (self._row_kinds, self._softness.kinds))
        softness = Softness(soft) if SOFT_IF_NEAREST in soft else None
        return self._build(A, lower, upper, labels, kinds, self._weak, self._metric, softness)

    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Labels, str, bool]:
        return self._A, self._lower, self._upper, self._labels, self._row_kinds, self._weak

    def with_bounds(self, lower: ArrayLike | None = None, upper: ArrayLike | None = None) -> AffineSet:
        """Return the same rows with other bounds ``(..., m)``: for a fixed A and bounds that depend on the input.

        A bound that is left out stays as it is; for an equality, either bound sets both. Sides that are infinite in
        this set must stay infinite: its finite bounds only say which sides exist. A matrix that all samples share is
        scaled, recognised and factorised once per batch.

        >>> demand = AffineSet.equality([[1.0, 1.0, 1.0]], [0.0], names=["demand"]) & AffineSet.box(0.0, 1.0, dim=3)
        >>> demand.with_bounds(upper=torch.rand(5, 4))
        AffineSet(4 rows in R^3, batch (5,))
        """
        old, kinds = self, self._row_kinds
        if self._weak:  # it takes the number type of the bounds
            parts, assumed = as_tensors(lower=lower, upper=upper)
            one = next((t for t in parts.values() if t is not None), None)
            old = self if one is None or assumed else self.to(one.dtype)
        given = {"lower": old.lower if lower is None else lower, "upper": old.upper if upper is None else upper}
        parts, _ = as_tensors(A=old.A, **given)
        low, high = read_sides(parts["lower"], parts["upper"], old.A)
        if EQUAL in kinds and (lower is None) != (upper is None):
            equal = is_kind(kinds, EQUAL, old.device)
            low, high = (torch.where(equal, high, low), high) if lower is None else (low, torch.where(equal, low, high))
        if kinds != BOTH * old.m:
            check_kinds(low, high, kinds, self._labels)
        return self._build(old.A, low, high, self._labels, kinds, old.weak, old.metric, old.softness)

    def to_dense(self) -> AffineSet:
        """Return the set with all numbers of `A` stored, whatever its size."""
        return self._build(self._A.to_dense(), *self._parts()[1:], self._metric, self._softness)

    def __deepcopy__(self, memo: dict) -> AffineSet:
        return self._map(lambda t, _: t.detach().clone(), self._weak)  # `copy.deepcopy` does not know CSR

    def pin_memory(self, device: Any = None) -> AffineSet:
        """Return the set in page-locked memory, for ``DataLoader(..., pin_memory=True)``."""
        given = () if device is None else (device,)
        return self._map(lambda t, _: t.pin_memory(*given), self._weak)

    def __getitem__(self, index: Any) -> AffineSet:
        """Return the sets at an index of the batch; a tensor that the whole batch shares stays shared."""
        batch = self.batch_shape
        if not batch:
            raise ConstraintError("This set has no batch axes to index.")

        # The axes of a sample stay as they are, also behind `...`: an index with too many axes is an IndexError.
        places = index if isinstance(index, tuple) else (index,)
        if not any(place is ... for place in places):
            places = (*places, ...)

        def pick(t: Tensor, core: int) -> Tensor:
            shared = t.ndim == core
            return t if shared else t.expand(*batch, *t.shape[t.ndim - core :])[(*places, *core * (slice(None),))]

        return self._map(pick, self._weak)

    # ------------------------------------------------------------------------------------------------ measuring

    def violation(self, y: ArrayLike) -> Tensor:
        r"""The violation of each row, $\max(A y - upper,\; lower - A y,\; 0)$, ``(..., m)``, in the user's units."""
        here, point = self._facing(y)
        value = sparse.product(here.A, point)
        return torch.maximum(value - here.upper, here.lower - value).clamp_min(0)

    def contains(self, y: ArrayLike) -> Tensor:
        """Mask ``(...)``: True where `y` is in the set up to rounding, within the tolerance that the layer promises."""
        here, point = self._facing(y)
        value = sparse.product(here.A, point)
        size = sparse.sizes_at(here.A, point, 2 * sparse.row_sizes(here.A) * sparse.largest(point))
        share = tolerance.feasibility(here.dtype, self.n)
        above = value - here.upper - share * here.upper.abs()
        below = here.lower - value - share * here.lower.abs()
        return (torch.maximum(above, below) <= share * size + tolerance.underflow(here.dtype)).all(-1)

    def _facing(self, y: ArrayLike) -> tuple[AffineSet, Tensor]:
        """The set and the point in one number type."""
        point = y if isinstance(y, Tensor) else read_array(y, "y").to(self.dtype).to(self.device)
        if point.layout != torch.strided or point.is_nested:
            kind = "nested" if point.is_nested else "sparse"
            raise ConstraintError(f"y must be a dense tensor, got a {kind} one: write y.to_dense().")
        if point.ndim == 0 or point.shape[-1] != self.n:
            raise ConstraintError(f"y must have shape (..., {self.n}), got {tuple(point.shape)}.")
        joint_axes("y", point.shape[:-1], "the set", self.batch_shape)
        if not point.is_floating_point():
            raise DtypeError(f"y is {point.dtype}; a point needs float32 or float64: write y.to({self.dtype}).")
        return self.like(point, "y"), point

    def like(self, point: Tensor, name: str) -> AffineSet:
        """Return this set in the number type and on the device of `point`, if that needs no unexpected rounding.

        A set written in lists and scalars takes any type; data that have a number type are never converted silently.
        """
        A = self._A
        if point.dtype is A.dtype and point.device == A.device:
            return self
        if point.device != self.device:
            if not self._weak:
                raise ConstraintError(
                    f"{name} is on {point.device}, the constraints are on {self.device}: write set.to({name}.device)."
                )
            return self.to(point.device).like(point, name)
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


def in_place_of(given: object) -> str:
    """Say what to write in place of something that is not a set."""
    if isinstance(given, list | tuple) and any(isinstance(part, AffineSet) for part in given):
        return "Join sets with `&`, as in a & b."
    return "Write AffineSet.inequality(A, b), .equality(C, d) or .box(lower, upper)."


def _meet(first: AffineSet, second: AffineSet) -> tuple[AffineSet, AffineSet]:
    """Return both sets in one number type and on one device; only an assumed number type or device is converted."""
    if first.device != second.device and (first.weak or second.weak):
        first, second = (first.to(second.device), second) if first.weak else (first, second.to(first.device))
    if first.device != second.device:
        raise ConstraintError(
            f"Both sets of `&` must be on one device, got {first.device} and {second.device}: convert one, "
            "as in a & b.to(a.device)."
        )
    if first.dtype == second.dtype:
        return first, second
    if first._weak:
        return first.to(second.dtype), second
    if second._weak:
        return first, second.to(first.dtype)
    raise DtypeError(
        f"Both sets of `&` must share one number type, got {first.dtype} and {second.dtype}: convert one, "
        f"a.to({second.dtype}) & b or a & b.to({first.dtype})."
    )
