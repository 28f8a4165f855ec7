from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner

from caffnet_lab.cli import app


def test_methods_prints_and_writes(tmp_path: Path):
    arguments = ["methods", "--out", str(tmp_path), "--method", "hardnet", "--family", "dependent"]
    result = CliRunner().invoke(app, [*arguments, "--problems", "1", "--inputs", "10", "--epochs", "1"])
    assert result.exit_code == 0, result.output
    assert "Satisfaction" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {"methods.md", "methods.html", "methods.json"}


def test_an_unknown_method_is_a_usage_error():
    result = CliRunner().invoke(app, ["methods", "--method", "hardnets"])
    assert result.exit_code == 2
    assert "is unknown" in result.output


def test_figures_writes(tmp_path: Path):
    pytest.importorskip("matplotlib")
    result = CliRunner().invoke(app, ["figures", "--out", str(tmp_path), "--kind", "png"])
    assert result.exit_code == 0, result.output
    assert len(list(tmp_path.glob("*.png"))) == 5  # Figures 1, 2, 3 and 8, and the error by width
