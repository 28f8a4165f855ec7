"""The tests must notice: deliberate breakages of the code, each of which has to make a test fail.

Every mutant is a copy of the package with one line changed, compiled anew if that line is in C; a few quick tests are
run against it in a process of its own. A mutant that survives means that nothing checks the line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import caffnet
from caffnet._kernel import build, native

HERE = Path(__file__).parent
PACKAGE = Path(caffnet.__file__).parent

FULL = "test_literal.py::test_full_is_the_nearest_feasible_candidate"
ENUMERATION = "test_kernel.py::test_the_answers_are_those_of_plain_enumeration"
PROJECTION = "test_kernel.py::test_the_projection_is_that_of_a_quadratic_programme_solver"
CLOSED_FORM = "test_kernel.py::test_gradients_are_those_of_the_closed_form"
FRACTIONS = "test_strict.py::test_ten_thousand_samples_proven_with_fractions"

# name: (file, what the line says, what the mutant says, the tests that should notice).
MUTANTS = {
    # the point
    "w with the wrong sign": (
        "_kernel/rows.c",
        "g = rounded(f + load(batch->w",
        "g = rounded(f - load(batch->w",
        "test_nasty.py::test_21_the_jump_at_the_boundary_is_as_documented",
    ),
    "away from the rows, not onto them": (
        "_kernel/face.c",
        "move(face, j, (value_of(s, i, y) - bound) *",
        "move(face, j, (bound - value_of(s, i, y)) *",
        ENUMERATION,
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
        FULL,
    ),
    "infeasible candidates are accepted": (
        "_kernel/walk.c",
        "if (length <= best * tie && accepts(s, y, size_f)) {",
        "if (length <= best * tie) {",
        FULL,
    ),
    "branches end too early": (
        "_kernel/walk.c",
        "if (share * sqrt(squared) > reach) continue;",
        "if (share * sqrt(squared) > 0.5 * reach) continue;",
        FULL,
    ),
    "rows are not scaled": (
        "_kernel/rows.c",
        "if (size > 0.0) exponent -= exponent_of(size);",
        "if (size > 0.0) exponent = 0;",
        "test_nasty.py::test_16_rows_near_the_end_of_float32 "
        "test_properties.py::test_scaling_rows_by_powers_of_two_changes_no_bit",
    ),
    "the wrong side of a two-sided row": (
        "_kernel/dual.c",
        "> s->high[p] ? 1 : -1",
        "> s->high[p] ? -1 : 1",
        PROJECTION,
    ),
    "a bound of one output is not firm": (
        "_kernel/rows.c",
        "(firm && s->plain[i] >= 0 &&",
        "(firm && s->plain[i] > s->n &&",
        "test_nasty.py::test_plain_bounds_hold_exactly_for_an_accepted_f_too",
    ),
    "the nearest bound of a box is the other": (
        "_kernel/box.c",
        "*y = f > low ? high : low;",
        "*y = f > low ? low : high;",
        "test_kernel.py::test_a_box_is_a_clamp",
    ),
    # the search
    "a dropped multiplier": (
        "_kernel/dual.c",
        "double rate = sign * face->sides[j] * face->r[j];",
        "double rate = -1.0;",
        PROJECTION,
    ),
    "a rotation that does not turn back": (
        "_kernel/face.c",
        "lower[j] = cosine * bottom - sine * top;",
        "lower[j] = cosine * bottom + sine * top;",
        PROJECTION,
    ),
    "rows of a warm start that do not pull stay": (
        "_kernel/dual.c",
        "if (face->multiplier[j] < least) drop",
        "if (face->multiplier[j] < -1e300) drop",
        "test_kernel.py::test_a_warm_start_does_not_change_the_answer",
    ),
    "equalities are forgotten from one sample to the next": (
        "_kernel/face.c",
        "same = work->before[i] == equal[i];",
        "same = 1;",
        "test_kernel.py::test_a_row_may_be_an_equality_for_one_sample_only",
    ),
    # the gradient
    "sign of the gradient of A": (
        "_kernel/gradient.c",
        "A[c] -= first * p[c]",
        "A[c] += first * p[c]",
        CLOSED_FORM,
    ),
    "the gradient of a bound in the units of the scaled row": (
        "_kernel/gradient.c",
        "+= power * times_power(q, exponent);",
        "+= power * q;",
        CLOSED_FORM,
    ),
    "the tangent step points outward": (
        "_kernel/gradient.c",
        "d[j] = -v[j];",
        "d[j] = v[j];",
        "test_gradient.py::test_a_step_along_the_tangent_gradient_never_increases_a_linear_loss",
    ),
    "the tangent step in a box points outward": (
        "_kernel/gradient.c",
        "if (up ? above : below) p[j] = larger(p[j], 0.0);",
        "if (up ? above : below) p[j] = smaller(p[j], 0.0);",
        "test_gradient.py::test_the_tangent_gradient_lives_where_the_exact_one_dies",
    ),
    "the tangent step pulls w inside too": (
        "_kernel/gradient.c",
        "    for (Index j = 0; to->w && j < n; j++)",
        "    if (batch->tangent && !compromise && numbers) tangent(work, active, y, v, p);\n"
        "    for (Index j = 0; to->w && j < n; j++)",
        "test_gradient.py::test_what_pulls_f_inside_does_not_pull_w",
    ),
    "the closed form takes the other bound": (
        "_solve/gradient.py",
        "torch.where(from_above, upper, lower)",
        "torch.where(from_above, lower, upper)",
        CLOSED_FORM,
    ),
    "the point of least violation counts as one on its rows": (
        "_solve/gradient.py",
        "torch.where(missed, dot(full, found.value.unsqueeze(-2)) - chosen, 0.0)",
        "torch.zeros_like(chosen)",
        "test_gradient.py::test_the_kernel_and_the_closed_form_have_the_same_gradients",
    ),
    "a bound at infinity is touched": (
        "_kernel/rows.c",
        "return is_finite(bound) && fabs(value - bound)",
        "return fabs(value - bound)",
        "test_structure.py::test_a_large_box_has_all_gradients_of_a_small_one",
    ),
    "the tangent step of a transform points outward": (
        "_solve/gradient.py",
        "torch.where(known, -v, 0.0)",
        "torch.where(known, v, 0.0)",
        "test_transforms.py::test_tangent_vmap_of_vjp",
    ),
    # no point at all
    "a conflict with the wrong sign": (
        "_kernel/infeasible.c",
        "double m = -sign * face->r[j];",
        "double m = sign * face->r[j];",
        "test_input.py::test_the_message_names_the_sample_the_rows_and_the_ways_out",
    ),
    "the least violation climbs too little": (
        "_kernel/infeasible.c",
        "needed > *relax + noise) *relax = needed;",
        "needed > *relax + noise) *relax = *relax + 0.001 * (needed - *relax);",
        "test_data.py::test_nearest_has_the_least_violation test_kernel.py::test_the_least_violation_is_least",
    ),
    "the least violation climbs too far": (
        "_kernel/infeasible.c",
        "needed > *relax + noise) *relax = needed;",
        "needed > *relax + noise) *relax = 1.5 * needed;",
        "test_data.py::test_nearest_has_the_least_violation test_kernel.py::test_the_least_violation_is_least",
    ),
    # soft rows
    "hard rows give way too": (
        "_kernel/soft.c",
        "yields = which == ALL_ROWS || soft == (which == SOFT_ROWS);",
        "yields = 1;",
        "test_soft_rows.py::test_soft_rows_give_way_by_the_least_and_hard_rows_never",
    ),
    "the level does not move with the bounds": (
        "_kernel/soft.c",
        "level.s[c] = line[c][level.count] / line[c][c];",
        "level.s[c] = 0.0;",
        "test_soft_rows.py::test_a_level_moves_with_the_bounds_that_set_it",
    ),
    "strict looks at hard rows no more where soft ones gave way": (
        "_kernel/strict.c",
        "    if (batch->strict) keep_hard_rows(batch, b, work);\n",
        "",
        "test_soft_rows.py::test_hard_rows_hold_in_exact_arithmetic_under_strict",
    ),
    "a weight counts for a row of another size": (
        "_solve/slack.py",
        "price = weight * unit * unit",
        "price = weight * unit",
        "test_soft_rows.py::test_the_unit_of_a_row_is_that_of_its_slack",
    ),
    # exact arithmetic
    "strict does not aim inside": (
        "tolerance.py",
        "return feasibility(dtype, n) + 4 * rounding(dtype, n)",
        "return 0.0",
        FRACTIONS,
    ),
    "a sign is trusted that rounding may have turned": (
        "_kernel/exact.c",
        "fabs(total) > (double)(n + 4) * 0x1p-52 * size)",
        "fabs(total) > 0x1p-60 * size)",
        "test_strict.py::test_what_is_inside_is_decided_exactly",
    ),
    "a product that lost its last digits counts as exact": (
        "_kernel/exact.c",
        "&& (fabs(term) > 0x1p-900 || p == 0.0 || q == 0.0);",
        "&& 1;",
        "test_strict.py::test_digits_that_products_and_sums_lose_are_not_forgotten",
    ),
    "a rounded sum counts as exact": (
        "_kernel/exact.c",
        "exact = total.low == 0.0 && fma",
        "exact = fma",
        "test_strict.py::test_digits_that_products_and_sums_lose_are_not_forgotten",
    ),
    "a carry is lost": (
        "_kernel/exact.c",
        "int64_t here = total->word[j] + carry;",
        "int64_t here = total->word[j];",
        "test_strict.py::test_what_is_inside_is_decided_exactly",
    ),
    # dependent rows
    "compromises that do not know the size of a row": (
        "_kernel/paper.c",
        "double shared = e[j] * ldexp(1.0, (int)smaller(2.0 * (weight[j] - heaviest), 0.0));",
        "double shared = e[j];",
        "test_compromise.py::test_the_size_of_a_row_is_its_weight",
    ),
    "the gradient of a compromise as if it lay on its rows": (
        "_kernel/paper.c",
        "double lean = is_finite(mean) ? rho * mean : 0.0;",
        "double lean = 0.0;",
        "test_compromise.py::test_the_gradient_along_matrices_of_equal_rank",
    ),
    # graphs that are exported
    "an exported graph takes infeasible candidates": (
        "_solve/graph.py",
        "lengths = torch.where(valid, _distance(y - f.unsqueeze(1), options.norm), math.inf)",
        "lengths = _distance(y - f.unsqueeze(1), options.norm)",
        ENUMERATION,
    ),
    "an exported graph takes the other bound": (
        "_solve/graph.py",
        "place = listed + m * (signs >= 0)",
        "place = listed + m * (signs <= 0)",
        ENUMERATION,
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _library():
    """In a clone whose C files have changed the library is compiled before it is copied."""
    native._library()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_breakage_is_noticed(name: str, tmp_path: Path):
    file, old, new, tests = MUTANTS[name]
    copy = tmp_path / "caffnet"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / file).read_text()
    assert text.count(old) == 1, f"the line to break is not in {file} once"
    (copy / file).write_text(text.replace(old, new))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "CAFFNET_MUTANT": str(copy), "CFLAGS": "-O0"}
    if file.endswith(".c"):
        if build.find_compiler() is None:
            pytest.skip("there is no C compiler")
        subprocess.run([sys.executable, str(copy / "_kernel" / "build.py")], env=environment, check=True)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests.split()]
    result = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 1, f"survived: {name}\n{result.stdout[-2000:]}{result.stderr[-500:]}"
    assert "FAILED" in result.stdout
    assert "KernelError" not in result.stdout


def test_the_copy_is_what_the_mutants_test():
    """The subprocess must import the copy, or every mutant would survive (or die) for the wrong reason."""
    if "CAFFNET_MUTANT" in os.environ:
        assert Path(caffnet.__file__).parent == Path(os.environ["CAFFNET_MUTANT"])
