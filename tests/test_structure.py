"""Sets with a structure: direct methods, sparse rows, fixed rows. All against the general method and plain oracles."""

from __future__ import annotations

import copy
import ctypes
import math
import pickle
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from caffnet import (
    AffineSet,
    CAffine,
    CAffNet,
    ConstraintError,
    FeedForward,
    InfeasibleError,
    Status,
    project,
    project_l1,
)
from caffnet._kernel import memory, native
from caffnet._solve import sparse
from caffnet._solve.problem import Options, Problem

DOUBLE = torch.float64


def normal(stream: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=stream)


def in_general(set: AffineSet) -> AffineSet:
    """The same set with two rows that demand nothing, which no direct method knows."""
    rows = torch.linspace(-1, 1, 2 * set.n, dtype=set.dtype).reshape(2, set.n) ** 3
    return set & AffineSet(rows, -math.inf, math.inf)


def in_entries(set: AffineSet, monkeypatch: pytest.MonkeyPatch) -> AffineSet:
    """The same set with sparse rows, whatever its size."""
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(sparse, "WORTH", 0)
        A = sparse.store(set.A.to_sparse_csr())
    return AffineSet.from_parts(A, set.lower, set.upper, set.labels, set.row_kinds)


def differences(n: int) -> Tensor:
    """The rows ``y_{j+1} - y_j``."""
    eye = torch.eye(n, dtype=DOUBLE)
    return eye[1:] - eye[:-1]


# name -> the set of a batch, from a stream of numbers that may be rounded to make ties.
def _bounds(draw, batch, n, room=0.0):
    return AffineSet.box(-draw(batch, n).abs() - room, draw(batch, n).abs() + room)


FAMILIES = {
    "simplex": lambda draw, B, n: (
        AffineSet.equality(torch.ones(1, n, dtype=DOUBLE), draw(B, 1).abs())
        & AffineSet.box(torch.zeros(n, dtype=DOUBLE), None)
    ),
    "budget": lambda draw, B, n: AffineSet.inequality(_weights(draw, n), 3 * draw(B, 1)) & _bounds(draw, B, n),
    "exact budget": lambda draw, B, n: AffineSet.equality(_weights(draw, n), 3 * draw(B, 1)) & _bounds(draw, B, n),
    "band": lambda draw, B, n: AffineSet(_weights(draw, n), (t := 3 * draw(B, 1)) - 0.5, t + 0.5) & _bounds(draw, B, n),
    "bounds twice": lambda draw, B, n: (
        AffineSet.inequality(_weights(draw, n), draw(B, 1))
        & _bounds(draw, B, n)
        & AffineSet.inequality(-2 * torch.eye(n, dtype=DOUBLE)[:5], draw(B, 5).abs())
    ),
    "rising": lambda draw, B, n: AffineSet(differences(n), 0.3 * draw(B, n - 1), None),
    "falling": lambda draw, B, n: AffineSet(-3 * differences(n), 0.3 * draw(B, n - 1), None),
    "rising from above": lambda draw, B, n: AffineSet.inequality(-differences(n), 0.3 * draw(B, n - 1)),
    "rising in a box": lambda draw, B, n: (
        AffineSet(differences(n), 0.1 * draw(B, n - 1) - 0.1, None) & _bounds(draw, B, n, 1.0)
    ),
    "often empty chain": lambda draw, B, n: AffineSet(differences(n), 0.1 * draw(B, n - 1), None) & _bounds(draw, B, n),
    "parts of a chain": lambda draw, B, n: (
        AffineSet(differences(n)[::2], draw(B, len(range(0, n - 1, 2))), None) & _bounds(draw, B, n, 1.0)
    ),
}


def _weights(draw, n):
    a = draw(1, n)
    a[0, 0] = 1
    return a


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("options", [{}, {"strict": True}, {"gradient": "tangent"}], ids=["plain", "strict", "tangent"])
@pytest.mark.parametrize("family", FAMILIES)
def test_direct_methods_answer_as_the_general_one(family: str, options: dict, ties: bool):
    """The same point, worth and gradients on 13 068 problems; other rows only where a row pulls by nothing."""
    stream = torch.Generator().manual_seed(len(family) + 100 * ties)

    def draw(*shape: int) -> Tensor:
        return normal(stream, *shape).round() if ties else normal(stream, *shape)

    for n in (12, 17, 33):
        set, f, v = FAMILIES[family](draw, 66, n), 2 * draw(66, n), normal(stream, 66, n)
        general = in_general(set)
        found, wanted = (project(f, s, search="active", on_infeasible="nearest", **options) for s in (set, general))
        size = 1 + f.abs().amax(-1)
        empty = found.status == Status.INFEASIBLE
        assert torch.equal(empty, wanted.status == Status.INFEASIBLE)
        assert ((found.value - wanted.value).abs().amax(-1) <= 1e-9 * size).all()
        assert (found.violation[~empty] <= 1e-13 * size[~empty]).all()
        if options.get("strict"):
            strictly = found.status == Status.PROJECTED
            assert strictly.sum() >= (wanted.status == Status.PROJECTED).sum() - 3
        # Rows that differ tie: at the ordinary point, for the margins of `strict` add up along a run of links.
        ordinary, theirs = (project(f, s, search="active", on_infeasible="nearest") for s in (set, general))
        other = found.active != wanted.active[:, : set.m]
        assert (ordinary.binding != 0)[other & ~empty.unsqueeze(-1)].all()
        same = ~other.any(-1)
        # Where rounding makes one method search again with margins, which the other does not need, these choose among
        # the rows that tie: what is held is not comparable.
        chosen = ((found.active != ordinary.active).any(-1) | (wanted.active != theirs.active).any(-1)) & bool(ties)
        assert (same | chosen).float().mean() > (0.8 if ties else 0.95)
        if options.get("gradient") == "tangent":
            # The cone is that of the rows touched. A point of least violation has the error of its level, some 1e-12: a
            # row that it passes by less is touched by chance, and the two derivatives are those of different cones.
            apart = torch.minimum(*((sparse.product(set.A, found.value) - t).abs() for t in (set.lower, set.upper)))
            by_chance = (found.active == 0) & (apart > 1e-14) & (apart < 1e-11)
            same &= ~(empty & by_chance.any(-1))
            assert same.float().mean() > (0.8 if ties else 0.95)
        slopes = []
        for s in (set, general):
            parts = [t.clone().requires_grad_() for t in (f, s.A, s.lower, s.upper)]
            moved = AffineSet.from_parts(*parts[1:], None, s.row_kinds)
            y = project(parts[0], moved, search="active", on_infeasible="nearest", **options).value
            slopes.append(torch.autograd.grad((y * v * same.unsqueeze(-1)).sum(), parts))
        cut = [theirs[tuple(slice(size) for size in mine.shape)] for mine, theirs in zip(*slopes, strict=True)]
        for mine, theirs in zip(slopes[0], cut, strict=True):
            assert torch.allclose(mine, theirs, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("family", FAMILIES)
def test_direct_methods_in_float32_and_sample_by_sample(family: str):
    """A batch has the bits of its samples; float32 is double precision, rounded once."""
    stream = torch.Generator().manual_seed(3)
    set, f = FAMILIES[family](lambda *shape: normal(stream, *shape), 20, 19), 2 * normal(stream, 20, 19)
    f[3, 2] = math.nan
    whole = project(f, set, search="active", on_infeasible="nearest")
    assert whole.status[3] == Status.INVALID and whole.value[3].isnan().all()
    for i in range(20):
        one = project(f[i], set[i], search="active", on_infeasible="nearest")
        assert torch.equal(one.value.nan_to_num(7.0), whole.value[i].nan_to_num(7.0))
        assert torch.equal(one.active, whole.active[i]) and one.status == whole.status[i]
    short, again = set.to(torch.float32), f.float()
    found = project(again, short, search="active", on_infeasible="nearest")
    exact = project(again.double(), short.to(DOUBLE), search="active", on_infeasible="nearest")
    known = (found.status < Status.INFEASIBLE) & (exact.status < Status.INFEASIBLE)
    assert (found.value - exact.value)[known].abs().max() < 1e-5
    assert found.violation[known].max() < 1e-5


# ------------------------------------------------------------------------------------------------ plain oracles


def sorted_simplex(f: np.ndarray, total: float = 1.0) -> np.ndarray:
    """The projection on ``{y >= 0, sum y = total}`` by sorting."""
    u = np.sort(f)[::-1]
    c = np.cumsum(u) - total
    k = np.nonzero(u * np.arange(1, len(f) + 1) > c)[0][-1]
    return np.maximum(f - c[k] / (k + 1), 0)


def pooled(f: np.ndarray) -> np.ndarray:
    """The nearest rising sequence, by pooling adjacent violators."""
    blocks: list[list[float]] = []
    for number in f:
        blocks.append([number, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total, blocks[-1][1] + count]
    return np.concatenate([np.full(int(count), total / count) for total, count in blocks])


@pytest.mark.parametrize("form", ["csr_matrix", "csc_array", "coo_matrix", "dok_array"])
def test_rows_of_scipy_are_read_by_their_entries(form: str):
    build = getattr(pytest.importorskip("scipy.sparse"), form)
    full = np.eye(300) - np.eye(300, k=1)
    large = AffineSet.inequality(build(full), np.ones(300))
    assert sparse.is_sparse(large.A)
    assert torch.equal(large.A.to_dense(), torch.tensor(full))
    small = AffineSet.equality(build(np.eye(2, dtype=np.int64)), [0.0, 0.0])
    assert torch.equal(small.A, torch.eye(2, dtype=torch.float64))
    assert not small.contains(torch.ones(2).double())


def test_large_chains_in_one_box_stay_direct():
    """Equal bounds of all outputs make blocks meet at one value. The general method would need the rows in full."""
    n = 3000
    columns = torch.stack([torch.arange(n - 1), torch.arange(1, n)], -1).flatten()
    signs = torch.tensor([-1.0, 1.0], dtype=DOUBLE).repeat(n - 1)
    chain = AffineSet(sparse.from_entries(torch.arange(0, 2 * n - 1, 2), columns, signs, n), 0.0)
    f = torch.randn(3, n, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
    f[0] = torch.linspace(1.5, -0.5, n)
    answer = project(f, chain & AffineSet.box(0.0, 1.0, dim=n))
    assert (answer.status == Status.PROJECTED).all()
    for found, wanted in zip(answer.value, f, strict=True):  # clipping after pooling is the projection
        torch.testing.assert_close(found, torch.tensor(pooled(wanted.numpy())).clamp(0.0, 1.0))


@pytest.mark.parametrize("upper", [1.0, float("inf")])
def test_large_sets_that_rise_and_fall_have_an_answer(upper: float):
    """Newton's method takes hundreds of rounds, and the rows are too many for the general method."""
    n = 3000
    links, sign = torch.arange(n - 1), torch.where(torch.arange(n - 1) < n // 2, 1.0, -1.0)
    places = torch.stack([torch.cat([links, links]), torch.cat([links, links + 1])])
    rows = torch.sparse_coo_tensor(places, torch.cat([-sign, sign]), (n - 1, n), check_invariants=True)
    set = AffineSet(rows, torch.zeros(n - 1), None) & AffineSet.box(0.0, upper, dim=n)
    answer = project(torch.randn(2, n, generator=torch.Generator().manual_seed(0)), set)
    assert (answer.status == Status.PROJECTED).all()
    assert set.contains(answer.value).all()


def test_few_rows_of_very_many_outputs_need_little_memory():
    stream = torch.Generator().manual_seed(0)
    n, A = 40_000, torch.randn(3, 40_000, generator=stream, dtype=DOUBLE)
    f = torch.randn(1, n, generator=stream, dtype=DOUBLE)
    assert native.workspace_size(n, 3, native.SEARCHES["active"]) < 200 * n * 8
    answer = project(f, AffineSet.inequality(A, -torch.ones(3, dtype=DOUBLE)))
    assert (answer.status == Status.PROJECTED).all()
    held = A[answer.active[0] != 0]
    torch.testing.assert_close(answer.value, f - (f @ held.mT + 1) @ torch.linalg.pinv(held).mT)


def test_large_sets_equal_plain_methods():
    """Box with 1e5 outputs, simplex and chain with 1e4: no matrix of their size is made."""
    stream = torch.Generator().manual_seed(0)
    f = normal(stream, 2, 100_000)
    low, high = (
        -torch.rand(100_000, dtype=DOUBLE, generator=stream),
        torch.rand(100_000, dtype=DOUBLE, generator=stream),
    )
    box = AffineSet.box(low, high)
    leaf = f.clone().requires_grad_()
    answer = project(leaf, box)
    assert torch.equal(answer.value, f.clamp(low, high)) and answer.search == "active"
    assert torch.equal(answer.active, (f > high).to(torch.int8) - (f < low).to(torch.int8))
    answer.value.sum().backward()
    assert torch.equal(leaf.grad, ((f >= low) & (f <= high)).double())
    n = 10_000
    simplex = AffineSet.equality(torch.ones(1, n, dtype=DOUBLE), [1.0]) & AffineSet.box(0.0, None, dim=n)
    assert sparse.is_sparse(simplex.A) and sparse.is_sparse(box.A)
    y = project(f[:, :n], simplex).value
    assert np.abs(y[0].numpy() - sorted_simplex(f[0, :n].numpy())).max() < 1e-13
    columns = torch.stack([torch.arange(n - 1), torch.arange(1, n)], 1).reshape(-1)
    signs = torch.tensor([-1.0, 1.0], dtype=DOUBLE).repeat(n - 1)
    chain = AffineSet(sparse.from_entries(torch.arange(0, 2 * n - 1, 2), columns, signs, n), 0.0)
    y = project(f[:, :n], chain).value
    assert np.abs(y[1].numpy() - pooled(f[1, :n].numpy())).max() < 1e-13
    for set in (box, simplex):
        problem = Problem(f[:, : set.n], None, set.A, set.lower, set.upper, None, set.row_kinds, None, (2,))
        batch = native.Batch(
            problem, Options(search="active"), native.empty_answer(problem.f, set.m, "active"), None, None
        )
        assert batch.workspace < 1000 * (set.n + set.m)  # bytes: grows with the entries


def test_a_hard_budget_ends_by_halving():
    """Weights over many scales, bounds that all bind: Newton's bracket is not enough, the sorted breakpoints are."""
    stream = torch.Generator().manual_seed(1)
    n = 400
    a = torch.logspace(-8, 8, n, dtype=DOUBLE)[torch.randperm(n, generator=stream)].unsqueeze(0)
    f = normal(stream, 20, n) * torch.logspace(8, -8, n, dtype=DOUBLE)
    low, high = -normal(stream, 20, n).abs(), normal(stream, 20, n).abs()
    middle = ((low + high) / 2 * a).sum(-1, keepdim=True)
    set = AffineSet.equality(a, middle) & AffineSet.box(low, high)
    found, wanted = project(f, set, search="active"), project(f, in_general(set), search="active")
    assert torch.allclose(found.value, wanted.value, atol=1e-7, rtol=1e-7)


def test_the_l1_ball():
    """Inside it f stays; outside, the signs of f and a simplex; gradients for all three."""
    stream = torch.Generator().manual_seed(2)
    f = normal(stream, 8, 30)
    y = project_l1(f, 2.0, 0.5)
    for mine, one in zip(y, f, strict=True):
        apart = one.numpy() - 0.5
        wanted = np.sign(apart) * sorted_simplex(np.abs(apart), 2.0) + 0.5
        assert np.abs(mine.numpy() - wanted).max() < 1e-13
    inside = 0.01 * f
    assert torch.allclose(project_l1(inside, 5.0), inside)
    for same in ([0.5] * 30, np.full(30, 0.5)):
        assert torch.equal(project_l1(f, 2.0, same), y)
    with pytest.raises(ConstraintError, match=r"center must be a number or have shape \(\.\.\., 30\), got \(3,\)"):
        project_l1(f, 2.0, [0.5] * 3)
    radius = torch.tensor([1.0, 2.0], dtype=DOUBLE, requires_grad=True)
    center = normal(stream, 2, 30).requires_grad_()
    assert torch.autograd.gradcheck(project_l1, (f[:2].clone().requires_grad_(), radius, center))
    with pytest.raises(InfeasibleError, match="radius"):
        project_l1(f, -1.0)


# ------------------------------------------------------------------------------------------------ sparse rows


def network(stream: torch.Generator, nodes: int, arcs: int) -> Tensor:
    """The incidence of a connected network."""
    C = torch.zeros(nodes, arcs, dtype=DOUBLE)
    for k in range(arcs):
        ends = (k, (k + 1) % nodes) if k < nodes else torch.randperm(nodes, generator=stream)[:2].tolist()
        C[ends[0], k], C[ends[1], k] = 1, -1
    return C


def sparse_sets(stream: torch.Generator, batch: int) -> dict[str, AffineSet]:
    n = 30
    C, inside = network(stream, 12, n), torch.rand(batch, n, dtype=DOUBLE, generator=stream)
    G = normal(stream, 40, n) * (torch.rand(40, n, generator=stream) < 0.15)
    G = G[(G != 0).sum(1) > 1]
    h = inside @ G.T + torch.rand(batch, len(G), dtype=DOUBLE, generator=stream)
    near = AffineSet.box(inside - 0.5, inside + 0.5)
    return {
        "flow": AffineSet.equality(C, inside @ C.T) & AffineSet.box(0.0, 1.0, dim=n),
        "rows": AffineSet.inequality(G, h),
        "rows and box": AffineSet.inequality(G, h) & near,
        "bands": AffineSet(G, h - 1.5, h) & near,
        "mixed": AffineSet.equality(G[:5], (inside @ G.T)[:, :5]) & AffineSet.inequality(G[5:], h[:, 5:]) & near,
        "ramps": AffineSet(differences(n), -0.3, 0.3) & AffineSet.box(-1.0, 1.0, dim=n),
        "often empty": AffineSet.equality(C[:-1], 2 * (inside @ C.T)[:, :-1]) & AffineSet.box(0.0, 1.0, dim=n),
    }


@pytest.mark.parametrize("options", [{}, {"strict": True}, {"gradient": "tangent"}], ids=["plain", "strict", "tangent"])
def test_sparse_rows_answer_as_dense_ones(options: dict, monkeypatch: pytest.MonkeyPatch):
    stream = torch.Generator().manual_seed(4)
    for name, set in sparse_sets(stream, 30).items():
        f, v = 2 * normal(stream, 30, set.n), normal(stream, 30, set.n)
        few = in_entries(set, monkeypatch)
        found, wanted = (project(f, s, search="active", on_infeasible="nearest", **options) for s in (few, set))
        assert ((found.value - wanted.value).abs() <= 1e-9).all(), name
        assert torch.equal(found.status == Status.INFEASIBLE, wanted.status == Status.INFEASIBLE), name
        assert (found.status[found.status != Status.INFEASIBLE] <= Status.WITHIN_TOL).all(), name
        same = (found.active == wanted.active).all(-1) & (found.status != Status.INFEASIBLE)
        slopes = []
        for s in (few, set):
            parts = [t.clone().requires_grad_() for t in (f, sparse.numbers(s.A), s.lower, s.upper)]
            A = sparse.like(s.A, parts[1]) if s is few else parts[1]
            moved = AffineSet.from_parts(A, *parts[2:], None, s.row_kinds)
            y = project(parts[0], moved, search="active", on_infeasible="nearest", **options).value
            slopes.append(torch.autograd.grad((y * v * same.unsqueeze(-1)).sum(), parts))
        slopes[1] = (slopes[1][0], slopes[1][1][set.A != 0], *slopes[1][2:])
        for mine, theirs in zip(*slopes, strict=True):
            assert torch.allclose(mine, theirs, atol=1e-8, rtol=1e-8), name


def test_a_large_network(monkeypatch: pytest.MonkeyPatch):
    """1200 arcs as a user writes them: the optimality conditions hold, and batch and samples have the same bits."""
    stream = torch.Generator().manual_seed(5)
    C, arcs = network(stream, 300, 1200), 1200
    inside = torch.rand(3, arcs, dtype=DOUBLE, generator=stream)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flow = AffineSet.equality(C.to_sparse_csr(), inside @ C.T) & AffineSet.box(0.0, 1.0, dim=arcs)
    assert sparse.is_sparse(flow.A) and flow.contains(inside).all()
    f = inside + 0.5 * normal(stream, 3, arcs)
    answer = project(f, flow)
    assert answer.violation.max() < 1e-12
    for y, g in zip(answer.value, f, strict=True):
        free = (y > 0) & (y < 1)
        u = torch.linalg.lstsq(C[:, free].T, (g - y)[free].unsqueeze(-1), driver="gelsd").solution.squeeze(-1)
        pull = g - y - C.T @ u
        assert pull[free].abs().max() < 1e-10
        assert (pull[y == 0] < 1e-10).all() and (pull[y == 1] > -1e-10).all()
    assert torch.equal(project(f[1], flow[1]).value, answer.value[1])


def graphs(stream: torch.Generator) -> dict[str, Tensor]:
    """Rows whose neighbourhoods are a tree, a grid, a star or a clique, or fill up as rows are eliminated."""
    side = 14
    places = torch.arange(side * side).reshape(side, side)
    down = torch.stack([places[1:], places[:-1]], -1).reshape(-1, 2)
    pairs = torch.cat([down, torch.stack([places[:, 1:], places[:, :-1]], -1).reshape(-1, 2)])
    grid = torch.zeros(side * side, len(pairs), dtype=DOUBLE)
    grid[pairs[:, 0], torch.arange(len(pairs))], grid[pairs[:, 1], torch.arange(len(pairs))] = 1, -1
    tree = torch.zeros(200, 199, dtype=DOUBLE)
    tree[torch.arange(1, 200), torch.arange(199)] = 1
    tree[(torch.rand(199, generator=stream) * torch.arange(1, 200)).long(), torch.arange(199)] = -1
    rows = normal(stream, 120, 260) * (torch.rand(120, 260, generator=stream) < 0.03)
    rows += torch.eye(120, 260, dtype=DOUBLE) + torch.eye(120, 260, dtype=DOUBLE).roll(1, 1)
    star, clique = rows.clone(), rows.clone()
    star[60], clique[:, 200] = normal(stream, 260), normal(stream, 120)
    return {"tree": tree, "grid": grid, "filling": rows, "star": star, "clique": clique}


@pytest.mark.parametrize("name", ["tree", "grid", "filling", "star", "clique"])
def test_factors_of_any_graph(name: str, monkeypatch: pytest.MonkeyPatch):
    """Sparse equalities and bands of every shape of neighbourhood have the answers of dense ones."""
    stream = torch.Generator().manual_seed(8)
    C = graphs(stream)[name]
    inside = torch.rand(4, C.shape[1], dtype=DOUBLE, generator=stream)
    middle, width = inside @ C.T, torch.rand(len(C), dtype=DOUBLE, generator=stream)
    width *= torch.rand(len(C), generator=stream) < 0.5
    set = AffineSet(C, middle - width, middle + width / 3) & AffineSet.box(0.0, 1.0, dim=C.shape[1])
    f = inside + normal(stream, *inside.shape)
    found, wanted = (project(f, s, search="active") for s in (in_entries(set, monkeypatch), set))
    assert (found.value - wanted.value).abs().max() < 1e-10
    assert found.violation.max() < 1e-12


def test_sparse_rows_behave_as_rows(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Measuring, copies, files, layers and messages."""
    stream = torch.Generator().manual_seed(6)
    dense = sparse_sets(stream, 4)["mixed"]
    few = in_entries(dense, monkeypatch)
    y = normal(stream, 4, dense.n)
    assert torch.allclose(few.violation(y), dense.violation(y)) and torch.equal(few.contains(y), dense.contains(y))
    joined = few & AffineSet.inequality(torch.ones(1, dense.n, dtype=DOUBLE), [3.0], names=["total"])
    assert sparse.is_sparse(joined.A) and torch.equal(joined.to_dense().A[:-1], dense.A)
    for twin in (copy.deepcopy(few), pickle.loads(pickle.dumps(few)), few.to(torch.float32).to(DOUBLE), few[2:]):
        assert sparse.is_sparse(twin.A) and twin.row_kinds == few.row_kinds
    assert torch.equal(few.to_dense().A, dense.A)
    fixed = AffineSet.from_parts(few.A, few.lower[0], few.upper[0], None, few.row_kinds)
    monkeypatch.setattr(sparse, "WORTH", 0)
    layer = CAffine(fixed)
    again = copy.deepcopy(layer)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    again.load_state_dict(torch.load(tmp_path / "layer.pt"))
    assert torch.equal(layer(y), again(y)) and torch.equal(layer(y), project(y, fixed).value)
    assert layer.float()(y.float()).dtype == torch.float32
    doubled = sparse.like(few.A, 2 * few.A.values())
    other = CAffine(AffineSet.from_parts(doubled, few.lower[0], few.upper[0], None, few.row_kinds))
    with pytest.warns(UserWarning, match="another constraint .* row 0, row 1"):
        other.load_state_dict(again.state_dict())
    with pytest.raises(ConstraintError, match=r'sparse, and search=\'full\' looks at whole rows: use search="active"'):
        project(y, few, search="full")
    with pytest.raises(ConstraintError, match="sparse, and a metric needs whole rows"):
        project(y, few, metric=torch.ones(dense.n, dtype=DOUBLE))
    with pytest.raises(ConstraintError, match="first derivatives in reverse mode only"):
        torch.autograd.functional.hessian(lambda f: project(f, few).value.square().sum(), y)
    with pytest.raises(ConstraintError, match="shared by all samples"):
        few & AffineSet.inequality(torch.ones(4, 1, dense.n, dtype=DOUBLE), [3.0])
    spoiled = few.A.values().clone()
    spoiled[7] = math.nan
    with pytest.raises(ConstraintError, match=r"A must be finite, got nan at A\[\d+, \d+\]"):
        project(y, AffineSet.from_parts(sparse.like(few.A, spoiled), few.lower, few.upper, None, few.row_kinds))
    with pytest.raises(InfeasibleError, match=r"total .upper bound"):
        project(y[0], fixed & AffineSet.inequality(torch.ones(1, dense.n, dtype=DOUBLE), [-100.0], names=["total"]))


# ------------------------------------------------------------------------------------------------ fixed rows


def test_fixed_rows_with_bounds_of_the_input():
    """One way to write "A fixed, b(x)": lists take the type of the bounds, equalities take either, sides must stay."""
    rows = AffineSet.equality([[1.0, 1.0, 1.0]], [0.0], names=["demand"]) & AffineSet.box(0.0, 1.0, dim=3)

    def limits(x: Tensor) -> AffineSet:
        demand = 1 + x[..., :1].abs().clamp(max=1)
        return rows.with_bounds(upper=torch.cat([demand, demand.expand(*x.shape[:-1], 3)], -1))

    model = CAffNet(FeedForward(2, 3), limits)
    x = torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
    y = model(x)
    assert y.dtype == torch.float32 and limits(x).A is not limits(x).lower
    assert torch.allclose(y.sum(-1), 1 + x[:, 0].abs().clamp(max=1), atol=1e-5)
    assert (y >= 0).all()
    one_sided = AffineSet.inequality([[1.0, 1.0]], [0.0], names=["cap"])
    with pytest.raises(ConstraintError, match="cap has the kind '<' and got a lower bound"):
        one_sided.with_bounds(lower=torch.zeros(1))
    x = torch.zeros(5, 1, requires_grad=True)
    project(torch.ones(5, 2), one_sided.with_bounds(upper=x)).value.sum().backward()
    assert torch.allclose(x.grad, torch.ones(5, 1))


# ------------------------------------------------------------------------------------------------ rows that come again


def large_sets(stream: torch.Generator, batch: int) -> dict[str, AffineSet]:
    """Sets whose matrix the kernel keeps."""
    C, inside = normal(stream, 40, 120), normal(stream, batch, 120)
    arcs = network(stream, 40, 120)
    flow = sparse.from_entries(*sparse.entries(torch.cat([arcs, normal(stream, 40, 120)])), 120)
    value = inside @ flow.to_dense().T
    some = torch.rand(batch, 40, generator=stream) < 0.5  # other equalities in every sample
    return {
        "equalities": AffineSet.equality(C, inside @ C.T),
        "and a box": AffineSet.equality(C, inside @ C.T) & AffineSet.box(inside.amin(0) - 1, inside.amax(0) + 1),
        "changing": AffineSet(C, torch.where(some, inside @ C.T, inside @ C.T - 1), inside @ C.T),
        "simplex": FAMILIES["simplex"](lambda *shape: normal(stream, *shape), batch, 100),
        "chain": FAMILIES["often empty chain"](lambda *shape: normal(stream, *shape), batch, 70),
        "sparse": AffineSet(flow, value - 0.1, value + 0.1),
    }


def answers(f: Tensor, v: Tensor, set: AffineSet, **options) -> list[Tensor]:
    """All that a call gives, forward and back."""
    leaf = f.clone().requires_grad_()
    answer = project(leaf, set, search="active", on_infeasible="nearest", **options)
    return [answer.value.detach(), answer.status, answer.active, torch.autograd.grad(answer.value, leaf, v)[0]]


def afresh(f: Tensor, v: Tensor, set: AffineSet, **options) -> list[Tensor]:
    """The same in a thread of its own, which has kept nothing."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(answers, f, v, set, **options).result()


def assert_same(found: list[Tensor], wanted: list[Tensor], name: str = "") -> None:
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0)), name


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict:
    """What this thread keeps, empty at first."""
    monkeypatch.setattr(memory._own, "seen", {}, raising=False)
    monkeypatch.setattr(memory._own, "kept", {}, raising=False)
    return memory._own.kept


@pytest.mark.parametrize("options", [{}, {"strict": True}, {"gradient": "tangent"}], ids=["plain", "strict", "tangent"])
def test_rows_that_come_again_have_the_same_bits(options: dict, kept: dict):
    """What is kept from call to call, forward and back, in turn with other sets, changes nothing."""
    stream = torch.Generator().manual_seed(7)
    sets = large_sets(stream, 6)
    for _ in range(4):
        for name, set in sets.items():
            f, v = 2 * normal(stream, 6, set.n), normal(stream, 6, set.n)
            assert_same(answers(f, v, set, **options), afresh(f, v, set, **options), name)
    assert len(kept) == len(sets) - 1  # two of them have the same rows


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32])
@pytest.mark.parametrize("kind", ["equalities", "and a box", "simplex", "chain", "sparse"])
def test_bounds_and_kinds_that_change_under_the_same_rows(kind: str, dtype: torch.dtype, kept: dict):
    """Other bounds, other equalities, kinds, soft rows, no bounds at all: what is kept is of the rows alone."""
    stream = torch.Generator().manual_seed(9)
    set = large_sets(stream, 4)[kind].to(dtype)
    low, high = set.lower.expand(4, -1), set.upper.expand(4, -1)
    finite = low.isfinite() & high.isfinite()
    middle = torch.where(finite, (low + high) / 2, torch.where(low.isfinite(), low, high))
    half = torch.arange(set.m) % 2 == 0
    bounds = [
        (low, high),
        (middle, middle),
        (torch.where(half, middle, low), torch.where(half, middle, high)),
        (torch.full_like(low, -math.inf), high),
        (low - 1, high + 1),
    ]
    sets = [AffineSet.from_parts(set.A, *pair, None, "<" * set.m) for pair in bounds]
    sets += [set, AffineSet(set.A, low, high).soft()]
    for _ in range(2):
        for i, one in enumerate(sets):
            f, v = normal(stream, 4, set.n).to(dtype), normal(stream, 4, set.n).to(dtype)
            assert_same(answers(f, v, one), afresh(f, v, one), f"{kind}, set {i}")
    assert kept


def _write_unseen(A: Tensor) -> dict[str, Callable[[Tensor], object]]:
    """Ways to change numbers, most of which torch does not count."""

    def by_address(new: Tensor) -> None:
        ctypes.memmove(A.data_ptr(), new.data_ptr(), new.nbytes)

    return {
        "in place": A.detach().copy_,
        "data": A.data.copy_,
        "numpy": lambda new: np.copyto(A.detach().numpy(), new.numpy()),
        "one number of numpy's": lambda new: A.detach().numpy().__setitem__((-1, -1), float(new[0, 0])),
        "address": by_address,
        "data_ptr of a view": lambda new: ctypes.memmove(A[1:].data_ptr(), new.data_ptr(), new[1:].nbytes),
        "dlpack": lambda new: torch.from_dlpack(A.detach()).copy_(new),
    }


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32])
@pytest.mark.parametrize("inference", [False, True])
def test_rows_that_change_are_read_again(inference: bool, dtype: torch.dtype, kept: dict):
    """In whatever way: the next call answers for the numbers as they are."""
    stream = torch.Generator().manual_seed(8)
    with torch.inference_mode(inference):
        A, f = (
            torch.nn.Parameter(normal(stream, 60, 80).to(dtype), requires_grad=False),
            normal(stream, 3, 80).to(dtype),
        )
        set = AffineSet.equality(A, [0.0] * 60)
        assert set.A.data_ptr() == A.data_ptr()
        for name, write in _write_unseen(A).items():
            for _ in range(3):
                before = project(f, set).value
            assert len(kept) == 1, "the rows were not kept, so nothing is tested"
            write(normal(stream, 60, 80).to(dtype))
            y = project(f, set).value
            assert not torch.equal(y, before), name
            assert (A @ y.T).abs().max() < 200 * torch.finfo(dtype).eps, name
            A[3] = 0.0
            A[3, 5] = math.nan
            with pytest.raises(ConstraintError, match=r"A must be finite, got nan at A\[3, 5\]"):
                project(f, set)
            A[3] = normal(stream, 80).to(dtype)


@pytest.mark.parametrize("part", ["values", "columns", "starts"])
def test_sparse_rows_that_change_are_read_again(part: str, kept: dict):
    """Numbers, and the places they stand in."""
    stream = torch.Generator().manual_seed(10)
    n, f = 40_000, normal(stream, 2, 40_000)
    starts, columns = torch.tensor([0, 3000, 6000]), torch.arange(6000) % 4500
    few = sparse.from_entries(starts, columns, normal(stream, 6000), n)
    set = AffineSet.equality(few, [1.0, 2.0])
    for _ in range(3):
        before = project(f, set).value
    assert len(kept) == 1
    if part == "values":
        set.A.values().detach().numpy()[17] *= -3
    elif part == "columns":
        set.A.col_indices().numpy()[2999] = 39_999
    else:
        set.A.crow_indices().numpy()[1] = 2990
    y = project(f, set).value
    assert not torch.equal(y, before)
    assert (set.A.to_dense() @ y.T - torch.tensor([[1.0], [2.0]], dtype=DOUBLE)).abs().max() < 1e-12


def test_two_matrices_at_one_address(kept: dict):
    """Memory that is used again for another matrix, and for another shape of the same size."""
    stream = torch.Generator().manual_seed(11)
    room = torch.empty(4800, dtype=DOUBLE)
    for _ in range(3):
        for m, n in ((60, 80), (48, 100), (40, 120)):
            A, f = room.view(m, n), normal(stream, 2, n)
            for _ in range(2):
                room.numpy()[:] = normal(stream, 4800).numpy()
                y = project(f, AffineSet.equality(A, [0.0] * m)).value
                assert (A @ y.T).abs().max() < 1e-12
    assert len(kept) == 3


def test_threads_keep_their_own(kept: dict):
    """Four threads at once, each with two sets in turn, one of which is written to."""
    stream = torch.Generator().manual_seed(12)
    shared, f = normal(stream, 60, 80), normal(stream, 4, 80)
    wanted = project(f, AffineSet.equality(shared.clone(), [0.0] * 60)).value

    def work(seed: int) -> None:
        own = torch.Generator().manual_seed(seed)
        A = normal(own, 60, 80)
        for _ in range(20):
            A.data.copy_(normal(own, 60, 80))
            assert (A @ project(f, AffineSet.equality(A, [0.0] * 60)).value.T).abs().max() < 1e-12
            assert torch.equal(project(f, AffineSet.equality(shared, [0.0] * 60)).value, wanted)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, seed) for seed in range(4)]:
            done.result()


def test_memory_is_kept_within_a_limit(monkeypatch: pytest.MonkeyPatch, kept: dict):
    monkeypatch.setattr(memory, "_MOST", 3300)
    places = [memory.kept((-k, 0), 1000) for k in range(1, 4)]
    assert [memory.kept((-k, 0), 1000) for k in range(1, 4)] == places and all(p % 64 == 0 for p in places)
    memory.kept((-9, 0), 2500)
    assert list(kept) == [(-9, 0)]
    memory.kept((-8, 0), 9000)
    assert list(kept) == [(-8, 0)]


def test_empty_rows_among_sparse_ones(monkeypatch: pytest.MonkeyPatch):
    """They have a place in the order of the factors: the gradient of one long row beside them was that of no row."""
    stream = torch.Generator().manual_seed(9)
    rows = torch.zeros(50, 60, dtype=DOUBLE)
    rows[0] = normal(stream, 60)
    set = AffineSet(rows, -1.0, 1.0) & AffineSet.box(-1.0, 1.0, dim=60)
    f, v = normal(stream, 2, 60).requires_grad_(), normal(stream, 2, 60)
    few = in_entries(set, monkeypatch)
    slopes = [torch.autograd.grad((project(f, s, search="active").value * v).sum(), f)[0] for s in (few, set)]
    assert (slopes[0] - slopes[1]).abs().max() < 1e-12


def test_sparse_rows_are_not_enumerated_however_few_their_choices_are():
    """298 equalities leave one choice, and its list is cheap: `auto` took it, and the kernel left its workspace."""
    n, stream = 300, torch.Generator().manual_seed(10)
    rows = torch.diag(normal(stream, n)) + torch.diag(normal(stream, n - 1), 1) + torch.diag(normal(stream, n - 2), 2)
    set = AffineSet.equality(rows[:-2].to_sparse_csr(), normal(stream, n - 2))
    f = normal(stream, 4, n)
    found = project(f, set)
    assert sparse.is_sparse(set.A) and found.search == "active" and found.answered.all()
    assert torch.allclose(found.value, project(f, set.to_dense()).value)


@pytest.mark.parametrize("gradient", ["exact", "tangent"])
@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32])
def test_a_large_box_has_all_gradients_of_a_small_one(dtype: torch.dtype, gradient: str):
    """With bounds at infinity, equal bounds, and bounds that exclude each other; f inside, on a bound and outside."""
    stream = torch.Generator().manual_seed(10)
    n = 1100
    low, high = (sign * torch.rand(5, n, generator=stream, dtype=DOUBLE) for sign in (-1, 1))
    low[:, :20] = high[:, :20]
    low[:, 20:60], high[:, 40:80] = -math.inf, math.inf
    f = 2 * normal(stream, 5, n)
    f[0] = torch.where(torch.isfinite(low[0] + high[0]), (low[0] + high[0]) / 2, 0.0)
    f[1, 80:90] = high[1, 80:90]
    low[2, 90] = high[2, 90] + 1  # empty: every row gives way by the same amount
    f[3, 100] = math.nan
    v = normal(stream, 5, n).to(dtype)
    found = []
    for whole in (False, True):
        leaves = [t.to(dtype).requires_grad_() for t in (f, low, high)]
        set = AffineSet.box(*leaves[1:])
        assert sparse.is_sparse(set.A)
        set = set.to_dense() if whole else set
        answer = project(leaves[0], set, search="active", gradient=gradient, on_infeasible="nearest")
        found.append([answer.status, answer.active, answer.value, *torch.autograd.grad(answer.value, leaves, v)])
    assert found[0][0].tolist() == [0, 1, 3, 4, 1]
    assert_same(*found)
    assert torch.equal(found[0][3][1, 40:60], v[1, 40:60])  # no bound there


def test_a_budget_beyond_the_largest_number():
    """The nearest point has no number in float32: the set of all numbers is empty, with and without a direct method."""
    for n in (4, 200):
        scaled = torch.full((1, n), 1e-30)
        set = AffineSet.equality(scaled, [1e20]) & AffineSet.box(0.0, None, dim=n)
        answer = project(torch.rand(2, n), set, search="active", on_infeasible="nearest")
        assert (answer.status == Status.INFEASIBLE).all()
        assert (answer.value == torch.finfo(torch.float32).max).all()
