"""The numbers `torch.rand` draws on a CUDA device, on any machine.

The authors' training states in cbf came from a GPU, whose generator has nothing to do with that of a CPU: it is
Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), a block cipher without state.
Its key is the seed; its input, four words of 32 bits, counts calls (two words) and threads (two words). Thread i makes
number i, and of its four words of output a double takes the first two.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10: four words from four words.

    >>> [f"{word:08x}" for word in philox((0, 0, 0, 0), (0, 0))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIERS[0] * counter[0], _MULTIPLIERS[1] * counter[2]
        mixed = (second >> 32) ^ counter[1] ^ key[0], (first >> 32) ^ counter[3] ^ key[1]
        counter = mixed[0], second & _WORD, mixed[1], first & _WORD
        key = (key[0] + _KEY_STEPS[0]) & _WORD, (key[1] + _KEY_STEPS[1]) & _WORD
    return counter


class CudaStream:
    """The numbers of ``torch.manual_seed(seed)`` and then ``torch.rand(count, dtype=float64, device="cuda")``.

    For at most 256 numbers per call, one block of threads: beyond that, the order depends on the GPU.

    >>> stream = CudaStream(0)
    >>> stream.rand(3)
    tensor([0.8805, 0.9397, 0.7129], dtype=torch.float64)
    """

    def __init__(self, seed: int):
        self.key = seed & _WORD, (seed >> 32) & _WORD
        self.calls = 0

    def rand(self, count: int) -> Tensor:
        """The next call: ``(count,)``, uniform over [0, 1)."""
        if not 0 < count <= 256:
            raise ValueError(f"count must be from 1 to 256, got {count}.")
        words = [philox((self.calls & _WORD, self.calls >> 32, thread, 0), self.key) for thread in range(count)]
        self.calls += 1
        # 53 bits: the second word above the first, which overlap in 11 bits.
        bits = torch.tensor([low ^ (high << 21) for low, high, _, _ in words], dtype=torch.float64)
        return (bits * 2.0**-53 + 2.0**-54) % 1.0  # the largest number rounds to 1, which torch turns into 0
