"""ACnet (Beucler et al., 2021): some outputs are predicted, the residual ones are solved from the equalities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from caffnet.constraints import EQUAL, AffineSet
from caffnet.methods.base import Guarantee, Method, Supports, numbers_only, unit_rows
from caffnet.methods.completion import Completion
from caffnet.methods.penalty import Penalty


class ACnet(Method):
    r"""The network predicts the direct outputs; the residual outputs solve $C_R y_R = d - C_D y_D$.

    The paper solves one row after the other, each for one residual output, which is this system when its rows are in
    triangular order; here any order works. The raw values of the residual outputs are not used.

    Args:
        backbone: any module ``x -> f``, all n outputs.
        constraint: equalities: an `AffineSet`, or any function ``x -> AffineSet``.
        residual: the outputs to solve for, one per equality. The choice is a hyper-parameter: their coefficients must
            be independent. None takes the largest pivots of a fixed set, or the last outputs of an input-dependent one.
        penalty: the soft term of the loss; none in the paper.

    >>> import torch
    >>> method = ACnet(nn.Identity(), AffineSet.equality([[1.0, 2.0]], [4.0]), residual=[0])
    >>> method(torch.tensor([[7.0, 1.0]]))
    tensor([[2., 1.]])
    """

    name = "acnet"
    title = "ACnet"
    guarantee = Guarantee.EXACT
    closed_form = True
    supports = Supports(inequality=False, more_rows=False, dependent_rows=False, empty_interior=False)

    def __init__(
        self,
        backbone: nn.Module,
        constraint: AffineSet | Callable[[Any], AffineSet],
        *,
        residual: Sequence[int] | None = None,
        penalty: Penalty | None = None,
    ):
        super().__init__(backbone, constraint, penalty=penalty)
        self.residual = None if residual is None else tuple(residual)
        if self.constraint is None:
            set = self.set_at()
            self.check_rank(set.A)
            chosen = self.residual is None and set.A.ndim == 2
            if chosen:
                self.residual = largest_pivots(set.A)
            self._split(set, check=not chosen)

    def _split(self, set: AffineSet, check: bool) -> Completion:
        residual = tuple(range(set.n - set.m, set.n)) if self.residual is None else self.residual
        if set.m > set.n:
            self.check_rank(set.A)
        if len(residual) != sum(side == EQUAL for side in set.row_kinds):
            self.refuse(f"{len(residual)} residual outputs for {set.m} equalities", "one residual output per equality")
        split = Completion(set, residual)
        if check and not bool(split.solvable().all()):
            self.refuse(
                f"the equalities cannot be solved for the outputs {list(residual)}",
                "residual outputs with independent coefficients",
                "other outputs as residual=[...], or METHODS['kkt_hpinn'] or METHODS['caffnet-ff']",
            )
        return split

    @numbers_only
    def enforce(self, f: Tensor, set: AffineSet) -> Tensor:
        """Keep the direct outputs, solve for the residual ones."""
        split = self._split(set, check=self.constraint is not None)  # a fixed set was checked when it came
        return split.complete(f[..., split.free])


def largest_pivots(C: Tensor) -> tuple[int, ...]:
    """One column per row of C ``(q, n)``, by elimination with complete pivoting in rows of length one."""
    table, rows, columns = unit_rows(C.detach().double()), list(range(C.shape[0])), []
    while rows:
        size = table[rows].abs()
        place = int(size.argmax())
        i, j = rows[place // C.shape[1]], place % C.shape[1]
        rows.remove(i)
        columns.append(j)
        for k in rows:
            table[k] -= table[k, j] / table[i, j] * table[i]
    return tuple(sorted(columns))
