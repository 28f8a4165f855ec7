"""The tests must notice: deliberate breakages of the code, each of which has to make a test fail.

Every mutant is a copy of the package with one line changed; a few quick tests are run against it in a process of its
own. A mutant that survives means that nothing checks the line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import caffnet

HERE = Path(__file__).parent
PACKAGE = Path(caffnet.__file__).parent

# name: (file, what the line says, what the mutant says, the tests that should notice). Breakages of the kernel are
# tested with it, all others without.
MUTANTS = {
    "sign of the candidate": (
        "search/flat.py",
        "y = product(choice.pinv, target) + (g - product",
        "y = product(choice.pinv, target) - (g - product",
        "test_nasty.py::test_21_the_jump_at_the_boundary_is_as_documented",
    ),
    "no tolerance": (
        "tolerance.py",
        "return 4 * max(n, 1) * torch.finfo(dtype).eps\n\n\ndef rank",
        "return 0.0\n\n\ndef rank",
        "test_properties.py",
    ),
    "a huge tolerance": (
        "tolerance.py",
        "return 4 * max(n, 1) * torch.finfo(dtype).eps\n\n\ndef rank",
        "return 1e-3\n\n\ndef rank",
        "test_literal.py::test_full_is_the_nearest_feasible_candidate",
    ),
    "infeasible candidates are not masked": (
        "search/enumeration.py",
        "return torch.where(valid, distance(y - f.unsqueeze(1), norm), math.inf)",
        "return distance(y - f.unsqueeze(1), norm)",
        "test_literal.py::test_full_is_the_nearest_feasible_candidate",
    ),
    "rows are not scaled": (
        "rows.py",
        "    return -torch.where(positive,",
        "    return 0 * torch.where(positive,",
        "test_nasty.py::test_16_rows_near_the_end_of_float32 test_properties.py",
    ),
    "the wrong side of a two-sided row": (
        "search/enumeration.py",
        "place = table.rows + rows.m * (table.sides >= 0)",
        "place = table.rows + rows.m * (table.sides <= 0)",
        "test_deploy.py::test_the_layer_ends_a_sequential test_model.py::test_a_trained_model_is_wrapped_in_one_line",
    ),
    "sign of the gradient of A": (
        "projection.py",
        "slope = -(multiplier",
        "slope = (multiplier",
        "test_gradient.py::test_first_and_second_derivatives_on_faces_of_every_dimension",
    ),
    "the tangent step points outward": (
        "projection.py",
        "step = project(torch.where(known, -v, 0.0)",
        "step = project(torch.where(known, v, 0.0)",
        "test_gradient.py::test_the_tangent_gradient_lives_where_the_exact_one_dies",
    ),
    "the tangent step pulls w inside too": (
        "projection.py",
        "return direction, p if ctx.has_w",
        "return direction, direction if ctx.has_w",
        "test_gradient.py::test_what_pulls_f_inside_does_not_pull_w",
    ),
    "a conflict with the wrong sign": (
        "search/dual.py",
        "-r * side, 0.0)",
        "r * side, 0.0)",
        "test_input.py::test_the_message_names_the_sample_the_rows_and_the_ways_out",
    ),
    "the kernel: a dropped multiplier": (
        "kernel.py",
        "rate = side * sides[j] * r[j]",
        "rate = -1.0",
        "test_kernel.py",
    ),
    "the kernel: branches end too early": (
        "kernel.py",
        "        if share * math.sqrt(squared) > reach:",
        "        if share * math.sqrt(squared) > 0.5 * reach:",
        "test_kernel.py",
    ),
    "the kernel: sign of the gradient of A": (
        "kernel.py",
        "to_A[line, i, c] -= factor",
        "to_A[line, i, c] += factor",
        "test_kernel.py",
    ),
    "compromises that do not know the size of a row": (
        "search/faces.py",
        "own, others = exponent[..., j : j + 1], exponent[..., :j]",
        "own, others = 0 * exponent[..., j : j + 1], 0 * exponent[..., :j]",
        "test_compromise.py::test_the_size_of_a_row_is_its_weight",
    ),
    "the kernel: the gradient of a compromise as if it lay on its rows": (
        "compromise_kernel.py",
        "lean = residual * mean if",
        "lean = 0.0 if",
        "test_compromise.py::test_the_gradient_along_matrices_of_equal_rank",
    ),
    "strict does not aim inside": (
        "tolerance.py",
        "return feasibility(dtype, n) + 4 * rounding(dtype, n)",
        "return 0.0",
        "test_strict.py::test_ten_thousand_samples_proven_with_fractions",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_breakage_is_noticed(name: str, tmp_path: Path):
    file, old, new, tests = MUTANTS[name]
    copy = tmp_path / "caffnet"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / file).read_text()
    assert text.count(old) == 1, f"the line to break is not in {file} once"
    (copy / file).write_text(text.replace(old, new))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests.split()]
    kernel = "1" if file.endswith("kernel.py") else "0"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "CAFFNET_MUTANT": str(copy), "CAFFNET_KERNEL": kernel}
    result = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True)
    assert result.returncode == 1, f"survived: {name}\n{result.stdout[-2000:]}{result.stderr[-500:]}"
    assert "FAILED" in result.stdout


def test_the_copy_is_what_the_mutants_test():
    """The subprocess must import the copy, or every mutant would survive (or die) for the wrong reason."""
    if "CAFFNET_MUTANT" in os.environ:
        assert Path(caffnet.__file__).parent == Path(os.environ["CAFFNET_MUTANT"])
