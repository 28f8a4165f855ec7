"""Two gloo processes give the loss of one process on the same global batch, for data and for rollouts."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import caffnet
from caffnet_lab.experiments import cbf
from caffnet_lab.experiments.campaign import run_campaign
from caffnet_lab.experiments.checkpoint import Checkpoint
from caffnet_lab.experiments.config import ConfigError, load_campaign, resolve
from caffnet_lab.experiments.distributed import Group
from caffnet_lab.experiments.models import build_model
from caffnet_lab.experiments.opt import SolverProblem
from caffnet_lab.experiments.records import read_records
from caffnet_lab.experiments.run import checkpoint_path
from caffnet_lab.experiments.training import train

HERE = Path(__file__).parent


def test_two_processes_equal_one(tmp_path, monkeypatch):
    environment = {**os.environ, "PYTHONPATH": str(Path(caffnet.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*torchrun, str(HERE / "worker_ddp.py"), str(tmp_path)], env=environment, check=True, timeout=120)
    together = {record["config"]["task"]: record for record in read_records(tmp_path)}
    assert set(together) == {"opt", "cbf", "pwc"}
    monkeypatch.setattr(cbf, "TRAIN_STEPS", 3)
    monkeypatch.setattr(cbf, "TEST_STEPS", 3)
    for task, record in together.items():
        config = record["config"]
        campaign = load_campaign(
            task=task, protocol="ours", methods=[config["method"]], seeds=[1], epochs=3, out=str(tmp_path / "alone")
        )
        (alone,) = run_campaign(campaign)
        assert record["machine"]["processes"] == 2
        for key in ("loss", "worst"):
            mine, theirs = (r["training"]["history"][key] for r in (alone, record))
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-12, err_msg=f"{task} {key}")
        # Adam does not notice a factor in the gradients; its moments do.
        (run,) = campaign.runs
        one, two = (
            Checkpoint.read(checkpoint_path(out, run), run.digest).tensors for out in (tmp_path / "alone", tmp_path)
        )
        for name in one:
            if "exp_avg" in name:
                torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-4 * float(one[name].abs().max()))


def test_parts_of_a_batch_make_the_whole():
    x = SolverProblem(1).train
    parts = [Group(rank, 3).share(x) for rank in range(3)]
    assert sorted(len(part) for part in parts) == [333, 333, 334]
    assert sorted(torch.cat(parts).tolist()) == sorted(x.tolist())
    assert Group().share(x) is x


def test_a_last_batch_that_is_too_small_for_all_processes_is_refused(tmp_path):
    problem = SolverProblem(1)
    for batch in (333, 1):  # 1000 = 3 · 333 + 1
        config = resolve("opt", "nn", 1, "ours", {"epochs": 1, "batch": batch})
        with pytest.raises(ConfigError, match=f"With batch {batch} the last of 1000 samples are 1, too few for 2 proc"):
            train(config, problem, build_model(config, problem), tmp_path / "a", group=Group(0, 2))


@pytest.mark.parametrize("off", ["batch_norm", "dropout"])
def test_batch_norm_and_dropout_are_refused_across_processes(off, tmp_path):
    config = resolve("opt", "nn", 1, settings={"epochs": 1, off: False if off == "batch_norm" else 0.0})
    problem = SolverProblem(1)
    with pytest.raises(ConfigError, match="BatchNorm and dropout need the whole batch in one process"):
        train(config, problem, build_model(config, problem), tmp_path / "a", group=Group(0, 2))
