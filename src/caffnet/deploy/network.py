"""A plain feed-forward network as a list of dense layers, for writers that have loops and no framework."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from caffnet.errors import ConstraintError

ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "RELU", nn.SiLU: "SILU", nn.Tanh: "TANH"}
_FUNCTIONS = {"NONE": lambda z: z, "RELU": torch.relu, "SILU": nn.functional.silu, "TANH": torch.tanh}
_SILENT = (nn.Identity, nn.Dropout)  # they do nothing in evaluation


class Dense(NamedTuple):
    """``activation(weight x + bias)``: weight ``(out, in)``, bias ``(out,)``, a name of `ACTIVATIONS` or ``"NONE"``."""

    weight: Tensor
    bias: Tensor
    activation: str


def read_network(module: nn.Module, role: str) -> list[Dense]:
    """Read the layers of a sequence of Linear, ReLU, SiLU, Tanh, BatchNorm1d, Dropout and Identity, for inference.

    A normalisation ``γ (z - μ) / sqrt(σ² + ε) + β`` with its running statistics is an affine map. It is folded into the
    linear map before it, ``W <- s W, b <- s (b - μ) + β`` with ``s = γ / sqrt(σ² + ε)``, or else into the next one.

    Args:
        module: the network.
        role: its name in messages.

    Raises:
        ConstraintError: the network contains another module.

    >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [layer.weight.shape for layer in read_network(net, "network")]
    [torch.Size([8, 3]), torch.Size([2, 8])]
    """
    layers: list[Dense] = []
    pending: tuple[Tensor, Tensor] | None = None  # a normalisation with no linear map before it
    for part in _parts(module, role):
        if isinstance(part, nn.Linear):
            weight = part.weight.detach()
            bias = weight.new_zeros(len(weight)) if part.bias is None else part.bias.detach()
            if pending is not None:
                scale, shift = pending
                # In double precision: folding must not cost digits.
                bias = (bias.double() + weight.double() @ shift).to(weight)
                weight, pending = (weight.double() * scale).to(weight), None
            layers.append(Dense(weight, bias, "NONE"))
        elif isinstance(part, nn.BatchNorm1d):
            scale, shift = _normalisation(part, role)
            if layers and layers[-1].activation == "NONE" and pending is None:
                weight, bias, _ = layers[-1]
                folded = scale.unsqueeze(-1) * weight.double(), scale * bias.double() + shift
                layers[-1] = Dense(folded[0].to(weight), folded[1].to(weight), "NONE")
            else:
                first = pending or (torch.ones_like(scale), torch.zeros_like(scale))
                pending = scale * first[0], scale * first[1] + shift
        else:
            kind = ACTIVATIONS[type(part)]
            if pending is not None or not layers or layers[-1].activation != "NONE":
                raise _refusal(role, f"{type(part).__name__} without an nn.Linear right before it")
            layers[-1] = layers[-1]._replace(activation=kind)
    if pending is not None or not layers:
        raise _refusal(role, "no nn.Linear at its end")
    return layers


def run_network(layers: list[Dense], x: Tensor) -> Tensor:
    """Compute the outputs ``(B, out)`` of a list of layers for inputs ``(B, in)``, in torch."""
    for weight, bias, activation in layers:
        x = _FUNCTIONS[activation](x @ weight.mT + bias)
    return x


def _parts(module: nn.Module, role: str) -> list[nn.Module]:
    """The modules in the order in which they run, without those that do nothing."""
    if type(module).forward is nn.Sequential.forward and not _hooked(module):
        return [part for child in module.children() for part in _parts(child, role)]
    # Exactly these types: a subclass may compute something else.
    if type(module) in _SILENT:
        return []
    if type(module) not in (nn.Linear, nn.BatchNorm1d, *ACTIVATIONS) or _hooked(module):
        raise _refusal(role, f"{type(module).__name__}{' with hooks' if _hooked(module) else ''}")
    return [module]


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _normalisation(part: nn.BatchNorm1d, role: str) -> tuple[Tensor, Tensor]:
    """Scale and shift ``(k,)`` of a normalisation, in float64."""
    if part.running_mean is None or part.running_var is None:
        raise _refusal(role, "a BatchNorm1d without running statistics")
    mean, variance = part.running_mean.double(), part.running_var.double()
    gain = torch.ones_like(mean) if part.weight is None else part.weight.detach().double()
    start = torch.zeros_like(mean) if part.bias is None else part.bias.detach().double()
    scale = gain / (variance + part.eps).sqrt()
    return scale, start - scale * mean


def _refusal(role: str, what: str) -> ConstraintError:
    return ConstraintError(
        f"The {role} has {what}, which to_c does not write: it writes Linear, ReLU, SiLU, Tanh and BatchNorm1d in a "
        "row. Export the layer alone, to_c(model.layer, ...), or use to_onnx or to_aot."
    )
