"""`to_onnx`: a model as an ONNX file with the outputs value, status and violation."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet._kernel import native
from caffnet._solve.problem import is_diagonal
from caffnet._solve.tracing import plain_operations
from caffnet.deploy.checking import refuse_difference
from caffnet.deploy.program import Source, Traced, layer_of, read_source, samples_of
from caffnet.errors import ConstraintError

OPERATORS = ("caffnet", "plain")


def to_onnx(model: Source, path: str | Path, *, operators: str = "caffnet", inputs: Tensor | None = None) -> Path:
    """Write a model for ONNX Runtime.

    Args:
        model: a `CAffNet`, `CAffine` or set that ``torch.export`` can trace, with the function of its rows.
        path: the file.
        operators: ``"caffnet"`` writes the layer as one operator, ``caffnet.Solve``, which runs the kernel: any size,
            every option, and what raises in Python makes the run fail. The runtime must load it: see `onnx_library`.
            ``"plain"`` writes standard operators only, for runtimes where nothing can be loaded: every sub-constraint
            is listed in the graph, so it is for few rows, ``search="full"`` or ``"lite"``, ``on_infeasible="nan"``.
        inputs: samples x ``(B, ...)`` of the input. Random ones if None, where the network shows its shape.

    Returns:
        The path. The graph takes ``x`` (a `CAffNet`), ``f`` (a layer or set), or ``f`` and ``x`` (a layer whose rows
        depend on x), with any batch, and gives ``value`` ``(B, n)``, ``status`` ``(B,)`` and ``violation`` ``(B,)``.
        Where ONNX Runtime is installed, the file is run at the samples and compared with torch.

    Raises:
        ConstraintError: the graph would not behave as the model does; the message says what to choose.
        BudgetError: plain operators, and too many rows.
    """
    if operators not in OPERATORS:
        raise ConstraintError(f"operators must be one of {', '.join(OPERATORS)}, got {operators!r}.")
    source = read_source(model, "to_onnx")
    if operators == "plain":
        metric = layer_of(source).set_at(samples_of(source, inputs)).metric
        if metric is not None and not is_diagonal(metric):
            raise ConstraintError(
                'The standard operators of ONNX factorise no matrix: choose operators="caffnet", or a diagonal metric.'
            )
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise ImportError("to_onnx needs onnx and onnxscript: pip install caffnet[export].") from None
    with plain_operations() if operators == "plain" else contextlib.nullcontext():
        traced = Traced(source, inputs, plain=operators == "plain")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        written = torch.onnx.export(
            traced.program,
            traced.arguments,
            dynamo=True,
            input_names=list(traced.names),
            output_names=["value", "status", "violation"],
            custom_translation_table=_translations() if operators == "caffnet" else None,
            verbose=False,
        )
    assert written is not None
    written.model.metadata_props["caffnet_operators"] = operators
    written.save(str(path))
    try:
        _compare_in_runtime(Path(path), traced)
    except ConstraintError:
        Path(path).unlink()
        raise
    return Path(path)


def _compare_in_runtime(path: Path, traced: Traced) -> None:
    """Refuse a file whose values differ from those of torch at the samples, if ONNX Runtime is installed.

    Torch may be right on either side of a jump, so its values at inputs that differ by rounding count too. A status is
    not compared: on a boundary, rounding decides it.
    """
    try:
        import onnxruntime
    except ImportError:
        return
    x, given = traced.arguments[0], traced.arguments
    expected = traced.try_answers(given)
    if expected is None:
        return
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(onnx_library()))
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    named = {name: t.detach().cpu().numpy() for name, t in zip(traced.names, given, strict=True)}
    value = torch.from_numpy(session.run(["value"], named)[0]).to(x.device)
    step = tolerance.exported(x.dtype)
    moved = (traced.try_answers([t + sign * step * t.abs().clamp_min(1) for t in given]) for sign in (1, -1))
    sides = [side[:1] for side in moved if side is not None]
    refuse_difference([value], expected[:1], x, "the value in ONNX Runtime", sides)


def onnx_library() -> Path:
    """The library that holds the operator ``caffnet.Solve``; it needs no Python and can be copied to other machines.

    In Python: ``options.register_custom_ops_library(str(onnx_library()))`` with ``options`` the
    ``onnxruntime.SessionOptions`` of a session. In C: ``RegisterCustomOpsLibrary_V2``.
    """
    return native.library_path()


def _schema() -> Any:
    """The operator that _kernel/onnx.c implements."""
    from onnx.defs import OpSchema

    one, real, numbers, sides = OpSchema.FormalParameter, "T", "tensor(double)", "tensor(int8)"
    maybe = OpSchema.FormalParameterOption.Optional
    text, whole = OpSchema.AttrType.STRING, OpSchema.AttrType.INT
    return OpSchema(
        "Solve",
        "caffnet",
        1,
        inputs=[
            *(one(name, real) for name in ("f", "A", "lower", "upper")),
            one("numbers", numbers),
            one("w", real, param_option=maybe),
            one("metric", real, param_option=maybe),
        ],
        outputs=[one("value", real), one("status", sides), one("active", sides)],
        type_constraints=[(real, ["tensor(float)", "tensor(double)"], "")],
        attributes=[
            OpSchema.Attribute("row_kinds", text),
            OpSchema.Attribute("soft", text),
            OpSchema.Attribute("search", whole),
            OpSchema.Attribute("strict", whole),
            OpSchema.Attribute("on_infeasible", text),
        ],
    )


def _translations() -> dict[Any, Any]:
    """Translation of the operation of exported graphs into ONNX."""
    import numpy as np
    import onnx
    from onnxscript import opset18 as op
    from onnxscript.values import Op, Opset

    schema = _schema()
    operator = Op(Opset(schema.domain, schema.since_version), schema.name, schema)

    def solve(
        f,
        w,
        A,
        lower,
        upper,
        metric,
        row_kinds: str,
        labels: str,
        batch_shape,
        search: str,
        norm: float,
        strict: bool,
        on_infeasible: str,
        gradient: str,
        budget: int,
        tolerances,
        soft: str,
    ):
        numbers = np.array([norm, *tolerances], dtype=np.float64)
        return operator(
            f,
            A,
            lower,
            upper,
            op.Constant(value=onnx.numpy_helper.from_array(numbers)),
            w,
            metric,
            row_kinds=row_kinds,
            soft=soft,
            search=native.SEARCHES[search],
            strict=int(strict),
            on_infeasible=on_infeasible,
        )

    return {torch.ops.caffnet.solve.default: solve}
