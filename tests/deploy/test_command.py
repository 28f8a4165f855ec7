"""`caffnet export`: what it takes and what it writes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from caffnet import AffineSet
from caffnet.deploy import onnx_library

typer = pytest.importorskip("typer")
pytest.importorskip("casadi")  # the experiments


def call(*arguments: str):
    from typer.testing import CliRunner

    from caffnet_lab.cli import app

    return CliRunner().invoke(app, ["export", *map(str, arguments)])


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """A short run of cbf, as the README has it."""
    from typer.testing import CliRunner

    from caffnet_lab.cli import app

    folder = tmp_path_factory.mktemp("runs")
    options = ["run", "cbf", "--protocol", "ours", "--method", "caffnet-ff", "--seed", "2", "--epochs", "2"]
    done = CliRunner().invoke(app, [*options, "--out", str(folder), "--set", "hidden=24"])
    assert done.exit_code == 0, done.output
    return folder


def test_a_run_as_c(run_folder: Path, tmp_path: Path):
    """A policy that was trained by a command runs as C, with the answers of torch up to 1e-12."""
    (record,) = (run_folder / "records").glob("*.json")
    done = call(record, "--out", tmp_path, "--name", "drive")
    assert done.exit_code == 0, done.output
    files = [tmp_path / name for name in ("test_drive.c", "drive.c", "drive_data.c")]
    command = ["cc", "-std=c11", "-O1", "-ffp-contract=off", f"-I{tmp_path}", f"-I{tmp_path}/kernel", *files]
    try:
        subprocess.run([*command, "-o", tmp_path / "test", "-lm"], check=True)
    except FileNotFoundError:
        pytest.skip("there is no C compiler")
    done = subprocess.run([tmp_path / "test"], capture_output=True, text=True)
    assert done.stdout.startswith("64 passed, 0 failed"), done.stdout
    assert float(done.stdout.split()[-1]) <= 1e-12


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_run_as_onnx(run_folder: Path, tmp_path: Path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from caffnet_lab.export import load_source

    (record,) = (run_folder / "records").glob("*.json")
    done = call(record, "--to", "onnx", "--out", tmp_path / "new" / "drive.onnx")
    assert done.exit_code == 0, done.output
    model, x = load_source(str(record))
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(onnx_library()))
    session = onnxruntime.InferenceSession(str(tmp_path / "new" / "drive.onnx"), options)
    value, status, _ = session.run(None, {"x": x.numpy()})
    with torch.no_grad():
        answer = model.project(x)
    torch.testing.assert_close(torch.from_numpy(value), answer.value, rtol=1e-12, atol=1e-12)
    assert status.tolist() == answer.status.tolist()


def test_a_model_in_a_module(tmp_path: Path, monkeypatch):
    (tmp_path / "policies.py").write_text(
        "from caffnet import AffineSet\nbox = AffineSet.box(-1.0, 1.0, dim=2)\ndef make():\n    return box\n"
    )
    monkeypatch.chdir(tmp_path)
    for source in ("policies:box", "policies:make", "policies.py:box"):
        done = call(source, "--out", tmp_path / "c")
        assert done.exit_code == 0, done.output
        assert (tmp_path / "c" / "policy.h").exists()
    assert isinstance(__import__("policies").box, AffineSet)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["policy", "--out", "x"], "SOURCE must be the record of a run"),
        (["nowhere:policy", "--out", "x"], "There is no module 'nowhere' here; a file is given as nowhere.py:name."),
        (
            ["math:pi", "--out", "x"],
            "math:pi must be a CAffNet, a CAffine, a set, or a function that makes one, got float",
        ),
        (
            ["math:sin", "--out", "x"],
            "math:sin must be callable without arguments, to make a model: math.sin() takes exactly one",
        ),
        (["os:getpid", "--out", "x"], "must be a CAffNet, a CAffine, a set, or a function that makes one, got int"),
        (["a:b", "--out", "x", "--to", "onnx", "--name", "arm"], "--name is only for --to c, got --to onnx"),
        (["a:b", "--out", "x", "--operators", "plain"], "--operators is only for --to onnx, got --to c"),
        (["missing.json", "--out", "x"], "There is no file missing.json."),
        (["a:b", "--out", "x", "--to", "tvm"], "--to must be c, onnx or aot, got 'tvm'"),
    ],
)
def test_what_cannot_be_exported_is_named(arguments: list[str], message: str):
    done = call(*arguments)
    assert done.exit_code == 2
    assert message in done.output.replace("\n", " ")
