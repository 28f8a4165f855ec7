"""Transforms of torch.func around `project`, one test for each composition, against central finite differences.

Second derivatives are compared with differences of first ones, which the kernel computes and which are compared with
differences of the value. Every sample lies on a face of another dimension, far from a kink.
"""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from caffnet import AffineSet, CAffine, Status, project

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch.func compiles rules

DOUBLE = torch.float64
N, M, WIDTH = 3, 5, 6.0  # outputs, rows, and from the lower to the upper bound of a row
SAMPLES = 5  # inside; on one row, on two, and at a vertex; and on the lower side of a row
NAMES = ("f", "w", "A", "b")
ALL = (0, 1, 2, 3)
KINDS = ["rows", "equality"]
SEARCHES = ["full", "active"]


@functools.cache
def data(kind: str = "rows") -> tuple[Tensor, ...]:
    """f, w, A and b of every sample; its face is chosen first, and f leaves it along positive multiples of its rows."""
    stream = torch.Generator().manual_seed(2469)  # of three thousand the one whose faces are furthest from dependent
    A = torch.randn(SAMPLES, M, N, generator=stream, dtype=DOUBLE)
    y = torch.randn(SAMPLES, N, generator=stream, dtype=DOUBLE)
    at = (A @ y.unsqueeze(-1)).squeeze(-1)
    b = at + 1 + torch.rand(SAMPLES, M, generator=stream, dtype=DOUBLE)
    f = y.clone()
    for i, k in enumerate((0, 1, 2, 3, 1) if kind == "rows" else (0, 1, 2, 2, 1)):
        side = -1.0 if i == SAMPLES - 1 else 1.0
        for row in range(k):
            b[i, row] = at[i, row] + (WIDTH if side < 0 else 0.0)
            f[i] = f[i] + side * (1 + row) * A[i, row]
    if kind == "equality":  # the last row
        b[:, -1] = at[:, -1]
        f = f + 0.5 * A[:, -1]
    w = 0.05 * torch.randn(SAMPLES, N, generator=stream, dtype=DOUBLE)
    return f, w, A, b


def layer(kind: str, search: str, gradient: str = "exact"):
    """The map (f, w, A, b) -> y, for one sample or a batch."""

    def call(f: Tensor, w: Tensor, A: Tensor, b: Tensor) -> Tensor:
        if kind == "rows":
            set = AffineSet(A, b - WIDTH, b)
        else:
            set = AffineSet(A[..., :-1, :], b[..., :-1] - WIDTH, b[..., :-1]) & AffineSet.equality(
                A[..., -1:, :], b[..., -1:]
            )
        return project(f, set, w, search=search, gradient=gradient).value

    return call


def loss_of(call):
    """A function with curvature, so that second derivatives are not those of the map alone."""

    def loss(*point: Tensor) -> Tensor:
        y = call(*point)
        return (y**3 + y * y.roll(1, -1)).sum()

    return loss


# ------------------------------------------------------------------------------------------------ differences


def difference(function, point: tuple[Tensor, ...], i: int, h: float = 1e-6) -> Tensor:
    """The derivative of ``function(*point)`` by argument i, as jacrev shapes it, by central differences."""
    slopes = []
    for place in range(point[i].numel()):
        step = torch.zeros(point[i].numel(), dtype=DOUBLE)
        step[place] = h
        step = step.reshape(point[i].shape)
        sides = [function(*point[:i], point[i] + sign * step, *point[i + 1 :]) for sign in (1, -1)]
        slopes.append((sides[0] - sides[1]) / (2 * h))
    return torch.stack(slopes, -1).reshape((*slopes[0].shape, *point[i].shape))


def slope(call, i: int):
    """The gradient of the loss by argument i, by the kernel."""

    def gradient(*point: Tensor) -> Tensor:
        leaves = [t.detach().clone().requires_grad_() for t in point]
        return torch.autograd.grad(loss_of(call)(*leaves), leaves[i])[0]

    return gradient


@functools.cache
def jacobians(kind: str, search: str, i: int) -> Tensor:
    """By argument i, one of every sample."""
    call = layer(kind, search)
    return torch.stack([difference(call, tuple(t[s] for t in data(kind)), i) for s in range(SAMPLES)])


@functools.cache
def slopes(kind: str, search: str, i: int) -> Tensor:
    """The gradients of the loss by argument i, one of every sample."""
    loss = loss_of(layer(kind, search))
    return torch.stack([difference(loss, tuple(t[s] for t in data(kind)), i) for s in range(SAMPLES)])


@functools.cache
def curvatures(kind: str, search: str, i: int, j: int) -> Tensor:
    """The second derivatives of the loss by arguments i and j, one of every sample."""
    function = slope(layer(kind, search), i)
    return torch.stack([difference(function, tuple(t[s] for t in data(kind)), j, 1e-5) for s in range(SAMPLES)])


def close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def sample(kind: str, s: int) -> tuple[Tensor, ...]:
    return tuple(t[s] for t in data(kind))


every_kind = pytest.mark.parametrize(("kind", "search"), [(kind, search) for kind in KINDS for search in SEARCHES])
every_argument = pytest.mark.parametrize("i", ALL, ids=NAMES)


@every_kind
def test_the_samples_lie_on_faces_of_every_dimension(kind: str, search: str):
    f, w, A, b = data(kind)
    lower = b - WIDTH
    if kind == "equality":
        lower = torch.cat([lower[:, :-1], b[:, -1:]], -1)
    answer = project(f, AffineSet(A, lower, b), w, search=search)
    counts = (answer.active != 0).sum(-1).tolist()
    assert (answer.status <= Status.PROJECTED).all()
    assert counts == ([0, 1, 2, 3, 1] if kind == "rows" else [1, 2, 3, 3, 2])
    assert (answer.active[-1] == -1).any()


# ------------------------------------------------------------------------------------------------ the value


@every_kind
def test_vmap(kind: str, search: str):
    call = layer(kind, search)
    close(vmap(call)(*data(kind)), torch.stack([call(*sample(kind, s)) for s in range(SAMPLES)]))


@every_kind
@every_argument
def test_vmap_over_one_argument(kind: str, search: str, i: int):
    """The others are shared: those of one sample."""
    call, near = layer(kind, search), sample(kind, 2)
    some = near[i] + 0.01 * torch.randn(4, *near[i].shape, dtype=DOUBLE)
    axes = tuple(0 if j == i else None for j in ALL)
    found = vmap(call, in_dims=axes)(*near[:i], some, *near[i + 1 :])
    close(found, torch.stack([call(*near[:i], one, *near[i + 1 :]) for one in some]))


@every_kind
def test_vmap_over_other_axes_and_out_of_them(kind: str, search: str):
    call = layer(kind, search)
    f, w, A, b = data(kind)
    found = vmap(call, in_dims=(1, 1, 2, 1), out_dims=1)(f.mT, w.mT, A.permute(1, 2, 0), b.mT)
    close(found, call(f, w, A, b).mT)


@every_kind
def test_vmap_of_vmap(kind: str, search: str):
    call = layer(kind, search)
    f, w, A, b = data(kind)
    more = torch.stack([f, f + 0.01])
    close(vmap(vmap(call), in_dims=(0, None, None, None))(more, w, A, b), torch.stack([call(t, w, A, b) for t in more]))


@every_kind
def test_vmap_of_batches(kind: str, search: str):
    """A function that takes a batch itself is mapped over another axis."""
    call = layer(kind, search)
    f, w, A, b = data(kind)
    more = torch.stack([f, f + 0.01])
    close(vmap(lambda t: call(t, w, A, b))(more), torch.stack([call(t, w, A, b) for t in more]))
    close(
        vmap(lambda t: call(f[2], w[2], A[2], t))(b[2] + torch.zeros(3, M, dtype=DOUBLE)),
        call(*sample(kind, 2)).expand(3, N),
    )


# ------------------------------------------------------------------------------------------------ first derivatives


@every_kind
@every_argument
def test_a_plain_backward(kind: str, search: str, i: int):
    """The kernel, which the second derivatives below are compared with."""
    gradient = slope(layer(kind, search), i)
    close(torch.stack([gradient(*sample(kind, s)) for s in range(SAMPLES)]), slopes(kind, search, i))


@every_kind
@every_argument
def test_jacrev(kind: str, search: str, i: int):
    call = layer(kind, search)
    found = [jacrev(call, argnums=i)(*sample(kind, s)) for s in range(SAMPLES)]
    close(torch.stack(found), jacobians(kind, search, i))


@every_kind
@every_argument
def test_jacfwd(kind: str, search: str, i: int):
    call = layer(kind, search)
    found = [jacfwd(call, argnums=i)(*sample(kind, s)) for s in range(SAMPLES)]
    close(torch.stack(found), jacobians(kind, search, i))


@every_kind
@pytest.mark.parametrize("mode", [jacrev, jacfwd])
def test_jacobians_by_all_arguments_at_once(kind: str, search: str, mode):
    call = layer(kind, search)
    for s in range(SAMPLES):
        for i, found in enumerate(mode(call, argnums=ALL)(*sample(kind, s))):
            close(found, jacobians(kind, search, i)[s])


@every_kind
@every_argument
def test_vmap_of_jacrev(kind: str, search: str, i: int):
    close(vmap(jacrev(layer(kind, search), argnums=i))(*data(kind)), jacobians(kind, search, i))


@every_kind
@every_argument
def test_vmap_of_jacfwd(kind: str, search: str, i: int):
    close(vmap(jacfwd(layer(kind, search), argnums=i))(*data(kind)), jacobians(kind, search, i))


@every_kind
@every_argument
@pytest.mark.parametrize("mode", [jacrev, jacfwd])
def test_jacobian_of_vmap(kind: str, search: str, i: int, mode):
    """Samples do not see each other: zero but for the blocks on the diagonal."""
    found = mode(vmap(layer(kind, search)), argnums=i)(*data(kind))
    for s in range(SAMPLES):
        for other in range(SAMPLES):
            block = found[s, :, other]
            close(block, jacobians(kind, search, i)[s] if other == s else torch.zeros_like(block))


@every_kind
@every_argument
@pytest.mark.parametrize("mode", [jacrev, jacfwd])
def test_jacobian_of_a_batch(kind: str, search: str, i: int, mode):
    found = mode(layer(kind, search), argnums=i)(*data(kind))
    for s in range(SAMPLES):
        for other in range(SAMPLES):
            block = found[s, :, other]
            close(block, jacobians(kind, search, i)[s] if other == s else torch.zeros_like(block))


@every_kind
@every_argument
def test_vmap_of_grad(kind: str, search: str, i: int):
    close(vmap(grad(loss_of(layer(kind, search)), argnums=i))(*data(kind)), slopes(kind, search, i))


@every_kind
@every_argument
def test_grad_of_vmap(kind: str, search: str, i: int):
    close(grad(loss_of(vmap(layer(kind, search))), argnums=i)(*data(kind)), slopes(kind, search, i))


@every_kind
def test_vjp_and_vmap_of_vjp(kind: str, search: str):
    call, v = layer(kind, search), torch.randn(SAMPLES, N, dtype=DOUBLE)

    def pulled(v: Tensor, *point: Tensor) -> tuple[Tensor, ...]:
        return vjp(call, *point)[1](v)

    for i, found in enumerate(vmap(pulled)(v, *data(kind))):
        expected = torch.einsum("sn,sn...->s...", v, jacobians(kind, search, i))
        close(found, expected)
        close(torch.stack([pulled(v[s], *sample(kind, s))[i] for s in range(SAMPLES)]), expected)


def pushed(kind: str, search: str, directions: tuple[Tensor, ...]) -> Tensor:
    """What jvp should give for every sample."""
    total = torch.zeros(SAMPLES, N, dtype=DOUBLE)
    for i in ALL:
        flat = jacobians(kind, search, i).reshape(SAMPLES, N, -1)
        total = total + (flat @ directions[i].reshape(SAMPLES, -1, 1)).squeeze(-1)
    return total


@every_kind
def test_jvp(kind: str, search: str):
    call, directions = layer(kind, search), tuple(torch.randn_like(t) for t in data(kind))
    expected = pushed(kind, search, directions)
    for s in range(SAMPLES):
        value, found = jvp(call, sample(kind, s), tuple(t[s] for t in directions))
        close(value, call(*sample(kind, s)))
        close(found, expected[s])


@every_kind
def test_jvp_of_vmap_and_vmap_of_jvp(kind: str, search: str):
    call, directions = layer(kind, search), tuple(torch.randn_like(t) for t in data(kind))
    expected = pushed(kind, search, directions)
    value, found = jvp(vmap(call), data(kind), directions)
    close(value, call(*data(kind)))
    close(found, expected)
    close(jvp(call, data(kind), directions)[1], expected)
    value, found = vmap(lambda *both: jvp(call, both[:4], both[4:]))(*data(kind), *directions)
    close(value, call(*data(kind)))
    close(found, expected)


@every_kind
def test_dual_numbers(kind: str, search: str):
    call, directions = layer(kind, search), tuple(torch.randn_like(t) for t in data(kind))
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        value = call(*(forward.make_dual(*pair) for pair in zip(data(kind), directions, strict=True)))
        found = forward.unpack_dual(value).tangent
    close(found, pushed(kind, search, directions))


@every_kind
def test_directions_through_one_argument_leave_the_others_alone(kind: str, search: str):
    """Only b moves, and for f the direction is zero: no NaN out of the slots that are empty."""
    call = layer(kind, search)
    directions = tuple(torch.randn_like(t) if i == 3 else torch.zeros_like(t) for i, t in enumerate(data(kind)))
    close(jvp(call, data(kind), directions)[1], pushed(kind, search, directions))
    close(
        jvp(lambda b: call(*data(kind)[:3], b), (data(kind)[3],), (directions[3],))[1], pushed(kind, search, directions)
    )


@every_kind
@every_argument
@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_the_older_jacobian_of_torch(kind: str, search: str, i: int, strategy: str):
    call, near = layer(kind, search), sample(kind, 2)

    def by_one(t: Tensor) -> Tensor:
        return call(*near[:i], t, *near[i + 1 :])

    found = torch.autograd.functional.jacobian(by_one, near[i], vectorize=True, strategy=strategy)
    close(found, jacobians(kind, search, i)[2])


@every_kind
def test_a_batch_of_incoming_gradients(kind: str, search: str):
    leaves = [t.clone().requires_grad_() for t in data(kind)]
    value = layer(kind, search)(*leaves)
    v = torch.randn(4, SAMPLES, N, dtype=DOUBLE)
    found = torch.autograd.grad(value, leaves, v, is_grads_batched=True)
    for i in ALL:
        close(found[i], torch.einsum("ksn,sn...->ks...", v, jacobians(kind, search, i)))


# ------------------------------------------------------------------------------------------------ second derivatives


@every_kind
@every_argument
def test_hessian(kind: str, search: str, i: int):
    loss = loss_of(layer(kind, search))
    found = [hessian(loss, argnums=i)(*sample(kind, s)) for s in range(SAMPLES)]
    close(torch.stack(found), curvatures(kind, search, i, i))


@every_kind
def test_hessian_by_all_arguments_at_once(kind: str, search: str):
    loss = loss_of(layer(kind, search))
    for s in range(SAMPLES):
        blocks = hessian(loss, argnums=ALL)(*sample(kind, s))
        for i in ALL:
            for j in ALL:
                close(blocks[i][j], curvatures(kind, search, i, j)[s])


@every_kind
@every_argument
def test_vmap_of_hessian(kind: str, search: str, i: int):
    close(vmap(hessian(loss_of(layer(kind, search)), argnums=i))(*data(kind)), curvatures(kind, search, i, i))


@every_kind
def test_vmap_of_hessian_by_all_arguments_at_once(kind: str, search: str):
    blocks = vmap(hessian(loss_of(layer(kind, search)), argnums=ALL))(*data(kind))
    for i in ALL:
        for j in ALL:
            close(blocks[i][j], curvatures(kind, search, i, j))


@every_kind
@every_argument
def test_hessian_of_vmap(kind: str, search: str, i: int):
    found = hessian(loss_of(vmap(layer(kind, search))), argnums=i)(*data(kind))
    inner = data(kind)[i].ndim - 1
    for s in range(SAMPLES):
        close(found[s].select(inner, s), curvatures(kind, search, i, i)[s])


TWICE = {
    "jacfwd(jacrev)": (jacfwd, jacrev),
    "jacrev(jacrev)": (jacrev, jacrev),
    "jacrev(jacfwd)": (jacrev, jacfwd),
    "jacfwd(jacfwd)": (jacfwd, jacfwd),
}


@every_kind
@every_argument
@pytest.mark.parametrize("name", TWICE)
def test_two_derivatives_in_any_order(kind: str, search: str, i: int, name: str):
    outer, inner = TWICE[name]
    loss = loss_of(layer(kind, search))
    for s in (0, 2, 3):
        close(outer(inner(loss, argnums=i), argnums=i)(*sample(kind, s)), curvatures(kind, search, i, i)[s])


@every_kind
@every_argument
@pytest.mark.parametrize("name", TWICE)
def test_vmap_of_two_derivatives_in_any_order(kind: str, search: str, i: int, name: str):
    outer, inner = TWICE[name]
    loss = loss_of(layer(kind, search))
    close(vmap(outer(inner(loss, argnums=i), argnums=i))(*data(kind)), curvatures(kind, search, i, i))


@every_kind
def test_two_derivatives_by_different_arguments(kind: str, search: str):
    loss = loss_of(layer(kind, search))
    for i in ALL:
        for j in ALL:
            close(vmap(jacfwd(grad(loss, argnums=i), argnums=j))(*data(kind)), curvatures(kind, search, i, j))


@every_kind
def test_second_derivatives_of_the_map_itself(kind: str, search: str):
    """Not of a loss: jacfwd(jacrev) has the shape of y, A and A, against differences of the jacobian."""
    call = layer(kind, search)
    for s in (2, 3):
        expected = difference(lambda *point: jacrev(call, argnums=2)(*point), sample(kind, s), 2, 1e-5)
        close(jacfwd(jacrev(call, argnums=2), argnums=2)(*sample(kind, s)), expected)


@every_kind
def test_a_product_of_a_hessian_and_a_vector(kind: str, search: str):
    """Forward over reverse in batches, as second-order optimisers use it."""
    loss, directions = loss_of(layer(kind, search)), tuple(torch.randn_like(t) for t in data(kind))
    _, found = jvp(grad(loss, argnums=ALL), data(kind), directions)
    for i in ALL:
        expected = torch.zeros_like(data(kind)[i]).reshape(SAMPLES, -1)
        for j in ALL:
            block = curvatures(kind, search, i, j).reshape(SAMPLES, expected.shape[1], -1)
            expected = expected + (block @ directions[j].reshape(SAMPLES, -1, 1)).squeeze(-1)
        close(found[i], expected.reshape(data(kind)[i].shape))


@every_kind
def test_the_older_hessian_of_torch(kind: str, search: str):
    loss, near = loss_of(layer(kind, search)), sample(kind, 2)
    for vectorize in (False, True):
        found = torch.autograd.functional.hessian(
            lambda A: loss(near[0], near[1], A, near[3]), near[2], vectorize=vectorize
        )
        close(found, curvatures(kind, search, 2, 2)[2])


# ------------------------------------------------------------------------------------------------ more than this map


def test_a_network_before_the_layer():
    """Per-sample gradients of the weights, and a hessian by the input, through one model."""
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
    limits = AffineSet.inequality(torch.tensor([[1.0, 1.0], [1.0, -2.0]], dtype=DOUBLE), [-0.6, -0.3])
    model = torch.nn.Sequential(net, CAffine(limits))
    weights = {name: t.detach() for name, t in model.named_parameters()}
    x = torch.randn(6, 2, dtype=DOUBLE)

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (x,)).pow(3).sum()

    found = vmap(grad(loss), in_dims=(None, 0))(weights, x)
    for i in range(6):
        model.zero_grad()
        loss(dict(model.named_parameters()), x[i]).backward()
        for name, parameter in model.named_parameters():
            close(found[name][i], parameter.grad)

    def by_input(x: Tensor) -> Tensor:
        return loss(weights, x)

    def gradient(x: Tensor) -> Tensor:
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(by_input(leaf), leaf)[0]

    expected = torch.stack([difference(gradient, (x[i],), 0, 1e-5) for i in range(6)])
    close(vmap(hessian(by_input))(x), expected)


def test_a_transform_around_a_step_of_training():
    """The gradient of a loss after one step of descent: reverse over reverse through the layer."""
    f, w, A, b = data("rows")
    call = layer("rows", "full")

    def after(rate: Tensor) -> Tensor:
        def loss(f: Tensor) -> Tensor:
            return loss_of(call)(f, w, A, b)

        return loss(f - rate * grad(loss)(f))

    rate = torch.tensor(1e-4, dtype=DOUBLE)
    expected = difference(after, (rate,), 0, 1e-7)
    for found in (grad(after)(rate), jacfwd(after)(rate)):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["nan", "nearest"])
@pytest.mark.parametrize("strict", [False, True])
def test_samples_without_an_answer_have_the_gradient_of_a_plain_backward(mode: str, strict: bool):
    """And they leave the others of a mapped batch alone."""
    A = torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0]], dtype=DOUBLE)
    b = torch.tensor([[1.0, 5.0, 0.5], [-1.0, 0.3, 0.5], [torch.nan, 1.0, 1.0]], dtype=DOUBLE)
    f = torch.tensor([[3.0, 0.2], [2.0, 1.0], [2.0, 1.0]], dtype=DOUBLE)

    def call(f: Tensor, b: Tensor) -> Tensor:  # the second set is empty, the third is none
        set = AffineSet(A, torch.stack([b[0] - 9, 0 * b[0] + 0.1, b[2] - 9]), b)
        return project(f, set, on_infeasible=mode, strict=strict).value

    expected = [torch.autograd.functional.jacobian(call, (f[i], b[i])) for i in range(3)]
    for transform in (jacrev, jacfwd):
        found = vmap(transform(call, argnums=(0, 1)))(f, b)
        for i in range(3):
            for one, other in zip(found, expected[i], strict=True):
                close(one[i], other)
    assert expected[0][0].abs().sum() > 0


# ------------------------------------------------------------------------------------------------ recorded graphs


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr")  # torch.func.linearize stores its own constants so
@every_kind
def test_linearize(kind: str, search: str):
    """What linearize records is the derivative at this point, to be used again and again."""
    call = layer(kind, search)
    value, push = linearize(call, *data(kind))
    close(value, call(*data(kind)))
    for _ in range(2):
        directions = tuple(torch.randn_like(t) for t in data(kind))
        close(push(*directions), pushed(kind, search, directions))


@every_kind
def test_a_recorded_graph_answers_other_inputs(kind: str, search: str):
    """make_fx sees the operations of torch only: the kernel must be one of them, or its answer is not in the graph."""
    call = layer(kind, search)
    recorded = make_fx(call)(*data(kind))
    close(recorded(*data(kind)), call(*data(kind)))
    f, w, A, b = data(kind)
    close(recorded(f + 0.1, w, A, b), call(f + 0.1, w, A, b))


# ------------------------------------------------------------------------------------------------ the tangent gradient


def tangents(kind: str, search: str, v: Tensor) -> list[Tensor]:
    """What a plain backward gives to f, w, A and b for incoming gradients v, sample by sample."""
    found = []
    for s in range(SAMPLES):
        leaves = [t.clone().requires_grad_() for t in sample(kind, s)]
        found.append(torch.autograd.grad(layer(kind, search, "tangent")(*leaves), leaves, v[s]))
    return [torch.stack(parts) for parts in zip(*found, strict=True)]


@every_kind
def test_tangent_by_a_plain_backward_is_the_projection_on_the_cone(kind: str, search: str):
    """The descent is the nearest one to -v that the touching rows allow; the rest is exact."""
    v = torch.randn(SAMPLES, N, dtype=DOUBLE)
    to_f, *others = tangents(kind, search, v)
    f, w, A, b = data(kind)
    y = layer(kind, search)(f, w, A, b)
    at = (A @ y.unsqueeze(-1)).squeeze(-1)
    above, below = (at - b).abs() < 1e-9, (at - b + WIDTH).abs() < 1e-9
    if kind == "equality":
        below[:, -1] = True
    cone = AffineSet(A, torch.where(below, 0.0, -torch.inf).double(), torch.where(above, 0.0, torch.inf).double())
    close(to_f, -project(-v, cone, search="active").value)
    for i, found in enumerate(others, 1):
        close(found, torch.einsum("sn,sn...->s...", v, jacobians(kind, search, i)))


@every_kind
def test_tangent_vmap_of_vjp(kind: str, search: str):
    call, v = layer(kind, search, "tangent"), torch.randn(SAMPLES, N, dtype=DOUBLE)
    found = vmap(lambda v, *point: vjp(call, *point)[1](v))(v, *data(kind))
    for one, expected in zip(found, tangents(kind, search, v), strict=True):
        close(one, expected)


@every_kind
def test_tangent_vmap_of_grad_and_grad_of_vmap(kind: str, search: str):
    call = layer(kind, search, "tangent")
    y = call(*data(kind))
    v = 3 * y**2 + y.roll(1, -1) + y.roll(-1, -1)  # the gradient of the loss by y
    expected = tangents(kind, search, v)
    for found in (
        vmap(grad(loss_of(call), argnums=ALL))(*data(kind)),
        grad(loss_of(vmap(call)), argnums=ALL)(*data(kind)),
        grad(loss_of(call), argnums=ALL)(*data(kind)),
    ):
        for one, other in zip(found, expected, strict=True):
            close(one, other)


@every_kind
def test_tangent_jacrev_and_vmap_of_jacrev(kind: str, search: str):
    """One line of the jacobian for each output: the tangent gradient of that output."""
    call = layer(kind, search, "tangent")
    lines = [tangents(kind, search, torch.eye(N, dtype=DOUBLE)[j].expand(SAMPLES, N)) for j in range(N)]
    mapped = vmap(jacrev(call, argnums=ALL))(*data(kind))
    for i in ALL:
        expected = torch.stack([line[i] for line in lines], 1)
        close(mapped[i], expected)
        close(torch.stack([jacrev(call, argnums=i)(*sample(kind, s)) for s in range(SAMPLES)]), expected)


@every_kind
def test_tangent_a_batch_of_incoming_gradients(kind: str, search: str):
    leaves = [t.clone().requires_grad_() for t in data(kind)]
    value = layer(kind, search, "tangent")(*leaves)
    v = torch.randn(3, SAMPLES, N, dtype=DOUBLE)
    found = torch.autograd.grad(value, leaves, v, is_grads_batched=True)
    for k in range(3):
        for one, expected in zip(found, tangents(kind, search, v[k]), strict=True):
            close(one[k], expected)


def test_a_graph_that_returns_the_violation_keeps_a_nan_to_its_sample():
    """The violation is a diagnostic: NaN times a gradient of zero would reach the A that all samples share."""

    def call(A):
        answer = project(f, AffineSet.inequality(A, [1.0]), on_infeasible="nan")
        return answer.value, answer.violation

    f = torch.tensor([[3.0, 1.0], [torch.nan, 0.0]])
    for function in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        A = torch.ones(1, 2, requires_grad=True)
        value, violation = function(A)
        assert not violation.requires_grad
        value[0].sum().backward()
        assert A.grad.isfinite().all()
