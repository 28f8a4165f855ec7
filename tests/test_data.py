"""Real problems with answers proven in exact arithmetic (read from the shared data, never copied)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from caffnet import InfeasibleError, Status, project, tolerance
from helpers import needs_data, set_of, stored_index, stored_problem

pytestmark = needs_data

INDEX = stored_index()
FEASIBLE = [name for name, entry in INDEX.items() if entry["feasible"]]
EMPTY = [name for name, entry in INDEX.items() if not entry["feasible"]]
BATCHED = [name for name in FEASIBLE if name.startswith("opf_") and "b_batch" in stored_problem(name)]
SMALL = [name for name in FEASIBLE if INDEX[name]["log10_subsets"] <= 5]


def relative_error(y: torch.Tensor, exact: torch.Tensor) -> float:
    scale = exact.abs().amax(-1).clamp_min(1)
    return float(((y.double() - exact).abs().amax(-1) / scale).max())


@pytest.mark.parametrize("search", ["auto", "active"])
@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("name", FEASIBLE)
def test_equals_the_exact_projection(name: str, dtype: torch.dtype, allowed: float, search: str):
    problem = stored_problem(name)
    set = set_of(problem, dtype)
    f, exact = torch.as_tensor(problem["F"]).to(dtype), torch.as_tensor(problem["Y"])
    answer = project(f, set, search=search)
    assert (answer.status <= Status.WITHIN_TOL).all()
    assert relative_error(answer.value, exact) <= allowed
    bound = torch.maximum(*(torch.where(b.isfinite(), b.abs(), 0.0) for b in (set.lower, set.upper)))
    reach = (answer.value.abs() + f.abs()).amax(-1, keepdim=True)
    promised = tolerance.feasibility(dtype, set.n) * (set.A.abs().sum(-1) * reach + bound)
    assert (set.violation(answer.value) <= promised).all()
    again = project(answer.value, set, search=search)
    assert torch.equal(again.value, answer.value)


@pytest.mark.parametrize("search", ["full", "lite"])
@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("name", SMALL)
def test_enumeration_equals_the_exact_projection(name: str, dtype: torch.dtype, allowed: float, search: str):
    problem = stored_problem(name)
    set = set_of(problem, dtype)
    f, exact = torch.as_tensor(problem["F"]).to(dtype), torch.as_tensor(problem["Y"])
    answer = project(f, set, search=search)
    if search == "full":
        assert relative_error(answer.value, exact) <= allowed
    distance = [(y.double() - torch.as_tensor(problem["F"])).norm(dim=-1) for y in (answer.value, exact)]
    assert (distance[0] >= distance[1] * (1 - allowed)).all()


@pytest.mark.parametrize("name", BATCHED)
def test_bounds_that_depend_on_the_input(name: str):
    """Optimal power flow: loads x change both the line limits and the balance; one batch of eight load vectors."""
    problem = stored_problem(name)
    batch = {**problem, "b": problem["b_batch"], "d": problem["d_batch"]}
    from caffnet import AffineSet

    n = problem["A"].shape[-1]
    tensors = {k: torch.as_tensor(v) for k, v in batch.items() if k in ["A", "b", "C", "d", "l", "u"]}
    set = AffineSet.inequality(tensors["A"].reshape(-1, n), tensors["b"])
    set = set & AffineSet.equality(tensors["C"].reshape(-1, n), tensors["d"])
    set = set & AffineSet.box(tensors["l"], tensors["u"])
    answer = project(torch.as_tensor(problem["f_batch"]), set)
    assert relative_error(answer.value, torch.as_tensor(problem["y_batch"])) <= 1e-9


def test_the_piecewise_task_of_the_paper_at_all_test_points():
    """400 one-dimensional sets, a quarter of them a single point: the answer is a clamp."""
    from caffnet import AffineSet

    problem = stored_problem("paper_pwc")
    bounds = torch.as_tensor(problem["b_batch"])
    A = torch.as_tensor(problem["A"])
    upper = torch.where(A[:, 0] > 0, bounds, np.inf).amin(-1)
    lower = torch.where(A[:, 0] < 0, -bounds, -np.inf).amax(-1)
    f = torch.linspace(-5, 5, 400, dtype=torch.float64).unsqueeze(-1)
    answer = project(f, AffineSet.inequality(A, bounds))
    assert torch.equal(answer.value, f.clamp(lower.unsqueeze(-1), upper.unsqueeze(-1)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_set_raises_with_a_certificate_that_holds(name: str, dtype: torch.dtype):
    problem = stored_problem(name)
    set = set_of(problem, dtype)
    with pytest.raises(InfeasibleError, match="No point satisfies") as caught:
        project(torch.zeros(set.n, dtype=dtype), set)
    (conflict,) = caught.value.conflicts
    assert conflict.proven
    A, lower, upper = (t.double().numpy() for t in (set.A, set.lower, set.upper))
    weights = np.array(conflict.multipliers)
    bounds = np.array([upper[i] if mu > 0 else lower[i] for i, mu in zip(conflict.rows, weights, strict=True)])
    assert np.isfinite(bounds).all()
    assert np.abs(weights @ A[list(conflict.rows)]).max() <= 1e-12 * np.abs(A).max()
    assert weights @ bounds < -1e-6


@pytest.mark.parametrize("name", EMPTY)
def test_nearest_has_the_least_violation(name: str):
    set = set_of(stored_problem(name))
    answer = project(torch.zeros(set.n, dtype=torch.float64), set, on_infeasible="nearest")
    assert answer.status == Status.INFEASIBLE
    least = INDEX[name]["least_max_violation_LP"]
    assert abs(float(answer.violation) - least) <= 1e-9 * max(least, 1)
