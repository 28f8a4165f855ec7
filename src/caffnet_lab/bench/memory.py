"""Peak memory beyond the inputs, of one forward and backward, in a process of its own per task.

Two instruments. ``resident``: how far the high-water mark of the process rises above what was resident before the call
(Linux: ``VmHWM``, reset through ``/proc/self/clear_refs`` after free memory was given back to the system); it sees
every library but not below some hundred kilobytes. ``torch``: the peak of what torch's CPU allocator handed out and did
not get back, from its profiler; exact, but blind to numpy and C. The larger one counts.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from caffnet_lab.bench.ready import Limits

_SLOW = 1.0
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure(task: str, names: list[str], limits: Limits) -> dict[str, dict[str, Any]]:
    """Bytes per contestant: ``{"peak", "resident", "torch"}``, or ``{"failed": reason}``."""
    if not names:
        return {}
    command = [sys.executable, "-m", "caffnet_lab.bench.memory", task, *names, "--threads", str(limits.threads)]
    patience = max(120.0, 3 * limits.seconds * len(names))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        return {name: {"failed": "the time limit of the memory run"} for name in names}
    found: dict[str, dict[str, Any]] = {
        name: {"failed": f"the memory run ended with code {done.returncode}"} for name in names
    }
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            one = json.loads(line)
            found[one.pop("contestant")] = one
    return found


def peak_of(call: Callable[[], Any]) -> dict[str, Any]:
    """The peak of one call after one to warm up; calls that take seconds run without the profiler."""
    start = time.perf_counter()
    call()
    slow = time.perf_counter() - start > _SLOW
    resident, allocated = _resident(call), None if slow else _allocated(call)
    known = [value for value in (resident, allocated) if value is not None]
    return {"peak": max(known, default=0), "resident": resident, "torch": allocated}


def _resident(call: Callable[[], Any]) -> int | None:
    if not _CLEAR.exists():
        return None
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return None  # not glibc: memory that was freed may be handed out again, the figure would be too small
    _CLEAR.write_text("5")
    before = _field("VmRSS")
    call()
    return max(_field("VmHWM") - before, 0)


def _field(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"{_STATUS} has no {name}.")


def _allocated(call: Callable[[], Any]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            call()
    results: Any = profile.profiler
    events = [e for e in results.kineto_results.events() if e.name() == "[memory]"]
    total = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return peak


def main() -> None:
    """In the process of its own: one line of JSON per contestant."""
    from caffnet_lab.bench.contestants import CONTESTANTS
    from caffnet_lab.bench.tasks import TASKS

    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    task = TASKS[given.task]()
    for name in given.names:
        try:
            ready = CONTESTANTS[name].build(task, Limits(threads=given.threads))
            found = peak_of(ready.train or ready.forward)
        except Exception as error:  # the other contestants are still measured
            found = {"failed": f"{type(error).__name__}: {str(error)[:200]}"}
        sys.stdout.write(json.dumps({"contestant": name, **found}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
