"""Records: one JSON file per finished run, written once and never changed. No torch here.

config      every setting, resolved
versions    of Python and of the libraries
machine     where it ran
training    parameters, time per epoch, loss history (thinned)
evaluation  the metrics on the test set
curves      what the figures draw
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from caffnet_lab.experiments.config import ALL_METHODS, PROTOCOLS, TASKS
from caffnet_lab.experiments.files import write_once

FORMAT = "caffnet-record-1"


#: What a record must say for a report, and of what kind it is.
MADE: dict[str, Any] = {"versions": {}, "machine": {"processor": str, "threads": int}, "finished": str}
PARTS: dict[str, Any] = {
    "config": {"task": str, "method": str, "seed": int, "protocol": str, "epochs": int},
    "evaluation": {"inequality": {"max": float}},
    "curves": {},
    **MADE,
}
TRAINED: dict[str, Any] = {"training": {"history": {"epoch": list, "loss": list}}}  # what a solver is not
TASK_PARTS: dict[str, dict[str, Any]] = {
    "pwc": {
        "evaluation": {"mse": float},
        "curves": {"x": list, "y": list, "target": list, "lower": list, "upper": list},
    },
    "opt": {"evaluation": {"objective": float}},
    "cbf": {
        "evaluation": {"cost": float, "final_distance": float},
        "curves": {"states": list, "inputs": list, "nominal": list, "limits": list, "obstacles": list, "box": list},
    },
}
KNOWN = {"task": TASKS, "protocol": PROTOCOLS, "method": (*ALL_METHODS, "ipopt")}
TIMING_PARTS: dict[str, Any] = {"name": str, "task": str, "protocol": str, "methods": {}, **MADE}


class RecordError(ValueError):
    """A record cannot be read, or would be written twice."""


class RecordExists(RecordError):
    """A record would be written twice."""


def record_path(out: Path, name: str) -> Path:
    """Where the record of a run is."""
    return out / "records" / f"{name}.json"


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Add a record. One that exists is never replaced.

    Raises:
        RecordExists: there is one already.
    """
    text = json.dumps({"format": FORMAT, **record}, indent=1, ensure_ascii=False, allow_nan=False)
    try:
        write_once(path, f"{text}\n".encode())
    except FileExistsError:
        raise RecordExists(f"{path} exists: records are never replaced. Delete it to run again.") from None


def read_record(path: Path) -> dict[str, Any]:
    """One record.

    Raises:
        RecordError: it is not a record.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{path} cannot be read as a record ({error}): restore it, or delete it to run again."
        ) from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise RecordError(f"{path} is not a record of this program.")
    return record


def read_records(*folders: Path) -> list[dict[str, Any]]:
    """All records below folders, in the order of their names; a folder may be called ``records`` itself.

    Raises:
        RecordError: some are not records, or incomplete; all of these are named.
    """
    return _read_all(_files(folders, "records"), read_run)


def _read_all(paths: Iterable[Path], read: Callable[[Path], dict[str, Any]]) -> list[dict[str, Any]]:
    found, broken = [], []
    for path in paths:
        try:
            found.append(read(path))
        except RecordError as error:
            broken.append(str(error))
    if broken:
        raise RecordError("\n".join(broken))
    return found


def _files(folders: Iterable[Path], parent: str) -> list[Path]:
    """The JSON files in all folders called `parent`, each once where the given ones overlap."""
    below = (path for folder in folders for path in folder.rglob("*.json") if path.absolute().parent.name == parent)
    return sorted({path.resolve(): path for path in below}.values())


def read_run(path: Path, name: str | None = None) -> dict[str, Any]:
    """The record of a run, with all its parts; of the run called `name`, if one is given.

    Raises:
        RecordError: it is not a record, incomplete, or of another run.
    """
    record = read_record(path)
    _check_parts(path, record, PARTS)
    config = record["config"]
    for part, known in KNOWN.items():
        if config[part] not in known:
            raise RecordError(f"{path} is of no known {part}: it says {config[part]!r}.")
    _check_parts(path, record, TASK_PARTS[config["task"]])
    if config["method"] == "ipopt":
        record.setdefault("training", None)
    else:
        _check_parts(path, record, TRAINED)
        if len({len(record["training"]["history"][part]) for part in ("epoch", "loss")}) > 1:
            raise RecordError(f"{path} is damaged: its history has not one loss for each epoch.")
    if name is not None and record.get("name") != name:
        raise RecordError(f"{path} is the record of another run, {record.get('name')}: move it away.")
    return record


def _check_parts(path: Path, record: dict[str, Any], parts: dict[str, Any]) -> None:
    if absent := _absent(record, parts):
        raise RecordError(f"{path} is incomplete: it has no {', '.join(absent)}.")


def _absent(record: dict[str, Any], parts: dict[str, Any]) -> list[str]:
    """The parts that are not there, or of another kind.

    >>> _absent({"machine": {"threads": 1}, "curves": None}, {"machine": {"threads": int, "gpu": str}, "curves": {}})
    ['machine.gpu', 'curves']
    """
    absent = []
    for name, kind in parts.items():
        given = record.get(name)
        if isinstance(kind, dict) and isinstance(given, dict):
            absent += [f"{name}.{deeper}" for deeper in _absent(given, kind)]
        elif isinstance(kind, dict) or not isinstance(given, (int, float) if kind is float else kind):
            absent.append(name)
    return absent


def read_timings(*folders: Path) -> list[dict[str, Any]]:
    """The timing of every task and protocol with the most methods; of equal ones the latest."""

    def rank(record: dict[str, Any]) -> tuple[int, str]:
        return len(record["methods"]), record["finished"]

    found: dict[str, dict[str, Any]] = {}
    for record in _read_all(_files(folders, "timing"), _read_timing):
        if rank(record) >= rank(found.get(record["name"], record)):
            found[record["name"]] = record
    return [found[name] for name in sorted(found)]


def _read_timing(path: Path) -> dict[str, Any]:
    record = read_record(path)
    _check_parts(path, record, TIMING_PARTS)
    for part in ("task", "protocol"):
        if record[part] not in KNOWN[part]:
            raise RecordError(f"{path} is of no known {part}: it says {record[part]!r}.")
    for name, times in record["methods"].items():
        if name not in KNOWN["method"] or not isinstance(times, dict) or not {"train_ms", "test_ms"} <= set(times):
            raise RecordError(f"{path} is damaged: it has no times of {name}.")
    return record


def thin(epochs: int, best: int = 0) -> list[int]:
    """Epochs worth keeping of a loss history: all of a short one, else fewer and fewer; always `best` and the last.

    >>> thin(300) == list(range(300)), len(thin(50_000))
    (True, 957)
    """
    start = min(epochs, 4000)  # what the paper shows
    kept = {
        *range(min(epochs, 100)),
        *range(100, start, max(1, start // 500)),
        *range(start, epochs, max(1, epochs // 400)),
    }
    return sorted(kept | ({min(best, epochs - 1), epochs - 1} if epochs else set()))


def all_finite(value: Any) -> bool:
    """Whether all numbers in lists and dictionaries are finite.

    >>> all_finite({"a": [1.0, None], "b": True}), all_finite({"a": {"b": float("inf")}})
    (True, False)
    """
    if isinstance(value, dict | list):
        return all(map(all_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def rounded(value: Any, digits: int = 7) -> Any:
    """Numbers with fewer digits, for curves; NaN and infinities, which JSON lacks, become None."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, list):
        return [rounded(item, digits) for item in value]
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    return value
