"""Properties that hold for every set and every point, on generated problems (hypothesis, fixed seed in CI)."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from caffnet import AffineSet, Status, project, tolerance

EXAMPLES = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
    # A mutant only has to fail; nobody reads the smallest example.
    phases=(Phase.generate,) if "CAFFNET_MUTANT" in os.environ else tuple(Phase),
)
SEARCHES = st.sampled_from(["full", "active"])
DTYPES = st.sampled_from([torch.float32, torch.float64])


@st.composite
def problems(draw, equalities: bool = True):
    """A feasible set (it contains a hidden point), an f and a w.

    Entries are small integers (where degenerate vertices are common), powers of two or arbitrary floats.
    """
    n, m = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    e = draw(st.integers(0, n - 1)) if equalities else 0
    entries = draw(
        st.sampled_from(
            [
                st.integers(-3, 3).map(float),
                st.sampled_from([-4.0, -1.0, -0.5, 0.0, 0.25, 1.0, 2.0]),
                st.floats(-10, 10, width=32).map(lambda v: 0.0 if abs(v) < 1e-3 else v),
            ]
        )
    )

    def array(*shape: int) -> np.ndarray:
        size = int(np.prod(shape))
        return np.array(draw(st.lists(entries, min_size=size, max_size=size)), dtype=float).reshape(shape)

    dtype = draw(DTYPES)
    A, C, y, f, w = array(m, n), array(e, n), array(n), array(n), array(n)
    upper = A @ y + np.abs(array(m))
    tensors = [torch.as_tensor(t).to(dtype) for t in (A, upper, C, C @ y, 3 * f, w)]
    set = AffineSet.inequality(tensors[0], tensors[1])
    if e:
        set = set & AffineSet.equality(tensors[2], tensors[3])
    return set, tensors[4], tensors[5]


def allowed(set: AffineSet, y: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    """The promise: c n eps (|a|_1 (|y| + |f|) + |b|)."""
    bound = torch.where(set.upper.isfinite(), set.upper.abs(), 0.0)
    size = set.A.abs().sum(-1) * (y.abs().max() + f.abs().max()) + bound
    return tolerance.feasibility(set.dtype, set.n) * size + tolerance.underflow(set.dtype)


@EXAMPLES
@given(problems(), SEARCHES)
def test_the_answer_is_finite_and_in_the_set(problem, search: str):
    set, f, w = problem
    answer = project(f, set, w, search=search)
    assert answer.value.isfinite().all()
    assert answer.value.dtype == f.dtype
    assert answer.status <= Status.WITHIN_TOL
    assert (set.violation(answer.value) <= allowed(set, answer.value, f + w)).all()


@EXAMPLES
@given(problems(), SEARCHES)
def test_the_layer_returns_its_own_answers_bit_for_bit(problem, search: str):
    set, f, w = problem
    once = project(f, set, w, search=search).value
    assert torch.equal(project(once, set, w, search=search).value, once)


@EXAMPLES
@given(problems(), SEARCHES)
def test_a_point_inside_is_not_touched(problem, search: str):
    set, f, w = problem
    if (set.violation(f) == 0).all():
        answer = project(f, set, w, search=search)
        assert torch.equal(answer.value, f)
        assert answer.status == Status.INSIDE


@EXAMPLES
@given(problems(), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(problem, random):
    set, f, _ = problem
    order = list(range(set.m))
    random.shuffle(order)
    moved = AffineSet(set.A[order], set.lower[order], set.upper[order])
    first, second = (project(f, s, search="full").value for s in (set, moved))
    scale = 1 + f.abs().max() + first.abs().max()
    torch.testing.assert_close(first, second, rtol=0, atol=float(2e3 * torch.finfo(f.dtype).eps * scale))


@EXAMPLES
@given(problems(), st.integers(0, 5))
def test_repeating_a_row_does_not_matter(problem, row: int):
    set, f, _ = problem
    row = row % set.m
    twice = set & AffineSet(set.A[row : row + 1], set.lower[row : row + 1], set.upper[row : row + 1])
    first, second = (project(f, s, search="full").value for s in (set, twice))
    scale = 1 + f.abs().max() + first.abs().max()
    torch.testing.assert_close(first, second, rtol=0, atol=float(2e3 * torch.finfo(f.dtype).eps * scale))


@EXAMPLES
@given(problems(), SEARCHES, st.lists(st.integers(-20, 20), min_size=10, max_size=10))
def test_scaling_rows_by_powers_of_two_changes_no_bit(problem, search: str, powers: list[int]):
    set, f, w = problem
    scale = torch.tensor([2.0**p for p in powers[: set.m]], dtype=f.dtype)
    scale = torch.cat([scale, torch.ones(max(set.m - 10, 0), dtype=f.dtype)])
    scaled = AffineSet(set.A * scale.unsqueeze(-1), set.lower * scale, set.upper * scale)
    assert torch.equal(project(f, scaled, w, search=search).value, project(f, set, w, search=search).value)


@EXAMPLES
@given(problems(), SEARCHES)
def test_a_batch_is_a_loop(problem, search: str):
    set, f, w = problem
    batch = torch.stack([f, f + 1, -f, 0 * f])
    many = project(batch, set, w.expand(4, -1), search=search)
    for i in range(4):
        one = project(batch[i], set, w, search=search)
        assert torch.equal(many.value[i], one.value)
        assert torch.equal(many.status[i], one.status)


@EXAMPLES
@given(problems(), SEARCHES)
def test_without_w_the_map_is_not_expansive(problem, search: str):
    set, f, w = problem
    first, second = (project(x, set, search=search).value for x in (f, f + w))
    slack = 2e3 * torch.finfo(f.dtype).eps * (1 + f.abs().max() + w.abs().max() + first.abs().max())
    assert (first - second).norm() <= w.norm() + slack


@EXAMPLES
@given(problems())
def test_the_searches_agree_without_w(problem):
    """Both give the Euclidean projection."""
    set, f, _ = problem
    first, second = (project(f, set, search=s).value for s in ("full", "active"))
    scale = 1 + f.abs().max() + first.abs().max()
    torch.testing.assert_close(first, second, rtol=0, atol=float(2e3 * torch.finfo(f.dtype).eps * scale))


@EXAMPLES
@given(problems(equalities=False), SEARCHES)
def test_a_shift_of_the_space_shifts_the_answer(problem, search: str):
    set, f, _ = problem
    shift = torch.ones_like(f)
    moved = AffineSet.inequality(set.A, set.upper + set.A @ shift)
    first, second = project(f, set, search=search).value, project(f + shift, moved, search=search).value
    scale = 1 + f.abs().max() + first.abs().max()
    torch.testing.assert_close(first + shift, second, rtol=0, atol=float(2e3 * torch.finfo(f.dtype).eps * scale))


@pytest.mark.parametrize("search", ["full", "active"])
def test_the_same_call_gives_the_same_bits(search: str):
    random = torch.Generator().manual_seed(0)
    A, f, w = (torch.randn(*s, generator=random) for s in ((40, 6, 3), (40, 3), (40, 3)))
    set = AffineSet.inequality(A, torch.ones(40, 6))
    answers = [project(3 * f, set, w, search=search).value for _ in range(3)]
    assert all(torch.equal(a, answers[0]) for a in answers)


@EXAMPLES
@given(problems(), SEARCHES)
def test_the_layer_is_never_farther_from_a_feasible_target_than_f(problem, search: str):
    """The approximation theorem, without w: a projection on a convex set brings f nearer to each of its points.

    The targets are points of the set found from elsewhere: the projections of five other points.
    """
    set, f, _ = problem
    answer = project(f, set, search=search)
    away = torch.tensor([[0.0], [1.0], [-2.0], [5.0], [-20.0]], dtype=f.dtype)
    for target in project(away * torch.linspace(1, 2, set.n, dtype=f.dtype), set, search=search).value:
        before, after = (float((point.double() - target.double()).norm()) for point in (f, answer.value))
        scale = float(1 + f.abs().max() + target.abs().max())
        assert after <= before + 2e3 * torch.finfo(f.dtype).eps * scale
