"""Soft rows outside of Python: those without a weight in C, ONNX Runtime and graphs; those with one in graphs."""

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


def test_a_program_in_c_lets_soft_rows_give_way(tmp_path: Path):
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    model, x = braking()
    status = model.project(x).status
    assert (status == Status.RELAXED).sum() > 5 and (status != Status.RELAXED).sum() > 5
    to_c(model, tmp_path / "wall", inputs=x)
    to_c(CAffine(LIMITS & WISH.soft()), tmp_path / "fixed")
    for name in ("wall", "fixed"):
        folder = tmp_path / name
        files = [str(folder / file) for file in ("test_policy.c", "policy.c", "policy_data.c", "kernel/kernel.c")]
        flags = ["-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-ffp-contract=off", "-O1"]
        program = folder / "test"
        subprocess.run(
            ["gcc", *flags, f"-I{folder}", f"-I{folder}/kernel", *files, "-o", str(program), "-lm"], check=True
        )
        done = subprocess.run([program], capture_output=True, text=True)
        assert done.returncode == 0 and " 0 failed" in done.stdout, done.stdout
    assert 'POLICY_SOFT "s."' in (tmp_path / "wall" / "policy_data.h").read_text()


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


def test_what_a_target_cannot_hold_is_refused_with_the_way_out(tmp_path: Path):
    priced, yielding = CAffine(LIMITS & WISH.soft(2.0)), CAffine(LIMITS & WISH.soft(), on_infeasible="nan")
    with pytest.raises(ConstraintError, match=r"to_c does not write the weights of soft rows: use to_onnx"):
        to_c(priced, tmp_path)
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
