"""The tasks are what the report says they are, and the reference is exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from caffnet import AffineSet, project
from caffnet_lab.bench import literal, reference, tasks
from caffnet_lab.bench.tasks import TASKS, Task
from caffnet_lab.experiments.opt import SolverProblem

SHAPES = {
    # name: n, inequalities, equalities, batch, shared A
    "pwc": (1, 4, 0, 500, True),
    "opt": (5, 5, 3, 1000, True),
    "cbf-300": (2, 13, 0, 300, False),
    "cbf-1": (2, 13, 0, 1, False),
    "dc3-200": (100, 50, 50, 200, True),
    "dc3-1000": (100, 50, 50, 1000, True),
    "growth-2": (2, 8, 0, 256, False),
    "growth-64": (64, 256, 0, 256, False),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_as_stated(name: str):
    task = TASKS[name]()
    assert (task.n, task.inequalities, task.equalities, task.batch, task.shared) == SHAPES[name]
    assert task.name == name and task.family == name.split("-")[0]
    assert task.f.shape == task.v.shape == (task.batch, task.n)
    assert {t.dtype for t in (task.x, task.f, task.v, task.set.A)} == {torch.float64}
    s = task.standard()
    assert s.G.shape[-2:] == (task.inequalities, task.n) and s.C.shape[-2:] == (task.equalities, task.n)
    assert s.h.shape == (task.batch, task.inequalities) and s.d.shape == (task.batch, task.equalities)
    assert s.h.isfinite().all()


def test_growth_goes_from_2_to_256_with_four_rows_per_output():
    assert [name for name in TASKS if name.startswith("growth")] == [f"growth-{2**k}" for k in range(1, 9)]


def test_the_same_numbers_every_time():
    one, two = TASKS["growth-4"](), TASKS["growth-4"]()
    assert torch.equal(one.f, two.f) and torch.equal(one.set.A, two.set.A) and torch.equal(one.v, two.v)


@pytest.mark.parametrize("name", ["pwc", "opt", "cbf-300", "cbf-1", "dc3-200", "growth-8"])
def test_there_is_something_to_do(name: str):
    task = TASKS[name]()
    outside = (~task.set.contains(task.f)).double().mean()
    assert outside >= 0.3


def test_families_and_names_select():
    assert tasks.select(None) == list(TASKS)
    assert tasks.select(["dc3"]) == ["dc3-200", "dc3-1000"]
    assert tasks.select(["dc3"], quick=True) == ["dc3-200"]
    assert tasks.select(["growth-256"], quick=True) == ["growth-256"]
    with pytest.raises(ValueError, match="no task 'nope': use one of pwc, opt"):
        tasks.select(["nope"])


@pytest.mark.parametrize("name", ["pwc", "opt", "cbf-300", "growth-8"])
def test_the_reference_is_the_projection_and_its_gradient(name: str):
    task = TASKS[name]()
    exact = reference.solve(task)
    assert exact.proved.all() and exact.smooth.double().mean() > 0.99
    f = task.f.clone().requires_grad_()
    y = project(f, task.set).value
    torch.testing.assert_close(y.detach(), exact.y, rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(y, f, task.v)
    torch.testing.assert_close(gradient[exact.smooth], exact.gradient[exact.smooth], rtol=0, atol=1e-10)


def square(f: list[list[float]]) -> Task:
    point = torch.tensor(f, dtype=torch.float64)
    box = AffineSet.inequality(
        torch.cat([torch.eye(2), -torch.eye(2)]).double(), torch.ones(len(f), 4, dtype=torch.float64)
    )
    return Task("square", "square", point, point, torch.ones_like(point), box)


def test_the_reference_knows_a_square_by_heart():
    exact = reference.solve(square([[0.2, 0.3], [3.0, 0.5], [2.0, -5.0]]))
    np.testing.assert_allclose(exact.y, [[0.2, 0.3], [1.0, 0.5], [1.0, -1.0]])
    np.testing.assert_allclose(exact.gradient, [[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]], atol=1e-15)
    assert exact.proved.all() and exact.smooth.all()


def test_the_reference_sees_a_kink():
    """On the boundary, and on the normal through a corner, the gradient jumps."""
    exact = reference.solve(square([[1.0, 0.3], [3.0, 1.0], [3.0, 1.1]]))
    assert exact.smooth.tolist() == [False, False, True]


def test_a_wrong_proposal_is_not_proved(monkeypatch):
    """The proof does not believe the solver."""

    def nothing_active(H, f, A, upper, *rest, **options):
        return np.zeros(len(f)), 0.0, 1, {"lam": np.zeros(len(upper))}

    monkeypatch.setattr(reference.daqp, "solve", nothing_active)
    assert reference.solve(square([[0.2, 0.3], [3.0, 0.5]])).proved.tolist() == [True, False]


def test_the_literal_algorithm_counts_1023_subsets_on_opt():
    task = TASKS["opt"]()
    assert literal.rows_of(task) == 11
    assert literal.subsets(11, 5) == 1023
    assert literal.needed_bytes(TASKS["growth-8"]()) > 2**40


@pytest.mark.parametrize("lite", [False, True])
def test_enumeration_of_a_set_is_the_nearest_point(lite: bool):
    """On opt, whose pairs of rows hold every face that is needed, Lite too; the layer itself is the other side."""
    problem = SolverProblem(3)
    rows = problem.build_set(problem.test[:40])
    f = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = literal.of_set(rows, 40, lite)(f)
    assert rows.violation(y).max() < 1e-9
    torch.testing.assert_close(y, project(f, rows).value, atol=1e-9, rtol=0)


def test_enumeration_knows_lower_bounds():
    rows = AffineSet([[1.0, 0.0], [0.0, 1.0]], [-math.inf, 0.5], [0.25, math.inf])
    f, y = torch.tensor([[[1.0, -1.0], [0.0, 2.0]], [[0.25, 0.5], [0.0, 2.0]]], dtype=torch.float64)
    torch.testing.assert_close(literal.of_set(rows, 2)(f), y)
