"""Runs: resumed bit for bit, recorded once, in parallel, and honest about broken files."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import caffnet
from caffnet_lab.cli import app
from caffnet_lab.experiments import cbf, provenance
from caffnet_lab.experiments.campaign import WorkerError, _Book, run_campaign
from caffnet_lab.experiments.checkpoint import Checkpoint, CheckpointError
from caffnet_lab.experiments.config import ConfigError, load_campaign, resolve
from caffnet_lab.experiments.files import write_atomically
from caffnet_lab.experiments.models import build_model
from caffnet_lab.experiments.records import RecordError, read_record, read_records, rounded, thin, write_record
from caffnet_lab.experiments.report import write_report
from caffnet_lab.experiments.run import build_problem, checkpoint_path, run_one
from caffnet_lab.experiments.training import DivergedError, Tick, epochs_of

SOURCE = Path(caffnet.__file__).parents[1]
TIMES = ("seconds", "ms_per_epoch", "starts")


def essence(record: dict) -> dict:
    """A record without times and dates."""
    text = json.loads(json.dumps({key: record[key] for key in ("config", "training", "evaluation", "curves")}))
    for key in TIMES:
        text["training"].pop(key)
    text["evaluation"].pop("test_ms")
    return text


class Interrupted(Exception):
    """Raised in the middle of a run."""


def interrupt_at(epoch: int):
    def on_tick(tick):
        if tick.epoch >= epoch:
            raise Interrupted

    return on_tick


RUNS = {
    "dropout and BatchNorm": resolve("opt", "nn", 1, settings={"epochs": 12}),
    "best weights": resolve("pwc", "caffnet-ff", 1, "ours", {"epochs": 12, "keep": "best", "learning_rate": 1e-2}),
    "two learning rates": resolve("opt", "caffnet-tf", 1, "ours", {"epochs": 6}),
    "small batches": resolve(
        "pwc", "caffnet-tf", 3, settings={"epochs": 8, "batch": 20, "dtype": "float32", "schedule": "cosine"}
    ),
    "rollouts": resolve(  # the limits on gradients are reached, and the last weights are not the best
        "cbf", "caffnet-ff", 2, "ours", {"epochs": 6, "hidden": 16, "batch": 100, "clip": 0.05, "learning_rate": 0.3}
    ),
    "rollouts with compromises": resolve(  # some are chosen in every epoch
        "cbf", "caffnet-ff", 2, "paper", {"epochs": 6, "hidden": 64, "learning_rate": 1e-2}
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_an_interrupted_run_ends_as_an_uninterrupted_one(name, tmp_path, monkeypatch):
    monkeypatch.setattr("caffnet_lab.experiments.training.TICK", 0.0)
    monkeypatch.setattr("caffnet_lab.experiments.run.time_forward", lambda *_: 1.0)  # takes a second
    monkeypatch.setattr(cbf, "TRAIN_STEPS", 3)
    monkeypatch.setattr(cbf, "TEST_STEPS", 2)
    config = RUNS[name]
    whole = run_one(config, tmp_path / "whole")
    for epoch in (3, 5):
        with pytest.raises(Interrupted):
            run_one(config, tmp_path / "parts", every=0.0, on_tick=interrupt_at(epoch))
    resumed = run_one(config, tmp_path / "parts")
    assert essence(resumed) == essence(whole)
    assert resumed["training"]["starts"] == 3
    saved = [Checkpoint.read(checkpoint_path(tmp_path / part, config), config.digest) for part in ("whole", "parts")]
    for key, value in saved[0].tensors.items():
        assert torch.equal(value, saved[1].tensors[key]), key


def command(out: Path, *options: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "caffnet_lab",
        "run",
        "opt",
        "--method",
        "nn",
        "--seed",
        "1",
        "--out",
        str(out),
        *options,
    ]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}


def test_sigkill_then_continue_is_bit_identical(tmp_path):
    config = resolve("opt", "nn", 1, settings={"epochs": 100})
    arguments = command(tmp_path, "--epochs", "100", "--checkpoint-seconds", "0", "--device", "cpu")
    process = subprocess.Popen(arguments, env=environment(), stdout=subprocess.DEVNULL)
    path = checkpoint_path(tmp_path, config)
    deadline = time.monotonic() + 120
    reached = 0
    while reached < 10 and time.monotonic() < deadline:
        time.sleep(0.02)
        if path.exists():
            reached = Checkpoint.read(path, config.digest).progress["epoch"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 10 <= reached < 100
    assert not read_records(tmp_path)
    done = subprocess.run(arguments, env=environment(), capture_output=True, text=True, check=True)
    assert "opt paper nn seed 1: objective" in done.stdout
    resumed = read_record(tmp_path / "records" / f"{config.name}.json")
    assert resumed["training"]["starts"] == 2
    assert essence(resumed) == essence(run_one(config, tmp_path / "whole"))


def test_a_finished_run_is_not_run_again(tmp_path):
    config = resolve("pwc", "nn", 1, settings={"epochs": 2})
    first = run_one(config, tmp_path)
    checkpoint_path(tmp_path, config).unlink()
    assert run_one(config, tmp_path) == read_record(tmp_path / "records" / f"{config.name}.json")
    assert not checkpoint_path(tmp_path, config).exists()
    assert first["training"]["parameters"] == 81_001


def test_the_record_says_everything(tmp_path):
    config = resolve("pwc", "caffnet-ff", 1, "ours", {"epochs": 5})
    record = run_one(config, tmp_path)
    assert record["config"]["gradient"] == "tangent"
    assert record["versions"]["torch"] == torch.__version__
    assert record["machine"]["threads"] >= 1
    assert record["training"]["history"]["epoch"] == [0, 1, 2, 3, 4]
    assert record["training"]["ms_per_epoch"] > 0
    assert len(record["curves"]["y"]) == 400
    found = record["evaluation"]
    assert found["test_ms"] > 0
    assert found["strict"]["exact_inequality"]["max"] == 0.0
    assert found["strict"]["exact_inequality"]["exact_zeros"] == found["inequality"]["entries"] == 1600


def test_dropout_is_measured_both_ways(tmp_path):
    found = run_one(resolve("opt", "nn", 1, settings={"epochs": 2}), tmp_path)["evaluation"]
    assert found["dropout_on"]["objective"] != found["objective"]


def test_driving_and_its_post_hoc_projection(tmp_path, monkeypatch):
    monkeypatch.setattr(cbf, "TRAIN_STEPS", 3)
    monkeypatch.setattr(cbf, "TEST_STEPS", 10)
    campaign = load_campaign(
        task="cbf", methods=["post-hoc", "nn", "caffnet-ff"], seeds=[2], epochs=2, out=str(tmp_path), device="cpu"
    )
    records = {record["config"]["method"]: record for record in run_campaign(campaign)}
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2  # post-hoc has none of its own
    assert records["nn"]["training"]["history"] == records["post-hoc"]["training"]["history"]
    for method in ("post-hoc", "caffnet-ff"):
        found = records[method]["evaluation"]
        assert found["inequality"]["max"] < 1e-12
        assert found["strict"]["exact_inequality"]["max"] == 0.0
        assert not found["collided"]
    assert len(records["nn"]["curves"]["states"]) == 11


def test_nothing_stays_when_the_parent_of_parallel_runs_is_killed(tmp_path):
    more = ("--seed", "2", "--epochs", "100000", "--jobs", "2", "--checkpoint-seconds", "0.2", "--device", "cpu")
    process = subprocess.Popen(
        command(tmp_path, *more), env=environment(), stdout=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "checkpoints").glob("*.safetensors"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.kill()
    process.wait()

    def any_left() -> bool:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    while any_left() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any_left()


def test_seeds_in_parallel_processes_even_if_one_fails(tmp_path):
    campaign = load_campaign(task="pwc", methods=["nn"], seeds=[1, 3, 5], epochs=2, jobs=2, out=str(tmp_path))
    broken = checkpoint_path(tmp_path, campaign.runs[0])
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"nonsense")
    ticks = []
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        run_campaign(campaign, lambda config, tick: ticks.append(tick))
    assert ticks
    parallel = read_records(tmp_path)
    assert [record["config"]["seed"] for record in parallel] == [3, 5]
    alone = [run_one(config, tmp_path / "alone") for config in campaign.runs[1:]]
    assert [essence(record) for record in parallel] == [essence(record) for record in alone]


def test_a_killed_process_is_told_apart_from_runs_that_failed(tmp_path, monkeypatch):
    campaign = load_campaign(task="pwc", methods=["nn"], seeds=[1, 3], epochs=100_000, jobs=2, out=str(tmp_path))
    broken = checkpoint_path(tmp_path, campaign.runs[0])
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"nonsense")

    start, books = _Book.__init__, []

    def keep(book: _Book, on_done) -> None:
        start(book, on_done)
        books.append(book)

    monkeypatch.setattr(_Book, "__init__", keep)

    def kill(config, tick: Tick) -> None:
        for process in multiprocessing.active_children() if books[0].failed else ():  # the first has failed by now
            process.kill()

    with pytest.raises(WorkerError, match="killed from outside") as caught:
        run_campaign(campaign, kill)
    assert caught.value.__notes__ == ["Failed before, for other reasons: pwc paper nn seed 1."]
    assert not read_records(tmp_path)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_diverges_says_so_and_the_others_go_on(jobs: int, tmp_path):
    settings = {"epochs": 6, "learning_rate": 1e200, "jobs": jobs, "out": str(tmp_path)}
    methods = ["nn", "hardnet", "caffnet-ff"]
    campaign = load_campaign(task="pwc", methods=methods, seeds=[1], **settings)
    with pytest.raises(DivergedError, match=r"not a finite number since epoch \d: lower learning_rate") as caught:
        run_campaign(campaign)
    assert caught.value.__notes__ == [
        "The run was pwc paper nn seed 1.",
        "Failed too: pwc paper hardnet seed 1, pwc paper caffnet-ff seed 1.",
    ]
    kept = load_campaign(task="pwc", methods=methods, seeds=[1], keep="best", **settings)
    for record in run_campaign(kept):  # the first weights are numbers
        assert record["training"]["evaluated_epoch"] == 0
        assert len(record["training"]["history"]["epoch"]) < 6  # nothing follows
    write_report([tmp_path], tmp_path / "report")


def test_finite_weights_without_finite_answers_are_no_result(tmp_path):
    with pytest.raises(DivergedError, match="gives no finite numbers: lower learning_rate"):
        run_one(resolve("pwc", "nn", 1, settings={"epochs": 1, "learning_rate": 1e60}), tmp_path)
    assert not read_records(tmp_path)


def test_the_record_names_the_source_as_it_was_at_the_start(monkeypatch):
    monkeypatch.setattr(provenance, "_revision", lambda: {"revision": "abc"})
    provenance.versions.cache_clear()
    assert provenance.versions()["revision"] == "abc"
    monkeypatch.setattr(provenance, "_revision", lambda: {"revision": "def"})
    assert provenance.versions()["revision"] == "abc"
    provenance.versions.cache_clear()


def test_a_run_that_was_asked_for_twice_is_done_once(tmp_path):
    campaign = load_campaign(task="pwc", methods=["nn"], seeds=[1, 1], epochs=1, out=str(tmp_path))
    assert len(run_campaign(campaign)) == 1
    assert len(read_records(tmp_path)) == 1


def test_of_two_processes_with_the_same_run_one_writes(tmp_path):
    config = resolve("pwc", "nn", 1, settings={"epochs": 2})

    def meanwhile(tick: Tick) -> None:
        if not read_records(tmp_path):
            run_one(config, tmp_path)

    record = run_one(config, tmp_path, on_tick=meanwhile)
    assert record == read_record(tmp_path / "records" / f"{config.name}.json")


def test_ctrl_c_stops_all_processes(tmp_path):
    arguments = [sys.executable, "-m", "caffnet_lab", "run", "pwc", "--method", "nn", "--epochs", "100000"]
    arguments += ["--jobs", "2", "--checkpoint-seconds", "0.1", "--out", str(tmp_path)]
    process = subprocess.Popen(
        arguments,
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("*.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.strip() == "Stopped. Rerun the command to resume from the last checkpoints."
    saved = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert 1 <= len(saved) <= 2
    time.sleep(1.0)
    assert saved == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}


def test_mistakes_on_the_command_line_have_answers(tmp_path):
    (tmp_path / "file").write_bytes(b"\xff\xfe")
    for options, told in (
        (["--seed", "-1"], "seed must be in [0, 2**32), got -1"),
        (["--config", str(tmp_path)], "cannot be read"),
        (["--config", str(tmp_path / "file")], "is not valid TOML"),
        (["--out", str(tmp_path / "file")], "out must be a folder"),
        (["--out", str(tmp_path / "file" / "below")], "out must be a folder"),
        (["--checkpoint-seconds", "nan"], "checkpoint_seconds must be at least 0, got nan"),
    ):
        done = CliRunner().invoke(app, ["run", "pwc", "--method", "nn", "--quick", *options])
        assert done.exit_code == 2, options
        assert told in done.stderr


# ---------------------------------------------------------------------------------------------------- broken files


@pytest.fixture
def saved(tmp_path) -> tuple[Path, str]:
    path = tmp_path / "a.safetensors"
    Checkpoint("abc", {"x": torch.arange(10.0)}, {"epoch": 3}).write(path)
    return path, "abc"


def test_checkpoint_round_trip(saved):
    read = Checkpoint.read(*saved)
    assert torch.equal(read.tensors["x"], torch.arange(10.0))
    assert read.progress == {"epoch": 3}
    assert [p.name for p in saved[0].parent.iterdir()] == ["a.safetensors"]


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_truncated_checkpoint(saved, kept):
    path, digest = saved
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"a\.safetensors is damaged or truncated .* Delete it"):
        Checkpoint.read(path, digest)


def test_damaged_checkpoint(saved):
    path, digest = saved
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="its checksum is wrong"):
        Checkpoint.read(path, digest)


@pytest.mark.parametrize(("old", "new"), [(b'\\"epoch\\": 3', b'\\"epoch\\": 2'), (b'"shape":[10]', b'"shape":[5,2]')])
def test_a_checkpoint_with_another_header_is_damaged(saved, old, new):
    """What is not among the numbers counts too: how far the run was, and how the numbers are laid out."""
    path, digest = saved
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = content[8:end].replace(old, new)
    assert header != content[8:end]
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])
    with pytest.raises(CheckpointError, match="its checksum is wrong"):
        Checkpoint.read(path, digest)


def test_foreign_checkpoint(saved, tmp_path):
    with pytest.raises(CheckpointError, match=r"belongs to another run: .* abc, this run's xyz"):
        Checkpoint.read(saved[0], "xyz")
    save_file({"x": torch.zeros(1)}, tmp_path / "b.safetensors")
    with pytest.raises(CheckpointError, match="not a checkpoint of this version of the program"):
        Checkpoint.read(tmp_path / "b.safetensors", "abc")


def test_a_checkpoint_of_another_network_is_named(tmp_path):
    config = resolve("pwc", "nn", 1, settings={"epochs": 2, "hidden": 8})
    run_one(config, tmp_path)
    path = checkpoint_path(tmp_path, config)
    saved = Checkpoint.read(path, config.digest)
    odd = {name.replace("backbone", "trunk"): tensor for name, tensor in saved.tensors.items()}
    Checkpoint(config.digest, odd, saved.progress).write(path)
    (record,) = (tmp_path / "records").iterdir()
    record.unlink()
    with pytest.raises(CheckpointError, match=r"does not fit this run \(.* Delete it to start the run again"):
        run_one(config, tmp_path)


@pytest.mark.parametrize(
    ("progress", "told"),
    [
        ({"epoch": "2"}, r"epoch must be a whole number from 0 to 2\*\*53, got '2'"),
        ({"epoch": -1}, r"epoch must be a whole number from 0 to 2\*\*53, got -1"),
        ({"epoch": 1}, "it is after epoch 1 of 2, with the losses of 2"),
        ({"starts": "x"}, "starts must be a list, got 'x'"),
        ({"best_loss": []}, r"best_loss must be a number or null, got \[\]"),
        ({"seconds": None}, "it has no seconds"),
    ],
)
def test_a_checkpoint_with_impossible_progress_is_named(tmp_path, progress, told):
    config = resolve("pwc", "nn", 1, settings={"epochs": 2, "hidden": 8})
    run_one(config, tmp_path)
    path = checkpoint_path(tmp_path, config)
    saved = Checkpoint.read(path, config.digest)
    Checkpoint(config.digest, saved.tensors, saved.progress | progress).write(path)
    (record,) = (tmp_path / "records").iterdir()
    record.unlink()
    with pytest.raises(CheckpointError, match=rf"does not fit this run \({told}\)\. Delete it to start the run again"):
        run_one(config, tmp_path)
    odd = {**saved.tensors, "random.cpu": torch.zeros(3)}
    Checkpoint(config.digest, odd, saved.progress).write(path)
    with pytest.raises(CheckpointError, match="does not fit this run"):
        run_one(config, tmp_path)


def test_a_checkpoint_whose_progress_is_no_object_is_damaged(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    for written in ("[" * 100_000, "[1]", "{", ""):
        monkeypatch.setattr("caffnet_lab.experiments.checkpoint.json.dumps", lambda _, written=written: written)
        Checkpoint("abc", {"x": torch.zeros(1)}, {}).write(path)
        monkeypatch.undo()
        with pytest.raises(CheckpointError, match=r"its progress is not an object of JSON\. Delete it to start"):
            Checkpoint.read(path, "abc")


def test_a_record_names_the_commit_of_every_start(tmp_path, monkeypatch):
    config = resolve("pwc", "nn", 1, settings={"epochs": 6, "hidden": 8})
    monkeypatch.setattr("caffnet_lab.experiments.training.TICK", 0.0)
    monkeypatch.setattr("caffnet_lab.experiments.training.versions", lambda: {"revision": "aaa"})
    with pytest.raises(Interrupted):
        run_one(config, tmp_path, every=0.0, on_tick=interrupt_at(3))
    monkeypatch.setattr("caffnet_lab.experiments.training.versions", lambda: {"revision": "bbb"})
    record = run_one(config, tmp_path)
    assert (record["training"]["starts"], record["training"]["revisions"]) == (2, ["aaa", "bbb"])


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_records_are_written_once(tmp_path):
    path = tmp_path / "records" / "a.json"
    write_record(path, {"name": "a"})
    with pytest.raises(RecordError, match="records are never replaced"):
        write_record(path, {"name": "b"})
    assert read_record(path)["name"] == "a"
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_a_broken_record_is_named(tmp_path):
    path = tmp_path / "records" / "a.json"
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(RecordError, match=r"a\.json cannot be read as a record"):
        read_records(tmp_path)
    path.write_text("{}")
    with pytest.raises(RecordError, match="not a record of this program"):
        read_records(tmp_path)
    path.write_text(json.dumps({"format": "caffnet-record-1", "config": {}, "training": {}, "evaluation": {}}))
    with pytest.raises(RecordError, match=r"no config\.task, .*, curves, versions, machine, finished"):
        read_records(path.parent)


def test_a_foreign_record_is_named(tmp_path):
    config = resolve("pwc", "nn", 1, settings={"epochs": 2})
    record = run_one(config, tmp_path / "a")
    for part, value in (("task", "pwx"), ("method", "nnn"), ("protocol", "mine")):
        folder = tmp_path / part
        write_record(folder / "records" / "a.json", {**record, "config": {**record["config"], part: value}})
        with pytest.raises(RecordError, match=rf"a\.json is damaged: config\.{part} must be one of .*, got '{value}'"):
            read_records(folder)
    other = resolve("pwc", "nn", 1, settings={"epochs": 3})
    write_record(tmp_path / "a" / "records" / f"{other.name}.json", record)
    with pytest.raises(RecordError, match="is the record of another run"):
        run_one(other, tmp_path / "a")


def test_a_sample_alone_is_too_few_for_batch_norm(tmp_path):
    with pytest.raises(ConfigError, match="the last of 1000 samples is alone, and BatchNorm needs two"):
        run_one(resolve("opt", "nn", 1, settings={"epochs": 1, "batch": 999}), tmp_path)


def test_history_is_thinned():
    assert thin(0) == []
    assert thin(3) == [0, 1, 2]
    kept = thin(50_000, 4_321)
    assert kept[-1] == 49_999
    assert 4_321 in kept  # whose weights are evaluated
    assert len(kept) <= 500
    assert kept[:100] == list(range(100))


def test_curves_are_plain_json():
    assert rounded({"a": [1 / 3, float("nan")], "b": 2}) == {"a": [0.3333333, None], "b": 2}


def test_what_cannot_run_says_so(tmp_path):
    with pytest.raises(ConfigError, match="torch sees no GPU") if not torch.cuda.is_available() else pytest.skip("GPU"):
        build_problem(resolve("pwc", "nn", 1, settings={"device": "cuda"}))
    done = CliRunner().invoke(app, command(tmp_path, "--dtype", "float16")[3:])
    assert done.exit_code == 2
    assert "dtype must be one of float32, float64, got 'float16'" in done.stderr


def test_no_epochs_is_the_untrained_network(tmp_path):
    config = resolve("pwc", "caffnet-ff", 1, settings={"epochs": 0})
    record = run_one(config, tmp_path)
    assert record["training"]["history"]["epoch"] == []
    assert record["training"]["ms_per_epoch"] is None
    untrained = build_model(config, problem := build_problem(config)).eval()
    assert record["evaluation"]["mse"] == problem.evaluate(untrained).metrics["mse"]


@pytest.mark.parametrize("batch", [0, 20])
def test_limits_on_a_step_are_remembered_over_a_restart(batch: int, tmp_path: Path, monkeypatch):
    """They depend on what came before, which must survive a restart for the bits to agree; so do the best weights."""
    free = {"epochs": 3, "keep": "best", "batch": batch, "learning_rate": 1.0}  # the first epoch remains the best
    config = resolve("pwc", "nn", 1, "paper", {**free, "clip": 0.5})
    whole = run_one(config, tmp_path / "whole")
    plain = run_one(resolve("pwc", "nn", 1, "paper", free), tmp_path / "plain")
    assert whole["training"]["history"] != plain["training"]["history"]

    class Stop(Exception):
        pass

    def interrupt(tick: Tick) -> None:
        if tick.epoch > 1:  # a checkpoint of the epoch before is there
            raise Stop

    monkeypatch.setattr("caffnet_lab.experiments.training.TICK", -1.0)  # a tick in every epoch

    with pytest.raises(Stop):
        run_one(config, tmp_path / "cut", every=0.0, on_tick=interrupt)
    again = run_one(config, tmp_path / "cut", every=0.0)
    assert again["evaluation"]["mse"] == whole["evaluation"]["mse"]
    assert again["training"]["history"] == whole["training"]["history"]
    assert again["training"]["evaluated_epoch"] == whole["training"]["evaluated_epoch"] == 0


@pytest.mark.parametrize("method", ["nn", "caffnet-tf"])  # the second has weights with two names
def test_the_best_weights_are_those_of_the_epoch_with_the_lowest_loss(method: str, tmp_path: Path):
    """Evaluated are the weights at the start of that epoch, with several batches too."""
    settings = {"epochs": 30, "learning_rate": 3e-2, "keep": "best", "batch": 20}
    config = resolve("pwc", method, 1, "paper", settings)
    record = run_one(config, tmp_path)
    losses = record["training"]["history"]["loss"]
    best = record["training"]["evaluated_epoch"]
    assert 0 < best < 29
    assert losses[best] == min(losses)
    weights = build_model(config, problem := build_problem(config))
    advance = epochs_of(config, problem, weights)
    for _ in range(best):
        advance()
    assert problem.evaluate(weights.eval()).metrics["mse"] == record["evaluation"]["mse"]


def test_a_limited_adjoint_changes_what_rollouts_learn():
    """Off by default; only rollouts have one."""
    free, limited = (build_problem(resolve("cbf", "nn", 2, "paper", {"adjoint": limit})) for limit in (0.0, 1e3))
    gradients = []
    for problem in (free, limited):
        model = build_model(resolve("cbf", "nn", 2), problem)
        loss = problem.loss(model, problem.train[:3])
        loss.cost.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert gradients[1].norm() < 0.1 * gradients[0].norm()
    with pytest.raises(ConfigError, match="about the rollouts of cbf, got task pwc"):
        resolve("pwc", "nn", 1, "paper", {"adjoint": 1.0})


def test_a_smaller_goal_counts_in_training_only():
    usual, small = (build_problem(resolve("cbf", "nn", 2, "paper", {"goal_radius": r})) for r in (0.1, 0.05))
    model = build_model(
        resolve("cbf", "nn", 2, "paper", {"draws": "native"}), usual
    )  # one that misses the small circle
    near = torch.tensor([[-0.07, 0.0, 0.0]], dtype=torch.float64)
    assert usual.loss(model, near).cost < 150 * 2  # at the goal: all that costs is the input that is not applied
    assert small.loss(model, near).cost > 1e3
    assert usual.evaluate(model).metrics["cost"] == small.evaluate(model).metrics["cost"]
    with pytest.raises(ConfigError, match="goal_radius is about the rollouts of cbf, got task opt"):
        resolve("opt", "nn", 1, "paper", {"goal_radius": 0.05})


def test_the_null_space_head_can_be_left_out():
    config = resolve("cbf", "caffnet-ff", 2, "paper", {"null_start": "none"})
    assert build_model(config, build_problem(config)).null is None


@pytest.mark.parametrize("method", ["caffnet-ff", "caffnet-tf"])  # the second shares its embedding
def test_the_null_space_head_has_a_learning_rate_of_its_own(method: str):
    config = resolve("opt", method, 1, "paper", {"null_rate": 0.0, "epochs": 1})
    model = build_model(config, problem := build_problem(config))
    before = {name: t.detach().clone() for name, t in model.named_parameters()}
    epochs_of(config, problem, model)()
    moved = {name for name, t in model.named_parameters() if not torch.equal(t, before[name])}
    assert moved == {name for name in before if name.startswith("backbone")}


def test_any_setting_on_the_command_line(tmp_path):
    done = CliRunner().invoke(app, command(tmp_path, "--set", "hidden=16", "--set", "activation=silu")[3:])
    assert done.exit_code == 0, done.stderr
    (record,) = read_records(tmp_path)
    assert (record["config"]["hidden"], record["config"]["activation"]) == (16, "silu")
    done = CliRunner().invoke(app, command(tmp_path, "--set", "hidden")[3:])
    assert done.exit_code == 2
    assert "A setting is written name=value, got 'hidden'" in done.stderr
    for wrong, message in (
        ("hiden=3", "Unknown setting hiden"),
        ("path=x", "Unknown setting path"),
        ("seeds=[1]", "seeds is set twice"),
        ("clip=inf", "clip must be finite, got inf"),
    ):
        done = CliRunner().invoke(app, command(tmp_path, "--set", wrong)[3:])
        assert done.exit_code == 2
        assert message in done.stderr
