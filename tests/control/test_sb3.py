"""Ready policies of Stable-Baselines3: actions inside, learning, saving."""

import numpy as np
import pytest
import torch

from caffnet import AffineSet
from caffnet.errors import ConstraintError

sb3 = pytest.importorskip("stable_baselines3")
gymnasium = pytest.importorskip("gymnasium")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

N = 3


class Reach(gymnasium.Env):
    """A point in space with a budget for its power, ``Σ max(u_i v_i, 0)`` at the speed of the observation."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (N,), np.float32)
    action_space = gymnasium.spaces.Box(np.full(N, -2.0, np.float32), np.full(N, 3.0, np.float32))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.left, self.worst = self.np_random.uniform(-1, 1, N).astype(np.float32), 20, 0.0
        return self.x, {}

    def step(self, action):
        seen = torch.from_numpy(self.x).unsqueeze(0)
        self.worst = max(self.worst, float(rows(seen).violation(torch.from_numpy(action).double()).max()))
        self.x = np.clip(self.x + 0.1 * action, -10, 10).astype(np.float32)
        self.left -= 1
        return self.x, -float(np.square(self.x - 0.5).sum()), False, self.left == 0, {"worst": self.worst}


def rows(observations):
    """``(0.2 + |x|) · u <= 0.5``, a row that depends on the observation."""
    return AffineSet.inequality(
        0.2 + observations.double().abs().unsqueeze(-2), torch.full((1,), 0.5, dtype=torch.float64)
    )


def build(name, rows=rows):
    from caffnet.control import sb3 as safe

    torch.manual_seed(0)
    policy, kwargs = {
        "sac": (safe.SafeSACPolicy, {}),
        "td3": (safe.SafeTD3Policy, {"centre": [0.0] * N}),
        "td3-project": (safe.SafeTD3Policy, {"head": "project"}),
        "ppo": (safe.SafePPOPolicy, {}),
    }[name]
    made = {"sac": sb3.SAC, "td3": sb3.TD3, "ppo": sb3.PPO}[name.split("-")[0]]
    more = (
        {"n_steps": 64, "batch_size": 32, "n_epochs": 2} if name == "ppo" else {"learning_starts": 40, "batch_size": 32}
    )
    return made(
        policy,
        Reach(),
        policy_kwargs={"constraint": rows, "net_arch": [16, 16], **kwargs},
        seed=0,
        device="cpu",
        **more,
    )


@pytest.mark.parametrize("name", ["sac", "td3", "td3-project", "ppo"])
def test_a_policy_learns_and_stays_inside(name, tmp_path):
    model = build(name)
    observed = np.random.default_rng(0).uniform(-3, 3, (200, N)).astype(np.float32)
    before = model.predict(observed, deterministic=True)[0]
    model.learn(128)
    for deterministic in (True, False):
        actions, _ = model.predict(observed, deterministic=deterministic)
        assert rows(torch.from_numpy(observed)).violation(torch.from_numpy(actions).double()).max() < 2e-6
        assert (actions >= -2).all() and (actions <= 3).all()
    assert np.abs(model.predict(observed, deterministic=True)[0] - before).max() > 1e-3
    model.save(tmp_path / "model")
    again = type(model).load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(
        again.predict(observed, deterministic=True)[0], model.predict(observed, deterministic=True)[0]
    )


def test_log_probabilities_are_those_of_the_taken_actions():
    model = build("ppo")
    observed = torch.randn(50, N)
    torch.manual_seed(1)
    actions, values, score = model.policy(observed)
    again, found, entropy = model.policy.evaluate_actions(observed, actions)
    torch.testing.assert_close(found, score, rtol=0, atol=0)  # the ratio of an unchanged policy is one
    torch.testing.assert_close(again, values)
    assert entropy.shape == (50,)


def test_random_warm_up_needs_the_wrapper():
    """Before `learning_starts` the actions come from the space, not from the policy."""
    from caffnet.control.gym import SafeActions

    model = build("sac")
    model.learn(30)
    assert model.get_env().envs[0].env.worst > 0.1
    safe = SafeActions(Reach(), lambda x: rows(x.unsqueeze(0))[0])
    safe.reset(seed=0)
    for _ in range(20):
        *_, info = safe.step(safe.action_space.sample())
    assert info["worst"] == 0


def test_what_cannot_be_is_refused():
    from caffnet.control.sb3 import ActionSets, SafeSACPolicy, SafeTD3Policy

    with pytest.raises(ConstraintError, match="head must be one of interior, project, got 'nearest'"):
        sb3.TD3(SafeTD3Policy, Reach(), policy_kwargs={"constraint": rows, "head": "nearest"})
    with pytest.raises(ConstraintError, match="use_sde=False"):
        sb3.SAC(SafeSACPolicy, Reach(), use_sde=True, policy_kwargs={"constraint": rows})
    with pytest.raises(ConstraintError, match="box with finite limits"):
        ActionSets(rows, gymnasium.spaces.Box(-np.inf, np.inf, (N,)), scaled=True)
    with pytest.raises(ConstraintError, match=r"of shape \(n,\), got Box"):
        ActionSets(rows, gymnasium.spaces.Box(-1.0, 1.0, (N, 1)), scaled=True)
    space, seen = gymnasium.spaces.Box(-1.0, 1.0, (N,)), torch.zeros(4, N)
    with pytest.raises(ConstraintError, match="must be an AffineSet or return one, got float"):
        ActionSets(lambda x: 3.0, space, scaled=True)(seen)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConstraintError, match="over the 3 actions, got AffineSet"):
        ActionSets(AffineSet.box(-1.0, 1.0, dim=2), space, scaled=True)(seen)
    with pytest.raises(ConstraintError, match=r"centre must have shape \(..., 3\), one action, got \(2,\)"):
        ActionSets(rows, space, scaled=False, centre=[0.0, 0.0]).transform(seen)


def tight(observations):
    """``u_0 <= x_0``, of which the limits allow nothing where ``x_0 < -2``, and one point where it is -2."""
    x = observations.double()[..., :1]
    return AffineSet.inequality(torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64), x)


@pytest.mark.parametrize("name", ["sac", "td3", "ppo"])
def test_an_agent_acts_where_its_set_has_no_interior(name):
    """The action of least violation within the limits; it teaches the actor nothing, and no number is lost."""
    model = build(name, tight)
    observed = np.array([[-5.0, 0.0, 0.0], [-2.0, 1.0, 0.0], [1.0, 0.0, 0.0]], np.float32)
    for deterministic in (True, False):
        actions, _ = model.predict(observed, deterministic=deterministic)
        np.testing.assert_allclose(actions[:2], [[-2.0, 0.5, 0.5]] * 2, atol=1e-5)
        assert actions[2, 0] <= 1 + 1e-5
    states = torch.from_numpy(observed)
    if name == "sac":
        action, score = model.actor.action_log_prob(states)
        assert score[:2].tolist() == [0.0, 0.0] and score[2] != 0
        (action.sum() + score.sum()).backward()
        assert all(w.grad is None or w.grad.isfinite().all() for w in model.actor.parameters())
    if name == "ppo":
        actions, _, score = model.policy(states)
        _, again, entropy = model.policy.evaluate_actions(states, actions)
        assert torch.equal(again, score) and score[:2].tolist() == [0.0, 0.0] and entropy.isfinite().all()
    model.learn(128)
    assert all(weight.isfinite().all() for weight in model.policy.parameters())
