"""A good citizen of PyTorch: compile, export, ONNX, torch.func, copies, files, devices and number types."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from caffnet import (
    AffineSet,
    CAffine,
    CAffNet,
    ConstraintError,
    FeedForward,
    InfeasibleError,
    Transformer,
    prepare,
    project,
)
from caffnet._solve.tracing import plain_operations

FIXED = AffineSet.inequality([[1.0, 1.0], [1.0, -2.0]], [1.0, 1.0]) & AffineSet.box(-1.0, 1.0, dim=2)


def moving(x: torch.Tensor) -> AffineSet:
    """A set whose rows and bounds both depend on the input, with an equality."""
    rows = torch.stack([torch.stack([x[..., 0].sin() + 2, x[..., 1], x[..., 0]], -1)], -2)
    equal = AffineSet.equality(torch.ones(1, 3), x[..., :1])
    return AffineSet.inequality(rows, 1 + x[..., :1] ** 2) & equal & AffineSet.box(-3.0, 3.0, dim=3)


def model(kind: str, **options) -> CAffNet:
    torch.manual_seed(0)
    if kind == "fixed":
        return CAffNet(FeedForward(2, 2, 16, 1), FIXED, FeedForward(2, 2, 16, 1), null_start="random", **options)
    return CAffNet(FeedForward(2, 3, 16, 1), moving, FeedForward(2, 3, 16, 1), null_start="random", **options)


KINDS = ["fixed", "moving"]


@pytest.mark.parametrize("options", [{}, {"search": "active"}, {"search": "lite"}, {"gradient": "tangent"}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_compile_in_one_graph(kind: str, options: dict):
    torch._dynamo.reset()
    plain, x = model(kind, **options), 2 * torch.randn(7, 2)
    compiled = torch.compile(plain, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), plain(x))
    grads = [torch.autograd.grad(call(x).square().sum(), list(plain.parameters())) for call in (compiled, plain)]
    for first, second in zip(*grads, strict=True):
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize("options", [{}, {"search": "lite"}, {"gradient": "tangent"}], ids=str)
def test_compile_with_sizes_that_are_symbols(options: dict):
    """The search and the tolerances depend on the number of outputs: a graph asks which one it is."""
    torch._dynamo.reset()
    layer = CAffine(lambda x: AffineSet.inequality(torch.ones(x.shape[-1], x.shape[-1]).tril(), x), **options)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (2, 3, 4):
        f, x = torch.randn(2, 5, n)
        f, x = f.requires_grad_(), x.requires_grad_()
        pairs = [(y := call(f, x=x), *torch.autograd.grad(y.square().sum(), (f, x))) for call in (layer, compiled)]
        for plain, graph in zip(*pairs, strict=True):
            torch.testing.assert_close(graph, plain, rtol=0, atol=0)


def test_a_compiled_layer_still_raises():
    torch._dynamo.reset()
    layer = CAffine(lambda x: AffineSet.inequality(torch.tensor([[1.0], [-1.0]]), x))
    compiled = torch.compile(lambda f, x: layer(f, x=x), fullgraph=True, backend="aot_eager")
    f = torch.zeros(2, 1)
    assert torch.equal(compiled(f, torch.ones(2, 2)), f)
    with pytest.raises(InfeasibleError, match="1 of 2 samples"):
        compiled(f, torch.tensor([[1.0, 1.0], [0.0, -1.0]]))


@pytest.mark.parametrize("kind", KINDS)
def test_export_and_onnx_with_a_dynamic_batch(kind: str, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    net = model(kind, on_infeasible="nan").eval()
    x = 2 * torch.randn(5, 2)
    batch = ({0: torch.export.Dim.DYNAMIC},)
    exported = torch.export.export(net, (x,), dynamic_shapes=batch)
    path = tmp_path / "net.onnx"
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        torch.onnx.export(net, (x,), str(path), dynamo=True, dynamic_shapes=batch, verbose=False)
    session = onnxruntime.InferenceSession(str(path))
    for size in (1, 5, 64):
        inputs = 2 * torch.randn(size, 2)
        expected = net(inputs).detach()
        assert size == 1 or not torch.equal(expected, net.backbone(inputs))  # the layer has work to do
        torch.testing.assert_close(exported.module()(inputs), expected, rtol=1e-5, atol=1e-6)
        (output,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
        np.testing.assert_allclose(output, expected.numpy(), rtol=1e-5, atol=1e-6)


class Strip(nn.Module):
    """Points of a strip that is empty where ``b_1 + b_2 < 0``."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, f, b):
        answer = project(f, AffineSet.inequality(torch.tensor([[1.0], [-1.0]]), b), **self.options)
        return answer.value, answer.status


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("on_infeasible", ["nan", "nearest", "raise"])
def test_an_exported_graph_answers_an_empty_set_as_the_layer_does(on_infeasible: str, plain: bool):
    """By the operator; plain operations hold "nan" only, and refuse the rest."""
    batch = {0: torch.export.Dim.DYNAMIC}
    strip = Strip(on_infeasible=on_infeasible)
    f, b = torch.tensor([[5.0], [0.0], [torch.nan]]), torch.tensor([[1.0, 1.0], [0.0, -1.0], [1.0, 1.0]])

    def export():
        return torch.export.export(strip, (torch.zeros(3, 1), torch.ones(3, 2)), dynamic_shapes=(batch, batch)).module()

    if plain and on_infeasible != "nan":
        with plain_operations(), pytest.raises(ConstraintError, match=f"on_infeasible='{on_infeasible}': plain oper"):
            export()
        return
    with plain_operations() if plain else contextlib.nullcontext():
        exported = export()
    if on_infeasible == "raise":
        with pytest.raises(InfeasibleError, match="1 of 2 samples"):
            exported(f[:2], b[:2])
        return
    value, status = exported(f, b)
    assert status.tolist() == [1, 3, 4]
    torch.testing.assert_close(value, strip(f, b)[0], equal_nan=True)


@pytest.mark.parametrize(
    "options",
    [{"search": s} for s in ("full", "lite", "active", "paper")]
    + [{"strict": True}, {"norm": 1}, {"null_limit": 0.5}, {"on_infeasible": "nearest"}],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strict", [False, True])
def test_every_search_and_mode_is_exported(kind: str, options: dict, strict: bool):
    """As one operation, with any batch; the answers have the same bits."""
    net, x = model(kind, **options).eval(), 2 * torch.randn(5, 2)
    batch = ({0: torch.export.Dim.DYNAMIC},)
    with torch.no_grad():
        exported = torch.export.export(net, (x,), dynamic_shapes=batch, strict=strict).module()
        for size in (1, 5, 64):
            inputs = 2 * torch.randn(size, 2)
            torch.testing.assert_close(exported(inputs), net(inputs))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"search": "active"}, "search='active' cannot be exported as plain operations"),
        ({"strict": True}, "strict=True decides in exact arithmetic, which plain operations cannot hold"),
        ({"null_limit": 1.0}, "null_limit needs a second search, which plain operations do not hold"),
        ({"budget": 1000}, "Export with the operator of the library"),
    ],
    ids=str,
)
def test_what_plain_operations_cannot_hold_is_refused(options: dict, message: str):
    net = model("moving", on_infeasible="nan", **options)
    with plain_operations(), pytest.raises(ConstraintError, match=message):
        torch.export.export(net, (torch.randn(3, 2),))


@pytest.mark.parametrize("search", ["full", "lite", "active"])
@pytest.mark.parametrize("kind", KINDS)
def test_vmap_and_jacrev(kind: str, search: str):
    net, x = model(kind, search=search), 2 * torch.randn(6, 2)
    torch.testing.assert_close(torch.func.vmap(net)(x), net(x))
    jacobians = torch.func.vmap(torch.func.jacrev(net))(x)
    for i in range(6):
        one = torch.autograd.functional.jacobian(net, x[i])
        torch.testing.assert_close(jacobians[i], one)


def test_vmap_over_the_constraints_alone():
    f, bounds = torch.tensor([2.0, -3.0]), torch.tensor([[1.0, 1.0], [0.5, 2.0], [4.0, 4.0]])
    call = torch.func.vmap(lambda u: project(f, AffineSet.box(-u, u)).value)
    assert call(bounds).tolist() == [[1.0, -1.0], [0.5, -2.0], [2.0, -3.0]]


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_files(kind: str):
    net, x = model(kind), torch.randn(4, 2)
    expected = net(x)
    assert torch.equal(copy.deepcopy(net)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), expected)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    fresh = model(kind)
    for parameter in fresh.parameters():
        nn.init.zeros_(parameter)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(fresh(x), expected)


def test_the_rows_of_a_fixed_set_are_saved_and_loaded(tmp_path):
    """A model file brings its constraints along; loading another set's file prepares that set."""
    safetensors = pytest.importorskip("safetensors.torch")
    first, second = (CAffine(AffineSet.box(-u, u, dim=2)) for u in (1.0, 2.0))
    path = tmp_path / "layer.safetensors"
    safetensors.save_file(second.state_dict(), path)
    with pytest.warns(
        UserWarning, match=r"another constraint than the layer was built with, in row 0, row 1; the loaded"
    ):
        first.load_state_dict(safetensors.load_file(path))
    assert first(torch.tensor([5.0, -5.0])).tolist() == [2.0, -2.0]
    first.double().load_state_dict(safetensors.load_file(path))  # the same numbers: nothing to say
    with pytest.raises(RuntimeError, match="size mismatch"):
        CAffine(AffineSet.box(-1.0, 1.0, dim=3)).load_state_dict(safetensors.load_file(path))


def test_the_rows_of_a_layer_can_be_kept_when_loading():
    """As the warning says: only the rows that differ are named, and the state without them leaves the layer's."""
    box = AffineSet.box(0.0, 9.0, dim=2)
    first, second = (
        nn.Sequential(nn.Linear(2, 2), CAffine(AffineSet.inequality([[1.0, 1.0]], [u], names=["budget"]) & box))
        for u in (1.0, 2.0)
    )
    with pytest.warns(UserWarning, match=r"in budget; .* leave 1\.A, 1\.lower, 1\.upper out"):
        copy.deepcopy(first).load_state_dict(second.state_dict())
    kept = {name: t for name, t in second.state_dict().items() if name not in ("1.A", "1.lower", "1.upper")}
    first.load_state_dict(kept, strict=False)
    assert torch.equal(first[0].weight, second[0].weight)
    assert first[1](torch.tensor([5.0, 5.0])).tolist() == [0.5, 0.5]


def test_of_many_rows_that_differ_the_first_are_named():
    box = CAffine(AffineSet.box(0.0, 1.0, dim=9))
    with pytest.warns(UserWarning, match=r"in row 0, row 1, row 2, row 3, row 4 and 4 more rows; the loaded"):
        copy.deepcopy(box).load_state_dict(CAffine(AffineSet.box(0.0, 2.0, dim=9)).state_dict())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_trace_is_refused():
    with pytest.raises(ConstraintError, match=r"use torch.export, or torch.onnx.export with dynamo=True"):
        torch.jit.trace(model("fixed"), torch.randn(4, 2), check_trace=False)


def test_a_truncated_or_spoiled_model_file_is_refused(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    layer = CAffine(AffineSet.box(-1.0, 1.0, dim=2))
    path = tmp_path / "layer.safetensors"
    safetensors.save_file(layer.state_dict(), path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(Exception, match=r"(?i)incomplete|buffer|metadata"):
        safetensors.load_file(path)
    spoiled = {name: t.clone() for name, t in layer.state_dict().items()}
    spoiled["upper"][0] = float("nan")
    with pytest.raises(ConstraintError, match="got NaN in A, lower, upper, metric or weight"):
        layer.load_state_dict(spoiled)


def test_number_types_follow_the_module_and_the_factorisation_is_renewed():
    """A set prepared in float32 and moved to float64 must be accurate in float64."""
    third = AffineSet.inequality([[1 / 3, 2 / 7]], [0.1])
    layer, f = CAffine(third), torch.tensor([3.0, 1.0], dtype=torch.float64)
    assert layer.A.dtype == torch.float32
    with pytest.raises(TypeError, match=r"constraint is torch.float32, f is torch.float64"):
        layer(f)
    moved = layer.double()
    exact = project(f, AffineSet.inequality(moved.A, moved.upper)).value
    torch.testing.assert_close(moved(f), exact, rtol=1e-15, atol=0)


def test_a_number_type_that_was_asked_for_is_kept():
    f = torch.full((1, 2), 3.0, dtype=torch.float64)
    box = AffineSet.box(-1.0, 1.0, dim=2)
    assert CAffine(box.to(torch.float64))(f).tolist() == [[1.0, 1.0]]
    assert project(f, box.to("cpu")).value.dtype == torch.float64  # a move leaves an assumed type open
    assert Transformer(2, 2).double().twin()(f).dtype == torch.float64


def test_the_layer_ends_a_sequential():
    net = nn.Sequential(nn.Linear(3, 2), CAffine(AffineSet.box(0.0, 1.0, dim=2)))
    y = net(torch.randn(9, 3))
    assert ((y >= 0) & (y <= 1)).all()
    assert "search='full'" in repr(net)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_no_grad_and_inference_mode(context):
    net, x = model("moving"), torch.randn(4, 2)
    with context():
        inside = net(x)
    assert torch.equal(inside, net(x))


def test_a_transformer_reads_sequences():
    net = CAffNet(Transformer(3, 2, tokens=True, positions=8), AffineSet.box(0.0, 1.0, dim=2))
    assert net(torch.randn(4, 6, 3)).shape == (4, 2)
    with pytest.raises(ValueError, match="9 tokens, positions were made for 8"):
        net(torch.randn(4, 9, 3))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch.func compiles rules of its own
def test_forward_mode():
    """jvp, jacfwd and the hessian agree with reverse mode, inside and outside the set."""
    set = AffineSet.inequality(torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64), [1.0, 1.0])

    def call(f):
        return project(f, set).value

    for point in ([-1.0, -1.0], [3.0, 2.0], [0.2, 3.0]):
        f = torch.tensor(point, dtype=torch.float64)
        torch.testing.assert_close(torch.func.jacfwd(call)(f), torch.func.jacrev(call)(f))

    def loss(A):
        return project(torch.tensor([3.0, 2.0]).double(), AffineSet.inequality(A, [1.0, 1.0])).value.square().sum()

    torch.testing.assert_close(torch.func.hessian(loss)(set.A), torch.autograd.functional.hessian(loss, set.A))


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_around_the_whole_model(kind: str):
    net, x = model(kind), torch.randn(5, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(x)
    assert y.dtype == torch.float32
    assert net.layer.set_at(x).contains(y).all()


def test_half_precision_layers_are_refused():
    with pytest.raises(TypeError, match=r"float32 or float64, not in torch.float16"):
        CAffine(AffineSet.box(0.0, 1.0, dim=2)).half()


def test_a_fixed_set_with_parameters_is_refused():
    upper = nn.Parameter(torch.ones(2))
    with pytest.raises(ConstraintError, match=r"its gradient would be lost: pass a function"):
        CAffine(AffineSet.box(torch.zeros(2), upper))
    layer = CAffine(lambda x: AffineSet.box(torch.zeros(2), upper))
    layer(torch.full((2,), 3.0), x=0).sum().backward()
    assert torch.equal(upper.grad, torch.ones(2))


def test_a_loaded_set_may_bind_on_other_sides():
    first, second = CAffine(AffineSet.box(0.0, None, dim=2)), CAffine(AffineSet.box(0.0, 1.0, dim=2))
    with pytest.warns(UserWarning, match="another constraint"):
        first.load_state_dict(second.state_dict())
    f, w = torch.tensor([3.0, 0.5]), torch.tensor([1.0, 0.1])
    assert torch.equal(first(f, w), second(f, w))


def test_a_prepared_set_keeps_its_search_in_a_layer_and_under_vmap():
    random = torch.Generator().manual_seed(4)
    A, f, w = (torch.randn(*s, generator=random) for s in ((6, 3), (40, 3), (40, 3)))
    ready = prepare(AffineSet.inequality(A, torch.ones(6)), "active")
    assert "search='active'" in repr(CAffine(ready))
    torch.testing.assert_close(
        torch.func.vmap(lambda f, w: project(f, ready, w).value)(3 * f, w), project(3 * f, ready, w).value
    )


def test_lite_is_exported_for_an_input_dependent_set():
    net, x = model("moving", search="lite", on_infeasible="nan").eval(), 2 * torch.randn(5, 2)
    with plain_operations():
        exported = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)).module()
    inputs = 2 * torch.randn(33, 2)
    torch.testing.assert_close(exported(inputs), net(inputs))


def test_jacrev_of_the_tangent_gradient_with_rows_per_sample():
    """The backward pass maps a prepared list of faces per sample: each row of the Jacobian is one plain gradient."""
    random = torch.Generator().manual_seed(6)
    A, f = torch.randn(4, 3, 2, generator=random), 3 * torch.randn(4, 2, generator=random)

    def call(f):
        set = AffineSet.inequality(A, torch.ones(4, 3))
        return project(f, set, search="full", gradient="tangent").value

    jacobian = torch.func.jacrev(call)(f)
    for i in range(4):
        for j in range(2):
            leaf = f.clone().requires_grad_()
            call(leaf)[i, j].backward()
            torch.testing.assert_close(jacobian[i, j], leaf.grad)


def test_w_may_have_the_batch_axes_of_the_sets():
    upper = torch.arange(1.0, 6.0).unsqueeze(-1).expand(5, 2)
    f, w = torch.tensor([9.0, 0.0]), torch.ones(5, 2)
    assert project(f, AffineSet.box(None, upper), w, search="full").value[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
