"""The Gymnasium environment and its action filter."""

import numpy as np
import pytest
import torch

from caffnet import AffineSet
from caffnet.control import BarrierConstraint, OutsideCircles, Unicycle
from caffnet.errors import ConstraintError

gymnasium = pytest.importorskip("gymnasium")

LOWER, UPPER = np.array([-0.01, -0.5]), np.array([1.0, 0.5])
CIRCLE = OutsideCircles([[-2.0, 0.0]], [0.5])


def environment(steps: int = 40):
    from caffnet.control.gym import ControlEnv

    return ControlEnv(
        Unicycle(),
        start=lambda rng: np.array([-4.0, rng.uniform(-0.1, 0.1), 0.0]),
        cost=lambda x, u: float(x[:2] @ x[:2]),
        lower=LOWER,
        upper=UPPER,
        barrier=CIRCLE,
        done=lambda x: bool(np.hypot(x[0], x[1]) <= 0.1),
        steps=steps,
    )


def safe_environment():
    from caffnet.control.gym import SafeActions

    inputs = AffineSet.box(torch.from_numpy(LOWER), torch.from_numpy(UPPER))
    return SafeActions(environment(), BarrierConstraint(Unicycle(), CIRCLE, inputs=inputs))


def drive(env, seed: int = 0):
    _, info = env.reset(seed=seed)
    margins, over = [info["barrier"]], False
    while not over:
        _, reward, terminated, truncated, info = env.step(np.array([1.0, 0.0]))
        margins.append(info["barrier"])
        over = terminated or truncated
        assert reward < 0
    return margins, info


@pytest.mark.filterwarnings("ignore:.*(symmetric and normalized|minimum value is -inf|maximum value is inf)")
def test_environment_follows_the_gymnasium_contract():
    from gymnasium.utils.env_checker import check_env

    check_env(environment(), skip_render_check=True)


def test_unfiltered_agent_crashes_and_filtered_one_does_not():
    crashed, _ = drive(environment())
    safe, info = drive(safe_environment())
    assert min(crashed) < 0
    assert min(safe) >= 0
    assert len(safe) == 41
    assert info["filtered"]
    assert info["action"][0] < 1


def test_start_can_be_set():
    seen, _ = environment().reset(options={"start": [1.0, 2.0, 0.5]})
    assert seen.tolist() == [1.0, 2.0, 0.5]


def test_goal_ends_the_episode():
    env = environment()
    env.reset(options={"start": [-0.15, 0.0, 0.0]})
    assert env.step(np.array([1.0, 0.0]))[2]


def test_steps_need_an_episode():
    with pytest.raises(ConstraintError, match="call reset"):
        environment().step(UPPER)
    with pytest.raises(ConstraintError, match="call reset"):
        safe_environment().step(UPPER)
