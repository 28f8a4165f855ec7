"""Folder of external data: ``../shared/data/yardsticks`` beside the clone, never copied into it."""

from __future__ import annotations

from pathlib import Path

from caffnet_lab.experiments.config import ConfigError

FOLDER = Path(__file__).resolve().parents[4].parent / "shared" / "data" / "yardsticks"


def find(name: str) -> Path:
    """The file or folder of this name.

    Raises:
        ConfigError: it is not there.
    """
    path = FOLDER / name
    if not path.exists():
        raise ConfigError(f"This task reads {name} from {FOLDER}, which is not there: put it there and run again.")
    return path
