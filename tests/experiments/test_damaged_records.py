"""A damaged record gives one line that names it, says what came and what was expected; never a traceback."""

import copy
import json
import os
import re
from pathlib import Path

import pytest
from test_report import make_record
from typer.testing import CliRunner

from caffnet_lab.cli import app
from caffnet_lab.experiments.records import FORMAT, LARGEST, RecordError, read_records, read_run, read_timings

ADVICE = "Restore the file, or move it away."


def refused(folder: Path) -> str:
    """What the command says about the records of a folder."""
    done = CliRunner().invoke(app, ["report", str(folder), "--out", str(folder / "out")])
    assert done.exit_code == 2, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("Error: ")
    assert not (folder / "out").exists()
    return line


def put(folder: Path, content: bytes | dict, kind: str = "records", name: str = "a") -> Path:
    path = folder / kind / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps({"format": FORMAT, **content}).encode())
    return path


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "cannot be read as a record: Expecting value"),
        (b"{", "cannot be read as a record: Expecting property name"),
        (b"\xff\xfe\x00", "cannot be read as a record: it is not UTF-8 text"),
        (b'{"format": "caffnet-record-1", "a": "\xe4"}', "it is not UTF-8 text"),
        (b"[" * 200_000, "it has lists in lists, deeper than any record has"),
        (b'{"a":' * 200_000, "it has lists in lists, deeper than any record has"),
        (b'{"a": NaN}', "NaN is not a number of JSON"),
        (b'{"a": -Infinity}', "-Infinity is not a number of JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "cannot be read as a record: Exceeds the limit"),
        (b" " * (LARGEST + 1), "it has more than 16,777,216 bytes"),
        (b"[]", "is not a record of this program: its format must be 'caffnet-record-1', got []"),
        (b'{"format": ["\\n"]}', r"its format must be 'caffnet-record-1', got ['\n']"),
    ],
    ids=[
        "empty",
        "open",
        "utf16",
        "latin1",
        "lists",
        "objects",
        "nan",
        "infinity",
        "digits",
        "large",
        "list",
        "format",
    ],
)
@pytest.mark.parametrize("kind", ["records", "timing"])
def test_files_that_are_no_records(tmp_path, content, told, kind):
    path = put(tmp_path, content, kind)
    assert f"{path} " in refused(tmp_path) and told in refused(tmp_path)


def test_what_is_not_a_file(tmp_path):
    (tmp_path / "records" / "folder.json").mkdir(parents=True)
    os.mkfifo(tmp_path / "records" / "pipe.json")  # reading it would wait for ever
    (tmp_path / "records" / "loop.json").symlink_to("loop.json")
    (tmp_path / "records" / "nowhere.json").symlink_to("nothing")
    with pytest.raises(RecordError) as error:
        read_records(tmp_path)
    lines = str(error.value).splitlines()
    assert [Path(line.split(" ")[0]).stem for line in lines] == ["folder", "loop", "nowhere", "pipe"]
    assert all("is not a file, so it cannot be a record" in line for line in lines)


def changed(record: dict, where: str, value: object) -> dict:
    record = copy.deepcopy(record)
    *parts, last = where.split(".")
    inner = record
    for part in parts:
        inner = inner[part]
    inner[last] = value
    return record


@pytest.mark.parametrize(
    ("task", "where", "value", "told"),
    [
        ("pwc", "config", [1], "config must be an object with names, got [1]"),
        ("pwc", "config.task", "$(x)", "config.task must be one of pwc, opt, cbf, dc3-simple"),
        ("pwc", "config.method", ["nn"], "config.method must be one of nn, hardnet"),
        ("pwc", "config.method", "ipopt", "config is not that of a run: method must be one of nn, hardnet"),
        ("pwc", "config.protocol", "paper`x`", "config.protocol must be one of paper, ours, got 'paper`x`'"),
        ("pwc", "config.seed", "1", "config.seed must be a whole number from 0 to 2**53, got '1'"),
        ("pwc", "config.seed", True, "config.seed must be a whole number from 0 to 2**53, got True"),
        ("pwc", "config.seed", 2**40, "config is not that of a run: seed must be in [0, 2**32)"),
        ("pwc", "config.epochs", -1, "config.epochs must be a whole number from 0 to 2**53, got -1"),
        ("pwc", "config.epochs", 10**400, "config.epochs must be a whole number from 0 to 2**53, got 1000"),
        ("pwc", "config.activation", "relu; rm -rf /", "config.activation must be a number, true, false or a word"),
        ("pwc", "config.activation", "tanh", "activation must be one of relu, silu, got 'tanh'"),
        ("pwc", "config.hidden", "many", "config is not that of a run: hidden must be of type int, got 'many'"),
        ("pwc", "config.clip", {}, "config.clip must be a number, true, false or a word, got {}"),
        ("pwc", "config.a b", 1, "config has the name 'a b', which is not a word of letters, digits"),
        ("pwc", "config.gone", "<b>", "config.gone must be a number, true, false or a word, got '<b>'"),
        ("pwc", "versions", [], "versions must be an object with names, got []"),
        ("pwc", "versions.torch", 2.9, "versions.torch must be a line of at most 300 characters, got 2.9"),
        ("pwc", "versions.torch\n", "2.9", r"versions has the name 'torch\n', which is not a word"),
        ("pwc", "machine.processor", "a\nb", r"machine.processor must be a line of at most 300 characters, got 'a\nb'"),
        ("pwc", "machine.processor", "a" * 301, "machine.processor must be a line of at most 300 characters"),
        ("pwc", "machine.threads", 0, "machine.threads must be a whole number from 1 to 2**53, got 0"),
        ("pwc", "machine.gpu", 1, "machine.gpu must be a line of at most 300 characters or null, got 1"),
        ("pwc", "finished", "a\x1b[31m", r"finished must be a line of at most 300 characters, got 'a\x1b[31m'"),
        ("pwc", "name", "../x y", "name must be a word of letters, digits and the signs . _ + -, got '../x y'"),
        ("pwc", "evaluation.mse", "0.1", "evaluation.mse must be a number up to 1e100, got '0.1'"),
        ("pwc", "evaluation.mse", True, "evaluation.mse must be a number up to 1e100, got True"),
        ("pwc", "evaluation.mse", 1e200, "evaluation.mse must be a number up to 1e100, got 1e+200"),
        ("pwc", "evaluation.test_ms", {}, "evaluation.test_ms must be a number up to 1e100, got {}"),
        ("pwc", "evaluation.inequality", 1, "evaluation.inequality must be an object with names, got 1"),
        ("pwc", "evaluation.strict", [], "evaluation.strict must be an object with names, got []"),
        ("pwc", "evaluation.inequality.mean", "x", "evaluation.inequality.mean must be a number up to 1e100, got 'x'"),
        ("pwc", "curves.x", [], "curves.x must be a list that is not empty, got []"),
        ("pwc", "curves.x", [1.0], "the lists in curves must have the same length, but x has 1, y has 9"),
        ("pwc", "curves.lower", ["a"] * 9, "curves.lower[0] must be a number up to 1e100, got 'a'"),
        ("pwc", "training", "x", "training must be an object with names, got 'x'"),
        ("pwc", "training.ms_per_epoch", "x", "training.ms_per_epoch must be a number or null, got 'x'"),
        ("pwc", "training.revisions", [1], "training.revisions[0] must be a line of at most 300 characters, got 1"),
        ("pwc", "training.history.epoch", "x", "training.history.epoch must be a list, got 'x'"),
        ("pwc", "training.history.epoch", [0, 1, 1.5], "epoch[2] must be a whole number from 0 to 2**53, got 1.5"),
        ("pwc", "training.history.loss", [1.0, [], 1.0], "training.history.loss[1] must be a number or null, got []"),
        ("cbf", "evaluation.collided", "no", "evaluation.collided must be true or false, got 'no'"),
        ("cbf", "curves.states", [1.0], "curves.states[0] must be a list of at least 2, got 1.0"),
        ("cbf", "curves.states", [[1.0]], "curves.states[0] must be a list of at least 2, got [1.0]"),
        ("cbf", "curves.limits", [[0.0, 1.0]], "curves.limits must be a list of 2, got [[0.0, 1.0]]"),
        ("cbf", "curves.obstacles", [[]], "curves.obstacles[0] must be a list that is not empty, got []"),
        ("cbf", "curves.dt", 0, "curves.dt must be a number above 0, got 0"),
        ("cbf", "curves.nominal", [[0.0, 0.0]], "must have the same length, but inputs has 10, nominal has 1"),
        ("opt", "evaluation.dropout_on", 3, "evaluation.dropout_on must be an object with names, got 3"),
        ("opt", "evaluation.equality.max", "x", "evaluation.equality.max must be a number up to 1e100, got 'x'"),
    ],
)
def test_parts_of_another_kind(tmp_path, task, where, value, told):
    path = put(tmp_path, changed(make_record(task, "nn", 2), where, value))
    line = refused(tmp_path)
    assert line.startswith(f"Error: {path} is damaged: ") and line.endswith(ADVICE)
    assert told in line


def test_a_solver_is_not_trained(tmp_path):
    put(tmp_path, make_record("opt", "ipopt", 1) | {"training": "x"})
    assert "training must be null for ipopt, which is not trained" in refused(tmp_path)


def test_many_faults_are_counted(tmp_path):
    put(tmp_path, make_record("cbf", "nn", 2) | {"config": {}, "machine": 3})
    line = refused(tmp_path)
    assert "machine must be an object with names, got 3; it has no config.task, config.protocol" in line
    record = make_record("cbf", "nn", 2)
    record["config"] |= {name: [] for name in "abcdef"}
    put(tmp_path, record)
    assert "config.c must be a number, true, false or a word, got []; and 3 more." in refused(tmp_path)


TIMES = {"nn": {"train_ms": 1.0, "test_ms": 1.0, "test_ms_rounds": [1.0, 2.0]}}


def timing(**other) -> dict:
    made = {part: make_record("cbf", "nn", 2)[part] for part in ("versions", "machine", "finished")}
    return {"name": "cbf-paper", "task": "cbf", "protocol": "paper", "methods": TIMES, "rounds": 2, **made, **other}


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ({"device": "`x`"}, "device must be one of cpu, cuda, got '`x`'"),
        ({"rounds": "7; x"}, "rounds must be a whole number from 1 to 2**53, got '7; x'"),
        ({"name": ["a"]}, "name must be a word of letters"),
        ({"methods": [1]}, "methods must be an object with names, got [1]"),
        ({"methods": {"x|y": {}}}, "methods must be of nn, hardnet, caffnet-ff"),
        (
            {"methods": {"nn": {"train_ms": "1", "test_ms": 1.0}}},
            "nn.train_ms must be a number above 0 or null",
        ),
        (
            {"methods": {"nn": {"train_ms": 1.0, "test_ms": 0.0}}},
            "nn.test_ms must be a number above 0, got 0.0",
        ),
        ({"methods": {"nn": {**TIMES["nn"], "train_ms_rounds": [0]}}}, "train_ms_rounds[0] must be a number above 0"),
        (
            {"methods": {**TIMES, "hardnet": {**TIMES["nn"], "test_ms_rounds": [1.0]}}},
            "the lists in test_ms_rounds of methods must have the same length, but nn has 2, hardnet has 1",
        ),
    ],
)
def test_times_of_another_kind(tmp_path, damage, told):
    put(tmp_path, timing(**damage), "timing")
    assert told in refused(tmp_path)


def test_whole_times_are_read(tmp_path):
    put(tmp_path, timing(), "timing")
    assert [record["name"] for record in read_timings(tmp_path)] == ["cbf-paper"]


def test_rounds_of_some_methods_decide_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("caffnet_lab.experiments.report.figures.DPI", 30)
    times = {**TIMES, "caffnet-ff": {"train_ms": 1.0, "test_ms": 1.0}}
    times["nn"] = {**TIMES["nn"], "train_ms_rounds": [1.0, 1.0]}
    put(tmp_path, timing(methods=times), "timing")
    put(tmp_path, make_record("cbf", "nn", 2))
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output


def test_records_of_other_lengths_are_drawn_together(tmp_path, monkeypatch):
    monkeypatch.setattr("caffnet_lab.experiments.report.figures.DPI", 30)
    long, short = make_record("pwc", "nn", 1), make_record("pwc", "nn", 3)
    short["curves"] = {name: values[:5] for name, values in short["curves"].items()}
    short["training"]["history"] = {"epoch": [], "loss": []}
    long["training"]["history"]["loss"] = [1e300, None, 1.0]
    for name, record in (("a", long), ("b", short)):
        put(tmp_path, record, name=name)
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output


def test_a_history_without_early_epochs_decides_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("caffnet_lab.experiments.report.figures.DPI", 30)
    for method in ("nn", "hardnet", "caffnet-ff", "caffnet-tf"):
        record = make_record("pwc", method, 1)
        record["training"]["history"] = {"epoch": [40_000], "loss": [1.0]}
        put(tmp_path, record, name=method)
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "open: no losses of the first 1 epochs" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")


def test_the_records_of_this_repository_are_whole():
    root = Path(__file__).parents[2] / "results"
    assert len(read_records(root)) > 100
    assert read_timings(root)


def test_a_finished_run_with_a_damaged_record_is_named(tmp_path):
    record = make_record("pwc", "nn", 1)
    path = put(tmp_path, changed(record, "evaluation.inequality", None), name=record["name"])
    with pytest.raises(
        RecordError, match=re.escape(f"{path} is incomplete: it has no evaluation.inequality. {ADVICE}")
    ):
        read_run(path, record["name"])
    done = CliRunner().invoke(app, ["run", "pwc", "--method", "nn", "--seed", "1", "--out", str(tmp_path)])
    assert done.exit_code == 2 and "it has no evaluation.inequality" in done.stderr
