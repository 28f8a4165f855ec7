"""`to_onnx`: a model as an ONNX file with the outputs value, status and violation."""

from __future__ import annotations

import contextlib
import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor

from caffnet import tolerance
from caffnet._install import install_command
from caffnet._kernel import native
from caffnet._solve.problem import is_diagonal
from caffnet._solve.tracing import plain_operations
from caffnet.deploy.checking import refuse_difference
from caffnet.deploy.program import Source, Traced, first_line, layer_of, path_of, read_source, samples_of
from caffnet.deploy.translations import translations
from caffnet.errors import ConstraintError

OPERATORS = ("caffnet", "plain")
_SHORT_NUMBERS = (
    " ONNX keeps some numbers of its operators in single precision, as the epsilon of a normalisation: convert the "
    "model, model.float(), or choose to_aot."
)


def to_onnx(model: Source, path: str | Path, *, operators: str = "caffnet", inputs: Tensor | None = None) -> Path:
    """Write a model for ONNX Runtime.

    Args:
        model: a `CAffNet`, `CAffine` or set that ``torch.export`` can trace, including the function of its rows.
        path: the file.
        operators: ``"caffnet"`` writes the layer as one operator, ``caffnet.Solve``, which runs the kernel: any size,
            every option; errors of Python make the run fail. The runtime must load its library: see `onnx_library`.
            ``"plain"`` writes standard operators only, for runtimes that cannot load a library: every sub-constraint
            is listed in the graph, so it is for few rows, ``search="full"`` or ``"lite"``, ``on_infeasible="nan"``.
        inputs: samples x ``(B, ...)`` of the input. Random ones if None, if the network determines their shape.

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
    target = path_of(path, "to_onnx(model, path)")
    if target.is_dir():
        raise ConstraintError(f"{target} is a folder: to_onnx writes one file, for example {target / 'model.onnx'}.")
    if not target.parent.is_dir():
        raise ConstraintError(f"There is no folder {target.parent}: make it, or give to_onnx a file in another one.")
    source = read_source(model, "to_onnx")
    if operators == "plain":
        metric = layer_of(source).set_at(samples_of(source, inputs)).metric
        if metric is not None and not is_diagonal(metric):
            raise ConstraintError(
                'The standard operators of ONNX cannot factorise a matrix: choose operators="caffnet", or a diagonal '
                "metric."
            )
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise ImportError(f"to_onnx needs onnx and onnxscript: {install_command('export')}.") from None
    with plain_operations() if operators == "plain" else contextlib.nullcontext():
        traced = Traced(source, inputs, plain=operators == "plain")
    written = _translate(traced, operators)
    beside = target.with_name(f".{target.name}.part")
    try:
        written.save(str(beside))
        _compare_in_runtime(beside, traced)
        beside.replace(target)  # an existing file is replaced only after the new one was checked
    finally:
        beside.unlink(missing_ok=True)
    return target


def _translate(traced: Traced, operators: str) -> torch.onnx.ONNXProgram:
    """The graph in ONNX."""
    names = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = names.level
    try:
        names.setLevel(logging.ERROR)  # hides the message that torchvision is not installed
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the exporter's own deprecations
            written = torch.onnx.export(
                traced.program,
                traced.arguments,
                dynamo=True,
                input_names=list(traced.names),
                output_names=["value", "status", "violation"],
                custom_translation_table=translations(kernel=operators == "caffnet"),
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise ConstraintError(
            f"torch.onnx cannot translate the model: {first_line(error.__cause__ or error)} Use other operations in "
            "the function of the rows, or choose to_aot."
        ) from error
    finally:
        names.setLevel(level)
    assert written is not None
    written.model.metadata_props["caffnet_operators"] = operators
    return written


def _compare_in_runtime(path: Path, traced: Traced) -> None:
    """Refuse a file whose values differ from those of torch at the samples, if ONNX Runtime is installed.

    At a jump the value of torch on either side is accepted, so its values at inputs that differ by rounding count too.
    The status is not compared: on a boundary it depends on rounding.
    """
    try:
        import onnxruntime
    except ImportError:
        return
    x, given = traced.arguments[0], traced.arguments
    expected = traced.try_answers(given)
    if expected is None:
        warnings.warn(
            "The ONNX file was not compared with torch: none of the inputs has an answer. Pass inputs=, samples that "
            "have one.",
            stacklevel=3,
        )
        return
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(onnx_library()))
    named = {name: t.detach().cpu().numpy() for name, t in zip(traced.names, given, strict=True)}
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        value = torch.from_numpy(session.run(["value"], named)[0]).to(x.device)
    except Exception as error:  # its classes have no common base
        raise ConstraintError(
            f"ONNX Runtime does not run the export: {first_line(error)} It lacks some operations in float64: convert "
            "the model, model.float(), write the operation by others, or choose to_c or to_aot."
        ) from error
    step = tolerance.exported(x.dtype)
    moved = (traced.try_answers([t + sign * step * t.abs().clamp_min(1) for t in given]) for sign in (1, -1))
    sides = [side[:1] for side in moved if side is not None]
    refuse_difference(
        [value], expected[:1], x, "the value in ONNX Runtime", sides, _SHORT_NUMBERS if x.dtype == torch.float64 else ""
    )


def onnx_library() -> Path:
    """Return the path of the library with the operator ``caffnet.Solve``; it needs no Python and can be copied.

    In Python: ``options.register_custom_ops_library(str(onnx_library()))`` with ``options`` the
    ``onnxruntime.SessionOptions`` of a session. In C: ``RegisterCustomOpsLibrary_V2``.
    """
    return native.library_path()
