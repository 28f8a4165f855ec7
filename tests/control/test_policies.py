"""Policy heads: gradients that learn, and what a naive score gets wrong."""

import pytest
import torch

from caffnet import AffineSet
from caffnet.control import InteriorActor, InteriorNormal, ProjectedNormal, StochasticPolicy, TruncatedNormal
from caffnet.errors import ConstraintError

WEDGE = AffineSet.inequality([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], [1.0, 0.0, 0.0])


def test_an_actor_finds_the_best_corner():
    """A linear reward is largest in a corner; the map comes as near as one likes, and keeps its gradient."""
    torch.manual_seed(0)
    actor = InteriorActor(torch.nn.Linear(1, 2), WEDGE)
    optimiser = torch.optim.Adam(actor.parameters(), 0.1)
    x = torch.ones(1, 1)
    for _ in range(300):
        loss = -(actor(x) * torch.tensor([1.0, 0.3])).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.testing.assert_close(actor(x)[0], torch.tensor([1.0, 0.0]), atol=0.02, rtol=0)
    assert WEDGE.violation(actor(x)).max() == 0


@pytest.mark.parametrize("kind", ["interior", "projected", "truncated"])
def test_policies_return_distributions_at_the_states(kind):
    def moving(x):
        return AffineSet.inequality(torch.ones(1, 2), x[..., :1]) & AffineSet.box(torch.zeros(2), None)

    torch.manual_seed(0)
    policy = StochasticPolicy(torch.nn.Linear(3, 4), moving, kind)
    x = 0.5 + torch.rand(6, 3)
    chosen = policy(x)
    drawn = chosen.sample()
    score = chosen.log_prob(drawn)
    assert drawn.shape == (6, 2) and score.shape == (6,)
    score.sum().backward()
    assert policy.backbone.weight.grad.abs().max() > 0
    actions = chosen.action(drawn) if kind == "projected" else drawn
    assert moving(x).violation(actions).max() < 1e-6
    with pytest.raises(ConstraintError, match="kind must be one of interior, projected, truncated, got 'best'"):
        StochasticPolicy(torch.nn.Linear(3, 4), WEDGE, "best")


# ------------------------------------------------------------------------------------------------ the right score

PLACE, HEAT = torch.tensor([0.8, 0.4]), 0.2


def reward(u):
    """Largest at a place outside of the triangle."""
    return -(u - PLACE.to(u)).square().sum(-1)


def soft_optimum():
    """The largest ``E[r] + HEAT · entropy`` over all policies on the triangle: ``HEAT log ∫ exp(r / HEAT)``.

    It is that of the policy ``exp(r / HEAT)``, a truncated Gaussian.
    """
    axis = torch.linspace(0, 1, 2001, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    inside = WEDGE.violation(grid).amax(-1) == 0
    values = (reward(grid[inside]) / HEAT).exp()
    return HEAT * float((values.sum() * (1 / 2000) ** 2).log())


def learn(score: str, method: str, steps: int = 800):
    """Maximise ``E[r] + HEAT · entropy`` over one decision in a triangle.

    ``interior`` and ``truncated`` score the action by its own density, ``naive`` a projected one by the Gaussian's.
    Returned: what the method believes to have reached, the mean, and the share of actions on the boundary.
    """
    torch.manual_seed(0)
    loc, log_std = torch.zeros(2, requires_grad=True), torch.full((2,), -1.0, requires_grad=True)
    optimiser = torch.optim.Adam([loc, log_std], 0.02)

    def draw(count):
        scale = log_std.exp()
        if score == "interior" and method == "sac":
            return InteriorNormal(WEDGE, loc, scale).rsample_with_log_prob((count,))
        policy = {"interior": InteriorNormal, "truncated": TruncatedNormal, "naive": ProjectedNormal}[score](
            WEDGE, loc, scale
        )
        drawn = policy.rsample((count,)) if method == "sac" else policy.sample((count,))
        action = policy.action(drawn) if isinstance(policy, ProjectedNormal) else drawn
        return action, policy.log_prob(action)

    for _ in range(steps):
        action, score_of = draw(256)
        gain = reward(action) - HEAT * score_of
        # SAC differentiates through the action; REINFORCE through the score alone.
        loss = -gain.mean() if method == "sac" else -(score_of * (gain - gain.mean()).detach()).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        action, score_of = draw(20000)
    edge = (WEDGE.to(torch.float32).upper - action @ WEDGE.to(torch.float32).A.mT).amin(-1) < 1e-6
    return float((reward(action) - HEAT * score_of).mean()), loc.detach(), float(edge.float().mean())


@pytest.mark.parametrize(
    ("score", "method"), [("truncated", "reinforce"), ("interior", "reinforce"), ("interior", "sac")]
)
def test_exact_scores_reach_the_optimum(score, method):
    """The truncated Gaussian contains the best policy; a mapped one comes near."""
    best = soft_optimum()
    reached, mean, _ = learn(score, method)
    assert best - (0.005 if score == "truncated" else 0.05) < reached < best + 0.005
    if score == "truncated":
        torch.testing.assert_close(mean, PLACE, atol=0.1, rtol=0)


@pytest.mark.parametrize("method", ["reinforce", "sac"])
def test_naive_scores_believe_in_more_than_there_is(method):
    """A projected Gaussian scored by its density earns entropy that is not there: its mean leaves the set."""
    believed, mean, on_edge = learn("naive", method, 200)
    assert believed > soft_optimum() + 0.3  # no policy can
    assert WEDGE.violation(mean).max() > 0.1 and on_edge > 0.5
