"""`caffnet programs`: the programs, one run of what is installed, its table."""

from __future__ import annotations

import pytest
import torch

from caffnet_lab.bench import programs
from caffnet_lab.bench.measure import Effort
from caffnet_lab.bench.ready import Limits

SHORT = Effort(seconds=0.01, least=1, most=2)


def test_names_are_programs_or_families():
    assert programs.select(["qp-8", "opf"])[0] == "qp-8"
    assert programs.select(None) == list(programs.PROGRAMS)
    with pytest.raises(ValueError, match="no program 'qp-9'"):
        programs.select(["qp-9"])


def test_a_run_measures_ours_and_says_who_is_missing(monkeypatch: pytest.MonkeyPatch):
    heard: list[str] = []
    monkeypatch.setitem(programs.PACKAGES, "qpth", ("a_package_that_nobody_has",))
    family = {name: programs.CONTESTANTS["qp"][name] for name in (programs.OURS, "qpth")}
    monkeypatch.setitem(programs.CONTESTANTS, "qp", family)
    lines = programs.run(["qp-8"], Limits(threads=1), SHORT, heard.append)
    ours, other = lines
    assert ours.forward and ours.train and ours.distance is not None and ours.violation is not None
    assert ours.violation < 1e-12 and ours.distance < 1e-12
    assert other.why == "not installed: a_package_that_nobody_has" and other.forward is None
    assert any("residuals and gap of caffnet at most" in line for line in heard)
    table = programs.rows(lines)
    assert table[0][4] == "1.00 / 1.00" and table[1][4] == "- / -"
    assert all(len(row) == len(programs.HEADER) for row in table)


def test_a_rival_that_fails_is_a_line(monkeypatch: pytest.MonkeyPatch):
    def fails(program: programs.Program, limits: Limits) -> programs.Calls:
        raise RuntimeError("it fell over")

    monkeypatch.setitem(programs.CONTESTANTS, "qp", {programs.OURS: programs.ours, "other": fails})
    lines = programs.run(["qp-8"], Limits(threads=1), SHORT)
    assert lines[1].why == "failed: RuntimeError: it fell over" and lines[0].forward


def test_programs_have_their_size():
    program = programs.curved(8)
    assert program.Q is not None and program.Q.shape == (128, 8, 8) and program.set.m == 16
    assert torch.linalg.eigvalsh(program.Q).min() > 0.05
