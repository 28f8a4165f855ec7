"""Soft rows: those that give way where the set is empty, and those that give way at the price of a weight."""

from __future__ import annotations

import copy
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import default_collate

from caffnet import AffineSet, CAffine, CAffNet, ConstraintError, FeedForward, InfeasibleError, Status, prepare, project

DOUBLE = torch.float64
BOX, WISH = AffineSet.box(-1.0, 1.0, dim=1), AffineSet.box(3.0, None, dim=1)


def conflicting(seed: int) -> tuple[AffineSet, AffineSet, Tensor]:
    """Hard rows that share a hidden point, soft rows that may exclude it, and an f; every other problem in integers.

    Integers make parallel rows, ties, rows of zeros and hard rows without an inside. Some rows are equalities.
    """
    random = np.random.default_rng(seed)
    n, hard, soft = int(random.integers(1, 6)), int(random.integers(0, 6)), int(random.integers(1, 7))
    whole = seed % 2 == 1
    if whole:
        A = random.integers(-2, 3, size=(hard + soft, n)).astype(float)
        upper = random.integers(-3, 4, size=hard + soft).astype(float)
        hidden, f = random.integers(-2, 3, size=n).astype(float), random.integers(-3, 4, size=n).astype(float)
    else:
        A = random.normal(size=(hard + soft, n)) * 10.0 ** random.integers(-2, 3, size=(hard + soft, 1))
        upper = random.normal(size=hard + soft) * np.abs(A).sum(1)
        hidden, f = random.normal(size=n), 3 * random.normal(size=n)
    lower = np.where(random.random(hard + soft) < 0.3, upper - random.integers(0, 3, size=hard + soft), -np.inf)
    at = A[:hard] @ hidden
    upper[:hard], lower[:hard] = np.maximum(upper[:hard], at), np.minimum(lower[:hard], at)
    equal = random.random(hard) < 0.15
    upper[:hard][equal] = lower[:hard][equal] = at[equal]
    A, lower, upper, f = map(torch.from_numpy, (A, lower, upper, f))
    return AffineSet(A[:hard], lower[:hard], upper[:hard]), AffineSet(A[hard:], lower[hard:], upper[hard:]), f


def least_violation(hard: AffineSet, soft: AffineSet) -> float:
    """The least largest violation of the soft rows within the hard ones, by HiGHS."""
    optimize = pytest.importorskip("scipy.optimize")
    rows, bounds = [], []
    for part, rate in ((hard, 0.0), (soft, -1.0)):
        for a, low, high in zip(part.A.numpy(), part.lower.tolist(), part.upper.tolist(), strict=True):
            for sign, bound in ((1.0, high), (-1.0, -low)):
                if np.isfinite(bound):
                    rows.append(np.append(sign * a, rate))
                    bounds.append(bound)
    cost, free = np.append(np.zeros(hard.n), 1.0), [(None, None)] * hard.n + [(0, None)]
    fine = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    found = optimize.linprog(cost, np.array(rows), bounds, bounds=free, method="highs", options=fine)
    assert found.status == 0
    return found.fun


def breaks_exactly(set: AffineSet, y: Tensor) -> bool:
    """Whether an inequality is broken, without rounding."""
    point = [Fraction(v) for v in y.tolist()]
    for a, low, high in zip(set.A.tolist(), set.lower.tolist(), set.upper.tolist(), strict=True):
        value = sum((Fraction(c) * v for c, v in zip(a, point, strict=True)), Fraction(0))
        if low != high and ((high < np.inf and value > Fraction(high)) or (low > -np.inf and value < Fraction(low))):
            return True
    return False


# ------------------------------------------------------------------------------------------------ giving way


def test_soft_rows_give_way_by_the_least_and_hard_rows_never():
    """Against HiGHS on 600 random problems, half of them degenerate."""
    seen = dict.fromkeys(Status, 0)
    for seed in range(600):
        hard, soft, f = conflicting(seed)
        answer = project(f, hard & soft.soft())
        seen[Status(int(answer.status))] += 1
        size = 1 + float(answer.value.abs().max() + f.abs().max())
        scale = size * float(soft.A.abs().sum(-1).max().clamp(min=1))
        least, got = least_violation(hard, soft), float(soft.violation(answer.value).max())
        assert got == pytest.approx(least, abs=1e-9 * scale), seed
        assert hard.m == 0 or hard.contains(answer.value), seed
        if least > 1e-6 * scale:
            assert answer.status == Status.RELAXED, seed
        elif answer.status == Status.RELAXED:
            assert least > 0, seed
    assert seen[Status.RELAXED] > 200 and seen[Status.PROJECTED] > 100


def test_a_row_that_can_be_kept_is_kept():
    """One soft row is out of reach; the other is not, and does not give way with it."""
    wishes = AffineSet.box([11.0, 0.5], None).soft()
    answer = project(torch.zeros(2), AffineSet.box(-1.0, 1.0, dim=2) & wishes)
    assert answer.status == Status.RELAXED
    assert torch.equal(answer.value, torch.tensor([1.0, 0.5]))


def least_levels(hard: AffineSet, soft: AffineSet) -> list[float]:
    """The violations of the soft rows, the largest as small as can be, then the next: one linear program for each row.

    A row stays at the level of the program before if it cannot be brought below it.
    """
    kept = AffineSet(soft.A[:0], soft.lower[:0], soft.upper[:0])
    levels: list[float] = []
    while soft.m:
        level = least_violation(hard & kept, soft)
        if level < 1e-7:
            return levels + [0.0] * soft.m
        room = level + 1e-10
        stuck = []
        for i in range(soft.m):
            others = [j for j in range(soft.m) if j != i]
            rest = AffineSet(soft.A[others], soft.lower[others] - room, soft.upper[others] + room)
            alone = AffineSet(soft.A[[i]], soft.lower[[i]], soft.upper[[i]])
            if least_violation(hard & kept & rest, alone) > level - 1e-6:
                stuck.append(i)
        assert stuck
        kept = kept & AffineSet(soft.A[stuck], soft.lower[stuck] - room, soft.upper[stuck] + room)
        levels += [level] * len(stuck)
        left = [j for j in range(soft.m) if j not in stuck]
        soft = AffineSet(soft.A[left], soft.lower[left], soft.upper[left])
    return levels


def test_the_largest_violation_is_least_then_the_next():
    """All violations, sorted, against linear programs."""
    several = 0
    for seed in range(1, 240, 2):
        hard, soft, f = conflicting(seed)
        answer = project(f, hard & soft.soft())
        if answer.status != Status.RELAXED:
            continue
        got = soft.violation(answer.value).sort(descending=True).values.tolist()
        wanted = sorted(least_levels(hard, soft), reverse=True)
        assert got == pytest.approx(wanted, abs=1e-6), seed
        several += len({round(level, 4) for level in wanted if level > 0}) > 1
    assert several > 5


def test_of_all_points_that_violate_least_it_is_the_nearest():
    daqp = pytest.importorskip("daqp")
    checked = 0
    for seed in range(0, 400, 2):
        hard, soft, f = conflicting(seed)
        answer = project(f, hard & soft.soft())
        if answer.status != Status.RELAXED:
            continue
        level = soft.violation(answer.value) * (1 + 1e-9) + 1e-9
        A = torch.cat([hard.A, soft.A]).numpy().copy()
        upper = torch.cat([hard.upper, soft.upper + level]).numpy()
        lower = torch.cat([hard.lower, soft.lower - level]).numpy()
        zero = np.zeros(len(A), dtype=np.int32)
        y, _, flag, _ = daqp.solve(
            np.eye(hard.n), -f.numpy(), A, np.minimum(upper, 1e30), np.maximum(lower, -1e30), zero
        )
        if flag == 1:
            checked += 1
            near, far = np.linalg.norm(y - f.numpy()), float((answer.value - f).norm())
            assert far <= near + 1e-4 * (1 + near), seed  # the little more level counts along flat rows
    assert checked > 30


def triangles(samples: int, seed: int = 0) -> tuple[AffineSet, AffineSet, Tensor]:
    """Hard heptagons of random size, turned, and soft rows that none of their points satisfies."""
    stream = torch.Generator().manual_seed(seed)
    turn, size, away = (torch.rand(samples, 1, dtype=DOUBLE, generator=stream) for _ in range(3))
    corners = torch.linspace(0, 2 * torch.pi, 8, dtype=DOUBLE)[:-1] + turn
    hard = AffineSet.inequality(torch.stack([corners.cos(), corners.sin()], -1), (0.1 + size).expand(samples, 7))
    wishes = 2 * torch.pi * torch.rand(samples, 2, dtype=DOUBLE, generator=stream)
    soft = AffineSet.inequality(torch.stack([wishes.cos(), wishes.sin()], -1), (-2.0 - 3 * away).expand(samples, 2))
    return hard, soft, 3 * torch.randn(samples, 2, dtype=DOUBLE, generator=stream)


def test_no_hard_row_is_broken_in_a_hundred_thousand_empty_sets():
    hard, soft, f = triangles(100_000)
    answer = project(f, hard & soft.soft())
    assert (answer.status == Status.RELAXED).all()
    assert hard.contains(answer.value).all()
    assert hard.violation(answer.value).max() < 1e-14


def test_hard_rows_hold_in_exact_arithmetic_under_strict():
    """All 1e5 in long double, where a product of two doubles loses 2^-64 of itself; the closest 3000 in fractions."""
    hard, soft, f = triangles(100_000)
    answer = project(f, hard & soft.soft(), strict=True)
    assert (answer.status == Status.RELAXED).all()
    A, y = hard.A.numpy().astype(np.longdouble), answer.value.numpy().astype(np.longdouble)
    room = (hard.upper.numpy() - (A * y[:, None, :]).sum(-1)).min(-1)
    assert room.min() > -1e-18
    for i in np.argsort(room)[:3000]:
        assert not breaks_exactly(hard[int(i)], answer.value[i]), i


def test_the_rest_of_a_thin_set_is_left_to_its_soft_rows():
    """Hard rows with an inside hold exactly also where the whole set is thinner than rounding."""
    thin = broken = 0
    for seed in range(1, 1200, 2):
        hard, soft, f = conflicting(seed)
        if not hard.m or (hard.lower == hard.upper).any():
            continue
        roomy = project(f, AffineSet(hard.A, hard.lower + 0.01, hard.upper - 0.01), on_infeasible="nan")
        if roomy.status == Status.INFEASIBLE:
            continue
        answer = project(f, hard & soft.soft(), strict=True)
        thin += int(answer.status == Status.WITHIN_TOL)
        broken += breaks_exactly(hard, answer.value)
    assert broken == 0 and thin >= 3


@pytest.mark.parametrize("options", [{}, {"strict": True}, {"gradient": "tangent"}, {"search": "active"}])
def test_a_batch_gives_the_bits_of_a_loop(options):
    hard, soft, f = triangles(40, seed=1)
    set = hard & soft.soft()
    f = f.requires_grad_()
    whole = project(f, set, **options)
    (slope,) = torch.autograd.grad(whole.value.sum(), f)
    for i in range(40):
        g = f[i].detach().requires_grad_()
        one = project(g, set[i], **options)
        assert torch.equal(one.value, whole.value[i]) and torch.equal(one.active, whole.active[i])
        assert torch.equal(torch.autograd.grad(one.value.sum(), g)[0], slope[i])


def test_while_the_set_has_a_point_soft_rows_are_rows():
    hard, soft, f = triangles(50)
    met = AffineSet.inequality(soft.A, torch.zeros(50, 2, dtype=DOUBLE) + 0.05)
    plain, yielding = project(f, hard & met), project(f, hard & met.soft())
    assert (plain.status < Status.INFEASIBLE).all()
    for name in ("value", "status", "active"):
        assert torch.equal(getattr(plain, name), getattr(yielding, name))


def test_a_row_that_no_point_can_change_does_not_loosen_the_others():
    still = AffineSet.inequality([[0.0, 0.0], [1.0, 0.0]], [-5.0, 1.0], names=["out of reach", "kept"])
    answer = project(torch.tensor([4.0, 0.0]), still.soft())
    assert answer.status == Status.RELAXED
    assert answer.value.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("search", ["full", "lite", "active"])
def test_every_search_and_number_type(dtype, search):
    set = BOX.to(dtype) & WISH.to(dtype).soft()
    answer = project(torch.zeros(1, dtype=dtype), set, search=search)
    assert answer.value.tolist() == [1.0] and answer.status == Status.RELAXED
    assert answer.active.tolist() == [1, -1]
    assert answer.at_vertex and answer.violation == 2


def test_crossed_bounds_of_a_soft_row_meet_halfway():
    set = AffineSet([[1.0, 0.0]], [2.0], [1.0]).soft() & AffineSet.box(-5.0, 5.0, dim=2)
    assert project(torch.tensor([9.0, 3.0]), set).value.tolist() == [1.5, 3.0]


def test_nearest_in_a_metric():
    """Rows x <= 0 and x >= 1 leave the line x = 1/2; the nearest point on it in M."""
    rows = AffineSet.inequality([[1.0, 0.0], [-1.0, 0.0]], [0.0, -1.0]).soft()
    answer = project(torch.tensor([3.0, 9.0]), rows.with_metric([[2.0, 1.0], [1.0, 3.0]]))
    torch.testing.assert_close(answer.value, torch.tensor([0.5, 9 + 2.5 / 3]))
    assert answer.status == Status.RELAXED


@pytest.mark.parametrize(("upper", "far", "active"), [(torch.inf, 1e125, [0, 1]), (0.0, 1.0, [1, 1])])
def test_a_soft_row_of_the_largest_numbers_gives_way(upper: float, far: float, active: list[int]):
    """Its unit, in the numbers that the kernel computes with, is below the smallest one."""
    line = AffineSet(torch.tensor([[1.0, 0.0]], dtype=DOUBLE), [2.0], [2.0])
    lower = upper if upper == torch.inf else -torch.inf
    wish = AffineSet(torch.tensor([[1e308, 0.0]], dtype=DOUBLE), [lower], [upper]).soft()
    answer = project(torch.tensor([0.0, far], dtype=DOUBLE), wish & line)
    assert answer.status == Status.RELAXED
    assert answer.value.tolist() == [2.0, far] and answer.active.tolist() == active


# ------------------------------------------------------------------------------------------------ hard conflicts


def test_hard_rows_in_conflict_are_named_alone():
    set = (
        AffineSet.box([2.0], None, names=["floor"])
        & AffineSet.box(None, [1.0], names=["ceiling"])
        & AffineSet.box([9.0], None, names=["wish"]).soft()
    )
    f = torch.zeros(1)
    with pytest.raises(InfeasibleError, match="floor") as raised:
        project(f, set)
    assert set.names[2] not in raised.value.conflicts[0].names and raised.value.conflicts[0].proven
    assert project(f, set, on_infeasible="nan").value.isnan().all()
    nearest = project(f, set, on_infeasible="nearest")
    assert nearest.status == Status.INFEASIBLE and nearest.value.tolist() == [1.5]


def test_hard_rows_in_conflict_are_found_beside_a_soft_row_of_other_numbers():
    """At the size that the soft row asks for, 1e92, a gap of 10 would be rounding."""
    wish = AffineSet(torch.tensor([[1.3789130657754968e216]], dtype=DOUBLE), [1.7976931348623157e308], [-4.0]).soft()
    hard = AffineSet(torch.tensor([[-4.0], [0.3999999999999993]], dtype=DOUBLE), [-4.0, -torch.inf], [0.0, -4.0])
    with pytest.raises(InfeasibleError) as raised:
        project(torch.zeros(1, dtype=DOUBLE), wish & hard)
    assert sorted(raised.value.conflicts[0].rows) == [1, 2] and raised.value.conflicts[0].proven


def test_giving_way_is_an_answer_whatever_is_asked_for_infeasible_sets():
    for mode in ("raise", "nan", "nearest"):
        answer = project(torch.zeros(1), BOX & WISH.soft(), on_infeasible=mode)
        assert answer.value.tolist() == [1.0] and answer.status == Status.RELAXED


def test_rows_that_are_soft_if_the_nearest_point_is_asked_for():
    set = BOX & WISH.soft(when="nearest")
    with pytest.raises(InfeasibleError):
        project(torch.zeros(1), set)
    assert project(torch.zeros(1), set, on_infeasible="nan").status == Status.INFEASIBLE
    assert project(torch.zeros(1), set, on_infeasible="nearest").value.tolist() == [1.0]
    assert project(torch.zeros(1), BOX & WISH, on_infeasible="nearest").value.tolist() == [2.0]


# ------------------------------------------------------------------------------------------------ weights


def weighted(seed: int) -> tuple[AffineSet, AffineSet, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=DOUBLE, generator=random)

    hard, soft = AffineSet.inequality(draw(2, 4), draw(2).abs()), AffineSet.inequality(draw(3, 4), draw(3) - 1)
    return hard, soft, draw(3).exp(), 2 * draw(4)


def test_weights_price_the_squared_slack():
    """Against DAQP on (y, slack), and the objective is no better a small step away."""
    daqp = pytest.importorskip("daqp")
    for seed in range(60):
        hard, soft, weight, f = weighted(seed)
        answer = project(f, hard & soft.soft(weight))
        H = np.diag(np.concatenate([np.ones(4), weight.numpy()]))
        A = np.block([[hard.A.numpy(), np.zeros((2, 3))], [soft.A.numpy(), -np.eye(3)]])
        upper = torch.cat([hard.upper, soft.upper]).numpy()
        lower, zero = np.full(5, -1e30), np.zeros(5, dtype=np.int32)
        y, _, flag, _ = daqp.solve(H, np.concatenate([-f.numpy(), np.zeros(3)]), A, upper, lower, zero)
        assert flag == 1
        np.testing.assert_allclose(answer.value.numpy(), y[:4], atol=1e-8)
        gave = bool((soft.violation(answer.value) > 1e-12).any())
        assert (answer.status == Status.RELAXED) == gave, seed


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_the_unit_of_a_row_is_that_of_its_slack(size):
    """size · y >= 3 size with weight w prices (3 - y)² by w size²."""
    wish = AffineSet.inequality([[-size]], [-3 * size]).soft(0.25 / size**2)
    torch.testing.assert_close(project(torch.zeros(1), BOX & wish).value, torch.tensor([0.6]))


def test_a_heavy_weight_is_nearly_hard_and_a_light_one_nearly_none():
    values = [project(torch.zeros(1), AffineSet.box([3.0], None).soft(w)).value.item() for w in (1e-9, 1.0, 1e9)]
    assert values == pytest.approx([0.0, 1.5, 3.0], abs=1e-6)


def test_weights_beside_rows_that_give_way_where_the_set_is_empty():
    set = BOX & WISH.soft() & AffineSet.box(None, 0.0, dim=1).soft(1.0)
    answer = project(torch.zeros(1), set)
    assert answer.value.tolist() == [1.0] and answer.status == Status.RELAXED


def test_weights_hold_hard_rows_exactly_under_strict():
    hard, soft, f = triangles(300)
    answer = project(f, hard & soft.soft(torch.rand(300, 2, dtype=DOUBLE) + 0.1), strict=True)
    assert not any(breaks_exactly(hard[i], answer.value[i]) for i in range(300))


# ------------------------------------------------------------------------------------------------ gradients


def _case(name: str) -> tuple:
    """A function of tensors whose answers all have soft rows that gave way, and tensors for it."""
    random = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(4, *shape, dtype=DOUBLE, generator=random)

    around = draw(4, 3)
    around, bounds = around - around.mean(1, keepdim=True), -draw(4).abs() - 0.2
    a, c, gap, e = draw(1, 3), draw(1), draw(1).abs() + 0.5, draw(1, 3)
    M = torch.eye(3, dtype=DOUBLE) + (around.mT @ around) / 4

    def opposite(a, c, gap, e):
        pair = AffineSet.inequality(torch.cat([a, -2 * a], -2), torch.cat([c, -2 * c - gap], -1))
        return pair.soft() & AffineSet.equality(e, c)

    cases = {
        "all soft": (lambda f, A, b: (f, AffineSet.inequality(A, b).soft()), (draw(3), around, bounds)),
        "hard and soft": (
            lambda f, A, b: (
                f,
                AffineSet.inequality(A[:, :2], b[:, :2]) & AffineSet.inequality(A[:, 2:], b[:, 2:]).soft(),
            ),
            (draw(3), around, bounds),
        ),
        "parallel": (lambda f, *data: (f, opposite(*data)), (draw(3), a, c, gap, e)),
        "metric": (
            lambda f, M, *data: (f, opposite(*data).with_metric((M + M.mT) / 2)),
            (draw(3), M, a, c, gap, e),
        ),
        "two levels": (
            lambda f, a, c, gap, e: (
                f,
                AffineSet.inequality(
                    torch.cat([a, -2 * a, e, a - e], -2),
                    torch.cat([c, -2 * c - 3 * gap, -c, 3 * c - gap], -1),
                ).soft()
                & AffineSet.inequality(-e, c + gap / 4),
            ),
            (draw(3), a, c, gap, e),
        ),
        "crossed": (
            lambda f, a, c, gap: (
                f,
                AffineSet(torch.cat([a, a.flip(-1)], -2), torch.cat([c + gap, c - gap], -1), c.expand(4, 2)).soft(),
            ),
            (draw(3), a, c, gap),
        ),
        "weight": (
            lambda f, A, b, w: (
                f,
                AffineSet.inequality(A[:, :1], b[:, :1]) & AffineSet.inequality(A[:, 1:], b[:, 1:]).soft(w),
            ),
            (draw(3), draw(4, 3), bounds, draw(3).abs() + 0.2),
        ),
        "weight and metric": (
            lambda f, A, b, w, M: (
                f,
                (AffineSet.inequality(A[:, :1], b[:, :1]) & AffineSet.equality(A[:, 1:], b[:, 1:]).soft(w)).with_metric(
                    (M + M.mT) / 2
                ),
            ),
            (draw(3), draw(4, 3), bounds, draw(3).abs()[0] + 0.2, M),
        ),
    }
    return cases[name]


CASES = ["all soft", "hard and soft", "parallel", "metric", "two levels", "crossed", "weight", "weight and metric"]


@pytest.mark.parametrize("with_w", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_gradients(name, with_w):
    make, inputs = _case(name)
    w = torch.randn(4, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(5)) * 0.3

    def answer(w: Tensor, *inputs: Tensor) -> Tensor:
        f, set = make(*inputs)
        found = project(f, set, w if with_w else None)
        assert (found.status == Status.RELAXED).all()
        return found.value

    tensors = [t.clone().requires_grad_() for t in (w, *inputs)]
    tensors[0].requires_grad_(with_w)
    assert torch.autograd.gradcheck(answer, tensors)
    assert torch.autograd.gradgradcheck(answer, tensors)


def test_the_kernel_and_the_plain_operations_agree():
    """First derivatives by the kernel and by the closed form in (y, t), on degenerate problems too."""
    compared = 0
    for seed in range(300):
        hard, soft, f = conflicting(seed)
        set = hard & soft.soft()
        v = torch.randn(set.n, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))
        leaves = [t.clone().requires_grad_() for t in (f, set.lower, set.upper)]
        for gradient in ("exact", "tangent"):
            made = AffineSet.from_parts(set.A, leaves[1], leaves[2], None, set.row_kinds, None, set.softness)
            answer = project(leaves[0], made, gradient=gradient)
            if answer.status != Status.RELAXED:
                continue
            first = torch.autograd.grad(answer.value, leaves, v, retain_graph=True)
            again = torch.autograd.grad(answer.value, leaves, v, create_graph=True)
            size = 1 + max(t.abs().max().item() for t in first)
            for one, other in zip(first, again, strict=True):
                assert one.isfinite().all()
                torch.testing.assert_close(one, other, rtol=0, atol=1e-7 * size)
            compared += 1
    assert compared > 200


def test_a_level_moves_with_the_bounds_that_set_it():
    """x <= a and x >= b with b > a: x = (a + b) / 2."""
    a, b = torch.tensor([0.0], requires_grad=True), torch.tensor([1.0], requires_grad=True)
    value = project(torch.tensor([5.0]), (AffineSet.box(None, a) & AffineSet.box(b, None)).soft()).value
    torch.testing.assert_close(torch.stack(torch.autograd.grad(value, (a, b))), torch.full((2, 1), 0.5))


# ------------------------------------------------------------------------------------------------ everywhere


def test_project_layer_and_network_agree():
    set = AffineSet.box(-1.0, 1.0, dim=2) & AffineSet.inequality([[1.0, 1.0]], [-5.0]).soft()
    priced = AffineSet.box(-1.0, 1.0, dim=2) & AffineSet.inequality([[1.0, 1.0]], [-5.0]).soft(0.3)
    x = torch.randn(6, 2)
    for made in (set, priced):
        wanted = project(x, made).value
        for constraint in (made, prepare(made), lambda x, made=made: made.to(x.dtype)):
            assert torch.equal(CAffine(constraint)(x, x=x), wanted)
            assert torch.equal(CAffNet(torch.nn.Identity(), constraint)(x), wanted)


def test_layers_are_saved_copied_and_moved_with_their_soft_rows():
    rows = AffineSet.inequality([[1.0, 1.0], [1.0, -1.0]], [-5.0, -4.0]).soft([0.3, 2.0])
    layer = CAffine(AffineSet.box(-1.0, 1.0, dim=2) & rows)
    f = torch.randn(5, 2)
    wanted = layer(f)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(f), wanted)
    assert layer.to(DOUBLE)(f.double()).dtype == DOUBLE
    state = layer.state_dict()
    assert state["weight"].tolist() == pytest.approx([0.3, 2.0])
    state["weight"] = 2 * state["weight"]
    with pytest.warns(UserWarning, match="its metric or weights"):
        layer.load_state_dict(state)
    assert layer.set_at().softness.weight.tolist() == pytest.approx([0.6, 4.0])


def test_sets_keep_their_soft_rows():
    first = AffineSet.box(torch.zeros(3, 2), 1.0).soft(torch.rand(3, 2) + 1)
    second = AffineSet.inequality(torch.ones(1, 2), [1.0], names=["sum"]).soft()
    both = first & second & AffineSet.box(-9.0, 9.0, dim=2)
    assert both.softness.kinds == "wws.." and both.slacks == 2 and both.batch_shape == (3,)
    assert both[1].softness.weight.shape == (2,)
    assert both.to(DOUBLE).softness.weight.dtype == DOUBLE
    assert both.without_soft().m == 2 and both.without_soft().softness is None
    made = default_collate([both[0], both[2]])
    assert made.softness.kinds == "wws.." and made.softness.weight.shape == (2, 2)
    with pytest.raises(ConstraintError, match="same soft rows"):
        default_collate([second, AffineSet.inequality(torch.ones(1, 2), [1.0])])
    bounds = prepare(second).with_bounds(upper=torch.zeros(4, 1)).set
    assert bounds.softness.kinds == "s"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, at its first forward derivative
def test_compiled_mapped_and_exported():
    net = torch.nn.Linear(2, 2).double()
    rows = AffineSet.inequality(torch.ones(1, 2, dtype=DOUBLE), [-5.0])
    x = torch.randn(6, 2, dtype=DOUBLE)
    for soft in (rows.soft(), rows.soft(0.3)):
        model = CAffNet(net, AffineSet.box(-torch.ones(2, dtype=DOUBLE), 1.0) & soft)
        wanted = model(x)
        torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(x), wanted, rtol=0, atol=0)
        torch.testing.assert_close(torch.func.vmap(model)(x), wanted)
        exported = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        torch.testing.assert_close(exported.module()(x[:3]), model(x[:3]), rtol=0, atol=0)
        torch.testing.assert_close(torch.func.jacrev(model)(x), torch.func.jacfwd(model)(x))


def test_a_network_learns_its_weights():
    """A weight that comes from a network: the loss asks for a slack of 1."""
    price = torch.nn.Linear(1, 1, dtype=DOUBLE)
    x = torch.ones(1, 1, dtype=DOUBLE)
    wish = AffineSet.box(torch.full((1,), 3.0, dtype=DOUBLE), None)
    layer = CAffine(lambda x: wish.soft(price(x).exp()))
    optimiser = torch.optim.Adam(price.parameters(), 0.05)
    for _ in range(300):
        loss = (layer(torch.zeros(1, 1, dtype=DOUBLE), x=x) - 2).square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 1e-4
    assert price(x).exp().item() == pytest.approx(2.0, rel=0.05)  # y = 3 w / (1 + w)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: WISH.soft(0.0), r"weight must be positive and finite, got 0.0: leave rows"),
        (lambda: WISH.soft([1.0, 2.0]), r"weight must be one number or have shape \(..., 1\)"),
        (lambda: WISH.soft(float("inf")), "weight must be positive and finite, got inf"),
        (lambda: WISH.soft(when="never"), 'when must be "always" or "nearest", got \'never\''),
        (lambda: WISH.soft(1.0, when="nearest"), "Rows with a weight always give way"),
        (lambda: project(torch.zeros(1), WISH.soft(1.0), norm=1), "prices a squared distance: with norm=1"),
        (lambda: project(torch.zeros(1), WISH.soft(1.0), search="paper"), "search='paper' it cannot be combined"),
        (lambda: AffineSet.box(torch.zeros(3, 2), 1.0).soft(torch.ones(4, 2)), "do not broadcast"),
    ],
)
def test_messages(wrong, message):
    with pytest.raises(ConstraintError, match=message):
        wrong()


def test_a_network_with_a_soft_set_trains():
    model = CAffNet(FeedForward(2, 1), BOX & WISH.soft(), gradient="tangent")
    model(torch.randn(8, 2)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


# ------------------------------------------------------------------------------------------------ several conflicts


def slope_error(make, *inputs: Tensor) -> float:
    """The largest error of a gradient, by the kernel and by plain operations, against finite differences."""
    leaves, worst, step = [t.clone().requires_grad_() for t in inputs], 0.0, 1e-6
    value = make(*leaves).value
    v = torch.randn(value.shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    found = [torch.autograd.grad((value * v).sum(), leaves, retain_graph=True, create_graph=again) for again in (0, 1)]
    for place, tensor in enumerate(inputs):
        for i in range(tensor.numel()):
            ends = []
            for sign in (1, -1):
                moved = [t.clone() for t in inputs]
                moved[place].view(-1)[i] += sign * step
                ends.append((make(*moved).value * v).sum())
            slope = (ends[0] - ends[1]) / (2 * step)
            worst = max(worst, *(float((slope - slopes[place].view(-1)[i]).abs()) for slopes in found))
    return worst


def pairs(n: int) -> Tensor:
    return torch.cat([torch.eye(n, dtype=DOUBLE), -torch.eye(n, dtype=DOUBLE)])


def test_conflicts_beside_each_other_have_their_own_level():
    """Also where they are exceeded by as much: the answer is smooth there."""
    f = torch.tensor([0.3, -0.7], dtype=DOUBLE)
    equal = -torch.ones(4, dtype=DOUBLE)
    assert slope_error(lambda f, b: project(f, AffineSet.inequality(pairs(2), b).soft()), f, equal) < 1e-6
    low, high = torch.ones(2, dtype=DOUBLE), -torch.ones(2, dtype=DOUBLE)
    rows = torch.eye(2, dtype=DOUBLE)
    assert slope_error(lambda f, low, high: project(f, AffineSet(rows, low, high).soft()), f, low, high) < 1e-6


@pytest.mark.parametrize("count", [9, 12])
def test_many_levels(count: int):
    f = torch.randn(count, dtype=DOUBLE, generator=torch.Generator().manual_seed(2))
    bounds = -torch.linspace(1, 2, 2 * count, dtype=DOUBLE)
    assert slope_error(lambda f, b: project(f, AffineSet.inequality(pairs(count), b).soft()), f, bounds) < 1e-5


def test_a_conflict_above_what_bounds_miss_each_other_by():
    row, f = torch.tensor([[1.0, 0.0]], dtype=DOUBLE), torch.tensor([0.3, -0.7], dtype=DOUBLE)
    low, high, b = (torch.tensor([x], dtype=DOUBLE) for x in (1.0, -1.0, -5.0))

    def make(f, low, high, b):
        return project(f, AffineSet(row, low, high).soft() & AffineSet.inequality(-row, b))

    assert slope_error(make, f, low, high, b) < 1e-6


@pytest.mark.parametrize("strict", [False, True])
def test_more_levels_than_any_table_holds(strict: bool):
    count = 110
    bounds = -torch.linspace(1, 110, count, dtype=DOUBLE)
    wishes = AffineSet.inequality(pairs(count), torch.cat([bounds, bounds])).soft()
    f = torch.randn(count, dtype=DOUBLE, generator=torch.Generator().manual_seed(2))
    answer = project(f, wishes & AffineSet.inequality(torch.ones(1, count, dtype=DOUBLE), [1e3]), strict=strict)
    assert (wishes.violation(answer.value)[:count] + bounds).abs().max() < 1e-10


@pytest.mark.parametrize("count", [20, 40, 90])
def test_gradients_of_many_rows_that_give_way_are_those_of_the_closed_form(count: int):
    """Every row gives way by an amount of its own; only the largest of them determine the point."""
    random = torch.Generator().manual_seed(count)
    A = torch.randn(count, 2, generator=random, dtype=DOUBLE)
    bounds = (-3 * A.norm(dim=1) - torch.rand(count, generator=random, dtype=DOUBLE)).requires_grad_()
    f = torch.tensor([0.5, 0.2], dtype=DOUBLE)

    def total(b: Tensor) -> Tensor:
        return project(f, AffineSet.inequality(A, b).soft()).value.sum()

    (slope,) = torch.autograd.grad(total(bounds), bounds)
    (again,) = torch.autograd.grad(total(bounds), bounds, create_graph=True)
    torch.testing.assert_close(slope, again)
    step = 1e-6 * torch.randn(count, generator=random, dtype=DOUBLE)
    difference = (total(bounds.detach() + step) - total(bounds.detach() - step)) / 2
    torch.testing.assert_close(slope @ step, difference, rtol=1e-4, atol=0.0)


def test_a_sample_that_needs_finer_digits_leaves_the_others_as_they_are():
    """float32: the wishes of sample 0 are in large units; the hard rows depend on each other but for rounding."""
    unit, row = torch.tensor([1e7, 1.0]).reshape(2, 1, 1), torch.tensor([[1.0, 0.0, 0.0]])
    wishes = AffineSet(unit * row, unit.squeeze(-1), None) & AffineSet(unit * row, None, -2 * unit.squeeze(-1))
    hard = AffineSet.inequality([[0.0, 0.1, 0.3], [0.0, -0.3, -0.9]], [0.4, -1.2])
    set = wishes.soft(torch.tensor([10.0, 40.0])) & hard
    f = 3 * torch.randn(2, 3, generator=torch.Generator().manual_seed(16))
    alone = torch.cat([project(f[i : i + 1], set[i : i + 1]).value for i in range(2)])
    assert torch.equal(project(f, set).value, alone)
