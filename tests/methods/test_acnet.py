from __future__ import annotations

import pytest
import torch
from torch import nn

from caffnet import AffineSet
from caffnet.methods import ACnet, UnsupportedError


def test_one_row_is_solved_for_its_residual():
    C = torch.tensor([[2.0, -1.0, 4.0]])
    f = torch.randn(10, 3)
    y = ACnet(nn.Identity(), AffineSet.equality(C, [3.0]), residual=[1])(f)
    torch.testing.assert_close(y[:, [0, 2]], f[:, [0, 2]])
    torch.testing.assert_close(y[:, 1], -(3.0 - 2 * f[:, 0] - 4 * f[:, 2]))


def test_a_triangular_system_is_the_papers_sequence(dtype: torch.dtype):
    # row 0 gives y2 from the direct outputs, row 1 gives y3 from y2 as well: layer after layer
    C = torch.tensor([[1.0, 2.0, 3.0, 0.0], [4.0, 5.0, 6.0, 7.0]], dtype=dtype)
    f = torch.randn(10, 4, dtype=dtype)
    y = ACnet(nn.Identity(), AffineSet.equality(C, torch.zeros(2, dtype=dtype)), residual=[2, 3])(f)
    y2 = -(f[:, 0] + 2 * f[:, 1]) / 3
    y3 = -(4 * f[:, 0] + 5 * f[:, 1] + 6 * y2) / 7
    torch.testing.assert_close(y, torch.stack([f[:, 0], f[:, 1], y2, y3], -1))


def test_residuals_are_solved_exactly_for_rows_of_the_input():
    C, d = torch.randn(50, 2, 5, dtype=torch.float64), torch.randn(50, 2, dtype=torch.float64)
    method = ACnet(nn.Identity(), lambda _: AffineSet.equality(C, d))
    f = torch.randn(50, 5, dtype=torch.float64, requires_grad=True)
    y = method(f)
    assert torch.equal(y[:, :3], f[:, :3])
    torch.testing.assert_close((C @ y.unsqueeze(-1)).squeeze(-1), d, atol=1e-10, rtol=0)
    y.sum().backward()
    assert f.grad is not None
    assert (f.grad[:, 3:] == 0).all()  # the raw residual outputs are not used


def test_the_default_residuals_have_the_largest_pivots():
    method = ACnet(nn.Identity(), AffineSet.equality([[1.0, 0.0, 9.0], [0.0, 3.0, 0.0]], 0.0))
    assert method.residual == (1, 2)


@pytest.mark.parametrize(
    ("C", "residual", "message"),
    [
        ([[1.0, 1.0, 0.0]], [2], r"cannot be solved for the outputs \[2\]; .* other outputs as residual="),
        ([[1.0, 1.0, 0.0]], [0, 1], "2 residual outputs for 1 equalities; it needs one residual output per equality"),
        ([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]], None, "linearly dependent"),
        ([[1.0]] * 2, None, "2 rows for 1 outputs"),
    ],
)
def test_what_cannot_be_solved_is_refused(C: list, residual: list | None, message: str):
    with pytest.raises(UnsupportedError, match=message):
        ACnet(nn.Identity(), AffineSet.equality(C, 0.0), residual=residual)


def test_many_rows_have_small_determinants_and_are_solved():
    C, d = torch.randn(90, 120, dtype=torch.float64), torch.randn(90, dtype=torch.float64)
    f = torch.randn(10, 120, dtype=torch.float64)
    for constraint, residual in ((AffineSet.equality(C, d), range(90)), (lambda _: AffineSet.equality(C, d), None)):
        y = ACnet(nn.Identity(), constraint, residual=residual)(f)
        torch.testing.assert_close(y @ C.T, d.expand(10, 90))


def test_the_unit_of_a_row_chooses_no_residual():
    # whichever row comes first decides: the first takes y0 and then y2, the second y1 and then y2
    C = torch.tensor([[3.0, 2.9, 0.0], [2.9, 3.0, 0.25]], dtype=torch.float64)
    f = torch.randn(10, 3, dtype=torch.float64)
    expected = ACnet(nn.Identity(), AffineSet.equality(C, torch.ones(2, dtype=torch.float64)))
    for sizes in ([1e-30, 1e30], [1e30, 1e-30], [3.0, 1.0]):
        size = torch.tensor(sizes, dtype=torch.float64)
        method = ACnet(nn.Identity(), AffineSet.equality(size.unsqueeze(-1) * C, size))
        assert method.residual == expected.residual
        torch.testing.assert_close(method(f), expected(f))


def test_the_unit_of_a_row_chooses_no_pivot():
    # 1e30 (1e-17 y0 + y1) = 1e30 and y0 + y1 = y2: eliminating with the first row, because 1e13 > 1, loses the second
    C = torch.tensor([[1e13, 1e30, 0.0], [1.0, 1.0, -1.0]], dtype=torch.float64)
    limits = AffineSet.equality(C, torch.tensor([1e30, 0.0], dtype=torch.float64))
    y = ACnet(nn.Identity(), limits, residual=[0, 1])(torch.tensor([[0.0, 0.0, 5.0]], dtype=torch.float64))
    torch.testing.assert_close(y, torch.tensor([[4.0, 1.0, 5.0]], dtype=torch.float64))


def test_a_sample_that_is_no_number_harms_no_other():
    C, d, f = torch.randn(3, 1, 2), torch.randn(3, 1), torch.randn(3, 2)
    expected = ACnet(nn.Identity(), lambda _: AffineSet.equality(C, d))(f)
    broken = C.clone()
    broken[1] = torch.nan
    y = ACnet(nn.Identity(), lambda _: AffineSet.equality(broken, d))(f)
    torch.testing.assert_close(y[[0, 2]], expected[[0, 2]])
    assert y[1, 1].isnan()
