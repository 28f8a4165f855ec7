"""Input of every writer: a model, samples of its input, and its graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from caffnet._kernel import build, native
from caffnet._solve.prepare import Prepared
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
    """A model or layer; a set becomes a layer.

    Raises:
        ConstraintError: it is something else.
    """
    if isinstance(source, AffineSet | Prepared):
        source = CAffine(source)
    if not isinstance(source, CAffNet | CAffine):
        raise ConstraintError(f"{writer} takes a CAffNet, a CAffine or an AffineSet, got {type(source).__name__}.")
    return source


def layer_of(model: CAffNet | CAffine) -> CAffine:
    """The layer of a model, or the layer itself."""
    return model.layer if isinstance(model, CAffNet) else model


def samples_of(model: CAffNet | CAffine, inputs: Tensor | None) -> Tensor:
    """Inputs x ``(B, ...)``: those that were given, else random ones of the size that the first linear map reads."""
    if inputs is not None:
        if not isinstance(inputs, Tensor) or inputs.ndim < 2 or not len(inputs):
            raise ConstraintError("inputs must be a tensor (B, ...) of at least one sample.")
        return inputs.detach()
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


def parts_of(set: AffineSet) -> list[Tensor]:
    """The tensors of a set: A, lower, upper, and its metric where it has one."""
    return [set.A, set.lower, set.upper, *([] if set.metric is None else [set.metric])]


def rows_at(layer: CAffine, x: Tensor) -> list[Tensor]:
    """The tensors of the set at samples ``(B, ...)``, and the weights of its soft rows, each with the batch."""
    set = layer.set_at(x)
    weight = None if set.softness is None else set.softness.weight
    parts = with_batch(parts_of(set), len(x))
    return parts if weight is None else [*parts, weight.expand(len(x), weight.shape[-1])]


def with_batch(parts: Iterable[Tensor], batch: int) -> list[Tensor]:
    """A, lower, upper and perhaps the metric, each with a batch axis."""
    return [t.expand(batch, *t.shape[-axes:]) for t, axes in zip(parts, native.CORES, strict=False)]


def outputs_around(set: AffineSet, x: Tensor) -> Tensor:
    """Raw outputs ``(B, n)`` for a layer alone: inside its set, beyond some rows, far away, and one NaN."""
    stream = torch.Generator().manual_seed(1)
    far = torch.logspace(-1, 3, len(x), dtype=torch.float64).unsqueeze(-1)
    f = (far * torch.randn(len(x), set.n, dtype=torch.float64, generator=stream)).to(set.dtype)
    f[-1, 0] = torch.nan
    return f


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
    """Value, status and violation; that of shared rows by one product, which runtimes know for empty batches too."""
    A, y = answer.set.A, answer.value
    if A.ndim > 2 or y.ndim != 2 or not A.shape[0]:
        return y, answer.status, answer.violation
    rows = y @ A.mT
    excess = torch.maximum(rows - answer.set.upper, answer.set.lower - rows).clamp_min(0)
    return y, answer.status, excess.amax(-1)


class Traced:
    """The graph of a model for any batch, compared with it at the samples.

    Args:
        model: what is traced.
        inputs: samples of its input, or None for random ones.
        plain: the graph lists sub-constraints: its rounding is another one, so it is not compared as a whole.

    Attributes:
        module: x (or f, or f and x) to value, status and violation, in eval mode.
        arguments: samples to call it with.
        names: of the arguments.
        program: the exported graph.
    """

    names: tuple[str, ...]

    def __init__(self, model: CAffNet | CAffine, inputs: Tensor | None, plain: bool = False):
        self._model, x = model, samples_of(model, inputs)
        x = torch.cat([x, x]) if len(x) == 1 else x  # torch.export takes a single sample for a batch of one for ever
        if isinstance(model, CAffNet):
            self.module, self.arguments, self.names = _Model(model), (x,), ("x",)
        else:
            f = outputs_around(model.set_at(x), x).nan_to_num()
            given = {"f": f} if model.constraint is None else {"f": f, "x": x}
            self.module, self.arguments, self.names = _Layer(model), tuple(given.values()), tuple(given)
        training, layer = model.training, layer_of(model)
        self.straight = False  # the rows are a straight-line program: it was compared, and is rounded in its own way
        self.module.eval()
        try:
            any_batch: Any = tuple({0: torch.export.Dim.DYNAMIC} for _ in self.arguments)
            with torch.no_grad(), self._differentiated(layer, x):
                self.program = torch.export.export(self.module, self.arguments, dynamic_shapes=any_batch)
            for node in self.program.graph.nodes:
                refuse_random(node.target)
            if not (plain or self.straight):
                self._check()
        finally:
            model.train(training)

    @contextlib.contextmanager
    def _differentiated(self, layer: CAffine, x: Tensor) -> Iterator[None]:
        """A context in which rows that come from derivatives are straight-line programs: torch.export traces those."""
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
        """Check whether torch.export refuses the rows for their derivatives; else what it traces is compared."""

        class Rows(nn.Module):
            def forward(self, states: Tensor) -> list[Tensor]:
                return rows_at(layer, states)

        try:
            traced = torch.export.export(Rows(), (x,))
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

    def try_answers(self, arguments: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor] | None:
        """Value, status and violation by torch, without a warm start; None if one sample has no answer and raises."""
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
