"""`to_onnx`: ONNX Runtime gives the answers of torch, by the operator of the library and by plain operators."""

from __future__ import annotations

import functools
import logging
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from caffnet import AffineSet, BudgetError, CAffine, CAffNet, ConstraintError, FeedForward, Status, Transformer
from caffnet.control import (
    BarrierConstraint,
    DoubleIntegrator,
    FunctionBarrier,
    HighOrder,
    InsideBox,
    Integrator,
    OutsideCircles,
    Stack,
    Unicycle,
    linear,
)
from caffnet.deploy import onnx as writer
from caffnet.deploy import onnx_library, to_onnx

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
DOUBLE = torch.float64

wedge = AffineSet.inequality([[1.0, 1.0], [1.0, -2.0]], [1.0, 1.0]) & AffineSet.box(-1.0, 1.0, dim=2)
circles = BarrierConstraint(
    Unicycle(), OutsideCircles([[2.0, 0.0]], [1.0]), linear(1.0), AffineSet.box(-1.0, 1.0, dim=2)
)


def moving(x: Tensor) -> AffineSet:
    """Rows and bounds that depend on the input, with an equality; empty where x_1 is large."""
    rows = torch.stack([torch.stack([x[..., 0].sin() + 2, x[..., 1], x[..., 0]], -1)], -2)
    equal = AffineSet.equality(torch.ones(1, 3).to(x), x[..., :1])
    return AffineSet.inequality(rows, 1 + x[..., :1] ** 2) & equal & AffineSet.box(-1.0, 1.0, dim=3).to(x)


def mixed(n: int, m: int) -> AffineSet:
    stream = torch.Generator().manual_seed(n)
    A = torch.randn(m, n, dtype=DOUBLE, generator=stream)
    return AffineSet(A, -torch.ones(m, dtype=DOUBLE), 1 + torch.rand(m, dtype=DOUBLE, generator=stream))


def networks(n_in: int, n_out: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [FeedForward(n_in, n_out, 16, 1) for _ in range(2)]


def case(name: str, **options) -> CAffNet | CAffine:
    if name == "fixed":
        f, w = networks(2, 2)
        return CAffNet(f, wedge, w, null_start="random", **options)
    if name == "moving":
        f, w = networks(2, 3)
        return CAffNet(f, moving, w, null_start="random", **options)
    if name == "circles":
        return CAffNet(networks(3, 2)[0].double(), circles, **options)
    if name == "large":
        return CAffine(mixed(30, 105), **options)
    return CAffine(wedge.to(DOUBLE), **options)


def run(path: Path, *inputs: Tensor) -> list[Tensor]:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(onnx_library()))
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options)
    assert [output.name for output in session.get_outputs()] == ["value", "status", "violation"]
    names = [given.name for given in session.get_inputs()]
    feeds = {name: t.detach().numpy() for name, t in zip(names, inputs, strict=True)}
    return [torch.from_numpy(np.asarray(t)) for t in session.run(None, feeds)]


def agree(path: Path, model: CAffNet | CAffine, *inputs: Tensor) -> Tensor:
    """Compare with torch; the status of each sample."""
    with torch.no_grad():
        answer = model.eval().project(inputs[0]) if isinstance(model, CAffNet) else model.project(*inputs)
    value, status, violation = run(path, *inputs)
    rounding = {"rtol": 1e-5, "atol": 1e-5} if value.dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    assert status.tolist() == answer.status.tolist()
    torch.testing.assert_close(value, answer.value, equal_nan=True, **rounding)
    torch.testing.assert_close(violation, answer.violation, equal_nan=True, **rounding)
    return status


@pytest.mark.parametrize("operators", ["caffnet", "plain"])
@pytest.mark.parametrize("name", ["fixed", "moving", "circles", "layer", "large"])
def test_any_batch_whatever_the_example(name: str, operators: str, tmp_path: Path):
    if name == "large" and operators == "plain":
        pytest.skip("105 rows are too many to list")
    model = case(name, on_infeasible="nan")
    layer = isinstance(model, CAffine)
    size = model.set_at().n if layer else model.backbone[0].in_features
    dtype = torch.float32 if name in ("fixed", "moving") else DOUBLE
    path = to_onnx(model, tmp_path / "net.onnx", operators=operators, inputs=torch.randn(1, size).to(dtype))
    domains = {node.domain for node in onnx.load(path).graph.node}
    assert domains == ({"", "caffnet"} if operators == "caffnet" else {""})
    seen = set()
    for batch in (1, 2, 50):
        seen |= set(agree(path, model, 2 * torch.randn(batch, size).to(dtype)).tolist())
    assert Status.PROJECTED in seen


@pytest.mark.parametrize("options", [{"search": "lite"}, {"search": "paper"}, {"strict": True}, {"norm": 1}], ids=str)
def test_every_option(options: dict, tmp_path: Path):
    model = case("moving", on_infeasible="nearest", **options)
    agree(to_onnx(model, tmp_path / "net.onnx"), model, 2 * torch.randn(40, 2))


def test_the_limit_of_w(tmp_path: Path):
    model = case("fixed", null_limit=0.5)
    agree(to_onnx(model, tmp_path / "net.onnx"), model, 2 * torch.randn(40, 2))


@pytest.mark.parametrize("metric", [[2.0, 0.5], [[2.0, 0.5], [0.5, 1.0]]], ids=["diagonal", "matrix"])
@pytest.mark.parametrize("operators", ["caffnet", "plain"])
def test_a_metric(operators: str, metric: list, tmp_path: Path):
    set = AffineSet.inequality([[1.0, 1.0], [1.0, -2.0]], [0.5, 1.0]).with_metric(metric)
    layer = CAffine(set, search="full", on_infeasible="nan")
    if operators == "plain" and isinstance(metric[0], list):
        with pytest.raises(ConstraintError, match="cannot factorise a matrix"):
            to_onnx(layer, tmp_path / "net.onnx", operators=operators)
        return
    agree(to_onnx(layer, tmp_path / "net.onnx", operators=operators), layer, 3 * torch.randn(40, 2))


@pytest.mark.parametrize("on_infeasible", ["nan", "nearest", "raise"])
def test_empty_sets_and_nan_are_answered_as_torch_does(on_infeasible: str, tmp_path: Path):
    model = case("moving", on_infeasible=on_infeasible)
    path = to_onnx(model, tmp_path / "net.onnx")
    x = torch.tensor([[0.5, 0.5], [9.0, 0.0], [torch.nan, 0.0]])
    if on_infeasible != "raise":
        assert agree(path, model, x).tolist()[1:] == [Status.INFEASIBLE, Status.INVALID]
        return
    with pytest.raises(Exception, match="no point satisfies the constraints of 1 of 2 samples; sample 1 is the first"):
        run(path, x[:2])
    with pytest.raises(Exception, match="the data of sample 1 contain NaN"):
        run(path, x[[0, 2]])


def test_plain_operators_say_infeasible_and_invalid(tmp_path: Path):
    model = case("moving", on_infeasible="nan")
    path = to_onnx(model, tmp_path / "net.onnx", operators="plain")
    x = torch.tensor([[0.5, 0.5], [9.0, 0.0], [torch.nan, 0.0]])
    assert agree(path, model, x).tolist()[1:] == [Status.INFEASIBLE, Status.INVALID]


@pytest.mark.parametrize("search", ["full", "lite"])
def test_plain_operators_without_equalities_candidates_or_rows(search: str, tmp_path: Path):
    """Their graphs must not compute with empty tensors, on which ONNX Runtime fails."""
    model = CAffNet(
        networks(2, 2)[0],
        lambda x: AffineSet.inequality(x.unsqueeze(-2), x[..., :1]),
        search=search,
        on_infeasible="nan",
    )
    agree(to_onnx(model, tmp_path / "x.onnx", operators="plain"), model, 3 * torch.randn(7, 2))
    for free in (AffineSet.box(-torch.inf, torch.inf, dim=2), AffineSet(torch.zeros(0, 2))):
        layer = CAffine(free.to(torch.float32), search=search, on_infeasible="nan")
        path = to_onnx(layer, tmp_path / "free.onnx", operators="plain")
        f = torch.tensor([[1.0, -2.0], [torch.nan, 0.0]])
        for batch in (f, f[:1]):
            assert agree(path, layer, batch)[0] == Status.INSIDE


def test_a_layer_whose_rows_depend_on_the_input(tmp_path: Path):
    layer = CAffine(circles, on_infeasible="nearest")
    path = to_onnx(layer, tmp_path / "net.onnx", inputs=torch.randn(4, 3, dtype=DOUBLE))
    f, x = 2 * torch.randn(30, 2, dtype=DOUBLE), torch.randn(30, 3, dtype=DOUBLE)
    value, status, _ = run(path, f, x)
    answer = layer.project(f, x=x)
    torch.testing.assert_close(value, answer.value)
    assert status.tolist() == answer.status.tolist()


def test_barriers_whose_gradient_is_computed(tmp_path: Path):
    """HighOrder and a function, in a layer whose own constraint stays as it is."""
    robot = DoubleIntegrator(1)
    wall = HighOrder(InsideBox([-torch.inf, -torch.inf], [1.0, torch.inf]), robot)
    slow = FunctionBarrier(lambda x: 1.5 - x[1].square() * x[0].cos())
    rows = BarrierConstraint(robot, Stack(wall, slow), linear(2.0), AffineSet.box(-1.0, 1.0, dim=1))
    model = CAffNet(networks(2, 1)[0].double(), rows, on_infeasible="nearest")
    path = to_onnx(model, tmp_path / "net.onnx")
    assert model.layer.constraint is rows
    for batch in (1, 40):
        agree(path, model, 2 * torch.randn(batch, 2, dtype=DOUBLE))


def test_jumps_and_barriers_of_higher_order_of_a_function(tmp_path: Path):
    """Operations with arguments, and derivatives of derivatives, are those of torch."""
    robot = DoubleIntegrator(1)
    stairs = FunctionBarrier(lambda x: 1 - x[0] * x[0] - torch.div(x[1], 0.5, rounding_mode="floor") - x[1])
    for rows, size in (
        (BarrierConstraint(Integrator(2, 1), stairs), 2),
        (BarrierConstraint(robot, HighOrder(FunctionBarrier(lambda x: 1 - x[0].cos()), robot)), 1),
    ):
        model = CAffNet(networks(2, size)[0].double(), rows, on_infeasible="nearest")
        agree(to_onnx(model, tmp_path / "net.onnx"), model, 2 * torch.randn(40, 2, dtype=DOUBLE))


def test_an_empty_batch(tmp_path: Path):
    for name in ("fixed", "moving"):
        path = to_onnx(case(name), tmp_path / "net.onnx")
        value, status, violation = run(path, torch.zeros(0, 2))
        assert value.shape == (0, 2 if name == "fixed" else 3) and status.shape == violation.shape == (0,)


@pytest.mark.parametrize("operators", ["caffnet", "plain"])
def test_numbers_in_the_function_keep_their_digits(operators: str, tmp_path: Path):
    def rows(x: Tensor) -> AffineSet:
        low = torch.where(x > 0.1, x.clamp(0.1, 0.3), 0.2) - torch.full_like(x, 0.7)
        return AffineSet.box(low, (0.4 + 0.1 * x.abs()) / 0.3 + x.new_full((2,), 0.1)) & AffineSet.inequality(
            torch.ones(1, 2).to(x), (0.3 - x[..., :1]) ** 2
        )

    model = CAffNet(networks(2, 2)[0].double(), rows, on_infeasible="nan", search="full")
    agree(to_onnx(model, tmp_path / "net.onnx", operators=operators), model, 2 * torch.randn(40, 2, dtype=DOUBLE))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_infinite_numbers_stay_infinite(dtype: torch.dtype, tmp_path: Path):
    """A row that can never hold, by limits of the function or of the violation, is not one with a large number."""
    rows = torch.eye(2, dtype=dtype)
    layer = CAffine(
        lambda x: AffineSet.inequality(rows, x.clamp_max(0.5)) & AffineSet.inequality(rows, x.clamp(min=-0.5)),
        on_infeasible="nearest",
    )
    x = torch.tensor([[0.3, 2.0], [1.0, -torch.inf], [torch.inf, 1.0], [torch.nan, 0.1]], dtype=dtype)
    f = torch.full_like(x, 7.0)
    expected = layer.project(f, x=x)
    found = run(to_onnx(layer, tmp_path / "net.onnx", inputs=torch.rand(4, 2, dtype=dtype)), f, x)
    assert {Status.PROJECTED, Status.INFEASIBLE, Status.INVALID} == set(expected.status.tolist())
    assert expected.violation.isinf().any()
    for a, b in zip(found, (expected.value, expected.status, expected.violation), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_numbers_of_buffers_keep_their_digits(tmp_path: Path):
    """item() of a buffer in the function of the rows: a number in Python, a tensor in the graph."""

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("limit", torch.tensor(0.1, dtype=DOUBLE))

        def forward(self, x: Tensor) -> AffineSet:
            limit = self.limit.item()
            return AffineSet.box(torch.full_like(x, -limit), x.abs() + limit)

    model = CAffNet(networks(2, 2)[0].double(), Rows(), on_infeasible="nan")
    agree(to_onnx(model, tmp_path / "net.onnx"), model, 2 * torch.randn(40, 2, dtype=DOUBLE))


def test_an_operator_whose_numbers_lose_digits_is_refused_with_a_way_out(tmp_path: Path):
    torch.manual_seed(0)
    model = CAffNet(nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2)), AffineSet.box(-1.0, 1.0, dim=2))
    to_onnx(model, tmp_path / "net.onnx", inputs=torch.randn(16, 3))
    with pytest.raises(ConstraintError, match=r"differ from torch.*the epsilon of a normalisation: .*to_aot"):
        to_onnx(model.double(), tmp_path / "net.onnx", inputs=0.01 * torch.randn(16, 3, dtype=DOUBLE))


def test_a_model_that_raises_is_compared_where_it_has_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    empty_at_some = CAffine(lambda x: AffineSet.box(x, 0.5 + torch.zeros_like(x)))  # for x > 0.5
    x = torch.randn(64, 2)
    to_onnx(empty_at_some, tmp_path / "net.onnx", inputs=x)
    break_the_operator(monkeypatch)
    with pytest.raises(ConstraintError, match="the value in ONNX Runtime"):
        to_onnx(empty_at_some, tmp_path / "net.onnx", inputs=x)
    with pytest.warns(UserWarning, match="not compared with torch: none of the inputs has an answer"):
        to_onnx(empty_at_some, tmp_path / "net.onnx", inputs=torch.full((4, 2), 2.0))


def test_what_onnx_runtime_lacks_is_named_and_the_file_before_stays(tmp_path: Path):
    layer = CAffine(lambda x: AffineSet.box(None, nn.functional.softplus(x)))
    path = to_onnx(layer, tmp_path / "net.onnx", inputs=torch.randn(4, 2))
    before = path.read_bytes()
    with pytest.raises(ConstraintError, match=r"does not run the export: .*Softplus.*model\.float\(\)"):
        to_onnx(layer, path, inputs=torch.randn(4, 2, dtype=DOUBLE))
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == ["net.onnx"]


@pytest.mark.parametrize(
    ("rows", "inputs", "message"),
    [
        (lambda x: AffineSet.box(None, x if x.sum() > 0 else -x), torch.randn(4, 2), "cannot trace the model: .*where"),
        (
            lambda x: AffineSet.box(None, torch.linalg.inv(x)[..., 0]),
            torch.randn(4, 2, 2),
            "cannot translate the model: .*inv",
        ),
        (lambda x: AffineSet.box(None, x), (torch.randn(4, 2), torch.randn(4)), "got tuple. A constraint of several"),
    ],
)
def test_what_cannot_be_exported_is_named(rows, inputs, message: str, tmp_path: Path):
    with pytest.raises(ConstraintError, match=message):
        to_onnx(CAffine(rows), tmp_path / "net.onnx", inputs=inputs)
    assert not list(tmp_path.iterdir())


def test_inputs_that_the_network_cannot_read_are_refused(tmp_path: Path):
    with pytest.raises(ConstraintError, match=r"cannot read inputs \(4, 3\) of torch.float32: mat1 and mat2"):
        to_onnx(case("fixed"), tmp_path / "net.onnx", inputs=torch.randn(4, 3))
    with pytest.raises(ConstraintError, match="is a folder: to_onnx writes one file"):
        to_onnx(wedge, tmp_path)
    with pytest.raises(ConstraintError, match=r"There is no folder .*missing: make it, or give to_onnx a file"):
        to_onnx(wedge, tmp_path / "missing" / "net.onnx")


def test_a_graph_that_would_differ_from_torch_is_refused(tmp_path: Path):
    x, stream = torch.randn(4, 2), random.Random(0)
    with pytest.raises(ConstraintError, match=r"draws random numbers \(aten\.rand\.default\)"):
        to_onnx(CAffine(lambda x: AffineSet.box(None, x + torch.rand(2))), tmp_path / "net.onnx", inputs=x)
    with pytest.raises(ConstraintError, match=r"export would differ from torch at . of 4 inputs"):
        to_onnx(CAffine(lambda x: AffineSet.box(None, x + stream.random())), tmp_path / "net.onnx", inputs=x)
    noisy = CAffNet(nn.Sequential(nn.Linear(2, 2), Noise()), wedge)
    with pytest.raises(ConstraintError, match=r"number . of value, status and violation is"):
        to_onnx(noisy, tmp_path / "net.onnx")


def test_an_operation_beside_derivatives_that_is_not_written_is_named(tmp_path: Path):
    """The message does not advise what was called."""
    rows = BarrierConstraint(Integrator(2, 1), FunctionBarrier(lambda x: 1 - x.sort().values[1]))
    with pytest.raises(ConstraintError, match=r"holds the operation aten\.sort.*, or define evaluate\(x\)") as caught:
        to_onnx(CAffine(rows), tmp_path / "net.onnx", inputs=torch.randn(4, 2, dtype=DOUBLE))
    assert "to_onnx" not in str(caught.value)


class Noise(nn.Module):
    """Adds numbers that torch does not draw."""

    def forward(self, x: Tensor) -> Tensor:
        return x + random.random()


def test_another_backbone(tmp_path: Path):
    torch.manual_seed(0)
    model = CAffNet(Transformer(3, 2), wedge).eval()
    with pytest.raises(ConstraintError, match=r"The shape of the input is not known: pass inputs="):
        to_onnx(model, tmp_path / "net.onnx")
    agree(to_onnx(model, tmp_path / "net.onnx", inputs=torch.randn(2, 3)), model, torch.randn(9, 3))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ConstraintError, "on_infeasible='raise': plain operations cannot raise"),
        ({"on_infeasible": "nearest"}, ConstraintError, "plain operations cannot find the point of least violation"),
        ({"on_infeasible": "nan", "strict": True}, ConstraintError, "strict=True decides in exact arithmetic"),
        ({"on_infeasible": "nan", "search": "active"}, ConstraintError, "cannot be exported as plain operations"),
        ({"on_infeasible": "nan", "budget": 10_000}, BudgetError, "Export with the operator of the library"),
    ],
    ids=str,
)
def test_what_plain_operators_cannot_keep_is_refused(options: dict, error: type, message: str, tmp_path: Path):
    with pytest.raises(error, match=message):
        to_onnx(case("fixed", **options), tmp_path / "net.onnx", operators="plain")
    assert not (tmp_path / "net.onnx").exists()


def test_an_export_with_plain_operators_is_quiet(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The exporter evaluates what is known of a graph, and reports what it cannot."""
    to_onnx(CAffNet(FeedForward(2, 2), wedge, on_infeasible="nan"), tmp_path / "net.onnx", operators="plain")
    assert not [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def test_unknown_operators_are_refused(tmp_path: Path):
    with pytest.raises(ConstraintError, match="operators must be one of caffnet, plain, got 'loop'"):
        to_onnx(wedge, tmp_path / "net.onnx", operators="loop")
    with pytest.raises(ConstraintError, match=r"must be a path, got AffineSet: write to_onnx\(model, path\)"):
        to_onnx("net.onnx", wedge)  # pyright: ignore[reportArgumentType]


def test_a_graph_without_the_library_says_what_is_missing(tmp_path: Path):
    path = to_onnx(case("fixed"), tmp_path / "net.onnx")
    with pytest.raises(Exception, match="caffnet"):
        onnxruntime.InferenceSession(str(path))


def break_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the operator is asked for 2 f."""
    right = writer.translations

    def doubled(kernel: bool):
        from onnxscript import opset18

        solve = right(kernel)[torch.ops.caffnet.solve.default]

        @functools.wraps(solve)
        def wrong(f, *rest, **more):
            return solve(opset18.Add(f, f), *rest, **more)

        return {torch.ops.caffnet.solve.default: wrong}

    monkeypatch.setattr(writer, "translations", doubled)


def test_a_file_that_answers_otherwise_than_torch_is_refused_and_removed(tmp_path, monkeypatch):
    break_the_operator(monkeypatch)
    layer = CAffine(AffineSet.box(-1.0, 1.0, dim=2).to(torch.float64))
    with pytest.raises(ConstraintError, match="the value in ONNX Runtime"):
        to_onnx(layer, tmp_path / "wrong.onnx")
    assert not list(tmp_path.iterdir())
