"""Settings for all tests."""

import pytest
import torch

# Many small problems gain nothing from more threads, and idle threads spin.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    """A test that fails, fails again."""
    torch.manual_seed(0)
