"""Checkpoints: written in one piece, safe to load, and refused when they are broken or belong to another run.

A checkpoint is one safetensors file: plain numbers and a JSON header, nothing that could be executed. At any moment the
file is either the old or the new one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from caffnet_lab.experiments.files import write_atomically

FORMAT = "caffnet-checkpoint-3"


class CheckpointError(ValueError):
    """A checkpoint cannot be used."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The state of a run between two epochs.

    Attributes:
        digest: fingerprint of the run's settings.
        tensors: everything that is numbers, by name.
        progress: everything else: plain JSON values.
    """

    digest: str
    tensors: dict[str, Tensor]
    progress: dict[str, Any]

    def write(self, path: Path) -> None:
        """Replace the checkpoint at `path`, atomically."""
        tensors = {name: t.detach().cpu().contiguous().clone() for name, t in self.tensors.items()}
        header = {"format": FORMAT, "digest": self.digest, "progress": json.dumps(self.progress)}
        header["checksum"] = _checksum(tensors, header["progress"])
        write_atomically(path, save(tensors, metadata=header))

    @classmethod
    def read(cls, path: Path, digest: str) -> Checkpoint:
        """The checkpoint at `path`, if it is whole and belongs to the run with this fingerprint.

        Raises:
            CheckpointError: it is truncated, damaged, of another kind or of another run. The message says which.
        """
        advice = "Delete it to start the run again, or restore the file."
        try:
            content = path.read_bytes()  # at once: the file may be replaced while it is read
            tensors, header = load(content), _metadata(content)
        except (SafetensorError, OSError, ValueError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{path} is damaged or truncated ({error}). {advice}") from None
        if header.get("format") != FORMAT:
            raise CheckpointError(f"{path} is not a checkpoint of this version of the program. {advice}")
        if header.get("digest") != digest:
            raise CheckpointError(
                f"{path} belongs to another run: its settings have the fingerprint {header.get('digest')}, "
                f"this run's {digest}. {advice}"
            )
        if _checksum(tensors, header.get("progress", "")) != header.get("checksum"):
            raise CheckpointError(f"{path} is damaged: its checksum is wrong. {advice}")
        try:
            progress = json.loads(header.get("progress", ""))
        except (ValueError, RecursionError):
            progress = None
        if not isinstance(progress, dict):
            raise CheckpointError(f"{path} is damaged: its progress is not an object of JSON. {advice}")
        return cls(digest, tensors, progress)


def _metadata(content: bytes) -> dict[str, str]:
    """The text in a safetensors file: its header is JSON, after eight bytes with its length."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]).get("__metadata__", {})


def _checksum(tensors: dict[str, Tensor], progress: str) -> str:
    total = hashlib.sha256(progress.encode())
    for name in sorted(tensors):
        total.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        total.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
