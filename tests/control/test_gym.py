"""The Gymnasium environment and its action filter."""

import copy

import numpy as np
import pytest
import torch

from caffnet import AffineSet, Status
from caffnet.control import BarrierConstraint, ControlAffine, DoubleIntegrator, InsideBox, OutsideCircles, Unicycle
from caffnet.errors import ConstraintError, InfeasibleError

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
    with pytest.raises(ConstraintError, match="The episode is over"):
        env.step(np.array([1.0, 0.0]))


def test_steps_need_an_episode():
    with pytest.raises(ConstraintError, match="call reset"):
        environment().step(UPPER)
    with pytest.raises(ConstraintError, match="call reset"):
        safe_environment().step(UPPER)


def safe_speed(speed: float, limit: float, **options):
    """dv/dt = u with ``|u| <= limit`` and a barrier ``|v| <= 1``, started at `speed`."""
    from caffnet.control.gym import ControlEnv, SafeActions

    # The actuation is float32, as a user writes it; the environment computes in float64.
    system, slow = ControlAffine(1, 1, None, lambda x: torch.tensor([[1.0]])), InsideBox([-1.0], [1.0])
    env = ControlEnv(system, lambda rng: np.array([speed]), lambda x, u: 0.0, np.array([-limit]), np.array([limit]))
    safe = SafeActions(env, BarrierConstraint(system, slow), **options)
    safe.reset(seed=0)
    return safe


@pytest.mark.parametrize(
    ("limit", "taken"),
    [
        (0.05, 0.05),  # the limit stops it
        (2.0, 0.1),  # the barrier does: u <= 1 - 0.9
        (np.inf, 0.1),
    ],
)
def test_the_action_told_is_the_action_taken(limit, taken):
    seen, *_, info = safe_speed(0.9, limit).step(np.array([5.0]))
    np.testing.assert_allclose(info["action"], [taken], rtol=1e-12)
    np.testing.assert_allclose(seen, 0.9 + 0.1 * info["action"], rtol=1e-12)
    assert info["filtered"] and info["status"] == Status.PROJECTED


def test_a_safe_action_passes_unchanged():
    *_, info = safe_speed(0.0, 0.5).step(np.array([0.3]))
    assert info["action"].tolist() == [0.3]
    assert not info["filtered"] and info["status"] == Status.INSIDE


def test_an_agent_may_work_on_its_observation():
    """The filter looks at the state as it was, not at what the agent made of it."""
    env = safe_speed(0.9, 2.0)
    seen, *_ = env.step(np.array([0.0]))
    seen *= 0.1
    *_, info = env.step(np.array([5.0]))
    np.testing.assert_allclose(info["action"], [0.1], rtol=1e-12)


def test_an_observation_of_several_parts_has_a_state():
    """Whatever `state` can read will do."""
    from caffnet.control.gym import SafeActions

    class Parts(gymnasium.ObservationWrapper):
        def observation(self, observation):
            return {"p": observation, "time": (0.0, [1.0])}

    env = SafeActions(Parts(environment()), lambda x: AffineSet.box(-0.1, 0.1, dim=2), state=lambda seen: seen["p"])
    env.reset(seed=0)
    *_, info = env.step(np.array([0.5, 0.5]))
    np.testing.assert_allclose(info["action"], [0.1, 0.1], rtol=1e-6)


def test_an_observation_of_several_parts_without_a_state_is_named():
    from caffnet.control.gym import ActionFilter

    space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    filter = ActionFilter(space, lambda x: AffineSet.box(-1.0, 1.0, dim=1), None, False, {})
    for seen in ({"speed": np.zeros(2)}, "fast"):
        with pytest.raises(ConstraintError, match=f"a state of numbers, got {type(seen).__name__}: pass state="):
            filter(np.zeros(1), seen)
    wrong = ActionFilter(space, lambda x: 3.0, None, False, {})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConstraintError, match="must be an AffineSet or return one, got float"):
        wrong(np.zeros(1), np.zeros(2))


def test_a_fixed_set_and_a_tensor_with_a_graph_are_taken_and_unknown_options_are_not():
    from caffnet.control.gym import SafeActions

    env = SafeActions(gymnasium.make("Pendulum-v1"), AffineSet.box(-1.0, 1.0, dim=1))
    env.reset(seed=0)
    *_, info = env.step(torch.tensor([9.0], requires_grad=True))
    assert info["action"].tolist() == [1.0]
    with pytest.raises(TypeError, match="SafeActions has no option 'on_infeasable'; the options are"):
        SafeActions(gymnasium.make("Pendulum-v1"), AffineSet.box(-1.0, 1.0, dim=1), on_infeasable="nearest")


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (AffineSet.box(-1.0, 1.0, dim=2), r"over the 1 actions, got AffineSet\(2 rows in R\^2\)"),
        (lambda x: AffineSet.box(-1.0, 1.0, dim=2), r"over the 1 actions, got AffineSet\(2 rows in R\^2\)"),
        (BarrierConstraint(Unicycle(), CIRCLE), r"over the 1 actions, got BarrierConstraint\(Unicycle\("),
        (3.0, "must be an AffineSet or return one, got float"),
        (lambda x: 3.0, "must be an AffineSet or return one, got float"),
        (
            lambda x: AffineSet.inequality(torch.ones(1, 1), x[..., :1]),
            r"A is torch.float32, b is torch.float64.*called in float64: write constants as lists, or x.new_tensor\(",
        ),
    ],
)
def test_a_wrong_constraint_is_refused_before_the_first_step(constraint, message):
    from caffnet.control.gym import SafeActions

    pendulum = gymnasium.make("Pendulum-v1")
    with pytest.raises(ConstraintError, match=message):
        SafeActions(pendulum, constraint)
    with pytest.raises(ConstraintError, match=message):
        SafeActions(gymnasium.vector.SyncVectorEnv([lambda: pendulum]), constraint)


def test_the_look_at_a_constraint_changes_nothing():
    """No random number of the space is drawn, `state` is not called, and what fails there may work elsewhere."""
    from caffnet.control.gym import SafeActions

    pendulum = gymnasium.make("Pendulum-v1")
    pendulum.observation_space.seed(3)
    wanted = copy.deepcopy(pendulum.observation_space).sample()
    seen = []

    def picky(x):
        if len(seen) == 0:
            seen.append(x)
            raise ValueError("not here")
        return AffineSet.box(-0.1, 0.1, dim=1)

    env = SafeActions(pendulum, picky)
    assert torch.is_tensor(seen[0]) and seen[0].shape == (3,) and seen[0].dtype == torch.float64
    assert (pendulum.observation_space.sample() == wanted).all()
    env.reset(seed=0)
    assert env.step(np.ones(1))[-1]["action"] == pytest.approx(0.1)
    SafeActions(pendulum, lambda x: AffineSet.box(-1.0, 1.0, dim=2), state=lambda x: seen.append(x))
    assert len(seen) == 1


def test_what_the_limits_make_impossible_is_not_hidden():
    with pytest.raises(InfeasibleError, match=r"x0 <= 1 .*action 0 \(lower bound"):
        safe_speed(3.0, 0.5).step(np.array([0.3]))
    seen, *_, info = safe_speed(3.0, 0.5, on_infeasible="nearest").step(np.array([0.3]))
    assert info["action"].tolist() == [-0.5]
    assert info["filtered"] and info["status"] == Status.RELAXED
    np.testing.assert_allclose(seen, 3.0 - 0.1 * 0.5, rtol=1e-12)


def test_the_least_violation_is_that_within_the_limits():
    """u1 >= 1.5 is beyond the limit of 1; |u2 - 20 u1| <= 0.1 need not suffer from that."""
    from caffnet.control.gym import ControlEnv, SafeActions

    system = ControlAffine(2, 2, None, lambda x: torch.eye(2))
    env = ControlEnv(system, lambda rng: np.zeros(2), lambda x, u: 0.0, np.array([-1.0, -50.0]), np.array([1.0, 50.0]))
    rows = AffineSet.inequality([[-1.0, 0.0], [-20.0, 1.0], [20.0, -1.0]], [-1.5, 0.1, 0.1])
    safe = SafeActions(env, rows, on_infeasible="nearest")
    safe.reset(seed=0)
    *_, info = safe.step(np.zeros(2))
    assert rows.to(torch.float64).violation(torch.from_numpy(info["action"])).max() == pytest.approx(0.5)


def test_limits_of_other_environments_count():
    from caffnet.control.gym import SafeActions

    env = SafeActions(gymnasium.make("Pendulum-v1"), lambda x: AffineSet.box(-7.0, 7.0, dim=1))
    env.reset(seed=0)
    *_, info = env.step(np.array([9.0]))
    assert info["action"].tolist() == [2.0]


def test_a_barrier_that_the_action_does_not_reach_is_named():
    from caffnet.control.gym import ControlEnv, SafeActions

    mass, wall = DoubleIntegrator(1), InsideBox([-np.inf, -np.inf], [1.0, np.inf])
    env = ControlEnv(mass, lambda rng: np.array([0.0, 2.0]), lambda x, u: 0.0, np.array([-1.0]), np.array([1.0]))
    safe = SafeActions(env, BarrierConstraint(mass, wall, samples=torch.empty(0, 2)))  # not looked at when built
    safe.reset(seed=0)
    with pytest.raises(InfeasibleError, match=r"does not reach x0 <= 1: .*use HighOrder\("):
        safe.step(np.array([0.0]))


def test_actions_have_the_number_type_of_the_space():
    from caffnet.control.gym import SafeActions

    env = SafeActions(gymnasium.make("Pendulum-v1"), lambda x: AffineSet.box(-0.7, 0.7, dim=1))
    env.reset(seed=0)
    for wanted, filtered in ((np.array([0.3]), False), (np.array([0.3], np.float32), False), (np.array([2.0]), True)):
        *_, info = env.step(wanted)
        assert env.action_space.contains(info["action"])
        assert info["filtered"] == filtered


@pytest.mark.parametrize("choice", ["nan", "nearest"])
def test_no_environment_sees_nan(choice):
    from caffnet.control.gym import SafeActions

    unknown = AffineSet.inequality([[1.0]], torch.tensor([torch.nan], dtype=torch.float64))
    env = SafeActions(gymnasium.make("Pendulum-v1"), lambda x: unknown, on_infeasible=choice)
    env.reset(seed=0)
    with pytest.raises(ConstraintError, match="There is no action to take: INVALID at the state"):
        env.step(np.array([0.1]))


SPACES = [
    gymnasium.spaces.Discrete(2),
    gymnasium.spaces.Box(-1.0, 1.0, (2, 2)),
    gymnasium.spaces.Box(-1, 1, (2,), np.int64),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_only_vectors_of_numbers_can_be_filtered(space):
    from caffnet.control.gym import SafeActions

    env = environment()
    env.action_space = space
    with pytest.raises(ConstraintError, match=r"actions in a Box of shape \(n,\) and of floating type, got"):
        SafeActions(env, lambda x: AffineSet.box(0.0, 1.0, dim=2))


def test_what_is_no_number_or_no_state_is_refused():
    env = environment()
    with pytest.raises(ConstraintError, match=r"The start must have shape \(3,\), got \(2,\)"):
        env.reset(options={"start": [1.0, 2.0]})
    env.reset(seed=0)
    with pytest.raises(ConstraintError, match="The action must be finite numbers"):
        env.step(np.array([np.nan, 0.0]))


def test_time_must_pass():
    from caffnet.control.gym import ControlEnv

    for wrong in ({"dt": -1.0}, {"steps": 0}, {"steps": 2.0}):
        with pytest.raises(ConstraintError, match="steps >= 1 and a finite dt > 0, got"):
            ControlEnv(Unicycle(), lambda rng: np.zeros(3), lambda x, u: 0.0, -1.0, 2.0, **wrong)


def test_a_cost_cannot_change_the_input():
    from caffnet.control.gym import ControlEnv

    def cost(x, u):
        u[:] = x[:2] = 9.0
        return 0.0

    env = ControlEnv(Unicycle(), lambda rng: np.zeros(3), cost, -1.0, 1.0)
    env.reset(seed=0)
    assert env.step(np.zeros(2))[0].tolist() == [0.0, 0.0, 0.0]


def test_one_limit_for_all_inputs():
    from caffnet.control.gym import ControlEnv

    env = ControlEnv(Unicycle(), lambda rng: np.zeros(3), lambda x, u: 0.0, -1.0, 2.0)
    assert env.action_space.low.tolist() == [-1.0, -1.0]
    assert env.action_space.high.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("action", [np.array(0.3), np.array([0.3]), np.zeros((5, 2))], ids=lambda a: str(a.shape))
@pytest.mark.parametrize("build", [environment, safe_environment])
def test_actions_of_another_shape_are_refused(build, action):
    env = build()
    env.reset(seed=0)
    with pytest.raises(ConstraintError, match=r"The action must have shape \(2,\), got"):
        env.step(action)


# ------------------------------------------------------------------------------------------------ rounding, many, warm


@pytest.mark.parametrize("seed", range(5))
def test_float32_actions_break_no_row(seed):
    """Rounded to nearest, half of the actions on a row would lie beyond it."""
    from caffnet.control.gym import ActionFilter

    random = np.random.default_rng(seed)
    rows = AffineSet.inequality(random.standard_normal((6, 3)), random.uniform(0.1, 1.0, 6))
    space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    wanted = 3 * random.standard_normal((400, 3))
    filtered = ActionFilter(space, rows, None, False, {})
    taken, changed, _ = filtered(wanted, np.zeros((400, 1)))
    assert taken.dtype == np.float32 and changed.mean() > 0.5
    whole = rows & filtered.limits
    assert whole.violation(torch.from_numpy(taken.astype(np.float64))).max() == 0
    exact = filtered.layer(torch.from_numpy(wanted)).numpy()
    assert whole.violation(torch.from_numpy(exact.astype(np.float32).astype(np.float64))).max() > 0
    np.testing.assert_allclose(taken, exact, atol=1e-5)
    alone = np.stack([filtered(row, np.zeros(1))[0] for row in wanted[:20]])
    np.testing.assert_array_equal(alone, taken[:20])


def test_a_set_without_room_is_rounded_to_nearest():
    from caffnet.control.gym import ActionFilter

    line = AffineSet.equality([[1.0, 1.0]], [0.1])
    filtered = ActionFilter(gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32), line, None, False, {})
    taken, _, _ = filtered(np.array([0.7, 0.3]), np.zeros(1))
    np.testing.assert_allclose(taken, [0.25, -0.15], rtol=1e-6)
    taken, _, _ = filtered(np.array([5.0, 0.3]), np.zeros(1))
    assert taken[0] == 1.0


def many(count=4, **options):
    from caffnet.control.gym import SafeActions

    envs = gymnasium.vector.SyncVectorEnv([lambda: environment(12) for _ in range(count)])
    inputs = AffineSet.box(torch.from_numpy(LOWER), torch.from_numpy(UPPER))
    return SafeActions(envs, BarrierConstraint(Unicycle(), CIRCLE, inputs=inputs), **options)


@pytest.mark.parametrize("warm_start", [False, True])
def test_vector_environments_are_filtered_as_single_ones(warm_start):
    from caffnet.control.gym import SafeVectorActions

    env = many(warm_start=warm_start)
    assert isinstance(env, SafeVectorActions)
    seen, _ = env.reset(seed=3)
    singles = [safe_environment() for _ in range(4)]
    for i, single in enumerate(singles):
        single.reset(options={"start": seen[i]})
    random = np.random.default_rng(0)
    for _ in range(11):
        actions = random.uniform(-1, 1.5, (4, 2))
        seen, _, _, _, info = env.step(actions)
        alone = [single.step(action) for single, action in zip(singles, actions, strict=True)]
        np.testing.assert_allclose(seen, [step[0] for step in alone], atol=1e-12)
        assert info["filtered"].tolist() == [step[-1]["filtered"] for step in alone]
        np.testing.assert_allclose(info["action"], [step[-1]["action"] for step in alone], atol=1e-12)


def test_a_reset_in_place_of_a_step_looks_at_no_action():
    """Where an episode has ended the next action is ignored: a set that is empty at its last state does not matter."""
    from caffnet.control.gym import SafeActions

    def nothing_at_the_end(x):  # empty where the robot has arrived
        upper = torch.where(x[..., :1] > -3.0, -2.0, 1.0).to(x)
        return AffineSet.inequality(torch.eye(2, dtype=x.dtype)[:1], upper)

    ahead = gymnasium.vector.SyncVectorEnv([lambda: environment(12), lambda: environment(40)])
    for env in ahead.envs:
        env.done = lambda x: bool(x[0] > -3.0)
        env.start = lambda rng: np.array([-3.05, 0.0, 0.0])
    env = SafeActions(ahead, nothing_at_the_end)
    env.reset(seed=0)
    _, _, terminated, _, _ = env.step(np.array([[1.0, 0.0], [0.0, 0.0]]))
    assert terminated.tolist() == [True, False]
    seen, _, terminated, _, info = env.step(np.array([[9.0, 0.0], [0.0, 0.0]]))
    assert seen[0, 0] == -3.05 and not terminated.any()
    assert info["status"].tolist() == [Status.INSIDE, Status.INSIDE]
    env.step(np.array([[1.0, 0.0], [0.0, 0.0]]))
    with pytest.raises(ConstraintError, match=r"The actions must have shape \(2, 2\), got \(2,\)"):
        env.step(np.zeros(2))


def test_a_warm_start_gives_the_same_actions():
    from caffnet.control.gym import SafeActions

    paths = []
    for warm_start in (False, True):
        env = SafeActions(environment(), BarrierConstraint(Unicycle(), CIRCLE), warm_start=warm_start)
        paths.append(drive(env)[0])
    np.testing.assert_allclose(paths[0], paths[1], atol=1e-12)


def test_a_state_may_bring_its_time():
    from caffnet.control import Moving
    from caffnet.control.gym import ControlEnv, SafeActions

    class Clock(gymnasium.Wrapper):
        def reset(self, **options):
            self.steps = 0
            return super().reset(**options)

        def step(self, action):
            self.steps += 1
            return super().step(action)

    ball = Moving(OutsideCircles([[2.0, 0.0]], [0.5]), [-1.0, 0.0])
    robot = ControlAffine(2, 2, None, lambda x: torch.eye(2, dtype=x.dtype))
    clock = Clock(ControlEnv(robot, lambda rng: np.zeros(2), lambda x, u: 0.0, -2.0, 2.0, steps=40))
    safe = SafeActions(clock, BarrierConstraint(robot, ball), state=lambda seen: (seen, 0.1 * clock.steps))
    seen, _ = safe.reset(seed=0)
    gaps = []
    for _ in range(40):
        seen, *_ = safe.step(np.array([0.0, 0.01]))
        gaps.append(np.hypot(seen[0] - (2.0 - 0.1 * clock.steps), seen[1]) - 0.5)
    assert min(gaps) > 0
