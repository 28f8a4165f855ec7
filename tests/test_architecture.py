"""Who may know whom, and habits that a reader can rely on."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import caffnet
import caffnet_lab

ROOT, LAB = Path(caffnet.__file__).parent, Path(caffnet_lab.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# The order in which modules may import: only from the left.
ORDER = [
    *(
        "errors",
        "tolerance",
        "constraints",
        "rows",
        "search",
        "certificate",
        "problem",
        "kernel",
        "compromise_kernel",
        "compiled",
        "failures",
    ),
    *("compromise", "solve", "preparation", "dispatch", "projection", "layer", "model", "training"),
]
CORE = {*ORDER, "backbones", "__init__"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Modules of this package that a file imports when it runs (not for type checking only)."""
    tree = ast.parse(path.read_text())
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            skipped.update(ast.walk(node))
    found = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "caffnet":
            parts = node.module.split(".")
            found.update([parts[1]] if len(parts) > 1 else [alias.name for alias in node.names])
        elif isinstance(node, ast.Import):
            found.update(alias.name.split(".")[1] for alias in node.names if alias.name.startswith("caffnet."))
    return found


@pytest.mark.parametrize("path", [p for p in FILES if name_of(p) in ORDER], ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_one_way(path: Path):
    here = ORDER.index(name_of(path))
    for other in imports(path):
        assert other in ORDER, f"{path.name} imports {other}"
        assert ORDER.index(other) <= here, f"{path.name} imports {other}, which comes after it"


def everything_named(path: Path) -> set[str]:
    """Every module that a file imports, also for type checking; and every text, for imports by name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_library_does_not_know_the_laboratory(path: Path):
    assert not {name for name in everything_named(path) if name.startswith("caffnet_lab")}


#: What the laboratory may take from the library: its public names, `caffnet.methods` and `caffnet.control`; and these.
INSIDE = {
    "bench/claims.py": {"caffnet.search.enumeration.DEFAULT_BUDGET"},
    "bench/contestants.py": {"caffnet.errors.BudgetError"},
    "bench/tasks.py": {f"caffnet.constraints.{side}" for side in ("BOTH", "EQUAL", "LOWER", "UPPER")},
    "experiments/opt.py": {"caffnet.constraints.EQUAL", "caffnet.constraints.UPPER", "caffnet.preparation.Prepared"},
    "experiments/problem.py": {
        *(f"caffnet.constraints.{side}" for side in ("BOTH", "EQUAL", "LOWER", "UPPER")),
        "caffnet.preparation.Prepared",
    },
    "experiments/pwc.py": {"caffnet.constraints.BOTH"},
}


@pytest.mark.parametrize("path", sorted(LAB.rglob("*.py")), ids=lambda p: str(p.relative_to(LAB)))
def test_the_laboratory_takes_public_names(path: Path):
    public = {f"caffnet.{name}" for name in (*caffnet.__all__, "__version__")}
    taken = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "caffnet":
            taken |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            taken |= {alias.name for alias in node.names if alias.name.split(".")[0] == "caffnet"}
    others = {name for name in taken - public if not name.startswith(("caffnet.methods.", "caffnet.control."))}
    assert others == INSIDE.get(path.relative_to(LAB).as_posix(), set())


def test_the_measure_does_not_know_the_searches():
    assert imports(ROOT / "constraints.py") <= {"errors", "tolerance"}


def test_the_backbones_know_nothing_of_constraints():
    assert imports(ROOT / "backbones.py") == set()


@pytest.mark.parametrize("path", sorted((ROOT / "search").glob("*.py")), ids=lambda p: p.name)
def test_the_searches_do_not_know_that_they_are_differentiated(path: Path):
    text = path.read_text()
    assert "autograd" not in text and "requires_grad" not in text


def test_there_is_one_autograd_function():
    assert [p.name for p in FILES if "autograd.Function)" in p.read_text()] == ["projection.py"]


def test_importing_the_library_needs_the_core_dependencies_only():
    code = (
        "import sys, caffnet; "
        "bad = {'matplotlib', 'typer', 'rich', 'scipy', 'casadi', 'gymnasium', 'onnx', 'onnxruntime', 'safetensors'} "
        "& set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("path", [p for p in FILES if name_of(p) in CORE], ids=lambda p: str(p.relative_to(ROOT)))
def test_no_prints_no_global_switches(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print"
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("set_default_dtype", "set_default_device", "set_num_threads", "manual_seed")


def test_every_number_that_decides_lives_in_tolerance():
    """No literal like 1e-9 outside of tolerance.py."""
    for path in FILES:
        if name_of(path) not in CORE or path.name == "tolerance.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, float):
                assert node.value == 0 or abs(node.value) > 1e-3, f"{path.name}: {node.value}"


def test_the_public_names():
    expected = """
    AffineSet project Projection Status prepare CAffine CAffNet FeedForward Transformer ConstraintError InfeasibleError
    """
    assert sorted(caffnet.__all__) == sorted(expected.split())
    assert all(getattr(caffnet, name).__doc__ for name in caffnet.__all__)
