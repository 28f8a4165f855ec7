"""Times of all methods, side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffnet_lab.experiments.config import ConfigError, resolve
from caffnet_lab.experiments.records import read_timings
from caffnet_lab.experiments.report import write_report
from caffnet_lab.experiments.run import run_one
from caffnet_lab.experiments.timing import time_methods


def test_every_method_is_timed_and_the_latest_counts(tmp_path: Path):
    told: list[str] = []
    found = time_methods("pwc", "ours", tmp_path, rounds=1, on_step=told.append)
    assert list(found["methods"]) == ["nn", "hardnet", "caffnet-ff", "caffnet-tf"]
    assert all(times["train_ms"] > 0 and times["test_ms"] > 0 for times in found["methods"].values())
    assert all(len(times["train_ms_rounds"]) == 1 for times in found["methods"].values())
    assert told[0].startswith("nn: epoch 1")
    (path,) = (tmp_path / "timing").glob("*.json")
    text = path.read_text().replace(found["finished"], "2999-01-01T00:00:00+00:00")
    path.with_name("later.json").write_text(text)
    assert [timing["finished"] for timing in read_timings(tmp_path)] == ["2999-01-01T00:00:00+00:00"]


def test_an_unknown_task_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"task must be one of pwc, opt, cbf, dc3-simple, .*, got 'pwx'"):
        time_methods("pwx", "ours", tmp_path)
    with pytest.raises(ConfigError, match="post-hoc has no times of its own"):
        time_methods("cbf", "paper", tmp_path, methods=["nn", "post-hoc"])


def test_the_folder_is_checked_first_and_made_for_known_tasks_only(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"out must be a folder, but .*file/x cannot be one"):
        time_methods("pwc", "paper", tmp_path / "file" / "x", on_step=lambda _: pytest.fail("measured"))
    with pytest.raises(ConfigError, match="task must be"):
        time_methods("pwx", "paper", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_report_can_be_put_into_a_documentation(tmp_path: Path):
    run_one(resolve("pwc", "nn", 1, "paper", {"epochs": 3}), tmp_path / "results")
    time_methods("pwc", "paper", tmp_path / "results", rounds=1)
    target = tmp_path / "docs" / "results.md"
    write_report([tmp_path / "results"], tmp_path / "out", target)
    text = target.read_text()
    assert "| pwc paper: CAffNet-FF |" in text
    assert "](figures/results/pwc-paper-loss.png)" in text
    assert (tmp_path / "docs" / "figures" / "results" / "pwc-paper-loss.png").is_file()
