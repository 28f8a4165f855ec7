"""The numbers that the README sells with are those of the reports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def row(task: str, method: str) -> dict[str, str]:
    """A line of the table of a task in docs/yardsticks.md, by column."""
    part = (ROOT / "docs" / "yardsticks.md").read_text().split(f"({task})\n", 1)[1]
    head, *lines = [
        [cell.strip(" *") for cell in line.split("|")[1:-1]] for line in part.splitlines() if line[:1] == "|"
    ]
    return next(dict(zip(head, cells, strict=True)) for cells in lines if cells[0] == method)


def cell(task: str, method: str) -> str:
    """What the README says: the gap, and the share of inputs that break a row."""
    found = row(task, method)
    gap, broken = (found[name].split(" ")[0] for name in ("Gap (%)", "Infeasible (%)"))
    return f"{float(gap):.2g} % ({'0' if float(broken) == 0 else f'{float(broken):.0f} %'})"


@pytest.mark.parametrize(
    ("title", "task"),
    [
        ("DC3's non-convex program", "dc3-nonconvex"),
        ("HardNet's non-convex program", "hardnet-opt"),
        ("SnareNet's non-convex program", "snarenet-noncvx"),
    ],
)
def test_the_table_is_that_of_the_yardsticks(title: str, task: str):
    line = next(line for line in README.splitlines() if line.startswith(f"| {title}"))
    told = [part.strip(" *") for part in line.split("|")[2:-1]]
    assert told == [cell(task, method) for method in ("NN", "HardNet", "CAffNet without w")]


def test_the_speeds_are_those_of_the_benchmark():
    report = (ROOT / "docs" / "benchmark.md").read_text()
    batches = r"^\| (?:pwc|opt|cbf-300): layer / backbone \| ([\d.]+) .*?\| pass \| ([\d.]+)"
    shares = [float(number) for pair in re.findall(batches, report, re.MULTILINE) for number in pair]
    least, most = re.findall(r"takes (\d+) to (\d+) % of the time", README)[0]
    assert len(shares) == 6 and round(100 * min(shares)) == int(least) and round(100 * max(shares)) == int(most)
    rivals = r"^\| \S+: fastest rival of equal accuracy / layer \| ([\d.]+) .*?\| pass \| ([\d.]+)"
    factors = [float(number) for pair in re.findall(rivals, report, re.MULTILINE) for number in pair]
    assert factors and min(factors) >= int(re.findall(r"(\d+) times or more faster", README)[0])


def test_the_readme_fits_on_a_screen():
    assert len(README.splitlines()) <= 70
