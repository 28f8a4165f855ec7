"""Pieces whose derivative is written out: the same as that of their plain operations, first and second."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from caffnet.control import OutsidePolytopes, Unicycle, body_frame_error, limit_gradient, rk4
from caffnet.control.systems.base import ControlAffine

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch.func compiles rules

TRIANGLE = ([[1.0, 0.0], [-1.0, 1.0], [0.0, -1.0]], [1.0, 0.5, 0.5])
SQUARE = ([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], [1.0, 1.0, 3.0, 1.0])
OBSTACLES = OutsidePolytopes([TRIANGLE, SQUARE], sharpness=3.0)
BEHIND = OutsidePolytopes([TRIANGLE, SQUARE], sharpness=3.0, position=(2, 0))

#: Name, function, and the sizes of its inputs.
PIECES: dict[str, tuple[Callable[..., tuple[Tensor, ...]], tuple[tuple[int, ...], ...]]] = {
    "polytopes": (OBSTACLES.evaluate, ((3,),)),
    "polytopes, other entries": (BEHIND.evaluate, ((4,),)),
    "unicycle, rows": (lambda g, x: (Unicycle().along_input(g, x),), ((5, 3), (3,))),
    "unicycle, step": (lambda x, u: (rk4(Unicycle(), x, u, 0.3),), ((3,), (2,))),
    "body frame": (lambda x: (body_frame_error(x, torch.tensor([0.3, -0.2, 0.1]).to(x)),), ((3,),)),
}


def draw(sizes: tuple[tuple[int, ...], ...], *batch: int) -> list[Tensor]:
    stream = torch.Generator().manual_seed(0)
    draws = [torch.randn(*batch, *size, dtype=torch.float64, generator=stream) for size in sizes]
    return [t.requires_grad_() for t in draws]


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)], ids=str)
@pytest.mark.parametrize("name", PIECES)
def test_derivatives_are_those_of_finite_differences(name: str, batch: tuple[int, ...]):
    function, sizes = PIECES[name]
    given = draw(sizes, *batch)
    assert torch.autograd.gradcheck(function, given)
    if not batch:
        assert torch.autograd.gradgradcheck(function, given)


@pytest.mark.parametrize("name", PIECES)
def test_one_node_gives_what_the_plain_operations_give(name: str):
    """Forward mode sees those: a product with every vector there is one with the transpose here."""
    function, sizes = PIECES[name]
    given = draw(sizes, 7)
    along = [torch.randn_like(t) for t in given]
    outputs, change = torch.func.jvp(function, tuple(t.detach() for t in given), tuple(along))[:2]
    back = [torch.randn_like(t) for t in outputs]
    made = function(*given)
    assert all(type(t.grad_fn).__name__ == "_FusedBackward" for t in made)
    torch.testing.assert_close(tuple(t.detach() for t in made), outputs)
    slopes = torch.autograd.grad(made, given, back)
    there = sum((a * b).sum() for a, b in zip(change, back, strict=True))
    here = sum((a * b).sum() for a, b in zip(slopes, along, strict=True))
    torch.testing.assert_close(here, there)


@pytest.mark.parametrize("name", PIECES)
def test_checkpoints_save_memory(name: str):
    function, sizes = PIECES[name]
    given = draw(sizes, 7)
    made = function(*given), checkpoint(function, *given, use_reentrant=False)
    first, second = (torch.autograd.grad(sum(t.sum() for t in outputs), given) for outputs in made)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", PIECES)
def test_what_inference_mode_has_made_is_not_kept(name: str):
    function, sizes = PIECES[name]
    given = [t.detach().float() for t in draw(sizes, 2)]  # float32: nobody has asked for that yet
    with torch.inference_mode():
        function(*given)
    some = [t.requires_grad_() for t in given]
    torch.autograd.grad([t.sum() for t in function(*some)], some)


def test_a_goal_can_be_learned():
    x, goal = torch.randn(5, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda goal: body_frame_error(x, goal), (goal,))


def test_the_closed_form_of_a_step_is_that_of_the_integrator():
    class Plain(ControlAffine):
        def __init__(self):
            super().__init__(3, 2, None, Unicycle()._actuation)

    x, u = draw(((3,), (2,)), 50)
    torch.testing.assert_close(rk4(Unicycle(), x, u, 0.7), rk4(Plain(), x, u, 0.7), rtol=0, atol=4e-15)


def test_a_unicycle_with_another_velocity_keeps_it():
    class Sliding(Unicycle):
        def velocity(self, x: Tensor, u: Tensor) -> Tensor:
            return super().velocity(x, u) + 1.0

    x, u = torch.zeros(3), torch.zeros(2)
    torch.testing.assert_close(rk4(Sliding(), x, u, 0.5), torch.full((3,), 0.5))


@pytest.mark.parametrize("worst", [1.0, 7.0, 1e300, torch.inf, torch.nan])
def test_gradients_are_limited_one_by_one(worst: float):
    x = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    g = torch.tensor([[3.0, 0.0], [worst, 0.0], [0.0, -2.0]], dtype=torch.float64)
    limit_gradient(x, 5.0).backward(g)
    assert x.grad is not None
    second = [0.0, 0.0] if not worst < torch.inf else [min(worst, 5.0), 0.0]
    torch.testing.assert_close(x.grad, torch.tensor([[3.0, 0.0], second, [0.0, -2.0]], dtype=torch.float64))
