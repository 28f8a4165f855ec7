from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from caffnet import project
from caffnet.methods import HardNet

pytest.importorskip("matplotlib")

from caffnet_lab.methods_table.figures import dependent_rows, draw_all


def test_figure_1_shows_what_the_paper_says():
    limits, f = dependent_rows()
    assert torch.linalg.matrix_rank(limits.A) == 1
    assert (limits.violation(f) > 0).all()  # the raw outputs break both rows
    hardnet = HardNet(nn.Identity(), limits, check=False)(f)
    torch.testing.assert_close(limits.violation(hardnet), torch.tensor([[0.0, 0.5]] * 3, dtype=torch.float64))
    assert limits.contains(project(f, limits).value).all()


def test_both_figures_are_drawn(tmp_path: Path):
    paths = draw_all(tmp_path / "figures", ["png"])
    assert [path.name for path in paths] == ["figure1_dependent_rows.png", "figure4_null_space.png"]
    assert all(path.stat().st_size > 20_000 for path in paths)
