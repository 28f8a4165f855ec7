"""Quadratic and linear programs: exact answers, proofs, gradients, and what is said where there is no minimum."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from caffnet import (
    AffineSet,
    ConstraintError,
    InfeasibleError,
    Status,
    UnboundedError,
    prepare,
    project,
    solve_qp,
)
from helpers import DATA, nearest_exactly, needs_data, random_problem, set_of, stored_problem

DOUBLE = torch.float64
INF = float("inf")


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def program(seed: int, batch: int = 6, n: int = 3, m: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Q, q, A and b of strictly convex programs ``A y <= b`` with a point inside."""
    root, A, inside = normal(seed, batch, n, n), normal(seed + 1, batch, m, n), normal(seed + 2, batch, n)
    b = (A @ inside.unsqueeze(-1)).squeeze(-1) + normal(seed + 3, batch, m).abs()
    return root @ root.mT + 0.3 * torch.eye(n), 3 * normal(seed + 4, batch, n), A, b


# ------------------------------------------------------------------------------------------------ strictly convex


@pytest.mark.parametrize("diagonal", [False, True], ids=["matrix", "diagonal"])
def test_500_degenerate_programs_in_exact_arithmetic(diagonal: bool):
    """Small integers: parallel rows, rows through one point, rows that repeat."""
    random = np.random.default_rng(6)
    answered = 0
    for _ in range(250):
        n, m = int(random.integers(1, 4)), int(random.integers(1, 6))
        A, upper, f = (random.integers(-2, 3, size).astype(float) for size in ((m, n), m, n))
        root = random.integers(-2, 3, (n, n))
        Q = np.diag(random.integers(1, 9, n)).astype(float) if diagonal else (root @ root.T + np.eye(n)).astype(float)
        exact = nearest_exactly(A.tolist(), upper.tolist(), f.tolist(), Q.tolist())
        given = torch.as_tensor(Q.diagonal().copy() if diagonal else Q)
        best = solve_qp(given, torch.as_tensor(-Q @ f), AffineSet.inequality(A, upper), on_infeasible="nan")
        assert (best.status == Status.INFEASIBLE).item() == (exact is None), (A, upper, f, Q)
        if exact is not None:
            wanted = torch.tensor([float(y) for y in exact], dtype=DOUBLE)
            torch.testing.assert_close(best.value, wanted, rtol=1e-14, atol=1e-14)
            assert best.status <= Status.PROJECTED  # proven, also where rows meet that rounding tells apart
            left = best.residuals()
            assert max(left.primal, left.dual, left.gap) <= 1e-13 * (1 + best.multipliers.abs().max())
            answered += 1
    assert answered > 120


def test_it_is_the_projection_in_the_metric_q():
    Q, q, A, b = program(11, batch=32, n=6, m=12)
    set = AffineSet.inequality(A, b)
    nearest = project(-torch.linalg.solve(Q, q), set, metric=Q)
    best = solve_qp(Q, q, set)
    torch.testing.assert_close(best.value, nearest.value, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(best.multipliers, nearest.multipliers, rtol=1e-10, atol=1e-10)
    y = best.value
    torch.testing.assert_close(best.objective, (y * ((Q @ y.unsqueeze(-1)).squeeze(-1) / 2 + q)).sum(-1))


def test_a_program_may_be_written_in_lists_and_arrays():
    best = solve_qp([[1.0, 0.0], [0.0, 1.0]], [-2.0, -2.5], G=[[1.0, 1.0]], h=[1.0], lb=0.0)
    assert best.value.dtype == torch.get_default_dtype()
    torch.testing.assert_close(best.value, torch.tensor([0.25, 0.75]))
    arrays = solve_qp(np.eye(2), np.array([-2.0, -2.5]), G=[[1.0, 1.0]], h=[1.0], lb=0.0)
    assert arrays.value.dtype == torch.float64
    with pytest.raises(ConstraintError, match=r"^h must have shape \(..., 2\), one entry for each row of G \(2, 1\)"):
        solve_qp(None, [1.0], G=[[1.0], [1.0]], h=[1.0, 2.0, 3.0])
    with pytest.raises(ConstraintError, match=r"^b must have shape .* of A \(1, 2\)"):
        solve_qp(None, [1.0, 1.0], A=[[1.0, 1.0]], b=[1.0, 1.0])


@pytest.mark.parametrize(("rows", "right"), [("G", "h"), ("A", "b")])
def test_sparse_rows_that_are_too_many_are_refused_before_they_are_written_in_full(rows: str, right: str):
    n = 2**20  # in full: four terabytes
    place = torch.arange(n).expand(2, n)
    identity = torch.sparse_coo_tensor(place, torch.ones(n), (n, n), check_invariants=True)
    with pytest.raises(ConstraintError, match=f"solve_qp needs all {n} x {n} numbers of them"):
        solve_qp(None, torch.zeros(n), **{rows: identity, right: torch.ones(n)})


def test_a_program_may_be_written_in_matrices_of_scipy():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    full = np.eye(2), np.array([-2.0, -2.5]), np.array([[1.0, 1.0]])
    best = solve_qp(scipy_sparse.csc_array(full[0]), full[1], G=scipy_sparse.csr_matrix(full[2]), h=[1.0], lb=0.0)
    torch.testing.assert_close(best.value, torch.tensor([0.25, 0.75], dtype=torch.float64))
    with pytest.raises(ConstraintError, match=r"A single row a is written \[a\]"):
        AffineSet.inequality(scipy_sparse.coo_array(np.ones(2)), [1.0])


def test_a_nearly_singular_q_keeps_its_digits():
    """-Q⁻¹ q is at 1e10; the minimum, of size 1, has its residuals at rounding all the same."""
    _, q, A, b = program(12, batch=50, n=5, m=15)
    q_, _ = torch.linalg.qr(normal(3, 50, 5, 5))
    Q = q_ * 10.0 ** torch.linspace(-10, 0, 5, dtype=DOUBLE) @ q_.mT
    best = solve_qp(Q, q, AffineSet.inequality(A, b) & AffineSet.box(-5.0, 5.0, dim=5))
    left = best.residuals()
    assert max(t.max() for t in (left.primal, left.dual, left.gap)) <= 1e-12


@pytest.mark.parametrize("n", [12, 40])
def test_rows_with_a_structure_of_their_own_have_multipliers_too(n: int):
    """Chains, budgets and boxes have direct searches, without factors; multipliers need some. Q = I keeps the form."""
    step = (torch.eye(n, dtype=DOUBLE) - torch.eye(n, dtype=DOUBLE).roll(1, 1))[:-1]
    box = AffineSet.box(torch.zeros(n, dtype=DOUBLE), None)
    sets = {
        "chain": AffineSet.inequality(step, torch.zeros(n - 1, dtype=DOUBLE)),
        "simplex": AffineSet.equality(torch.ones(1, n, dtype=DOUBLE), torch.ones(1, dtype=DOUBLE)) & box,
        "one row": AffineSet.inequality(normal(5, 1, n), -torch.ones(1, dtype=DOUBLE)),
        "box": box,
    }
    q = normal(6, 40, n)
    for name, set in sets.items():
        nearest = project(-q, set.to_dense())
        for Q in (torch.ones(n, dtype=DOUBLE), torch.eye(n, dtype=DOUBLE)):
            best = solve_qp(Q, q, set)
            torch.testing.assert_close(best.value, nearest.value, rtol=1e-12, atol=1e-13, msg=name)
            torch.testing.assert_close(best.multipliers, nearest.multipliers, rtol=1e-11, atol=1e-12, msg=name)
            assert (best.status <= Status.PROJECTED).all() and best.residuals().dual.max() <= 5e-15 * n


MAROS = DATA / "yardsticks" / "maros_meszaros_pd"
NAMES = sorted(path.stem for path in MAROS.glob("*.mat"))


@pytest.mark.skipif(not NAMES, reason=f"no Maros-Meszaros problems in {MAROS}")
@pytest.mark.parametrize("name", NAMES)
def test_strictly_convex_problems_of_maros_and_meszaros(name: str):
    """Residuals and gap as qpbenchmark takes them, not scaled, at its high accuracy."""
    scipy_io = pytest.importorskip("scipy.io")
    data = scipy_io.loadmat(MAROS / f"{name}.mat")
    P, A = (torch.as_tensor(t.toarray() if hasattr(t, "toarray") else t, dtype=DOUBLE) for t in (data["P"], data["A"]))
    q, low, high = (torch.as_tensor(data[key], dtype=DOUBLE).reshape(-1) for key in ("q", "l", "u"))
    low, high = torch.where(low <= -1e20, -INF, low), torch.where(high >= 1e20, INF, high)
    best = solve_qp(P, q, AffineSet(A, low, high))
    y, multipliers, value = best.value, best.multipliers, A @ best.value
    assert torch.maximum(value - high, low - value).amax() <= 1e-9
    assert (P @ y + q + A.mT @ multipliers).abs().amax() <= 1e-9
    above, below = multipliers.clamp_min(0), multipliers.clamp_max(0)
    assert not above[high == INF].any() and not below[low == -INF].any()
    # In long double: the terms of one problem add up to 2e7, whose last digit in float64 is 4e-9.
    Pl, ql, yl, up, down, top, bottom = (
        t.nan_to_num(0, 0, 0).numpy().astype(np.longdouble) for t in (P, q, y, above, below, high, low)
    )
    assert abs(yl @ Pl @ yl + ql @ yl + up @ top + down @ bottom) <= 1e-9


# ------------------------------------------------------------------------------------------------ singular or zero

SEMIDEFINITE = ("CVXQP1_S", "CVXQP3_S", "DPKLO1", "DUALC2", "DUALC8", "GENHS28", "HS51", "HS52", "LOTSCHD", "QAFIRO")
SEMIDEFINITE += ("QISRAEL", "QRECIPE", "QSCAGR7", "QSHARE2B", "TAME", "ZECEVIC2")
LINEAR = ("adlittle", "afiro", "boeing2", "recipe", "sc105", "sc50a", "scagr7", "share2b", "stocfor1")


@needs_data
@pytest.mark.parametrize("name", [f"mm_{n}" for n in SEMIDEFINITE] + [f"netlib_lp_{n}" for n in LINEAR])
def test_stored_programs_end_at_their_known_minimum(name: str):
    data = stored_problem(name)
    Q = torch.as_tensor(data["P"]) if "P" in data else None
    best = solve_qp(Q, torch.as_tensor(data["q"]), set_of(data))
    assert best.status <= Status.PROJECTED  # proven
    known = float(data["obj_known"])  # eight digits of it
    assert abs(best.objective + float(data.get("r", 0.0)) - known) <= 3e-8 * (1 + abs(known))


def linear_by_highs(q: np.ndarray, set: AffineSet):
    optimize = pytest.importorskip("scipy.optimize")
    A, low, high = (t.numpy() for t in (set.A, set.lower, set.upper))
    equal = low == high
    up, down = ~equal & (high < INF), ~equal & (low > -INF)
    return optimize.linprog(
        q,
        A_ub=np.concatenate([A[up], -A[down]]),
        b_ub=np.concatenate([high[up], -low[down]]),
        A_eq=A[equal],
        b_eq=high[equal],
        bounds=(None, None),
        method="highs",
    )


def test_degenerate_linear_programs_agree_with_highs():
    """Proven minima have the objective of HiGHS; rays are rays, whatever HiGHS says of sets that rounding empties."""
    kinds = dict.fromkeys(Status, 0)
    for seed in range(300):
        set, _, _ = random_problem(seed)
        random = np.random.default_rng(seed)
        q = random.integers(-2, 3, set.n).astype(float) if seed % 2 else random.normal(size=set.n)
        best = solve_qp(None, torch.as_tensor(q), set, on_infeasible="nan")
        kinds[Status(best.status.item())] += 1
        assert best.status in (Status.INSIDE, Status.PROJECTED, Status.UNBOUNDED), seed
        if best.status == Status.UNBOUNDED:
            ray, along = best.ray, set.A @ best.ray
            assert torch.as_tensor(q) @ ray < -1e-6
            assert (along[set.upper < INF] <= 1e-14).all() and (along[set.lower > -INF] >= -1e-14).all()
        else:
            other = linear_by_highs(q, set)
            assert other.status == 0, seed
            assert abs(best.objective - other.fun) <= 1e-8 * (1 + abs(other.fun)), seed
    assert kinds[Status.PROJECTED] > 50 and kinds[Status.UNBOUNDED] > 50


def test_singular_programs_are_proven():
    for seed in range(200):
        set, f, _ = random_problem(seed)
        random = np.random.default_rng(seed)
        root = torch.as_tensor(random.integers(-2, 3, (set.n, max(set.n - 1, 1))).astype(float))
        Q, box = root @ root.mT, AffineSet.box(f - 9, f + 9)
        best = solve_qp(Q, torch.as_tensor(random.normal(size=set.n)), set & box)
        left = best.residuals()
        size = 1 + best.multipliers.abs().max() * (1 + best.value.abs().max())
        assert best.status <= Status.PROJECTED, seed
        assert max(left.primal, left.dual, left.gap) <= 1e-10 * size, seed


@pytest.mark.parametrize("kind", ["linear", "singular", "diagonal"])
def test_outputs_in_units_of_their_own_are_no_harder(kind: str):
    """Grams beside tonnes: columns times 1e-4 to 1e4. The minimum is that of even units, and as well proven."""
    for seed in range(60):
        random = np.random.default_rng(seed)
        n, m = int(random.integers(4, 10)), int(random.integers(6, 16))
        A, inside, unit = random.normal(size=(m, n)), random.normal(size=n), 10.0 ** random.uniform(-4, 4, n)
        upper, q, root = A @ inside + random.uniform(0, 1, m), random.normal(size=n), random.normal(size=(n, n // 2))
        curvature = np.abs(q) * (random.random(n) < 0.5)
        Q = {"linear": np.zeros((n, n)), "singular": root @ root.T, "diagonal": np.diag(curvature)}[kind]

        even, uneven = (
            solve_qp(
                torch.as_tensor(Q * d * d[:, None]),
                torch.as_tensor(q * d),
                AffineSet.inequality(A * d, upper) & AffineSet.box((inside - 2) / d, (inside + 2) / d),
            )
            for d in (np.ones(n), unit)
        )
        assert even.status <= Status.PROJECTED and uneven.status <= Status.PROJECTED, seed
        torch.testing.assert_close(uneven.objective, even.objective, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(uneven.multipliers[:m], even.multipliers[:m], rtol=1e-9, atol=1e-9)


def test_a_set_too_small_for_the_curvature_to_count():
    """Of size 1e-8, beside a minimum without rows at up to 1e10."""
    for seed in range(60):
        random = np.random.default_rng(seed)
        n, m = int(random.integers(3, 9)), int(random.integers(4, 14))
        turn, _ = np.linalg.qr(random.normal(size=(n, n)))
        A, inside, curvature = random.normal(size=(m, n)), random.normal(size=n), 10.0 ** random.uniform(-10, 0, n)
        set = AffineSet.inequality(A, 1e-8 * (A @ inside + random.uniform(0, 1, m)))
        box = AffineSet.box(1e-8 * (inside - 2), 1e-8 * (inside + 2))
        best = solve_qp(torch.as_tensor((turn * curvature) @ turn.T), torch.as_tensor(random.normal(size=n)), set & box)
        assert best.status <= Status.PROJECTED and best.residuals().gap <= 1e-21, seed


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "one each"])
def test_a_q_of_zeros_is_a_linear_program_in_every_unit(shared: bool):
    """With one curved sample beside them where each has a Q of its own."""
    q = torch.tensor([[1e-30], [1e-12], [3.0], [1e30]], dtype=DOUBLE)
    Q = torch.zeros(1, 1, dtype=DOUBLE) if shared else torch.tensor([0.0, 0.0, 1.0, 0.0]).double()[:, None, None]
    best = solve_qp(Q, q, AffineSet.box(-2.0, 1.0, dim=1))
    assert (best.status == Status.PROJECTED).all()
    assert (best.value == -2).all()
    torch.testing.assert_close(best.multipliers, 2 * Q.reshape(-1, 1) - q)


@pytest.mark.parametrize("slope", [1e-10, 1e-12])
def test_a_price_far_below_the_curvature_still_counts(slope: float):
    root = torch.tensor([[1.0, 1.0, 1.0]], dtype=DOUBLE)
    best = solve_qp(root.mT @ root, torch.tensor([-1.0, -1.0, slope - 1.0], dtype=DOUBLE), lb=0.0, ub=1.0)
    assert best.status == Status.PROJECTED and best.value[2] == 0
    torch.testing.assert_close(best.value.sum(), torch.ones((), dtype=DOUBLE))


def test_a_flat_direction_along_a_row():
    """The minima of the objective are a line that meets a row at an angle of 5e-5, far away."""
    Q = torch.tensor([[0.08, -0.2, 0.6], [-0.2, 1.0, -2.0], [0.6, -2.0, 5.0]], dtype=DOUBLE)
    set = AffineSet([[0.41141, 1.724783, 0.331908], [0.0008, 0.9865, 0.1078]], [4.11, -INF], [INF, -1.85]).to(DOUBLE)
    q = torch.tensor([1.2, -2.0, 8.0], dtype=DOUBLE)  # Q (-5, 1, 1) = 0, q (-5, 1, 1) = 0
    best = solve_qp(Q, q, set)
    assert best.status <= Status.PROJECTED
    torch.testing.assert_close(best.objective, -q @ torch.linalg.pinv(Q) @ q / 2, rtol=1e-7, atol=0.0)


def test_rays_have_a_length():
    """The cone leaves little of -q: the direction is as long as any, and no row stops it."""
    set = AffineSet.inequality([[-1.0, 1.0 - 1e-3], [1.0, -1.0]], [0.0, 0.0]).to(DOUBLE)
    q = torch.tensor([1.0, -1.0], dtype=DOUBLE)
    best = solve_qp(None, q, AffineSet(set.A[:1], [-INF], [0.0]) & AffineSet.box(0.0, None, dim=2), on_infeasible="nan")
    assert best.status == Status.UNBOUNDED and best.ray.abs().max() == 1 and q @ best.ray < -9e-4
    assert set.A[0] @ best.ray <= 1e-15 and (best.ray >= 0).all()


@needs_data
def test_the_multipliers_of_a_grid_are_its_nodal_prices():
    """Case 118: the price of power at a bus, against HiGHS's duals and against the minimum at another load."""
    data = stored_problem("opf_case118_ieee")
    set, q = set_of(data), torch.as_tensor(data["q"])
    lines, drawn = len(data["lim"]), torch.as_tensor(data["M_off"])
    best, other = solve_qp(None, q, set), linear_by_highs(data["q"], set)
    assert abs(best.objective - other.fun) <= 1e-8 * abs(other.fun)

    def prices(rows: Tensor) -> Tensor:
        """Rows: flows below their limits, flows above them, the balance. A load moves the bounds of all."""
        return -rows[2 * lines] - (rows[:lines] - rows[lines : 2 * lines]) @ drawn

    theirs = torch.as_tensor(np.concatenate([-other.ineqlin.marginals[: 2 * lines], -other.eqlin.marginals]))
    found = prices(best.multipliers)
    torch.testing.assert_close(found, prices(theirs), rtol=1e-6, atol=1e-6)
    assert found.max() > 1.1 * found.min()  # lines at their limits: power is not worth the same everywhere
    for bus in (0, 40, 100):
        move = torch.zeros_like(set.upper)
        move[:lines], move[lines : 2 * lines], move[2 * lines] = drawn[:, bus], -drawn[:, bus], 1.0
        step = 1e-5 * move
        lower = torch.where(set.lower == set.upper, set.lower + step, set.lower)
        there = AffineSet.from_parts(set.A, lower, set.upper + step, None, set.row_kinds)
        rise = (solve_qp(None, q, there).objective - best.objective) / 1e-5
        torch.testing.assert_close(rise, found[bus], rtol=1e-5, atol=1e-3)


# ------------------------------------------------------------------------------------------------ the gradient


@pytest.mark.parametrize("kind", ["matrix", "diagonal", "shared"])
def test_gradients_of_everything_and_their_gradients(kind: str):
    Q, q, A, b = program(21, batch=4)
    C, d = normal(25, 4, 1, 3), 0.1 * normal(26, 4, 1)
    Q = {"matrix": Q, "diagonal": Q.diagonal(dim1=-2, dim2=-1).unsqueeze(-2), "shared": Q[0]}[kind].clone()
    inputs = [t.clone().requires_grad_() for t in (Q, q, A, b + 2, C, d)]

    def value(Q: Tensor, q: Tensor, A: Tensor, b: Tensor, C: Tensor, d: Tensor) -> tuple[Tensor, ...]:
        best = solve_qp(Q, q, AffineSet.inequality(A, b) & AffineSet.equality(C, d))
        return best.value, best.multipliers, best.objective

    assert torch.autograd.gradcheck(value, inputs)
    assert torch.autograd.gradgradcheck(value, inputs)


def test_gradients_of_a_vertex_and_of_a_singular_q():
    _, q, A, b = program(31, batch=4)
    rank_one = normal(39, 4, 3, 1)

    def linear(q: Tensor, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        best = solve_qp(None, q, AffineSet(A, -b - 4, b) & AffineSet.box(-3.0, 3.0, dim=3))
        return best.value, best.multipliers

    def singular(root: Tensor, q: Tensor, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        best = solve_qp(root @ root.mT, q, AffineSet(A, -b - 4, b) & AffineSet.box(-3.0, 3.0, dim=3))
        return best.value, best.multipliers

    inputs = [t.clone().requires_grad_() for t in (q, A, b.abs() + 0.1)]
    assert torch.autograd.gradcheck(linear, inputs)
    assert torch.autograd.gradcheck(singular, [rank_one.clone().requires_grad_(), *inputs])


def test_where_minima_are_many_their_directions_get_no_gradient():
    """min y_1 on the unit square: every (0, t) is one. The right side of the row moves y_1; nothing moves t."""
    low = torch.zeros(2, dtype=DOUBLE, requires_grad=True)
    q = torch.tensor([1.0, 0.0], dtype=DOUBLE, requires_grad=True)
    best = solve_qp(None, q, AffineSet.box(low, torch.ones(2, dtype=DOUBLE)))
    assert best.value[0] == 0
    slope = torch.autograd.grad(best.value.sum(), (low, q))
    assert torch.equal(slope[0][0], torch.tensor(1.0, dtype=DOUBLE)) and not slope[1].any()


def test_samples_without_a_minimum_do_not_spoil_the_gradient():
    Q, q, A, b = program(41, batch=3)
    A[1, 1], b[1, 1] = -A[1, 0], -b[1, 0] - 1
    q.requires_grad_()
    best = solve_qp(Q, q, AffineSet.inequality(A, b), on_infeasible="nan")
    assert best.status[1] == Status.INFEASIBLE and best.value[1].isnan().all() and best.multipliers[1].isnan().all()
    (slope,) = torch.autograd.grad(best.value[[0, 2]].sum() + best.multipliers[[0, 2]].sum(), q)
    assert slope.isfinite().all() and not slope[1].any() and slope[0].any()


@pytest.mark.parametrize("curved", ["none", "singular", "definite"])
@pytest.mark.parametrize("spoiled", ["q", "Q", "A", "bounds", "unbounded"])
def test_one_sample_without_a_minimum_leaves_the_others_their_gradients(curved: str, spoiled: str):
    """Of values, multipliers and objectives, once and again: those of the other samples alone."""
    if (curved, spoiled) in {("none", "Q"), ("definite", "unbounded")}:
        pytest.skip("not possible")
    _, q, A, b = program(141, batch=3, n=3, m=4)
    Q = {"none": None, "singular": torch.diag(torch.tensor([2.0, 1.0, 0.0], dtype=DOUBLE))}.get(
        curved, torch.eye(3, dtype=DOUBLE)
    )
    A, upper = torch.cat([A, torch.eye(3, dtype=DOUBLE).expand(3, 3, 3)], -2), torch.cat([b + 4, b[:, :3] * 0 + 3], -1)
    lower = -upper.abs()
    if spoiled == "Q" and Q is not None:
        Q = torch.stack([Q, torch.full_like(Q, torch.nan), Q])
    elif spoiled == "unbounded":
        lower[1], upper[1], q[1] = -INF, INF, 1.0
    else:
        {"q": q, "A": A, "bounds": lower}.get(spoiled, q)[1, 0] = torch.nan
    leaves = [None if t is None else t.clone().requires_grad_() for t in (Q, q, A, lower, upper)]

    def slopes(these: list[int]) -> tuple[list[Tensor], list[Tensor]]:
        parts = [t[these] if t is not None and t.ndim > core else t for t, core in zip(leaves, (2, 1, 2, 1, 1))]  # noqa: B905
        matrix, q, A, lower, upper = parts
        assert q is not None and A is not None and lower is not None and upper is not None
        best = solve_qp(matrix, q, AffineSet(A, lower, upper), on_infeasible="nan")
        good = best.status <= Status.PROJECTED
        assert good.sum() == 2
        total = best.value[good].square().sum() + best.multipliers[good].square().sum() + best.objective[good].sum()
        inputs = [t for t in leaves if t is not None]
        once = torch.autograd.grad(total, inputs, create_graph=True)
        again = torch.autograd.grad(sum(t.square().sum() for t in once), inputs, retain_graph=True)  # pyright: ignore
        plain = torch.autograd.grad(total, inputs)
        for one, other in zip(once, plain, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        return list(plain), list(again)

    for one, other in zip(slopes([0, 1, 2]), slopes([0, 2]), strict=True):
        for found, wanted in zip(one, other, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("least", [1e-10, 1e-13, 1e-16])
def test_gradients_of_a_nearly_singular_q_are_those_of_the_whole_system(least: float):
    """Rows hold the point well, but Q as it is has a factor with few right digits."""
    for seed in range(10):
        turn = torch.linalg.qr(normal(150 + seed, 5, 5))[0]
        Q = (turn * torch.tensor([least, 1.0, 2.0, 3.0, 4.0], dtype=DOUBLE)) @ turn.mT
        Q, q = (Q + Q.mT) / 2, (3 * normal(170 + seed, 5)).requires_grad_()
        set = AffineSet.inequality(normal(190 + seed, 4, 5), [0.1, 0.2, 0.3, 0.4]) & AffineSet.box(-2.0, 2.0, dim=5)
        best = solve_qp(Q, q, set)
        v, u = normal(210 + seed, 5), normal(230 + seed, 9)
        (slope,) = torch.autograd.grad(best.value @ v + best.multipliers @ u, q)
        held = best.active != 0
        rows = set.A[held].double()
        system = torch.cat([torch.cat([Q, rows.mT], -1), torch.nn.functional.pad(rows, (0, len(rows)))], -2)
        if torch.linalg.cond(system) < 1e4:
            wanted = -torch.linalg.solve(system, torch.cat([v, u[held]]))[:5]
            torch.testing.assert_close(slope, wanted, rtol=1e-6, atol=1e-6)


def test_second_derivatives_where_minima_are_many():
    """min y_1 + c y_3² / 2 on a cube: nothing moves the second output, and the others have their second derivatives."""
    Q = torch.diag(torch.tensor([0.0, 0.0, 2.0], dtype=DOUBLE))
    q = torch.tensor([1.0, 0.0, 0.5], dtype=DOUBLE)
    low = torch.full((3,), -1.0, dtype=DOUBLE, requires_grad=True)
    Q.requires_grad_()
    q.requires_grad_()
    best = solve_qp(Q, q, AffineSet.box(low, torch.ones(3, dtype=DOUBLE)))
    slope = torch.autograd.grad(best.value.sum(), (Q, q, low), create_graph=True)
    assert torch.allclose(slope[1], torch.tensor([0.0, 0.0, -0.5], dtype=DOUBLE), atol=1e-12)
    bent = torch.autograd.grad(slope[1][2], Q)[0]  # d²y_3 / dq_3 dQ_33 of y_3 = -q_3 / Q_33
    torch.testing.assert_close(bent[2, 2], torch.tensor(0.25, dtype=DOUBLE))


# ------------------------------------------------------------------------------------------------ around it


def test_every_way_to_write_it_is_the_same():
    Q, q, A, b = program(51, batch=5)
    C, d = normal(1, 1, 3), torch.zeros(1, dtype=DOUBLE)
    set = AffineSet.inequality(A, b + 3) & AffineSet.equality(C, d) & AffineSet.box(-2.0, 2.0, dim=3)
    wanted = solve_qp(Q, q, set)
    other = solve_qp(Q, q, G=A, h=b + 3, A=C, b=d, lb=-2.0, ub=2.0)
    assert torch.equal(other.value, wanted.value) and torch.equal(other.multipliers, wanted.multipliers)
    torch.testing.assert_close(solve_qp(Q, q, set, start=wanted.active).value, wanted.value)
    one = solve_qp(Q[2], q[2], set[2])
    assert torch.equal(one.value, wanted.value[2]) and one.multipliers.shape == (9,)
    fixed = prepare(set[0])
    assert torch.equal(solve_qp(Q[0], q[0], fixed).value, wanted.value[0])
    for zero in (None, 0, torch.zeros(3, 3, dtype=DOUBLE), torch.zeros(3, dtype=DOUBLE)):
        torch.testing.assert_close(solve_qp(zero, q, set).objective, solve_qp(None, q, set).objective)
    assert torch.equal(solve_qp(Q[0].to_sparse(), q[0], fixed).value, wanted.value[0])
    listed = solve_qp([2.0, 1.0, 3.0], q, set)
    assert torch.equal(listed.value, solve_qp(torch.tensor([2.0, 1.0, 3.0], dtype=DOUBLE).diag(), q, set).value)


@pytest.mark.parametrize("curved", [True, False], ids=["quadratic", "linear"])
def test_single_precision_is_double_precision_rounded(curved: bool):
    Q, q, A, b = (t.float() for t in program(61, batch=20))
    set = AffineSet.inequality(A, b) & AffineSet.box(-4.0, 4.0, dim=3)
    best = solve_qp(Q if curved else None, q, set)
    exact = solve_qp(Q.double() if curved else None, q.double(), set.to(DOUBLE))
    assert best.value.dtype == torch.float32 and best.multipliers.dtype == torch.float32
    torch.testing.assert_close(best.value, exact.value.float(), rtol=1e-4, atol=1e-4)
    assert (best.violation <= 1e-5).all() and (best.status <= Status.WITHIN_TOL).all()


def test_a_shared_objective_begins_with_the_rows_of_the_first():
    """One q, one A, bounds per sample: the same answers as one by one."""
    _, q, A, b = program(71, batch=30, n=4, m=9)
    set = AffineSet.inequality(A[0], b.abs() + 0.1) & AffineSet.box(-2.0, 2.0, dim=4)
    together = solve_qp(None, q[0], set)
    alone = torch.stack([solve_qp(None, q[0], set[i]).value for i in range(30)])
    torch.testing.assert_close(together.value, alone, rtol=1e-12, atol=1e-12)
    assert (together.status <= Status.PROJECTED).all()


def test_what_has_no_minimum():
    q = torch.tensor([-1.0, -2.0])
    corner = AffineSet.box(0.0, None, dim=2)
    with pytest.raises(UnboundedError, match=r"falls without end, first in sample \(\): along the direction") as caught:
        solve_qp(None, q, corner)
    assert caught.value.samples == [()] and (caught.value.rays @ q < 0).all()
    assert pickle.loads(pickle.dumps(caught.value)).samples == [()]
    with pytest.raises(UnboundedError):
        solve_qp(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), q, corner)
    marked = solve_qp(None, torch.stack([q, -q]), corner, on_infeasible="nan")
    assert marked.status.tolist() == [Status.UNBOUNDED, Status.PROJECTED]
    assert marked.answered.tolist() == [False, True]
    assert repr(marked) == "Solution((2, 2): 1 PROJECTED, 1 UNBOUNDED; search='active')"
    assert marked.value[0].isnan().all() and marked.objective[0].isnan() and not marked.value[1].any()
    with pytest.raises(InfeasibleError, match=r"row 0 .* row 1"):
        solve_qp(torch.eye(2), q, AffineSet.inequality([[1.0, 0.0], [-1.0, 0.0]], [0.0, -1.0]))
    with pytest.raises(InfeasibleError, match=r"row 0 .* row 1"):
        solve_qp(None, q, AffineSet.inequality([[1.0, 0.0], [-1.0, 0.0]], [0.0, -1.0]))


def test_a_missing_q_is_zero():
    rows = AffineSet.equality([[1.0, 1.0]], [1.0])
    for Q in (torch.tensor([1.0, 3.0]), [[1.0, 0.0], [0.0, 3.0]], torch.tensor([[1.0, 0.0], [0.0, 3.0]]).double()):
        best = solve_qp(Q, None, rows)
        assert best.value.tolist() == pytest.approx([0.75, 0.25])
        assert best.value.dtype == (Q.dtype if isinstance(Q, Tensor) else torch.get_default_dtype())
    assert solve_qp(torch.eye(2).to_sparse(), None, rows).value.tolist() == pytest.approx([0.5, 0.5])
    with pytest.raises(ConstraintError, match=r"Q is torch\.int64; without a q it must be in float32 or float64"):
        solve_qp(torch.eye(2, dtype=torch.int64), None, rows)
    for Q in (None, 0):
        with pytest.raises(ConstraintError, match="solve_qp needs an objective: Q, q or both"):
            solve_qp(Q, None, rows)


def test_a_program_without_outputs_is_refused():
    with pytest.raises(ConstraintError, match=r"q must have an entry for each output, got the shape \(3, 0\)"):
        solve_qp(None, torch.zeros(3, 0), AffineSet.box(0.0, 1.0, dim=0))


def test_sets_in_the_place_of_the_objective_are_refused_with_the_order():
    rows = AffineSet.box(0.0, 1.0, dim=2)
    with pytest.raises(ConstraintError, match=r"Q must be .*, got AffineSet: the order is solve_qp\(Q, q, set\)"):
        solve_qp(rows, torch.eye(2), torch.zeros(2))  # type: ignore[arg-type]
    with pytest.raises(ConstraintError, match=r"q must be .*, got Prepared: the order is solve_qp\(Q, q, set\)"):
        solve_qp(torch.eye(2), prepare(rows))  # type: ignore[arg-type]


def test_what_cannot_be_a_program_is_refused():
    Q, q, A, b = program(81, batch=3)
    set = AffineSet.inequality(A, b)
    with pytest.raises(ConstraintError, match=r"smallest eigenvalue at sample \(0,\) is -1"):
        solve_qp(-torch.eye(3, dtype=DOUBLE), q, set)
    marked = solve_qp(torch.stack([-torch.eye(3, dtype=DOUBLE), *Q[1:]]), q, set, on_infeasible="nan")
    assert marked.status[0] == Status.INVALID and marked.value[0].isnan().all()
    assert (marked.status[1:] <= Status.PROJECTED).all()
    spoiled = q.clone()
    spoiled[1, 0] = float("nan")
    with pytest.raises(ConstraintError, match=r"q must be finite, got nan at q\[1, 0\]"):
        solve_qp(Q, spoiled, set)
    with pytest.raises(ConstraintError, match=r"Q must have shape \(\.\.\., 3, 3\)"):
        solve_qp(torch.eye(2, dtype=DOUBLE), q, set)
    with pytest.raises(ConstraintError, match=r"Q is torch\.float32"):
        solve_qp(torch.eye(3), q, set)
    with pytest.raises(ConstraintError, match=r"q must have shape \(\.\.\., 3\)"):
        solve_qp(None, q[:, :2], set)
    with pytest.raises(ConstraintError, match="has a metric"):
        solve_qp(Q, q, set.with_metric([1.0, 2.0, 3.0]))
    with pytest.raises(ConstraintError, match="not both"):
        solve_qp(Q, q, set, lb=0.0)
    with pytest.raises(ConstraintError, match="G is given without h"):
        solve_qp(Q, q, G=A)
    with pytest.raises(ConstraintError, match="needs constraints"):
        solve_qp(Q, q)
    with pytest.raises(ConstraintError, match="cannot be mapped or traced"):
        torch.func.vmap(lambda q: solve_qp(Q[0], q, set[0]).value)(q)


# ------------------------------------------------------------------------------------------------ edges


@pytest.mark.parametrize("whole", [False, True], ids=["parts", "set"])
def test_bounds_of_more_outputs_than_are_stored_in_full(whole: bool):
    """A large box keeps the entries of its rows only: the kernel read them as a whole matrix."""
    q = normal(5, 2, 1025)
    box = AffineSet.box(0.0, 1.0, dim=1025)
    best = solve_qp(None, q, box) if whole else solve_qp(None, q, lb=0.0, ub=1.0)
    assert torch.equal(best.value, (q < 0).to(DOUBLE))
    budget = {"G": torch.ones(1, 1025, dtype=DOUBLE), "h": [2.5]}
    best = solve_qp(torch.ones(1025, dtype=DOUBLE), q, **budget, lb=0.0, ub=1.0)
    wanted = project(-q, AffineSet.inequality(budget["G"], budget["h"]) & box)
    assert (best.value - wanted.value).abs().max() < 1e-12


def test_rows_that_are_too_large_in_full_are_refused():
    with pytest.raises(ConstraintError, match="solve_qp needs all 6000 x 6000 numbers of them"):
        solve_qp(None, torch.zeros(6000), lb=0.0, ub=1.0)


def test_no_objective_and_no_bound():
    """Every point is a minimum: the answer is a number, not the largest one."""
    best = solve_qp(None, torch.zeros(2, dtype=DOUBLE), AffineSet.box(-INF, None, dim=2))
    assert torch.equal(best.value, torch.zeros(2, dtype=DOUBLE)) and not best.active.any()


@pytest.mark.parametrize("curved", [None, 0.0, 1.0], ids=["linear", "zero", "singular"])
def test_redundant_equalities_in_single_precision(curved: float | None):
    """Supplies and demands of a transport: their sums agree in exact numbers, not in those of float32."""
    supplies, demands = torch.eye(3).repeat_interleave(4, 1), torch.eye(4).repeat(1, 3)
    hidden = 0
    for seed in range(20):
        plan = normal(seed, 3, 4).abs().float()
        set = AffineSet.equality(torch.cat([supplies, demands]), torch.cat([plan.sum(1), plan.sum(0)]))
        set, q = set & AffineSet.box(0.0, None, dim=12), normal(seed + 1, 12).float().requires_grad_()
        Q = None if curved is None else curved * (torch.arange(12) % 2).float()
        best = solve_qp(Q, q, set, on_infeasible="nan")
        if project(torch.zeros(12), set, on_infeasible="nan").status == Status.INFEASIBLE:
            continue  # by more than rounding
        hidden += int(best.status == Status.WITHIN_TOL)
        assert best.status <= Status.WITHIN_TOL and best.violation < 1e-5
        left = best.residuals()
        assert left.dual < 1e-5 and left.gap < 1e-4
        last = AffineSet.from_parts(set.A[1:], set.lower[1:], set.upper[1:], None, set.row_kinds[1:]).to(DOUBLE)
        wanted = solve_qp(None if Q is None else Q.double(), q.detach().double(), last)
        torch.testing.assert_close(best.objective.double(), wanted.objective, rtol=1e-5, atol=1e-5)
        (slope,) = torch.autograd.grad(best.objective, q)
        torch.testing.assert_close(slope, best.value.detach(), rtol=1e-4, atol=1e-4)
    assert hidden > 5


def test_no_rows_at_all():
    """Nothing stops the objective: it falls without end, or Q does it."""
    nothing = AffineSet.inequality(torch.zeros(0, 2, dtype=DOUBLE), torch.zeros(0, dtype=DOUBLE))
    q = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]], dtype=DOUBLE)
    best = solve_qp(None, q, nothing, on_infeasible="nan")
    assert best.status.tolist() == [Status.UNBOUNDED, Status.INSIDE, Status.UNBOUNDED]
    best = solve_qp(torch.tensor([2.0, 0.0], dtype=DOUBLE), q, nothing, on_infeasible="nan")
    assert best.status.tolist() == [Status.INSIDE, Status.INSIDE, Status.UNBOUNDED]
    torch.testing.assert_close(best.value[:2], torch.tensor([[-0.5, 0.0], [0.0, 0.0]], dtype=DOUBLE))
    with pytest.raises(UnboundedError):
        solve_qp(None, q, nothing)
