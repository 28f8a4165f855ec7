"""Translations of operations of an exported graph to ONNX: that of the layer, and constants with all their digits."""

from __future__ import annotations

from typing import Any

import torch

from caffnet._kernel import native


def translations(kernel: bool) -> dict[Any, Any]:
    """Return the translations for ``torch.onnx.export``, including the operation of the layer with `kernel`."""
    return {**_constants(), **({torch.ops.caffnet.solve.default: _solver()} if kernel else {})}


def _constants() -> dict[Any, Any]:
    """Numbers in a function, as 0.1 in ``0.1 * x`` or item() of a buffer: the exporter's own have float32 digits."""
    import numpy as np
    import onnx
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops import core

    def constant(value: Any) -> Any:
        if not isinstance(value, int | float):
            return value  # an item() in the graph
        return op.Constant(value=onnx.numpy_helper.from_array(np.array(value, dtype=np.float64)))

    def scalar_tensor(s: float, dtype: int = -1, layout: str = "", device: str = "", pin_memory: bool = False):
        return core.aten_scalar_tensor(constant(s), dtype=dtype)

    def full(size, fill_value: float, dtype: int = -1, layout: str = "", device: str = "", pin_memory: bool = False):
        return core.aten_full(size, constant(fill_value), dtype=onnx.TensorProto.FLOAT if dtype == -1 else dtype)

    def full_like(
        self,
        fill_value: float,
        dtype: int = -1,
        layout: str = "",
        device: str = "",
        pin_memory: bool = False,
        memory_format: str = "",
    ):
        return core.aten_full_like(self, constant(fill_value), dtype=dtype)

    def new_full(
        self, size, fill_value: float, dtype: int = -1, layout: str = "", device: str = "", pin_memory: bool = False
    ):
        return core.aten_new_full(self, size, constant(fill_value), dtype=dtype)

    def local_scalar_dense(self):
        return op.Identity(self)

    def like(number: Any, x: Any) -> Any:
        return op.CastLike(constant(number), x)

    # By Max and Min: Clip takes the largest number for a side that is missing, also for an infinite x.
    def clamp(self, min: Any = None, max: Any = None):
        above: Any = self if min is None else op.Max(self, like(min, self))
        return above if max is None else op.Min(above, like(max, self))

    def clamp_max(self, max: Any):
        return clamp(self, None, max)

    aten = torch.ops.aten
    return {
        **dict.fromkeys((aten.clamp.default, aten.clamp.Tensor, aten.clamp_min.default, aten.clamp_min.Tensor), clamp),
        **dict.fromkeys((aten.clamp_max.default, aten.clamp_max.Tensor), clamp_max),
        aten._local_scalar_dense.default: local_scalar_dense,
        aten.scalar_tensor.default: scalar_tensor,
        aten.full.default: full,
        aten.full_like.default: full_like,
        aten.new_full.default: new_full,
    }


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


def _solver() -> Any:
    """The operation of the layer as the operator ``caffnet.Solve``."""
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

    return solve
