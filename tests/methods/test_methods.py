"""What all methods share: construction, call, registry, loss, refusal, number types."""

from __future__ import annotations

import ast
import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import caffnet.methods
from caffnet import AffineSet, ConstraintError, FeedForward, Transformer
from caffnet.methods import METHODS, POLICE, AffineOn, Guarantee, Method, Penalty, UnsupportedError, fit

NAMES = [
    "soft", "police", "kkt_hpinn", "acnet", "dc3", "fsnet", "hardnet", "frerix", "cdgm", "rayen", "posthoc",
    "orthogonal", "ipopt", "caffnet-ff", "caffnet-tf", "caffnet-lite",
]  # fmt: skip
OURS = {"caffnet.py", "orthogonal.py", "posthoc.py"}


def build(name: str, dtype: torch.dtype = torch.float64, **hyper: Any) -> Method:
    """A method on a constraint it supports: 4 inputs, 3 outputs."""
    backbone = Transformer(4, 3, width=12) if name == "caffnet-tf" else FeedForward(4, 3, hidden=16, layers=2)
    if name in ("kkt_hpinn", "acnet"):
        constraint = AffineSet.equality(torch.ones(1, 3, dtype=dtype), [1.0])
    elif name == "frerix":
        constraint = AffineSet.inequality(torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]], dtype=dtype), 0.0)
    elif name == "police":
        return POLICE(backbone.to(dtype), AffineOn(torch.eye(4, dtype=dtype)), **hyper)
    else:
        constraint = AffineSet.inequality(torch.ones(1, 3, dtype=dtype), [-1.0])
    return METHODS[name](backbone.to(dtype), constraint, **hyper)


def test_the_registry_names_every_method_once():
    assert list(METHODS) == NAMES
    assert all(METHODS[name].name == name for name in NAMES)
    assert all(isinstance(METHODS[name].guarantee, Guarantee) for name in NAMES)
    assert all(METHODS[name].__doc__ for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_output_follows_the_input(name: str, dtype: torch.dtype):
    method = build(name, dtype).eval()
    output = method.run(torch.randn(5, 4, dtype=dtype))
    assert output.y.shape == (5, 3)
    assert output.y.dtype == dtype
    torch.testing.assert_close(method(torch.ones(2, 4, dtype=dtype)), method.run(torch.ones(2, 4, dtype=dtype)).y)


@pytest.mark.parametrize("name", [n for n in NAMES if METHODS[n].guarantee == Guarantee.EXACT and n != "police"])
def test_exact_methods_satisfy_what_they_support(name: str, dtype: torch.dtype):
    method = build(name, dtype).eval()
    x = 5 * torch.randn(200, 4, dtype=dtype)
    output = method.run(x)
    assert output.set.violation(output.y).max() < (1e-4 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("name", [n for n in NAMES if METHODS[n].differentiable])
def test_one_loop_trains_each_of_them(name: str):
    options: dict[str, Any] = {"lr": 1e-2} if name == "dc3" else {}
    method = build(name, **options)
    x = torch.randn(64, 4, dtype=torch.float64)
    target = torch.stack([x[:, 0], x[:, 1] - 1, x[:, 2] + 1], -1)
    history = fit(method, x, lambda y, index: (y - target[index]).square().mean(), epochs=40, lr=3e-3)
    assert history[-1] < history[0]


def test_ipopt_is_not_trained():
    with pytest.raises(UnsupportedError, match="IPOPT is an optimiser, nothing is trained"):
        fit(build("ipopt"), torch.zeros(2, 4), lambda y, _: y.sum())


@pytest.mark.parametrize("name", NAMES)
def test_methods_can_be_copied_and_pickled(name: str):
    method = build(name).eval()
    x = torch.randn(3, 4, dtype=torch.float64)
    y = method(x)
    torch.testing.assert_close(copy.deepcopy(method)(x), y)
    torch.testing.assert_close(pickle.loads(pickle.dumps(method))(x), y)


@pytest.mark.parametrize("name", ["soft", "hardnet", "dc3", "fsnet", "posthoc", "orthogonal", "caffnet-ff", "ipopt"])
def test_nominal_is_added_to_the_raw_output(name: str):
    method = build(name).eval()
    x, nominal = torch.randn(3, 4, dtype=torch.float64), torch.ones(3, 3, dtype=torch.float64)
    torch.testing.assert_close(method.run(x, nominal).raw, method.run(x).raw + 1)


@pytest.mark.parametrize("name", ["rayen", "cdgm", "frerix"])
def test_fixed_methods_refuse_a_function_of_the_input(name: str):
    with pytest.raises(UnsupportedError, match=r"got a function x -> AffineSet; it needs one AffineSet .*caffnet-ff"):
        METHODS[name](FeedForward(4, 3), lambda x: AffineSet.box(x[..., :3], None))


@pytest.mark.parametrize("name", ["rayen", "cdgm", "frerix"])
def test_fixed_methods_refuse_one_set_per_sample(name: str):
    with pytest.raises(UnsupportedError, match="differs between samples"):
        METHODS[name](FeedForward(4, 3), AffineSet.box(torch.zeros(5, 3), None))


@pytest.mark.parametrize("name", ["kkt_hpinn", "acnet"])
def test_equality_methods_refuse_inequalities(name: str):
    with pytest.raises(UnsupportedError, match=r"'cap' is an inequality; it needs equalities only. Use .*caffnet-ff"):
        METHODS[name](FeedForward(4, 2), AffineSet.inequality([[1.0, 0.0]], [1.0], names=["cap"]))


def test_a_constraint_must_be_a_set_or_a_function():
    with pytest.raises(ConstraintError, match="must be an AffineSet or a function x -> AffineSet, got float"):
        METHODS["soft"](FeedForward(1, 1), 3.0)  # pyright: ignore[reportArgumentType]


def test_the_backbone_must_have_the_sets_outputs():
    with pytest.raises(ConstraintError, match=r"must return \(..., 3\) .* got \(2, 2\)"):
        METHODS["soft"](nn.Identity(), AffineSet.box(0.0, 1.0, dim=3))(torch.zeros(2, 2))


def test_a_soft_network_answers_without_its_constraints():
    """They are for the loss; building them for every answer would be time that the method does not need."""
    asked = []

    def limits(x):
        asked.append(x)
        return AffineSet.box(0.0, 1.0, dim=2)

    method = METHODS["soft"](nn.Identity(), limits)
    assert method(torch.ones(3, 2), torch.ones(3, 2)).tolist() == [[2.0, 2.0]] * 3
    assert not asked
    assert method.run(torch.ones(3, 2)).set.m == 2 and len(asked) == 1


def test_data_are_not_cast_behind_the_users_back():
    method = METHODS["hardnet"](nn.Identity(), AffineSet.box(torch.zeros(2, dtype=torch.float64), 1.0))
    with pytest.raises(ConstraintError, match=r"float32, the constraints are torch\.float64"):
        method(torch.zeros(2, 2))


def rows_of_x(name: str, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that the method supports, for three outputs, and raw outputs far outside."""
    A = torch.randn(samples, 2, 3, dtype=torch.float64)
    return A[:1].expand(samples, 2, 3).clone() if name == "kkt_hpinn" else A, 3 * torch.randn(samples, 3).double()


def of_x(name: str, A: torch.Tensor, b: torch.Tensor) -> Method:
    make = AffineSet.equality if name in ("kkt_hpinn", "acnet", "dc3") else AffineSet.inequality
    return METHODS[name](nn.Identity(), lambda _: make(A, b)).eval()


@pytest.mark.parametrize("name", ["hardnet", "kkt_hpinn", "acnet", "dc3", "fsnet"])
def test_a_sample_without_numbers_is_left_out(name: str):
    (A, f), b = rows_of_x(name, 6), torch.rand(6, 2, dtype=torch.float64)
    good = torch.tensor([0, 1, 5])
    expected = of_x(name, A[good], b[good])(f[good])
    A[2, 0, 1], b[3, 1], f[4, 2] = torch.nan, torch.nan, torch.nan
    y = of_x(name, A, b)(f)
    torch.testing.assert_close(y[good], expected)
    assert y[2:5].isnan().all()
    assert of_x(name, A[2:3], b[2:3])(f[2:3]).isnan().all()


@pytest.mark.parametrize("name", ["hardnet", "kkt_hpinn", "acnet", "dc3", "fsnet"])
def test_a_sample_without_numbers_does_not_reach_the_gradient_of_shared_rows(name: str):
    f, A, b = 3 * torch.randn(4, 3).double(), torch.randn(2, 3).double(), torch.rand(4, 2).double()
    slopes = []
    for bad in ([], [2]):
        rows, raw = A.clone().requires_grad_(), f.clone()
        raw[bad] = torch.nan
        used = torch.tensor([0, 1, 3]) if bad else torch.arange(4)
        y = of_x(name, rows, b)(raw) if bad else of_x(name, rows, b[[0, 1, 3]])(raw[[0, 1, 3]])
        (y[used] if bad else y).sum().backward()
        slopes.append(rows.grad)
    torch.testing.assert_close(slopes[0], slopes[1])


@pytest.mark.parametrize("name", ["rayen", "cdgm", "hardnet", "dc3", "soft"])
def test_a_fixed_set_must_be_made_of_numbers(name: str):
    for A, b in (([[1.0, float("nan")]], [1.0]), ([[1.0, 0.0]], [float("nan")])):
        with pytest.raises(ConstraintError, match="A fixed set must be made of numbers, got NaN"):
            METHODS[name](nn.Identity(), AffineSet.inequality(A, b))


@pytest.mark.parametrize("name", ["hardnet", "acnet", "kkt_hpinn", "dc3", "fsnet"])
def test_a_function_that_returns_no_set_is_named(name: str):
    with pytest.raises(ConstraintError, match="must return an AffineSet, got float"):
        METHODS[name](nn.Identity(), lambda _: 3.0)(torch.zeros(1, 2))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["hardnet", "dc3", "fsnet", "ipopt"])
@pytest.mark.parametrize("fixed", [True, False])
def test_large_boxes_are_sets_like_others(name: str, fixed: bool):
    box = AffineSet.box(-1.0, 1.0, dim=1100)  # stored as its entries
    method = METHODS[name](nn.Identity(), box if fixed else lambda _: box).eval()
    f = torch.zeros(2, 1100)
    f[0, 7] = 1.5
    y = method(f)
    assert y.shape == f.shape
    assert y[0, 7] <= f[0, 7] and y.isfinite().all()


@pytest.mark.parametrize(("name", "option"), [("acnet", "residual"), ("dc3", "dependent")])
@pytest.mark.parametrize("wrong", [-1, 3])
def test_the_outputs_to_solve_for_are_outputs(name: str, option: str, wrong: int):
    with pytest.raises(ConstraintError, match=rf"must be among 0..2, got \[{wrong}\]"):
        METHODS[name](nn.Identity(), AffineSet.equality([[1.0, 1.0, 1.0]], [1.0]), **{option: [wrong]})


def test_no_samples_are_no_samples_of_rows():
    rows = AffineSet.equality(torch.zeros(0, 1, 2), torch.zeros(0, 1))
    assert METHODS["kkt_hpinn"](nn.Identity(), lambda _: rows)(torch.zeros(0, 2)).shape == (0, 2)


def test_penalty_forms():
    limits = AffineSet.inequality([[1.0, 0.0]], [0.0]) & AffineSet.equality([[0.0, 1.0]], [0.0])
    y = torch.tensor([[3.0, -4.0], [-1.0, 0.0]])
    assert Penalty(1.0)(limits, y) == 3.5
    assert Penalty(1.0, batch="sum")(limits, y) == 7
    assert Penalty(2.0, power=2, batch="sum")(limits, y) == 50
    assert Penalty(1.0, rows="mean", batch="sum")(limits, y) == 3.5
    assert Penalty(1.0, rows="max", batch="sum")(limits, y) == 4
    assert Penalty(1.0, rows="norm", batch="none")(limits, y).tolist() == [5, 0]
    assert Penalty(10.0, rows="norm", batch="sum", balance=0.5)(limits, y) == 35
    with pytest.raises(ConstraintError, match="rows must be one of sum, mean, max, norm, got 'median'"):
        Penalty(rows="median")
    with pytest.raises(ConstraintError, match="power must be at least 1, got 0"):
        Penalty(power=0)
    with pytest.raises(ConstraintError, match=r"balance must be in \[0, 1\], got 2"):
        Penalty(balance=2)


def test_rivals_do_not_borrow_the_librarys_projection():
    folder = Path(caffnet.methods.__file__).parent
    forbidden = {"search", "projection", "solve", "layer", "model", "preparation", "rows", "certificate", "training"}
    for path in folder.glob("*.py"):
        if path.name in OURS | {"__init__.py"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("caffnet"):
                parts = node.module.split(".")[1:] + [alias.name for alias in node.names]
                assert parts[0] == "methods" or not forbidden & set(parts), f"{path.name} imports {node.module}"
