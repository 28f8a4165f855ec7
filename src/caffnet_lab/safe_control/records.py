"""Records of simulations and of reinforcement learning: one JSON file each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from caffnet_lab.experiments.files import write_atomically


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record; NaN and infinity are refused."""
    write_atomically(path, (json.dumps(record, indent=1, allow_nan=False) + "\n").encode())


def read(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """The simulations, the runs of agents and the times of steps below a folder, in the order of their names."""
    every = [json.loads(path.read_text()) for path in sorted(folder.rglob("*.json"))]
    records = [record for record in every if isinstance(record, dict)]
    runs = [r for r in records if "agent" in r and "curve" in r]
    return [r for r in records if "scenario" in r], runs, [r for r in records if "microseconds" in r]
