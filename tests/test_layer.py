"""The layer in a user's programme: autocast, files, averages of models, data loaders, the null limit."""

from __future__ import annotations

import copy
import io
import math
import pickle
import warnings
from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

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
from caffnet._solve.tracing import plain_operations
from caffnet.control import BarrierConstraint, OutsideCircles, SafetyFilter, Unicycle

INF = float("inf")
BF16 = torch.bfloat16


def autocast():
    return torch.autocast("cpu", dtype=BF16)


# ------------------------------------------------------------------------------------------------ autocast


class Grid(nn.Module):
    """As in a power grid of 118 buses: generation balances the load, and flows, products of x, bound the outputs."""

    def __init__(self, outputs: int = 20, loads: int = 118):
        super().__init__()
        self.register_buffer("share", torch.rand(loads, outputs) / loads)

    def forward(self, x: Tensor) -> AffineSet:
        top = 1 + x @ self.share
        balance = AffineSet.equality(torch.ones(1, top.shape[-1]), 0.5 * top.sum(-1, keepdim=True))
        return balance & AffineSet.box(torch.zeros_like(top), top)


def true_violation(set: AffineSet, y: Tensor) -> Tensor:
    """In double precision, relative to the size of the row."""
    wide = AffineSet(set.A.double(), set.lower.double(), set.upper.double())
    return (wide.violation(y.double()) / (1 + set.A.abs().sum(-1))).amax(-1)


@pytest.mark.parametrize("kind", [torch.float32, BF16], ids=str)
def test_bounds_are_computed_in_full_precision_under_autocast(kind: torch.dtype):
    """As Lightning's bf16-mixed calls it. A bound computed in bfloat16 is off by a part in a hundred."""
    grid = Grid()
    net = CAffNet(FeedForward(118, 20, 32, 1), grid, FeedForward(118, 20, 32, 1), null_start="random")
    x = torch.rand(16, 118).to(kind)
    with autocast():
        answer, y = net.project(x), net(x)
        here = net.layer.set_at(x)
    exact = grid(x.float())
    assert torch.equal(here.upper, exact.upper) and here.upper.dtype == y.dtype == torch.float32
    assert (answer.status == Status.PROJECTED).all()
    assert true_violation(exact, y).max() <= 1e-5
    y.sum().backward()
    with autocast():
        rough = (1 + x @ grid.share).float()
    assert (rough - exact.upper[:, 1:]).abs().max() > 1e-4  # what the layer must not see


class Input(NamedTuple):
    load: Tensor
    rest: list


@pytest.mark.parametrize("around", [autocast, torch.no_grad], ids=["autocast", "plain"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: {"load": x, "name": "grid"},
        lambda x: OrderedDict(load=x),
        lambda x: (1, [x]),
        lambda x: Input(x, [None]),
    ],
    ids=["dict", "ordered", "tuple", "named"],
)
def test_half_precision_inside_a_nested_input(wrap, around):
    grid, seen = Grid(), []

    def constraint(x) -> AffineSet:
        seen.append(x)
        load = x["load"] if isinstance(x, dict) else x.load if isinstance(x, Input) else x[1][0]
        assert load.dtype == torch.float32
        return grid(load)

    layer, x, f = CAffine(constraint), torch.rand(8, 118).to(BF16), 3 * torch.randn(8, 20)
    given = wrap(x)
    with around():
        y = layer(f, x=given)
    assert type(seen[0]) is type(given)
    assert true_violation(grid(x.float()), y).max() <= 1e-5
    whole = wrap(x.float())
    layer(f, x=whole)
    assert seen[1] is whole  # what needs no change is the user's own object


def test_a_layer_at_the_end_of_a_sequential_works_under_autocast():
    net = nn.Sequential(nn.Linear(3, 2), CAffine(AffineSet.box(0.0, 0.1, dim=2)))
    layer, f = CAffine(AffineSet.equality([[1.0, 1.0]], [0.1])), torch.randn(5, 2)
    with autocast():
        y = net(torch.randn(4, 3))
        on_face = layer(f.to(BF16), f.to(BF16))
        assert CAffine(lambda x: AffineSet.box(0.0, x))(f.to(BF16), x=torch.ones(5, 2)).dtype == torch.float32
    assert y.dtype == torch.float32
    assert AffineSet.box(0.0, 0.1, dim=2).contains(y).all()
    assert torch.equal(on_face, layer(f.to(BF16).float(), f.to(BF16).float()))
    with pytest.raises(DtypeError, match="works in float32 or float64"):
        layer(f.to(BF16))  # half precision on purpose, without autocast


def test_a_prepared_set_measures_and_joins_as_the_set_itself():
    box, ready = (
        AffineSet.box(0.0, 1.0, dim=2, names=["a", "b"]),
        prepare(AffineSet.equality([[1.0, 1.0]], [1.0], ["sum"])),
    )
    y = torch.tensor([[0.5, 0.5], [1.0, 1.0]])
    assert ready.contains(y).tolist() == [True, False]
    assert ready.violation(y).tolist() == [[0.0], [1.0]]
    assert (ready & box).names == ("sum", "a", "b")
    assert (box & ready).names == ("a", "b", "sum")
    assert (ready & ready).m == 2


def test_a_barrier_is_evaluated_in_full_precision_under_autocast():
    car, circle = Unicycle(), OutsideCircles([[2.0, 0.0]], [1.0])
    safe = BarrierConstraint(car, circle, inputs=AffineSet.box(-1.0, 1.0, dim=2))
    x = torch.tensor([[0.513, 0.017, 0.03], [0.7, 0.4, 0.2]])
    wish = torch.tensor([1.0, 0.2])
    driver = SafetyFilter(lambda x: wish.expand(len(x), 2), safe)
    exact = driver(x)
    with autocast():
        assert torch.equal(driver(x), exact)
        assert torch.equal(driver.layer.set_at(x).A, safe(x).A)
        y = CAffine(safe)(wish.expand(2, 2), x=x.to(BF16))
    assert true_violation(safe(x.to(BF16).float()), y).max() <= 1e-6


# ------------------------------------------------------------------------------------------------ files


class Limits(nn.Module):
    """A constraint that is a module: its limits are a buffer and a parameter."""

    def __init__(self, top: float, floor: float = 0.0):
        super().__init__()
        self.register_buffer("top", torch.full((2,), top))
        self.register_buffer("nothing", torch.full((2,), float("nan")))
        self.floor = nn.Parameter(torch.full((2,), floor))

    def forward(self, x: Tensor) -> AffineSet:
        return AffineSet.box(self.floor, self.top.expand(*x.shape[:-1], 2))


def test_loading_other_limits_of_a_constraint_module_warns_and_names_them():
    layer, x, f = CAffine(Limits(1.0)), torch.zeros(3, 1), torch.full((3, 2), 9.0)
    with pytest.warns(UserWarning, match=r"another constraint .*, in constraint\.top; the loaded .* strict=False"):
        layer.load_state_dict(CAffine(Limits(2.0)).state_dict())
    assert (layer(f, x=x) == 2).all()
    with pytest.warns(UserWarning, match=r", in constraint\.floor, constraint\.top; the loaded"):
        layer.load_state_dict(CAffine(Limits(3.0, 1.0)).state_dict())
    net, other = (CAffNet(FeedForward(1, 2), Limits(u)) for u in (1.0, 2.0))
    with pytest.warns(UserWarning, match=r", in layer\.constraint\.top; "):
        net.load_state_dict(other.state_dict())
    wrapped = nn.Sequential(CAffNet(FeedForward(1, 2), Limits(1.0)))
    with pytest.warns(UserWarning, match=r", in 0\.layer\.constraint\.top; "):
        wrapped.load_state_dict(nn.Sequential(other).state_dict())


def test_loading_the_same_limits_says_nothing():
    net = CAffNet(FeedForward(1, 2), Limits(1.0))
    state = copy.deepcopy(net.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.load_state_dict(state)
        CAffNet(FeedForward(1, 2), Limits(1.0)).double().load_state_dict(state)
        del state["layer.constraint.top"]
        CAffNet(FeedForward(1, 2), Limits(7.0)).load_state_dict(state, strict=False)
    with pytest.raises(RuntimeError, match="size mismatch"):
        net.load_state_dict({**net.state_dict(), "layer.constraint.top": torch.ones(3)})


# ------------------------------------------------------------------------------------------------ averages of models

WEDGE = AffineSet.inequality([[1.0, 0.1]], [0.7], names=["budget"]) & AffineSet.box(0.3, None, dim=2)


def wedge_model(**options) -> CAffNet:
    return CAffNet(FeedForward(3, 2), WEDGE, FeedForward(3, 2), **options)


@pytest.mark.parametrize("average", [None, get_ema_multi_avg_fn(0.9)], ids=["swa", "ema"])
def test_an_averaged_model_keeps_its_infinite_bounds(average):
    """inf - inf is NaN in the buffers of the average: the layer solves with its own set, and saves that."""
    model, x = wedge_model(), torch.randn(20, 3)
    averaged = AveragedModel(model, use_buffers=True, multi_avg_fn=average)
    for _ in range(4):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn_like(p))
        averaged.update_parameters(model)
    assert averaged.module.layer.lower.isnan().any()  # what torch makes of it
    state = {name: t.clone() for name, t in averaged.state_dict().items()}
    assert not any(t.isnan().any() for t in state.values())
    averaged.update_parameters(model)
    file = io.BytesIO()
    pickle.dump(averaged.module, file)
    doubled, copied = copy.deepcopy(averaged).double(), copy.deepcopy(averaged)
    y = averaged(x)
    assert WEDGE.contains(y).all() and torch.equal(averaged.module.layer.set_at().upper, model.layer.upper)
    assert torch.equal(copied(x), y) and torch.equal(pickle.loads(file.getvalue())(x), y)
    torch.testing.assert_close(doubled(x.double()), y.double(), rtol=1e-5, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh = AveragedModel(wedge_model(), use_buffers=True)
        fresh.load_state_dict(state)
    assert torch.equal(fresh.module.layer.lower, model.layer.lower)


def test_an_averaged_model_that_is_compiled_or_exported_has_its_own_bounds():
    model, x = wedge_model(), torch.randn(20, 3)
    averaged = AveragedModel(model, use_buffers=True)
    averaged.update_parameters(model)
    averaged.update_parameters(model)
    torch._dynamo.reset()
    y = torch.compile(averaged.module, fullgraph=True, backend="eager")(x)
    torch.testing.assert_close(y, model(x))
    exported = torch.export.export(averaged.module, (x,)).module()
    torch.testing.assert_close(exported(x), model(x))


@pytest.mark.parametrize("of", [nn.Module.buffers, lambda net: net.state_dict().values()], ids=["buffers", "state"])
def test_a_target_network_does_not_wear_its_bounds_down(of):
    """0.9999 a + 0.0001 a is not a, and what is lost adds up; missing bounds stay missing."""
    polytope = AffineSet.inequality(torch.randn(400, 2), 1 + torch.rand(400))
    model = CAffNet(FeedForward(3, 2), polytope)
    target = copy.deepcopy(model)
    for _ in range(1000):
        with torch.no_grad():
            for mine, theirs in zip(of(target), of(model), strict=True):
                mine.mul_(0.9999).add_(0.0001 * theirs)
    assert torch.equal(target.layer.set_at().upper, polytope.upper)
    assert torch.equal(target.state_dict()["layer.A"], polytope.A)
    assert torch.equal(target.double().layer.A, polytope.A.double())


def test_numbers_written_into_the_buffers_do_not_count():
    layer, f = CAffine(AffineSet.box(0.0, None, dim=2)), torch.tensor([9.0, -9.0])
    layer.upper.fill_(4.0)
    layer.lower[0] = float("nan")
    assert layer(f).tolist() == [9.0, 0.0] and layer.state_dict()["lower"].tolist() == [0.0, 0.0]
    assert layer.to("cpu").upper.tolist() == [INF, INF]
    with pytest.warns(UserWarning, match=r"another constraint .* in row 0, row 1;"):
        layer.load_state_dict(CAffine(AffineSet.box(-2.0, 2.0, dim=2)).state_dict())
    assert layer(f).tolist() == [2.0, -2.0]


# ------------------------------------------------------------------------------------------------ data loaders


def sets() -> list[AffineSet]:
    """Four sets of three rows; each row changes its kind from one set to the next."""
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    bounds = [
        ([-INF, 0.0, -INF], [1.0, 0.0, 1.0]),
        ([0.0, -INF, 0.5], [INF, INF, 0.5]),
        ([-1.0, 0.25, -INF], [2.0, 0.25, INF]),
        ([0.5, -3.0, 0.0], [0.5, 3.0, 1.0]),
    ]
    return [AffineSet(rows, torch.tensor(lo), torch.tensor(hi), ["a", "b", "c"]) for lo, hi in bounds]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_makes_one_set_of_many(workers: int):
    data = [(torch.full((2,), 3.0 * i - 5), set) for i, set in enumerate(sets())]
    ((f, batch),) = DataLoader(data, batch_size=4, num_workers=workers)
    assert isinstance(batch, AffineSet) and batch.batch_shape == (4,)
    assert batch.names == ("a", "b", "c") and batch.row_kinds == "BBB" and batch.dtype == torch.float32
    for search in ("full", "active"):
        y = project(f, batch, search=search).value
        for i, (point, one) in enumerate(data):
            assert torch.equal(batch[i].lower, one.lower) and torch.equal(batch[i].upper, one.upper)
            torch.testing.assert_close(y[i], project(point, one, search=search).value)
    layer = CAffine(lambda x: x["set"])
    ((here,),) = DataLoader([({"set": set, "f": f},) for f, set in data], batch_size=4)
    assert torch.equal(layer(here["f"], x=here), y)


def test_kinds_names_and_types_of_a_collated_set():
    collate = torch.utils.data.default_collate
    boxes = [AffineSet.box(0.0, [1.0, float(i)], names=["p", "q"]) for i in range(3)]
    batch = collate(boxes)
    assert batch.weak and batch.row_kinds == "BB" and batch.names == ("p", "q")  # the second is [0, 0] once
    assert project(torch.full((3, 2), 9.0), batch).value.tolist() == [[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]
    mixed = collate([boxes[1], AffineSet.box(torch.zeros(2), torch.ones(2), names=["p", "other"])])
    assert mixed.dtype == torch.float32 and not mixed.weak and mixed.labels == ("p", None)
    equal = AffineSet.equality(torch.ones(1, 2), [1.0])
    assert collate([equal, equal]).row_kinds == "=" and collate([equal, equal]).labels is None
    assert collate([equal, AffineSet.inequality(torch.ones(1, 2), [1.0])]).row_kinds == "B"
    one, free = AffineSet.box(None, [1.0, 1.0]), AffineSet.box([-INF, -INF], None)
    assert collate([one, free]).row_kinds == "<<" and collate([free, free]).row_kinds == "--"
    assert collate([one, AffineSet.box([0.0, 0.0], None)]).row_kinds == "BB"


def test_a_collated_set_of_batched_sets():
    shared = AffineSet.inequality(torch.ones(1, 2), torch.arange(3.0).unsqueeze(-1))  # one matrix, three bounds
    batch = torch.utils.data.default_collate([shared, shared])
    assert batch.batch_shape == (2, 3) and torch.equal(batch[1].upper, shared.upper)


def test_a_collated_set_keeps_the_metric_and_the_weights_that_its_samples_share():
    rows = AffineSet.inequality(torch.ones(1, 2), -torch.ones(2, 1))  # two samples
    sets = [rows.soft([1.0 + k]).with_metric([1.0, 2.0 + k]) for k in range(2)]
    batch = torch.utils.data.default_collate(sets)
    f = torch.ones(2, 2, 2)
    for k in range(2):
        torch.testing.assert_close(project(f, batch).value[k], project(f[k], sets[k]).value)
    three = AffineSet.inequality(torch.ones(1, 2), -torch.ones(3, 1)).with_metric([1.0, 2.0])
    assert torch.utils.data.default_collate([three, three]).batch_shape == (2, 3)


def test_sets_that_do_not_fit_together_are_named():
    box = AffineSet.box(torch.zeros(2), torch.ones(2))
    with pytest.raises(ConstraintError, match=r"equal shapes, got \(2, 2\) and \(3, 3\) .* pass a collate_fn"):
        torch.utils.data.default_collate([box, AffineSet.box(0.0, 1.0, dim=3)])
    with pytest.raises(TypeError, match=r"one number type, got torch.float32 and torch.float64"):
        torch.utils.data.default_collate([box, box.to(torch.float64)])


def test_a_state_of_a_layer_without_rows_loads():
    free = CAffine(AffineSet(torch.zeros(0, 2)))
    free.load_state_dict(free.state_dict())
    assert free(torch.ones(3, 2)).tolist() == [[1.0, 1.0]] * 3


def test_a_set_moves_and_is_pinned(monkeypatch):
    pinned = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda t, *device: pinned.append(t) or t)
    box = AffineSet.box(0.0, 1.0, dim=2, names=["p", "q"])
    moved = box.pin_memory().to("cpu", non_blocking=True)
    assert len(pinned) == 3 and moved.weak and moved.names == ("p", "q") and moved.row_kinds == box.row_kinds
    assert box.to(torch.float32, non_blocking=True).dtype == torch.float32


# ------------------------------------------------------------------------------------------------ the null limit


def bounded(set: AffineSet, limit: float | None = 1.0, **options) -> CAffine:
    return CAffine(lambda x: set, null_limit=limit, **options)


@pytest.mark.parametrize("search", ["full", "active"])
def test_with_a_limit_the_output_does_not_jump_at_the_boundary(search: str):
    half = AffineSet.inequality(torch.tensor([[1.0, 0.0]]).double(), [1.0])
    f, w = torch.tensor([1.0, 0.0]).double(), torch.tensor([0.3, 2.0]).double()
    for step in (1e-2, 1e-5, 1e-8):
        out = f + torch.tensor([step, 0.0]).double()
        inside, outside = f - torch.tensor([step, 0.0]).double(), bounded(half, search=search)(out, w, x=0)
        assert torch.equal(bounded(half, search=search)(inside, w, x=0), inside)
        assert 0.5 * step < (outside - out).norm() <= 3 * step  # w has a say, of the size of the distance
        assert outside[1] > 0.5 * step
        assert (bounded(half, None, search=search)(out, w, x=0) - out).norm() > 1  # the paper's map


@pytest.mark.parametrize("share", [0.5, 3.0])
@pytest.mark.parametrize("search", ["full", "active", "auto"])
def test_the_output_is_within_the_documented_distance(search: str, share: float):
    """|P*(f, w') - f| <= (1 + 2c) dist(f, S), in random sets with equalities, vertices and thin corners."""
    from helpers import random_problem

    worst = 0.0
    for seed in range(150):
        set, f, w = random_problem(seed)
        f = f + torch.randn(20, set.n).double()
        w = 10.0 ** torch.randint(-2, 3, (20, 1)) * w
        distance = (f - project(f, set).value).norm(dim=-1)
        answer = bounded(set, share, search=search).project(f, w, x=0)
        assert set.contains(answer.value).all()
        assert torch.equal(answer.value[distance == 0], f[distance == 0])
        moved = (answer.value - f).norm(dim=-1)
        scale = 1 + f.abs().amax(-1)
        assert (moved <= (1 + 2 * share) * distance + 1e-12 * scale).all(), seed
        worst = max(worst, float((moved / (distance + 1e-9)).max()))
    assert worst > 1.1  # w has a say


def test_a_limit_leaves_a_short_w_and_none_is_the_paper_s_map():
    random = torch.Generator().manual_seed(3)
    f, w = (3 * torch.randn(200, 2, generator=random, dtype=torch.float64) for _ in range(2))
    box = AffineSet.box(0.0, 1.0, dim=2).to(torch.float64)
    short = 1e-3 * w
    far = (f - project(f, box).value).norm(dim=-1) > 1e-2
    assert torch.equal(bounded(box)(f, short, x=0)[far], project(f, box, short).value[far])
    assert torch.equal(bounded(box, None)(f, w, x=0), project(f, box, w).value)
    assert torch.equal(CAffine(box, null_limit=1e9)(f, w), project(f, box, w).value)
    assert torch.equal(bounded(box)(f, x=0), project(f, box).value)


@pytest.mark.parametrize("search", ["full", "active"])
def test_gradients_with_a_limit(search: str):
    """Of f, w, A and the bounds, first and second: where the limit holds and where it does not."""
    A = torch.tensor([[1.0, 0.4, 0.1], [-0.3, 1.0, 0.2]], dtype=torch.float64, requires_grad=True)
    upper = torch.tensor([0.3, 0.5], dtype=torch.float64, requires_grad=True)
    f = torch.tensor([[2.0, 0.1, 0.3], [0.2, 3.0, -1.0], [-2.0, -2.0, 0.5]], dtype=torch.float64, requires_grad=True)
    w = torch.tensor([[0.1, 5.0, 9.0], [0.1, 0.1, 0.2], [1.0, 2.0, 3.0]], dtype=torch.float64, requires_grad=True)

    def call(f: Tensor, w: Tensor, A: Tensor, upper: Tensor) -> Tensor:
        layer = CAffine(lambda x: AffineSet.inequality(A, upper), null_limit=0.7, search=search)
        return layer(f, w, x=0)

    assert torch.autograd.gradcheck(call, (f, w, A, upper))
    assert torch.autograd.gradgradcheck(call, (f, w, A, upper))


def test_gradients_with_a_limit_are_finite_at_the_edges():
    """w = 0 at the start, f on the boundary, f inside, no answer."""
    box = AffineSet.box(0.0, 1.0, dim=2)
    f = torch.tensor([[2.0, 0.5], [1.0, 0.5], [0.5, 0.5], [2.0, 2.0]], requires_grad=True)
    w = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0], [1e30, -1e30]], requires_grad=True)
    for options in ({}, {"gradient": "tangent"}):
        y = bounded(box, **options)(f, w, x=0)
        for slope in torch.autograd.grad(y.square().sum(), (f, w)):
            assert slope.isfinite().all()
    assert torch.autograd.grad(bounded(box)(f, w, x=0)[0, 1], w)[0][0, 1] == 1  # so that training can start from zero


@pytest.mark.parametrize("how", ["nan", "nearest"])
def test_samples_without_an_answer_keep_their_status_with_a_limit(how: str):
    upper = torch.tensor([[1.0, 1.0], [0.0, -1.0], [1.0, 1.0]])
    set = AffineSet.inequality(torch.tensor([[1.0], [-1.0]]), upper)
    f, w = torch.tensor([[5.0], [5.0], [float("nan")]]), torch.ones(3, 1)
    answer = bounded(set, on_infeasible=how).project(f, w, x=0)
    assert answer.status.tolist() == [Status.PROJECTED, Status.INFEASIBLE, Status.INVALID]
    assert answer.value[0] == 1.0
    with pytest.raises(ConstraintError, match="w must be finite, got nan"):
        bounded(set[0])(f[:2], torch.full((2, 1), float("nan")), x=0)
    with pytest.raises(ConstraintError, match=r"No point satisfies the constraints of 1 of 2"):
        bounded(set[:2])(f[:2], w[:2], x=0)
    with pytest.raises(ConstraintError, match=r"w must have the shape of f"):
        bounded(set[:2])(f[:2], torch.ones(3, 1), x=0)


def test_a_network_with_a_limit_in_training_graphs_and_files():
    def build(**options) -> CAffNet:
        torch.manual_seed(2)
        nets = (FeedForward(3, 2, 16, 1), AffineSet.box(0.0, 0.2, dim=2), FeedForward(3, 2, 16, 1))
        return CAffNet(*nets, null_start="random", null_limit=0.5, **options)

    net, x = build(), torch.randn(12, 3)
    y = net(x)
    assert "null_limit=0.5" in repr(net) and net.layer.null_limit == 0.5
    f, w = net.raw(x)
    distance = (f - project(f, net.layer.set_at()).value).norm(dim=-1, keepdim=True)
    shorter = w * (0.5 * distance / w.norm(dim=-1, keepdim=True)).clamp(max=1.0)
    torch.testing.assert_close(y, project(f, net.layer.set_at(), shorter).value)
    torch.testing.assert_close(build(lazy_null=True)(x), y)
    torch.testing.assert_close(torch.func.vmap(net)(x), y)
    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), y)
    grads = [torch.autograd.grad(call(x).square().sum(), list(net.parameters())) for call in (compiled, net)]
    for first, second in zip(*grads, strict=True):
        torch.testing.assert_close(first, second)
    assert build().load_state_dict(build().state_dict())
    with autocast():
        assert net(x).dtype == torch.float32
    torch.testing.assert_close(torch.export.export(net, (x,)).module()(x), y)
    with (
        plain_operations(),
        pytest.raises(
            Exception,
            match=r"null_limit needs a second search, which plain operations do not hold: export a model with",
        ),
    ):
        torch.export.export(net, (x,))


@pytest.mark.parametrize("given", [0, -1.0, True, "1", INF, float("nan")], ids=str)
def test_a_limit_that_is_no_positive_number_is_refused(given):
    with pytest.raises(ConstraintError, match=r"null_limit must be a positive number, or None for no limit, got"):
        CAffine(AffineSet.box(0.0, 1.0, dim=2), null_limit=given)


# ------------------------------------------------------------------------------------------------ refusals

BOX = AffineSet.box(0.0, 1.0, dim=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strict": "no"}, r"strict must be True or False, got 'no'"),
        ({"strict": 1}, r"strict must be True or False, got 1"),
        ({"norm": True}, r"norm must be a p in \[1, inf\], got True"),
        ({"norm": "2"}, r"norm must be a p in \[1, inf\], got '2'"),
        ({"norm": 0.5}, r"norm must be a p in \[1, inf\], got 0.5"),
    ],
    ids=str,
)
def test_options_of_the_wrong_kind_are_refused(options: dict, message: str):
    for call in (
        lambda: CAffine(BOX, **options),
        lambda: CAffNet(FeedForward(2, 2), BOX, **options),
        lambda: project(torch.zeros(1, 2), BOX, **options),
    ):
        with pytest.raises(ConstraintError, match=message):
            call()


def test_a_misspelt_option_is_named():
    with pytest.raises(TypeError, match=r"CAffine has no option 'nul_limit'; the options are .*, null_limit and warm"):
        CAffine(BOX, nul_limit=1.0)


@pytest.mark.parametrize("search", ["full", "lite", "active", "paper"])
@pytest.mark.parametrize("batch", [(), (7,), (0,), (3, 5)], ids=str)
def test_the_value_alone_is_that_of_the_projection(search: str, batch: tuple[int, ...]):
    """`forward` has no room for the status and the rows, which nobody reads there."""
    stream = torch.Generator().manual_seed(11)
    A, w = torch.randn(5, 3, generator=stream), torch.randn(*batch, 3, generator=stream)
    f = 3 * torch.randn(*batch, 3, generator=stream)
    for set in (AffineSet.inequality(A, torch.ones(5)), AffineSet.inequality(A, torch.ones(5)).soft(weight=2.0)):
        if search == "paper" and set.slacks:
            continue
        for layer in (CAffine(set, search=search), CAffine(lambda x, set=set: set, search=search)):
            for null in (None, w):
                assert torch.equal(layer(f, null, x=f), layer.project(f, null, x=f).value)


def test_the_value_alone_of_samples_without_an_answer():
    empty = AffineSet.inequality([[1.0, 0.0], [-1.0, 0.0]], [0.0, -1.0], names=["low", "high"])
    f = torch.tensor([[0.5, 0.5], [math.nan, 0.0], [4.0, 1.0]])
    for mode in ("nan", "nearest"):
        layer = CAffine(empty, on_infeasible=mode)
        torch.testing.assert_close(layer(f), layer.project(f).value, rtol=0, atol=0, equal_nan=True)
    layer = CAffine(empty)
    for call in (layer, layer.project):
        with pytest.raises(InfeasibleError, match=r"2 of 2 samples:\n  samples \(0,\), \(1,\): (low|high)") as told:
            call(f[::2])
        assert told.value.samples == [(0,), (1,)]
        with pytest.raises(ConstraintError, match=r"f must be finite, got nan at f\[1, 0\]"):
            call(f)


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype:UserWarning")
@pytest.mark.parametrize("kind", ["sparse", "nested", "meta"])
def test_an_f_that_is_not_made_of_plain_numbers_is_refused(kind: str):
    f = {
        "sparse": lambda: torch.zeros(3, 2).to_sparse(),
        "nested": lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(2)]),
        "meta": lambda: torch.zeros(3, 2, device="meta"),
    }[kind]()
    for call in (lambda: CAffine(BOX)(f), lambda: project(f, BOX.to(torch.float32)), lambda: CAffine(prepare(BOX))(f)):
        with pytest.raises(ConstraintError, match=kind):
            call()
