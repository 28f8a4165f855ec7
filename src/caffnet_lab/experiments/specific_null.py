"""The paper's remark on constraint-specific null-space vectors, as a module to compare with: w depends on γ too.

In the paper one vector w serves all choices γ of rows, ``P_γ = f - A_γ⁺(A_γ f - b_γ) + (I - A_γ⁺A_γ) w``; ideally, it
says, each choice had its own, ``w_γ``, which it calls too expensive. Where `A` is the same for all inputs and the
choices are few it is not: equalities are part of every choice, so opt has 16 (no inequality, one of 5, two of them),
and one network with 16 n outputs gives all vectors. The search is a plain enumeration, which the kernel would not do
faster for a vector per choice, and the gradient is the exact one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from caffnet import AffineSet
from caffnet_lab.bench.literal import TOLERANCE

MOST_CHOICES = 1000


class SpecificNull(nn.Module):
    """A network with a null-space vector for every choice of rows: the feasible candidate nearest to f.

    Args:
        backbone: a module ``x -> f``, ``(B, n)``.
        constraint: a function ``x -> AffineSet`` whose `A` is always the same, with upper bounds and equalities only.
        example: the set at some input, from which `A` and the equalities are read.
        head: makes the network of the vectors, ``x -> (B, choices · n)``, from the number of its outputs. Its last
            linear map is set to zero: training starts from the Euclidean projection.
    """

    A: Tensor
    inverses: Tensor
    null_spaces: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        constraint: Callable[[Tensor], AffineSet],
        example: AffineSet,
        head: Callable[[int], nn.Module],
    ):
        super().__init__()
        equal = [i for i, kind in enumerate(example.row_kinds) if kind == "="]
        others = [i for i, kind in enumerate(example.row_kinds) if kind == "<"]
        if len(equal) + len(others) < example.m or example.A.ndim > 2:
            raise ValueError(
                "Vectors for every choice need one A for all inputs, with upper bounds and equalities only."
            )
        free = example.n - int(torch.linalg.matrix_rank(example.A[equal])) if equal else example.n
        sizes = range(0 if equal else 1, min(free, len(others)) + 1)
        self.choices = [[*equal, *rows] for k in sizes for rows in itertools.combinations(others, k)]
        if len(self.choices) > MOST_CHOICES:
            raise ValueError(f"There are {len(self.choices)} choices of rows, too many for a vector each.")
        self.backbone, self.constraint, self.n = backbone, constraint, example.n
        self.null = head(len(self.choices) * example.n)
        last = [module for module in self.null.modules() if isinstance(module, nn.Linear)][-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        inverses = torch.zeros(len(self.choices), example.n, example.m, dtype=example.A.dtype)
        for inverse, rows in zip(inverses, self.choices, strict=True):
            inverse[:, rows] = torch.linalg.pinv(example.A[rows])
        self.register_buffer("A", example.A.clone())
        #: A_γ⁺ with zeros for the rows that are not in γ, and I - A_γ⁺A_γ.
        self.register_buffer("inverses", inverses)
        self.register_buffer("null_spaces", torch.eye(example.n, dtype=inverses.dtype) - inverses @ example.A)

    def forward(self, x: Tensor, nominal: Tensor | None = None) -> Tensor:
        """The constrained output ``(B, n)``."""
        f = self.backbone(x)
        return self.choose(f if nominal is None else f + nominal, self.vectors(x), self.constraint(x))

    def vectors(self, x: Tensor) -> Tensor:
        """The null-space vectors ``(B, choices, n)``."""
        return self.null(x).unflatten(-1, (len(self.choices), self.n))

    def choose(self, f: Tensor, w: Tensor, rows: AffineSet) -> Tensor:
        """Return f where it is feasible, else the feasible candidate nearest to it.

        Raises:
            RuntimeError: no candidate is feasible, as the set is empty or has no vertex.
        """
        gap = f @ self.A.mT - rows.upper  # (B, m)
        points = f.unsqueeze(1) - torch.einsum("cnm,bm->bcn", self.inverses, gap)
        points = points + torch.einsum("cij,bcj->bci", self.null_spaces, w)
        values = points @ self.A.mT  # (B, choices, m)
        ok = torch.maximum(values - rows.upper.unsqueeze(-2), rows.lower.unsqueeze(-2) - values) <= TOLERANCE
        ok = ok.all(-1)
        if not ok.any(-1).all():
            raise RuntimeError("No candidate is feasible: the set is empty, or has no vertex.")
        distance = torch.where(ok, (points - f.unsqueeze(1)).detach().square().sum(-1), torch.inf)
        best = distance.argmin(-1)[:, None, None].expand(-1, 1, self.n)
        inside = (torch.maximum(gap, rows.lower - f @ self.A.mT) <= TOLERANCE).all(-1, keepdim=True)
        return torch.where(inside, f, points.gather(1, best).squeeze(1))

    def extra_repr(self) -> str:
        """Number of choices."""
        return f"choices={len(self.choices)}"
