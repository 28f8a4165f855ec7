from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from caffnet import AffineSet
from caffnet.methods import DC3, UnsupportedError


def test_violation_decreases_with_the_iterations(mixed: AffineSet):
    f = 3 * torch.randn(100, 5, dtype=torch.float64)
    worst = [
        float(mixed.violation(DC3(nn.Identity(), mixed, lr=1e-3, test_steps=t).eval()(f)).sum())
        for t in (0, 5, 20, 80, 320)
    ]
    assert all(later < earlier for earlier, later in pairwise(worst))
    assert worst[-1] < 0.05 * worst[0]


def test_completion_solves_the_equalities_and_correction_keeps_them(mixed: AffineSet):
    f = 3 * torch.randn(100, 5, dtype=torch.float64)
    for steps in (0, 10):
        y = DC3(nn.Identity(), mixed, lr=1e-2, test_steps=steps).eval()(f)
        assert mixed.violation(y)[:, 5:].max() < 1e-10


def test_one_step_is_the_published_formula(mixed: AffineSet):
    method = DC3(nn.Identity(), mixed, lr=0.03, steps=1)
    f = 3 * torch.randn(20, 5, dtype=torch.float64)
    assert method.dependent is not None
    D = list(method.dependent)
    F = [j for j in range(5) if j not in D]
    G, h, C, x = mixed.A[:5], mixed.upper[:5], mixed.A[5:], mixed.upper[5:]
    inverse = torch.linalg.inv(C[:, D])
    G_e = G[:, F] - G[:, D] @ inverse @ C[:, F]
    h_e = h - G[:, D] @ inverse @ x
    z = f[:, F] - 0.03 * 2 * torch.relu(f[:, F] @ G_e.T - h_e) @ G_e
    y = method.train()(f)
    torch.testing.assert_close(y[:, F], z)
    torch.testing.assert_close(y[:, D], (x - z @ C[:, F].T) @ inverse.T)


def test_without_completion_both_residuals_decrease(mixed: AffineSet):
    f = 3 * torch.randn(50, 5, dtype=torch.float64)
    y = DC3(nn.Identity(), mixed, completion=False, lr=1e-2, test_steps=200).eval()(f)
    assert mixed.violation(y).sum() < 0.1 * mixed.violation(f).sum()


def test_rows_may_depend_on_the_input():
    C, G = torch.rand(30, 1, 4, dtype=torch.float64) + 0.5, torch.randn(30, 3, 4, dtype=torch.float64)
    d, h = torch.randn(30, 1, dtype=torch.float64), torch.ones(30, 3, dtype=torch.float64)
    limits = AffineSet.inequality(G, h) & AffineSet.equality(C, d)
    method = DC3(nn.Identity(), lambda _: limits, lr=1e-2, test_steps=300, dependent=[0]).eval()
    y = method(torch.randn(30, 4, dtype=torch.float64))
    assert limits.violation(y)[:, 3:].max() < 1e-9
    assert limits.violation(y)[:, :3].mean() < 1e-2


def test_gradients_flow_through_the_unrolled_steps(mixed: AffineSet):
    method = DC3(nn.Identity(), mixed, lr=1e-2, steps=3)
    f = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(method, f)


def test_the_chosen_outputs_are_part_of_the_checkpoint(mixed: AffineSet):
    first, second = (DC3(nn.Identity(), mixed, dependent=dependent) for dependent in (None, [2, 3, 4]))
    assert first.dependent != second.dependent
    second.load_state_dict(first.state_dict())
    assert first.dependent == second.dependent


def test_dependent_equalities_are_refused():
    limits = AffineSet.equality([[1.0, 1.0], [1.0, 1.0]], 0.0)
    with pytest.raises(
        UnsupportedError, match=r"2 equalities have rank 1, so they cannot be solved for any 2 .* completion=False"
    ):
        DC3(nn.Identity(), limits)
    with pytest.raises(UnsupportedError, match="1 dependent outputs for 2 equalities; it needs one per equality"):
        DC3(nn.Identity(), limits, dependent=[0])
    with pytest.raises(UnsupportedError, match="the 3 equalities have rank 2, so"):
        DC3(nn.Identity(), AffineSet.equality(torch.randn(3, 2), 0.0))
    with pytest.raises(UnsupportedError, match=r"cannot be solved for the outputs \[2\]; .* or dependent=None"):
        DC3(nn.Identity(), AffineSet.equality([[1.0, 1.0, 0.0]], 0.0), dependent=[2])


def balances(nodes: int, edges: int, seed: int) -> torch.Tensor:
    """What flows into each node of a random connected network flows out; one node, the source, is left out.

    The equalities can be solved for the flows on the edges of a spanning tree, and for no others.
    """
    g = torch.Generator().manual_seed(seed)
    C = torch.zeros(nodes + 1, edges, dtype=torch.float64)
    for e in range(edges):
        start = min(e, nodes - 1) + 1  # the first edges make a tree
        end = int(torch.randint(start, (), generator=g))
        C[start, e], C[end, e] = 1.0, -1.0
    return C[1:, torch.randperm(edges, generator=g)]


@pytest.mark.parametrize("seed", range(5))
def test_a_solvable_choice_is_found_among_very_many(seed: int):
    C = balances(36, 54, seed)
    f = torch.randn(10, 54, dtype=torch.float64)
    y = DC3(nn.Identity(), AffineSet.equality(C, torch.ones(36, dtype=torch.float64)))(f)
    torch.testing.assert_close(y @ C.T, torch.ones(10, 36, dtype=torch.float64))
    C[7] = C[3] - C[5]
    with pytest.raises(
        UnsupportedError, match="the 36 equalities have rank 35, so they cannot be solved for any 36 of"
    ):
        DC3(nn.Identity(), AffineSet.equality(C, torch.ones(36, dtype=torch.float64)))


def test_many_dense_rows_have_small_determinants_and_are_solved():
    C, d = torch.randn(50, 60, dtype=torch.float64), torch.randn(50, dtype=torch.float64)
    y = DC3(nn.Identity(), AffineSet.equality(C, d))(torch.randn(10, 60, dtype=torch.float64))
    torch.testing.assert_close(y @ C.T, d.expand(10, 50))


def test_one_choice_serves_all_samples():
    # the first output alone would do for the first sample, the second for the second; the third serves both
    C = torch.tensor([[[1.0, 0.0, 0.5]], [[0.0, 1.0, 0.5]]])
    method = DC3(nn.Identity(), lambda x: AffineSet.equality(C, x[:, :1])).eval()
    x = torch.randn(2, 3)
    torch.testing.assert_close((C @ method(x).unsqueeze(-1))[:, 0, 0], x[:, 0])
    assert method.dependent == (2,)
    method = DC3(nn.Identity(), lambda x: AffineSet.equality(C[..., :2], x[:, :1]))
    with pytest.raises(
        UnsupportedError, match=r"no 1 of the 2 outputs were found .* all 2 samples .* dependent=\[...\]"
    ):
        method(torch.randn(2, 2))


def test_the_unit_of_an_equality_does_not_matter(mixed: AffineSet):
    f = 3 * torch.randn(20, 5, dtype=torch.float64)
    expected = DC3(nn.Identity(), mixed, lr=1e-2)
    G, C = mixed.A[:5], mixed.A[5:]
    for sizes in ([1e-30, 1.0, 1e30], [1e30, 1e-30, 1e-30], [1.0, 1e-16, 1.0]):
        size = torch.tensor(sizes, dtype=torch.float64)
        equal = AffineSet.equality(size.unsqueeze(-1) * C, size * mixed.upper[5:])
        method = DC3(nn.Identity(), AffineSet.inequality(G, mixed.upper[:5]) & equal, lr=1e-2)
        assert method.dependent == expected.dependent
        torch.testing.assert_close(method(f), expected(f))


def test_rows_of_x_that_cannot_be_solved_are_refused():
    method = DC3(nn.Identity(), lambda x: AffineSet.equality(x.unsqueeze(-2), [1.0]))
    method(torch.tensor([[1.0, 0.0]]))  # chooses the first output
    with pytest.raises(UnsupportedError, match=r"cannot be solved for the outputs \[0\]"):
        method(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
