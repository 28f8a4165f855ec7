"""Input of all exporters: a model, samples of its input, and its graph."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from caffnet._kernel import build
from caffnet._solve.prepare import Prepared
from caffnet._solve.problem import CORES, has_answer
from caffnet.constraints import AffineSet
from caffnet.control.barriers import GradientExportError
from caffnet.deploy.checking import compare, refuse_difference
from caffnet.deploy.operations import refuse_random
from caffnet.deploy.scalars import batch_function
from caffnet.errors import ConstraintError
from caffnet.layer import CAffine
from caffnet.model import CAffNet
from caffnet.projection import Projection

Source: TypeAlias = CAffNet | CAffine | AffineSet | Prepared
_SAMPLES = 64


def read_source(source: Source, writer: str) -> CAffNet | CAffine:
    """Return a model or layer; a set becomes a layer.

    Raises:
        ConstraintError: the source is of another type.
    """
    if isinstance(source, AffineSet | Prepared):
        source = CAffine(source)
    if not isinstance(source, CAffNet | CAffine):
        raise ConstraintError(
            f"{writer} takes a CAffNet, a CAffine or an AffineSet, got {type(source).__name__}: write "
            "CAffNet(network, constraint) for a network with its rows, CAffine(constraint) for a filter of raw outputs."
        )
    return source


def first_line(error: BaseException) -> str:
    """The first line of a message, as a sentence."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__).strip().rstrip(".!")
    return f"{line}."


def layer_of(model: CAffNet | CAffine) -> CAffine:
    """The layer of a model, or the layer itself."""
    return model.layer if isinstance(model, CAffNet) else model


def samples_of(model: CAffNet | CAffine, inputs: Tensor | None) -> Tensor:
    """Return the given inputs x ``(B, ...)``, else random ones of the size of the first linear map."""
    if inputs is not None:
        if not isinstance(inputs, Tensor) or inputs.ndim < 2 or not len(inputs):
            got = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
            raise ConstraintError(
                f"inputs must be a tensor (B, ...) of at least one sample, got {got}. A constraint of several tensors "
                "is exported as a function of one that holds them side by side: lambda z: constraint((z[..., :2], "
                "z[..., 2]))."
            )
        return _readable(model, inputs.detach())
    layer = layer_of(model)
    if isinstance(model, CAffNet):
        first = next((part for part in model.backbone.modules() if isinstance(part, nn.Linear)), None)
        if first is None or not isinstance(model.backbone, nn.Sequential | nn.Linear):
            raise ConstraintError("The shape of the input is not known: pass inputs=, samples (B, ...) of it.")
        size, like = first.in_features, first.weight
    elif layer.constraint is None:
        size, like = 1, layer.A
    else:
        raise ConstraintError("The rows depend on the input: pass inputs=, samples (B, ...) of it.")
    stream = torch.Generator().manual_seed(0)
    return (2 * torch.randn(_SAMPLES, size, dtype=torch.float64, generator=stream)).to(like)


def _readable(model: CAffNet | CAffine, x: Tensor) -> Tensor:
    """Return the samples x, if the model accepts them.

    Raises:
        ConstraintError: the model does not accept them; with the reason.
    """
    training = model.training
    try:
        with torch.no_grad():
            model.eval()
            if isinstance(model, CAffNet):
                model.raw(x)
    except (RuntimeError, IndexError, TypeError) as error:
        raise ConstraintError(
            f"The network cannot read inputs {tuple(x.shape)} of {x.dtype}: {first_line(error)} Pass samples "
            "(B, ...) of its input, in its number type."
        ) from error
    finally:
        model.train(training)
    return x


def parts_of(set: AffineSet) -> list[Tensor]:
    """Return the tensors of a set: A, lower, upper, and the metric if it has one."""
    return [set.A, set.lower, set.upper, *([] if set.metric is None else [set.metric])]


def rows_at(layer: CAffine, x: Tensor) -> list[Tensor]:
    """The tensors of the set at samples ``(B, ...)``, and the weights of its soft rows, each with the batch."""
    set = layer.set_at(x)
    weight = None if set.softness is None else set.softness.weight
    parts = with_batch(parts_of(set), len(x))
    return parts if weight is None else [*parts, weight.expand(len(x), weight.shape[-1])]


def with_batch(parts: Iterable[Tensor], batch: int) -> list[Tensor]:
    """A, lower, upper and perhaps the metric, each with a batch axis."""
    return [t.expand(batch, *t.shape[-axes:]) for t, axes in zip(parts, CORES[2:], strict=False)]


def outputs_around(set: AffineSet, x: Tensor) -> Tensor:
    """Make raw outputs ``(B, n)`` for a layer alone: inside its set, beyond some rows, far away, and one NaN."""
    stream = torch.Generator().manual_seed(1)
    far = torch.logspace(-1, 3, len(x), dtype=torch.float64).unsqueeze(-1)
    f = (far * torch.randn(len(x), set.n, dtype=torch.float64, generator=stream)).to(set.dtype)
    f[-1, 0] = torch.nan
    return f


def path_of(place: str | Path, order: str) -> Path:
    """The path that a writer was given.

    Raises:
        ConstraintError: it is none.
    """
    if not isinstance(place, str | os.PathLike):
        raise ConstraintError(f"The place to write to must be a path, got {type(place).__name__}: write {order}.")
    return Path(place)


def folder_of(folder: str | Path, writer: str) -> Path:
    """The folder that a writer makes or fills.

    Raises:
        ConstraintError: it is a file.
    """
    target = path_of(folder, f"{writer}(model, folder)")
    if target.is_file():
        raise ConstraintError(f"{target} is a file: {writer} writes a folder, give it a name of its own.")
    return target


def copy_kernel(folder: Path) -> None:
    """The C files of the kernel, in ``folder/kernel``."""
    (folder / "kernel").mkdir(parents=True, exist_ok=True)
    for source in sorted([*build.HERE.glob("*.c"), *build.HERE.glob("*.h")]):
        if source.name not in build.SHELLS:
            (folder / "kernel" / source.name).write_bytes(source.read_bytes())


# ------------------------------------------------------------------------------------------------- graphs


class _Model(nn.Module):
    """x to value, status and violation."""

    def __init__(self, model: CAffNet):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _outputs(self.model.project(x))


class _Layer(nn.Module):
    """f, and x where the rows depend on it, to value, status and violation."""

    def __init__(self, layer: CAffine):
        super().__init__()
        self.layer = layer

    def forward(self, f: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        return _outputs(self.layer.project(f, x=x))


def _outputs(answer: Projection) -> tuple[Tensor, Tensor, Tensor]:
    """Value, status and violation, by operations that runtimes support for empty batches too."""
    A, y = answer.set.A, answer.value
    if not A.shape[-2]:
        return y, answer.status, answer.violation
    if A.ndim > 2 or y.ndim != 2:
        return y, answer.status, _largest(answer.set.violation(y))
    rows = y @ A.mT  # shared rows by one product
    excess = torch.maximum(rows - answer.set.upper, answer.set.lower - rows).clamp_min(0)
    return y, answer.status, _largest(excess)


def _largest(t: Tensor) -> Tensor:
    """The largest number of the last axis, from halves: ONNX Runtime's reduction of an empty batch keeps the axis."""
    while t.shape[-1] > 1:
        half = t.shape[-1] // 2
        t = torch.cat([torch.maximum(t[..., :half], t[..., half : 2 * half]), t[..., 2 * half :]], -1)
    return t.squeeze(-1)


def _trace(module: nn.Module, arguments: tuple[Tensor, ...], shapes: Any = None) -> torch.export.ExportedProgram:
    """The graph of a module.

    Raises:
        ConstraintError: torch cannot trace it.
        GradientExportError: it holds derivatives of a barrier.
    """
    try:
        return torch.export.export(module, arguments, dynamic_shapes=shapes)
    except ConstraintError:
        raise
    except Exception as error:  # of many classes
        raise ConstraintError(
            f"torch.export cannot trace the model: {first_line(error)} Write a branch on numbers of x as "
            "torch.where(condition, a, b), and numpy, .item() and Python's math by operations of torch."
        ) from error


class Traced:
    """The graph of a model for any batch, compared with it at the samples.

    Args:
        model: the model to trace.
        inputs: samples of its input, or None for random ones.
        plain: the graph lists sub-constraints: it rounds in another way, so it is not compared as a whole.

    Attributes:
        module: x (or f, or f and x) to value, status and violation, in eval mode.
        arguments: samples to call it with: those that have an answer, where the model raises for the others.
        names: of the arguments.
        program: the exported graph.
    """

    names: tuple[str, ...]

    def __init__(self, model: CAffNet | CAffine, inputs: Tensor | None, plain: bool = False):
        self._model, x = model, samples_of(model, inputs)
        x = torch.cat([x, x]) if len(x) == 1 else x  # torch.export would fix the batch size 1
        if isinstance(model, CAffNet):
            self.module, self.arguments, self.names = _Model(model), (x,), ("x",)
        else:
            f = outputs_around(model.set_at(x), x).nan_to_num()
            given = {"f": f} if model.constraint is None else {"f": f, "x": x}
            self.module, self.arguments, self.names = _Layer(model), tuple(given.values()), tuple(given)
        self.arguments = self._with_answers(self.arguments)
        training, layer = model.training, layer_of(model)
        self.straight = False  # the rows are a straight-line program: compared already, and rounded in another way
        self.module.eval()
        try:
            any_batch: Any = tuple({0: torch.export.Dim.DYNAMIC} for _ in self.arguments)
            with torch.no_grad(), self._differentiated(layer, x):
                self.program = _trace(self.module, self.arguments, any_batch)
            for node in self.program.graph.nodes:
                refuse_random(node.target)
            if not (plain or self.straight):
                self._check()
        finally:
            model.train(training)

    @contextlib.contextmanager
    def _differentiated(self, layer: CAffine, x: Tensor) -> Iterator[None]:
        """A context in which rows that contain derivatives are straight-line programs, which torch.export can trace."""
        rows = layer.constraint
        if rows is None or not self._needs_derivatives(layer, x):
            yield
            return
        sample = layer.set_at(x[0])
        if sample.slacks:
            raise ConstraintError(
                "Soft rows with a weight cannot be exported beside rows that come from derivatives: use barriers whose "
                "gradient is written out, or rows that are soft without a weight."
            )
        parts = batch_function(lambda one: parts_of(layer.set_at(one)), x[0])
        compare(parts, lambda states: rows_at(layer, states), x, "the rows")

        def straight(states: Tensor) -> AffineSet:
            A, lower, upper, *metric = parts(states)
            rest = (sample.labels, sample.row_kinds, metric[0] if metric else None, sample.softness)
            return AffineSet.from_parts(A, lower, upper, *rest)

        layer.constraint, self.straight = straight, True
        try:
            yield
        finally:
            layer.constraint = rows

    @staticmethod
    def _needs_derivatives(layer: CAffine, x: Tensor) -> bool:
        """Return True if torch.export refuses the rows for their derivatives; else compare the traced rows."""

        class Rows(nn.Module):
            def forward(self, states: Tensor) -> list[Tensor]:
                return rows_at(layer, states)

        try:
            traced = _trace(Rows(), (x,))
        except GradientExportError:
            return True
        for node in traced.graph.nodes:
            refuse_random(node.target)
        compare(traced.module(), lambda states: rows_at(layer, states), x, "the rows")
        return False

    def _check(self) -> None:
        """Compare the graph with the model at the samples, unless one of them has no answer and raises."""
        expected = self.try_answers(self.arguments)
        if expected is not None:
            found = self.program.module()(*self.arguments)
            refuse_difference(found, expected, self.arguments[0], "value, status and violation")

    def _with_answers(self, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the samples that have an answer, at least two; all if none has one, or the model does not raise."""
        layer = layer_of(self._model)
        before = layer._options, layer._definite
        if layer._options.on_infeasible != "raise":
            return arguments
        layer._options, layer._definite = (
            options and dataclasses.replace(options, on_infeasible="nan") for options in before
        )
        try:
            answers = self.try_answers(arguments)
        finally:
            layer._options, layer._definite = before
        if answers is None:
            return arguments
        good = has_answer(answers[1])
        kept = tuple(t[good] for t in arguments)
        return kept if good.sum() > 1 else tuple(torch.cat([t, t]) for t in kept) if good.any() else arguments

    def try_answers(self, arguments: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor] | None:
        """Compute value, status and violation by torch, without a warm start; None if a sample raises an error."""
        layer, training = layer_of(self._model), self._model.training
        warm, layer.warm_start = layer.warm_start, False
        self.module.eval()
        try:
            with torch.no_grad():
                return self.module(*arguments)
        except ConstraintError:
            return None
        finally:
            layer.warm_start = warm
            self._model.train(training)

    def answers(self) -> tuple[Tensor, Tensor, Tensor]:
        """Value, status and violation at the samples, by torch."""
        with torch.no_grad():
            return self.module(*self.arguments)
