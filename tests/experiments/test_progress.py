"""Progress: bars on a terminal; elsewhere one line per run, and a sign of life every minute."""

import io

import pytest
from rich.console import Console

from caffnet_lab.experiments import progress
from caffnet_lab.experiments.config import resolve
from caffnet_lab.experiments.progress import describe, progress_bar, progress_bars
from caffnet_lab.experiments.training import Tick

CONFIG = resolve("opt", "nn", 1)
RECORD = {"evaluation": {"objective": -0.1, "inequality": {"max": 0.2}, "equality": {"max": 0.3}}}


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_of_a_run(terminal):
    out = io.StringIO()
    with progress_bars([CONFIG], Console(file=out, force_terminal=terminal, width=160)) as (on_tick, on_done):
        on_tick(CONFIG, Tick(5, 10, 1.25, 3e-4))
        on_tick(CONFIG, Tick(10, 10, 1.0, 2e-4))
        on_done(CONFIG, RECORD)
    text = out.getvalue()
    assert "opt paper nn seed 1: objective -0.1, worst violation 3.0e-01" in text
    assert ("all runs" in text) == terminal
    if not terminal:
        assert len(text.splitlines()) == 1  # a short run is one line


def test_a_log_shows_life_every_minute(monkeypatch):
    out, now = io.StringIO(), 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress_bars([CONFIG], Console(file=out, force_terminal=False, width=40)) as (on_tick, _):
        for now in (1010.0, 1049.0, 1051.0, 1060.0, 1100.0, 1102.0):
            on_tick(CONFIG, Tick(int(now) - 1000, 200, 1.25, 3e-4))
    assert out.getvalue().splitlines() == [
        f"opt paper nn seed 1: epoch {epoch} of 200, loss 1.25, worst violation 3.0e-04" for epoch in (51, 102)
    ]


def test_description_names_the_headline():
    assert describe(CONFIG, RECORD).endswith("objective -0.1, worst violation 3.0e-01")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_measurement_shows_what_it_does(monkeypatch, terminal):
    out, times = io.StringIO(), iter((1000.0, 1010.0, 1049.0, 1051.0, 1051.0, 1060.0))
    if not terminal:  # the fourth is asked for twice: a line is due, and when it was written
        monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    with progress_bar(Console(file=out, force_terminal=terminal, width=80), 4) as show:
        for share in range(4):
            show(f"rival [{share}]", share)
    if terminal:
        assert "rival" in out.getvalue()
    else:
        assert out.getvalue().splitlines() == ["rival [2]"]  # at most one line a minute, with its brackets
