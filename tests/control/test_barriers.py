"""Barriers: written-out gradients equal automatic ones, smooth combinations bound the exact ones."""

import math

import pytest
import torch

from caffnet.control import (
    Barrier,
    FunctionBarrier,
    InsideBox,
    InsidePolytope,
    Intersection,
    OutsideCircles,
    OutsidePolytopes,
    Stack,
    Union,
    hull_rows,
)
from caffnet.errors import ConstraintError

TRIANGLE = hull_rows([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
SQUARE = hull_rows([[2.0, 2.0], [3.0, 2.0], [3.0, 3.0], [2.0, 3.0]])

BARRIERS = {
    "box": InsideBox([-1.0, -2.0, -math.inf], [1.0, 2.0, 3.0]),
    "polytope": InsidePolytope([[1.0, 2.0, 0.5], [0.0, -1.0, 1.0]], [1.0, 2.0]),
    "circles": OutsideCircles([[0.0, 0.5], [1.0, -1.0]], [0.3, 0.6]),
    "circles elsewhere": OutsideCircles([[0.0, 0.5], [1.0, -1.0]], [0.3, 0.6], position=(2, 0)),
    "polytopes": OutsidePolytopes([TRIANGLE, SQUARE]),
    "union": Union(InsideBox([-1.0] * 3, [1.0] * 3), OutsidePolytopes([TRIANGLE]), sharpness=5.0),
    "intersection": Intersection(InsideBox([-1.0] * 3, [1.0] * 3), OutsideCircles([[0.0, 0.0]], [0.5])),
    "stack": Stack(OutsidePolytopes([TRIANGLE, SQUARE]), InsideBox([-1.0] * 3, [1.0] * 3)),
}


def states(*batch: int) -> torch.Tensor:
    return 2 * torch.randn(*batch, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", BARRIERS)
def test_gradient_is_the_automatic_one(name):
    barrier, x = BARRIERS[name], states(4, 7)
    value, gradient = barrier.evaluate(x)
    automatic = FunctionBarrier(barrier).evaluate(x)
    assert torch.equal(value, barrier(x))
    torch.testing.assert_close((value, gradient), automatic, rtol=1e-12, atol=1e-12)
    assert gradient.shape == (*value.shape, 3)


@pytest.mark.parametrize("name", BARRIERS)
def test_value_and_gradient_are_differentiable(name):
    x = states(3).requires_grad_()
    assert torch.autograd.gradcheck(BARRIERS[name].evaluate, (x,))


@pytest.mark.parametrize("name", BARRIERS)
def test_number_type_follows_the_state(name):
    value, gradient = BARRIERS[name].evaluate(states(5).float())
    assert value.dtype == gradient.dtype == torch.float32


def test_union_lies_below_the_maximum_by_at_most_the_buffer():
    walls = InsideBox([-1.0] * 3, [1.0] * 3)
    x = states(500)
    gap = walls(x).amax(-1, keepdim=True) - Union(*one_by_one(walls), sharpness=10.0)(x)
    assert gap.min() >= -1e-12
    assert gap.max() <= math.log(6) / 10 + 1e-12


def one_by_one(polytope: InsidePolytope) -> list[InsidePolytope]:
    """Each row as a barrier of its own."""
    return [InsidePolytope(polytope.A[i : i + 1], polytope.b[i : i + 1]) for i in range(len(polytope.b))]


def test_polytopes_come_in_any_iterable():
    x = states(7)
    expected = OutsidePolytopes([TRIANGLE, SQUARE])(x)
    assert torch.equal(OutsidePolytopes(pair for pair in (TRIANGLE, SQUARE))(x), expected)
    with pytest.raises(ConstraintError, match=r"pass hull_rows\(corners\)"):
        OutsidePolytopes(torch.zeros(3, 4, 2))


def test_a_union_of_rooms_is_one_room_or_the_other():
    """Between the rooms the state is beyond some wall of each: inside all walls of one of them is what counts."""
    rooms = InsideBox([-1.0], [1.0]), InsideBox([2.0], [3.0])
    x = torch.linspace(-2, 4, 61, dtype=torch.float64).unsqueeze(-1)
    inside = torch.stack([room(x).amin(-1) for room in rooms]).amax(0)
    value, gradient = Union(*rooms, sharpness=50.0).evaluate(x)
    assert (value.squeeze(-1) <= inside + 1e-12).all()
    assert (value.squeeze(-1) >= inside - 0.05).all()
    assert (value[x == 1.5] < -0.4).all() and (value[x == 0.0] > 0.9).all()
    slope = torch.autograd.functional.jacobian(lambda x: Union(*rooms, sharpness=50.0)(x).sum(), x)
    torch.testing.assert_close(gradient.squeeze(-1), slope)


def test_intersection_lies_below_the_minimum():
    parts = InsideBox([-1.0] * 3, [1.0] * 3)
    x = states(500)
    assert (Intersection(parts)(x) <= parts(x).amin(-1, keepdim=True) + 1e-12).all()


def test_polytopes_are_the_union_of_their_sides():
    x = states(100)
    together = OutsidePolytopes([TRIANGLE, SQUARE], sharpness=7.0).evaluate(x)
    for j, (A, b) in enumerate([TRIANGLE, SQUARE]):
        outside = InsidePolytope(torch.nn.functional.pad(-A, (0, 1)), -b)
        value, gradient = Union(*one_by_one(outside), sharpness=7.0).evaluate(x)
        torch.testing.assert_close(together[0][:, j : j + 1], value)
        torch.testing.assert_close(together[1][:, j : j + 1], gradient)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.stack([x[0] - x[1], x[2]]),
        lambda x: torch.stack([x[..., 0] - x[..., 1], x[..., 2]], -1),
    ],
    ids=["of one state", "of a batch"],
)
def test_functions_of_one_state_and_of_a_batch_are_the_same_barrier(function):
    barrier, x = FunctionBarrier(function), states(4, 7)
    expected = torch.stack([x[..., 0] - x[..., 1], x[..., 2]], -1)
    assert torch.equal(barrier(x), expected)
    assert torch.equal(barrier.evaluate(x)[0], expected)
    assert torch.equal(Stack(barrier, barrier)(x), torch.cat([expected, expected], -1))
    torch.testing.assert_close(Union(barrier)(x), Union(barrier).evaluate(x)[0])
    assert barrier(states(0)).shape == barrier.evaluate(states(0))[0].shape == (0, 2)


@pytest.mark.parametrize("function", [lambda x: x[0], lambda x: x[..., 0]], ids=["of one state", "of a batch"])
def test_a_single_function_needs_no_last_axis(function):
    barrier, x = FunctionBarrier(function, names=["first"]), states(4, 7)
    value, gradient = barrier.evaluate(x)
    assert torch.equal(value, x[..., :1]) and torch.equal(barrier(x), value)
    assert torch.equal(barrier(x[0, 0]), value[0, 0])
    assert torch.equal(gradient, torch.tensor([[1.0, 0.0, 0.0]], dtype=x.dtype).expand(4, 7, 1, 3))


def test_a_barrier_without_its_last_axis_is_refused():
    class Height(Barrier):
        def __call__(self, x):
            return x[..., 1]

    with pytest.raises(
        ConstraintError, match=r"Height must give shape \(k,\) for one state, got \(\) for \(3,\): .*unsqueeze"
    ):
        Height().evaluate(states(5))


def test_names():
    assert BARRIERS["box"].names == ("x0 <= 1", "x1 <= 2", "x2 <= 3", "x0 >= -1", "x1 >= -2")
    assert BARRIERS["stack"].names is not None
    assert BARRIERS["stack"].names[0] == "obstacle 0"
    assert Stack(Union(BARRIERS["stack"]), InsideBox([0.0], [1.0])).names == ("union", "x0 <= 1", "x0 >= 0")


def test_hull_has_unit_outward_rows():
    A, b = hull_rows([[0, 0], [4, 0], [4, 3], [1, 1], [0, 3], [2, 3]])
    assert A.shape == (4, 2)
    torch.testing.assert_close(A.norm(dim=1), torch.ones(4, dtype=torch.float64))
    assert (A @ torch.tensor([2.0, 1.5], dtype=torch.float64) < b).all()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: InsideBox([math.nan], [1.0]), r"lower must be numbers, got \[nan\]"),
        (lambda: InsidePolytope([[1.0]], [math.inf]), r"b must be finite numbers, got \[inf\]"),
        (lambda: hull_rows([[0, 0], [1, 1], [math.nan, 2]]), "points must be finite numbers"),
        (lambda: Union(InsideBox([0.0], [1.0]), sharpness=math.inf), "sharpness must be positive and finite, got inf"),
        (lambda: OutsidePolytopes([[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]]), r"pass hull_rows\(corners\)"),
        (lambda: InsideBox([0.0], [1.0, 2.0]), r"lower and upper must both have shape \(n_x,\), got \(1,\) and \(2,\)"),
        (lambda: InsidePolytope([[1.0]], [1.0, 2.0]), r"A must have shape \(k, n_x\) and b \(k,\)"),
        (lambda: OutsideCircles([[0.0]], [1.0]), r"centres must have shape \(k, 2\), got \(1, 1\)\."),
        (lambda: OutsideCircles([0.0, 0.0], 1.0), r"got \(2,\): one circle is written OutsideCircles\(\[centre\], \["),
        (lambda: OutsideCircles([[0.0, 0.0]], [1.0, 2.0]), "one entry per centre"),
        (lambda: OutsidePolytopes([([[1.0]], [1.0])]), r"pair of shapes \(m, 2\) and \(m,\)"),
        (lambda: OutsidePolytopes([TRIANGLE], sharpness=0.0), "sharpness must be positive and finite, got 0.0"),
        (lambda: OutsidePolytopes([]), "at least one polytope, got none"),
        (lambda: OutsideCircles([[0.0, 0.0]], [-1.0]), r"radii must not be negative, got \[-1.0\]"),
        (lambda: OutsideCircles([[0.0, 0.0]], [1.0], position=(-3, -2)), "counted from 0, got"),
        (lambda: OutsideCircles([[0.0, 0.0]], [1.0], position=(2, 3))(states(1)), r"the entries \(2, 3\).*got 3"),
        (lambda: InsideBox([1.0], [0.0]), "lower must not exceed upper"),
        (
            lambda: InsideBox([0.0], [1.0], names=["a"] * 3),
            r"list of 1 labels?, .*, or 2, one per finite side .*got \['a'",
        ),
        (lambda: InsidePolytope([[1.0], [2.0]], [1.0, 1.0], names=["a"]), "names must be a list of 2 labels, got"),
        (lambda: FunctionBarrier(torch.sum, names="speed"), "names must be a list of one label per function, got 'sp"),
        (lambda: hull_rows(torch.rand(6, 3)), r"points must have shape \(v, 2\), points in the plane, got \(6, 3\)"),
        (lambda: InsideBox([0.0], [1.0])(states(1)), r"x must have shape \(..., 1\), got \(1, 3\)"),
        (lambda: OutsideCircles([[2.5, 0.0]], [1.5])(torch.tensor([5, 0, 0])), r"got torch.int64: write x.double\(\)"),
        (Stack, "at least one barrier"),
        (lambda: hull_rows([[0, 0], [1, 1], [2, 2]]), "no inside"),
    ],
)
def test_bad_shapes_are_refused(build, message):
    with pytest.raises(ConstraintError, match=message):
        build()


def test_an_empty_batch_has_empty_gradients():
    class Height(Barrier):
        def __call__(self, x):
            return x[..., 1]

    with pytest.raises(ConstraintError, match=r"got \(0,\) for \(0, 3\): .*unsqueeze"):
        Height().evaluate(states(0))
    inside = FunctionBarrier(lambda x: 1 - x.square())
    for barrier, functions in ((inside, 3), (Union(inside, InsideBox([0.0] * 3, [1.0] * 3)), 1)):
        value, gradient = barrier.evaluate(states(4, 0))
        assert value.shape == (4, 0, functions)
        assert gradient.shape == (4, 0, functions, 3)


def test_a_barrier_must_say_what_it_is():
    with pytest.raises(NotImplementedError, match="Barrier must define __call__"):
        Barrier()(states(1))
