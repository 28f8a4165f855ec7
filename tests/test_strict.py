"""`strict=True`: every inequality holds in exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from caffnet import AffineSet, ConstraintError, InfeasibleError, Status, project
from helpers import needs_data, set_of, stored_index, stored_problem


def holds_exactly(set: AffineSet, y: torch.Tensor) -> list[bool]:
    """Every inequality of every sample, in fractions; equalities are not asked."""
    batch = y.shape[0]
    A = set.A.expand(batch, set.m, set.n).tolist()
    lower, upper = (t.expand(batch, set.m).tolist() for t in (set.lower, set.upper))
    results = []
    for rows, low, high, point in zip(A, lower, upper, y.tolist(), strict=True):
        exact = [Fraction(v) for v in point]
        good = True
        for row, lo, hi in zip(rows, low, high, strict=True):
            if lo == hi:
                continue
            value = sum((Fraction(a) * b for a, b in zip(row, exact, strict=True) if a), Fraction(0))
            good &= (hi == float("inf") or value <= Fraction(hi)) and (lo == -float("inf") or value >= Fraction(lo))
        results.append(good)
    return results


@pytest.mark.parametrize("search", ["full", "active"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ten_thousand_samples_proven_with_fractions(dtype: torch.dtype, search: str):
    """10 000 samples over the four cases, in sets with an interior, some far away and some badly scaled."""
    random = torch.Generator().manual_seed(11)
    samples, m, n = 2500, 6, 3
    A = torch.randn(samples, m, n, generator=random, dtype=torch.float64)
    A = A * 10 ** torch.randint(-3, 4, (samples, m, 1), generator=random).double()
    centre = torch.randn(samples, n, generator=random, dtype=torch.float64)
    room = A.norm(dim=-1) * (0.1 + torch.rand(samples, m, generator=random, dtype=torch.float64))
    upper = (A @ centre.unsqueeze(-1)).squeeze(-1) + room
    far = 10 ** torch.randint(0, 4, (samples, 1), generator=random).double()
    f = centre + far * torch.randn(samples, n, generator=random, dtype=torch.float64)
    set = AffineSet.inequality(A.to(dtype), upper.to(dtype))
    w = torch.randn(samples, n, generator=random, dtype=torch.float64).to(dtype)
    answer = project(f.to(dtype), set, w, search=search, strict=True)
    assert (answer.status <= Status.PROJECTED).all()
    assert all(holds_exactly(set, answer.value))
    loose = project(f.to(dtype), set, w, search=search)
    assert not all(holds_exactly(set, loose.value))  # without strict, rounding does break rows
    scale = 1 + loose.value.abs().amax(-1) + f.abs().amax(-1)
    assert ((answer.value - loose.value).abs().amax(-1) <= 1e4 * torch.finfo(dtype).eps * scale).float().mean() > 0.9


def test_strict_is_idempotent_and_keeps_a_point_that_is_exactly_inside():
    random = torch.Generator().manual_seed(12)
    A, f = torch.randn(100, 5, 3, generator=random), 4 * torch.randn(100, 3, generator=random)
    set = AffineSet.inequality(A, torch.ones(100, 5))
    y = project(f, set, strict=True).value
    assert torch.equal(project(y, set, strict=True).value, y)
    edge = torch.tensor([1.0, 0.5])
    assert torch.equal(project(edge, AffineSet.box(0.0, 1.0, dim=2), strict=True).value, edge)


def points_on_a_row(dtype: torch.dtype, size: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """f, A and b of 400 samples with ``a f = b`` up to rounding; in the first 100 large terms cancel."""
    random = torch.Generator().manual_seed(14)
    A, f = (torch.randn(*shape, generator=random, dtype=dtype) for shape in ((400, 1, 4), (400, 4)))
    A, f = A * torch.rand(4, generator=random, dtype=dtype) ** 4, f * size
    f[:100, 0] = f[:100, 0] * 1e6
    A[:100, 0, 1] = -A[:100, 0, 0] * (f[:100, 0] / f[:100, 1])
    return f, A, (A.double() @ f.double().unsqueeze(-1)).squeeze(-1).to(dtype)


SIZES = [(torch.float64, size) for size in (1.0, 1e-20, 1e18, 1e-150, 1e150)]
SIZES += [(torch.float32, size) for size in (1.0, 1e-10, 1e10)]


@pytest.mark.parametrize(("dtype", "size"), SIZES)
def test_what_is_inside_is_decided_exactly(dtype: torch.dtype, size: float):
    """A point on a row, up to rounding, comes back if fractions say that it is inside, and only then."""
    f, A, bound = points_on_a_row(dtype, size)
    for step in (-1, 0, 1):
        upper = bound if step == 0 else torch.nextafter(bound, torch.full_like(bound, step * float("inf")))
        set = AffineSet.inequality(A, upper)
        answer = project(f, set, strict=True)
        inside = torch.tensor(holds_exactly(set, f))
        assert 0 < inside.sum() < len(f) or step != 0
        assert torch.equal((answer.value == f).all(-1), inside)
        assert all(holds_exactly(set, answer.value))


def test_strict_may_be_a_bool_of_numpy():
    set, f = AffineSet.inequality([[0.1, 0.7]], [0.3]), torch.tensor([[1.0, 2.0]])
    assert torch.equal(project(f, set, strict=np.True_).value, project(f, set, strict=True).value)
    with pytest.raises(ConstraintError, match="strict must be True or False, got 1"):
        project(f, set, strict=1)


def test_digits_that_products_and_sums_lose_are_not_forgotten():
    """Outside by 2^-1111, which no product and no fma can show; outside by 2^-60, which a sum in order loses."""
    a, odd = 2.0**-530, 2.0**-530 * (1 + 2.0**-52)
    product = (
        AffineSet.inequality([[odd]], [a * a]).to(torch.float64),
        torch.tensor([[odd], [a * (1 - 2.0**-52)]], dtype=torch.float64),
    )
    sums = (
        AffineSet.inequality([[1.0, 1.0]], [1.0]).to(torch.float64),
        torch.tensor([[2.0**-60, 1.0], [0.0, 1.0]], dtype=torch.float64),
    )
    for set, f in (product, sums):
        assert holds_exactly(set, f) == [False, True]
        answer = project(f, set, strict=True)
        assert (answer.value == f).all(-1).tolist() == [False, True]
        assert all(holds_exactly(set, answer.value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_without_rounding_are_decided_as_they_are(dtype: torch.dtype):
    """Integer rows that meet, pass or miss their bound by one unit."""
    random = torch.Generator().manual_seed(15)
    A, f = (torch.randint(-9, 10, shape, generator=random).to(dtype) for shape in ((300, 1, 6), (300, 6)))
    for off in (-1, 0, 1):
        set = AffineSet.inequality(A, (A @ f.unsqueeze(-1)).squeeze(-1) + off)
        answer = project(f, set, strict=True, on_infeasible="nan")
        inside = torch.tensor(holds_exactly(set, f))
        assert torch.equal((answer.value == f).all(-1), inside)
        assert (inside == (off >= 0)).all() or off < 0


def test_a_point_that_is_exactly_inside_has_that_status():
    """Also where a sum in floating point says that it is not."""
    f, A, bound = points_on_a_row(torch.float64, 1.0)
    set = AffineSet.inequality(A, torch.nextafter(bound, torch.full_like(bound, -float("inf"))))
    inside = torch.tensor(holds_exactly(set, f))
    assert inside.any()
    assert (project(f, set, strict=True).status[inside] == Status.INSIDE).all()


def test_strict_with_equalities_keeps_the_inequalities_exact():
    random = torch.Generator().manual_seed(13)
    f = 3 * torch.randn(200, 4, generator=random, dtype=torch.float64)
    simplex = AffineSet.equality(torch.ones(1, 4, dtype=torch.float64), [1.0]) & AffineSet.box(0.0, None, dim=4)
    oblique = AffineSet.inequality(torch.randn(2, 4, generator=random, dtype=torch.float64), [1.0, 1.0])
    set = simplex & oblique
    answer = project(f, set, strict=True)
    assert all(holds_exactly(set, answer.value))
    assert (answer.value.sum(-1) - 1).abs().max() <= 1e-15


@pytest.mark.parametrize("search", ["full", "active"])
def test_a_set_without_interior_says_so(search: str):
    """A segment between opposite rows: the point is within rounding, and the status tells."""
    third = 1 / 3
    rows = torch.tensor([[third, 0.7], [-third, -0.7]], dtype=torch.float64)
    answer = project(
        torch.tensor([3.0, 1.0]).double(), AffineSet.inequality(rows, [0.1, -0.1]), strict=True, search=search
    )
    exact = holds_exactly(AffineSet.inequality(rows, [0.1, -0.1]), answer.value.unsqueeze(0))[0]
    assert answer.status == (Status.PROJECTED if exact else Status.WITHIN_TOL)
    assert answer.violation <= 1e-15


def test_a_set_empty_by_one_unit_in_the_last_place_is_infeasible_in_strict_mode():
    up = torch.nextafter(torch.tensor(1.0).double(), torch.tensor(2.0).double())
    set = AffineSet.inequality(torch.tensor([[1.0], [-1.0]]).double(), torch.stack([torch.tensor(1.0).double(), -up]))
    assert project(torch.zeros(1).double(), set).status == Status.WITHIN_TOL
    with pytest.raises(InfeasibleError, match=r"row 0 .*row 1"):
        project(torch.zeros(1).double(), set, strict=True)


@needs_data
@pytest.mark.parametrize("name", [n for n, e in stored_index().items() if e["feasible"] and e["n"] <= 60])
def test_real_problems(name: str):
    """Where the set has an interior every inequality is exact; elsewhere the status says so."""
    problem = stored_problem(name)
    set = set_of(problem)
    answer = project(torch.as_tensor(problem["F"]), set, strict=True)
    exact = holds_exactly(set, answer.value)
    for status, good in zip(answer.status.tolist(), exact, strict=True):
        assert good or status == Status.WITHIN_TOL
    if stored_index()[name]["inscribed_radius"] > 1e-6:
        assert all(exact)
