"""The constraint layer of C-DGM (Stoian et al., 2024): clamp one output after the other.

**Elimination.** Write every row as ``a y <= k``. To remove the last output of an order, Fourier and Motzkin add each
row p with a positive coefficient to each row q with a negative one, weighted so that the output cancels:

    a_p > 0, a_q < 0:    |a_q| (row p) + a_p (row q),    with the right side  |a_q| k_p + a_p k_q.

The resulting rows hold for the earlier outputs exactly when some value of the removed output exists. (The public code
omits the weight of ``k_p``, and so accepts values that leave no room for the next output.)

**Clamping.** In this order, each output is clamped between the largest lower and the smallest upper bound of its rows,
given the outputs already set. The bounds cannot cross, because the earlier outputs satisfy the eliminated rows.

**Rounding.** Terms that cancel in exact arithmetic leave noise in floating point, and a row with a coefficient of noise
is a bound at a random place. So every number has a bound of its error, which starts with the rounding of the data and
grows with every sum: a coefficient within its bound is zero. The bounds scale with the numbers and do not depend on
units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from caffnet import tolerance
from caffnet.constraints import AffineSet
from caffnet.errors import BudgetError, ConstraintError
from caffnet.methods.base import Guarantee, Method, Supports, matvec
from caffnet.methods.linear_programs import empty
from caffnet.methods.penalty import Penalty

#: The elimination computes in float64.
EPS = float(np.finfo(float).eps)


@dataclasses.dataclass(frozen=True)
class Row:
    """A row ``a y <= k``, as ``numbers = (a, k)``.

    Attributes:
        numbers: coefficients and right side, ``(n + 1,)``.
        error: a bound of the rounding error of each, ``(n + 1,)``.
        parents: the original rows that it was combined from.
    """

    numbers: np.ndarray
    error: np.ndarray
    parents: frozenset[int]


class CDGM(Method):
    r"""$y_i = \min(\max(f_i, lb_i(y_{<i})), ub_i(y_{<i}))$, output by output.

    Args:
        backbone: any module ``x -> f``.
        constraint: one `AffineSet` for all inputs; an equality counts as two inequalities.
        order: the order in which outputs are clamped: ``"given"`` for 0, 1, 2, ..., ``"random"``, or a list.
        seed: seed of the random order.
        max_rows: raise an error if the elimination, exponential in the worst case, makes more rows.
        penalty: the soft term, none in the paper.

    >>> limits = AffineSet.inequality([[1.0, -1.0], [1.0, 2.0]], [-4.0, 10.0])  # y1 - y0 >= 4,  -2 y1 - y0 >= -10
    >>> CDGM(nn.Identity(), limits)(torch.tensor([[2.0, 0.0]]))
    tensor([[0.6667, 4.6667]])
    """

    name = "cdgm"
    title = "C-DGM"
    guarantee = Guarantee.EXACT
    closed_form = True
    supports = Supports(input_dependent_b=False, input_dependent_A=False)

    def __init__(
        self,
        backbone: nn.Module,
        constraint: AffineSet,
        *,
        order: str | Sequence[int] = "given",
        seed: int = 0,
        max_rows: int = 20_000,
        penalty: Penalty | None = None,
    ):
        super().__init__(backbone, constraint, penalty=penalty)
        set = self.set_at()
        self.order = _read_order(order, set.n, seed)
        for i, (below, above) in bounds_by_output(set, self.order, max_rows).items():
            for side, (rows, right) in (("below", below), ("above", above)):
                for part, value in (("rows", rows), ("right", right)):
                    tensor = torch.as_tensor(value, dtype=self.A.dtype, device=self.A.device)
                    self.register_buffer(f"{side}_{part}_{i}", tensor)

    def enforce(self, f: Tensor, set: AffineSet) -> Tensor:
        """Clamp one output after the other."""
        y = torch.zeros_like(f)  # filled in the order; the outputs not yet set have coefficient zero
        for i in self.order:
            value = f[..., i]
            for side, clamp, tightest in (("below", torch.maximum, Tensor.amax), ("above", torch.minimum, Tensor.amin)):
                rows, right = self.get_buffer(f"{side}_rows_{i}"), self.get_buffer(f"{side}_right_{i}")
                if len(right):
                    value = clamp(value, tightest(right - matvec(rows, y), -1))
            y = y + value.unsqueeze(-1) * torch.eye(set.n, dtype=f.dtype, device=f.device)[i]
        return y


def bounds_by_output(
    set: AffineSet, order: Sequence[int], max_rows: int
) -> dict[int, tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]]:
    """Return for each output the rows ``c`` and right sides ``k`` of its bounds ``k - c y_earlier``."""
    A, lower, upper = (t.detach().double().cpu().numpy() for t in (set.A, set.lower, set.upper))
    if (lower == np.inf).any() or (upper == -np.inf).any():
        raise empty("a lower bound is +inf or an upper one -inf")
    above, below = np.isfinite(upper), np.isfinite(lower)
    numbers = np.vstack([np.c_[A, upper][above], -np.c_[A, lower][below]])
    share = tolerance.rank(set.dtype, set.n)  # relative rounding of the data
    pool = _reduced([_read_row(row, share, i) for i, row in enumerate(numbers)], share)
    bounds = {}
    for eliminated, i in enumerate(reversed(order), start=1):
        up = [row for row in pool if row.numbers[i] > 0]
        down = [row for row in pool if row.numbers[i] < 0]
        bounds[i] = tuple(_divided(side, i, set.n) for side in (down, up))
        pool = [row for row in pool if row.numbers[i] == 0]
        if len(up) * len(down) + len(pool) > max_rows:
            raise BudgetError(
                f"C-DGM's elimination of output {i} makes {len(up) * len(down) + len(pool)} rows, at most {max_rows} "
                "were allowed. Pass another order, a larger max_rows, or use METHODS['caffnet-ff'] instead."
            )
        for p, q in product(up, down):
            # Chernikov: a row combined from more original rows is implied by the others
            if len(p.parents | q.parents) <= eliminated + 1:
                pool.append(_eliminate(p, q, i))
        pool = _reduced(pool, share)
    return bounds


def _read_row(numbers: np.ndarray, share: float, i: int) -> Row:
    """Return a row of the data times a power of two, so that its largest coefficient is near one."""
    numbers = np.ldexp(numbers, -np.frexp(np.abs(numbers[:-1]).max(initial=0.0))[1])
    return Row(numbers, share * np.abs(numbers), frozenset([i]))


def _eliminate(p: Row, q: Row, i: int) -> Row:
    """Return the weighted sum of rows p and q in which output i cancels."""
    weight_p, weight_q = -q.numbers[i], p.numbers[i]
    numbers = weight_p * p.numbers + weight_q * q.numbers
    size_p, size_q = np.abs(p.numbers), np.abs(q.numbers)
    # the errors of the numbers and of the weights, and three roundings: two products and their sum
    error = weight_p * p.error + weight_q * q.error + q.error[i] * size_p + p.error[i] * size_q
    error += 2 * EPS * (weight_p * size_p + weight_q * size_q)
    noise = np.abs(numbers) <= error
    noise[i], noise[-1] = True, False
    return Row(np.where(noise, 0.0, numbers), np.where(noise, 0.0, error), p.parents | q.parents)


def _reduced(pool: list[Row], share: float) -> list[Row]:
    """Scale rows to largest coefficient one; keep the tightest of parallel rows; check rows of zeros and drop them."""
    tightest: dict[bytes, Row] = {}
    for row in pool:
        size = np.abs(row.numbers[:-1]).max()
        if size == 0:
            if row.numbers[-1] < -row.error[-1]:
                raise empty("Fourier-Motzkin elimination ends in 0 <= a negative number")
            continue
        numbers = row.numbers / size
        row = Row(numbers, row.error / size + EPS * np.abs(numbers), row.parents)
        # Coefficients that agree to their rounding fall together, or into two neighbours, and then both rows stay.
        fraction, exponent = np.frexp(numbers[:-1])
        key = np.round(fraction / share).tobytes() + exponent.tobytes()
        if key not in tightest or numbers[-1] < tightest[key].numbers[-1]:
            tightest[key] = row
    return list(tightest.values())


def _divided(rows: list[Row], i: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Each row solved for output i: coefficients of the other outputs and right side."""
    coefficients, right = np.zeros((len(rows), n)), np.zeros(len(rows))
    for place, row in enumerate(rows):
        *coefficients[place], right[place] = row.numbers / row.numbers[i]
        coefficients[place, i] = 0.0
    return coefficients, right


def _read_order(order: str | Sequence[int], n: int, seed: int) -> tuple[int, ...]:
    if order == "random":
        return tuple(torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist())
    listed = tuple(range(n)) if order == "given" else order
    if isinstance(listed, str) or sorted(listed) != list(range(n)):
        raise ConstraintError(f"order must be 'given', 'random' or a permutation of 0..{n - 1}, got {order!r}.")
    return tuple(listed)
