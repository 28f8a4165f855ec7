"""DC3 (Donti, Rolnick and Kolter, 2021): complete the equalities, then correct the inequalities by descent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from caffnet.constraints import EQUAL, AffineSet
from caffnet.methods.base import Guarantee, Method, Supports, matvec, numbers_only, row_rank, signed_violation
from caffnet.methods.completion import Completion, outputs_to_solve_for
from caffnet.methods.penalty import Penalty


class DC3(Method):
    r"""Completion, then t steps of heavy-ball descent on $\|ReLU(G y - h)\|^2$ along $C y = d$.

    With ``y_D = C_D⁻¹ (d - C_F z)`` the inequalities read ``G_e z <= h_e``, ``G_e = G_F - G_D C_D⁻¹ C_F``. The descent

        grad = 2 G_eᵀ ReLU(G_e z - h_e),   Δ <- lr · (grad, -C_D⁻¹ C_F grad) + momentum · Δ,   y <- y - Δ

    moves the dependent outputs too, so the equalities stay solved. By the chain rule ``G_eᵀ r`` is the free part of
    ``Gᵀ r`` less ``C_Fᵀ C_D⁻ᵀ`` times its dependent part. All steps are unrolled in the graph.

    Args:
        backbone: any module ``x -> f``, all n outputs; with completion only the free ones are used.
        constraint: an `AffineSet`, or any function ``x -> AffineSet``; its equalities must be independent to be
            completed.
        completion: solve the equalities first. False descends on both residuals in the whole space.
        dependent: the outputs to solve for, one per equality; None chooses them (once, from the first rows given)
            by QR with column pivoting. (The published code draws them at random until ``|det C_D| >= 1e-4``, which
            does not end where few choices are solvable, or many rows make every determinant small.)
        steps: number of corrections in training.
        test_steps: largest number of corrections in evaluation.
        tolerance: evaluation stops early when no row is violated by more, in the units of the rows.
        lr: step size, for the squared size of the rows; published 1e-7 (1e-4 for power flow), HardNet's comparison uses
            1e-2.
        momentum: momentum of the heavy-ball descent.
        balance: without completion, the share of the equalities in the descended cost.
        penalty: published: ``10 (0.5 |ineq| + 0.5 |eq|)``.

    >>> method = DC3(nn.Identity(), AffineSet.inequality([[1.0, 1.0]], [1.0]), lr=0.1, test_steps=50).eval()
    >>> float(method.run(torch.tensor([[2.0, 1.0]])).y.sum()) < 1.001
    True
    """

    name = "dc3"
    title = "DC3"
    guarantee = Guarantee.ASYMPTOTIC
    closed_form = False
    supports = Supports()

    def __init__(
        self,
        backbone: nn.Module,
        constraint: AffineSet | Callable[[Any], AffineSet],
        *,
        completion: bool = True,
        dependent: Sequence[int] | None = None,
        steps: int = 10,
        test_steps: int = 10,
        tolerance: float = 1e-4,
        lr: float = 1e-7,
        momentum: float = 0.5,
        balance: float = 0.5,
        penalty: Penalty | None = Penalty(10.0, rows="norm", balance=0.5),  # noqa: B008  (immutable)
    ):
        super().__init__(backbone, constraint, penalty=penalty)
        self.completion, self.steps, self.test_steps, self.tolerance = completion, steps, test_steps, tolerance
        self.lr, self.momentum, self.balance = lr, momentum, balance
        self.dependent = None if dependent is None else tuple(dependent)
        if self.constraint is None and completion:
            split = self._split(self.set_at())
            if dependent is not None and not bool(split.solvable().all()):
                self._refuse_dependent()

    @numbers_only
    def enforce(self, f: Tensor, set: AffineSet) -> Tensor:
        """Complete, then correct."""
        split = self._split(set) if self.completion else None
        try:
            y = f if split is None else split.complete(f[..., split.free])
        except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]  (rows of x came later)
            self._refuse_dependent()
        delta = torch.zeros_like(y)
        for _ in range(self.steps if self.training else self.test_steps):
            if not self.training and bool((set.violation(y) <= self.tolerance).all()):
                break
            delta = self.lr * self._gradient(set, y, split) + self.momentum * delta
            y = y - delta
        return y

    def _refuse_dependent(self) -> NoReturn:
        self.refuse(
            f"the equalities cannot be solved for the outputs {list(self.dependent or ())}",
            "dependent outputs with independent coefficients",
            "completion=False, other outputs as dependent=[...], or dependent=None",
        )

    def _gradient(self, set: AffineSet, y: Tensor, split: Completion | None) -> Tensor:
        """The direction of steepest ascent of the squared residuals, ``(..., n)``, along the equalities if split."""
        residual = signed_violation(set, y)
        if split is None:
            equal = torch.tensor([side == EQUAL for side in set.row_kinds], device=y.device)
            share = torch.where(equal, self.balance, 1 - self.balance) if equal.any() else 1.0
            return 2 * matvec(set.A.mT, share * residual)
        whole = 2 * matvec(set.A[..., split.other, :].mT, residual[..., split.other])  # Gᵀ ReLU(G y - h)
        along = split.transpose_follow(whole)
        return split.follow(along)

    def _split(self, set: AffineSet) -> Completion:
        equal = [i for i, side in enumerate(set.row_kinds) if side == EQUAL]
        if self.dependent is None:
            self.dependent = self._choose(set.A[..., equal, :])
        if len(self.dependent) != len(equal):
            self.refuse(f"{len(self.dependent)} dependent outputs for {len(equal)} equalities", "one per equality")
        return Completion(set, self.dependent)

    def _choose(self, C: Tensor) -> tuple[int, ...]:
        q, n = C.shape[-2:]
        if not q:
            return ()
        C = C.reshape(-1, q, n)
        C = C[C.isfinite().all(-1).all(-1)]  # samples with NaN do not count
        rank = int(row_rank(C).min()) if len(C) else 0
        instead = "completion=False, or METHODS['caffnet-ff']"
        if rank < q:
            self.refuse(
                f"the {q} equalities have rank {rank}, so they cannot be solved for any {q} of the {n} outputs",
                "independent equalities",
                instead,
            )
        chosen = outputs_to_solve_for(C)
        if chosen is None:
            self.refuse(
                f"no {q} of the {n} outputs were found for which the equalities of all {len(C)} samples can be solved",
                "the same dependent outputs for all samples",
                f"dependent=[...] if you know them, {instead}",
            )
        return chosen

    def get_extra_state(self) -> Tensor:
        """Return the chosen outputs: they belong to the trained network, as another choice gives another network."""
        return torch.tensor(self.dependent or (), dtype=torch.long)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the chosen outputs, if there are any."""
        self.dependent = tuple(state.tolist()) or None
