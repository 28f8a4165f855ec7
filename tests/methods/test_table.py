"""The living Table 1: the random constraints, the measurement, its words and its files."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from caffnet import AffineSet, ConstraintError, project
from caffnet.methods import METHODS, Guarantee
from caffnet_lab.methods_table.families import FAMILIES, INPUTS, OUTPUTS, Draw
from caffnet_lab.methods_table.report import satisfaction_text, to_html, to_json, to_markdown, write
from caffnet_lab.methods_table.table import PAPER, Cell, Table, affine_deviation, convergence, measure

pytest.importorskip("scipy")


@pytest.fixture(scope="module")
def table() -> Table:
    return measure(problems=2, inputs=10, epochs=2, timed=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(5))
def test_every_random_set_has_a_point(family: str, seed: int, dtype: torch.dtype):
    draw = Draw(seed, dtype)
    constraint = FAMILIES[family].draw(draw)
    x = draw.uniform(-1.0, 1.0, 20, INPUTS)
    set = constraint if isinstance(constraint, AffineSet) else constraint(x)
    y = project(torch.zeros(20, OUTPUTS, dtype=dtype), set).value  # raises where a set is empty
    assert set.contains(y).all()
    torch.testing.assert_close(set.A.norm(dim=-1), torch.ones_like(set.A.norm(dim=-1)))


@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_what_they_are_called(family: str):
    draw = Draw(1, torch.float64)
    constraint = FAMILIES[family].draw(draw)
    x = draw.uniform(-1.0, 1.0, 3, INPUTS)
    set = constraint if isinstance(constraint, AffineSet) else constraint(x)
    needs = FAMILIES[family].needs
    rank = torch.linalg.matrix_rank(set.A)
    assert isinstance(constraint, AffineSet) != ("input_dependent_b" in needs)
    assert (set.A.ndim > 2) == ("input_dependent_A" in needs)
    assert ("=" in set.row_kinds) == ("equality" in needs)
    assert ("<" in set.row_kinds) == ("inequality" in needs)
    assert (set.m > set.n) == ("more_rows" in needs)
    assert bool((rank < min(set.m, set.n)).all()) == ("dependent_rows" in needs and "more_rows" not in needs)


def test_every_method_meets_every_family(table: Table):
    assert [(c.method, c.family) for c in table.cells] == [(m, f) for m in METHODS for f in FAMILIES]
    assert set(PAPER) == set(METHODS)


def test_methods_do_what_they_declare(table: Table):
    for cell in table.cells:
        exact = METHODS[cell.method].guarantee in (Guarantee.EXACT, Guarantee.SOLVER)
        if cell.supported:
            assert cell.status == "measured", cell
            assert cell.holds or not exact, cell
            assert cell.instances == 20
        else:
            assert cell.status in ("refused", "forced"), cell
            assert "cannot enforce this" in cell.message


def test_the_papers_claims_are_seen(table: Table):
    wrong = [c.claim for c in table.claims if c.seen is False]
    assert wrong[0] == "y = A x + b"  # POLICE learns its A and b
    assert [claim.partition(":")[0] for claim in wrong[1:]] == ["HardNet is a special case"]
    said = {c.method for c in table.claims if c.claim.startswith("Satisfaction")}
    assert said == {m for m in METHODS if PAPER[m][2] != "-"}
    assert {c.claim for c in table.claims if c.method == "hardnet"} >= {
        "Leaves the set: dependent",
        "Leaves the set: m > n",
    }


def test_hardnet_is_forced_where_it_refuses(table: Table):
    forced = {c.family: c for c in table.of("hardnet") if c.status == "forced"}
    assert set(forced) == {"m > n", "dependent", "empty interior", "cone", "all at once"}
    assert all(c.worst > 0.1 for c in forced.values())


def test_the_same_seed_measures_the_same(table: Table):
    again = measure(["hardnet"], ["m > n"], problems=2, inputs=10, epochs=2, timed=30).cells[0]
    first = next(c for c in table.of("hardnet") if c.family == "m > n")
    assert math.isnan(first.microseconds)
    assert again.microseconds > 0
    assert (again.worst, again.violated, again.loss_after) == (first.worst, first.violated, first.loss_after)


def test_exact_methods_hold_in_float32():
    exact = [name for name, kind in METHODS.items() if kind.guarantee == Guarantee.EXACT]
    cells = measure(exact, problems=2, inputs=10, epochs=0, timed=0, dtype=torch.float32).cells
    assert all(cell.holds for cell in cells if cell.supported)
    assert max(cell.worst for cell in cells if cell.supported) > 1e-9  # it was float32


def test_police_is_affine_and_iterative_methods_converge():
    history, deviation = affine_deviation()
    assert deviation < 1e-12
    assert history[-1] < history[0]
    for name in ("dc3", "fsnet"):
        sizes = [size for _, size in convergence(name)]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] < 1e-5


def test_unknown_names_are_refused():
    with pytest.raises(ConstraintError, match=r"'hardnets' is unknown; choose from 'soft', 'police'"):
        measure(["hardnets"])


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Cell("soft", "fixed", True, "measured", worst=2e-16, violated=0.0), "holds 2e-16"),
        (Cell("soft", "fixed", True, "measured", worst=1.25, violated=0.504), "50% violated, 1"),
        (Cell("soft", "fixed", True, "measured", worst=0.1, violated=0.001), "<1% violated, 0.1"),
        (Cell("soft", "fixed", True, "measured", worst=0.0, violated=0.0, errors=2), "holds 0e+00, 2 refused"),
        (Cell("soft", "fixed", False, "refused"), "refuses"),
        (Cell("hardnet", "fixed", False, "forced", worst=3.0, violated=1.0), "refuses; forced: 100% violated, 3"),
    ],
)
def test_what_a_cell_says(cell: Cell, text: str):
    assert satisfaction_text(cell) == text


def test_the_files(table: Table, tmp_path: Path):
    paths = write(table, tmp_path / "out")
    assert [path.name for path in paths] == ["methods.md", "methods.html", "methods.json"]
    read = json.loads(paths[2].read_text())
    assert len(read["cells"]) == len(METHODS) * len(FAMILIES)
    assert read["conditions"]["instances per cell"] == 20
    assert "NaN" not in to_json(table)
    markdown, page = to_markdown(table), to_html(table)
    for kind in METHODS.values():
        assert f"| {kind.title} |" in markdown
        assert kind.title in page
    assert "http" not in page  # self-contained
    assert "refuses; forced" in page
    assert 'title="HardNet-Aff cannot enforce this' in page


def test_nothing_heavy_is_imported_before_it_is_needed():
    heavy = ("scipy", "casadi", "matplotlib", "typer")
    code = f"import sys, caffnet.methods; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_cell_without_training_has_not_learnt():
    assert Cell("ipopt", "fixed", True, "measured").learns is None
    assert math.isnan(Cell("ipopt", "fixed", True, "measured").worst)
