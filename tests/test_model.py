"""Networks: sizes and starts of the paper, training through the layer, warm-up, dead gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from caffnet import AffineSet, CAffNet, ConstraintError, FeedForward, Transformer
from caffnet.training import WarmUp, zero_gradient_share


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("n_in", "n_out", "ff", "tf"), [(1, 1, 162_002, 175_682), (3, 5, 164_410, 176_890)])
def test_the_paper_s_networks_have_the_paper_s_sizes(n_in: int, n_out: int, ff: int, tf: int):
    set = AffineSet.box(-1.0, 1.0, dim=n_out)
    assert parameters(CAffNet(FeedForward(n_in, n_out), set, FeedForward(n_in, n_out))) == ff
    backbone = Transformer(n_in, n_out)
    assert parameters(CAffNet(backbone, set, backbone.twin())) == tf  # the embedding is shared
    assert parameters(FeedForward(3, 5, batch_norm=True, dropout=0.2)) == 83_405


def test_the_starts_are_the_paper_s():
    torch.manual_seed(0)
    net = FeedForward(400, 400, hidden=400)
    assert float(net[0].weight.detach().std()) == pytest.approx((2 / 800) ** 0.5, rel=0.02)  # Xavier-normal
    tf = Transformer(3, 5)
    assert all((p == 0).all() for name, p in tf.named_parameters() if name.endswith("bias"))


def test_hidden_layers_may_have_widths_of_their_own():
    torch.manual_seed(0)
    equal = FeedForward(3, 2, hidden=16, layers=2, batch_norm=True, dropout=0.1)
    torch.manual_seed(0)
    listed = FeedForward(3, 2, hidden=(16, 16), batch_norm=True, dropout=0.1)
    listed.load_state_dict(equal.state_dict())
    assert str(listed) == str(equal)
    assert [part.out_features for part in list(FeedForward(3, 2, [8, 5], 2))[::2]] == [8, 5, 2]
    assert [type(part) for part in FeedForward(3, 2, hidden=[])] == [type(part) for part in FeedForward(3, 2, layers=0)]


def test_a_slice_of_a_network_is_a_sequence_of_its_parts():
    net, x = FeedForward(3, 2, hidden=[8, 5]), torch.randn(4, 3)
    features = net[:-1]
    assert type(features) is torch.nn.Sequential and features(x).shape == (4, 5)
    torch.testing.assert_close(net[-1](features(x)), net(x))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FeedForward("4", 3), "n_in must be a whole number >= 1, got '4'"),
        (lambda: FeedForward(4, 3.0), "n_out must be a whole number >= 1, got 3.0"),
        (lambda: FeedForward(4, 3, hidden=0), "hidden must be a whole number >= 1, got 0"),
        (lambda: FeedForward(4, 3, hidden="64"), "hidden must be a whole number >= 1, got '64'"),
        (lambda: FeedForward(4, 3, hidden=[64, True]), "hidden must be a whole number >= 1, got True"),
        (lambda: FeedForward(4, 3, layers=-1), "layers must be a whole number >= 0, got -1"),
        (lambda: FeedForward(4, 3, hidden=[64, 64], layers=3), "hidden has 2 widths, layers is 3: leave layers out"),
        (lambda: FeedForward(4, 3, activation="gelu"), "makes a module, such as nn.GELU, got 'gelu'"),
        (lambda: FeedForward(4, 3, activation=nn.ReLU()), r"makes a module, such as nn.GELU, got ReLU\(\)"),
    ],
)
def test_sizes_and_activations_that_no_network_has_are_refused(build, message: str):
    with pytest.raises(ValueError, match=message):
        build()


class Counted(nn.Module):
    """A network that remembers how many samples it saw."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network, self.seen = network, []

    def forward(self, x):
        self.seen.append(x.shape[:-1].numel())
        return self.network(x)


@pytest.mark.parametrize("shape", [(40,), (5, 8)])
@pytest.mark.parametrize("search", ["full", "active", "paper"])
def test_a_lazy_null_space_head_is_asked_where_it_matters(search, shape):
    """The same answers and gradients, with less work: w has no say where f is feasible."""
    torch.manual_seed(1)
    wedge = AffineSet.inequality([[1.0, 1.0], [-1.0, 2.0], [-1.0, 0.0]], [0.3, 0.4, 0.5])
    backbone, null = FeedForward(3, 2).double(), Counted(FeedForward(3, 2).double())
    x = torch.randn(*shape, 3, dtype=torch.float64)
    found = {}
    for lazy in (False, True):
        net = CAffNet(backbone, lambda x: wedge, null, null_start="random", search=search, lazy_null=lazy)
        y = net(x)
        net.zero_grad()
        y.square().sum().backward()
        found[lazy] = [y.detach(), *(p.grad for p in net.parameters())]
    for whole, part in zip(*found.values(), strict=True):
        torch.testing.assert_close(whole, part)
    outside = int((~wedge.contains(backbone(x))).sum())
    assert 0 < outside < 40 and null.seen == [40, outside if len(shape) == 1 else 40]
    assert torch.equal(net.project(x).value, found[True][0])


def test_a_lazy_null_space_head_that_nobody_asks_still_has_a_gradient():
    """Zero, as an optimiser with momentum expects; without gradients it is not evaluated at all."""
    null = Counted(FeedForward(3, 2))
    net = CAffNet(FeedForward(3, 2), AffineSet.box(-1e6, 1e6, dim=2), null, null_start="random", lazy_null=True)
    net(torch.randn(6, 3)).sum().backward()
    assert null.seen == [1]
    assert all(p.grad is not None and not p.grad.any() for p in null.parameters())
    with torch.no_grad():
        net(torch.randn(6, 3))
    assert null.seen == [1]


def test_a_lazy_null_space_head_works_in_graphs():
    net = CAffNet(
        FeedForward(3, 2), AffineSet.box(0.0, 0.1, dim=2), FeedForward(3, 2), null_start="random", lazy_null=True
    )
    x = torch.randn(6, 3)
    torch.testing.assert_close(torch.func.vmap(net)(x), net(x))
    torch.testing.assert_close(torch.compile(net, fullgraph=True, backend="eager")(x), net(x))
    graph = torch.export.export(net.eval(), (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},)).module()
    torch.testing.assert_close(graph(torch.cat([x, x])), net(torch.cat([x, x])))
    strict = CAffNet(net.backbone, AffineSet.box(0.0, 0.1, dim=2), net.null, null_start="random", strict=True)
    lazy = CAffNet(net.backbone, strict.layer.set_at(), net.null, null_start="random", strict=True, lazy_null=True)
    assert torch.equal(strict(x), lazy(x))
    with pytest.raises(ConstraintError, match=r"w must be a tensor, got list: write torch.as_tensor\(w\)"):
        net.layer(x[:, :2], [0.0, 0.0])
    with pytest.raises(ConstraintError, match=r"must have shape \(..., 3\)"):
        CAffNet(FeedForward(3, 2), AffineSet.box(0.0, 0.1, dim=3), FeedForward(3, 2), lazy_null=True)(x)


def test_a_lazy_null_space_head_sees_what_half_precision_and_overflow_would_hide():
    """The constraint is looked at in full precision, and what is no number counts as not feasible."""
    for set, f in (
        (AffineSet.inequality([[1.0, 0.0]], [100.0]), [[100.2, 0.3], [500.0, 0.0], [1.0, 0.0]]),
        (AffineSet.inequality([[1e30, -1e30]], [0.0]), [[1e20, 0.9e20], [2.0, 1.0], [0.0, 1.0]]),
    ):
        null = Counted(nn.Linear(2, 2))
        net = CAffNet(nn.Identity(), set, null, null_start="random", lazy_null=True)
        with torch.autocast("cpu", torch.bfloat16):
            answer = net.project(torch.tensor(f))
        assert null.seen == [int((answer.status != 0).sum())]


def test_the_null_space_head_starts_at_zero_and_learns():
    torch.manual_seed(0)
    set = AffineSet.inequality([[1.0, 1.0, 1.0]], [0.0])
    net = CAffNet(FeedForward(2, 3, 32, 1), set, FeedForward(2, 3, 32, 1))
    x = torch.randn(16, 2)
    assert net.null is not None
    assert torch.equal(net.null(x), torch.zeros(16, 3))
    net(x).square().sum().backward()
    last = net.null[-1]
    assert last.weight.grad.abs().sum() > 0
    paper = CAffNet(FeedForward(2, 3), set, FeedForward(2, 3), null_start="random")
    assert paper.null is not None and paper.null(x).abs().sum() > 0


def test_a_trained_model_is_wrapped_in_one_line():
    trained, set = FeedForward(2, 3), AffineSet.box(-0.1, 0.1, dim=3)
    x = torch.randn(8, 2)
    safe = CAffNet(trained, set)
    assert torch.equal(safe(x), trained(x).clamp(-0.1, 0.1))
    nominal = torch.full((8, 3), 5.0)
    assert torch.equal(safe(x, nominal), torch.full((8, 3), 0.1))
    assert safe.project(x).status.shape == (8,)


@pytest.mark.parametrize("shape", [(4, 1, 3), (8, 1), (4,), (), (7, 8, 3)])
def test_a_nominal_of_another_shape_is_refused(shape: tuple[int, ...]):
    model = CAffNet(FeedForward(2, 3), AffineSet.box(-1.0, 1.0, dim=3))
    with pytest.raises(
        ConstraintError, match=r"^nominal is added to the output of the backbone \(8, 3\): .* or \(3,\)"
    ):
        model(torch.randn(8, 2), torch.zeros(shape))
    with pytest.raises(ConstraintError, match=r"^nominal must be a tensor, got list"):
        model(torch.randn(8, 2), [0.0, 0.0, 0.0])  # pyright: ignore[reportArgumentType]
    x = torch.randn(8, 2)
    assert torch.equal(model(x, torch.ones(3)), model(x, torch.ones(8, 3)))


def test_swapped_arguments_are_named():
    model = CAffNet(lambda x: AffineSet.box(0.0, 1.0, dim=2), FeedForward(3, 2))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConstraintError, match=r"got AffineSet.*The order is CAffNet\(backbone, constraint\)"):
        model(torch.zeros(1, 3))


def test_a_stray_axis_of_the_backbone_is_noticed():
    box = CAffNet(lambda x: x[..., :2].unsqueeze(1), lambda x: AffineSet.box(0.0, x[..., :2].abs()))
    with pytest.raises(ConstraintError, match=r"f has the batch axes \(4, 1\), the constraints at x \(4,\): every f"):
        box(torch.randn(4, 3))
    steps = CAffNet(lambda x: x[..., :2].expand(7, 4, 2), lambda x: AffineSet.box(0.0, x[..., :2].abs()))
    assert steps(torch.randn(4, 3)).shape == (7, 4, 2)  # seven outputs for each of four sets


def test_swapped_arguments_and_a_tuple_for_a_set_are_named():
    net, box = FeedForward(2, 2), AffineSet.box(0.0, 1.0, dim=2)
    with pytest.raises(ConstraintError, match=r"backbone must be a module .* got AffineSet: the order is CAffNet\("):
        CAffNet(box, net)
    with pytest.raises(ConstraintError, match=r"return an AffineSet, got tuple\. Write AffineSet.inequality\(A, b\)"):
        CAffNet(net, lambda x: (torch.eye(2), torch.ones(2)))(torch.zeros(1, 2))


def test_number_types_of_layer_and_network():
    net = CAffNet(FeedForward(2, 3), AffineSet.box(torch.zeros(3).double(), torch.ones(3).double()))
    with pytest.raises(TypeError, match=r"layer's constraint is torch.float64, f is torch.float32: convert the layer"):
        net(torch.zeros(4, 2))
    assert net.double()(torch.zeros(4, 2).double()).dtype == torch.float64


@pytest.mark.parametrize("gradient", ["exact", "tangent"])
def test_training_through_the_layer_reaches_a_constrained_optimum(gradient: str):
    """minimise |y - (2, 0)|² over the simplex for every input: the answer is the vertex (1, 0)."""
    torch.manual_seed(1)
    simplex = AffineSet.equality([[1.0, 1.0]], [1.0]) & AffineSet.box(0.0, None, dim=2)
    net = CAffNet(FeedForward(1, 2, 32, 1), simplex, FeedForward(1, 2, 32, 1), gradient=gradient)
    x, goal = torch.linspace(-1, 1, 20).unsqueeze(-1), torch.tensor([2.0, 0.0])
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(100):
        optimiser.zero_grad()
        (net(x) - goal).square().sum().backward()
        optimiser.step()
    y = net(x)
    assert simplex.contains(y).all()
    torch.testing.assert_close(y, torch.tensor([1.0, 0.0]).expand(20, 2), atol=1e-3, rtol=0)


def test_warm_up_lets_f_pass_in_training_only_and_can_be_resumed():
    net = CAffNet(FeedForward(1, 1), AffineSet.box(5.0, 6.0, dim=1))
    warmup, x = WarmUp(net, epochs=2), torch.zeros(1, 1)
    assert torch.equal(net(x), net.backbone(x))
    assert net.eval()(x) == 5.0
    net.train()
    warmup.step()
    state = warmup.state_dict()
    again = WarmUp(net, epochs=9)
    again.load_state_dict(state)
    assert torch.equal(net(x), net.backbone(x))
    again.step()
    assert net(x) == 5.0
    with pytest.raises(ConstraintError, match="Linear contains no CAffine layer"):
        WarmUp(torch.nn.Linear(1, 1), 1)
    with pytest.raises(ConstraintError, match="epochs must be a number, got '2'"):
        WarmUp(net, "2")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("gradient", "share"), [("exact", 1.0), ("tangent", 0.0)])
def test_the_share_of_samples_without_gradient(gradient: str, share: float):
    """All outputs sit at a vertex of the box, and the loss pulls inwards."""
    net = CAffNet(FeedForward(1, 2), AffineSet.box(0.0, 1.0, dim=2), gradient=gradient)
    torch.nn.init.constant_(net.backbone[-1].bias, 50.0)
    x = torch.randn(6, 1)
    assert zero_gradient_share(net, x, lambda y: y.sum()) == share
    assert net.project(x).at_vertex.all()
    assert zero_gradient_share(net, x, lambda y: (0 * y).sum()) == 0.0
    for loss, got in ((lambda y: y.sum(-1), r"shape \(6,\)"), (lambda y: 3.0, "float")):
        with pytest.raises(
            ConstraintError, match=rf"must be a tensor of one number, got {got}: write .sum\(\) or .mean"
        ):
            zero_gradient_share(net, x, loss)
