"""Soft rows outside of Python: in C, ONNX Runtime and graphs, those without a weight and those with one."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from caffnet import AffineSet, CAffine, CAffNet, ConstraintError, FeedForward, Status
from caffnet._solve.tracing import plain_operations
from caffnet.control import BarrierConstraint, DoubleIntegrator, HighOrder, InsideBox
from caffnet.deploy import onnx_library, to_c, to_onnx

LIMITS = AffineSet.box(-1.0, 1.0, dim=2)
WISH = AffineSet.inequality([[1.0, 1.0]], [-5.0])


def braking() -> tuple[CAffNet, torch.Tensor]:
    """A policy in front of a wall, and states in many of which no input is safe."""
    mass, wall = DoubleIntegrator(1), InsideBox([-math.inf, -math.inf], [1.0, math.inf])
    safe = BarrierConstraint(mass, HighOrder(wall, mass), inputs=AffineSet.box(-1.0, 1.0, dim=1))
    torch.manual_seed(0)
    x = torch.randn(40, 2, dtype=torch.float64) * torch.tensor([1.0, 3.0])
    return CAffNet(FeedForward(2, 1).double(), safe, on_infeasible="nearest").eval(), x


def weighing(x: torch.Tensor) -> AffineSet:
    """Rows, and what it costs to break them, that depend on the input; the last row is hard."""
    first = torch.cat([1 + x[..., :1] ** 2, x[..., 1:]], -1)
    second = torch.cat([x[..., :1], 3 + x[..., 1:] * 40], -1)
    wishes = AffineSet.inequality(torch.stack([first, second], -2), torch.stack([x[..., 0] + 0.5, x[..., 1] + 1], -1))
    return wishes.soft(1 + x**2) & AffineSet.inequality([[1.0, 1.0]], [3.0]).to(x)


def answers_of_c(model: CAffNet | CAffine, folder: Path, inputs: torch.Tensor | None = None) -> str:
    """What the test program of the export prints, built with every warning and under sanitizers."""
    to_c(model, folder, inputs=inputs)
    files = [str(folder / file) for file in ("test_policy.c", "policy.c", "policy_data.c")]
    flags = ["-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-ffp-contract=off", "-O1"]
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    program = folder / "test"
    build = ["gcc", *flags, *checks, f"-I{folder}", f"-I{folder}/kernel", *files, "-o", str(program), "-lm"]
    subprocess.run(build, check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
def test_a_program_in_c_lets_soft_rows_give_way(tmp_path: Path):
    model, x = braking()
    status = model.project(x).status
    assert (status == Status.RELAXED).sum() > 5 and (status != Status.RELAXED).sum() > 5
    assert "40 passed, 0 failed" in answers_of_c(model, tmp_path / "wall", x)
    assert " 0 failed" in answers_of_c(CAffine(LIMITS & WISH.soft()), tmp_path / "fixed")
    assert 'POLICY_SOFT "s."' in (tmp_path / "wall" / "policy_data.h").read_text()


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
def test_a_program_in_c_weighs_soft_rows(tmp_path: Path):
    """Fixed weights beside rows that give way without one, a metric, weights as functions, w with a limit."""
    both = LIMITS & WISH.soft(2.0) & AffineSet.inequality([[0.0, 1.0]], [-3.0]).soft()
    assert "64 passed, 0 failed" in answers_of_c(CAffine(both), tmp_path / "both")
    measured = (LIMITS & WISH.soft(2.0)).to(torch.float64).with_metric(torch.tensor([[2.0, 0.5], [0.5, 1.0]]).double())
    assert "64 passed, 0 failed" in answers_of_c(CAffine(measured, strict=True), tmp_path / "measured")
    torch.manual_seed(0)
    x = torch.randn(40, 2, dtype=torch.float64)
    model = CAffNet(FeedForward(2, 2).double(), weighing, null=FeedForward(2, 2).double(), null_limit=0.5).eval()
    status = model.project(x).status
    assert (status == Status.RELAXED).sum() > 5 and (status != Status.RELAXED).sum() > 0
    assert "40 passed, 0 failed" in answers_of_c(model, tmp_path / "weighing", x)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_onnx_runtime_lets_soft_rows_give_way(tmp_path: Path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, x = braking()
    to_onnx(model, tmp_path / "wall.onnx", inputs=x)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(onnx_library()))
    session = onnxruntime.InferenceSession(str(tmp_path / "wall.onnx"), options)
    value, status, _ = session.run(None, {"x": x.numpy()})
    answer = model.project(x)
    assert status.tolist() == answer.status.tolist() and Status.RELAXED in status
    np.testing.assert_allclose(value, answer.value.detach().numpy(), atol=1e-12)


def test_what_a_target_cannot_hold_is_refused_with_the_way_out():
    yielding = CAffine(LIMITS & WISH.soft(), on_infeasible="nan")
    with plain_operations(), pytest.raises(ConstraintError, match="soft without a weight cannot be exported as plain"):
        torch.export.export(yielding, (torch.zeros(3, 2),))


def test_onnx_runtime_holds_weights(tmp_path: Path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    layer, f = CAffine(LIMITS & WISH.soft(2.0)), torch.randn(5, 2)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(onnx_library()))
    session = onnxruntime.InferenceSession(str(to_onnx(layer, tmp_path / "priced.onnx")), options)
    value, status, _ = session.run(None, {"f": f.numpy()})
    answer = layer.project(f)
    assert status.tolist() == answer.status.tolist()
    np.testing.assert_allclose(value, answer.value.numpy(), atol=1e-6)


def test_a_plain_graph_holds_weights():
    layer = CAffine(LIMITS & WISH.soft(2.0), on_infeasible="nan")
    f = torch.randn(5, 2)
    with plain_operations():
        graph = torch.export.export(layer, (f,)).module()
    torch.testing.assert_close(graph(f), layer(f))
