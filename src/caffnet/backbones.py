"""The networks of the paper, without constraints."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class FeedForward(nn.Sequential):
    """A feed-forward network ``(..., n_in) -> (..., n_out)``; the paper's has three hidden layers of 200 with ReLU.

    Args:
        n_in: number of inputs.
        n_out: number of outputs.
        hidden: width of all hidden layers, or a list of one width for each.
        layers: number of hidden layers; 3, or the length of the list, if None.
        batch_norm: normalise after each hidden linear map (inputs must then be ``(batch, n_in)``).
        dropout: drop this share after each activation.
        activation: class or function that makes the activation module after each hidden linear map.

    Weights start Xavier-normal, biases as `nn.Linear` leaves them.

    >>> FeedForward(3, 5)(torch.zeros(7, 3)).shape
    torch.Size([7, 5])
    >>> [part.out_features for part in list(FeedForward(3, 5, hidden=[64, 32]))[::2]]
    [64, 32, 5]
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        hidden: int | list[int] | tuple[int, ...] = 200,
        layers: int | None = None,
        *,
        batch_norm: bool = False,
        dropout: float = 0.0,
        activation: Callable[[], nn.Module] = nn.ReLU,
    ):
        if layers is not None:
            _check_whole("layers", layers, 0)
        widths = hidden if isinstance(hidden, list | tuple) else [hidden] * (3 if layers is None else layers)
        if layers not in (None, len(widths)):
            raise ValueError(f"hidden has {len(widths)} widths, layers is {layers}: leave layers out.")
        for name, size in (("n_in", n_in), ("n_out", n_out), *(("hidden", width) for width in widths)):
            _check_whole(name, size, 1)
        if isinstance(activation, nn.Module) or not callable(activation):
            raise ValueError(
                f"activation must be a class or function that makes a module, such as nn.GELU, got {activation!r}."
            )
        parts: list[nn.Module] = []
        width = n_in
        for size in widths:
            parts.append(nn.Linear(width, size))
            if batch_norm:
                parts.append(nn.BatchNorm1d(size))
            parts.append(activation())
            if dropout:
                parts.append(nn.Dropout(dropout))
            width = size
        super().__init__(*parts, nn.Linear(width, n_out))
        for module in self:
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight)

    def __getitem__(self, idx: Any) -> Any:
        """A part, or an `nn.Sequential` of those in a slice: ``net[:-1]`` gives the features before the last map."""
        return nn.Sequential(*list(self)[idx]) if isinstance(idx, slice) else super().__getitem__(idx)


def _check_whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}.")


class Transformer(nn.Module):
    """A transformer encoder; the paper's has one post-norm block, three heads of size 40 and a width of 120.

    In the paper the whole input is *one* token, so the attention weights are 1 and the block is a residual network.
    With ``tokens=True`` the input is a real sequence ``(..., T, n_in)``; the tokens are averaged after the last block.

    Args:
        n_in: number of inputs (per token).
        n_out: number of outputs.
        width: size of a token inside the network.
        heads: attention heads.
        feedforward: width of the block's feed-forward part.
        layers: number of blocks.
        dropout: dropout inside the blocks.
        tokens: read sequences instead of single vectors.
        positions: with ``tokens``, learn a position code for sequences of up to this length.

    Weights start Xavier-normal, biases at zero.

    >>> Transformer(3, 5)(torch.zeros(7, 3)).shape
    torch.Size([7, 5])
    >>> Transformer(3, 5, tokens=True, positions=16)(torch.zeros(7, 10, 3)).shape
    torch.Size([7, 5])
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        width: int = 120,
        heads: int = 3,
        feedforward: int = 120,
        layers: int = 1,
        *,
        dropout: float = 0.0,
        tokens: bool = False,
        positions: int | None = None,
    ):
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, got width={width} and heads={heads}.")
        if positions is not None and not tokens:
            raise ValueError("positions= is for sequences: pass tokens=True as well.")
        self.shape = (n_in, n_out, width, heads, feedforward, layers, dropout)
        self.tokens = tokens
        self.embed = nn.Linear(n_in, width)
        self.position = None if positions is None else nn.Parameter(torch.zeros(positions, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, feedforward, dropout, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, n_out)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2 and name != "position":
                nn.init.xavier_normal_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., n_in)``, or ``(..., T, n_in)`` with tokens, to ``(..., n_out)``."""
        sequence = x if self.tokens else x.unsqueeze(-2)
        h = self.embed(sequence)
        length = h.shape[-2]
        if self.position is not None:
            if length > len(self.position):
                raise ValueError(f"The sequence has {length} tokens, positions were made for {len(self.position)}.")
            h = h + self.position[:length]
        batch = h.shape[:-2]
        h = h.reshape(-1, *h.shape[-2:])  # attention takes one batch axis
        for block in self.blocks:
            h = block(h)
        return self.head(h.mean(-2)).reshape(*batch, -1)

    def twin(self, n_out: int | None = None) -> Transformer:
        """Return a second network that shares the embedding of this one: the paper's null-space head."""
        n_in, mine, width, heads, feedforward, layers, dropout = self.shape
        positions = None if self.position is None else len(self.position)
        other = Transformer(
            n_in,
            mine if n_out is None else n_out,
            width,
            heads,
            feedforward,
            layers,
            dropout=dropout,
            tokens=self.tokens,
            positions=positions,
        )
        other.to(self.embed.weight)
        other.embed, other.position = self.embed, self.position
        return other
