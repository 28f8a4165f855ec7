"""The figures of docs/guides/deployment.md: what a step costs in every home, and how large the C is.

Two policies: n = 30 with 105 two-sided rows, as of model-predictive control; and the paper's unicycle (cbf), whose rows
depend on the state. Run ``python benchmarks/deployment.py``. Everything on one core, one thing after the other; ratios
are within one run.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import daqp
import numpy as np
import onnxruntime
import torch
from torch import Tensor

from caffnet import AffineSet, CAffine, CAffNet, FeedForward
from caffnet._kernel import native
from caffnet.deploy import onnx_library, to_c, to_onnx
from caffnet.deploy.program import outputs_around
from caffnet_lab.experiments.cbf import DrivingProblem

DOUBLE, STEPS, RUNS = torch.float64, 20_000, 5


def mpc() -> tuple[AffineSet, Tensor]:
    stream = torch.Generator().manual_seed(30)
    A = torch.randn(105, 30, dtype=DOUBLE, generator=stream)
    low, high = (
        -1 - torch.rand(105, dtype=DOUBLE, generator=stream),
        1 + torch.rand(105, dtype=DOUBLE, generator=stream),
    )
    return AffineSet(A, low, high), torch.zeros(64, 1, dtype=DOUBLE)


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def compile_c(folder: Path, *flags: str) -> Path:
    files = [str(folder / name) for name in ("test_policy.c", "policy.c", "policy_data.c")]
    line = ["gcc", "-std=c11", *flags, "-ffp-contract=off", f"-I{folder}", f"-I{folder}/kernel", *files]
    subprocess.run([*line, "-o", str(folder / "test"), "-lm"], check=True)
    return folder / "test"


def c_step(program: Path) -> float:
    """Nanoseconds, from the clock of the program."""
    found = [subprocess.run([program, str(STEPS)], capture_output=True, text=True).stdout for _ in range(RUNS)]
    return median([float(re.search(r"(\d+) ns per step", text).group(1)) for text in found])


ROWS = """
#include <math.h>
#include <stdio.h>
#include <time.h>
#include "policy.h"
#include "policy_vectors.h"
static PolicyMemory memory;
int main(void) {
    clock_t start = clock();
    for (long k = 0; k < 1000000; k++)
        policy_rows(vector_x + (k % POLICY_VECTORS) * POLICY_INPUTS, memory.A, memory.lower, memory.upper,
                    memory.metric);
    printf("%.0f ns per step\\n", 1e9 * (double)(clock() - start) / CLOCKS_PER_SEC / 1e6);
}
"""


def rows_step(folder: Path) -> float:
    """Nanoseconds of the function that computes the rows from the state: DAQP needs them too."""
    (folder / "rows.c").write_text(ROWS)
    files = [str(folder / name) for name in ("rows.c", "policy_data.c")]
    line = ["gcc", "-std=c11", "-O3", "-ffp-contract=off", f"-I{folder}", f"-I{folder}/kernel", *files]
    subprocess.run([*line, "-o", str(folder / "rows"), "-lm"], check=True)
    return c_step(folder / "rows")


def daqp_step(sets: list[AffineSet], f: Tensor) -> float:
    """Nanoseconds of DAQP alone, by its own clock: setup and solution of min |y - f|² / 2 over the rows."""
    sense = np.zeros(sets[0].m, dtype=np.int32)
    times = []
    for _ in range(RUNS):
        total = 0.0
        for set, point in zip(sets, f, strict=True):
            H, A = np.eye(set.n), np.ascontiguousarray(set.A.numpy())
            high, low = np.clip(set.upper.numpy(), -1e30, 1e30), np.clip(set.lower.numpy(), -1e30, 1e30)
            _, _, _, info = daqp.solve(H, -point.numpy(), A, high, low, sense)
            total += info["setup_time"] + info["solve_time"]
        times.append(1e9 * total / len(f))
    return median(times)


def per_call(call: Callable[[], object], calls: int = 300) -> float:
    """Nanoseconds of a call in Python."""
    call()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append(1e9 * (time.perf_counter() - start) / calls)
    return median(times)


def runtime_step(model: CAffNet, x: Tensor, operators: str, folder: Path) -> float:
    path = to_onnx(model, folder / f"{operators}.onnx", operators=operators, inputs=x)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(onnx_library()))
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options)
    one = {"x": x[:1].numpy()}
    return per_call(lambda: session.run(None, one))


def sizes(folder: Path) -> tuple[int, int]:
    """Bytes of code and data that a program gets with the policy, compiled for size, and of PolicyMemory."""
    objects = []
    flags = ["gcc", "-std=c11", "-Os", "-ffp-contract=off"]
    for name in ("policy.c", "policy_data.c"):
        objects.append(str(folder / f"{Path(name).stem}.o"))
        line = [*flags, f"-I{folder}", f"-I{folder}/kernel", "-c", str(folder / name), "-o", objects[-1]]
        subprocess.run(line, check=True)
    whole = str(folder / "whole.o")
    subprocess.run(["gcc", "-r", "-nostdlib", "-o", whole, *objects], check=True)
    said = subprocess.run(["size", whole], capture_output=True, text=True).stdout.splitlines()[1].split()
    (folder / "ram.c").write_text(
        '#include <stdio.h>\n#include "policy.h"\nint main(void) { printf("%zu", sizeof(PolicyMemory)); }\n'
    )
    line = ["gcc", f"-I{folder}", f"-I{folder}/kernel", str(folder / "ram.c"), "-o", str(folder / "ram")]
    subprocess.run(line, check=True)
    ram = int(subprocess.run([folder / "ram"], capture_output=True, text=True).stdout)
    return int(said[0]) + int(said[1]), ram


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    driving = DrivingProblem(1)
    fixed, nothing = mpc()
    states = driving.train[:64]
    with torch.no_grad():
        at_states = driving.build_set(states)
    cases = {
        "MPC, n = 30, 105 rows": (CAffine(fixed, on_infeasible="nearest"), None, [fixed] * 63, fixed, nothing),
        "cbf, n = 2, 13 rows": (
            CAffine(driving.build_set, on_infeasible="nearest"),
            states,
            [at_states[i] for i in range(63)],
            at_states,
            states,
        ),
    }
    for name, (layer, inputs, sets, whole, x) in cases.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            to_c(layer, folder, inputs=inputs)
            fast = c_step(compile_c(folder, "-O3"))
            native_step = c_step(compile_c(folder, "-O3", "-march=native"))
            raw = daqp_step(sets, outputs_around(whole, x)[:63])
            rows = 0.0 if inputs is None else rows_step(folder)
            code, ram = sizes(folder)
            n_in = 4 if inputs is None else 3
            dim = fixed.n if inputs is None else 2
            samples = torch.randn(64, n_in, dtype=DOUBLE) if inputs is None else inputs
            constraint = fixed if inputs is None else driving.build_set
            model = CAffNet(FeedForward(n_in, dim).double(), constraint, on_infeasible="nearest").eval()
            with torch.no_grad():
                eager = per_call(lambda: model(samples[:1]))  # noqa: B023
            onnx = runtime_step(model, samples, "caffnet", folder)
            to_c(model, folder, inputs=samples)
            policy = c_step(compile_c(folder, "-O3", "-march=native"))
            sys.stdout.write(
                f"{name}\n  layer in C {fast:.0f} ns (-march=native {native_step:.0f}), the rows {rows:.0f} ns of it; "
                f"DAQP {raw:.0f} ns: {fast / raw:.2f} ({native_step / raw:.2f}); with the rows, which it needs too, "
                f"{fast / (raw + rows):.2f} ({native_step / (raw + rows):.2f})\n"
                f"  with a 3 x 200 network: torch {eager:.0f} ns, "
                f"ONNX Runtime {onnx:.0f} ns ({onnx / eager:.2f}), C {policy:.0f} ns ({policy / eager:.2f})\n"
                f"  code of kernel, policy and data {code} bytes, memory {ram} "
                f"(workspace {native.workspace_size(whole.n, whole.m, native.SEARCHES['active'])})\n"
            )
    small = AffineSet.inequality([[1.0, 1.0], [1.0, -2.0]], [1.0, 1.0]) & AffineSet.box(-1.0, 1.0, dim=2)
    for set, label in (
        (small, "4 rows, n = 2"),
        (AffineSet.box(-1.0, 1.0, dim=3) & AffineSet.inequality(torch.randn(5, 3), torch.ones(5)), "8 rows, n = 3"),
    ):
        model = CAffNet(FeedForward(4, set.n), set, on_infeasible="nan").eval()
        x = torch.randn(64, 4)
        with tempfile.TemporaryDirectory() as place, torch.no_grad():
            eager = per_call(lambda: model(x[:1]))  # noqa: B023
            found = {ops: runtime_step(model, x, ops, Path(place)) for ops in ("caffnet", "plain")}
        shares = ", ".join(f"{ops} {value:.0f} ns ({value / eager:.2f})" for ops, value in found.items())
        sys.stdout.write(f"ONNX operators, {label}: torch {eager:.0f} ns, {shares}\n")


if __name__ == "__main__":
    main()
