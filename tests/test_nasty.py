"""The nasty list: every stored case, and every row of the table that is not a stored case."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from caffnet import AffineSet, ConstraintError, InfeasibleError, Status, project
from helpers import nasty_cases, needs_data, set_of

CASES = {case["name"]: case for case in nasty_cases()}
SEARCHES = ("auto", "active")


def run(case: dict, search: str, **options):
    w = torch.as_tensor(case["w"]) if "w" in case else None
    return project(torch.as_tensor(case["f"]), set_of(case), w, search=search, **options)


def of_kind(*kinds: str) -> list[str]:
    return [name for name, case in CASES.items() if case["expect"]["kind"] in kinds]


@needs_data
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", of_kind("value"))
def test_the_exact_answer(name: str, search: str):
    case = CASES[name]
    answer = run(case, search)
    expected = torch.as_tensor(case["expect"]["y"])
    assert (answer.value - expected).abs().max() <= 1e-9 * expected.abs().max().clamp_min(1e-300)
    moved = not torch.equal(expected, torch.as_tensor(case["f"]))
    assert answer.status in ((Status.PROJECTED, Status.WITHIN_TOL) if moved else (Status.INSIDE,))


@needs_data
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", of_kind("identity"))
def test_a_feasible_f_comes_back_bit_for_bit(name: str, search: str):
    answer = run(CASES[name], search)
    assert torch.equal(answer.value, torch.as_tensor(CASES[name]["f"]))
    assert torch.equal(answer.value.signbit(), torch.as_tensor(CASES[name]["f"]).signbit())
    assert answer.status == Status.INSIDE


@needs_data
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", of_kind("infeasible"))
def test_an_empty_set_is_never_answered(name: str, search: str):
    case = CASES[name]
    with pytest.raises(InfeasibleError, match="No point satisfies the constraints of 1 of 1 samples") as caught:
        run(case, search)
    assert caught.value.conflicts[0].proven
    assert run(case, search, on_infeasible="nan").value.isnan().all()
    nearest = run(case, search, on_infeasible="nearest")
    assert nearest.status == Status.INFEASIBLE
    if "least" in case["expect"]:
        assert float(nearest.violation) == pytest.approx(case["expect"]["least"], rel=1e-6)


@needs_data
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", of_kind("within_tol"))
def test_a_set_empty_by_a_rounding_error(name: str, search: str):
    answer = run(CASES[name], search)
    assert answer.status == Status.WITHIN_TOL
    assert answer.violation <= CASES[name]["expect"]["viol"]


@needs_data
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", of_kind("raise"))
def test_numbers_that_are_none_are_refused_before_any_arithmetic(name: str, search: str):
    with pytest.raises(ConstraintError, match="must be finite"):
        run(CASES[name], search)
    marked = run(CASES[name], search, on_infeasible="nan")
    assert marked.status == Status.INVALID
    assert marked.value.isnan().all()


@needs_data
def test_every_kind_of_case_is_covered():
    assert len(of_kind("value", "identity", "infeasible", "within_tol", "raise", "property")) == len(CASES)
    assert set(of_kind("property")) == {"decimal_parallel_equalities", "huge_w_box", "huge_w_halfspace_oblique"}


# ------------------------------------------------------------------------------------------------ cases with a property


@pytest.mark.parametrize("search", ["full", "active"])
def test_rows_parallel_in_decimal_have_rank_one(search: str):
    """0.3 is not 3 * 0.1: exact arithmetic has a spurious far vertex here."""
    set = AffineSet.equality(torch.tensor([[0.1, 0.2], [0.3, 0.6]], dtype=torch.float64), [0.3, 0.9])
    value = project(torch.zeros(2, dtype=torch.float64), set, search=search).value
    torch.testing.assert_close(value, torch.tensor([0.6, 1.2], dtype=torch.float64), rtol=1e-15, atol=0)


def test_a_huge_w_ends_at_the_same_vertex_whatever_the_batch():
    box = AffineSet.inequality(torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]]).double(), [1.0, 0, 1, 0])
    f, w = torch.tensor([[2.0, 0.5]]).double(), torch.full((1, 2), 1e30).double()
    one = project(f, box, w, search="full").value
    assert one.tolist() in ([[1.0, 0.0]], [[1.0, 1.0]])
    for size in (2, 7, 100):
        many = project(f.expand(size, 2), box, w.expand(size, 2), search="full").value
        assert torch.equal(many, one.expand(size, 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_huge_w_on_an_oblique_half_space_is_finite_and_relative(dtype: torch.dtype):
    set = AffineSet.inequality(torch.tensor([[0.6, 0.8]], dtype=dtype), [0.0])
    answer = project(torch.tensor([1.0, 1.0], dtype=dtype), set, torch.tensor([1e30, 0.0], dtype=dtype))
    assert answer.value.isfinite().all()
    assert answer.violation <= 8 * torch.finfo(dtype).eps * answer.value.abs().max()


# ------------------------------------------------------------------------------------------------ the rest of the table


def test_2_copies_of_a_row_share_one_gradient():
    A, b = torch.tensor([[1.0, 2.0]] * 5).double(), torch.ones(5).double().requires_grad_()
    project(torch.tensor([2.0, 1.0]).double(), AffineSet.inequality(A, b)).value.sum().backward()
    once = torch.ones(1).double().requires_grad_()
    project(torch.tensor([2.0, 1.0]).double(), AffineSet.inequality(A[:1], once)).value.sum().backward()
    assert b.grad is not None and once.grad is not None
    torch.testing.assert_close(b.grad.sum(), once.grad.sum())


def test_10_three_lines_through_one_vertex_have_one_finite_gradient():
    gradients = []
    for _ in range(3):
        f = torch.tensor([3.0, 3.0]).double().requires_grad_()
        project(f, AffineSet.inequality([[1.0, 0], [0, 1], [1, 1]], [1.0, 1, 2])).value.square().sum().backward()
        assert f.grad is not None and f.grad.isfinite().all()
        gradients.append(f.grad)
    assert all(torch.equal(g, gradients[0]) for g in gradients)


def test_13_nearly_parallel_rows_in_float32():
    set = AffineSet.inequality(torch.tensor([[1.0, 0.0], [1.0, 1e-8]]), [1.0, 1 + 1e-8])
    torch.testing.assert_close(project(torch.tensor([2.0, 2.0]), set).value, torch.tensor([1.0, 2.0]))


def test_16_rows_near_the_end_of_float32():
    set = AffineSet.inequality(torch.tensor([[1e20, 0.0], [0.0, 1e20]]), torch.tensor([1e20, 1e20]))
    assert torch.equal(project(torch.tensor([2.0, 3.0]), set).value, torch.tensor([1.0, 1.0]))


@pytest.mark.parametrize("search", ["full", "active"])
def test_21_the_jump_at_the_boundary_is_as_documented(search: str):
    """Inside: f. Just outside: the projection of f + w. A jump of |N w| that the paper's map has too."""
    set, w = AffineSet.inequality([[1.0, 0.0]], [0.0]), torch.tensor([0.0, 5.0])
    inside, outside = (project(torch.tensor([x, 0.0]), set, w, search=search).value for x in (-1e-3, 1e-3))
    assert torch.equal(inside, torch.tensor([-1e-3, 0.0]))
    assert torch.equal(outside, torch.tensor([0.0, 5.0]))


@pytest.mark.parametrize("search", ["full", "active"])
@pytest.mark.parametrize("argument", ["f", "w", "A", "upper"])
def test_23_one_bad_sample_leaves_the_others_bit_identical(argument: str, search: str):
    random = torch.Generator().manual_seed(3)
    data = {
        "f": 3 * torch.randn(6, 3, generator=random),
        "w": torch.randn(6, 3, generator=random),
        "A": torch.randn(6, 4, 3, generator=random),
        "upper": torch.rand(6, 4, generator=random),
    }

    def answer(d: dict[str, torch.Tensor]):
        set = AffineSet.inequality(d["A"], d["upper"])
        return project(d["f"], set, d["w"], search=search, on_infeasible="nan")

    good = answer(data)
    spoiled = {name: t.clone() for name, t in data.items()}
    spoiled[argument].view(6, -1)[2, 1] = math.nan
    bad = answer(spoiled)
    others = torch.arange(6) != 2
    assert bad.status[2] == Status.INVALID
    assert bad.value[2].isnan().all()
    assert torch.equal(bad.value[others], good.value[others])
    with pytest.raises(ConstraintError, match=rf"{argument} must be finite, got nan at {argument}\[2"):
        project(spoiled["f"], AffineSet.inequality(spoiled["A"], spoiled["upper"]), spoiled["w"], search=search)


@pytest.mark.parametrize("search", ["full", "active"])
def test_26_batches_of_none_and_one(search: str):
    set = AffineSet.box(0.0, 1.0, dim=3)
    f = torch.zeros(0, 3, requires_grad=True)
    empty = project(f, set, search=search)
    assert empty.value.shape == (0, 3) and empty.status.shape == (0,) and empty.violation.shape == (0,)
    empty.value.sum().backward()
    assert f.grad is not None and f.grad.shape == (0, 3)
    assert project(torch.full((1, 3), 2.0), set, search=search).value.shape == (1, 3)
    assert project(torch.full((2, 1, 3), 2.0), set, search=search).value.shape == (2, 1, 3)
    assert project(torch.full((3,), 2.0), set, search=search).value.shape == (3,)


@pytest.mark.parametrize("search", ["full", "active"])
def test_27_no_rows_is_the_identity(search: str):
    f = torch.randn(4, 3, requires_grad=True)
    answer = project(f, AffineSet.inequality(torch.zeros(0, 3), torch.zeros(0)), search=search)
    assert torch.equal(answer.value, f)
    answer.value.sum().backward()
    assert torch.equal(f.grad, torch.ones(4, 3))


def test_28_a_polygon_of_a_thousand_sides_by_full_enumeration():
    """500 500 subsets: the chunks do not change the bits."""
    angle = 2 * math.pi * torch.arange(1000).double() / 1000
    set = AffineSet.inequality(torch.stack([angle.cos(), angle.sin()], -1), torch.ones(1000).double())
    f = 3 * set.A[123]
    full = project(f, set, search="full", budget=64 * 2**20)
    assert full.search == "full"
    torch.testing.assert_close(full.value, set.A[123], rtol=1e-12, atol=1e-12)
    assert torch.equal(project(f, set, search="full", budget=32 * 2**20).value, full.value)


@pytest.mark.parametrize(("n", "m"), [(20, 40), (64, 256)])
def test_29_a_search_that_cannot_fit_is_refused_before_allocating(n: int, m: int):
    set = AffineSet.inequality(torch.randn(m, n), torch.ones(m))
    with pytest.raises(ConstraintError, match=r'would look at .* sub-constraints.*search="active"'):
        project(torch.zeros(n), set, search="full")
    assert project(10 * torch.ones(n), set).search == "active"


@pytest.mark.parametrize("search", ["full", "active"])
def test_30_the_memory_layout_of_the_inputs_does_not_matter(search: str):
    random = torch.Generator().manual_seed(5)
    A, f, b = (torch.randn(*s, generator=random).double() for s in ((4, 3), (6, 3), (4,)))
    plain = project(3 * f, AffineSet.inequality(A, b.abs()), search=search).value
    strided = torch.stack([3 * f, f], -1)[..., 0]
    transposed = A.t().contiguous().t()
    read_only = b.abs().numpy()
    read_only.flags.writeable = False
    before = strided.clone()
    again = project(strided, AffineSet.inequality(transposed, read_only), search=search).value
    assert torch.equal(again, plain)
    assert torch.equal(strided, before)
    spread = A.expand(6, 4, 3)
    torch.testing.assert_close(project(3 * f, AffineSet.inequality(spread, b.abs()), search=search).value, plain)


@pytest.mark.parametrize("search", ["full", "active"])
def test_30_gradients_of_an_expanded_matrix_are_summed(search: str):
    random = torch.Generator().manual_seed(6)
    A, f = torch.randn(4, 3, generator=random).double(), 3 * torch.randn(6, 3, generator=random).double()
    grads = []
    for spread in (lambda t: t, lambda t: t.expand(6, 4, 3)):
        leaf = A.clone().requires_grad_()
        project(f, AffineSet.inequality(spread(leaf), 0.3), search=search).value.square().sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_37_autocast_and_other_global_switches_do_not_matter(dtype: torch.dtype):
    random = torch.Generator().manual_seed(7)
    A, f = torch.randn(5, 3, generator=random).to(dtype), 3 * torch.randn(9, 3, generator=random).to(dtype)
    set = AffineSet.inequality(A, torch.ones(5, dtype=dtype))
    plain = project(f, set).value
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(project(f, set).value, plain)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(project(f, set).value, plain)
    finally:
        torch.use_deterministic_algorithms(False)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if default == torch.float32 else torch.float32)
    try:
        assert torch.equal(project(f, set).value, plain)
    finally:
        torch.set_default_dtype(default)
    torch.set_flush_denormal(True)
    try:
        assert torch.equal(project(f, set).value, plain)
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize(
    ("search", "m", "n"), [("full", 6, 3), ("active", 6, 3), ("active", 10, 6), ("active", 9, 9), ("active", 30, 12)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_40_a_batch_is_a_loop_is_a_permuted_batch(dtype: torch.dtype, search: str, m: int, n: int):
    random = torch.Generator().manual_seed(8)
    A, f, w = (torch.randn(*s, generator=random).to(dtype) for s in ((50, m, n), (50, n), (50, n)))
    b = A.abs().sum(-1) / 2
    batch = project(3 * f, AffineSet.inequality(A, b), w, search=search)
    order = torch.randperm(50, generator=random)
    permuted = project(3 * f[order], AffineSet.inequality(A[order], b[order]), w[order], search=search)
    # Beyond eight outputs LAPACK rounds by where in memory a matrix happens to lie.
    exact = {"rtol": 0.0, "atol": 0.0} if n <= 8 else {"rtol": 0.0, "atol": 1e3 * torch.finfo(dtype).eps}
    torch.testing.assert_close(permuted.value, batch.value[order], **exact)
    for i in range(50):
        one = project(3 * f[i], AffineSet.inequality(A[i], b[i]), w[i], search=search)
        torch.testing.assert_close(one.value, batch.value[i], **exact)
        assert torch.equal(one.active, batch.active[i])


def test_39_the_first_of_equal_candidates_wins():
    """The same point from several sub-constraints: the one with the fewest, first rows is reported."""
    set = AffineSet.inequality(torch.tensor([[1.0, 0], [1, 0], [0, 1]]), [1.0, 1.0, 5.0])
    answer = project(torch.tensor([[3.0, 0.0], [2.0, 1.0]]), set, search="full")
    assert answer.active.tolist() == [[1, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_34_complex_and_meta_tensors_are_refused(n: int):
    set = AffineSet.box(0.0, 1.0, dim=n)
    with pytest.raises(ConstraintError, match="complex64"):
        project(torch.zeros(n, dtype=torch.complex64), set)
    with pytest.raises(ConstraintError, match="on meta"):
        project(torch.zeros(n, device="meta"), AffineSet.box(torch.zeros(n), torch.ones(n)))
    with pytest.raises(TypeError, match="complex128"):
        AffineSet.inequality(np.zeros((1, n), dtype=complex), [0.0])


@pytest.mark.parametrize(("dtype", "huge"), [(torch.float32, 2e38), (torch.float64, 1e308)])
def test_17_a_huge_f_is_not_accepted_for_its_size(dtype: torch.dtype, huge: float):
    answer = project(torch.tensor([huge, 0.0], dtype=dtype), AffineSet.inequality([[1.0, 1.0]], [1.0]))
    assert answer.status == Status.PROJECTED
    assert answer.value.isfinite().all()
    big = torch.tensor([3e38, 0.0])
    with pytest.raises(ConstraintError, match="w must be finite"):
        project(big, AffineSet.inequality([[1.0, 1.0]], [1.0]), big)


@pytest.mark.parametrize("search", ["full", "active"])
def test_plain_bounds_hold_exactly_for_an_accepted_f_too(search: str):
    far = torch.tensor([-1e-3, 1e12], dtype=torch.float64)
    assert project(far, AffineSet.box(0.0, None, dim=2), search=search).value.tolist() == [0.0, 1e12]
    near = torch.tensor([-1e-7, 1.0])
    assert project(near, AffineSet.box(0.0, 1.0, dim=2), search=search).value.tolist() == [0.0, 1.0]
