"""The conditions of a run: machine, versions, load; and threads that do not spin."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

_PACKAGES = ("caffnet", "torch", "numpy", "daqp", "cvxpy", "cvxpylayers", "diffcp", "clarabel", "moreau", "qpth")
_PACKAGES += ("proxsuite", "quadprog", "piqp", "osqp", "jax", "qpax", "pinet-hcnn")
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}


def wait_passively(arguments: list[str]) -> None:
    """Start this process again with waiting threads asleep, unless that was set from the beginning.

    OpenMP reads the variable when torch loads it, so setting it now is too late. Threads that spin while they wait
    make every figure depend on what else the machine is doing.
    """
    if os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE":
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-m", "caffnet_lab", *arguments], {**os.environ, **PASSIVE})


def default_threads() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def conditions(threads: int) -> dict[str, Any]:
    """Conditions of the figures, at the start of a run with this many threads."""
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": default_threads(),
        "load": load(),
        "threads": threads,
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES if _version(name)},
    }


def load() -> list[float] | None:
    """Processes that wanted to run, on average over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
