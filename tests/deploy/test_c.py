"""`to_c`: the written program gives the answers of torch, with every compiler there is and under sanitizers."""

from __future__ import annotations

import importlib.util
import math
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from caffnet import AffineSet, CAffine, CAffNet, ConstraintError, FeedForward, Status, Transformer
from caffnet.control import (
    BarrierConstraint,
    DoubleIntegrator,
    FunctionBarrier,
    HighOrder,
    InsideBox,
    Integrator,
    OutsideCircles,
    Unicycle,
    linear,
    power,
)
from caffnet.deploy import to_c
from caffnet.deploy.checking import compare
from caffnet.deploy.network import read_network
from caffnet.deploy.operations import Operations
from caffnet.deploy.scalars import StraightLine, batch_function

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch.func compiles rules
DOUBLE = torch.float64
COMPILERS = {
    "gcc": ["gcc"] if shutil.which("gcc") else None,
    "zig": [sys.executable, "-m", "ziglang", "cc"] if importlib.util.find_spec("ziglang") else None,
}
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-ffp-contract=off"]
SANITIZE = {
    "gcc": ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "zig": ["-O1", "-g", "-fsanitize=undefined"],
}


def compiled(folder: Path, compiler: str, *flags: str, name: str = "policy") -> Path:
    command = COMPILERS[compiler]
    if command is None:
        pytest.skip(f"{compiler} is not installed")
    files = [f"test_{name}.c", f"{name}.c", f"{name}_data.c"]
    program = folder / f"test-{compiler}"
    sources, included = [str(folder / file) for file in files], [f"-I{folder}", f"-I{folder}/kernel"]
    line = [*command, *WARNINGS, *flags, *included, *sources, "-o", str(program), "-lm"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def run(program: Path) -> tuple[int, float]:
    """How many vectors passed, and the largest difference; none may fail."""
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    passed, failed, worst = re.match(r"(\d+) passed, (\d+) failed, largest difference (\S+)", done.stdout).groups()
    assert int(failed) == 0
    return int(passed), float(worst)


# ------------------------------------------------------------------------------------------------- models

WEDGE = AffineSet.inequality(
    [[1.0, 1.0], [1.0, -2.0]], [1.0, 1.0], names=["a */ /* ??/ /*/", "b\u202e"]
) & AffineSet.box(-1.0, 1.0, dim=2)


def network() -> CAffNet:
    """Normalisations before and behind linear maps, all activations, a null-space network."""
    torch.manual_seed(0)
    backbone = nn.Sequential(
        nn.BatchNorm1d(3),
        FeedForward(3, 8, 32, 2, batch_norm=True, dropout=0.1, activation=nn.SiLU),
        nn.Tanh(),
        nn.BatchNorm1d(8, affine=False),
        nn.Linear(8, 9, bias=False),
        nn.ReLU(),
        nn.Linear(9, 2),
    )
    null = FeedForward(3, 2, 16, 1, activation=nn.Tanh)
    model = CAffNet(backbone, WEDGE.to(DOUBLE), null, null_start="random").double()
    for _ in range(5):  # running statistics that are not zero and one
        model.backbone(3 * torch.randn(64, 3, dtype=DOUBLE) + 1)
    return model


def conflicting(x: Tensor) -> AffineSet:
    """Empty where x is positive."""
    return AffineSet.inequality(
        torch.tensor([[1.0, 1.0], [-1.0, -1.0]]).to(x), torch.cat([-x, torch.zeros_like(x)], -1)
    )


def states(size: int, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.randn(40, size, generator=torch.Generator().manual_seed(3), dtype=DOUBLE).to(dtype)


circles = BarrierConstraint(
    Unicycle(), OutsideCircles([[2.0, 0.0], [-1.0, 1.0]], [1.0, 0.5]), linear(1.0), AffineSet.box(-1.0, 1.0, dim=2)
)
wall = BarrierConstraint(
    DoubleIntegrator(1),
    HighOrder(InsideBox([-torch.inf, -torch.inf], [1.0, torch.inf]), DoubleIntegrator(1)),
    linear(2.0),
    AffineSet.box(-1.0, 1.0, dim=1),
)


def raised() -> BarrierConstraint:
    """Derivatives of derivatives of a function."""
    robot = DoubleIntegrator(1)
    return BarrierConstraint(robot, HighOrder(FunctionBarrier(lambda x: 1 - x[0].cos()), robot))


stairs = BarrierConstraint(  # the remainder of x_1 and its quotient, both with jumps
    Integrator(2, 1),
    FunctionBarrier(lambda x: 1 - x[0] * x[0] - torch.div(x[1], 0.5, rounding_mode="floor") - x[1] % -0.3),
)
traced = BarrierConstraint(Unicycle(), FunctionBarrier(lambda x: 1 - x[2].square() * x[0].sin()))


def mixed(n: int, m: int) -> AffineSet:
    stream = torch.Generator().manual_seed(n)
    A = torch.randn(m, n, dtype=DOUBLE, generator=stream)
    return AffineSet(A, -torch.ones(m, dtype=DOUBLE), 1 + torch.rand(m, dtype=DOUBLE, generator=stream))


def stretched(x: Tensor) -> AffineSet:
    """Rows and a metric that depend on x."""
    root = torch.stack([torch.ones_like(x), torch.stack([x[..., 0], 2 + x[..., 1].cos()], -1)], -2)
    M = root @ root.mT + 0.1 * torch.eye(2).to(x)
    return AffineSet.inequality(torch.eye(2).to(x), x.sin()).with_metric(M)


def limited() -> CAffNet:
    """A w that is too long in many states."""
    torch.manual_seed(1)
    null = FeedForward(3, 2, 16, 1)
    return CAffNet(FeedForward(3, 2, 16, 1), WEDGE, null, null_start="random", null_limit=0.3).double()


CASES = {
    "set": lambda: (AffineSet.box(-1.0, 1.0, dim=2), {}),
    "free": lambda: (AffineSet.inequality(torch.zeros(0, 2), torch.zeros(0)), {}),
    "network": lambda: (network(), {"name": "arm"}),
    "single": lambda: (network().float(), {}),
    "strict": lambda: (CAffine(WEDGE.to(DOUBLE), strict=True, norm=1), {}),
    "inf": lambda: (CAffine(WEDGE.to(DOUBLE), norm=float("inf"), search="lite"), {}),
    "paper": lambda: (CAffine(WEDGE.to(DOUBLE), search="paper"), {}),
    "warm": lambda: (CAffine(mixed(12, 40), warm_start=True), {}),
    "large": lambda: (CAffine(mixed(30, 105)), {}),
    "nearest": lambda: (CAffine(conflicting, on_infeasible="nearest"), {"inputs": states(1)}),
    "nan": lambda: (CAffine(conflicting, on_infeasible="nan"), {"inputs": states(1)}),
    "raise": lambda: (CAffine(conflicting), {"inputs": states(1)}),
    "circles": lambda: (CAffNet(FeedForward(3, 2, 16, 1).double(), circles, on_infeasible="nearest"), {}),
    "wall": lambda: (CAffine(wall, on_infeasible="nearest"), {"inputs": states(2)}),
    "diagonal": lambda: (CAffine(mixed(12, 40), metric=torch.linspace(0.2, 3.0, 12, dtype=DOUBLE)), {}),
    "matrix": lambda: (CAffine(WEDGE, metric=[[2.0, 0.5], [0.5, 1.0]]), {}),
    "moving metric": lambda: (CAffine(stretched), {"inputs": states(2)}),
    "limit": lambda: (limited(), {}),
    "single limit": lambda: (limited().float(), {}),
    "raised": lambda: (CAffine(raised(), on_infeasible="nearest"), {"inputs": states(2)}),
    "stairs": lambda: (CAffine(stairs, on_infeasible="nearest"), {"inputs": states(2)}),
    "sparse": lambda: (AffineSet.inequality(torch.eye(300).to_sparse(), torch.ones(300)), {}),
    "long": lambda: (AffineSet.inequality(torch.ones(1, 1000, dtype=DOUBLE), torch.ones(1, dtype=DOUBLE)), {}),
    "traced": lambda: (CAffine(traced, on_infeasible="nearest"), {"inputs": states(3, torch.float32)}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_program_gives_the_answers_of_torch(case: str, tmp_path: Path):
    model, options = CASES[case]()
    folder = to_c(model, tmp_path, **options)
    count, worst = run(compiled(folder, "gcc", "-O2", name=options.get("name", "policy")))
    assert count >= 40
    single = case in ("sparse", "single", "traced", "set", "free", "matrix", "single limit")
    assert worst <= (1e-4 if single else 1e-12)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("case", ["network", "circles", "large", "nearest", "single"])
def test_other_compilers_and_sanitizers(case: str, compiler: str, tmp_path: Path):
    model, options = CASES[case]()
    folder = to_c(model, tmp_path, **options)
    run(compiled(folder, compiler, *SANITIZE[compiler], name=options.get("name", "policy")))


def test_infeasible_samples_are_in_the_vectors(tmp_path: Path):
    """As torch says it: a status, and the same point of least violation or NaN."""
    for mode in ("nearest", "nan", "raise"):
        model, options = CASES[mode]()
        text = (to_c(model, tmp_path / mode, **options) / "policy_vectors.h").read_text()
        status = re.search(r"vector_status\[\] = \{(.*?)\}", text).group(1).split(", ")
        assert str(int(Status.INFEASIBLE)) in status and str(int(Status.INVALID)) in status
        assert ("NAN" in text.partition("vector_value")[2].partition(str(status))[0]) or mode == "nearest"


def test_the_program_notices_another_answer(tmp_path: Path):
    folder = to_c(AffineSet.box(-1.0, 1.0, dim=2), tmp_path)
    path = folder / "policy_data.c"
    text = path.read_text()
    assert "-1.0f" in text
    path.write_text(text.replace("-1.0f", "-1.5f"))
    done = subprocess.run([compiled(folder, "gcc", "-O1")], capture_output=True, text=True)
    assert done.returncode == 1
    assert "differs: status" in done.stdout


def test_nothing_is_allocated_and_two_policies_fit_into_one_program(tmp_path: Path):
    first = to_c(AffineSet.box(-1.0, 1.0, dim=2), tmp_path, name="left_arm")
    to_c(CAffine(mixed(5, 9)), tmp_path, name="right_arm")
    code = """#include "left_arm.h"
    #include "right_arm.h"
    static LeftArmMemory left; static RightArmMemory right;
    int main(void) {
        left_arm_real f[2] = {3, 0}; right_arm_real g[5] = {0, 0, 0, 0, 0};
        LeftArmAnswer a; RightArmAnswer b;
        return !(left_arm_project(&left, f, 0, 0, &a) == CAFFNET_PROJECTED && a.value[0] == 1 && a.active[0] == 1 &&
                 a.violation == 0 && right_arm_project(&right, g, 0, 0, &b) == CAFFNET_INSIDE &&
                 LEFT_ARM_MOST_STEPS > 0);
    }"""
    (tmp_path / "main.c").write_text(code)
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    files = ["main.c", "left_arm.c", "left_arm_data.c", "right_arm.c", "right_arm_data.c"]
    command = ["gcc", *WARNINGS, f"-I{first}", f"-I{first}/kernel", *(str(first / f) for f in files)]
    done = subprocess.run([*command, "-o", str(first / "main"), "-lm"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([first / "main"]).returncode == 0
    symbols = subprocess.run(["nm", "-u", first / "main"], capture_output=True, text=True).stdout
    assert not re.search(r"\b(malloc|calloc|realloc|free|printf)\b", symbols)


def test_the_header_is_valid_cpp(tmp_path: Path):
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed")
    folder = to_c(CAffine(circles), tmp_path, inputs=states(3))
    (folder / "main.cpp").write_text('#include "policy.h"\nint main() { return sizeof(PolicyMemory) == 0; }\n')
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{folder}", f"-I{folder}/kernel", "-fsyntax-only"]
    done = subprocess.run([*command, str(folder / "main.cpp")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_cmake_builds_and_tests_it(tmp_path: Path):
    if not shutil.which("cmake"):
        pytest.skip("cmake is not installed")
    folder = to_c(network(), tmp_path)
    for command in (["-B", "build", "-S", "."], ["--build", "build"]):
        done = subprocess.run(["cmake", *command], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run(["ctest", "--test-dir", "build"], cwd=folder, capture_output=True, text=True)
    assert "100% tests passed" in done.stdout


# ------------------------------------------------------------------------------------------------- the parts


def test_a_folded_network_is_the_network():
    model = network().eval()
    x = states(3)
    y = x
    for weight, bias, activation in read_network(model.backbone, "backbone"):
        z = y @ weight.mT + bias
        y = {"NONE": lambda t: t, "RELU": torch.relu, "SILU": nn.functional.silu, "TANH": torch.tanh}[activation](z)
    torch.testing.assert_close(y, model.backbone(x), rtol=1e-13, atol=1e-13)


def test_equal_lines_are_written_once_and_unused_ones_not_at_all():
    def function(x: Tensor) -> list[Tensor]:
        x.exp()
        return [torch.cat([x.sin(), x.sin()]), x.new_tensor([2.0, -1.0]) * 3]

    lines = StraightLine(function, torch.zeros(1, dtype=DOUBLE)).lines(["y", "z"])
    assert lines == ["const double t1 = sin(x[0]);", "y[0] = t1;", "y[1] = t1;", "z[0] = 6.0;", "z[1] = (-3.0);"]


# ------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CAffNet(Transformer(3, 2), WEDGE), "The backbone has Transformer, which to_c does not write"),
        (lambda: CAffNet(nn.Sequential(nn.ReLU()), WEDGE), "ReLU without an nn.Linear right before it"),
        (lambda: CAffNet(nn.Sequential(nn.Linear(2, 2), nn.GELU()), WEDGE), "The backbone has GELU"),
        (lambda: CAffine(conflicting), r"depend on the input: pass inputs="),
        (lambda: AffineSet.box(torch.zeros(3, 2), torch.ones(3, 2)), r"writes one set that holds for every input"),
        (lambda: nn.Linear(2, 2), "takes a CAffNet, a CAffine or an AffineSet, got Linear"),
    ],
)
def test_what_is_not_written_is_refused(make, message: str, tmp_path: Path):
    with pytest.raises(ConstraintError, match=message):
        to_c(make(), tmp_path)


def written(x: Tensor, write: Callable[[Tensor], None]) -> Tensor:
    y = x.clone()
    write(y)
    return y


def put(y: Tensor) -> None:
    y[[1, 3]] = y[:2] * 2


def mask(y: Tensor) -> None:
    y[y < 0] = 7.0


OPERATIONS = {
    "softmax": lambda x: torch.softmax(900 * x, 0),
    "addmv": lambda x: torch.addmv(x, x.outer(x), x),
    "addmv with factors": lambda x: torch.addmv(x, x.outer(x), x, beta=2.0, alpha=0.3),
    "alpha": lambda x: torch.add(x, x.sin(), alpha=0.1),
    "rsub": lambda x: torch.rsub(x, 2.0, alpha=3.0),
    "mv": lambda x: torch.mv(x.outer(x), x) + 0.1,
    "floor": lambda x: x // 0.1 + x // -0.3 + torch.div(1.0, x + 0.1, rounding_mode="floor"),
    "trunc": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    "remainder": lambda x: x % 0.3 + x % -0.2 + torch.fmod(x, 0.3),
    "bool": lambda x: x.bool().to(x.dtype) + x.any().to(x.dtype),
    "truths": lambda x: ((x > 0) + (x < 0.6)).to(x.dtype) + ((x > 0) ^ (x < 0.6)).to(x.dtype),
    "count": lambda x: ((x > 0).sum() - 1) * x,
    "sum": lambda x: x.sum(dtype=x.dtype) + x[:0].sum(),
    "norm": lambda x: torch.stack([x.norm(), torch.linalg.vector_norm(x, 1), torch.linalg.vector_norm(x, torch.inf)]),
    "largest": lambda x: torch.stack([x.max(), x.amax(0), x[1:].reshape(2, 2).max(1).values[0], x.min(0).values]),
    "argmax": lambda x: x.flip(0).gather(0, x.cos().argmax(0, keepdim=True)),
    "cumsum": lambda x: x.cumsum(0) + x.cumprod(0),
    "var": lambda x: x.var() + x.reshape(1, -1).var(1, correction=0),
    "round": lambda x: (2.5 * x).round() + x.trunc(),
    "put": lambda x: written(x, put),
    "mask": lambda x: written(x, mask),
    "gradient": torch.func.jacrev(
        lambda x: x.norm() + x.max(0).values + x.var() + x.cumsum(0)[2] + written(x, put).prod()
    ),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_those_of_torch_to_the_last_digits(name: str, dtype: torch.dtype):
    """A plain number in a function of float64 is of float64 too."""
    function = OPERATIONS[name]
    rounding = 1e-15 if dtype == torch.float64 else 1e-6
    for x in (torch.linspace(-1, 1, 5, dtype=dtype), torch.tensor([0.3, 1.0, -0.7, 0.0, 2.6], dtype=dtype)):
        (found,) = batch_function(lambda one: [function(one)], x)(x)
        torch.testing.assert_close(found, function(x), rtol=rounding, atol=rounding)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.round(decimals=1), r"aten\.round\.decimals with decimals=1, which has no straight-line program"),
        (lambda x: torch.linalg.vector_norm(x, 3), r"vector_norm\.default with ord=3"),
        (
            lambda x: x.sum(dtype=torch.float32).to(x.dtype),
            r"computes in torch\.float32 from an input in torch\.float64",
        ),
        (lambda x: x.long().to(x.dtype), r"_to_copy\.default from torch\.float64 to torch\.int64"),
        (lambda x: x[x > 0].sum(), r"aten\.index\.Tensor at places that depend on the input"),
        (lambda x: x + torch.rand(3, dtype=x.dtype), r"draws random numbers \(aten\.rand\.default\)"),
        (lambda x: x + torch.rand_like(x), r"draws random numbers \(aten\.rand_like\.default\)"),
        (lambda x: x if x[0] > 0 else -x, r"reads a number that depends on its input .* write torch\.where"),
    ],
)
def test_what_a_program_would_not_keep_is_refused(function, message: str):
    with pytest.raises(ConstraintError, match=message):
        StraightLine(lambda x: [function(x)], torch.ones(3, dtype=DOUBLE)).lines(["y"])


def test_a_program_that_differs_from_torch_is_refused(tmp_path: Path):
    """What torch does not see, Python's own numbers, is constant in the program."""
    stream = random.Random(0)
    layer = CAffine(lambda x: AffineSet.box(None, x + stream.random()))
    with pytest.raises(ConstraintError, match="export would differ from torch at 40 of 40 inputs; at x = "):
        to_c(layer, tmp_path, inputs=states(2))
    first = CAffine(
        lambda x: AffineSet.box(None, x * x.reshape(-1)[0])
    )  # of a batch: the first number of its first sample
    with pytest.raises(ConstraintError, match="export would differ from torch at 39 of 40 inputs"):
        to_c(first, tmp_path, inputs=states(2))


def test_a_wrong_line_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Operations, "_floor_divide", lambda self, a, b: self._map("div", a, b))
    model, options = CASES["stairs"]()
    with pytest.raises(ConstraintError, match="export would differ from torch"):
        to_c(model, tmp_path, **options)


def test_either_side_of_a_jump_will_do():
    """Sums in another order may fall on the other side."""
    x = torch.tensor([[0.5], [0.7]], dtype=DOUBLE)
    compare(lambda x: [(x - 1e-15) // 0.5], lambda x: [x // 0.5], x, "a step")
    with pytest.raises(ConstraintError, match="at 1 of 2 inputs"):
        compare(lambda x: [(x - 0.1) // 0.5], lambda x: [x // 0.5], x, "a step")


def test_rows_of_a_module_in_training_mode_are_those_of_evaluation(tmp_path: Path):
    class Rows(nn.Module):
        def forward(self, x: Tensor) -> AffineSet:
            return AffineSet.box(None, x + (100.0 if self.training else 1.0))

    layer = CAffine(Rows()).train()
    to_c(layer, tmp_path, inputs=states(2))
    assert "100.0" not in (tmp_path / "policy_data.c").read_text()
    assert layer.training


def test_large_sparse_rows_are_refused(tmp_path: Path):
    with pytest.raises(ConstraintError, match=r"to_c writes A in full, here 2000 x 2000 numbers: write set\.to_dense"):
        to_c(AffineSet.box(0.0, 1.0, dim=2000), tmp_path)


def test_the_parts_that_a_policy_calls_fit_into_100_kb(tmp_path: Path):
    if not shutil.which("gcc") or sys.platform != "linux":
        pytest.skip("gcc on Linux is not here")
    folder = to_c(CAffine(circles, on_infeasible="nearest"), tmp_path, inputs=states(3))
    flags = ["-std=c11", "-Os", "-ffp-contract=off", "-r", "-nostdlib"]
    files = [str(folder / file) for file in ("policy.c", "policy_data.c")]
    whole, included = str(folder / "whole.o"), [f"-I{folder}", f"-I{folder}/kernel"]
    subprocess.run(["gcc", *flags, *included, *files, "-o", whole], check=True)
    names = subprocess.run(["nm", whole], capture_output=True, text=True).stdout
    assert "decide" in names and "minimise" not in names and "gradient" not in names and "newton" not in names
    said = subprocess.run(["size", whole], capture_output=True, text=True).stdout.splitlines()[1].split()
    assert int(said[0]) + int(said[1]) < 80_000


def test_an_operation_without_a_line_in_c_is_named(tmp_path: Path):
    layer = CAffine(lambda x: AffineSet.box(None, x.sort(-1).values))
    with pytest.raises(ConstraintError, match=r"holds the operation aten\.sort"):
        to_c(layer, tmp_path, inputs=states(2))


@pytest.mark.parametrize("name", ["1st", "Arm", "caffnet_arm", "a-b", ""])
def test_a_name_that_c_does_not_take_is_refused(name: str, tmp_path: Path):
    with pytest.raises(ConstraintError, match="name must be a lower-case identifier"):
        to_c(AffineSet.box(0.0, 1.0, dim=1), tmp_path, name=name)


@pytest.mark.parametrize("name", ["math", "kernel", "time"])
def test_the_name_of_a_header_is_refused(name: str, tmp_path: Path):
    with pytest.raises(ConstraintError, match=rf"name='{name}' is taken: {name}\.h is a header"):
        to_c(AffineSet.box(0.0, 1.0, dim=1), tmp_path, name=name)


@pytest.mark.parametrize("name", ["line", "solve", "newton", "test", "m"])
def test_a_word_of_the_kernel_or_of_cmake_is_refused(name: str, tmp_path: Path):
    with pytest.raises(ConstraintError, match=f"name='{name}' is taken: a word of CMake or of the kernel"):
        to_c(AffineSet.box(0.0, 1.0, dim=1), tmp_path, name=name)


def test_a_function_that_reads_batches_only_is_named(tmp_path: Path):
    with pytest.raises(ConstraintError, match=r"fails for one sample x of shape \(2,\): .* Write x\[\.\.\., i\]"):
        to_c(CAffine(lambda x: AffineSet.box(None, x[:, :2])), tmp_path, inputs=states(2))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConstraintError, match=r"must be a path, got CAffine: write to_c\(model, folder\)"):
        to_c("folder", CAffine(AffineSet.box(-1.0, 1.0, dim=2)))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConstraintError, match="is a file: to_c writes a folder"):
        to_c(AffineSet.box(0.0, 1.0, dim=1), tmp_path / "file")


def test_a_power_inside_a_barrier_of_higher_order_is_written_in_double_precision(tmp_path: Path):
    robot = DoubleIntegrator(2)
    outside = HighOrder(OutsideCircles([[2.0, 0.0]], [1.0]), robot, power(1.0, 3.0))
    rows = BarrierConstraint(robot, outside, inputs=AffineSet.box(-9.0, 9.0, dim=2))
    assert (to_c(CAffine(rows), tmp_path, inputs=states(4)) / "policy.c").exists()


def test_what_is_known_but_for_nan_calls_no_function():
    """A softmax over one number and fillings: 1 and 0 without exp, and NaN where torch has it."""

    def filled(x: Tensor) -> list[Tensor]:
        several = torch.cat([x, (0 * x).sum().expand(3) - math.inf])
        weight = torch.softmax(several, 0)
        return [weight, several.amax() - weight.amax().log()]

    one = torch.zeros(1, dtype=DOUBLE)
    assert not re.search("exp|log", "".join(StraightLine(filled, one).lines(["w", "h"])))
    for number in (0.5, -1e300, math.inf, -math.inf, math.nan):
        x = one + number
        for found, expected in zip(batch_function(filled, one)(x), filled(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    two = torch.zeros(2, dtype=DOUBLE)
    assert "".join(StraightLine(filled, two).lines(["w", "h"])).count("exp(") == 2
