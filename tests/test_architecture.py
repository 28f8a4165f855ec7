"""Who may know whom, and habits that a reader can rely on."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import caffnet
import caffnet_lab
from caffnet._kernel import build

ROOT, LAB = Path(caffnet.__file__).parent, Path(caffnet_lab.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
C_FILES = sorted([*(ROOT / "_kernel").glob("*.c"), *(ROOT / "_kernel").glob("*.h")])

# The order in which modules may import: only from earlier lines. Modules of one line do not know each other.
ORDER = [
    {"_install", "errors", "tolerance", "_solve.tracing", "_kernel.build"},
    {"_solve.sparse"},
    {"constraints.rows", "constraints.shapes"},
    {"constraints.reading", "constraints.softness"},
    {"constraints.affine_set"},
    {"constraints.collation"},
    {"constraints"},
    {"_solve.problem"},
    {"_kernel.memory"},
    {"_kernel.native", "_solve.prepare"},
    {"_kernel.gpu", "_solve.infeasible", "_solve.face"},
    {"_solve.metric", "_solve.slack"},
    {"_solve.graph"},
    {"_solve.run"},
    {"_solve.gradient", "_solve.stationary"},
    {"_solve.proximal", "optimality"},
    {"projection"},
    {"quadratic", "l1_ball"},
    {"layer"},
    {"model"},
    {"training"},
]
CORE = {*set.union(*ORDER), "backbones", "__init__", "_solve", "_kernel"}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def rank_of(name: str) -> int:
    return next(i for i, line in enumerate(ORDER) if name in line)


def id_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


CORE_FILES = [path for path in FILES if name_of(path) in CORE]


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
            inside = node.module.removeprefix("caffnet").removeprefix(".")
            names = {f"{inside}.{alias.name}".removeprefix(".") for alias in node.names}
            modules = {name for name in names if (ROOT / f"{name.replace('.', '/')}.py").exists()}
            found |= modules or {inside}
        elif isinstance(node, ast.Import):
            found.update(
                alias.name.removeprefix("caffnet.") for alias in node.names if alias.name.startswith("caffnet.")
            )
    return found


def test_every_module_of_the_core_has_its_place():
    """What is not in the order belongs to the methods, to control or to deploy, or knows nothing of constraints."""
    others = {name_of(path) for path in FILES} - CORE
    assert {name.split(".")[0] for name in others} == {"methods", "control", "deploy"}
    assert {name_of(path) for path in CORE_FILES} == CORE


@pytest.mark.parametrize("path", [p for p in CORE_FILES if name_of(p) in set.union(*ORDER)], ids=id_of)
def test_imports_run_one_way(path: Path):
    here = rank_of(name_of(path))
    for other in imports(path):
        assert other in set.union(*ORDER), f"{path.name} imports {other}"
        assert rank_of(other) < here, f"{path.name} imports {other}, which does not come before it"


@pytest.mark.parametrize("path", [p for p in FILES if name_of(p).split(".")[0] in ("methods", "control")], ids=id_of)
def test_what_stands_on_the_core_does_not_reach_into_the_solver(path: Path):
    """They use public names and, of the inside, the words of a problem and what asks torch about tracing."""
    inside = {name for name in imports(path) if name.startswith(("_solve", "_kernel"))}
    assert inside <= {"_solve.tracing", "_solve.problem"}


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


@pytest.mark.parametrize("path", FILES, ids=id_of)
def test_the_library_does_not_know_the_laboratory(path: Path):
    assert not {name for name in everything_named(path) if name.startswith("caffnet_lab")}


#: What the laboratory may take from the library: its public names, `caffnet.methods` and `caffnet.control`; and these.
INSIDE = {
    "bench/claims.py": {"caffnet._solve.problem.DEFAULT_BUDGET"},
    "bench/contestants.py": {"caffnet.errors.BudgetError"},
    "bench/tasks.py": {f"caffnet.constraints.{side}" for side in ("BOTH", "EQUAL", "LOWER", "UPPER")},
    "experiments/opt.py": {"caffnet.constraints.EQUAL", "caffnet.constraints.UPPER"},
    "experiments/problem.py": {f"caffnet.constraints.{side}" for side in ("BOTH", "EQUAL", "LOWER", "UPPER")},
    "experiments/pwc.py": {"caffnet.constraints.BOTH"},
    "experiments/yardsticks/dispatch.py": {"caffnet.constraints.BOTH", "caffnet.constraints.EQUAL"},
    "experiments/yardsticks/forecast.py": {"caffnet.constraints.LOWER"},
}


@pytest.mark.parametrize("path", sorted(LAB.rglob("*.py")), ids=lambda p: str(p.relative_to(LAB)))
def test_the_laboratory_takes_public_names(path: Path):
    public = {f"caffnet.{name}" for name in (*caffnet.__all__, "__version__", "_install.install_command")}
    taken = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "caffnet":
            taken |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            taken |= {alias.name for alias in node.names if alias.name.split(".")[0] == "caffnet"}
    others = {
        name
        for name in taken - public
        if not name.startswith(("caffnet.methods.", "caffnet.control.", "caffnet.deploy."))
    }
    assert others == INSIDE.get(path.relative_to(LAB).as_posix(), set())


def test_the_measure_does_not_know_the_searches():
    for path in (ROOT / "constraints").glob("*.py"):
        known = {name for name in imports(path) if name.split(".")[0] != "constraints"}
        assert known <= {"errors", "tolerance", "_solve.sparse", "_solve.tracing"}


def test_the_backbones_know_nothing_of_constraints():
    assert imports(ROOT / "backbones.py") == set()


def test_the_build_needs_nothing_but_the_standard_library():
    """A build runs it by its path, before the package or torch is there."""
    tree = ast.parse((ROOT / "_kernel" / "build.py").read_text())
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert all(name.split(".")[0] in sys.stdlib_module_names for name in names), names


# ------------------------------------------------------------------------------------------------ torch


#: Names that ask torch what is going on, or that are not for users.
_STATE = {"is_compiling", "is_exporting", "is_dynamo_compiling", "is_tracing", "is_scripting", "is_autocast_enabled"}


def words_of(path: Path) -> set[str]:
    """Dotted names of torch that a file uses, in its code and not in its texts."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            found.add(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("torch", "functorch"):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] in ("torch", "functorch")}


@pytest.mark.parametrize("path", [p for p in FILES if name_of(p) != "_solve.tracing"], ids=id_of)
def test_one_file_asks_torch_what_is_going_on(path: Path):
    for name in words_of(path):
        if name in ("torch._inductor", "torch._inductor.aoti_compile_and_package"):  # public but for its place
            continue
        parts = name.split(".")
        assert not any(part.startswith("_") and not part.startswith("__") for part in parts), f"{name} is private"
        assert "functorch" not in parts and "forward_ad" not in parts, name
        assert parts[-1] not in _STATE or parts[0] != "torch", f"{name}: ask caffnet._solve.tracing"


def test_every_derivative_has_one_place():
    """A projection and its tangent; a minimum with its multipliers; pieces of a rollout."""
    found = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Function") for base in node.bases):
                found[node.name] = name_of(path)
    of_points = {"_Solved": "_solve.gradient", "_Inward": "_solve.gradient"}
    assert found == {**of_points, "_Attached": "_solve.stationary", "_Fused": "control.fused"}


@pytest.mark.parametrize(
    "name",
    [
        "_kernel.native",
        "_kernel.gpu",
        "_solve.graph",
        "_solve.face",
        "_solve.metric",
        "_solve.prepare",
        "_solve.infeasible",
    ],
)
def test_what_solves_does_not_know_that_it_is_differentiated(name: str):
    text = (ROOT / f"{name.replace('.', '/')}.py").read_text()
    assert "autograd" not in text and "requires_grad" not in text


def test_importing_the_library_needs_the_core_dependencies_only():
    code = (
        "import sys, caffnet; "
        "bad = {'matplotlib', 'typer', 'rich', 'scipy', 'casadi', 'gymnasium', 'onnx', 'onnxruntime', 'safetensors', "
        "'numba', 'daqp'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_first_projection_loads_nothing_of_torch_that_was_not_there():
    """torch._dynamo alone takes a second."""
    code = (
        "import sys, torch; before = set(sys.modules); import caffnet; "
        "caffnet.project(torch.zeros(1, 2), caffnet.AffineSet.box(1.0, 2.0, dim=2)); "
        "bad = {name for name in set(sys.modules) - before if name.startswith('torch')}; "
        "sys.exit(str(bad) if bad else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


# ------------------------------------------------------------------------------------------------ habits


@pytest.mark.parametrize("path", CORE_FILES, ids=id_of)
def test_no_prints_no_global_switches(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print"
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("set_default_dtype", "set_default_device", "set_num_threads", "manual_seed")


@pytest.mark.parametrize("path", [p for p in CORE_FILES if p.name != "tolerance.py"], ids=id_of)
def test_every_number_that_decides_lives_in_tolerance(path: Path):
    """No literal like 1e-9 outside of tolerance.py."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            assert node.value == 0 or abs(node.value) > 1e-3, f"{path.name}: {node.value}"


def test_the_public_names():
    expected = """
    AffineSet BudgetError CAffNet CAffine Conflict ConstraintError DtypeError FeedForward InfeasibleError KernelError
    Prepared Projection Residuals Solution Status Transformer UnboundedError prepare project project_l1 residuals
    solve_qp
    """
    assert sorted(caffnet.__all__) == sorted(expected.split())
    assert all(getattr(caffnet, name).__doc__ for name in caffnet.__all__)


# ------------------------------------------------------------------------------------------------ the files in C


def code_of(path: Path) -> str:
    """A C file without comments and texts."""
    text = re.sub(r"/\*.*?\*/", " ", path.read_text(), flags=re.DOTALL)
    return re.sub(r'"[^"\n]*"', '""', text)


def test_every_c_file_is_compiled():
    """kernel.c has all of them, each once, but for those that call it."""
    included = re.findall(r'#include "(\w+\.c)"', (ROOT / "_kernel" / "kernel.c").read_text())
    assert sorted([*included, "kernel.c", *build.SHELLS]) == sorted(
        path.name for path in C_FILES if path.suffix == ".c"
    )


def test_the_header_lists_every_file():
    text = (ROOT / "_kernel" / "kernel.h").read_text()
    listed = re.findall(r"^     (\w+)  +\w", text, flags=re.MULTILINE)
    included = re.findall(r'#include "(\w+)\.c"', (ROOT / "_kernel" / "kernel.c").read_text())
    assert listed == included


@pytest.mark.parametrize("path", [p for p in C_FILES if p.name not in build.SHELLS], ids=lambda p: p.name)
def test_the_kernel_calls_the_functions_that_its_header_names(path: Path):
    """No allocation, no output, and of the mathematical library only what has the same bits everywhere (and pow)."""
    code = "\n".join(map(code_of, C_FILES))
    own = {
        name
        for line in re.findall(r"^(?:FN|INLINE|RARE|EXPORT) .*$", code, re.M)
        for name in re.findall(r"(\w+)\)?\(", line)[:2]
    }
    own |= set(re.findall(r"^#define (\w+)\(", code, re.M))
    words = {"if", "else", "for", "while", "return", "sizeof", "defined"}
    words |= {"__attribute__", "__declspec", "visibility", "vector_size", "_Pragma", "PARTS"}
    allowed = {"fabs", "sqrt", "fma", "frexp", "ldexp", "pow", "memset", "memcpy"}
    called = set(re.findall(r"\b([a-zA-Z_]\w*)\s*\(", code_of(path)))
    assert called - own - words - allowed == set()


@pytest.mark.parametrize("path", C_FILES, ids=lambda p: p.name)
def test_the_kernel_has_no_state_of_its_own(path: Path):
    """Nothing at the level of a file but types, functions and constants; nothing static within a function."""
    assert not re.search(r"^[ \t]+static\b", code_of(path), flags=re.MULTILINE)
    variable = re.compile(r"(?!typedef)(?:static |EXPORT )?(?:\w+ )+\**\w+(?:\[\w*\])?(?: = .*)?;")
    for line in code_of(path).splitlines():
        known = path.name == "dispatch.c" and line == "static _Atomic int processor;"  # asked once, always the same
        assert known or "const" in line or not variable.match(line), line


@pytest.mark.parametrize("path", C_FILES, ids=lambda p: p.name)
def test_tolerances_of_the_kernel_come_from_python(path: Path):
    """No small decimal number in C: they are handed over. Powers of two (0x1p-98) are given with their reason."""
    for number in re.findall(r"(?<![\w.])(\d+\.?\d*(?:[eE][-+]?\d+)?)(?![\w.])", code_of(path)):
        assert float(number) == 0 or float(number) > 1e-3, f"{path.name}: {number}"
