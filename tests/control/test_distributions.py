"""Distributions over affine sets: inside, normalised, and with the right Jacobian."""

import math

import numpy as np
import pytest
import torch

from caffnet import AffineSet
from caffnet.control import (
    BoxTransform,
    InteriorActor,
    InteriorNormal,
    ProjectedNormal,
    RayTransform,
    SimplexTransform,
    TruncatedNormal,
    interior_point,
    interior_transform,
)
from caffnet.control.interior import depth
from caffnet.control.truncated import log_mass, truncated_sample
from caffnet.errors import ConstraintError

F64 = torch.float64


def polygon(dtype=F64) -> AffineSet:
    return AffineSet.inequality([[1.0, 1.0], [-1.0, 0.2], [0.1, -1.0], [1.0, -0.4]], [1.0, 0.5, 0.6, 1.2]).to(dtype)


def simplex(n: int, dtype=F64) -> AffineSet:
    return AffineSet.equality(torch.ones(1, n, dtype=dtype), torch.ones(1, dtype=dtype)) & AffineSet.box(
        torch.zeros(n, dtype=dtype), torch.full((n,), 0.6, dtype=dtype)
    )


def random_set(seed: int, n: int, m: int, dtype=F64) -> AffineSet:
    g = torch.Generator().manual_seed(seed)
    A = torch.randn(m, n, dtype=F64, generator=g)
    inside = torch.randn(n, dtype=F64, generator=g)
    return (
        AffineSet.inequality(A, A @ inside + 0.1 + torch.rand(m, dtype=F64, generator=g))
        & AffineSet.box(inside - 2, inside + 3)
    ).to(dtype)


MAPS = {
    "polygon": lambda: RayTransform(polygon()),
    "unbounded": lambda: RayTransform(AffineSet.inequality([[1.0, 0.5]], [1.0]).to(F64)),
    "equality": lambda: RayTransform(simplex(4)),
    "many": lambda: RayTransform(random_set(0, 5, 9)),
    "one": lambda: RayTransform(AffineSet.box([-1.0], [3.0]).to(F64)),
    "box": lambda: BoxTransform(AffineSet.box([0.0, -1.0, 2.0], [4.0, 1.0, 2.5]).to(F64)),
    "simplex": lambda: SimplexTransform(4, torch.tensor(2.0, dtype=F64)),
}


@pytest.mark.parametrize("name", MAPS)
def test_a_map_is_a_bijection_with_its_determinant(name):
    """There and back; and the determinant of the automatic Jacobian, in orthonormal coordinates of the flat."""
    ray = MAPS[name]()
    z = 0.5 * torch.randn(200, ray.d, dtype=F64, generator=torch.Generator().manual_seed(1))
    u = ray(z)
    assert ray.set.contains(u).all()
    assert ray.codomain.check(u).all()
    torch.testing.assert_close(ray._inverse(u), z, rtol=1e-6, atol=1e-6)
    jacobian = torch.func.vmap(torch.func.jacrev(ray._call))(z)
    volume = torch.linalg.svdvals(jacobian).log().sum(-1)
    torch.testing.assert_close(ray.log_abs_det_jacobian(z, u), volume, rtol=1e-9, atol=1e-9)
    step = 1e-6
    for i in range(ray.d):
        e = step * torch.eye(ray.d, dtype=F64)[i]
        difference = (ray._call(z + e) - ray._call(z - e)) / (2 * step)
        smooth = (difference - jacobian[..., i]).abs().amax(-1) < 1e-6
        assert smooth.double().mean() > 0.98  # a few straddle two rows


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("seed", range(4))
def test_every_sample_satisfies_every_row_in_floating_point(seed, dtype):
    set = random_set(seed, 2 + seed, 6, dtype)
    loc = torch.zeros(set.n, dtype=dtype)
    actions = InteriorNormal(set, loc, torch.full_like(loc, 50.0)).sample((20000,))  # nearly all at the boundary
    assert actions.dtype == dtype
    assert set.violation(actions).max() == 0


def test_near_the_centre_nothing_changes():
    ray = RayTransform(polygon())
    z = torch.tensor([1e-5, -2e-5], dtype=F64)
    torch.testing.assert_close(ray(z) - ray.centre, z, rtol=1e-8, atol=0)


def quadrature(log_prob, low, high, points=2001):
    axes = [torch.linspace(a, b, points, dtype=F64) for a, b in zip(low, high, strict=True)]
    cell = math.prod((b - a) / (points - 1) for a, b in zip(low, high, strict=True))
    grid = torch.cartesian_prod(*axes) if len(axes) > 1 else axes[0].unsqueeze(-1)
    return float(log_prob(grid).exp().sum() * cell)


def test_densities_of_one_output_integrate_to_one():
    line = AffineSet.inequality([[2.0], [-1.0]], [1.0, 0.7]).to(F64)  # [-0.7, 0.5]
    loc, scale = torch.tensor([0.4], dtype=F64), torch.tensor([0.3], dtype=F64)

    def inside(policy):
        return lambda u: torch.where(line.violation(u).amax(-1) == 0, policy.log_prob(u), -math.inf)

    for policy in (InteriorNormal(line, loc, scale), TruncatedNormal(line, loc, scale)):
        assert quadrature(inside(policy), [-0.8], [0.6], 200001) == pytest.approx(1.0, abs=1e-3)
    exact = pytest.importorskip("scipy.stats").truncnorm((-0.7 - 0.4) / 0.3, (0.5 - 0.4) / 0.3, 0.4, 0.3)
    u = np.linspace(-0.6, 0.4, 11)
    found = TruncatedNormal(line, loc, scale).log_prob(torch.from_numpy(u).unsqueeze(-1))
    np.testing.assert_allclose(found, exact.logpdf(u), rtol=1e-10)


@pytest.mark.parametrize("kind", [InteriorNormal, TruncatedNormal])
def test_densities_of_two_outputs_integrate_to_one(kind):
    set = polygon()
    policy = kind(set, torch.tensor([0.3, 0.2], dtype=F64), torch.tensor([0.3, 0.25], dtype=F64))

    def inside(u):
        return torch.where(set.violation(u).amax(-1) == 0, policy.log_prob(u), -math.inf)

    assert quadrature(inside, [-1.5, -1.5], [1.5, 1.5]) == pytest.approx(1.0, abs=3e-3)


def test_a_density_of_many_outputs_integrates_to_one():
    """E[q / p] over samples of p is the mass of q inside: here the uniform density of a small box inside the set."""
    set = random_set(3, 4, 8)
    policy = InteriorNormal(set, torch.zeros(4, dtype=F64), torch.full((4,), 0.3, dtype=F64))
    torch.manual_seed(0)
    u = policy.sample((200000,))
    centre = interior_point(set)
    half = 0.15
    inside = ((u - centre).abs() <= half).all(-1)
    assert inside.sum() > 500
    ratio = torch.where(inside, (-policy.log_prob(u)).exp() / (2 * half) ** 4, 0.0)
    assert float(ratio.mean()) == pytest.approx(1.0, abs=4 * float(ratio.std()) / math.sqrt(len(u)))


def test_a_density_over_a_flat_is_one_of_the_flat():
    """On the simplex of three outputs: area sqrt(3)/2, seen from the first two outputs with a factor sqrt(3)."""
    policy = InteriorNormal(simplex(3), torch.tensor([0.1, 0.2], dtype=F64), torch.full((2,), 0.2, dtype=F64))

    def seen(first):
        u = torch.cat([first, 1 - first.sum(-1, keepdim=True)], -1)
        inside = ((u >= 0) & (u <= 0.6)).all(-1)
        value = policy.log_prob(torch.where(inside.unsqueeze(-1), u, 1 / 3))
        return torch.where(inside, value + 0.5 * math.log(3), -math.inf)

    assert quadrature(seen, [0.0, 0.0], [0.6, 0.6], 1501) == pytest.approx(1.0, abs=5e-3)
    assert (policy.sample((100,)).sum(-1) - 1).abs().max() < 1e-12


def test_the_mass_inside_a_polygon():
    set = polygon()
    for loc, scale in (([0.3, 0.2], [0.3, 0.25]), ([5.0, -3.0], [1.0, 0.5]), ([0.0, 0.0], [0.01, 3.0])):
        mean, width = torch.tensor(loc, dtype=F64), torch.tensor(scale, dtype=F64)
        normal = torch.distributions.Independent(torch.distributions.Normal(mean, width), 1)
        found = float(TruncatedNormal(set, mean, width).log_inside.exp())
        low, high = [-1.0, -1.0], [1.5, 2.0]

        def density(u, normal=normal):
            return torch.where(set.violation(u).amax(-1) == 0, normal.log_prob(u), -math.inf)

        exact = quadrature(density, low, high, 4001)
        assert found == pytest.approx(exact, rel=5e-3)
    with pytest.raises(ConstraintError, match="inside the set underflows"):
        TruncatedNormal(set, torch.full((2,), 1e17, dtype=F64), torch.ones(2, dtype=F64)).log_prob(
            torch.zeros(2, dtype=F64)
        )
    empty = AffineSet.inequality([[1.0, 0.0], [-1.0, 0.0]], [-1.0, -1.0]).to(F64)
    with pytest.raises(ConstraintError, match="underflows: the set has no interior"):
        TruncatedNormal(empty, torch.zeros(2, dtype=F64), torch.ones(2, dtype=F64)).sample()


def test_truncated_samples_follow_their_density():
    set = polygon()
    policy = TruncatedNormal(set, torch.tensor([0.6, 0.6], dtype=F64), torch.tensor([0.5, 0.3], dtype=F64))
    torch.manual_seed(0)
    u = policy.sample((20000,))
    assert set.violation(u).max() < 1e-12
    raw = policy.base.sample((400000,))
    kept = raw[set.violation(raw).amax(-1) == 0]  # by rejection
    for i in range(2):
        gap = np.abs(
            np.quantile(u[:, i], np.linspace(0.02, 0.98, 25)) - np.quantile(kept[:, i], np.linspace(0.02, 0.98, 25))
        )
        assert gap.max() < 0.02
    torch.testing.assert_close(torch.cov(u.T), torch.cov(kept.T), atol=2e-3, rtol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("away", [0.5, 3.0, 8.0, 40.0, 400.0])
def test_samples_and_scores_far_out_in_the_tail(away, dtype):
    """Against scipy, on both sides; the distribution of depths is that of a Gaussian seen from its tail."""
    stats = pytest.importorskip("scipy.stats")
    for side in (-1.0, 1.0):
        ends = sorted([0.0, -side])
        line = AffineSet.box(*(torch.tensor([end], dtype=dtype) for end in ends))
        policy = TruncatedNormal(line, torch.tensor([0.1 * away * side], dtype=dtype), torch.tensor([0.1], dtype=dtype))
        torch.manual_seed(0)
        u = policy.sample((4000,))
        assert u.dtype == dtype and line.violation(u).max() == 0
        loc = float(policy.loc)
        scale = float(policy.scale)
        exact = stats.truncnorm((ends[0] - loc) / scale, (ends[1] - loc) / scale, loc, scale)
        mean, deviation = (exact.mean(), exact.std()) if away < 40 else (-side * 0.1 / away, 0.1 / away)
        assert float(u.double().mean()) == pytest.approx(mean, abs=4 * deviation / math.sqrt(4000) + 1e-3 * abs(mean))
        assert float(u.double().std()) == pytest.approx(deviation, rel=0.1)
        points = np.linspace(-0.02, -0.5, 5) * side
        found = policy.log_prob(torch.tensor(points, dtype=dtype).unsqueeze(-1))
        np.testing.assert_allclose(found, exact.logpdf(points), rtol=3e-6 if dtype == torch.float32 else 1e-9)


def test_quantiles_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    share = torch.linspace(0.01, 0.99, 33, dtype=F64)
    for ends in ((-1.0, 2.0), (-9.0, -8.0), (-math.inf, -20.0), (30.0, math.inf), (2.0, 2.0 + 1e-6), (-0.3, 0.2)):
        low, high = (torch.tensor(end, dtype=F64).expand(33) for end in ends)
        found = truncated_sample(share, torch.zeros(33, dtype=F64), torch.ones(33, dtype=F64), low, high)
        wanted = stats.truncnorm.ppf(share if sum(ends) > 0 else 1 - share, *ends)
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("away", [1.0, 39.0, 1000.0])
@pytest.mark.parametrize("angle", [0.0, 0.01, 0.7, 1.5, math.pi / 2])
def test_half_planes_far_out_in_the_tail(angle, away, dtype):
    """A half-plane at so many deviations, turned: its mass is Φ, and samples lie at depths about 1 / away inside."""
    normal = torch.tensor([math.cos(angle), math.sin(angle)], dtype=dtype)
    half = AffineSet.inequality(normal.unsqueeze(0), torch.zeros(1, dtype=dtype))
    policy = TruncatedNormal(half, away * normal, torch.ones(2, dtype=dtype))
    shift = half.upper - (half.A @ policy.loc)
    exact = torch.special.log_ndtr((shift.double() / normal.double().norm()).squeeze())
    assert float(policy.log_inside) == pytest.approx(float(exact), rel=1e-5 if dtype == torch.float32 else 1e-11)
    torch.manual_seed(0)
    u = policy.sample((3000,))
    assert half.contains(u).all()
    if dtype == F64:  # float32 rounds a depth of a thousandth beside a coordinate of one
        depth = float((-u @ normal).mean())
        assert depth == pytest.approx({1.0: 0.525, 39.0: 1 / 39, 1000.0: 1e-3}[away], rel=0.08)
    assert float((u @ torch.stack([-normal[1], normal[0]])).std()) == pytest.approx(1.0, rel=0.06)


def test_a_box_at_39_deviations_holds_its_samples():
    box = AffineSet.box(torch.tensor([-1.0, -1.0]), torch.tensor([0.0, 1.0]))
    policy = TruncatedNormal(box, torch.tensor([3.9, 0.0]), torch.tensor([0.1, 0.1]))
    torch.manual_seed(0)
    u = policy.sample((2000,))
    assert box.violation(u).max() == 0
    assert float(u[:, 0].mean()) == pytest.approx(-0.1 / 39, rel=0.1)
    assert float(u[:, 1].std()) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("away", [0.3, 8.0, 40.0])
def test_scores_in_the_tail_have_gradients(away):
    half = AffineSet.inequality([[1.0]], [0.0]).to(F64)  # no other end: infinity has no gradient
    box = AffineSet.box([-1.0, -0.5], [0.0, math.inf]).to(F64)
    for set, n in ((half, 1), (box, 2)):
        loc = torch.full((n,), 0.1 * away, dtype=F64, requires_grad=True)
        scale = torch.full((n,), 0.1, dtype=F64, requires_grad=True)
        u = torch.full((n,), -0.01, dtype=F64)
        assert torch.autograd.gradcheck(
            lambda loc, scale, set=set, u=u: TruncatedNormal(set, loc, scale).log_prob(u), (loc, scale), atol=1e-4
        )


def test_log_probabilities_learn():
    """Gradients with respect to loc and scale, by differences."""
    set = polygon()
    u = torch.tensor([0.1, 0.2], dtype=F64)
    for kind in (InteriorNormal, ProjectedNormal, TruncatedNormal):
        loc, scale = torch.tensor([0.3, 0.2], dtype=F64), torch.tensor([0.3, 0.25], dtype=F64)
        inputs = (loc.requires_grad_(), scale.requires_grad_())
        assert torch.autograd.gradcheck(lambda loc, scale, kind=kind: kind(set, loc, scale).log_prob(u), inputs)


def test_samples_are_reparametrised():
    set = polygon()
    loc = torch.tensor([0.3, 0.2], dtype=F64, requires_grad=True)
    policy = InteriorNormal(set, loc, torch.full((2,), 0.3, dtype=F64))
    assert policy.has_rsample
    torch.manual_seed(0)
    u, score = policy.rsample_with_log_prob((500,))
    (slope,) = torch.autograd.grad(u.sum(), loc, retain_graph=True)
    assert (slope > 0).all()
    torch.testing.assert_close(score, policy.log_prob(u), rtol=1e-6, atol=1e-6)
    assert float(policy.entropy(1000).detach()) == pytest.approx(-float(score.detach().mean()), abs=0.2)
    assert policy.entropy(10).requires_grad


def test_modes():
    set, loc, scale = polygon(), torch.tensor([2.0, 2.0], dtype=F64), torch.tensor([1.0, 0.1], dtype=F64)
    torch.testing.assert_close(ProjectedNormal(set, loc, scale).mode, torch.tensor([0.5, 0.5], dtype=F64))
    truncated = TruncatedNormal(set, loc, scale)
    points = AffineSet.box([-1.0, -1.0], [1.0, 1.0]).to(F64)
    grid = torch.cartesian_prod(*[torch.linspace(-1, 2, 601, dtype=F64)] * 2)
    best = grid[truncated.log_prob(grid).argmax()]
    torch.testing.assert_close(truncated.mode, best, atol=0.02, rtol=0)
    interior = InteriorNormal(set, loc, scale)
    assert set.contains(interior.mode)
    assert torch.equal(interior.mode, interior.mean)
    assert InteriorNormal(points, torch.tensor([0.2, 0.0], dtype=F64), scale).mode[0] == pytest.approx(math.tanh(0.2))


def test_a_raw_point_pays_for_its_distance():
    policy = ProjectedNormal(polygon(), torch.zeros(2, dtype=F64), torch.ones(2, dtype=F64))
    raw = torch.tensor([[2.0, 2.0], [0.1, 0.1]], dtype=F64, requires_grad=True)
    cost = policy.correction(raw)
    assert cost.tolist() == pytest.approx([0.5 * 2 * 1.5**2, 0.0])
    cost.sum().backward()
    torch.testing.assert_close(raw.grad, torch.tensor([[1.5, 1.5], [0.0, 0.0]], dtype=F64))
    assert policy.entropy() == pytest.approx(math.log(2 * math.pi * math.e))


def test_batches_of_sets():
    A = torch.randn(7, 5, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    sets = AffineSet.inequality(A, torch.ones(7, 5, dtype=F64)) & AffineSet.box(torch.full((3,), -2.0, dtype=F64), 2.0)
    loc = torch.zeros(7, 3, dtype=F64)
    policy = InteriorNormal(sets, loc, torch.ones_like(loc))
    u = policy.sample((11,))
    assert u.shape == (11, 7, 3) and policy.log_prob(u).shape == (11, 7)
    assert sets.violation(u).max() == 0
    alone = InteriorNormal(sets[2], loc[2], torch.ones(3, dtype=F64))
    torch.testing.assert_close(alone.log_prob(u[:, 2]), policy.log_prob(u)[:, 2])


@pytest.mark.parametrize("kind", [InteriorNormal, ProjectedNormal, TruncatedNormal])
@pytest.mark.parametrize("axes", [(), (1,), (2, 1)], ids=str)
def test_one_mean_for_many_sets(kind, axes):
    upper = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=F64)
    sets, loc = AffineSet.box(torch.zeros(2, dtype=F64), upper), torch.ones(*axes, 2, dtype=F64)
    policy = kind(sets, loc, torch.ones(2, dtype=F64))
    batch = torch.broadcast_shapes(axes, (3,))
    u = policy.sample((11,))
    assert policy.batch_shape == batch and policy.mode.shape == (*batch, 2)
    assert u.shape == (11, *batch, 2) and policy.log_prob(u).shape == (11, *batch)
    alone = kind(sets[2], loc, torch.ones(2, dtype=F64))
    torch.testing.assert_close(policy.log_prob(u)[..., 2:], alone.log_prob(u[..., 2:, :]).reshape(11, *batch[:-1], 1))


@pytest.mark.parametrize("kind", [InteriorNormal, TruncatedNormal])
@pytest.mark.parametrize("n", [1, 2])
def test_a_set_of_all_points_changes_nothing(kind, n):
    free = AffineSet.box(-math.inf, math.inf, dim=n)
    loc, scale = torch.randn(4, n, dtype=F64), torch.rand(4, n, dtype=F64) + 0.5
    policy, plain = kind(free, loc, scale), torch.distributions.Normal(loc, scale)
    u = policy.sample((9,))
    torch.testing.assert_close(policy.log_prob(u), plain.log_prob(u).sum(-1), rtol=1e-10, atol=1e-10)


def test_centres_are_those_of_largest_balls():
    optimize = pytest.importorskip("scipy.optimize")
    for seed in range(5):
        set = random_set(seed, 3, 6)
        A = torch.cat([set.A, -set.A[-3:]])
        b = torch.cat([set.upper, -set.lower[-3:]])
        rows = torch.cat([A, A.norm(dim=-1, keepdim=True)], -1).numpy()
        best = optimize.linprog([0, 0, 0, -1], rows, b.numpy(), bounds=[(None, None)] * 4)
        centre = interior_point(set)
        radius = ((b - A @ centre) / A.norm(dim=-1)).min()
        assert float(radius) == pytest.approx(-best.fun, rel=1e-6)
    near = interior_point(AffineSet.box([0.0, 0.0], [1.0, 9.0]).to(F64), near=torch.tensor([0.0, 7.0], dtype=F64))
    torch.testing.assert_close(near, torch.tensor([0.5, 7.0], dtype=F64))
    thin = AffineSet.box([0.0, -1e3], [1e-4, 1e3]).to(F64)
    assert (thin.lower < interior_point(thin)).all() and (interior_point(thin) < thin.upper).all()
    far = AffineSet.box([1e6], [1e6 + 1.0]).to(F64)
    assert 1e6 < float(interior_point(far)) < 1e6 + 1


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0, 1e6, 1e12])
def test_centres_do_not_depend_on_the_unit(size):
    assert float(depth(AffineSet.box([-size] * 2, [size] * 2))) == pytest.approx(size)
    assert float(interior_point(AffineSet.box([0.0], [size]).to(F64))) == pytest.approx(size / 2)
    wedge = AffineSet.inequality([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], [size, 0.0, 0.0])
    assert float(depth(wedge)) == pytest.approx(size / (2 + math.sqrt(2)))
    needle = AffineSet.inequality([[1.0, -1e-5], [-1.0, -1e-5], [0.0, 1.0]], [0.0, 0.0, size])  # 1e-5 wide at its end
    assert float(depth(needle)) == pytest.approx(1e-5 * size, rel=1e-3)


def test_balls_of_any_size():
    """The centre of a ball of radius 1, as near as can be to the point that is asked for."""
    quadrant = AffineSet.box(0.0, None, dim=2)
    policy = InteriorNormal(quadrant, torch.zeros(2), torch.ones(2))
    assert policy.mode.tolist() == [1.0, 1.0]
    assert float(depth(quadrant)) == math.inf
    near = interior_point(quadrant.to(F64), near=torch.tensor([[7.0, -3.0], [5.0, 6.0]], dtype=F64))
    torch.testing.assert_close(near, torch.tensor([[7.0, 1.0], [5.0, 6.0]], dtype=F64))
    far = interior_point(AffineSet.box(torch.tensor([1e6]), None))
    assert 1e6 < float(far) < 1.001e6
    mixed = AffineSet.inequality([[-1.0], [1.0]], [[0.0, math.inf], [0.0, 4.0]]).to(F64)  # x >= 0, and 0 <= x <= 4
    assert interior_point(mixed).flatten().tolist() == pytest.approx([1.0, 2.0])
    assert depth(mixed).tolist() == pytest.approx([math.inf, 2.0])


def test_sets_in_plain_lists_take_the_number_type_of_the_mean():
    written = AffineSet.inequality([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], [1.0, 1.0, 1.0, 1.0])
    for dtype in (torch.float32, F64):
        loc = torch.zeros(2, dtype=dtype)
        assert InteriorNormal(written, loc, torch.ones_like(loc)).sample().dtype == dtype
        assert InteriorActor(torch.nn.Linear(3, 2).to(dtype), written)(torch.ones(3, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_outside_there_is_no_density(dtype):
    policy = InteriorNormal(polygon(dtype), torch.zeros(2, dtype=dtype), torch.ones(2, dtype=dtype))
    outside = torch.tensor([[0.5, 0.51], [3.0, 3.0], [0.1, 0.1]], dtype=dtype)
    assert policy.log_prob(outside).isfinite().tolist() == [False, False, True]
    assert policy.log_prob(outside)[0] == -math.inf
    edge = InteriorNormal(policy.set, policy.loc, 50 * policy.scale).sample((2000,))
    assert policy.log_prob(edge).isfinite().all()


def test_a_mean_has_one_entry_per_direction():
    message = r"must have shape \(..., 3\), got \(4,\): .* 4 outputs, .* 1 equalities, which leave 3 directions"
    with pytest.raises(ConstraintError, match="loc " + message):
        InteriorNormal(simplex(4), torch.zeros(4, dtype=F64), torch.ones(4, dtype=F64))
    with pytest.raises(ConstraintError, match="The output " + message):
        InteriorActor(torch.nn.Linear(2, 4).double(), simplex(4))(torch.zeros(2, dtype=F64))


def test_a_map_that_is_stuck_has_one_point():
    """The second set is empty: its action is the one given, with all of the probability."""
    sets = AffineSet.inequality([[1.0], [-1.0]], torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=F64))
    centre, stuck = torch.zeros(2, 1, dtype=F64), torch.tensor([False, True])
    loc = torch.ones(2, 1, dtype=F64, requires_grad=True)
    policy = InteriorNormal(sets, loc, torch.ones(2, 1, dtype=F64), RayTransform(sets, centre, stuck))
    action, score = policy.rsample_with_log_prob()
    assert action[1] == 0 and score[1] == 0 and action[0] != 0 and policy.log_prob(action.detach())[1] == 0
    (slope,) = torch.autograd.grad((action + score.unsqueeze(-1)).sum(), loc)
    assert slope[0] != 0 and slope[1] == 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: interior_point(AffineSet.inequality([[1.0], [-1.0]], [0.0, 0.0])), "no interior .*control.audit"),
        (lambda: interior_point(AffineSet.inequality([[1.0], [-1.0]], [0.0, -1.0])), "no interior"),
        (lambda: RayTransform(polygon(), torch.tensor([5.0, 5.0], dtype=F64)), "not inside the set: .*row 0"),
        (lambda: BoxTransform(AffineSet.box(0.0, None, dim=2)), "needs a box with finite sides"),
        (lambda: BoxTransform(AffineSet.box([0.0], [0.0])), r"finite sides|has no interior"),
        (lambda: SimplexTransform(1), "at least 2 outputs, got 1"),
        (lambda: SimplexTransform(3, -1.0), "total must be positive"),
        (lambda: TruncatedNormal(random_set(0, 3, 4), torch.zeros(3), torch.ones(3)), "for 1 or 2 outputs, got 3"),
        (lambda: TruncatedNormal(simplex(2), torch.zeros(2), torch.ones(2)), "got equalities"),
        (
            lambda: RayTransform(AffineSet.equality([[1.0, 1.0], [1.0, -1.0]], [0.0, 0.0]).to(F64)),
            "no interior|single point",
        ),
    ],
)
def test_what_cannot_be_is_refused(build, message):
    with pytest.raises(ConstraintError, match=message):
        build()


def test_boxes_take_the_closed_form():
    assert isinstance(interior_transform(AffineSet.box(-1.0, 1.0, dim=2)), BoxTransform)
    assert isinstance(interior_transform(polygon()), RayTransform)
    assert isinstance(interior_transform(AffineSet.box(-1.0, None, dim=2)), RayTransform)


@pytest.mark.parametrize("far", [1e3, 1e6, 1e8, 1e10, 1e14])
def test_the_gradient_of_a_mass_far_out_in_the_tail(far: float):
    """d log Φ(-x) / dx is -x there. The derivative of torch's log_ndtr was wrong by 1 % at 1e7, then infinite."""
    low = torch.tensor(far, dtype=torch.float64, requires_grad=True)
    for high in (math.inf, 2 * far):
        (slope,) = torch.autograd.grad(log_mass(low, torch.tensor(high, dtype=torch.float64)), low)
        torch.testing.assert_close(slope, -low.detach() - 1 / far, rtol=1e-10, atol=0.0)
    loc = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    half = AffineSet.inequality(torch.tensor([[-1.0]], dtype=torch.float64), torch.tensor([-far], dtype=torch.float64))
    (slope,) = torch.autograd.grad(TruncatedNormal(half, loc, torch.ones_like(loc)).log_inside, loc)
    torch.testing.assert_close(slope, torch.tensor([far + 1 / far], dtype=torch.float64), rtol=1e-10, atol=0.0)
