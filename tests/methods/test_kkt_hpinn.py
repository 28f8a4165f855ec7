from __future__ import annotations

import pytest
import torch
from torch import nn

from caffnet import AffineSet, FeedForward, project
from caffnet.methods import KKTHPINN, UnsupportedError


def test_it_is_the_orthogonal_projection(dtype: torch.dtype):
    C, d = torch.randn(2, 5, dtype=dtype), torch.randn(2, dtype=dtype)
    limits = AffineSet.equality(C, d)
    f = 3 * torch.randn(40, 5, dtype=dtype)
    y = KKTHPINN(nn.Identity(), limits)(f)
    torch.testing.assert_close(y, project(f, limits).value, atol=1e-5 if dtype == torch.float32 else 1e-12, rtol=0)


def test_right_sides_may_depend_on_the_input():
    A, B, b = (torch.randn(*s, dtype=torch.float64) for s in ((2, 3), (2, 4), (2,)))
    net = FeedForward(3, 4, hidden=8).double()
    x = torch.randn(10, 3, dtype=torch.float64)
    method = KKTHPINN(net, lambda x: AffineSet.equality(B, b - x @ A.T))
    y = method(x)
    torch.testing.assert_close(x @ A.T + y @ B.T, b.expand(10, 2))
    y.square().sum().backward()
    assert net[0].weight.grad is not None


def test_one_A_spread_over_the_batch_is_still_one_A():
    C = torch.randn(1, 3)
    method = KKTHPINN(nn.Identity(), lambda x: AffineSet.equality(C.expand(len(x), 1, 3), x[:, :1]))
    x = torch.randn(6, 3)
    torch.testing.assert_close(method(x) @ C[0], x[:, 0])


def test_rows_of_the_input_are_refused():
    method = KKTHPINN(nn.Identity(), lambda x: AffineSet.equality(x.unsqueeze(-2), torch.ones(len(x), 1)))
    with pytest.raises(UnsupportedError, match="rows of A differ between samples; it needs one A for all inputs"):
        method(torch.randn(3, 2))


def test_dependent_rows_are_refused():
    with pytest.raises(UnsupportedError, match="linearly dependent"):
        KKTHPINN(nn.Identity(), AffineSet.equality([[1.0, 1.0], [2.0, 2.0]], [1.0, 2.0]))


def test_the_unit_of_a_row_does_not_matter(dtype: torch.dtype):
    # squares of these sizes vanish or burst
    size = torch.tensor([1e-30, 1.0, 1e30] if dtype == torch.float32 else [1e-200, 1.0, 1e200], dtype=dtype)
    C, d, f = torch.randn(3, 5, dtype=dtype), torch.randn(3, dtype=dtype), torch.randn(40, 5, dtype=dtype)
    expected = KKTHPINN(nn.Identity(), AffineSet.equality(C, d))(f)
    y = KKTHPINN(nn.Identity(), AffineSet.equality(size.unsqueeze(-1) * C, size * d))(f)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-4 if dtype == torch.float32 else 1e-12)


def test_nearly_dependent_rows_lose_digits_once_not_twice():
    g = torch.Generator().manual_seed(0)
    C, f = (torch.randn(*s, dtype=torch.float64, generator=g) for s in ((3, 5), (40, 5)))
    C[2] = C[0] + C[1] + 1e-9 * C[2]
    limits = AffineSet.equality(C, C @ torch.ones(5, dtype=torch.float64))
    # the condition is 1e10: six digits are left, of B Bᵀ with 1e20 none would be
    torch.testing.assert_close(KKTHPINN(nn.Identity(), limits)(f), project(f, limits).value, atol=1e-5, rtol=0)
