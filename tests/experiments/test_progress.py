"""Progress: bars on a terminal, one line per run elsewhere."""

import io

import pytest
from rich.console import Console

from caffnet_lab.experiments.config import resolve
from caffnet_lab.experiments.progress import describe, progress_bars
from caffnet_lab.experiments.training import Tick

CONFIG = resolve("opt", "nn", 1)
RECORD = {"evaluation": {"objective": -0.1, "inequality": {"max": 0.2}, "equality": {"max": 0.3}}}


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_of_a_run(terminal):
    out = io.StringIO()
    with progress_bars([CONFIG], Console(file=out, force_terminal=terminal, width=160)) as (on_tick, on_done):
        assert (on_tick is not None) == terminal
        if on_tick is not None:
            on_tick(CONFIG, Tick(5, 10, 1.25, 3e-4))
            on_tick(CONFIG, Tick(10, 10, 1.0, 2e-4))
        on_done(CONFIG, RECORD)
    text = out.getvalue()
    assert "opt paper nn seed 1: objective -0.1, worst violation 3.0e-01" in text
    assert ("all runs" in text) == terminal


def test_description_names_the_headline():
    assert describe(CONFIG, RECORD).endswith("objective -0.1, worst violation 3.0e-01")
