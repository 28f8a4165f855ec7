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
from caffnet.methods.linear_programs import (
    deepest,
    empty,
    irredundant,
    nearest_deep_point,
    one_sided,
    without_repeats,
)
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

    Offline, linear programs refuse an empty set, find the inequalities that always hold with equality, find a point
    ``z_0`` inside all others and drop those that are clearly redundant, for any size of the set and any units of its
    rows; ``D_i = a_i / (b_i - a_i z_0)``, so the ray from ``z_0`` in direction v leaves the set at ``1 / max D_i v``.
    Multiplying by ``|q|`` gives the form computed here, which has no division by zero: ``z = z_0 + q / max(1, max_i D_i
    q)``.

    Args:
        backbone: any module ``x -> f``.
        constraint: one `AffineSet` for all inputs.
        create_map: learn the linear map ``q = W f + c`` (published). False takes ``q = Nᵀ (f - y_0)``, so that a raw
            output in the set is returned unchanged.
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
        """Move from the middle along the ray, at most to the boundary."""
        q = matvec(self.N.mT, f - self.y_0) if self.map is None else self.map(f)  # (..., n')
        reach = matvec(self.D, q)
        longest = reach.amax(-1, keepdim=True).clamp_min(1.0) if reach.shape[-1] else 1.0
        return self.y_0 + matvec(self.N, q / longest)


def presolve(set: AffineSet) -> Interior:
    """Compute the data that RAYEN needs of a set, by linear programs, in float64."""
    A, b, C, d = one_sided(set)
    A, b = without_repeats(A, b, torch.finfo(set.dtype).eps)
    rounding = tolerance.rounding(set.dtype, set.n)  # of a y - b: closer than that, two numbers are the same
    underflow = tolerance.underflow(set.dtype)  # the inverse of a distance as small as this overflows
    always = np.zeros(len(b), dtype=bool)  # the inequalities that hold with equality everywhere
    while True:  # every turn but the last finds such a row, and loses a dimension
        equal, value = np.vstack([C, A[always]]), np.concatenate([d, b[always]])
        N, y_p = solutions(equal, value, set.dtype)
        rows, right = A @ N, b - A @ y_p
        length = np.linalg.norm(rows, axis=1)
        moving = ~always & (length > tolerance.rank(set.dtype, set.n))  # the equalities fix the value of the others
        missed = np.abs(equal @ y_p - value) > allowance(equal, value, y_p, set.dtype)
        excluded = (right < -allowance(A, b, y_p, set.dtype))[~(moving | always)]
        if missed.any() or excluded.any():
            if always.any():  # they hold with equality up to rounding, so this may be rounding too
                raise no_room(0.0)
            raise empty("the equalities contradict each other" if missed.any() else "the equalities exclude the rest")
        rows, right, length, left = rows[moving], right[moving], length[moving], np.flatnonzero(moving)

        def noise(z: np.ndarray, left=left, length=length, N=N, y_p=y_p) -> np.ndarray:
            return (underflow + rounding * (np.abs(b[left]) + np.abs(A[left]) @ np.abs(N @ z + y_p))) / length

        found = deepest(rows / length[:, None], right / length, noise, tolerance.rank(set.dtype, set.n))
        if not found.flat.any():
            break
        always[left[found.flat]] = True
    slack = right - rows @ found.point
    if slack.min(initial=np.inf) <= underflow:  # accept less room than the noise if nothing more can be found or proved
        raise no_room(found.room)
    needed = irredundant(rows / length[:, None], slack / length)
    rows, right, length = rows[needed], right[needed], length[needed]
    center = nearest_deep_point(rows / length[:, None], right / length, found, N, y_p)
    return Interior(N, y_p, rows, right, center)


def no_room(room: float) -> ConstraintError:
    """Return the error for a set that is too thin for its number type."""
    return ConstraintError(
        f"RAYEN needs a point inside all inequalities, the most room found is {room:.2g}. The set is too thin for its "
        "number type; use METHODS['caffnet-ff'] instead."
    )


def solutions(C: np.ndarray, d: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """``N`` and ``y_p`` with ``C (N z + y_p) = d`` for all z; rank as in the data's precision."""
    n = C.shape[1]
    if not len(C):
        return np.eye(n), np.zeros(n)
    u, size, vt = np.linalg.svd(C, full_matrices=True)  # the singular vectors beyond the rank span the null space
    rank = int((size > tolerance.rank(dtype, n) * size.max()).sum())
    return vt[rank:].T, vt[:rank].T @ ((u[:, :rank].T @ d) / size[:rank])


def allowance(rows: np.ndarray, right: np.ndarray, y: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return the allowed error of an equality: the rounding of the row and of y, and the directions left out.

    Directions below the rank's tolerance are left out of y; both errors count twice, for two rows that face each other.
    """
    m, n = rows.shape
    share = 2 * (tolerance.rounding(dtype, max(m, n)) + tolerance.rank(dtype, n))
    return tolerance.underflow(dtype) + share * (np.abs(right) + np.abs(rows) @ np.abs(y))
