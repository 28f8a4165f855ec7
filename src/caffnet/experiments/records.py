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
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from caffnet.experiments.config import ALL_METHODS, PROTOCOLS, TASKS
from caffnet.experiments.files import write_once

FORMAT = "caffnet-record-1"


#: What a record must say for a report, and what its parts must say; a solver is not trained.
PARTS: dict[str, Any] = {
    "config": dict.fromkeys(("task", "method", "seed", "protocol", "epochs")),
    "versions": {},
    "machine": dict.fromkeys(("processor", "threads")),
    "training": None,
    "evaluation": {"inequality": {"max": None}},
    "curves": {},
    "finished": None,
}
TRAINED = {"training": {"history": dict.fromkeys(("epoch", "loss"))}}
KNOWN = {"task": TASKS, "protocol": PROTOCOLS, "method": (*ALL_METHODS, "ipopt")}
TIMING_PARTS = {"name": None, "task": None, "protocol": None, "methods": {}, "finished": None}


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
    found, broken = [], []
    for path in _files(folders, "records"):
        try:
            found.append(_read_known(path))
        except RecordError as error:
            broken.append(str(error))
    if broken:
        raise RecordError("\n".join(broken))
    return found


def _files(folders: Iterable[Path], parent: str) -> list[Path]:
    """The JSON files in all folders called `parent`, each once where the given ones overlap."""
    below = (path for folder in folders for path in folder.rglob("*.json") if path.parent.name == parent)
    return sorted({path.resolve(): path for path in below}.values())


def _read_known(path: Path) -> dict[str, Any]:
    record = read_run(path)
    for part, known in KNOWN.items():
        if record["config"][part] not in known:
            raise RecordError(f"{path} is of no known {part}: it says {record['config'][part]!r}.")
    return record


def read_run(path: Path, name: str | None = None) -> dict[str, Any]:
    """The record of a run, with all its parts; of the run called `name`, if one is given.

    Raises:
        RecordError: it is not a record, incomplete, or of another run.
    """
    record = read_record(path)
    _check_parts(path, record, PARTS)
    _check_parts(path, record, {} if record["config"]["method"] == "ipopt" else TRAINED)
    if name is not None and record.get("name") != name:
        raise RecordError(f"{path} is the record of another run, {record.get('name')}: move it away.")
    return record


def _check_parts(path: Path, record: dict[str, Any], parts: dict[str, Any]) -> None:
    if absent := _absent(record, parts):
        raise RecordError(f"{path} is incomplete: it has no {', '.join(absent)}.")


def _absent(record: dict[str, Any], parts: dict[str, Any]) -> list[str]:
    """The parts that are not there, or not divided as they should be.

    >>> _absent({"machine": {"threads": 1}, "curves": None}, {"machine": {"threads": None, "gpu": None}, "curves": {}})
    ['machine.gpu', 'curves']
    """
    absent = []
    for name, inner in parts.items():
        if name not in record or (inner is not None and not isinstance(record[name], dict)):
            absent.append(name)
        elif inner:
            absent += [f"{name}.{deeper}" for deeper in _absent(record[name], inner)]
    return absent


def read_timings(*folders: Path) -> list[dict[str, Any]]:
    """The timing of every task and protocol with the most methods; of equal ones the latest."""

    def rank(record: dict[str, Any]) -> tuple[int, str]:
        return len(record["methods"]), record["finished"]

    found: dict[str, dict[str, Any]] = {}
    for path in _files(folders, "timing"):
        record = read_record(path)
        _check_parts(path, record, TIMING_PARTS)
        if rank(record) >= rank(found.get(record["name"], record)):
            found[record["name"]] = record
    return [found[name] for name in sorted(found)]


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
