"""`to_aot`: the package gives the answers of torch, in Python and in a C++ program without it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from caffnet import AffineSet, CAffine, CAffNet, ConstraintError, FeedForward, Status
from caffnet.deploy import to_aot

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
NAMES = ["above", "below"]


def strip(x: torch.Tensor) -> AffineSet:
    """Between two lines that cross where x is positive: 22 outputs, so that the search is active."""
    rows = torch.ones(1, 22).to(x)
    bounds = torch.cat([-x[..., :1], torch.zeros_like(x[..., :1])], -1)
    return AffineSet.inequality(torch.cat([rows, -rows]), bounds, names=NAMES) & AffineSet.box(-4.0, 4.0, dim=22).to(x)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model whose rows depend on x and exclude each other for half of the samples."""
    torch.manual_seed(0)
    model = CAffNet(
        FeedForward(2, 22, 16, 1), strip, FeedForward(2, 22, 16, 1), null_start="random", on_infeasible="nearest"
    )
    return to_aot(model, tmp_path_factory.mktemp("aot"))


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    """The loader in C++ with the operator."""
    if not (shutil.which("cmake") and shutil.which("g++")):
        pytest.skip("cmake or g++ is not installed")
    prefix = torch.utils.cmake_prefix_path
    for command in (["-B", "build", "-S", ".", f"-DCMAKE_PREFIX_PATH={prefix}"], ["--build", "build"]):
        done = subprocess.run(["cmake", *command], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder / "build" / "main"


def test_the_samples_have_all_kinds_of_answers(folder: Path):
    _, value, status, violation = torch.load(folder / "example.pt")
    assert {Status.INFEASIBLE, Status.PROJECTED} <= set(status.tolist())
    assert value.isfinite().all() and violation[status == Status.INFEASIBLE].min() > 0


def test_a_program_in_cpp_gives_the_answers_of_torch(folder: Path, program: Path):
    done = subprocess.run([program, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "passed, 64 samples\n"


def test_it_notices_another_answer(folder: Path, program: Path, tmp_path: Path):
    shutil.copy(folder / "model.pt2", tmp_path)
    stored = torch.load(folder / "example.pt")
    stored[1][3, 0] += 0.01
    torch.save(stored, tmp_path / "example.pt")
    done = subprocess.run([program, tmp_path], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "failed, 64 samples\n")


def test_what_raises_in_python_raises_in_cpp(program: Path, tmp_path: Path):
    """With the names of the rows in conflict."""
    layer = CAffine(strip, search="active")
    x = -torch.rand(8, 2)
    to_aot(layer, tmp_path, inputs=x)
    done = subprocess.run([program, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    stored = torch.load(tmp_path / "example.pt")
    stored[1][5] = 1.0  # x
    torch.save(stored, tmp_path / "example.pt")
    done = subprocess.run([program, tmp_path], capture_output=True, text=True)
    assert done.returncode != 0
    assert "No point satisfies the constraints of 1 of 8 samples. Sample 5: above, below." in done.stderr


def test_a_file_is_not_taken_for_a_folder(tmp_path: Path):
    (tmp_path / "service").write_text("")
    with pytest.raises(ConstraintError, match=r"must be a path, got AffineSet: write to_aot\(model, folder\)"):
        to_aot("folder", AffineSet.box(-1.0, 1.0, dim=2))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConstraintError, match="is a file: to_aot writes a folder"):
        to_aot(AffineSet.box(-1.0, 1.0, dim=2), tmp_path / "service")
