"""DC3 (Donti, Rolnick and Kolter, 2021): complete the equalities, then correct the inequalities by descent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from caffnet.constraints import EQUAL, AffineSet
from caffnet.methods.base import Guarantee, Method, Supports, matvec, signed_violation
from caffnet.methods.completion import Completion
from caffnet.methods.penalty import Penalty


class DC3(Method):
    r"""Completion, then t steps of heavy-ball descent on $\|ReLU(G y - h)\|^2$ along $C y = d$.

    With ``y_D = C_D⁻¹ (d - C_F z)`` the inequalities read ``G_e z <= h_e``, ``G_e = G_F - G_D C_D⁻¹ C_F``. The descent

        grad = 2 G_eᵀ ReLU(G_e z - h_e),   Δ <- lr · (grad, -C_D⁻¹ C_F grad) + momentum · Δ,   y <- y - Δ

    moves the dependent outputs along, so the equalities stay solved. By the chain rule ``G_eᵀ r`` is the free part of
    ``Gᵀ r`` less ``C_Fᵀ C_D⁻ᵀ`` times its dependent part. All steps are unrolled in the graph.

    Args:
        backbone: any module ``x -> f``, all n outputs; with completion only the free ones are used.
        constraint: an `AffineSet`, or any function ``x -> AffineSet``; its equalities must be independent to be
            completed.
        completion: solve the equalities first. False descends on both residuals in the whole space.
        dependent: the outputs to solve for, one per equality; None draws them at random (once) until
            ``|det C_D| >= 1e-4``.
        steps: corrections in training.
        test_steps: most corrections in evaluation.
        tolerance: evaluation stops early when no row is violated by more.
        lr: step size; published 1e-7 (1e-4 for power flow), HardNet's comparison uses 1e-2.
        momentum: of the heavy ball.
        balance: without completion, the share of the equalities in the descended cost.
        seed: of the random choice.
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
        seed: int = 0,
        penalty: Penalty | None = Penalty(10.0, rows="norm", balance=0.5),  # noqa: B008  (immutable)
    ):
        super().__init__(backbone, constraint, penalty=penalty)
        self.completion, self.steps, self.test_steps, self.tolerance = completion, steps, test_steps, tolerance
        self.lr, self.momentum, self.balance, self.seed = lr, momentum, balance, seed
        self.dependent = None if dependent is None else tuple(dependent)
        if self.constraint is None and completion:
            self._split(self.set_at())

    def enforce(self, f: Tensor, set: AffineSet) -> Tensor:
        """Complete, then correct."""
        split = self._split(set) if self.completion else None
        y = f if split is None else split.complete(f[..., split.free])
        delta = torch.zeros_like(y)
        for _ in range(self.steps if self.training else self.test_steps):
            if not self.training and bool((set.violation(y) <= self.tolerance).all()):
                break
            delta = self.lr * self._gradient(set, y, split) + self.momentum * delta
            y = y - delta
        return y

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
        q = sum(side == EQUAL for side in set.row_kinds)
        if self.dependent is None:
            self.dependent = self._draw(set, q)
        if len(self.dependent) != q:
            self.refuse(f"{len(self.dependent)} dependent outputs for {q} equalities", "one per equality")
        return Completion(set, self.dependent)

    def _draw(self, set: AffineSet, q: int) -> tuple[int, ...]:
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(1000 if q <= set.n else 0):
            drawn = tuple(sorted(torch.randperm(set.n, generator=generator)[:q].tolist()))
            if bool((Completion(set, drawn).pivot() >= 1e-4).all()):
                return drawn
        self.refuse(
            f"the {q} equalities cannot be solved for any {q} of the {set.n} outputs",
            "independent equalities",
            "completion=False, or METHODS['caffnet-ff']",
        )

    def get_extra_state(self) -> Tensor:
        """The drawn outputs belong to the trained network: another draw would be another network."""
        return torch.tensor(self.dependent or (), dtype=torch.long)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the drawn outputs; none were drawn where there are none to restore."""
        self.dependent = tuple(state.tolist()) or None
