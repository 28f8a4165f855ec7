"""CAffNet under the rivals' call, its orthogonal case, and projection after training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from caffnet import AffineSet, CAffNet, ConstraintError, FeedForward, Transformer, project
from caffnet.methods import METHODS, CAffNetFF, CAffNetTF, Orthogonal, PostHoc


@pytest.mark.parametrize("name", ["caffnet-ff", "caffnet-lite", "caffnet-tf", "orthogonal", "posthoc"])
def test_they_are_inside_with_many_dependent_rows(name: str, polytope: AffineSet):
    net = Transformer(2, 3, width=12) if name == "caffnet-tf" else FeedForward(2, 3, hidden=16)
    method = METHODS[name](net.double(), polytope).eval()
    y = method(20 * torch.randn(300, 2, dtype=torch.float64))
    assert polytope.contains(y).all()


def test_it_is_the_librarys_model(polytope: AffineSet):
    net, head = FeedForward(2, 3, hidden=16).double(), FeedForward(2, 3, hidden=16).double()
    x = 5 * torch.randn(50, 2, dtype=torch.float64)
    method = CAffNetFF(net, polytope, null=head, null_start="random", search="full")
    expected = CAffNet(net, polytope, null=head, null_start="random", search="full")(x)
    assert torch.equal(method(x), expected)
    assert method.model.layer.options == {"search": "full"}
    assert METHODS["caffnet-lite"](net, polytope).model.layer.options == {"search": "lite"}  # pyright: ignore


def test_the_head_is_a_second_network_of_the_same_shape(dtype: torch.dtype):
    limits = AffineSet.box(torch.zeros(3, dtype=dtype), 1.0)
    ff = CAffNetFF(FeedForward(2, 3, hidden=16).to(dtype), limits, null_start="random")
    assert sum(p.numel() for p in ff.parameters()) == 2 * sum(p.numel() for p in ff.model.backbone.parameters())
    first, second = ff.model.raw(torch.ones(1, 2, dtype=dtype))
    assert second is not None
    assert not torch.equal(first, second)
    tf = CAffNetTF(Transformer(2, 3, width=12).to(dtype), limits)
    assert isinstance(tf.model.null, Transformer)
    assert tf.model.null.embed is tf.model.backbone.embed
    assert tf(torch.ones(4, 2, dtype=dtype)).dtype == dtype


def test_the_paper_counts_parameters_this_way():
    limits = AffineSet.box(0.0, 1.0, dim=1)
    assert sum(p.numel() for p in CAffNetFF(FeedForward(1, 1), limits).parameters()) == 162_002
    assert sum(p.numel() for p in CAffNetTF(Transformer(1, 1), limits).parameters()) == 175_682


def test_orthogonal_is_the_nearest_point(polytope: AffineSet):
    f = 3 * torch.randn(50, 3, dtype=torch.float64)
    assert torch.equal(Orthogonal(nn.Identity(), polytope)(f), project(f, polytope).value)


def test_posthoc_trains_softly_and_ends_inside(polytope: AffineSet):
    method = PostHoc(FeedForward(2, 3, hidden=16).double(), polytope)
    x = 5 * torch.randn(50, 2, dtype=torch.float64)
    output = method.train().run(x)
    assert torch.equal(output.y, output.raw)
    assert (
        method.loss(torch.zeros((), dtype=torch.float64), output) == 100 * polytope.violation(output.y).sum(-1).mean()
    )
    assert torch.equal(method.eval()(x), project(output.raw, polytope).value)


def test_the_backbone_must_be_the_named_one():
    with pytest.raises(ConstraintError, match=r"CAffNet-TF needs a Transformer backbone, got FeedForward. Any other"):
        CAffNetTF(FeedForward(2, 2), AffineSet.box(0.0, 1.0, dim=2))
