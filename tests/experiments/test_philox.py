"""The stream of a CUDA device: published vectors of the cipher, numbers that torch prints on GPUs, a GPU if any."""

from __future__ import annotations

import pytest
import torch

from caffnet_lab.experiments.philox import CudaStream, philox

# Random123's known answers for philox4x32 with ten rounds: counter, key, output.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_the_cipher_gives_its_published_answers(counter, key, output):
    assert philox(counter, key) == output


def test_calls_and_threads_count_as_on_a_gpu():
    """torch.manual_seed(0), then twice torch.rand(4, device="cuda"), float32: the first word of each thread."""
    printed = [[0.3990, 0.5167, 0.0249, 0.9401], [0.9722, 0.7910, 0.4690, 0.3300]]
    for call, numbers in enumerate(printed):
        words = [philox((call, 0, thread, 0), (0, 0))[0] for thread in range(4)]
        assert [round(word * 2.0**-32, 4) for word in words] == numbers


def test_a_stream_counts_its_calls_and_repeats_with_its_seed():
    stream, again = CudaStream(7), CudaStream(7)
    first, second = stream.rand(3), stream.rand(3)
    assert not torch.equal(first, second)
    assert torch.equal(again.rand(5)[:3], first)  # number i is thread i's, however many there are
    assert torch.equal(again.rand(3), second)
    assert not torch.equal(CudaStream(8).rand(3), first)


def test_numbers_are_uniform():
    stream = CudaStream(1)
    numbers = torch.cat([stream.rand(256) for _ in range(40)])
    assert numbers.dtype == torch.float64 and float(numbers.min()) >= 0 and float(numbers.max()) < 1
    assert abs(float(numbers.mean()) - 0.5) < 0.01 and abs(float(numbers.var()) - 1 / 12) < 0.003
    assert len(numbers.unique()) == len(numbers)


def test_more_numbers_than_a_block_are_refused():
    with pytest.raises(ValueError, match="from 1 to 256, got 257"):
        CudaStream(0).rand(257)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU to compare with")
@pytest.mark.parametrize("seed", [0, 2, 11, 2**32 - 1])
def test_a_gpu_draws_the_same(seed):
    torch.manual_seed(seed)
    stream = CudaStream(seed)
    for count in (3, 3, 1, 256):
        assert torch.equal(torch.rand(count, dtype=torch.float64, device="cuda").cpu(), stream.rand(count))
