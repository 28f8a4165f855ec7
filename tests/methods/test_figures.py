from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from caffnet import AffineSet, project
from caffnet.methods import HardNet

pytest.importorskip("matplotlib")

from caffnet_lab.methods_table import figures
from caffnet_lab.methods_table.approximation import approximation, errors_at, moving_wedge, target
from caffnet_lab.methods_table.figures import dependent_rows
from caffnet_lab.methods_table.special_case import share_that_agrees


def test_figure_1_shows_what_the_paper_says():
    limits, f = dependent_rows()
    assert torch.linalg.matrix_rank(limits.A) == 1
    assert (limits.violation(f) > 0).all()  # the raw outputs break both rows
    hardnet = HardNet(nn.Identity(), limits, check=False)(f)
    torch.testing.assert_close(limits.violation(hardnet), torch.tensor([[0.0, 0.5]] * 3, dtype=torch.float64))
    assert limits.contains(project(f, limits).value).all()


def test_all_figures_are_drawn_under_the_papers_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(figures, "approximation", lambda: approximation((4, 8), (0,)))
    paths = figures.draw_all(tmp_path / "figures", ["png"])
    assert [path.stem for path in paths] == [
        "figure1_dependent_rows",
        "figure2_framework",
        "figure3_null_space",
        "figure8_body_frame",
        "approximation",
    ]
    assert all(path.stat().st_size > 20_000 for path in paths)


def test_the_layer_chooses_among_the_candidates_that_figure_2_draws():
    limits = figures.four_rows()
    f, w = torch.tensor([-0.25, 1.75], dtype=torch.float64), torch.tensor([0.6, 0.15], dtype=torch.float64)
    found = figures.candidates(limits, f, w)
    assert len(found) == 4 + 6
    inside = [point for point in found.values() if limits.contains(point)]
    nearest = min(inside, key=lambda point: float((point - f).norm()))
    torch.testing.assert_close(project(f, limits, w).value, nearest)
    torch.testing.assert_close(nearest, found[0,])  # on the edge, where w has a say


def test_the_error_of_the_layer_is_never_larger_and_falls_with_the_width():
    narrow, wide = (errors_at(width, (0, 1)) for width in (8, 64))
    for errors in (narrow, wide):
        assert all(ours <= raw for ours, raw in zip(errors.constrained, errors.raw, strict=True))
        assert max(errors.violation) < 1e-14 < 0.1 < min(errors.raw_violation)
    assert max(wide.constrained) < 0.5 * min(narrow.constrained)


def test_the_target_touches_its_constraints():
    x = 2 * torch.rand(500, 2, dtype=torch.float64) - 1
    rows, t = moving_wedge(x), target(x)
    slack = (rows.upper - (rows.A @ t.unsqueeze(-1)).squeeze(-1)).amin(-1)
    assert slack.min() > -1e-14
    assert 0.3 < (slack < 1e-12).double().mean() < 1.0


def test_hardnet_is_a_special_case_for_one_output_only():
    """The counterexample of the module's text, and the shares; the nearest point is checked against an oracle."""
    rows = AffineSet.inequality(torch.tensor([[1.0, 0.0], [0.9, 0.1]], dtype=torch.float64), torch.zeros(2).double())
    f = torch.tensor([[1.0, -0.5]], dtype=torch.float64)
    assert (rows.violation(f) > 0).all()
    torch.testing.assert_close(HardNet(nn.Identity(), rows)(f), torch.zeros(1, 2, dtype=torch.float64))
    torch.testing.assert_close(project(f, rows).value, torch.tensor([[0.0, -0.5]], dtype=torch.float64))
    shares = [share_that_agrees(n, draws=500) for n in (1, 2, 3, 4)]
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.3
