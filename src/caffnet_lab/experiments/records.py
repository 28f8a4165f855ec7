"""Records: one JSON file per finished run, written once and never changed. No torch here.

config      every setting, resolved
versions    of Python and of the libraries
machine     where it ran
training    parameters, time per epoch, loss history (thinned)
evaluation  the metrics on the test set
curves      what the figures draw
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from caffnet_lab.experiments.config import (
    ALL_METHODS,
    PROTOCOLS,
    TASKS,
    TIMED_ONLY,
    UNTRAINED,
    ConfigError,
    RunConfig,
    resolve,
)
from caffnet_lab.experiments.files import read_limited, write_once
from caffnet_lab.experiments.shape import (
    COUNT,
    FLAG,
    FLOAT_OR_NULL,
    HUGE,
    NUMBER,
    NUMBER_OR_NULL,
    POSITIVE,
    POSITIVE_OR_NULL,
    SCALAR,
    TEXT,
    TEXT_OR_NULL,
    WHOLE,
    WORD,
    Many,
    every_value,
    faults,
    one_of,
    shown,
)
from caffnet_lab.experiments.yardsticks.tasks import DRIVES, FORECASTS, OPTIMISED
from caffnet_lab.markup import one_line

FORMAT = "caffnet-record-1"


#: The most bytes that a record may have; those of the paper's runs have less than a hundredth.
LARGEST = 16 * 2**20
ADVICE = "Restore the file, or move it away."

#: The parts of a record that a report reads, with their kinds.
MADE: dict[str, Any] = {
    "versions": {},
    "machine": {"processor": TEXT, "threads": COUNT, "gpu?": TEXT_OR_NULL},
    "finished": TEXT,
}
VIOLATIONS: dict[str, Any] = {
    "max": NUMBER,
    **dict.fromkeys(("mean_of_max?", "mean?", "percent?", "exact_zeros?", "entries?"), NUMBER),
}
GAPS = dict.fromkeys(("mean", "max", "min", "geometric", "percent", "max_percent"), NUMBER)
OPTIMUM: dict[str, Any] = {
    **{"objective": NUMBER, "optimum": NUMBER, "gap": GAPS, "infeasible": NUMBER},
    **{"inequality": VIOLATIONS, "equality": VIOLATIONS},
}
FORECAST: dict[str, Any] = {
    **dict.fromkeys(("score", "incoherence", "negative", "infeasible"), NUMBER),
    "inequality": VIOLATIONS,
}
DRIVEN: dict[str, Any] = {**dict.fromkeys(("cost", "collided", "clearance"), NUMBER), "inequality": VIOLATIONS}
FRESH = dict.fromkeys(("starts", "safe", "arrived", "cost", "violation", "clearance"), NUMBER)
#: The metrics of a network on the test set.
METRICS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(OPTIMISED, OPTIMUM),
    **dict.fromkeys(FORECASTS, FORECAST),
    **dict.fromkeys(DRIVES, DRIVEN),
    "pwc": {"mse": NUMBER, "inequality": VIOLATIONS},
    "opt": {"objective": NUMBER, "inequality": VIOLATIONS, "equality": VIOLATIONS},
    "cbf": {
        **{"cost": NUMBER, "final_distance": NUMBER, "arrived": FLAG, "collided": FLAG},
        **{"arrival_time?": NUMBER_OR_NULL, "inequality": VIOLATIONS, "fresh?": FRESH},
    },
}
STRICT: dict[str, Any] = {"exact_inequality?": VIOLATIONS}
POINT = Many(NUMBER, 2)
INPUTS = Many(Many(NUMBER_OR_NULL, 2))
CURVES: dict[str, dict[str, Any]] = {
    **{task: {"gap_percent": Many(NUMBER), "flows?": Many(NUMBER)} for task in OPTIMISED},
    **{task: dict.fromkeys(("target", "forecast"), Many(NUMBER)) for task in FORECASTS},
    **{task: {"paths": Many(Many(POINT))} for task in DRIVES},
    "pwc": {"y": Many(NUMBER_OR_NULL), **dict.fromkeys(("x", "target", "lower", "upper"), Many(NUMBER))},
    "opt": {},
    "cbf": {
        **{"states": Many(Many(NUMBER, least=2)), "inputs": INPUTS, "nominal": INPUTS, "limits": Many(POINT, 2)},
        **{"obstacles": Many(Many(POINT), least=0), "box": Many(POINT, 2), "dt": POSITIVE},
        **{"goal_radius": POSITIVE, "allowed_speed?": Many(NUMBER_OR_NULL)},
    },
}
#: Lists of a record that have one value for each of the same things.
SAME_LENGTH: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(OPTIMISED, ()),
    **dict.fromkeys(FORECASTS, ("target", "forecast")),
    **dict.fromkeys(DRIVES, ()),
    "pwc": ("x", "y", "target", "lower", "upper"),
    "opt": (),
    "cbf": ("inputs", "nominal", "allowed_speed"),
}
TRAINED: dict[str, Any] = {  # missing for solvers
    "history": {"epoch": Many(WHOLE, least=0), "loss": Many(FLOAT_OR_NULL, least=0)},
    "ms_per_epoch?": NUMBER_OR_NULL,
    "revisions?": Many(TEXT, least=0),
}
KNOWN = {"task": TASKS, "protocol": PROTOCOLS, "method": ALL_METHODS}
PARTS: dict[str, Any] = {
    "name?": WORD,
    "config": {**{name: one_of(*known) for name, known in KNOWN.items()}, "seed": WHOLE, "epochs": WHOLE},
    "evaluation": {},
    "curves": {},
    **MADE,
}
TIMING_PARTS: dict[str, Any] = {
    **{"name": WORD, "task": one_of(*TASKS), "protocol": one_of(*PROTOCOLS), "methods": {}},
    **{"device?": one_of("cpu", "cuda"), "rounds?": COUNT},
    **MADE,
}
ROUNDS = Many(POSITIVE)
TIMES: dict[str, Any] = {
    **{"train_ms": POSITIVE_OR_NULL, "test_ms": POSITIVE},
    **{"train_ms_rounds?": ROUNDS, "test_ms_rounds?": ROUNDS},
}


class RecordError(ValueError):
    """A record cannot be read, or would be written twice."""


class RecordExists(RecordError):
    """A record would be written twice."""


def record_path(out: Path, name: str) -> Path:
    """Path of the record of a run."""
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
        if not path.is_file():
            raise RecordError(f"{path} is not a file, so it cannot be a record. {ADVICE}")
        text = read_limited(path, LARGEST).decode("utf-8")
        record = json.loads(text, parse_constant=_refuse_constant)
    except RecordError:
        raise
    except RecursionError:
        raise RecordError(
            f"{path} cannot be read as a record: it has lists in lists, deeper than any record has. {ADVICE}"
        ) from None
    except (OSError, ValueError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else one_line(str(error))
        raise RecordError(f"{path} cannot be read as a record: {reason}. {ADVICE}") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        given = shown(record.get("format") if isinstance(record, dict) else record)
        raise RecordError(
            f"{path} is not a record of this program: its format must be {FORMAT!r}, got {given}. Move it away."
        )
    return record


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


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
    return sorted({os.path.realpath(path): path for path in below}.values())


def read_run(path: Path, name: str | None = None) -> dict[str, Any]:
    """The record of a run, with all its parts; of the run called `name`, if one is given.

    Raises:
        RecordError: it is not a record, incomplete, damaged, or of another run.
    """
    record = read_record(path)
    _check_parts(path, record, PARTS)
    config = record["config"]
    _check(path, every_value(record["versions"], TEXT, "versions"))
    _check(path, _config_faults(config))
    _check_parts(path, record, {"evaluation": _metrics(config), "curves": CURVES[config["task"]]})
    _check(path, _lengths(record["curves"], "curves", SAME_LENGTH[config["task"]]))
    if (method := config["method"]) in UNTRAINED:
        if record.setdefault("training", None) is not None:
            raise RecordError(f"{path} is damaged: training must be null for {method}, which is not trained. {ADVICE}")
    else:
        _check_parts(path, record, {"training": TRAINED})
        _check(path, _lengths(record["training"]["history"], "training.history", ("epoch", "loss")))
    if name is not None and record.get("name") != name:
        raise RecordError(f"{path} is the record of another run, {shown(record.get('name'))}: move it away.")
    return record


def _metrics(config: dict[str, Any]) -> dict[str, Any]:
    """Required fields of an evaluation."""
    metrics = METRICS[config["task"]]
    measured = {**metrics, "test_ms?": NUMBER, "strict?": STRICT}
    return (
        {**measured, "dropout_on": metrics} if config.get("dropout") and config["method"] not in UNTRAINED else measured
    )


def _config_faults(config: dict[str, Any]) -> list[str]:
    """Errors in the settings: they must be possible for a run, and safe to write into a command."""
    wrong = every_value(config, SCALAR, "config")
    if wrong:
        return wrong
    tunable = {field.name for field in dataclasses.fields(RunConfig)} - {"task", "method", "seed", "protocol"}
    settings = {key: value for key, value in config.items() if key in tunable}  # others no longer exist
    try:
        resolve(config["task"], config["method"], config["seed"], config["protocol"], settings)
    except ConfigError as error:
        return [f"its config is not that of a run: {str(error).rstrip('.')}"]
    return []


def _lengths(lists: dict[str, Any], where: str, names: tuple[str, ...]) -> list[str]:
    lengths = {name: len(lists[name]) for name in names if lists.get(name) is not None}
    if len(set(lengths.values())) < 2:
        return []
    found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
    return [f"the lists in {where} must have the same length, but {found}"]


def _check_parts(path: Path, record: dict[str, Any], parts: dict[str, Any]) -> None:
    absent, wrong = faults(record, parts)
    if absent and not wrong:
        raise RecordError(f"{path} is incomplete: it has no {', '.join(absent)}. {ADVICE}")
    _check(path, wrong + [f"it has no {', '.join(absent)}"] * bool(absent))


def _check(path: Path, wrong: list[str]) -> None:
    if wrong:
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise RecordError(f"{path} is damaged: {'; '.join(wrong[:3])}{more}. {ADVICE}")


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
    _check(path, every_value(record["versions"], TEXT, "versions"))
    methods = record["methods"]
    known = (*KNOWN["method"], *TIMED_ONLY.get(record["task"], ()))
    if unknown := [name for name in methods if name not in known]:
        raise RecordError(
            f"{path} is damaged: methods must be of {', '.join(known)}, got {shown(unknown[0])}. {ADVICE}"
        )
    _check_parts(path, record, {"methods": dict.fromkeys(methods, TIMES)})
    for kind in ("train_ms_rounds", "test_ms_rounds"):
        rounds = {name: times.get(kind) for name, times in methods.items()}
        _check(path, _lengths(rounds, f"{kind} of methods", tuple(methods)))
    return record


def thin(epochs: int, best: int = 0) -> list[int]:
    """Choose at most 500 epochs of a loss history: all of a short one, else fewer and fewer, `best` and the last.

    >>> thin(300) == list(range(300)), len(thin(50_000))
    (True, 469)
    """
    if epochs <= 500:
        return list(range(epochs))
    start = min(epochs, 4000)  # what the paper shows
    kept = {
        *range(100),
        *range(100, start, math.ceil(start / 240)),
        *range(start, epochs, math.ceil(epochs / 150)),
    }
    return sorted(kept | ({min(best, epochs - 1), epochs - 1} if epochs else set()))


def all_finite(value: Any) -> bool:
    """Check whether all numbers in lists and dictionaries are finite and of a size that a record may have.

    >>> all_finite({"a": [1.0, None], "b": True}), all_finite({"a": {"b": float("inf")}})
    (True, False)
    """
    if isinstance(value, dict | list):
        return all(map(all_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or abs(value) <= HUGE


def rounded(value: Any, digits: int = 7) -> Any:
    """Numbers with fewer digits, for curves; NaN and infinities, which JSON lacks, become None."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, list):
        return [rounded(item, digits) for item in value]
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    return value
