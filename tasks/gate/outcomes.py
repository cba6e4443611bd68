"""Outcomes of two models on the same rows, row by row: the input of a look."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.gate.signs import Differences, Digests

Side = Literal["candidate", "champion", "anchor"]

_SMALLEST = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Outcomes:
    """Compared rows: digest of the image, label, and for each model whether it was right and its log loss (nats)."""

    digests: Digests
    labels: npt.NDArray[np.int64]
    candidate: npt.NDArray[np.bool_]
    reference: npt.NDArray[np.bool_]
    candidate_loss: Differences
    reference_loss: Differences

    def __len__(self) -> int:
        return len(self.digests)

    @property
    def gained(self) -> int:
        """Rows that only the candidate got right."""
        return int((self.candidate & ~self.reference).sum())

    @property
    def lost(self) -> int:
        """Rows that only the reference got right."""
        return int((self.reference & ~self.candidate).sum())

    def rows_digest(self) -> str:
        """Digest of the labelled rows; does not depend on their order."""
        order = np.lexsort((self.labels, self.digests))
        content = np.stack([self.digests[order], self.labels[order].astype(np.uint64)])
        return hashlib.sha256(content.astype("<u8").tobytes()).hexdigest()


def read_outcomes(predictions: Path, reference: Side) -> Outcomes:
    """Read the compared rows from the file `predictions.parquet` of a comparison."""
    table = pq.read_table(predictions)
    table = table.filter(table["compared"])

    def column(name: str) -> npt.NDArray[np.int64]:
        values: npt.NDArray[np.int64] = table[name].to_numpy()
        return values

    labels = column("label")
    return Outcomes(
        digests=column("digest").astype(np.uint64),
        labels=labels,
        candidate=column("candidate") == labels,
        reference=column(reference) == labels,
        candidate_loss=_log_loss(table, "candidate"),
        reference_loss=_log_loss(table, reference),
    )


def _log_loss(table: pa.Table, model: Side) -> Differences:
    """-ln(probability of the true class) in nats, clipped as in :mod:`training.problems.classification`."""
    truth = table[f"{model}_probability"].to_numpy().astype(np.float64)
    loss: Differences = -np.log(np.clip(truth, _SMALLEST, 1 - _SMALLEST))
    return loss
