"""The promises, on generated problems with answers proven in rational arithmetic: nothing but this clone is needed."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from caffnet import AffineSet, InfeasibleError, Status, project, tolerance
from exact import conflict_gap, holds, prove_projection

STORED = json.loads((Path(__file__).parent / "problems.json").read_text())
PROBLEMS = {problem["name"]: problem for problem in STORED["problems"]}
EMPTY = {problem["name"]: problem for problem in STORED["empty"]}
TYPES = [torch.float64, torch.float32]
FLAT = ("flat", "portfolio", "dispatch", "hierarchy", "flow")  # families without an interior, or with equalities


def set_of(problem: dict, dtype: torch.dtype) -> AffineSet:
    return AffineSet(*(torch.tensor(problem[part], dtype=dtype) for part in ("A", "lower", "upper")))


def points(problem: dict, part: str, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor([sample[part] for sample in problem["samples"]], dtype=dtype)


def enumerable(problem: dict) -> bool:
    return len(problem["A"]) <= 12 and len(problem["A"][0]) <= 4


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_stored_answers_are_exact(name: str):
    """Once more in fractions: the proof is a part of the test, not of the file."""
    problem = PROBLEMS[name]
    for sample in problem["samples"]:
        y = prove_projection(problem["A"], problem["lower"], problem["upper"], sample["f"], sample["active"])
        assert y is not None and [float(value) for value in y] == sample["y"]


def test_a_wrong_answer_has_no_proof():
    square = [[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0], [1.0, 1.0]
    assert prove_projection(*square, [2.0, 0.5], [(0, 1)]) == [1, Fraction(1, 2)]
    assert prove_projection(*square, [2.0, 0.5], []) is None  # not feasible
    assert prove_projection(*square, [2.0, 0.5], [(0, 1), (1, 1)]) is None  # feasible, not the nearest
    assert prove_projection(*square, [2.0, 0.5], [(0, -1)]) is None  # the wrong side


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("name", "search"),
    [(name, search) for name in PROBLEMS for search in ("auto", "active")]
    + [(name, "full") for name, problem in PROBLEMS.items() if enumerable(problem)],
)
def test_the_answer_is_the_projection(name: str, search: str, dtype: torch.dtype):
    problem = PROBLEMS[name]
    set, f, exact = set_of(problem, dtype), points(problem, "f", dtype), points(problem, "y")
    answer = project(f, set, search=search)
    assert (answer.status <= Status.WITHIN_TOL).all()
    scale = torch.maximum(exact.abs().amax(-1), torch.tensor(1.0))
    allowed = 1e-9 if dtype == torch.float64 else 2e-4
    assert ((answer.value.double() - exact).abs().amax(-1) / scale).max() <= allowed
    bound = torch.maximum(*(torch.where(b.isfinite(), b.abs(), 0.0) for b in (set.lower, set.upper)))
    reach = (answer.value.abs() + f.abs()).amax(-1, keepdim=True)
    promised = tolerance.feasibility(dtype, set.n) * (set.A.abs().sum(-1) * reach + bound)
    assert (set.violation(answer.value) <= promised).all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_feasible_point_and_an_answer_come_back_bit_for_bit(name: str, dtype: torch.dtype):
    problem = PROBLEMS[name]
    set, f = set_of(problem, dtype), points(problem, "f", dtype)
    answer = project(f, set)
    assert torch.equal(project(answer.value, set).value, answer.value)
    inside = [not sample["active"] for sample in problem["samples"]]
    assert torch.equal(answer.value[inside], f[inside])
    assert (answer.status[inside] == Status.INSIDE).all()


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_batch_has_the_bits_of_a_loop(name: str):
    problem = PROBLEMS[name]
    set, f = set_of(problem, torch.float64), points(problem, "f")
    together = project(f, set).value
    assert torch.equal(together, torch.stack([project(one, set).value for one in f]))
    own = AffineSet(set.A.expand(len(f), *set.A.shape).contiguous(), set.lower, set.upper)
    assert torch.equal(together, project(f, own).value)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_strict_holds_in_exact_arithmetic(name: str, dtype: torch.dtype):
    problem = PROBLEMS[name]
    set = set_of(problem, dtype)
    answer = project(points(problem, "f", dtype), set, strict=True)
    loose = [low != high for low, high in zip(problem["lower"], problem["upper"], strict=True)]
    rows = [[row for row, kept in zip(problem[part], loose, strict=True) if kept] for part in ("A", "lower", "upper")]
    for y, status in zip(answer.value.tolist(), answer.status.tolist(), strict=True):
        exact = holds(*rows, y)
        assert exact or status == Status.WITHIN_TOL
        assert exact or name.startswith((*FLAT, "degenerate", "dependent", "steep"))  # these may have no interior


@pytest.mark.parametrize(
    "name", [name for name in PROBLEMS if not name.startswith(("degenerate", "dependent", "flat"))]
)
def test_the_gradient_is_that_of_the_face(name: str):
    """``∂f = v - Wᵀ (W Wᵀ)⁻¹ W v`` on the rows of the proof; kinks are left out."""
    problem = PROBLEMS[name]
    set, f = set_of(problem, torch.float64), points(problem, "f").requires_grad_()
    answer = project(f, set)
    random = torch.Generator().manual_seed(0)
    v = torch.randn(f.shape, generator=random, dtype=torch.float64)
    (slope,) = torch.autograd.grad((answer.value * v).sum(), f)
    assert slope.isfinite().all()
    for i, sample in enumerate(problem["samples"]):
        rows = np.array([problem["A"][row] for row, _ in sample["active"]]).reshape(-1, set.n)
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
        if (answer.binding[i] != 0).sum() != np.linalg.matrix_rank(rows):
            continue  # other rows touch the point: a kink
        expected = v[i].numpy() - np.linalg.pinv(rows) @ (rows @ v[i].numpy())
        np.testing.assert_allclose(slope[i].numpy(), expected, atol=1e-7)


# ------------------------------------------------------------------------------------------------ empty sets


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_set_raises_with_a_proof_that_holds(name: str, dtype: torch.dtype):
    problem = EMPTY[name]
    set = set_of(problem, dtype)
    with pytest.raises(InfeasibleError, match="No point satisfies") as caught:
        project(torch.zeros(set.n, dtype=dtype), set)
    (conflict,) = caught.value.conflicts
    assert conflict.proven
    weights = {i: Fraction(mu) for i, mu in zip(conflict.rows, conflict.multipliers, strict=True)}
    left, gap = conflict_gap(problem["A"], problem["lower"], problem["upper"], weights)
    assert gap < 0 and float(gap) == pytest.approx(conflict.gap, rel=1e-12)
    assert max(abs(float(value)) for value in left) <= 1e-14


@pytest.mark.parametrize("name", EMPTY)
def test_nearest_has_the_least_violation(name: str):
    set = set_of(EMPTY[name], torch.float64)
    answer = project(torch.zeros(set.n, dtype=torch.float64), set, on_infeasible="nearest")
    assert answer.status == Status.INFEASIBLE
    assert float(answer.violation) == pytest.approx(EMPTY[name]["least"], rel=1e-9)


def test_empty_and_invalid_samples_do_not_disturb_the_others():
    problem = PROBLEMS["dense-0"]
    set, f = set_of(problem, torch.float64), points(problem, "f")
    alone = project(f, set).value
    upper = set.upper.repeat(len(f), 1)
    upper[1] = -1e6  # rows around a point cannot all be that far away
    spoiled = f.clone()
    spoiled[2, 0] = torch.nan
    answer = project(spoiled, AffineSet(set.A, None, upper), on_infeasible="nan")
    assert answer.status[1] == Status.INFEASIBLE and answer.status[2] == Status.INVALID
    kept = [0, 3, 4, 5]
    assert torch.equal(answer.value[kept], alone[kept]) and answer.value[[1, 2]].isnan().all()


def test_the_file_is_what_the_generator_writes():
    """Where DAQP is installed."""
    pytest.importorskip("daqp")
    import make_reference

    for name in ("degenerate-5", "dependent-2", "flow-1"):  # integers and halves: the same on every machine
        family, _, seed = name.rpartition("-")
        assert json.loads(json.dumps(make_reference.make_problem(family, int(seed)))) == PROBLEMS[name]
    assert make_reference.make_empty(4) == EMPTY["empty-4"]
    assert {name.rpartition("-")[0] for name in PROBLEMS} == set(make_reference.FAMILIES)
