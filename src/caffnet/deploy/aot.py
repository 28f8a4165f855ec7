"""`to_aot`: a model as an AOTInductor package, with the operator of its layer and a loader in C++."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from caffnet._solve.run import SOLVE_SCHEMA
from caffnet.deploy.program import Source, Traced, copy_kernel, folder_of, read_source

SOURCES = Path(__file__).parent / "sources" / "aot"


def to_aot(model: Source, folder: str | Path, *, inputs: Tensor | None = None) -> Path:
    """Compile a model for C++ programs with libtorch.

    The folder has the package (``model.pt2``), the operator ``caffnet::solve`` over the kernel (``torch_operator.cpp``
    and ``kernel/``), a loader (``main.cpp``) that compares the package with the answers of torch (``example.pt``), and
    ``CMakeLists.txt``. Every search, norm and mode is exported; what raises in Python raises in C++.

    Args:
        model: a `CAffNet`, `CAffine` or set that ``torch.export`` can trace, including the function of its rows.
        folder: the folder for the files; it is created. Files of the same names in it are replaced.
        inputs: samples x ``(B, ...)`` of the input. Random ones if None, if the network determines their shape.

    Returns:
        The folder. The package takes x (a `CAffNet`), f (a layer or set), or f and x (a layer whose rows depend on x),
        with any batch, and gives value, status and violation.
    """
    target = folder_of(folder, "to_aot")
    traced = Traced(read_source(model, "to_aot"), inputs)
    copy_kernel(target)
    for source in sorted(SOURCES.iterdir()):
        (target / source.name).write_bytes(source.read_bytes())
    (target / "schema.h").write_text(
        f'/* The operation of the graph. Written by caffnet. */\n#define CAFFNET_SOLVE_SCHEMA "{SOLVE_SCHEMA}"\n'
    )
    torch._inductor.aoti_compile_and_package(traced.program, package_path=str(target / "model.pt2"))
    torch.save([t.detach().contiguous() for t in (*traced.arguments, *traced.answers())], target / "example.pt")
    return target
