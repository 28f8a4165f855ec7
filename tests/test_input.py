"""What the library says when the input is wrong: what came, what was expected, what to write."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from caffnet import AffineSet, CAffine, CAffNet, ConstraintError, FeedForward, InfeasibleError, prepare, project

BOX = AffineSet.box(0.0, 1.0, dim=2)


def test_the_errors_are_value_errors():
    assert issubclass(InfeasibleError, ConstraintError)
    assert issubclass(ConstraintError, ValueError)


# ------------------------------------------------------------------------------------------------ building sets


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: AffineSet([1.0, 2.0]),
            r"A must have shape \(..., m, n\), got \(2,\). A single row a is written \[a\]",
        ),
        (lambda: AffineSet([[1.0, 2.0]], upper=[1.0, 2.0]), r"upper must have shape \(..., 1\).*got \(2,\)"),
        (lambda: AffineSet(torch.ones(3, 2, 2), upper=torch.ones(3, 2, 1)), r"squeeze\(-1\)"),
        (
            lambda: AffineSet(torch.ones(2, 2), upper=torch.ones(64, 1)),
            r"written upper\.expand\(\*upper\.shape\[:-1\], 2\)",
        ),
        (lambda: AffineSet(torch.ones(3, 1, 2), upper=torch.ones(3, 1, 1)), r"more batch axes than A"),
        (lambda: AffineSet(torch.ones(3, 1, 2), upper=torch.ones(2, 1)), r"do not broadcast"),
        (lambda: AffineSet([[1.0]], names=["a", "b"]), r"one name for each of the 1 rows, got 2 names"),
        (lambda: AffineSet.box(0.0, 1.0), r"write box\(lower, upper, dim=n\)"),
        (lambda: AffineSet.box([0.0, 0.0], [1.0] * 3), r"the sizes \[2, 3\] disagree"),
        (
            lambda: AffineSet.box(0.0, torch.ones(8, 1), dim=3),
            r"sizes \[1, 3\] disagree; .* is written upper\.expand\(\*upper\.shape\[:-1\], 3\)",
        ),
        (lambda: AffineSet.box(torch.ones(1), torch.ones(3)), r"written lower\.expand\(\*lower\.shape\[:-1\], 3\)"),
        (lambda: AffineSet.box(0.0, 1.0, ["a"]), r"dim must be .*, got \['a'\]: names are passed as names="),
        (lambda: AffineSet.inequality([[1.0]], 0.0, 1.0), r"one name for .* got float: for rows with two sides"),
        (lambda: AffineSet.inequality([[1.0]], 0.0, torch.tensor(1.0)), r"got Tensor: for rows with two sides"),
        (lambda: AffineSet([[1.0]], names=iter(["a"])), r"got list_iterator: write list\(names\)"),
        (lambda: AffineSet([[1.0], [2.0]], names="a"), r'got the text .a.: write \[f"a \{i\}" for i in range\(2\)\]'),
        (
            lambda: AffineSet.inequality(torch.nn.Linear(1, 1), 0.0),
            "A must be .* got Linear: what depends on the input",
        ),
        (lambda: AffineSet.box(), "needs a lower or an upper bound"),
        (lambda: AffineSet.inequality([[1.0], [1.0]], [2.0]), r"b must have .* of A \(2, 1\).* Or is A transposed\?"),
        (
            lambda: AffineSet.inequality([[1.0, 1.0]], [0.0], [1.0]),
            r"names must be texts, got float 1.0.*AffineSet\(A, lo",
        ),
        (lambda: AffineSet.box("a", dim=1), "lower must be an array of numbers, got the text 'a'"),
        (
            lambda: AffineSet.inequality(torch.ones(1, 2, dtype=torch.complex64), [1.0]),
            "A is torch.complex64.* are real",
        ),
        (lambda: BOX and BOX, "join two sets with `a & b`, not `a and b`"),
        (lambda: bool(prepare(BOX)), "neither true nor false"),
        (lambda: torch.zeros(2) in BOX, r"Write set.contains\(y\)"),
        (lambda: torch.zeros(2) in prepare(AffineSet.box(torch.zeros(3, 2))), r"Write set.contains\(y\)"),
        (lambda: BOX.to(torch.float16), "Sets are in float32 or float64, got to.torch.float16"),
        (lambda: BOX.to(torch.bfloat16), "got to.torch.bfloat16"),
        (lambda: BOX.to(torch.int64), "got to.torch.int64.: other number types cannot keep a constraint"),
        (lambda: BOX.with_metric([[2.0, 1.0], [1.5, 3.0]]), "this one is not symmetric: .* write diagonal=True"),
        (lambda: AffineSet([["a"]]), "A cannot be read as an array of numbers"),
        (lambda: AffineSet([[1.0], [1.0, 2.0]]), "A cannot be read as an array of numbers"),
        (lambda: AffineSet(torch.ones(1, 1).half()), r"A is torch.float16; .*write A.float\(\)"),
        (
            lambda: AffineSet(torch.ones(1, 1), upper=torch.ones(1).double()),
            "A is torch.float32, upper is torch.float64",
        ),
        (lambda: AffineSet(torch.ones(1, 1), upper=torch.ones(1, device="meta")), "must be on one device"),
        (lambda: BOX & AffineSet.box(0.0, 1.0, dim=3), "same outputs, got n=2 and n=3: a row has a zero for every"),
        (
            lambda: BOX.to(torch.float32) & AffineSet.box(*torch.ones(2, 2).double()),
            r"share one number type, .*: convert one, a\.to\(torch\.float64\) & b or a & b\.to\(torch\.float32\)",
        ),
        (
            lambda: BOX.to(torch.float32) & AffineSet.box(torch.ones(2, device="meta")),
            r"one device, got cpu and meta: convert one, as in a & b\.to\(a\.device\)",
        ),
        (lambda: BOX & (lambda x: BOX), r"joined by `&`, got function: .* lambda x: fixed & constraint\(x\)"),
        (lambda: torch.nn.Identity() & BOX, "joined by `&`, got Identity"),
        (lambda: BOX[0], "no batch axes to index"),
        (lambda: AffineSet([[1.0, 2.0]], names="a"), r"for each of the 1 rows, got the text 'a': write \['a'\]"),
        (
            lambda: AffineSet.box(torch.zeros(3, 2)) & AffineSet.box(torch.zeros(2, 2)),
            r"the first set \(3,\) and of the second",
        ),
        (lambda: AffineSet.box(torch.zeros(3, 2)).violation(torch.zeros(2, 2)), "do not broadcast"),
        (
            lambda: AffineSet.box(torch.zeros(3, 2), torch.ones(2, 2)),
            r"lower \(3,\) and of upper \(2,\)",
        ),
        (
            lambda: AffineSet([[1.0, 1.0]], torch.zeros(3, 1), torch.ones(2, 1)),
            "of upper .* do not broadcast",
        ),
        (lambda: BOX.with_bounds(torch.zeros(3, 2), torch.ones(2, 2)), "of upper .* do not broadcast"),
        (lambda: AffineSet.box(0.0, 1.0, dim=2.0), "dim must be the number of outputs of the box, got 2.0"),
        (lambda: AffineSet.box(0.0, 1.0, dim=-1), "dim must be the number of outputs of the box, got -1"),
        (lambda: AffineSet([torch.ones(2), torch.ones(2).double()]), "A .* torch.float32 and torch.float64"),
        (lambda: AffineSet([torch.ones(2), torch.ones(3)]), "A cannot be read as an array of numbers"),
        (lambda: BOX.with_metric(None), "The metric is missing, got None"),
        (lambda: BOX.with_metric([torch.ones(3), torch.ones(3)]), r"\(\.\.\., 2, 2\).*got \(2, 3\)"),
        (lambda: prepare([[1.0]]), "Only an AffineSet can be prepared, got list"),
        (lambda: prepare(BOX)[0], "no batch axes to index"),
    ],
)
def test_building(build, message: str):
    with pytest.raises(ConstraintError, match=message):
        build()


def test_lists_arrays_scalars_and_integers_are_accepted():
    same = [
        AffineSet.inequality([[1, 2]], [3]),
        AffineSet.inequality(np.array([[1, 2]]), 3),
        AffineSet.inequality([[1.0, 2.0]], torch.tensor([3])),
        AffineSet.inequality(np.array([[1.0, 2.0]], dtype=np.float32), [3.0]),
        AffineSet.inequality(torch.tensor([[1.0, 2.0]]), 3.0),
    ]
    f = torch.tensor([3.0, 3.0])
    values = [project(f, set).value for set in same]
    assert all(torch.equal(v, values[0]) for v in values)
    assert values[0].dtype == torch.float32
    assert project(f.double(), same[0]).value.dtype == torch.float64


def test_an_equality_stays_one_row_and_sets_stack():
    set = AffineSet.equality([[1.0, 1.0]], [1.0], names=["total"]) & AffineSet.box(0.0, None, dim=2)
    assert set.m == 3
    assert set.names == ("total", "row 1", "row 2")
    assert (AffineSet.box(0.0, None, dim=2) & set).names == ("row 0", "row 1", "total", "row 3", "row 4")
    assert set.row_kinds == "=>>"
    assert repr(set) == "AffineSet(3 rows in R^2)"
    batched = set & AffineSet.inequality(torch.ones(5, 1, 2), torch.ones(5, 1))
    assert batched.batch_shape == (5,)
    assert batched.A.shape == (5, 4, 2)
    assert batched[[1, 2]].batch_shape == (2,)


def test_bounds_of_every_kind_give_a_set_in_lists_their_number_type():
    box = AffineSet.box([0.0, 0.0], 1.0)
    for upper in (torch.ones(3, 2), np.ones((3, 2), np.float32), [torch.ones(2), torch.ones(2)]):
        assert box.with_bounds(upper=upper).dtype == torch.float32
    given = box.with_bounds(upper=np.ones(2))
    assert given.dtype == torch.float64 and not given.weak  # an array keeps its type, so float32 is refused
    with pytest.raises(ConstraintError, match=r"f is torch\.float32, the constraints are torch\.float64"):
        project(torch.zeros(2), given)
    assert box.with_bounds([0.0, 0.5], torch.tensor([1, 2])).weak


def test_names_may_be_texts_of_numpy():
    set = AffineSet.inequality([[1.0, 1.0], [1.0, 0.0]], [1.0, 1.0], names=np.array(["sum", "first"]))
    assert [type(name) for name in set.names] == [str, str]  # torch.compile takes no others
    f = torch.tensor([[2.0, 1.0]])
    compiled = torch.compile(lambda f: project(f, set).value, fullgraph=True, backend="eager")
    assert torch.equal(compiled(f), project(f, set).value)
    assert AffineSet([[1.0], [2.0]], names=np.array(["a", None])).names == ("a", "row 1")


def test_an_index_reaches_batch_axes_only():
    set = AffineSet.inequality(torch.ones(2, 3, 1, 2), torch.arange(6.0).reshape(2, 3, 1))
    assert set[..., 1].upper.tolist() == [[1.0], [4.0]] and set[..., 1].A.shape == (2, 1, 2)
    assert set[1, ..., 2].upper.tolist() == [5.0] and set[..., None].batch_shape == (2, 3, 1)
    with pytest.raises(IndexError):
        set[0, 0, 0]


def test_a_set_cannot_be_changed():
    with pytest.raises(AttributeError):
        BOX.A = torch.zeros(2, 2)  # pyright: ignore[reportAttributeAccessIssue]


def test_violation_and_contains_measure_from_the_data():
    set = AffineSet([[1.0, 1.0], [0.0, 2.0]], [-1.0, -np.inf], [1.0, 4.0])
    y = torch.tensor([[3.0, 0.0], [0.0, 0.0], [-3.0, 3.0]])
    assert torch.equal(set.violation(y), torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 2.0]]))
    assert set.contains(y).tolist() == [False, True, False]
    with pytest.raises(ConstraintError, match=r"y must have shape \(..., 2\), got \(3,\)"):
        set.violation([1.0, 2.0, 3.0])


# ------------------------------------------------------------------------------------------------ calling


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: project([0.0, 0.0], BOX), r"f must be a tensor, got list: write torch.as_tensor\(f\)"),
        (lambda: project(torch.zeros(2, dtype=torch.long), BOX), r"f is torch.int64; .*write f.float\(\)"),
        (lambda: project(torch.zeros(2).half(), BOX), "f is torch.float16"),
        (lambda: project(torch.zeros(2).bfloat16(), BOX), "f is torch.bfloat16"),
        (lambda: project(torch.zeros(3), BOX), r"f must have shape \(..., 2\) .*got \(3,\)"),
        (lambda: project(torch.tensor(0.0), BOX), r"f must have shape \(..., 2\)"),
        (lambda: project(torch.zeros(2), BOX, torch.zeros(3)), r"w must have shape \(..., 2\)"),
        (
            lambda: project(torch.zeros(4, 2), BOX, torch.zeros(3, 2)),
            r"w must have the shape of f \(4, 2\), got \(3, 2\)",
        ),
        (lambda: project(torch.zeros(2), BOX, torch.zeros(2).double()), r"w must match f"),
        (lambda: project(torch.zeros(2), [[1.0]]), r"must be an AffineSet, got list"),
        (lambda: project(torch.zeros(2).double(), BOX.to(torch.float32)), r"write set.to\(torch.float64\)"),
        (
            lambda: project(torch.zeros(2), BOX, search="best"),
            "search must be one of auto, full, lite, active, paper, got 'best'",
        ),
        (lambda: project(torch.zeros(2), BOX, on_infeasible="no"), "on_infeasible must be one of raise, nearest, nan"),
        (lambda: project(torch.zeros(2), BOX, gradient="no"), "gradient must be one of exact, tangent"),
        (lambda: project(torch.zeros(2), BOX, norm=0.5), r"norm must be a p in \[1, inf\], got 0.5"),
        (lambda: project(torch.zeros(2), BOX, norm="inf"), r"norm must be a p in \[1, inf\], got 'inf'"),
        (lambda: project(torch.zeros(2), BOX, budget="1GB"), "budget must be a positive number of bytes"),
        (lambda: project(torch.zeros(2), BOX, budget=0), "budget must be a positive number of bytes"),
        (lambda: project(torch.zeros(3, 2), AffineSet.inequality(torch.ones(2, 1, 2), 1.0)), "do not broadcast"),
        (lambda: project(torch.zeros(3, 2), AffineSet.inequality(torch.ones(3, 1, 1, 2), 1.0)), "more batch axes"),
        (
            lambda: project(torch.zeros(8, 5, 2), AffineSet.inequality([[1.0, 1.0]], torch.ones(8, 1))),
            r"f \(8, 5\) and of the constraints \(8,\) do not .* the axes \(8, 1\), a bound by unsqueeze\(-2\)",
        ),
        (
            lambda: project(torch.zeros(8, 5, 4, 2), AffineSet.inequality([[1.0, 1.0]], torch.ones(8, 1))),
            r"the axes \(8, 1, 1\), a bound by unsqueeze\(-2\)\.unsqueeze\(-2\)",
        ),
        (
            lambda: project(torch.zeros(8, 5, 2), AffineSet.box(torch.zeros(7, 2))),
            r"of the constraints \(7,\) .*ast\.$",
        ),
        (
            lambda: project(torch.zeros(8, 3, 2), AffineSet.box(0.0, 1.0, dim=6)),
            r"got \(8, 3, 2\)\. f\.flatten\(-2\) joins its last two axes",
        ),
        (lambda: project(torch.zeros(8, 3, 2), AffineSet.box(0.0, 1.0, dim=5)), r"got \(8, 3, 2\)\.$"),
        (lambda: project(BOX, torch.zeros(2)), r"must be an AffineSet, got Tensor\. The order is project\(f, set\)"),
        (lambda: project(torch.zeros(2), [BOX, BOX]), r"got list\. Join sets with `&`, as in a & b"),
        (
            lambda: project(torch.zeros(2), prepare(BOX.to(torch.float64))),
            r"prepared in torch.float64, f is torch.float32",
        ),
        (
            lambda: project(torch.zeros(2), prepare(BOX.to(torch.float32), "lite"), search="full"),
            "prepared for search='lite'",
        ),
        (lambda: prepare(BOX, "best"), "search must be one of"),
    ],
)
def test_calling(call, message: str):
    with pytest.raises(ConstraintError, match=message):
        call()


def test_wrong_number_types_are_type_errors_as_well():
    with pytest.raises(TypeError, match="float16"):
        project(torch.zeros(2).half(), BOX)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: CAffine(3),
            r"an AffineSet or a function x -> AffineSet, got int\. Write AffineSet\.inequality\(A, b\)",
        ),
        (lambda: CAffine((BOX, BOX)), r"got tuple\. Join sets with `&`"),
        (lambda: CAffine(lambda x: [BOX, BOX])(torch.zeros(2), x=1), r"return an AffineSet, got list\. Join sets with"),
        (lambda: CAffine(lambda x: None)(torch.zeros(2), x=1), r"return an AffineSet, got NoneType\. Write AffineSet"),
        (lambda: CAffine(BOX, metric=lambda x: x), "metric must be an array of numbers, got function: what depends on"),
        (lambda: CAffine(BOX, search="best"), "search must be one of"),
        (lambda: CAffine(lambda x: BOX)(torch.zeros(2)), r"depends on the input: call layer\(f, x=x\)"),
        (lambda: CAffine(BOX)([0.0, 0.0]), "f must be a tensor, got list"),
        (lambda: CAffine(BOX, warm_start=True)(None), "f must be a tensor, got NoneType"),
        (lambda: CAffine(lambda x: BOX, metric="a"), "metric must be an array of numbers, got the text 'a'"),
        (lambda: CAffNet(torch.nn.LSTM(1, 2), BOX)(torch.zeros(3, 1)), "must return one tensor .*, got tuple"),
        (lambda: CAffNet(FeedForward(1, 2), BOX, null_start="one"), "null_start must be 'zero' or 'random'"),
        (lambda: CAffNet(FeedForward(1, 2), BOX, null=torch.nn.Identity()), "Identity has no nn.Linear"),
    ],
)
def test_layers(call, message: str):
    with pytest.raises(ConstraintError, match=message):
        call()


def test_a_misspelt_option_is_refused():
    with pytest.raises(TypeError, match="serach"):
        CAffine(BOX, serach="full")


# ------------------------------------------------------------------------------------------------ empty sets


def test_the_message_names_the_sample_the_rows_and_the_ways_out():
    limits = AffineSet.inequality([[1.0, 1.0]], [1.0], names=["budget"])
    needs = AffineSet.box([1.0, 1.0], None, names=["minimum A", "minimum B"])
    with pytest.raises(InfeasibleError) as caught:
        project(torch.zeros(2, 3, 2), limits & needs)
    message = str(caught.value)
    for part in ("6 of 6 samples", "(0, 2), (1, 0), (1, 1): budget (upper bound", "minimum A (lower bound"):
        assert part in message
    assert message.count("budget") == 1  # all samples have one conflict, which is told once
    assert "... and 1 more sample\n" in message
    assert 'on_infeasible="nearest"' in message
    assert caught.value.samples[3] == (1, 0)
    assert caught.value.conflicts[0].names == ("budget", "minimum A", "minimum B")
    assert caught.value.conflicts[0].gap == pytest.approx(-1 / 3)


def test_every_conflict_is_told_with_its_samples():
    rows = AffineSet.box([1.0, 0.0], torch.tensor([[0.0, 2.0], [2.0, -3.0], [0.0, 2.0]]), names=["a", "b"])
    with pytest.raises(InfeasibleError) as caught:
        project(torch.zeros(3, 2), rows)
    assert "  samples (0,), (2,): a: the lower bound is 1 above the upper bound\n" in str(caught.value)
    assert "  sample (1,): b: the lower bound is 3 above the upper bound\n" in str(caught.value)
    assert caught.value.conflicts[0].gap == -0.5  # as data: half of either bound


def test_only_the_infeasible_samples_are_marked():
    A = torch.tensor([[1.0], [-1.0]])
    bounds = torch.tensor([[1.0, 1.0], [0.0, -1.0], [1.0, 0.0]])
    f = torch.tensor([[2.0], [2.0], [-5.0]])
    for mode in ("nan", "nearest"):
        answer = project(f, AffineSet.inequality(A, bounds), on_infeasible=mode)
        assert answer.status.tolist() == [1, 3, 1]
        assert answer.value[[0, 2]].tolist() == [[1.0], [0.0]]
    assert answer.value[1].tolist() == pytest.approx([0.5])
    assert float(answer.violation[1]) == pytest.approx(0.5)


def test_tensors_in_a_list_keep_their_gradient():
    a = torch.tensor(2.0, requires_grad=True)
    set = AffineSet.inequality([[a, 1.0]], [1.0])
    assert set.dtype == torch.float32
    project(torch.tensor([3.0, 3.0]), set).value.sum().backward()
    assert a.grad is not None and a.grad != 0


def test_one_bound_per_sample_without_its_row_axis_says_how_to_add_it():
    with pytest.raises(ConstraintError, match=r"got \(5,\)\. One bound per sample is written b\.unsqueeze\(-1\)"):
        AffineSet.inequality(torch.ones(1, 2), torch.ones(5))
    with pytest.raises(ConstraintError, match=r"removed with \.squeeze\(-1\)"):
        AffineSet.inequality(torch.ones(3, 2), torch.ones(3, 1))
