"""Wrong options and places: one line that says what came and what was expected, exit code 2, and no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner

from caffnet_lab.cli import app

ONE_CELL = ("--method", "soft", "--family", "fixed", "--epochs", "0", "--problems", "1", "--inputs", "5")
ONE_TASK = ("--task", "pwc", "--contestant", "backbone", "--quick", "--memory", "none")
ONE_RUN = ("run", "pwc", "--method", "nn", "--seed", "1", "--epochs", "1", "--device", "cpu")
HUGE = "9" * 25


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file and a folder that is called like a figure."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # else the benchmark starts again
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()
    return tmp_path


def told(*arguments: str) -> str:
    """The line of a command that refuses."""
    done = CliRunner().invoke(app, list(arguments))
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    return line.removeprefix("Error: ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((*ONE_RUN, "--seed", "-1"), "seed must be in [0, 2**32), got -1."),
        ((*ONE_RUN, "--epochs", HUGE), f"epochs must be at most 10000000, got {HUGE}."),
        ((*ONE_RUN, "--threads", HUGE), f"threads must be at most 1024, got {HUGE}."),
        ((*ONE_RUN, "--jobs", "0"), "jobs must be at least 1, got 0."),
        ((*ONE_RUN, "--set", f"hidden={HUGE}"), f"hidden must be at most 10000, got {HUGE}."),
        ((*ONE_RUN, "--out", "file"), "out must be a folder, but file cannot be one: File exists."),
        (("time", "pwc", "--rounds", "0"), "--rounds must be at least 1, got 0."),
        (("time", "pwc", "--rounds", HUGE), f"--rounds must be at most 100000, got {HUGE}."),
        (("time", "pwc", "--threads", "0"), "--threads must be at least 1, got 0."),
        (("time", "pwc", "--threads", "1000000000"), "--threads must be at most 1024, got 1000000000."),
        (("report", ".", "--out", "file"), "--out must be a folder, but file is a file: choose another."),
        (("report", ".", "--out", "file/a"), "--out must be a folder, but file is a file: choose another."),
        (("report", ".", "--markdown", "folder.png"), "--markdown must be a file, but folder.png is a folder: choose"),
        (("demo", "--epochs", "0"), "--epochs must be at least 1, got 0."),
        (("demo", "--epochs", HUGE), f"--epochs must be at most 10000000, got {HUGE}."),
        (("demo", "--seed", "-1"), "--seed must be at least 0, got -1."),
        (("demo", "--seed", HUGE), f"--seed must be at most 4294967295, got {HUGE}."),
        (("demo", "--out", "folder.png"), "--out must be a file, but folder.png is a folder: choose another."),
        (("methods", *ONE_CELL, "--problems", "0"), "problems must be at least 1, got 0."),
        (("methods", *ONE_CELL, "--problems", "-3"), "problems must be at least 1, got -3."),
        (("methods", *ONE_CELL, "--problems", HUGE), f"problems must be at most 1000000, got {HUGE}."),
        (("methods", *ONE_CELL, "--inputs", "0"), "inputs must be at least 1, got 0."),
        (
            ("methods", *ONE_CELL, "--problems", "2000", "--inputs", "2000"),
            "problems times inputs must be at most 1000000, got 4",
        ),
        (("methods", *ONE_CELL, "--epochs", "-1"), "epochs must be at least 0, got -1."),
        (("methods", *ONE_CELL, "--seed", "-1"), "seed must be at least 0, got -1."),
        (("methods", *ONE_CELL, "--seed", HUGE), f"seed must be at most 4294967295, got {HUGE}."),
        (("methods", *ONE_CELL, "--method", "[/x]"), "'[/x]' is unknown; choose from 'soft', 'police'"),
        (("methods", *ONE_CELL, "--out", "file"), "--out must be a folder, but file is a file: choose another."),
        (("figures", "--kind", "[/x]"), "--kind must be png, pdf or svg, got [/x]."),
        (("figures", "--out", "file"), "file must be a folder, but cannot be one: File exists."),
        (("bench", *ONE_TASK, "--threads", "0"), "--threads must be at least 1, got 0."),
        (("bench", *ONE_TASK, "--threads", "-1"), "--threads must be at least 1, got -1."),
        (("bench", *ONE_TASK, "--threads", HUGE), f"--threads must be at most 1024, got {HUGE}."),
        (("bench", *ONE_TASK, "--limit", "nan"), "--limit must be a number of seconds above 0, got nan."),
        (("bench", *ONE_TASK, "--limit", "-1"), "--limit must be a number of seconds above 0, got -1.0."),
        (("bench", *ONE_TASK, "--out", "file"), "--out must be a folder, but file is a file: choose another."),
        (("bench", *ONE_TASK, "--memory", "[x]"), "Memory can be measured of none, ours, all, got '[x]'."),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_one_line(here, arguments, line):
    assert told(*arguments).startswith(line)


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"WORLD_SIZE": "two"}, "The variable WORLD_SIZE must be a whole number, got 'two': unset it, or start with"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE is 2, but the processes do not find each other (Error init"),
    ],
)
def test_variables_of_torchrun(here, monkeypatch, variables, line):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert told(*ONE_RUN).startswith(line)


def test_a_place_like_markup_is_a_place(here):
    out = "[/red]a"
    done = CliRunner().invoke(app, ["methods", *ONE_CELL, "--out", out])
    assert done.exit_code == 0, done.output
    assert f"written: {out}/methods.md" in done.output.splitlines()


def test_a_disk_that_refuses_is_named(here, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "figures/a.png")

    monkeypatch.setattr("caffnet_lab.methods_table.figures.draw_all", full)
    assert told("figures") == "figures/a.png cannot be used: No space left on device."


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes.")]
)
def test_a_memory_that_does_not_suffice_is_told(here, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("caffnet_lab.methods_table.figures.draw_all", fail)
    assert told("figures") == "Not enough memory: ask for less, or use a machine that has more."
    monkeypatch.setattr("caffnet_lab.experiments.run.build_problem", fail)
    assert told(*ONE_RUN).endswith("use a machine that has more. The run was pwc paper nn seed 1.")


def test_other_errors_of_the_program_are_not_hidden(here, monkeypatch):
    def fail(*_):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("caffnet_lab.methods_table.figures.draw_all", fail)
    done = CliRunner().invoke(app, ["figures"])
    assert isinstance(done.exception, RuntimeError) and "ours" in str(done.exception)


def test_two_timings_in_one_second(here, monkeypatch):
    from caffnet_lab.experiments.records import RecordExists

    def exists(*_, **__):
        raise RecordExists("timing/a.json exists: records are never replaced. Delete it to run again.")

    monkeypatch.setattr("caffnet_lab.experiments.timing.time_methods", exists)
    assert told("time", "pwc").startswith("timing/a.json exists")


def test_a_reader_that_leaves_is_no_error(here):
    command = f"{sys.executable} -m caffnet_lab --help | head -1"
    environment = {**os.environ, "PYTHONPATH": str(Path(sys.modules["caffnet_lab"].__file__ or "").parents[1])}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment)
    assert "Traceback" not in done.stderr


def test_the_table_alone_checks_its_numbers():
    from caffnet_lab.experiments.config import ConfigError
    from caffnet_lab.methods_table.table import measure

    with pytest.raises(ConfigError, match="timed must be at least 0, got -1"):
        measure(["soft"], ["fixed"], timed=-1)
