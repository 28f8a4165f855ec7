"""Settings: protocols, TOML, and what is refused."""

import dataclasses
from pathlib import Path

import pytest

from caffnet_lab.experiments.config import (
    METHODS,
    PAPER_TASKS,
    SEEDS,
    Campaign,
    ConfigError,
    RunConfig,
    load_campaign,
    make_folder,
    parse_settings,
    resolve,
)
from caffnet_lab.experiments.records import read_records


def test_paper_protocol():
    for task, epochs in (("pwc", 50_000), ("opt", 10_000), ("cbf", 2_000)):
        config = resolve(task, "caffnet-ff", 1)
        assert (config.epochs, config.learning_rate, config.penalty_weight) == (epochs, 1e-4, 100.0)
        assert (config.null_start, config.gradient, config.dtype, config.keep) == ("random", "exact", "float64", "last")
    assert resolve("opt", "nn", 1).batch_norm
    assert resolve("opt", "nn", 1).dropout == 0.2
    assert not resolve("opt", "caffnet-tf", 1).batch_norm
    assert not resolve("pwc", "nn", 1).batch_norm


@pytest.mark.parametrize("task", PAPER_TASKS)
def test_ours_has_no_null_space_head_and_the_tangent_gradient(task):
    for method in ("caffnet-ff", "caffnet-ff-lite", "caffnet-tf"):
        ours = resolve(task, method, 1, "ours")
        assert (ours.null_start, ours.gradient, ours.keep, ours.dropout) == ("none", "tangent", "best", 0.0)
    assert resolve(task, "repair", 1, "ours").null_start == "zero"  # w is all that it trains


@pytest.mark.parametrize("task", PAPER_TASKS)
def test_a_campaign_is_the_papers_table_by_default(task):
    runs = load_campaign(task=task).runs
    assert len(runs) == 5 * len(METHODS[task])
    assert {config.seed for config in runs} == set(SEEDS[task])
    assert len({config.name for config in runs}) == len(runs)


def test_quick_is_one_seed():
    assert {config.seed for config in load_campaign(task="cbf", quick=True).runs} == {2}


def test_quick_runs_stay_away_from_the_evidence():
    assert load_campaign(task="cbf").folder == Path("results")
    assert load_campaign(task="cbf", quick=True).folder == Path("runs/quick")
    assert load_campaign(task="cbf", quick=True, out="here").folder == Path("here")


def test_toml_and_options_on_top(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('task = "opt"\nprotocol = "ours"\nmethods = ["caffnet-ff"]\nseeds = [1, 2]\nepochs = 1500\n')
    campaign = load_campaign(file, epochs=7, jobs=None)
    assert [config.seed for config in campaign.runs] == [1, 2]
    assert {config.epochs for config in campaign.runs} == {7}
    assert campaign.jobs == 1


def test_the_papers_draws_are_for_the_feed_forward_networks_of_cbf():
    assert {resolve("cbf", method, 2).draws for method in ("nn", "hardnet", "caffnet-ff", "post-hoc")} == {"paper"}
    assert resolve("cbf", "caffnet-tf", 2).draws == resolve("opt", "nn", 1).draws == "native"
    assert resolve("cbf", "caffnet-ff", 2, "ours").draws == "native"
    with pytest.raises(ConfigError, match="known for feed-forward networks"):
        resolve("cbf", "caffnet-tf", 2, "paper", {"draws": "paper"})
    with pytest.raises(ConfigError, match="draws is about the rollouts of cbf, got task opt"):
        resolve("opt", "nn", 1, "paper", {"draws": "paper"})


#: Neither the paper's search nor its draws, which other settings do not go with.
PLAIN = {"search": "full", "draws": "native"}
#: For each setting a value that `PLAIN` does not have.
OTHER = {
    "task": "opt",
    "method": "nn",
    "seed": 6,
    "protocol": "ours",
    "epochs": 7,
    "learning_rate": 2e-4,
    "schedule": "cosine",
    "batch": 50,
    "penalty_weight": 10.0,
    "penalty": "linear",
    "hidden": 16,
    "feedforward": 16,
    "batch_norm": True,
    "dropout": 0.2,
    "null_start": "zero",
    "null_rate": 0.1,
    "gradient": "tangent",
    "keep": "best",
    "dtype": "float32",
    "device": "cuda",
    "activation": "silu",
    "clip": 1.0,
    "adjoint": 1e5,
    "goal_radius": 0.05,
    "search": "paper",
    "draws": "paper",
}


@pytest.mark.parametrize("setting", [field.name for field in dataclasses.fields(RunConfig)])
def test_the_digest_knows_every_setting(setting):
    base = resolve("cbf", "caffnet-ff", 2, "paper", PLAIN)
    assert base.digest == resolve("cbf", "caffnet-ff", 2, "paper", PLAIN).digest
    other = dataclasses.replace(base, **{setting: OTHER[setting]})  # nothing else changes
    fields = dataclasses.asdict(other)
    assert other == resolve(*(fields.pop(key) for key in ("task", "method", "seed", "protocol")), fields)  # it is valid
    assert other.digest != base.digest
    assert other.name != base.name


def test_post_hoc_takes_the_soft_network():
    for protocol in ("paper", "ours"):
        assert resolve("cbf", "post-hoc", 2, protocol).trained == resolve("cbf", "nn", 2, protocol)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ('task = "opt"\nlearning_rte = 1', r"Unknown setting learning_rte in .*a.toml. Known: task, protocol"),
        ('task = "opt"\na = 1\nb = 1', "Unknown settings a, b"),
        ("epochs = 3", "Name a task: one of pwc, opt, cbf"),
        ('task = "sat"', "task must be one of pwc, opt, cbf, dc3-simple, .*, got 'sat'"),
        ('task = "opt"\nprotocol = "best"', "protocol must be one of paper, ours, got 'best'"),
        ('task = "pwc"\nmethods = ["ipopt"]', "method must be one of nn, hardnet, .*, got 'ipopt'"),
        ('task = "opt"\nepochs = "many"', "epochs must be of type int, got 'many'"),
        ('task = "opt"\nepochs = true', "epochs must be of type int, got True"),
        ('task = "opt"\nepochs = -1', "epochs must be at least 0, got -1"),
        ('task = "opt"\nseeds = 3', "seeds must be a list, got 3"),
        ('task = "opt"\ndropout = 1.0', r"dropout must be in \[0, 1\), got 1.0"),
        ('task = "cbf"\ngradient = "tangent"', 'search "paper" goes with gradient "exact", got \'tangent\''),
        ('task = "opt"\ngradient = "wrong"', "gradient must be one of exact, tangent, got 'wrong'"),
        ('task = "opt"\njobs = 0', "jobs must be at least 1, got 0"),
        ("task = ", "is not valid TOML"),
    ],
)
def test_mistakes_are_named(tmp_path, written, message):
    file = tmp_path / "a.toml"
    file.write_text(written)
    with pytest.raises(ConfigError, match=message):
        load_campaign(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "a.toml is not valid TOML: 'utf-8' codec"),
        (b"x = " + b"[" * 5000 + b"]" * 5000, "a.toml is not a config: it has lists in lists"),
        (b"#" * (2**20 + 1), "a.toml is not valid TOML: it has more than 1,048,576 bytes"),
        (b'task = "pwc"\nepochs = ' + b"9" * 5000, "a.toml is not valid TOML: Exceeds the limit"),
        (b'task = "pwc"\nepochs = 10000001', "epochs must be at most 10000000, got 10000001"),
        (b'task = "pwc"\nhidden = 100000', "hidden must be at most 10000, got 100000"),
        (b'task = "pwc"\nclip = 1' + b"0" * 400, "clip must be of type float, got 10000"),
        (b'task = "pwc"\nthreads = 100000', "threads must be at most 1024, got 100000"),
        (b'task = "pwc"\njobs = 100000', "jobs must be at most 1024, got 100000"),
        (b'task = "pwc"\nseeds = [[1]]', r"seeds must be of type int, got \[1\]"),
        (b"task = 1979-05-27", "task must be of type str, got datetime"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_and_numbers_that_are_too_much(tmp_path, content, message):
    file = tmp_path / "a.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_campaign(file)


def test_settings_that_are_too_much():
    with pytest.raises(ConfigError, match="clip has lists in lists, deeper than any setting has"):
        parse_settings([f"clip={'[' * 5000}{']' * 5000}"])
    with pytest.raises(ConfigError, match=r"out must be a folder, but 'a\\x00b' cannot be one: embedded null byte"):
        make_folder(Path("a\0b"))


def test_missing_file_and_unknown_setting():
    with pytest.raises(ConfigError, match=r"no config file nowhere\.toml"):
        load_campaign("nowhere.toml")
    with pytest.raises(ConfigError, match="Unknown setting 'lr'"):
        resolve("opt", "nn", 1, settings={"lr": 1.0})
    with pytest.raises(ConfigError, match="threads must be at least 1"):
        Campaign("opt", threads=0)


@pytest.mark.parametrize("file", sorted((Path(__file__).parents[2] / "configs").glob("*.toml")), ids=lambda p: p.name)
def test_shipped_configs_are_valid(file):
    assert load_campaign(file).runs


def test_settings_that_came_later_do_not_rename_older_records():
    """What was finished before a setting existed is found again under its name."""
    known = {field.name for field in dataclasses.fields(RunConfig)}
    named = 0
    for record in read_records(Path(__file__).parents[2] / "results"):
        if set(record["config"]) <= known:  # a setting that is gone was part of the name
            assert RunConfig(**record["config"]).name == record["name"]
            named += 1
    assert named > 50


@pytest.mark.parametrize("method", ["caffnet-ff-lite", "post-hoc", "nn"])
def test_the_search_of_the_paper_is_for_methods_that_have_it(method):
    with pytest.raises(ConfigError, match=rf'search "paper" is one of caffnet-ff and caffnet-tf, got method {method}'):
        resolve("cbf", method, 2, settings={"search": "paper"})
