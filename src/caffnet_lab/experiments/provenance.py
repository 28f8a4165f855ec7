"""Origin of a record: versions, source and machine."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

LIBRARIES = ("caffnet", "torch", "numpy", "casadi", "daqp", "scipy", "safetensors")


@functools.cache
def versions() -> dict[str, str]:
    """Versions of everything that affects the numbers, as of the first call: the source may change during a run."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found | _revision()


def _revision() -> dict[str, str]:
    """The commit of the source, if it runs from a checkout: between two releases the version says too little."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return {}
    ask = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    quietly = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # not in the way of a commit that is being made
    try:
        revision = subprocess.run(
            ask, env=quietly, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"revision": revision}


def machine() -> dict[str, Any]:
    """The processor, and how much of it was used."""
    return {
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
