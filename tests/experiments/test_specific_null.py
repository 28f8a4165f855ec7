"""A null-space vector for every choice of rows: against the layer where they agree, and by hand where they do not."""

import pytest
import torch

from caffnet import AffineSet, FeedForward, project
from caffnet_lab.experiments.config import ConfigError, resolve
from caffnet_lab.experiments.models import build_model
from caffnet_lab.experiments.opt import SolverProblem
from caffnet_lab.experiments.specific_null import SpecificNull


@pytest.fixture(scope="module")
def problem() -> SolverProblem:
    return SolverProblem(3)


@pytest.fixture(scope="module")
def model(problem) -> SpecificNull:
    return build_model(resolve("opt", "caffnet-ff-each", 3, "ours", {"hidden": 16}), problem)


def test_opt_has_sixteen_choices(model):
    assert len(model.choices) == 1 + 5 + 10
    assert all(set(rows) >= {5, 6, 7} for rows in model.choices)  # the equalities


def test_it_starts_as_the_projection(model, problem):
    x = problem.test[:200]
    torch.testing.assert_close(model(x), project(model.backbone(x), problem.build_set(x)).value, atol=1e-10, rtol=0)


@pytest.mark.parametrize("size", [0.3, 1.0, 4.0])
def test_with_the_same_vector_for_all_choices_it_is_the_papers_map(model, problem, size):
    stream = torch.Generator().manual_seed(0)
    x = problem.test[:300]
    f, w = (torch.randn(300, 5, dtype=torch.float64, generator=stream) for _ in range(2))
    rows = problem.build_set(x)
    each = model.choose(f, (size * w).unsqueeze(1).expand(-1, 16, -1), rows)
    torch.testing.assert_close(each, project(f, rows, size * w, search="full").value, atol=1e-9, rtol=0)


def test_a_vector_moves_its_own_choice_only():
    """y_1 <= 0, y_2 <= 0 and f = (1, -3): only the choice of the first row is near, and only its vector has a say."""
    rows = AffineSet.inequality(torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    model = SpecificNull(FeedForward(1, 2).double(), lambda x: rows, rows, lambda n: FeedForward(1, n).double())
    assert model.choices == [[0], [1], [0, 1]]
    f = torch.tensor([[1.0, -3.0]], dtype=torch.float64)
    w = torch.zeros(1, 3, 2, dtype=torch.float64)
    w[0, 1] = w[0, 2] = 5.0
    torch.testing.assert_close(model.choose(f, w, rows), torch.tensor([[0.0, -3.0]], dtype=torch.float64))
    w[0, 0] = torch.tensor([7.0, -1.0])
    torch.testing.assert_close(model.choose(f, w, rows), torch.tensor([[0.0, -4.0]], dtype=torch.float64))
    w[0, 0, 1] = 10.0  # out of the set: the vertex is the nearest that is left
    torch.testing.assert_close(model.choose(f, w, rows), torch.tensor([[0.0, 0.0]], dtype=torch.float64))


def test_every_row_holds_while_it_trains(model, problem):
    x = problem.train[:100]
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(20):
        loss = problem.objective(model(x)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        assert problem.build_set(x).violation(model(x).detach()).max() < 1e-9
    assert losses[-1] < losses[0]
    assert model.null[-1].weight.grad.abs().max() > 0


def test_what_it_cannot_do_is_refused():
    box = AffineSet.box(0.0, 1.0, dim=2)
    with pytest.raises(ValueError, match="one A for all inputs, with upper bounds and equalities only"):
        SpecificNull(FeedForward(1, 2), lambda x: box, box, lambda n: FeedForward(1, n))
    many = AffineSet.inequality(torch.randn(30, 8), torch.ones(30))
    with pytest.raises(ValueError, match="too many for a vector each"):
        SpecificNull(FeedForward(1, 8), lambda x: many, many, lambda n: FeedForward(1, n))
    with pytest.raises(ConfigError, match="a w for every choice of rows, is for opt"):
        resolve("pwc", "caffnet-ff-each", 1, "ours")
    with pytest.raises(ConfigError, match="gradient=exact"):
        resolve("opt", "caffnet-ff-each", 1, "ours", {"gradient": "tangent"})
