"""Settings for all tests, and both ways to compute: the promises hold for the compiled kernel and for torch alone."""

import pytest
import torch

from caffnet import compiled

# Many small problems gain nothing from more threads, and idle threads spin.
torch.set_num_threads(1)

#: These files check what is computed. They run once with the kernel and once without.
TWICE = {"test_compromise", "test_data", "test_gradient", "test_literal", "test_nasty", "test_properties"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__ in TWICE:
        metafunc.fixturenames.append("way")
        metafunc.parametrize("way", ["kernel", "torch"], indirect=True, scope="module")


@pytest.fixture(autouse=True)
def _seed():
    """A test that fails, fails again."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def way(request: pytest.FixtureRequest):
    before, compiled.ENABLED = compiled.ENABLED, compiled.ENABLED and request.param == "kernel"
    yield request.param
    compiled.ENABLED = before
