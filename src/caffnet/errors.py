"""Types of errors.

Every error about constraints is a ``ConstraintError``, which is a ``ValueError``: code that catches ``ValueError``
keeps working. The experiments have their own errors, about settings and files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from caffnet._solve.infeasible import Conflict


class ConstraintError(ValueError):
    """A constraint set, or the data passed with it, cannot be used."""


class DtypeError(ConstraintError, TypeError):
    """A tensor has a number type that cannot be used, or that differs from that of the other tensors."""


class BudgetError(ConstraintError):
    """A search would need more memory than its budget allows. Raised before anything is allocated."""


class KernelError(RuntimeError):
    """The compiled kernel is missing, damaged or of another version."""


class InfeasibleError(ConstraintError):
    """No point satisfies the constraints of at least one sample.

    Attributes:
        samples: the batch indices of the infeasible samples, each a tuple of ints.
        conflicts: one ``Conflict`` for each of the first five: rows that cannot hold together, with multipliers.
    """

    def __init__(self, message: str, samples: list[tuple[int, ...]], conflicts: list[Conflict]):
        super().__init__(message)
        self.samples = samples
        self.conflicts = conflicts

    def __reduce__(self):
        return type(self), (str(self), self.samples, self.conflicts)


class UnboundedError(ConstraintError):
    """The objective of at least one quadratic or linear program falls without end.

    Attributes:
        samples: the batch indices of these samples, each a tuple of ints.
        rays: one direction per sample, ``(k, n)``, along which the set has no end and the objective falls.
    """

    def __init__(self, message: str, samples: list[tuple[int, ...]], rays: Tensor):
        super().__init__(message)
        self.samples = samples
        self.rays = rays

    def __reduce__(self):
        return type(self), (str(self), self.samples, self.rays)
