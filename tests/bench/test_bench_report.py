"""Timing, verdicts and tables on invented figures: no clock decides here."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from caffnet_lab.bench import claims, everyday, figures, machine, measure, report
from caffnet_lab.bench.measure import Effort, Record, Timing
from caffnet_lab.cli import app


def timing(seconds: float) -> Timing:
    return Timing(seconds, 0.9 * seconds, 1.1 * seconds, 10, 1)


def record(task: str, name: str, kind: str, forward: float, train: float | None = None, **figures: Any) -> Record:
    return Record(task, name, kind, timing(forward), None if train is None else timing(train), **figures)


def fact(name: str, n: int) -> dict[str, Any]:
    return {"name": name, "family": name.split("-")[0], "n": n, "input_bytes": 1000, "size": 5.0}


FACTS = [fact("opt", 5), *(fact(f"growth-{n}", n) for n in (8, 16, 32, 64))]


def invented(layer_power: float = 2.0) -> list[Record]:
    found = [
        record("opt", "backbone", "backbone", 1.0, 4.0),
        record("opt", "caffnet", "layer", 0.2, 2.0, distance=1e-15, violation=0.0, memory={"peak": 3000}),
        record("opt", "literal", "literal", 300.0, 400.0, distance=1e-14, violation=1e-14),
        Record("opt", "qpth", "differentiable", skipped="not installed: qpth"),
    ]
    for n in (8, 16, 32, 64):
        task, seconds = f"growth-{n}", 1e-5 * n**layer_power
        found += [
            record(task, "backbone", "backbone", 1e-3, 4e-3),
            record(task, "caffnet", "layer", seconds, 2 * seconds, distance=1e-15, memory={"peak": 5000}),
            record(task, "daqp", "raw", seconds / 1.2, distance=1e-15),
            record(task, "quick-and-wrong", "differentiable", seconds / 10, seconds / 10, distance=0.1, gradient=0.1),
            record(task, "proxsuite", "differentiable", 4 * seconds, 5 * seconds, distance=4e-5, gradient=1e-2),
            record(task, "qpax", "differentiable", 9 * seconds, 9 * seconds, distance=1e-12, gradient=1e-3),
        ]
    return found


def lines(records: list[Record]) -> dict[str, claims.Claim]:
    return {claim.line: claim for claim in claims.judge(FACTS, records)}


def test_ratios_and_verdicts():
    found = lines(invented())
    opt = found["opt: layer / backbone"]
    assert opt.forward is not None and opt.train is not None
    assert (opt.forward.value, opt.forward.verdict) == (0.2, "pass")
    assert (opt.train.value, opt.train.verdict) == (0.5, "MISS")
    paper = found["opt: literal enumeration / layer"]
    assert paper.forward is not None and paper.train is not None
    assert (round(paper.forward.value or 0), paper.forward.verdict) == (1500, "pass")
    assert (round(paper.train.value or 0), paper.train.verdict) == (200, "MISS")
    raw = found["growth-8: layer / raw DAQP loop"]
    assert raw.forward is not None and raw.train is None
    assert raw.forward.value == pytest.approx(1.2) and raw.forward.verdict == "pass"


def test_only_tasks_that_ran_are_judged():
    assert not any(line.startswith(("pwc", "cbf", "dc3")) for line in lines(invented()))


def test_a_rival_must_be_as_accurate():
    """The quickest is wrong by 0.1; proxsuite's 4e-5 is within 1e-5 of data of size 5."""
    claim = lines(invented())["growth-16: fastest rival of equal accuracy / layer"]
    assert claim.forward is not None and claim.forward.value == pytest.approx(4)
    assert claim.note == "proxsuite, gradient off by 1e-02"
    strict = [dataclasses.replace(r, distance=6e-5) if r.contestant == "proxsuite" else r for r in invented()]
    assert lines(strict)["growth-16: fastest rival of equal accuracy / layer"].note.startswith("qpax")


def test_no_rival_is_no_verdict():
    ours = [r for r in invented() if r.kind in ("layer", "backbone", "raw")]
    claim = lines(ours)["growth-8: fastest rival of equal accuracy / layer"]
    assert claim.forward is not None and claim.forward.verdict == "not measured"
    assert "none of equal accuracy" in claim.note


def test_fast_answers_that_differ_do_not_pass():
    """A literal enumeration that disagrees by more than 1e-10 proves nothing."""
    wrong = [dataclasses.replace(r, distance=1e-9) if r.contestant == "literal" else r for r in invented()]
    claim = lines(wrong)["opt: literal enumeration / layer"]
    assert claim.forward is not None and claim.forward.value == pytest.approx(1500)
    assert claim.forward.verdict == "MISS"


@pytest.mark.parametrize(("power", "verdict"), [(2.0, "pass"), (3.5, "MISS")])
def test_the_exponent_is_fitted(power: float, verdict: str):
    found = lines(invented(power))["growth from n = 16: exponent of the layer's time in n"]
    for figure in (found.forward, found.train):
        assert figure is not None and figure.value == pytest.approx(power) and figure.verdict == verdict


def test_two_sizes_make_no_exponent():
    some = [r for r in invented() if r.task in ("growth-16", "growth-32")]
    assert claims.Table(FACTS, some).exponent("caffnet", "forward") is None


def test_memory_is_judged_by_the_inputs_or_the_budget():
    found = lines(invented())
    opt, growth = (found[f"{task}: peak extra memory / inputs"].train for task in ("opt", "growth-8"))
    assert opt is not None and (opt.value, opt.verdict) == (3.0, "pass")
    assert growth is not None and (growth.value, growth.verdict) == (5.0, "budget")
    huge = [dataclasses.replace(r, memory={"peak": 2**40}) if r.memory else r for r in invented()]
    worst = lines(huge)["opt: peak extra memory / inputs"].train
    assert worst is not None and worst.verdict == "MISS"


def test_the_json_holds_everything_and_can_be_judged_again():
    records = invented()
    records[1] = dataclasses.replace(records[1], violation=float("inf"))
    text = report.to_json({"cores": 2}, FACTS, records, claims.judge(FACTS, records))
    whole = json.loads(text)
    assert whole["claims"][0]["forward"]["verdict"] == "pass"
    assert whole["records"][1]["violation"] is None  # infinite
    conditions, facts, again = report.from_json(text)
    assert conditions == {"cores": 2} and facts == FACTS
    assert claims.judge(facts, again) == claims.judge(FACTS, records)


def test_the_page_names_what_is_missing():
    records = invented()
    page = report.to_markdown({"cores": 2}, FACTS, records, claims.judge(FACTS, records), ["growth.png"])
    assert "| opt: layer / backbone | 0.2 (<= 0.25) | pass | 0.5 (<= 0.35) | MISS |  |" in page
    assert "| qpth | not installed: qpth | opt |" in page
    assert "| opt | caffnet | 200 | 0.2 | 2e+03 | 0.5 | 0 | 1e-15 |  | 3 |" in page
    assert "![growth.png](growth.png)" in page


def test_figures_come_first_and_long_tables_are_folded():
    records = invented()
    page = report.to_markdown({"cores": 2}, FACTS, records, claims.judge(FACTS, records), ["growth.png"])
    start, end = page.index('<details markdown="1">\n<summary>Every measurement: '), page.index("\n\n</details>\n\n")
    assert page.index("![growth.png]") < page.index("## What the layer must show") < page.index("## Measured") < start
    lines = page[start:end].splitlines()
    assert lines[2] == "" and lines[3].startswith("| task |")  # the empty line: what follows is Markdown
    assert lines[1] == f"<summary>Every measurement: {len(lines) - 5} lines</summary>"
    assert page.count("<details") == page.count("</details>") == 2 and "<summary>Who, and why: 1 line</summary>" in page


def test_the_stored_page_is_in_the_form_of_the_report():
    """docs/benchmark.md is a page that was written once; a change of the form is made there too."""
    page = (Path(__file__).parents[2] / "docs" / "benchmark.md").read_text()
    for count, table in re.findall(r"<summary>.*?: (\d+) lines</summary>\n\n(.*?)\n\n</details>", page, re.DOTALL):
        assert len(table.splitlines()) - 2 == int(count)
    titles = ["What the layer must show", "Measured", "Not measured", "Conditions"]
    assert re.findall(r"^## (.*)", page, re.MULTILINE) == titles and page.count("<details") == 2
    assert page.index("![ratios.png]") < page.index("## What")


def test_a_busy_machine_is_told():
    assert report.noise(invented()).startswith("Third over first quartile of the rounds: 1.22 (median of")
    loud = [dataclasses.replace(r, forward=Timing(1.0, 0.5, 2.0, 9, 1), train=None) for r in invented()]
    assert "4.00" in report.noise(loud) and "measure again when it is quiet" in report.noise(loud)
    assert report.noise([]) == "Nothing was timed twice."


def test_figures_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "DPI", 40)
    written = report.write(tmp_path, {}, FACTS, invented(), claims.judge(FACTS, invented()))
    assert [path.name for path in written] == ["bench.json", "bench.md", "growth.png", "ratios.png"]
    assert all(path.stat().st_size > 500 for path in written)


class Clock:
    """A clock that moves only when a call says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def takes(self, *seconds: float):
        durations = list(seconds)

        def call() -> None:
            self.now += durations.pop(0) if len(durations) > 1 else durations[0]

        return call


def test_the_race_reports_medians_per_call():
    clock = Clock()
    effort = Effort(seconds=1.0, least=5, most=20, block_seconds=0.01)
    found = measure.race({"slow": clock.takes(0.1), "fast": clock.takes(0.001)}, effort, clock)
    assert found["slow"].median == pytest.approx(0.1) and found["slow"].rounds == 5 and found["slow"].calls == 1
    assert found["fast"].median == pytest.approx(0.001) and found["fast"].rounds == 20 and found["fast"].calls == 10


def test_one_disturbance_does_not_move_the_median():
    clock = Clock()
    effort = Effort(seconds=1.0, least=5, most=9, block_seconds=1e-9)
    noisy = clock.takes(0.01, 0.01, 5.0, *[0.01] * 3, 0.01)
    found = measure.race({"noisy": noisy}, effort, clock)
    assert found["noisy"].median == pytest.approx(0.01) and found["noisy"].low <= found["noisy"].high


def test_what_takes_long_is_called_once():
    clock = Clock()
    found = measure.race({"long": clock.takes(10.0)}, Effort(seconds=1.0), clock)
    assert found["long"].rounds == 1 and clock.now == 10.0


def test_the_process_starts_again_to_let_threads_sleep(monkeypatch):
    started: list[tuple] = []
    monkeypatch.setattr(machine.os, "execve", lambda *given: started.append(given))
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    machine.wait_passively(["bench"])
    assert not started
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    machine.wait_passively(["bench", "--quick"])
    _, command, environment = started[0]
    assert command[1:] == ["-m", "caffnet_lab", "bench", "--quick"]
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"


def test_conditions_say_what_the_figures_depend_on():
    found = machine.conditions(3)
    assert found["versions"]["torch"] and found["cores"] >= 1
    assert {"processor", "load", "OMP_WAIT_POLICY"} <= found.keys() and found["threads"] == 3


def test_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setattr(measure, "QUICK", Effort(0.01, 1, 2, 1e-4))
    monkeypatch.setattr(figures, "DPI", 40)
    options = ["--task", "cbf-1", "--contestant", "caffnet", "--threads", "1", "--memory", "none", "--quick"]
    ran = CliRunner().invoke(app, ["bench", *options, "--out", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert "cbf-1: layer / backbone" in ran.output
    whole = json.loads((tmp_path / "bench.json").read_text())
    assert [r["contestant"] for r in whole["records"]] == ["backbone", "caffnet"]
    assert whole["conditions"]["quick"] is True


def test_the_command_line_names_mistakes(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    ran = CliRunner().invoke(app, ["bench", "--task", "nope"])
    assert ran.exit_code == 2 and "There is no task 'nope'" in ran.stderr


def test_a_block_of_everyday_calls_begins_warm(monkeypatch: pytest.MonkeyPatch):
    """The first call after the other one takes longer: it does not count."""
    now, last = [0.0], [""]

    def taking(name: str, seconds: float):
        def call() -> None:
            now[0] += seconds + (0.0 if last[0] == name else 5e-3)
            last[0] = name

        return call

    monkeypatch.setattr(everyday.time, "process_time", lambda: now[0])
    monkeypatch.setattr(everyday.time, "perf_counter", lambda: now[0])
    assert everyday._ratio(taking("one", 3e-3), taking("other", 1e-3), rounds=5) == pytest.approx(3.0)


def test_everyday_calls_alone(tmp_path, monkeypatch):
    """Their claims are on the page and in the JSON, without any task."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    line = claims.Claim("a line", claims.Figure(0.5, 1.0), None)
    monkeypatch.setattr(everyday, "measure", lambda quick, tell: [line])
    ran = CliRunner().invoke(app, ["bench", "--task", "everyday", "--threads", "1", "--out", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert "a line" in (tmp_path / "bench.md").read_text()
    (claim,) = json.loads((tmp_path / "bench.json").read_text())["claims"]
    assert claim["line"] == "a line" and claim["forward"]["verdict"] == "pass"
