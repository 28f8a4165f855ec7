"""The searches against the paper's equations, computed literally, on a thousand small problems."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from caffnet import Status, prepare, project
from helpers import length, literal_candidates, random_problem, satisfies

NORMS = (1, 1.5, 2, 3, np.inf)
SEEDS = range(1000)


@pytest.mark.parametrize("block", range(10))
def test_full_is_the_nearest_feasible_candidate(block: int):
    """`full` reaches the least distance over all feasible candidates, at a candidate, in every norm."""
    seen = 0
    for seed in SEEDS[block::10]:
        set, f, w = random_problem(seed)
        norm = NORMS[seed % len(NORMS)]
        answer = project(f, set, w, search="full", norm=norm)
        if satisfies(set, f.numpy(), f.numpy()):
            assert torch.equal(answer.value, f), seed
            continue
        candidates = [y for y, _ in literal_candidates(set, f.numpy(), w.numpy())]
        best = min(length(y - f.numpy(), norm) for y in candidates)
        mine = length((answer.value - f).numpy(), norm)
        scale = 1 + f.abs().max().item() + w.abs().max().item()
        assert abs(mine - best) <= 1e-9 * scale, seed
        assert min(np.abs(answer.value.numpy() - y).max() for y in candidates) <= 1e-9 * scale, seed
        seen += 1
    assert seen > 50  # most problems must have something to do


@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize("search", ["lite", "active"])
def test_the_cheaper_searches_are_feasible_candidates_and_never_nearer(search: str, block: int):
    for seed in SEEDS[block::4]:
        set, f, w = random_problem(seed)
        answer, full = (project(f, set, w, search=s) for s in (search, "full"))
        assert set.contains(answer.value), seed
        scale = 1 + f.abs().max().item() + w.abs().max().item()
        assert (answer.value - f).norm() >= (full.value - f).norm() - 1e-9 * scale, seed
        if answer.status != Status.INSIDE:
            flats = [y for y, _ in literal_candidates(set, f.numpy(), w.numpy())]
            assert min(np.abs(answer.value.numpy() - y).max() for y in flats) <= 1e-8 * scale, seed


@pytest.mark.parametrize("search", ["full", "lite", "active"])
def test_without_w_every_search_but_lite_is_the_euclidean_projection(search: str):
    """With w = 0 the nearest candidate is the projection; `active` finds it and `lite` is never nearer."""
    for seed in SEEDS[::7]:
        set, f, _ = random_problem(seed)
        answer = project(f, set, search=search).value
        best = project(f, set, search="full").value
        if search == "lite":
            assert (answer - f).norm() >= (best - f).norm() - 1e-9
        else:
            torch.testing.assert_close(answer, best, rtol=1e-9, atol=1e-9)


def test_lite_answers_where_the_printed_rule_has_no_candidate():
    """The paper's sizes {1, min(m, n)} have no feasible candidate on this wedge; {1, rank} do."""
    from caffnet import AffineSet

    set = AffineSet.inequality([[-1.0, 0, 0], [0, -1.0, 0], [-1.0, 0, 0]], [0.0, 0.0, 100.0])
    answer = project(torch.tensor([-1.0, -1.0, 0.0]), set, search="lite")
    assert answer.search == "lite"
    assert torch.equal(answer.value, torch.zeros(3))


def test_a_batch_of_sets_has_one_rank_each_in_lite():
    """Rank 1, 2 and 3 in one batch: each sample needs its own size of minimal face."""
    from caffnet import AffineSet

    rows = torch.tensor(
        [
            [[1.0, 0, 0], [2.0, 0, 0], [1.0, 0, 0]],
            [[-1.0, 0, 0], [0, -1.0, 0], [-1.0, 0, 0]],
            [[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]],
        ]
    )
    bounds = torch.tensor([[1.0, 4.0, 3.0], [0.0, 0.0, 100.0], [0.0, 0.0, 0.0]])
    f = torch.tensor([[3.0, 1, 1], [-1.0, -1, 0], [1.0, 2, 3]])
    expected = torch.tensor([[1.0, 1, 1], [0.0, 0, 0], [0.0, 0, 0]])
    assert torch.equal(project(f, AffineSet.inequality(rows, bounds), search="lite").value, expected)


def test_the_answer_does_not_depend_on_the_budget():
    """Chunks of samples and of sub-constraints, down to one at a time, give the same bits."""
    from caffnet import AffineSet

    random = torch.Generator().manual_seed(0)
    A, f, w = (torch.randn(*shape, generator=random, dtype=torch.float64) for shape in ((30, 7, 3), (30, 3), (30, 3)))
    b = A.abs().sum(-1)
    for set in (AffineSet.inequality(A, b), AffineSet.inequality(A[0], b)):
        whole = project(3 * f, set, w, search="full")
        for budget in (3000, 20_000, 200_000):
            part = project(3 * f, set, w, search="full", budget=budget)
            assert torch.equal(part.value, whole.value)
            assert torch.equal(part.active, whole.active)


def test_a_prepared_set_gives_the_same_answers_and_can_be_indexed():
    from caffnet import AffineSet

    random = torch.Generator().manual_seed(1)
    A, f, w = (torch.randn(*shape, generator=random, dtype=torch.float64) for shape in ((9, 6, 3), (9, 3), (9, 3)))
    set = AffineSet.inequality(A, A.abs().sum(-1))
    ready = prepare(set)
    assert ready.search == "full"
    whole = project(4 * f, set, w).value
    assert torch.equal(project(4 * f, ready, w).value, whole)
    some = torch.tensor([7, 2, 3])
    assert torch.equal(project(4 * f[some], ready[some], w[some]).value, whole[some])


def test_a_prepared_set_takes_other_bounds():
    from caffnet import AffineSet, ConstraintError

    random = torch.Generator().manual_seed(2)
    A, C, f = (torch.randn(*shape, generator=random, dtype=torch.float64) for shape in ((4, 3), (1, 3), (9, 3)))
    b, d = torch.rand(9, 4, generator=random, dtype=torch.float64), torch.randn(9, 1, generator=random).double()
    ready = prepare(AffineSet.inequality(A, b[0]) & AffineSet.equality(C, d[0]))
    moved = ready.with_bounds(upper=torch.cat([b, d], -1))
    whole = AffineSet.inequality(A, b) & AffineSet.equality(C, d)
    assert moved.set.row_kinds == whole.row_kinds
    torch.testing.assert_close(project(f, moved).value, project(f, whole).value)
    with pytest.raises(ConstraintError, match=r"upper must have shape \(..., 5\)"):
        ready.with_bounds(upper=b)
    with pytest.raises(ConstraintError, match="share one number type"):
        ready.with_bounds(upper=torch.zeros(5))


@pytest.mark.parametrize("scale", [1e2, 1e4, 1e8])
def test_a_large_w_does_not_lose_the_vertices(scale: float):
    """Far candidates must not drown near ones in the rounding error of g."""
    for seed in SEEDS[::10]:
        set, f, w = random_problem(seed)
        w = scale * w
        answer = project(f, set, w, search="full")
        candidates = [y for y, _ in literal_candidates(set, f.numpy(), w.numpy())]
        if answer.status == Status.INSIDE or not candidates:
            continue
        best = min(length(y - f.numpy(), 2) for y in candidates)
        mine = length((answer.value - f).numpy(), 2)
        assert mine <= best * (1 + 1e-6) + 1e-9, seed


@pytest.mark.parametrize("search", ["full", "lite", "active"])
def test_batch_axes_of_sets_broadcast_against_f(search: str):
    from caffnet import AffineSet

    random = torch.Generator().manual_seed(3)
    A, b = torch.randn(2, 3, 4, 3, generator=random).double(), torch.rand(2, 3, 4, generator=random).double()
    f, w = 3 * torch.randn(2, 3, 3, generator=random).double(), torch.randn(2, 3, 3, generator=random).double()
    for pick in (slice(None), slice(0, 1)):
        for axes in ((pick, slice(None)), (slice(None), pick)):
            part, bound = A[axes], b[axes]
            whole = project(f, AffineSet.inequality(part, bound), w, search=search).value
            prepared = project(f, prepare(AffineSet.inequality(part, bound), search), w).value
            for i in range(2):
                for j in range(3):
                    rows, right = part.expand(2, 3, 4, 3)[i, j], bound.expand(2, 3, 4)[i, j]
                    alone = project(f[i, j], AffineSet.inequality(rows, right), w[i, j], search=search).value
                    torch.testing.assert_close(whole[i, j], alone)
                    torch.testing.assert_close(prepared[i, j], alone)
    last = prepare(AffineSet.inequality(A[0], b[0]), search)[2]
    alone = project(f[0], AffineSet.inequality(A[0, 2], b[0, 2]), w[0], search=search).value
    torch.testing.assert_close(project(f[0], last, w[0]).value, alone)


def test_lite_counts_only_what_it_looks_at():
    """24 rows in 22 dimensions: 276 minimal faces, not the millions of smaller subsets."""
    from caffnet import AffineSet, BudgetError

    random = torch.Generator().manual_seed(5)
    set = AffineSet.inequality(torch.randn(24, 22, generator=random).double(), torch.ones(24).double())
    listed = (24 + 276) * 22 * 9  # bytes
    assert prepare(set, "lite", budget=listed).search == "lite"
    with pytest.raises(BudgetError, match="would look at 300 sub-constraints"):
        prepare(set, "lite", budget=listed - 1)
