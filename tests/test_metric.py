"""Another metric than the Euclidean one: exact answers, gradients, and everything around them."""

from __future__ import annotations

import copy
import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from caffnet import (
    AffineSet,
    CAffine,
    CAffNet,
    ConstraintError,
    DtypeError,
    FeedForward,
    InfeasibleError,
    Status,
    prepare,
    project,
)
from helpers import DATA, nearest_exactly

DOUBLE = torch.float64
INF = float("inf")


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def polytope(seed: int, batch: int = 32, n: int = 5, m: int = 9) -> tuple[AffineSet, Tensor, Tensor]:
    """Sets with a point inside, an f for each, mostly outside, and a metric for each."""
    A, inside = normal(seed, batch, m, n), normal(seed + 1, batch, n)
    upper = (A @ inside.unsqueeze(-1)).squeeze(-1) + normal(seed + 2, batch, m).abs()
    root = normal(seed + 3, batch, n, n)
    return AffineSet.inequality(A, upper), inside + 3 * normal(seed + 4, batch, n), root @ root.mT + 0.2 * torch.eye(n)


# ------------------------------------------------------------------------------------------------ the point


@pytest.mark.parametrize("search", ["full", "active"])
@pytest.mark.parametrize("diagonal", [False, True], ids=["matrix", "diagonal"])
def test_the_point_is_the_nearest_in_exact_arithmetic(search: str, diagonal: bool):
    """Small integers: parallel rows, rows through one point, rows that repeat."""
    random = np.random.default_rng(5)
    answered = 0
    for _ in range(130):
        n, m = int(random.integers(1, 4)), int(random.integers(1, 6))
        A, upper, f = (random.integers(-2, 3, size).astype(float) for size in ((m, n), m, n))
        root = random.integers(-2, 3, (n, n))
        M = np.diag(random.integers(1, 9, n)).astype(float) if diagonal else (root @ root.T + np.eye(n)).astype(float)
        exact = nearest_exactly(A.tolist(), upper.tolist(), f.tolist(), M.tolist())
        given = torch.as_tensor(M.diagonal().copy() if diagonal else M)
        answer = project(
            torch.as_tensor(f), AffineSet.inequality(A, upper), metric=given, search=search, on_infeasible="nearest"
        )
        assert (answer.status == Status.INFEASIBLE).item() == (exact is None), (A, upper, f, M)
        if exact is not None:
            wanted = torch.tensor([float(y) for y in exact], dtype=DOUBLE)
            torch.testing.assert_close(answer.value, wanted, rtol=1e-13, atol=1e-13)
            answered += 1
    assert answered > 60


def test_the_identity_gives_the_same_bits():
    for n, m in ((2, 3), (5, 9), (12, 30)):
        set, f, _ = polytope(n, n=n, m=m)
        w = normal(9, *f.shape)
        for options in ({}, {"w": w}, {"search": "active", "w": w}, {"strict": True}, {"strict": True, "w": w}):
            plain = project(f, set, **options)
            metrics = [torch.eye(n, dtype=DOUBLE), torch.ones(n, dtype=DOUBLE)]
            metrics += [] if "strict" in options else [4 * torch.eye(n, dtype=DOUBLE)]
            for metric in metrics:
                other = project(f, set, metric=metric, **options)
                assert torch.equal(plain.value, other.value) and torch.equal(plain.active, other.active)
                assert torch.equal(plain.status, other.status)


def test_w_moves_as_the_literal_equation_says():
    """P = f - B (A f - b) + (I - B A) w with B = M^-1 A' (A M^-1 A')^-1, the candidate nearest to f in M."""
    set, f, M = polytope(21, n=3, m=4)
    w = normal(5, *f.shape)
    answer = project(f, set, w, metric=M, search="full")
    for i in range(len(f)):
        A, b, metric = set.A[i], set.upper[i], M[i]
        best, point = INF, f[i]
        if not bool((A @ f[i] <= b).all()):
            for k in range(1, 4):
                for chosen in itertools.combinations(range(4), k):
                    rows, inverse = A[list(chosen)], metric.inverse()
                    B = inverse @ rows.mT @ (rows @ inverse @ rows.mT).inverse()
                    p = f[i] - B @ (rows @ f[i] - b[list(chosen)]) + (torch.eye(3) - B @ rows) @ w[i]
                    distance = ((p - f[i]) @ metric @ (p - f[i])).sqrt().item()
                    if bool((A @ p <= b + 1e-10).all()) and distance < best - 1e-9:
                        best, point = distance, p
        torch.testing.assert_close(answer.value[i], point, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("with_w", [False, True])
def test_a_vertex_of_too_many_rows_is_projected_in_any_metric(dtype: torch.dtype, with_w: bool):
    """Three or four outputs of a hierarchy are zero at once: more rows meet than there are outputs."""
    random = torch.Generator().manual_seed(3)
    sums = torch.tensor([[1, -1, -1, 0, 0, 0, 0], [0, 1, 0, -1, -1, 0, 0], [0, 0, 1, 0, 0, -1, -1]], dtype=dtype)
    set = AffineSet.equality(sums, torch.zeros(3, dtype=dtype)) & AffineSet.box(0.0, None, dim=7)
    f = torch.randn(500, 7, generator=random, dtype=dtype) + 1
    w = torch.randn(500, 7, generator=random, dtype=dtype) if with_w else None
    diagonal = torch.rand(7, generator=random, dtype=dtype) + 0.1
    for metric in (torch.linalg.inv(torch.eye(7, dtype=dtype) + 0.1), diagonal):
        answer = project(f, set, w, metric=metric)
        assert (answer.status == Status.PROJECTED).all()
        assert set.contains(answer.value).all()
        if w is None:
            missed = answer.residuals()
            assert (
                max(float(t.abs().max()) for t in (missed.primal, missed.dual, missed.gap))
                < 100 * torch.finfo(dtype).eps
            )


@pytest.mark.parametrize("metric", [torch.eye(2), torch.tensor([[2.0, 1.0], [1.0, 3.0]]), torch.ones(2)])
def test_a_set_takes_its_metric_inside_a_compiled_graph(metric: Tensor):
    box, f = AffineSet.box(0.0, 1.0, dim=2), torch.randn(5, 2, generator=torch.Generator().manual_seed(0))

    def call(f: Tensor, metric: Tensor) -> Tensor:
        return project(f, box.with_metric(metric)).value + project(f, box, metric=metric).value

    compiled = torch.compile(call, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(f, metric), call(f, metric))


def test_a_matrix_that_is_far_from_symmetric_is_taken_on_request():
    box, f = AffineSet.box(0.0, 1.0, dim=2), torch.tensor([[2.0, -1.0], [0.5, 3.0]])
    upper = torch.tensor([[2.0, 1.0], [0.0, 3.0]])
    whole = project(f, box.with_metric((upper + upper.mT) / 2)).value
    torch.testing.assert_close(project(f, box.with_metric(upper, diagonal=False)).value, whole)
    rounded = (upper + upper.mT) / 2 + torch.tensor([[0.0, 1e-4], [0.0, 0.0]])
    assert project(f, box, metric=rounded).answered.all()
    none = AffineSet(torch.zeros(1, 0), None, torch.ones(1)).with_metric(torch.zeros(0, 0))
    assert project(torch.zeros(3, 0), none).answered.all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_metric_of_a_layer_meets_a_set_in_lists(dtype: torch.dtype):
    box = AffineSet.equality([[1.0, 1.0]], [1.0])
    layer, f = CAffine(lambda x: box, metric=[2.0, 1.0]), torch.randn(5, 2, dtype=dtype)
    assert torch.equal(layer(f, x=f), project(f, box, metric=[2.0, 1.0]).value)


def test_a_metric_in_another_number_type_is_named():
    with pytest.raises(DtypeError, match=r"^The metric is torch.float64, f is torch.float32: convert the metric"):
        project(torch.zeros(2), AffineSet.box(0.0, 1.0, dim=2), metric=np.eye(2))  # numpy: float64
    assert (
        project(torch.zeros(2), AffineSet.box(0.0, 1.0, dim=2), metric=[[1.0, 0.5], [0.5, 1.0]]).value.dtype
        == torch.float32
    )


def test_an_ill_conditioned_metric_still_gives_a_feasible_point():
    set, f, _ = polytope(31, batch=200, n=8, m=20)
    q, _ = torch.linalg.qr(normal(3, 200, 8, 8))
    M = q * 10 ** torch.linspace(-6, 6, 8, dtype=DOUBLE) @ q.mT
    answer = project(f, set, metric=M)
    assert set.contains(answer.value).all()
    assert (answer.status <= Status.WITHIN_TOL).all()


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=["single", "double"])
def test_strict_holds_in_exact_arithmetic(dtype: torch.dtype):
    set, f, M = polytope(41, n=4, m=8)
    set, f, M = set.to(dtype), f.to(dtype), M.to(dtype)
    answer = project(f, set, metric=M, strict=True)
    for A, upper, y in zip(set.A.tolist(), set.upper.tolist(), answer.value.tolist(), strict=True):
        for row, bound in zip(A, upper, strict=True):
            assert sum(Fraction(a) * Fraction(v) for a, v in zip(row, y, strict=True)) <= Fraction(bound)
    near = 1e-3 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(answer.value, project(f, set, metric=M).value, rtol=near, atol=near)


def test_an_empty_set_is_empty_in_any_metric():
    set = AffineSet.inequality([[1.0, 0.0], [-1.0, 0.0]], [0.0, -1.0]).with_metric([[2.0, 1.0], [1.0, 3.0]])
    with pytest.raises(ConstraintError, match=r"row 0 .* row 1"):
        project(torch.tensor([3.0, 9.0]), set)
    answer = project(torch.tensor([3.0, 9.0]), set, on_infeasible="nearest")
    torch.testing.assert_close(answer.value, torch.tensor([0.5, 9 + 2.5 / 3]))  # halfway, then nearest in M


def test_a_batch_is_its_samples_bit_for_bit():
    set, f, M = polytope(51)
    whole = project(f, set, metric=M).value
    assert torch.equal(whole, torch.stack([project(f[i], set[i], metric=M[i]).value for i in range(len(f))]))


# ------------------------------------------------------------------------------------------------ the gradient


@pytest.mark.parametrize("kind", ["matrix", "diagonal", "shared"])
def test_gradients_of_everything_and_their_gradients(kind: str):
    set, f, M = polytope(61, batch=5, n=3, m=4)
    if kind == "diagonal":
        M = M.diagonal(dim1=-2, dim2=-1).contiguous()
    if kind == "shared":
        M = M[0].clone()
    inputs = [t.clone().requires_grad_() for t in (f, 0.1 * normal(1, *f.shape), set.A, set.upper, M)]

    def value(f: Tensor, w: Tensor, A: Tensor, b: Tensor, M: Tensor) -> Tensor:
        metric = AffineSet.inequality(A, b).with_metric(M, diagonal=kind == "diagonal")
        return project(f, metric, w, search="active").value

    assert torch.autograd.gradcheck(value, inputs)
    assert torch.autograd.gradgradcheck(value, inputs)


def test_the_tangent_gradient_is_the_projection_in_the_metric():
    """f gets -M d, with d the direction of the tangent cone nearest to -M^-1 v in M."""
    set, f, M = polytope(71, batch=16, n=3, m=5)
    f.requires_grad_()
    v = normal(2, *f.shape)
    answer = project(f, set, metric=M, gradient="tangent")
    (found,) = torch.autograd.grad(answer.value, f, v)
    touching = answer.binding != 0
    cone = AffineSet.inequality(torch.where(touching.unsqueeze(-1), set.A, 0.0), torch.zeros_like(set.upper))
    d = project(-torch.linalg.solve(M, v), cone, metric=M).value
    torch.testing.assert_close(found, -(M @ d.unsqueeze(-1)).squeeze(-1), rtol=1e-8, atol=1e-8)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # of torch's own forward mode
def test_transforms_and_compilation_agree_with_eager():
    set, f, M = polytope(81, batch=4, n=3, m=4)

    def value(f: Tensor, M: Tensor, A: Tensor, b: Tensor) -> Tensor:
        return project(f, AffineSet.inequality(A, b).with_metric(M)).value

    data = f, M, set.A, set.upper
    mapped = torch.func.vmap(torch.func.jacrev(value, argnums=(0, 1)))(*data)
    forward = torch.func.vmap(torch.func.jacfwd(value, argnums=(0, 1)))(*data)
    for i in range(4):
        one = tuple(t[i] for t in data)
        eager = torch.autograd.functional.jacobian(lambda f, M, one=one: value(f, M, *one[2:]), one[:2])
        for j in range(2):
            symmetric = (lambda t: (t + t.mT) / 2) if j else (lambda t: t)
            torch.testing.assert_close(mapped[j][i], eager[j])
            torch.testing.assert_close(symmetric(forward[j][i]), symmetric(eager[j]))
    compiled = torch.compile(value, fullgraph=True)
    assert torch.equal(compiled(*data), value(*data))


# ------------------------------------------------------------------------------------------------ around it


def test_every_way_to_write_it_is_the_same():
    set, f, _ = polytope(91, n=4, m=6)
    one, f, d = set[0], f[:8], torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=DOUBLE)
    wanted = project(f, one.with_metric(d)).value
    assert torch.equal(project(f, one, metric=d.diag()).value, wanted)
    assert torch.equal(project(f, one, metric=[1, 2, 3, 4]).value, wanted)
    assert torch.equal(project(f, prepare(one), metric=d).value, wanted)
    assert torch.equal(project(f, prepare(one.with_metric(d)).with_bounds(upper=one.upper)).value, wanted)
    assert torch.equal(CAffine(one, metric=d)(f), wanted)
    assert torch.equal(CAffine(lambda x: one.with_metric(d))(f, x=f), wanted)
    assert torch.equal(CAffine(lambda x: one, metric=d)(f, x=f), wanted)
    assert torch.equal(project(f, one.with_metric(d) & AffineSet.box(-1e9, 1e9, dim=4)).value, wanted)
    assert torch.equal(project(f, one.with_metric(d.expand(8, 4), diagonal=True)).value, wanted)
    batch = torch.utils.data.default_collate([one.with_metric(d), one.with_metric(4 * d)])
    assert torch.equal(project(f[:2], batch).value, wanted[:2])


def test_a_layer_saves_its_metric_and_warns_of_another_one():
    set = AffineSet.inequality([[1.0, 1.0]], [0.0])
    layer, other = CAffine(set, metric=[1.0, 2.0]), CAffine(set, metric=[1.0, 5.0])
    assert torch.equal(copy.deepcopy(layer).double().metric, torch.tensor([[1.0, 2.0]], dtype=DOUBLE))
    with pytest.warns(UserWarning, match="its metric"):
        layer.load_state_dict(other.state_dict())
    torch.testing.assert_close(layer(torch.tensor([6.0, 0.0])), torch.tensor([1.0, -1.0]))
    assert "metric" not in CAffine(set).state_dict()
    model = CAffNet(FeedForward(3, 2), set, metric=[1.0, 2.0])
    assert bool((model(torch.randn(4, 3)).sum(-1) <= 1e-5).all())


def test_an_exported_graph_has_the_metric():
    layer = CAffine(AffineSet.inequality([[1.0, 1.0], [1.0, -1.0]], [0.0, 1.0]), metric=[[2.0, 0.5], [0.5, 1.0]])
    f = torch.tensor([[3.0, 1.0], [-1.0, -2.0], [0.1, 4.0]])
    graph = torch.export.export(layer, (f,)).module()
    torch.testing.assert_close(graph(f), layer(f))


def test_what_cannot_be_a_metric_is_refused():
    set, f, M = polytope(95, batch=3, n=2, m=3)
    M[1] = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=DOUBLE)
    with pytest.raises(ConstraintError, match=r"smallest eigenvalue at sample \(1,\) is -1"):
        project(f, set, metric=M)
    marked = project(f, set, metric=M, on_infeasible="nan")
    assert marked.status.tolist()[1] == Status.INVALID and marked.value[1].isnan().all()
    with pytest.raises(ConstraintError, match=r"shape \(\.\.\., 2, 2\)"):
        set.with_metric(torch.eye(3, dtype=DOUBLE))
    with pytest.raises(ConstraintError, match="convert one of them"):
        set.with_metric(torch.eye(2))
    with pytest.raises(ConstraintError, match="Only one set"):
        _ = set.with_metric([1.0, 2.0]) & set.with_metric([1.0, 3.0])
    with pytest.raises(ConstraintError, match="norm=2"):
        project(f, set, metric=[1.0, 2.0], norm=1)
    with pytest.raises(ConstraintError, match=r"metric must be finite, got nan at metric\[1, 1\]"):
        project(f, set, metric=[[1.0, 0.0], [0.0, float("nan")]])


# ------------------------------------------------------------------------------------------------ real problems

MAROS = DATA / "yardsticks" / "maros_meszaros_pd"
NAMES = sorted(path.stem for path in MAROS.glob("*.mat"))


@pytest.mark.skipif(not NAMES, reason=f"no Maros-Meszaros problems in {MAROS}")
@pytest.mark.parametrize("name", NAMES)
def test_strictly_convex_problems_of_maros_and_meszaros(name: str):
    """Minimise y'Py/2 + q'y: the projection of -P^-1 q in the metric P. Residuals and gap as qpbenchmark takes them."""
    scipy_io = pytest.importorskip("scipy.io")
    data = scipy_io.loadmat(MAROS / f"{name}.mat")
    P, A = (torch.as_tensor(t.toarray() if hasattr(t, "toarray") else t, dtype=DOUBLE) for t in (data["P"], data["A"]))
    q, low, high = (torch.as_tensor(data[key], dtype=DOUBLE).reshape(-1) for key in ("q", "l", "u"))
    low, high = torch.where(low <= -1e20, -INF, low), torch.where(high >= 1e20, INF, high)
    y = project(-torch.linalg.solve(P, q), AffineSet(A, low, high), metric=P, search="active").value
    value = A @ y
    assert torch.maximum(value - high, low - value).amax() <= 1e-9 * max(1.0, float(value.abs().max()))


def test_a_conflict_under_strict_is_named_in_any_metric():
    """These rows exclude each other by one unit in the last place: only the metric's own path decides it as it did."""
    set = AffineSet([[1.0], [1.0000000000000002]], [-3.0, -torch.inf], [-2.9999999999999996, -3.0000000000000009])
    f, w = (torch.tensor([x], dtype=torch.float64) for x in (0.0, 2.0))
    with pytest.raises(InfeasibleError) as caught:
        project(f, set.with_metric([3.0]), w, search="full", strict=True)
    (conflict,) = caught.value.conflicts
    assert conflict.rows == (0, 1) and conflict.proven


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("metric", [[3, 1], [3.0, 1.0], np.array([3.0, 1.0]), torch.tensor([3.0, 1.0])], ids=type)
def test_the_metric_of_a_layer_takes_the_number_type_of_the_set(dtype: torch.dtype, metric):
    C, d = torch.ones(1, 2, dtype=dtype), torch.zeros(1, dtype=dtype)
    layer = CAffine(lambda x: AffineSet.equality(C, d), metric=metric)
    answer = layer(torch.tensor([[1.0, 0.0]], dtype=dtype), x=torch.zeros(1, 1))
    assert torch.allclose(answer, torch.tensor([[0.75, -0.75]], dtype=dtype))


def test_two_metrics_are_refused():
    layer = CAffine(lambda x: AffineSet.box(0.0, 1.0, dim=2).with_metric([2.0, 1.0]), metric=[3.0, 1.0])
    with pytest.raises(ConstraintError, match="The layer has a metric, and so has the set of its constraint function"):
        layer(torch.zeros(1, 2), x=torch.zeros(1, 1))
