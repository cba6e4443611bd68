"""The files of a checkpoint's folder: state, manifest and parts."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from training.checkpoints.parts import with_parts
from training.errors import DataError
from training.records import Record
from training.storage.files import CountedFile
from training.storage.record_files import read_record

FORMAT = 1
MANIFEST = "MANIFEST.json"
STATE = "state.pt"


class Manifest(Record):
    """Manifest of a checkpoint: the run key, the step, and the digest and size of the state file.

    `points` is the number of metric points written before the checkpoint; None in checkpoints of earlier versions.
    `parts` has the digest of the index of each rank's part, if the ranks hold tensors together.
    """

    format: int
    run_key: str
    epoch: int
    step_in_epoch: int
    step: int
    score: float | None
    sha256: str
    bytes: int | None = None
    contract: dict[str, str]
    points: int | None = None
    parts: tuple[str, ...] = ()


def read_manifest(checkpoint: Path) -> Manifest:
    """Read the manifest in a checkpoint's folder, without checking the state file.

    Raises :class:`training.storage.record_files.DamagedError`, and FileNotFoundError if there is no manifest.
    """
    return read_record(checkpoint / MANIFEST, Manifest, checkpoint.name)


def read_state(
    checkpoint: Path, manifest: Manifest, moved: Callable[[int], None] = lambda _: None
) -> dict[str, Any]:
    """State of an undamaged checkpoint, with a :class:`training.checkpoints.parts.StoredRows` for a tensor in parts.

    `moved` is called with each number of bytes read.

    Raises :class:`DataError` if reading the state would run code, or if the parts do not belong to the state.
    """
    import torch

    try:
        with CountedFile(checkpoint / STATE, moved) as stream:
            state = torch.load(cast(IO[bytes], stream), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise DataError(
            f"checkpoint {checkpoint}: holds more than data ({str(error).splitlines()[0]})"
        ) from None
    return with_parts(state, checkpoint, len(manifest.parts))


def contract() -> dict[str, str]:
    """Conditions of this process, besides the run key, on which bit-identical results depend."""
    import torch

    return {
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "omp": os.environ.get("OMP_NUM_THREADS", ""),
    }
