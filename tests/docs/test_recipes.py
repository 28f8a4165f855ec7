"""The recipes run as programs, and give what their pages say."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RECIPES = Path(__file__).resolve().parents[2] / "docs" / "recipes"


def run(*words: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: pip install --group recipes")


def test_a_plain_loop_resumes(tmp_path: Path):
    recipe = str(RECIPES / "plain.py")
    first = run(recipe, "state.pt", "1", cwd=tmp_path)
    more = run(recipe, "state.pt", "6", cwd=tmp_path)
    assert float(more.split()[-1]) < 0.5 * float(first.split()[-1])


@needs("lightning")
def test_lightning_trains_and_logs(tmp_path: Path):
    logged = ast.literal_eval(run(str(RECIPES / "lightning_module.py"), cwd=tmp_path).splitlines()[-1])
    assert logged["infeasible"] == 0 and logged["largest violation"] < 1e-5 and logged["validation loss"] < 0.01


@needs("lightning")
def test_lightning_has_no_loss_of_samples_without_an_answer():
    """A negative total has no answer: such samples are left out, and a batch of them takes no step."""
    import torch

    spec = importlib.util.spec_from_file_location("lightning_recipe", RECIPES / "lightning_module.py")
    assert spec is not None and spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    torch.manual_seed(0)
    module, logged = recipe.Allocation(), {}
    module.log = lambda name, value, **_: logged.__setitem__(name, float(value.detach()))
    lost, target = torch.tensor([[-1.0, 0.0], [-2.0, 0.5]]), torch.ones(2, 3)
    assert module.training_step((lost, target), 0) is None
    module.validation_step((lost, target), 0)
    assert logged == {"on the boundary": 0.0, "infeasible": 2.0}
    mixed = torch.tensor([[-1.0, 0.0], [1.0, 0.5]])
    module.training_step((mixed, target), 0).backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in module.parameters())
    module.validation_step((mixed, target), 0)
    assert logged["infeasible"] == 1.0 and all(value == value for value in logged.values())
    assert {"loss", "validation loss", "largest violation"} <= set(logged)


@needs("huggingface_hub")
def test_a_model_and_its_set_are_saved_and_loaded(tmp_path: Path):
    from safetensors import safe_open

    assert "AffineSet(4 rows in R^3) came with the model" in run(str(RECIPES / "hub.py"), "model", cwd=tmp_path)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["upper"] == [1.0, None, None, 0.5] and config["names"][0] == "total"
    with safe_open(tmp_path / "model" / "model.safetensors", "pt") as tensors:
        assert {"layer.A", "layer.lower", "layer.upper"} <= set(tensors.keys())
        assert tensors.get_tensor("layer.upper").tolist() == [1.0, float("inf"), float("inf"), 0.5]


def test_two_processes_end_with_the_same_weights(tmp_path: Path):
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(RECIPES / "ddp.py"))
    assert "2 processes, the same weights, all rows hold" in run(*words, cwd=tmp_path)


def test_every_recipe_is_on_the_page_and_in_a_test():
    page = (RECIPES.parent / "guides" / "recipes.md").read_text()
    for path in RECIPES.glob("*.py"):
        assert f'"docs/recipes/{path.name}"' in page and path.name in Path(__file__).read_text()
