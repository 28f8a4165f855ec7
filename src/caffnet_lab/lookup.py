"""Find an object of the user's by name: ``module:name`` or ``file.py:name``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class NotFoundError(ValueError):
    """There is no such object, or it cannot be called."""


def find(place: str, what: str = "The constraint", kind: str = "x -> AffineSet") -> Callable[[Any], Any]:
    """The function at a place.

    Args:
        place: ``module:name`` or ``file.py:name``.
        what: what it is, for messages.
        kind: what it takes and gives.

    Raises:
        NotFoundError: it says what was given, what was expected, and which names exist.
    """
    found = find_object(place, what)
    if not callable(found):
        raise NotFoundError(f"{place} must be a function {kind}, got {type(found).__name__}.")
    return found


def find_object(place: str, what: str) -> Any:
    """The object at a place, as in `find`."""
    source, _, name = place.rpartition(":")
    if not source or not name:
        raise NotFoundError(f"{what} must be given as module:name or file.py:name, got {place!r}.")
    module = _from_file(Path(source)) if source.endswith(".py") else _from_module(source)
    if not hasattr(module, name):
        there = ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise NotFoundError(f"{source} has no {name!r}; it has {there or 'nothing to call'}.")
    return getattr(module, name)


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise NotFoundError(f"There is no file {path}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # as a module of that name, for its classes
    spec.loader.exec_module(module)
    return module


def _from_module(name: str) -> Any:
    sys.path.insert(0, "")  # modules beside the user, as with `python -m`
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != name.split(".")[0] and missing.name != name:
            raise
        raise NotFoundError(f"There is no module {name!r} here; a file is given as {name}.py:name.") from None
    finally:
        sys.path.remove("")
