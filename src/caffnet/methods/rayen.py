"""RAYEN (Tordesillas, How and Hutter, 2023): move from an interior point along a ray, at most to the boundary."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor, nn

from caffnet import tolerance
from caffnet.constraints import AffineSet
from caffnet.errors import ConstraintError
from caffnet.methods.base import Guarantee, Method, Supports, matvec
from caffnet.methods.linear_programs import implicit_equalities, interior_point, irredundant, one_sided
from caffnet.methods.penalty import Penalty


@dataclasses.dataclass(frozen=True)
class Interior:
    """A polyhedron in its own coordinates: ``y = N z + y_p``, ``rows z <= right``, with room all around ``center``."""

    N: np.ndarray
    y_p: np.ndarray
    rows: np.ndarray
    right: np.ndarray
    center: np.ndarray


class RAYEN(Method):
    r"""$y = N z + y_p$ with $z = z_0 + \min(1/\kappa, |q|)\, q/|q|$, $\kappa = ReLU(\max_i D_i q/|q|)$.

    Offline, linear programs refuse an empty set, drop redundant rows, find the inequalities that always hold with
    equality, and give a point ``z_0`` inside all others; ``D_i = a_i / (b_i - a_i z_0)``, so the ray from ``z_0`` in
    direction v leaves the set at ``1 / max D_i v``. Multiplying by ``|q|`` gives the form computed here, which has no
    division by zero: ``z = z_0 + q / max(1, max_i D_i q)``.

    Args:
        backbone: any module ``x -> f``.
        constraint: one `AffineSet` for all inputs.
        create_map: learn the linear map ``q = W f + c`` (published). False takes ``q = Nᵀ (f - y_0)``, so that a raw
            output in the set comes back unchanged.
        penalty: the soft term, none in the paper.

    >>> method = RAYEN(nn.Identity(), AffineSet.box(-0.5, 0.5, dim=2), create_map=False)
    >>> method(torch.tensor([[3.0, 0.0], [0.2, 0.3]]))
    tensor([[0.5000, 0.0000],
            [0.2000, 0.3000]])
    """

    name = "rayen"
    title = "RAYEN"
    guarantee = Guarantee.EXACT
    closed_form = True
    supports = Supports(input_dependent_b=False, input_dependent_A=False)

    N: Tensor
    y_0: Tensor
    D: Tensor

    def __init__(
        self, backbone: nn.Module, constraint: AffineSet, *, create_map: bool = True, penalty: Penalty | None = None
    ):
        super().__init__(backbone, constraint, penalty=penalty)
        inside = presolve(self.set_at())
        slack = inside.right - inside.rows @ inside.center
        parts = {
            "N": inside.N,
            "y_0": inside.N @ inside.center + inside.y_p,
            "D": inside.rows / slack[:, None],
        }
        for name, value in parts.items():
            self.register_buffer(name, torch.as_tensor(value, dtype=self.A.dtype, device=self.A.device))
        n, free = self.N.shape
        self.map = nn.Linear(n, free, dtype=self.A.dtype, device=self.A.device) if create_map and free else None

    def enforce(self, f: Tensor, set: AffineSet) -> Tensor:
        """From the middle along the ray, at most to the boundary."""
        q = matvec(self.N.mT, f - self.y_0) if self.map is None else self.map(f)  # (..., n')
        reach = matvec(self.D, q)
        longest = reach.amax(-1, keepdim=True).clamp_min(1.0) if reach.shape[-1] else 1.0
        return self.y_0 + matvec(self.N, q / longest)


def presolve(set: AffineSet) -> Interior:
    """Everything RAYEN needs to know of a set, by linear programs, in float64."""
    A, b, C, d = one_sided(set)
    A, b = irredundant(A, b, C, d)
    always = implicit_equalities(A, b, C, d)
    C, d = np.vstack([C, A[always]]), np.concatenate([d, b[always]])
    A, b = A[~always], b[~always]
    # y = N z + y_p solves C y = d; the singular vectors beyond the rank span the null space.
    u, size, vt = np.linalg.svd(C, full_matrices=True)
    rank = int((size > tolerance.rank(set.dtype, set.n) * max(size, default=0.0)).sum())
    N = vt[rank:].T if len(C) else np.eye(set.n)
    y_p = vt[:rank].T @ ((u[:, :rank].T @ d) / size[:rank]) if len(C) else np.zeros(set.n)
    rows, right = A @ N, b - A @ y_p
    moving = np.linalg.norm(rows, axis=1) > 1e-10 * np.linalg.norm(A, axis=1)  # rows that the equalities do not fix
    rows, right = rows[moving], right[moving]
    center, room = interior_point(rows, right)
    if room <= 1e-8:
        raise ConstraintError(
            f"RAYEN needs a point inside all inequalities, the most room found is {room:.2g}. "
            "Use METHODS['caffnet-ff'] instead."
        )
    return Interior(N, y_p, rows, right, center)
