"""Files that are whole or not there: a reader, or a crash at any moment, never sees a part of one. No torch here."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file, or replace the one that is there."""
    with _on_disk(path, content) as temporary:
        os.replace(temporary, path)


def write_once(path: Path, content: bytes) -> None:
    """Write a file.

    Raises:
        FileExistsError: there is one already; it is never replaced.
    """
    with _on_disk(path, content) as temporary:
        os.link(temporary, path)  # fails if there is one, unlike a rename


def read_limited(path: Path, most: int) -> bytes:
    """Read a file of at most so many bytes.

    Raises:
        ValueError: it has more; no more than that is read.
    """
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return content


@contextlib.contextmanager
def _on_disk(path: Path, content: bytes) -> Iterator[Path]:
    """The content beside `path`, flushed to the disk, under a name that goes away."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
