"""Find an object of the user's by name: ``module:name`` or ``file.py:name``."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from caffnet import ConstraintError


class NotFoundError(ValueError):
    """There is no such object, or it cannot be called, or it fails."""


def find(place: str, what: str = "The constraint", kind: str = "x -> AffineSet") -> Callable[[Any], Any]:
    """The function at a place. Its errors become a `NotFoundError` with the line, but for those about constraints.

    Args:
        place: ``module:name`` or ``file.py:name``.
        what: what it is, for messages.
        kind: what it takes and gives.

    Raises:
        NotFoundError: it says what was given, what was expected, and which names exist.
    """
    found, file = _look_up(place, what)
    if not callable(found):
        raise NotFoundError(f"{place} must be a function {kind}, got {type(found).__name__}.")

    def called(x: Any) -> Any:
        with _reported(place, file):
            return found(x)

    return called


def find_object(place: str, what: str) -> Any:
    """The object at a place, as in `find`."""
    return _look_up(place, what)[0]


def _look_up(place: str, what: str) -> tuple[Any, str | None]:
    """The object, and the file of its module."""
    source, _, name = place.rpartition(":")
    if not source or not name:
        raise NotFoundError(f"{what} must be given as module:name or file.py:name, got {place!r}.")
    module = _from_file(Path(source)) if source.endswith(".py") else _from_module(source)
    if not hasattr(module, name):
        there = ", ".join(key for key, value in vars(module).items() if not key.startswith("_") and _own(value, module))
        raise NotFoundError(f"{source} has no {name!r}; it has {there or 'nothing to call'}.")
    return getattr(module, name), module.__dict__.get("__file__")


def _own(value: Any, module: ModuleType) -> bool:
    """Return True for what can be called and is not a function or a class from another module."""
    if isinstance(value, type | FunctionType | BuiltinFunctionType):
        return value.__module__ == module.__name__
    return callable(value) and type(value).__module__ != "typing"


@contextlib.contextmanager
def _reported(place: str, file: str | None) -> Iterator[None]:
    """Turn an error of the user's code into one that names it and its line: the last in this file, or of all."""
    try:
        yield
    except (ConstraintError, MemoryError):
        raise
    except Exception as error:
        spots = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError):
            spots.append((str(error.filename), error.lineno))
        where, line = ([spot for spot in spots if spot[0] == file] or spots)[-1]
        text = next(iter(str(error).splitlines()), "")
        raise NotFoundError(f"{place} failed in line {line} of {where}: {type(error).__name__}: {text}") from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise NotFoundError(f"There is no file {path}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # as a module of that name, for its classes
    with _reported(str(path), spec.origin):
        spec.loader.exec_module(module)
    return module


def _from_module(name: str) -> ModuleType:
    sys.path.insert(0, "")  # modules beside the user, as with `python -m`
    try:
        with _reported(name, None):
            return importlib.import_module(name)
    except NotFoundError as error:
        missing = error.__cause__
        if not isinstance(missing, ModuleNotFoundError) or missing.name not in (name, name.split(".")[0]):
            raise
        raise NotFoundError(f"There is no module {name!r} here; a file is given as {name}.py:name.") from None
    finally:
        sys.path.remove("")
