"""One set of 2000 problems in every home of the kernel: the same status, and the same bits.

docs/guides/deployment.md has the table. What is not installed is skipped, saying so.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import vectors

from caffnet import Status
from caffnet._kernel import build, native
from caffnet._solve.run import SOLVE_SCHEMA
from caffnet.deploy import onnx_library
from caffnet.deploy.aot import SOURCES

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ZIG = [sys.executable, "-m", "ziglang", "cc"] if importlib.util.find_spec("ziglang") else None
NODE = Path(os.environ.get("NODE_PATH", ROOT / "build" / "node" / "node_modules"))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", f"-I{build.HERE}"]
FILES = [str(HERE / "check_vectors.c"), str(build.HERE / "kernel.c")]


@pytest.fixture(scope="module")
def problems() -> list[vectors.Vector]:
    return list(vectors.problems())


@pytest.fixture(scope="module")
def file(problems: list[vectors.Vector], tmp_path_factory) -> Path:
    return vectors.write(tmp_path_factory.mktemp("vectors") / "vectors.bin", problems)


def compiled(compiler: list[str] | None, target: Path, *flags: str) -> Path:
    if compiler is None or not shutil.which(compiler[0]):
        pytest.skip("the compiler is not installed")
    done = subprocess.run([*compiler, *FLAGS, *FILES, *flags, "-o", str(target)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def all_the_same(*command: object, **options) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.stdout == f"{vectors.COUNT} {vectors.COUNT} {vectors.COUNT} 0\n", done.stdout + done.stderr


def test_the_problems_are_of_every_kind(problems: list[vectors.Vector]):
    found = Counter(v.status for v in problems)
    assert len(problems) == 2000 and all(
        found[status] >= 20 for status in set(Status) - {Status.RELAXED, Status.UNBOUNDED}
    )
    assert {len(v.f) for v in problems} >= {1, 2, 40} and {len(v.A) for v in problems} >= {1, 200}
    assert min(Counter(v.search for v in problems).values()) >= 80
    assert min(Counter((v.f.dtype, v.w is None) for v in problems).values()) >= 300
    assert min(Counter(None if v.metric is None else len(v.metric) == 1 for v in problems).values()) >= 100


def test_c_by_gcc(file: Path, tmp_path: Path):
    all_the_same(compiled(["gcc"], tmp_path / "check", "-lm"), file)


def test_c_by_clang(file: Path, tmp_path: Path):
    all_the_same(compiled(ZIG, tmp_path / "check", "-lm"), file)


def test_c_on_aarch64(file: Path, tmp_path: Path):
    program = compiled(ZIG, tmp_path / "check", "-target", "aarch64-linux-musl", "-lm")
    if not shutil.which("qemu-aarch64"):
        pytest.skip("qemu-user is not installed")
    all_the_same("qemu-aarch64", program, file)


@pytest.fixture(scope="module")
def module(tmp_path_factory) -> Path:
    names = ["-Wl,--export=check_vectors", "-Wl,--export=check_result"]
    target = tmp_path_factory.mktemp("module") / "check.wasm"
    return compiled(ZIG, target, "-target", "wasm32-wasi", "-mexec-model=reactor", *names)


def test_wasm_in_node(file: Path, module: Path):
    if not shutil.which("node"):
        pytest.skip("node is not installed")
    all_the_same("node", HERE / "check_vectors.mjs", module, file)


def test_wasm_in_chromium(file: Path, module: Path):
    if not (CHROMIUM and shutil.which("node") and (NODE / "playwright-core").exists()):
        pytest.skip("node, chromium or playwright-core is missing (make playground-test)")
    there = {**os.environ, "NODE_PATH": str(NODE)}
    all_the_same("node", HERE / "check_vectors.mjs", module, file, CHROMIUM, env=there)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(found.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0)) and torch.equal(
        found.isnan(), expected.isnan()
    )


OPERANDS = ("f", "A", "lower", "upper", "numbers", "w", "metric")


def test_onnx_runtime(problems: list[vectors.Vector]):
    """The operator itself, in a graph of one node for each problem."""
    onnxruntime, onnx = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    make, kind = onnx.helper, {torch.float32: onnx.TensorProto.FLOAT, torch.float64: onnx.TensorProto.DOUBLE}
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(onnx_library()))
    options.intra_op_num_threads = 1
    for number, v in enumerate(problems):
        feeds = {"f": v.f[None], "A": v.A, "lower": v.lower, "upper": v.upper}
        given = {name: t.numpy() for name, t in feeds.items()}
        given["numbers"] = np.array([v.norm, *native.tolerances(v.f.dtype, len(v.f))])
        if v.w is not None:
            given["w"] = v.w[None].numpy()
        if v.metric is not None:
            given["metric"] = v.metric.numpy()
        types = {name: onnx.TensorProto.DOUBLE if name == "numbers" else kind[v.f.dtype] for name in given}
        node = make.make_node(
            "Solve",
            [
                name if name in given else ""
                for name in OPERANDS[: 5 + max(v.w is not None, 2 * (v.metric is not None))]
            ],
            ["value", "status", "active"],
            domain="caffnet",
            row_kinds=v.row_kinds,
            search=native.SEARCHES[v.search],
            strict=int(v.strict),
            on_infeasible="nearest" if v.nearest else "nan",
        )
        inputs = [make.make_tensor_value_info(name, types[name], t.shape) for name, t in given.items()]
        outputs = [make.make_tensor_value_info("value", kind[v.f.dtype], None)]
        outputs.append(make.make_tensor_value_info("status", onnx.TensorProto.INT8, None))
        graph = make.make_graph([node], "solve", inputs, outputs)
        versions = [make.make_opsetid("", 18), make.make_opsetid("caffnet", 1)]
        model = make.make_model(graph, opset_imports=versions, ir_version=9)
        value, status = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, given)
        assert int(status[0]) == v.status, number
        assert same(torch.from_numpy(value[0]), v.value), number


CPP = """
import sys, torch
torch.ops.load_library(sys.argv[1])
count = 0
for f, w, A, lower, upper, packed, value, status in torch.load(sys.argv[2]):
    w = None if w is None else w[None]
    found, state, _ = torch.ops.caffnet.solve(f[None], w, A, lower, upper, *packed)
    equal = torch.equal(found[0].nan_to_num(nan=7.0), value.nan_to_num(nan=7.0))
    assert equal and int(state) == status, (count, found, value, state, status)
    count += 1
assert "caffnet" not in sys.modules
print(count)
"""


def test_the_operator_in_cpp_that_aotinductor_calls(problems: list[vectors.Vector], tmp_path: Path):
    """In a process without the package: `test_aot` has the whole way with a program in C++."""
    if not (shutil.which("g++") and shutil.which("gcc")):
        pytest.skip("g++ is not installed")
    (tmp_path / "schema.h").write_text(f'#define CAFFNET_SOLVE_SCHEMA "{SOLVE_SCHEMA}"\n')
    torch_home = Path(torch.__file__).parent
    kernel = [*FLAGS, "-fPIC", "-c", str(build.HERE / "kernel.c"), "-o", str(tmp_path / "kernel.o")]
    subprocess.run(["gcc", *kernel], check=True)
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    included = [f"-I{tmp_path}", f"-I{build.HERE}", f"-I{torch_home}/include"]
    command = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", abi, *included, str(SOURCES / "torch_operator.cpp")]
    command += [str(tmp_path / "kernel.o"), f"-L{torch_home}/lib", "-ltorch", "-ltorch_cpu", "-lc10"]
    library = tmp_path / "libcaffnet_torch.so"
    done = subprocess.run([*command, "-o", str(library)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    stored = []
    for v in problems:
        mode = "nearest" if v.nearest else "nan"
        packed = (v.metric, v.row_kinds, "", [1], v.search, v.norm, v.strict, mode, "exact", 1)
        tolerances = list(native.tolerances(v.f.dtype, len(v.f)))
        stored.append((v.f, v.w, v.A, v.lower, v.upper, (*packed, tolerances, ""), v.value, v.status))
    f, A, upper = torch.zeros(1), torch.tensor([[1.0], [-1.0]]), torch.tensor([1.0, -3.0])  # y <= 1, and soft y >= 3
    packed = (None, "<<", "", [1], "full", 2.0, False, "raise", "exact", 1, list(native.tolerances(f.dtype, 1)), ".s")
    stored.append((f, None, A, torch.full((2,), -torch.inf), upper, packed, torch.ones(1), int(Status.RELAXED)))
    torch.save(stored, tmp_path / "problems.pt")
    done = subprocess.run(
        [sys.executable, "-c", CPP, str(library), str(tmp_path / "problems.pt")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.stdout == f"{vectors.COUNT + 1}\n", done.stderr[-3000:]
