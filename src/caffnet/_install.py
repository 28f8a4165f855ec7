"""How the package was installed: from an index, or in a clone; and the command that adds an extra to it."""

from __future__ import annotations

from pathlib import Path


def in_clone() -> bool:
    """Return True if the package is imported from the folder ``src`` of a clone."""
    return (Path(__file__).parents[2] / "pyproject.toml").exists()


def install_command(extra: str) -> str:
    """The command that installs an extra. In a clone with its constraints, as an unpinned torch pulls gigabytes.

    >>> install_command("all") in ('pip install "caffnet[all]"', 'pip install -c constraints.txt -e ".[all]"')
    True
    """
    return f'pip install -c constraints.txt -e ".[{extra}]"' if in_clone() else f'pip install "caffnet[{extra}]"'
