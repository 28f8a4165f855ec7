"""Messages about samples without an answer: NaN or infinite data, and empty sets with their proof.

Farkas' lemma: if numbers ``μ_i`` (positive: for the upper bound of row ``i``, negative: for the lower) make the left
side of

    Σ μ_i a_i y  <=  Σ μ_i b_i,    b_i the bound that the sign of μ_i selects,

vanish for every ``y`` while the right side is negative, then no ``y`` satisfies all rows. The kernel finds such numbers
and checks both sums with bounds on their own rounding. Where the left side is not exactly zero but ``r y``, no point
with ``|y|_inf < |gap| / |r|_1`` satisfies the rows: a sample is INFEASIBLE only if that radius is a million times the
size of its data (`tolerance.EMPTY`, with an exception for float32) or more.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from caffnet._kernel import native
from caffnet._solve import sparse
from caffnet._solve.problem import Answer, Options, Problem, Status, is_diagonal
from caffnet.constraints import EQUAL, is_kind
from caffnet.errors import ConstraintError, InfeasibleError

_EXPLAINED = 5  # samples in a message
_NAMED = 10  # rows of one conflict


@dataclasses.dataclass(frozen=True)
class Conflict:
    """Rows that exclude each other: as few as possible, those with the largest multiplier first.

    Attributes:
        rows: their indices.
        names: their labels.
        multipliers: one per row; positive for its upper bound, negative for its lower; ``Σ μ_i a_i = 0`` and
            ``Σ |μ_i| = 1``.
        gap: ``Σ μ_i b_i``, negative: by how much the weighted rows miss each other.
        radius: no point with ``|y|_inf`` below it satisfies the rows; infinite if ``Σ μ_i a_i`` is exactly zero.
        proven: both facts hold in exact arithmetic.
    """

    rows: tuple[int, ...]
    names: tuple[str, ...]
    multipliers: tuple[float, ...]
    gap: float
    radius: float
    proven: bool

    def __str__(self) -> str:
        if not self.rows:
            return "the nearest point is beyond the largest number of the number type"
        if len(self.rows) == 2 and self.rows[0] == self.rows[1]:
            return f"{self.names[0]}: the lower bound is {-2 * self.gap:.4g} above the upper bound"
        parts = [
            f"{name} ({'upper' if mu > 0 else 'lower'} bound, multiplier {abs(mu):.4g})"
            for name, mu in zip(self.names, self.multipliers, strict=True)
        ]
        more = f", ... and {len(parts) - _NAMED} more rows" if len(parts) > _NAMED else ""
        return f"{', '.join(parts[:_NAMED])}{more}: together they miss by {-self.gap:.4g}"


def report(problem: Problem, answer: Answer, options: Options) -> None:
    """Raise for the samples without an answer.

    Raises:
        ConstraintError: data are NaN or infinite.
        InfeasibleError: no point satisfies the rows of a sample.
    """
    if (answer.status == Status.INVALID).any():
        raise _invalid(problem)
    lost = (answer.status == Status.INFEASIBLE).nonzero().squeeze(-1).tolist()
    samples = [sample_index(i, problem.batch_shape) for i in lost]
    conflicts = [explain(problem, options, i) for i in lost[:_EXPLAINED]]
    alike: dict[str, list[tuple[int, ...]]] = {}  # samples that share a set have one conflict
    for index, conflict in zip(samples, conflicts, strict=False):
        alike.setdefault(str(conflict), []).append(index)
    lines = [f"  {_places(indices)}{conflict}" for conflict, indices in alike.items()]
    left = len(samples) - len(conflicts)
    more = f"\n  ... and {left} more {'sample' if left == 1 else 'samples'}" if left else ""
    raise InfeasibleError(
        f"{_rank()}No point satisfies the constraints of {len(samples)} of {problem.f.shape[0]} samples:\n"
        + "\n".join(lines)
        + more
        + '\nRelax one of the named rows, or pass on_infeasible="nearest" (least violation) or "nan".',
        samples,
        conflicts,
    )


def explain(problem: Problem, options: Options, sample: int) -> Conflict:
    """The rows in conflict in one infeasible sample."""
    multipliers, gap, radius = native.conflict(problem, options, sample)
    weights = multipliers.tolist()
    rows = sorted((i for i, mu in enumerate(weights) if mu), key=lambda i: -abs(weights[i]))
    if not rows:  # the rows ask for numbers beyond the largest of the user's type
        return Conflict((), (), (), 0.0, 0.0, False)
    lower, upper = (t if t.ndim == 1 else t[sample] for t in (problem.lower, problem.upper))
    if len(rows) == 1:
        i = rows[0]
        low, high = float(lower[i]), float(upper[i])
        if low > high and math.isfinite(low) and math.isfinite(high):  # its own bounds exclude each other
            return Conflict((i, i), (problem.names[i],) * 2, (0.5, -0.5), (high - low) / 2, radius, True)
        sign = 1.0 if high < 0 else -1.0
        return Conflict((i,), (problem.names[i],), (sign,), high if sign > 0 else -low, radius, True)
    total = math.fsum(abs(weights[i]) for i in rows)
    return Conflict(
        tuple(rows),
        tuple(problem.names[i] for i in rows),
        tuple(weights[i] / total for i in rows),
        min(gap / total if total else gap, -math.ulp(0.0)),  # never rounded to 0
        radius,
        radius > 0,
    )


def _places(indices: list[tuple[int, ...]]) -> str:
    """Name samples at the beginning of a line; a problem without batch axes is a sample without a place."""
    if not indices[0]:
        return ""
    return f"sample{'s' * (len(indices) > 1)} {', '.join(map(str, indices))}: "


def _rank() -> str:
    """Return the rank of this process as a prefix of messages, as other processes only see that it has ended."""
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    return f"rank {torch.distributed.get_rank()}: " if several else ""


def _invalid(p: Problem) -> ConstraintError:
    """The error for NaN or infinite data, with the place of the first."""
    equality = is_kind(p.row_kinds, EQUAL, p.upper.device)
    bad: dict[str, Tensor] = {
        "f": ~p.f.isfinite(),
        "A": ~sparse.numbers(p.A).isfinite(),
        "lower": p.lower.isnan(),
        "upper": p.upper.isnan() | (p.upper.isinf() & equality),
    }
    if p.w is not None:
        bad["w"] = ~p.w.isfinite() | ~(p.f + p.w).isfinite()
    if p.metric is not None:
        bad["metric"] = ~p.metric.isfinite()
    name, mask = next(((name, mask) for name, mask in bad.items() if mask.any()), ("", None))
    if mask is None and sparse.is_sparse(p.A):
        return ConstraintError(
            f"{_rank()}The search on sparse rows did not end for some samples: their sets are empty or thin. "
            "Relax the bounds, or write set.to_dense() for the method that decides every set, if its size permits."
        )
    if mask is None:
        return _indefinite(p)
    place = mask.nonzero()[0].tolist()
    number = (sparse.numbers(p.A) if name == "A" else getattr(p, name))[tuple(place)].item()
    if name == "A" and sparse.is_sparse(p.A):
        place = sparse.place_of(p.A, place[0])
    what = name
    if p.w is not None and name == "w" and math.isfinite(number):
        what, number = "f + w", float((p.f + p.w)[tuple(place)])
    return ConstraintError(
        f"{_rank()}{what} must be finite, got {number} {_where(p, name, place)}. "
        'Find out where it comes from, or pass on_infeasible="nan" to mark such samples INVALID and continue.'
    )


def _indefinite(p: Problem) -> ConstraintError:
    """The error for a metric that is not positive definite, with its smallest eigenvalue."""
    assert p.metric is not None
    least = p.metric[..., 0, :].amin(-1) if is_diagonal(p.metric) else torch.linalg.eigvalsh(p.metric)[..., 0]
    sample = int(least.argmin())
    whose = f"at sample {sample_index(sample, p.batch_shape)}" if least.ndim else "at all samples"
    return ConstraintError(
        f"{_rank()}The metric (the weights of soft rows are part of it) must be positive definite; its smallest "
        f"eigenvalue {whose} is {float(least.reshape(-1)[sample]):.4g}. Add a multiple of the identity, or "
        "find out why it is singular."
    )


def _where(p: Problem, name: str, place: Sequence[int]) -> str:
    """Name an entry by the indices of the user."""
    core = place[-2:] if name in ("A", "metric") else place[-1:]
    row = f" ({p.names[core[0]]})" if name in ("A", "lower", "upper") else ""
    sample = sample_index(place[0], p.batch_shape) if len(place) > len(core) else ()
    return f"at {name}[{', '.join(map(str, (*sample, *core)))}]{row}"


def sample_index(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The place of a sample in the user's batch axes."""
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))
