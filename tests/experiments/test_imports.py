"""Optional packages stay optional, and the command line names mistakes."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import caffnet.control
import caffnet_lab
from caffnet._install import install_command
from caffnet_lab.cli import app

LAB = Path(caffnet_lab.__file__).parent
CONTROL = Path(caffnet.control.__file__).parent


@pytest.mark.parametrize(
    "folder", [CONTROL, LAB / "bench", LAB / "experiments", LAB / "methods_table"], ids=lambda p: p.name
)
def test_nothing_prints_or_sets_global_types(folder):
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name != "print", path
                assert "set_default" not in name, path


def test_the_report_needs_no_torch():
    code = "import sys, caffnet_lab.experiments.report; print([m for m in ('torch', 'caffnet') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_library_loads_no_optional_package():
    code = (
        "import sys, caffnet, caffnet.control, caffnet_lab.experiments.config; "
        "print([m for m in ('matplotlib', 'typer', 'rich', 'gymnasium', 'casadi') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_benchmark_needs_no_package_of_the_experiments():
    modules = ("caffnet_lab.bench." + name for name in ("claims", "everyday", "machine", "measure", "report", "tasks"))
    code = (
        f"import sys, caffnet_lab.experiments.progress, {', '.join(modules)}; "
        "print([m for m in ('safetensors', 'casadi', 'scipy', 'highspy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_command_line_runs_and_reports(tmp_path, monkeypatch):
    monkeypatch.setattr("caffnet_lab.experiments.report.figures.DPI", 30)
    out = str(tmp_path / "results")
    options = ["--method", "nn", "--seed", "1", "--epochs", "2", "--device", "cpu", "--out", out]
    ran = CliRunner().invoke(app, ["run", "pwc", *options])
    assert ran.exit_code == 0, ran.output
    assert "pwc paper nn seed 1: MSE" in ran.output
    told = CliRunner().invoke(app, ["report", out, "--out", str(tmp_path / "report")])
    assert told.exit_code == 0, told.output
    assert "report.html" in told.output


def test_the_command_without_its_packages_says_what_to_install(monkeypatch):
    from caffnet_lab.__main__ import main

    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "caffnet_lab.cli")
    for clone, command in ((True, r'-c constraints.txt -e "\.\[all\]"'), (False, r'"caffnet\[all\]"')):
        monkeypatch.setattr("caffnet._install.in_clone", lambda clone=clone: clone)
        with pytest.raises(SystemExit, match=f"needs typer: pip install {command}\\.$"):
            main()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            ModuleNotFoundError("No module named 'daqp'", name="daqp"),
            f"This command needs daqp: {install_command('all')}.",
        ),
        (ImportError("IPOPT comes with casadi."), "IPOPT comes with casadi."),
    ],
)
def test_a_command_without_its_packages_says_what_to_install(error, told, monkeypatch, tmp_path):
    from caffnet_lab.__main__ import main

    def draw_all(*_):
        raise error

    monkeypatch.setattr("caffnet_lab.methods_table.figures.draw_all", draw_all)
    monkeypatch.setattr(sys, "argv", ["caffnet", "figures", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == told


def test_the_command_tells_its_version_and_what_it_is():
    assert CliRunner().invoke(app, ["--version"]).output.strip() == caffnet.__version__
    assert "Hard affine constraints" in CliRunner().invoke(app, ["--help"]).output


def test_command_line_names_mistakes(tmp_path):
    (tmp_path / "file").touch()
    for arguments, told in (
        (["demo", "--epochs", "-5"], "--epochs"),
        (["demo", "--out", str(tmp_path / "file" / "a.png")], "is a file: choose another"),
        (["demo", "--out", str(tmp_path)], "must be a file that ends in .png, .pdf or .svg"),
        (["figures", "--out", str(tmp_path / "file")], "must be a folder, but cannot be one"),
        (["figures", "--kind", "foo"], "kind must be png, pdf or svg, got foo"),
        (["time", "pwc", "--method", "foo"], "method must be one of nn, hardnet"),
    ):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2, arguments
        assert told in done.stderr
    missing = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert missing.exit_code == 2
    assert "No records below" in missing.stderr
    nothing = CliRunner().invoke(app, ["run"])
    assert nothing.exit_code == 2
    assert "Name a task: one of" in nothing.stderr
