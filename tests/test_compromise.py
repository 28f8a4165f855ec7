"""`search="paper"`: the paper's Γ with its dependent choices, against the equations computed literally."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from caffnet import AffineSet, CAffine, ConstraintError, Status, prepare, project
from helpers import length, random_problem, satisfies

NORMS = (1, 1.5, 2, 3, np.inf)


def parallel_problem(seed: int) -> tuple[AffineSet, Tensor, Tensor]:
    """Few directions, far from parallel, several rows of different size along each, and the origin inside."""
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 4))
    directions = np.linalg.qr(random.normal(size=(n, n)))[0][: random.integers(1, n + 1)]
    directions = directions + random.uniform(-0.2, 0.2, size=directions.shape)
    A = random.choice([-2.0, -1.0, -0.25, 1.0, 3.0], size=(6, 1)) * directions[random.integers(len(directions), size=6)]
    upper = random.uniform(0.2, 1.0, size=6) * np.linalg.norm(A, axis=1)
    lower = np.where(random.uniform(size=6) < 0.3, -random.uniform(0.2, 1.0, size=6), -np.inf)
    f, w = random.normal(size=n) * 1.5, random.normal(size=n)
    return AffineSet(*map(torch.from_numpy, (A, lower, upper))), torch.from_numpy(f), torch.from_numpy(w)


def literal_distance(set: AffineSet, f: np.ndarray, w: np.ndarray, norm: float) -> float:
    """The least distance over every subset of up to n rows of ``G y <= h``, dependent or not, equalities as pairs."""
    A, lower, upper = (t.numpy() for t in (set.A, set.lower, set.upper))
    above, below = upper < np.inf, lower > -np.inf
    G, h = np.concatenate([A[above], -A[below]]), np.concatenate([upper[above], -lower[below]])
    n, best = A.shape[1], np.inf
    for k in range(1, min(len(G), n) + 1):
        for some in map(list, itertools.combinations(range(len(G)), k)):
            inverse = np.linalg.pinv(G[some], rcond=1e-11)
            y = f - inverse @ (G[some] @ f - h[some]) + (np.eye(n) - inverse @ G[some]) @ w
            y = y - inverse @ (G[some] @ y - h[some])
            if satisfies(set, y, f):
                best = min(best, length(y - f, norm))
    return best


@pytest.mark.parametrize("problem", [parallel_problem, random_problem])
def test_it_is_the_nearest_of_all_choices(problem):
    seen = compromises = 0
    for seed in range(150):
        set, f, w = problem(seed)
        norm = NORMS[seed % len(NORMS)]
        answer, full = (project(f, set, w, search=search, norm=norm) for search in ("paper", "full"))
        if answer.status == Status.INSIDE:
            continue
        best = literal_distance(set, f.numpy(), w.numpy(), norm)
        scale = 1 + f.abs().max().item() + w.abs().max().item()
        assert abs(length((answer.value - f).numpy(), norm) - best) <= 1e-9 * scale, seed
        assert set.contains(answer.value), seed
        seen += 1
        if not torch.equal(answer.value, full.value):
            assert not answer.active.any()
            compromises += 1
    assert seen > 60
    assert compromises >= 2  # else nothing was tested


OPPOSITE = AffineSet.inequality([[0.0, 1.0], [0.0, -1.0], [1.0, 0.0]], [0.5, 0.5, 1.0])


@pytest.mark.parametrize("set", [OPPOSITE, AffineSet([[0.0, 1.0], [1.0, 0.0]], [-0.5, -torch.inf], [0.5, 1.0])])
def test_opposite_limits_meet_in_the_middle(set: AffineSet):
    """The example of the paper's robot: ω <= 0.5 and ω >= -0.5 give ω = 0, nearer to f than every point on a limit."""
    f, w = torch.tensor([[1.05, 0.1]]), torch.tensor([[-0.15, 0.9]])
    answer = project(f, set, w, search="paper")
    assert answer.search == "paper"
    assert answer.status.tolist() == [Status.PROJECTED]
    torch.testing.assert_close(answer.value, torch.tensor([[0.9, 0.0]]))
    assert not answer.active.any()
    torch.testing.assert_close(project(f, set, w, search="full").value, torch.tensor([[1.0, 0.5]]))


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 0, 2], [2, 1, 0]])
@pytest.mark.parametrize("size", [1.0, 1e-3, 1e4])
def test_the_size_of_a_row_is_its_weight(order: list[int], size: float):
    """Least squares in the user's units: between y = 1 and y = -1, written as -2 y <= 2, that is 1 to 4.

    Whichever row comes first, and whatever the units of both.
    """
    A, b = torch.tensor([[size, 0.0], [-2.0 * size, 0.0], [0.0, 1.0]]), torch.tensor([size, 2.0 * size, 1.0])
    f, w = torch.tensor([[-0.5, 1.05]]), torch.tensor([[3.0, -0.15]])
    answer = project(f, AffineSet.inequality(A[order], b[order]), w, search="paper").value
    torch.testing.assert_close(answer, torch.tensor([[(1 * 1.0 + 4 * -1.0) / 5, 0.9]]))


def test_a_batch_with_its_own_rows_and_single_samples_agree():
    random = torch.Generator().manual_seed(0)
    c, f, w = (torch.rand(*s, generator=random, dtype=torch.float64) for s in ((40, 3), (40, 2), (40, 2)))
    zero = torch.zeros_like(c[:, 0])
    A = torch.stack([c[:, 0], zero, -c[:, 1], zero, zero, c[:, 2]], -1).reshape(40, 3, 2)
    set, f, w = AffineSet.inequality(A, 0.1 + c), 3 * f - 1, 2 * w - 1
    whole = project(f, set, w, search="paper")
    assert (whole.value != project(f, set, w, search="full").value).any()
    for i in range(40):
        assert torch.equal(project(f[i], set[i], w[i], search="paper").value, whole.value[i])
    shared = AffineSet.inequality(A[0], 0.1 + c)
    ready = prepare(shared, "paper")
    assert torch.equal(project(f, ready, w).value, project(f, shared, w, search="paper").value)


@pytest.mark.parametrize("n", [2, 3])
def test_the_gradient_along_matrices_of_equal_rank(n: int):
    """f, w, the bounds, the sizes of two opposite rows and their common direction."""
    random = torch.Generator().manual_seed(n)
    f, w, size, gap, tilt = (torch.rand(6, k, generator=random, dtype=torch.float64) for k in (n, n, 2, 2, n))
    first, last = torch.eye(n, dtype=torch.float64)[[0, -1]]
    f, w = 0.1 * f + 1.05 * first, 0.05 * w - 0.3 * first + 2.0 * last

    def answer(f: Tensor, w: Tensor, size: Tensor, gap: Tensor, tilt: Tensor) -> Tensor:
        direction = last + 0.05 * tilt
        signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
        rows = (signs * (1 + size)).unsqueeze(-1) * direction.unsqueeze(-2)
        opposite = AffineSet.inequality(rows, (1 + size) * (0.8 + 0.1 * gap))
        set = opposite & AffineSet.inequality(first.unsqueeze(0), torch.ones(1, dtype=torch.float64))
        found = project(f, set, w, search="paper")
        assert (found.status == Status.PROJECTED).all()
        assert not found.active.any()  # all of them are compromises
        return found.value

    inputs = tuple(t.requires_grad_() for t in (f, w, size, gap, tilt))
    assert torch.autograd.gradcheck(answer, inputs)
    assert torch.autograd.gradgradcheck(answer, inputs)


def test_strict_compromises_hold_exactly():
    f, w = torch.tensor([[1.05, 0.1]]), torch.tensor([[-0.15, 0.9]])
    answer = project(f, OPPOSITE, w, search="paper", strict=True)
    torch.testing.assert_close(answer.value, torch.tensor([[0.9, 0.0]]))
    assert (OPPOSITE.violation(answer.value) == 0).all()


def test_what_it_cannot_do_is_said():
    f, w = torch.ones(1, 2), torch.ones(1, 2)
    with pytest.raises(ConstraintError, match="exact gradient"):
        project(f, OPPOSITE, w, search="paper", gradient="tangent")
    with pytest.raises(ConstraintError, match="exact gradient"):
        project(f, prepare(OPPOSITE, "paper"), w, gradient="tangent")
    with pytest.raises(ConstraintError, match="not made for graphs"):
        torch.func.vmap(lambda f, w: project(f, OPPOSITE, w, search="paper").value)(f, w)
    with pytest.raises(Exception, match="not made for graphs"):  # the compiler wraps it in its own
        torch.compile(CAffine(OPPOSITE, search="paper"), fullgraph=True, backend="eager")(f, w)


def test_without_w_it_is_the_projection():
    f = torch.randn(50, 2, dtype=torch.float64)
    assert torch.equal(project(f, OPPOSITE.to(f.dtype), search="paper").value, project(f, OPPOSITE.to(f.dtype)).value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_plain_bounds_hold_exactly_and_answers_come_back(dtype: torch.dtype):
    """With four outputs a compromise holds some rows and lies between others."""
    compromises = 0
    for _ in range(20):
        a, gap, high = torch.randn(1, 4, dtype=dtype), torch.rand(60, 2, dtype=dtype), torch.rand(60, 4, dtype=dtype)
        pair = AffineSet.inequality(torch.cat([a, -0.7 * a]), 0.5 + 0.2 * gap)
        high = 0.3 + high
        set = AffineSet.box(torch.full((4,), -5.0, dtype=dtype), high) & pair
        f, w = 0.1 * torch.randn(60, 4, dtype=dtype), (1 + torch.rand(60, 1, dtype=dtype)) * a
        first = torch.arange(4) < 2  # beyond two bounds, and pushed across the pair
        f, w = torch.where(first, high + 0.05, f), w + first * torch.rand(60, 4, dtype=dtype)
        answer, full = (project(f, set, w, search=search) for search in ("paper", "full"))
        compromises += int((answer.value != full.value).any(-1).sum())
        assert (answer.value <= high).all()
        again = project(answer.value, set, w, search="paper")
        assert torch.equal(again.value, answer.value)
    assert compromises > 100


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e5])
def test_a_large_w_does_not_lose_compromises(scale: float):
    a = torch.tensor([0.1, 1.0, 1.3], dtype=torch.float64)
    first = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    set = AffineSet.inequality(torch.stack([a, -a, first]), torch.tensor([0.5, 0.6, 0.7], dtype=torch.float64))
    f = torch.tensor([0.75, 0.0, 0.01], dtype=torch.float64)
    answer = project(f, set, scale * (1.37 * a + 1.11 * first), search="paper").value
    torch.testing.assert_close((answer @ a, answer[0]), (torch.tensor(-0.05).double(), torch.tensor(0.7).double()))


def test_in_other_norms_a_compromise_can_be_nearest_without_w():
    set = AffineSet.inequality([[0.0, 1.0], [0.0, -1.0], [0.5, 1.0]], [1.0, 1.0, 0.082])
    f = torch.tensor([[0.0, 0.9]])
    for w in (None, torch.zeros(1, 2)):
        assert torch.equal(project(f, set, w, search="paper", norm=1).value, torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float32, 1e-7), (torch.float32, 1e15), (torch.float64, 1e-16), (torch.float64, 1e160)]
)
def test_the_gradient_does_not_depend_on_the_size_of_a_row(dtype: torch.dtype, size: float):
    A = torch.tensor([[size, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1]], dtype=dtype)
    upper = torch.tensor([size, 0.5, 0.5, 1], dtype=dtype, requires_grad=True)
    f = torch.tensor([1.02, 0.1, 1.05], dtype=dtype, requires_grad=True)
    w = torch.tensor([0.3, 0.9, -0.15], dtype=dtype)
    v = torch.tensor([1.0, 2.0, 3.0], dtype=dtype)
    for strict in (False, True):
        y = project(f, AffineSet.inequality(A, upper), w, search="paper", strict=strict).value
        torch.testing.assert_close(y[1], torch.zeros((), dtype=dtype))
        slopes = torch.autograd.grad((v * y).sum(), (f, upper), create_graph=True)
        torch.testing.assert_close(slopes[0], torch.tensor([0.0, 0.0, 3.0], dtype=dtype))
        torch.testing.assert_close(
            slopes[1] * upper.new_tensor([size, 1, 1, 1]), upper.new_tensor([1.0, 1.0, -1.0, 0.0])
        )
        first = torch.autograd.grad((v * y).sum(), (f, upper))
        torch.testing.assert_close(first, slopes)


def test_a_huge_row_elsewhere_changes_nothing():
    set = AffineSet.inequality([[0.0, 1.0], [0.0, -1.0], [1e25, 0.0]], [0.5, 0.5, 1e25])
    answer = project(torch.tensor([1.05, 0.1]), set, torch.tensor([-0.15, 0.9]), search="paper").value
    torch.testing.assert_close(answer, torch.tensor([0.9, 0.0]))


@pytest.mark.parametrize("strict", [False, True])
def test_rows_of_very_different_size_and_zero_rows(strict: bool):
    """Squares of the sizes are no numbers in float32."""
    zero = AffineSet.inequality([[1e-20, 0.0], [0.0, 0.0]], [1e-20, 1.0])
    answer = project(torch.tensor([1.5, 0.0]), zero, torch.tensor([0.3, 0.2]), search="paper", strict=strict).value
    torch.testing.assert_close(answer, torch.tensor([1.0, 0.2]), rtol=1e-4, atol=0)
    set = AffineSet([[1e-14, 0.0, 0.0], [0.0, 0.0, 1e6]], [-torch.inf, -0.5e6], [0.7e-14, 0.5e6])
    f = torch.tensor([0.72, 0.0, -0.01], requires_grad=True)
    y = project(f, set, torch.tensor([0.08, 0.0, -2.2]), search="paper").value
    torch.testing.assert_close(y, torch.tensor([0.7, 0.0, 0.0]))
    (slope,) = torch.autograd.grad(y.sum(), f, create_graph=True)
    assert torch.equal(slope, torch.tensor([0.0, 1.0, 0.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_strict_is_not_fooled_by_products_that_overflow(dtype: torch.dtype):
    """The compromise of the first two rows exceeds the third, by a number that is none: huge minus huge."""
    center, d, s = (1e6, 20.0, 1e36) if dtype == torch.float32 else (1e10, 20.0, 1e305)
    A = torch.tensor([[0.0, 1.0], [0.0, -1.0], [s, -s]], dtype=dtype)
    set = AffineSet.inequality(A, torch.tensor([center + d, d - center, s * d], dtype=dtype))
    f = torch.tensor([center + 1.15 * d, center + 0.1 * d], dtype=dtype)
    beyond = torch.nextafter(torch.tensor(center + d, dtype=dtype), torch.tensor(torch.inf, dtype=dtype))
    g = torch.stack([beyond, torch.tensor(center + 2 * d, dtype=dtype)])
    y = [Fraction(v) for v in project(f, set, g - f, search="paper", strict=True).value.tolist()]
    for row, bound in zip(A.tolist(), set.upper.tolist(), strict=True):
        assert sum(Fraction(a) * v for a, v in zip(row, y, strict=True)) <= Fraction(bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nasty_rows(dtype: torch.dtype):
    """Zero rows, rows of any size, two-sided rows, one set for all or one for each sample: still the nearest."""
    found = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        batch, n = int(random.integers(1, 5)), int(random.integers(2, 4))
        axes = np.eye(n)[random.integers(n, size=(1 if seed % 2 else batch, 5))]
        size = 2.0 ** random.integers(-10, 10, size=axes.shape[:-1])[..., None]
        size[random.uniform(size=size.shape) < 0.1] = 0.0
        A = size * random.choice([-1.0, 1.0], size=size.shape) * axes
        reach = np.abs(A).sum(-1) + (size[..., 0] == 0)
        upper = random.uniform(0.1, 1.0, reach.shape) * reach
        lower = np.where(
            random.uniform(size=reach.shape) < 0.5, -random.uniform(0.1, 1.0, reach.shape) * reach, -np.inf
        )
        A, lower, upper = (torch.from_numpy(t[0] if seed % 2 else t).to(dtype) for t in (A, lower, upper))
        f, w = (torch.from_numpy(random.normal(size=(batch, n)) * 1.5).to(dtype) for _ in range(2))
        answer = project(f, AffineSet(A, lower, upper), w, search="paper")
        for i in range(batch):
            if answer.status[i] == Status.INSIDE:
                continue
            parts = (t.double() if seed % 2 else t[i].double() for t in (A, lower, upper))
            best = literal_distance(AffineSet(*parts), f[i].double().numpy(), w[i].double().numpy(), 2)
            mine = float((answer.value[i].double() - f[i].double()).norm())
            assert mine == pytest.approx(best, rel=100 * torch.finfo(dtype).eps, abs=1e-12), (seed, i)
            found += int(answer.status[i] == Status.PROJECTED and not answer.active[i].any())
    assert found >= 5  # else no compromise was compared


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_status_tells_of_another_row_that_rounding_exceeds(dtype: torch.dtype):
    """The compromise (0.9, 0) of ω <= 0.5 and ω >= -0.5 lies on a third row, or beyond it by one unit."""
    f, w = torch.tensor([1.05, 0.1], dtype=dtype), torch.tensor([-0.15, 0.9], dtype=dtype)
    A = torch.tensor([[0.0, 1.0], [0.0, -1.0], [0.3, 0.7]], dtype=dtype)
    reached = A[2, 0] * (f + w)[0]
    for end, status in ((1.0, Status.PROJECTED), (0.0, Status.WITHIN_TOL)):
        bound = reached.nextafter(torch.tensor(end, dtype=dtype))
        set = AffineSet.inequality(A, torch.stack([torch.tensor(0.5, dtype=dtype)] * 2 + [bound]))
        answer = project(f, set, w, search="paper")
        torch.testing.assert_close(answer.value, torch.tensor([0.9, 0.0], dtype=dtype))
        assert not answer.active.any() and answer.status == status


@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (0, 0)])
def test_nothing_to_do(shape: tuple[int, int]):
    m, n = shape
    set = AffineSet.inequality(torch.zeros(m, n), torch.ones(m))
    f = torch.ones(3, n)
    assert torch.equal(project(f, set, f, search="paper").value, f)


def test_gradients_in_batches():
    f = torch.tensor([[1.05, 0.1], [0.2, 0.1]], requires_grad=True)
    y = project(f, OPPOSITE, torch.tensor([[-0.15, 0.9]]), search="paper").value
    basis = torch.eye(4).reshape(4, 2, 2)
    (together,) = torch.autograd.grad(y, f, basis, is_grads_batched=True, retain_graph=True)
    for v, slope in zip(basis, together, strict=True):
        assert torch.equal(torch.autograd.grad(y, f, v, retain_graph=True)[0], slope)
