"""Warning about texts that are in the train split and in the test split, which inflate the test score."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from training.data.images.decoding import binary_to_numpy
from training.data.sources.wording import counted
from training.data.tables.statistics import part_columns
from training.records import PartFile, Split


def copied_texts(folder: Path, parts: Mapping[Split, Sequence[PartFile]]) -> tuple[str, ...]:
    """The warning, as text; empty when no text is in both splits. Memory use is 16 bytes for each row."""
    train, test = (
        # Numbers, as comparing them takes a fraction of the time of comparing bytes; half of the digest is distinct.
        np.concatenate(
            [
                binary_to_numpy(digests, np.uint64)[:, 0]
                for digests in part_columns(folder, parts[split], "digest")
            ]
        )
        for split in ("train", "test")
    )
    copied = int(np.isin(test, train).sum())
    if not copied:
        return ()
    return (
        f"{counted(copied, 'test row has', 'test rows have')} the text of a train row, of {len(test):,} test rows, so "
        "the test score is better than it would be on new texts. Remove the copies from the source, or let the content "
        "divide the rows, which keeps equal texts together: with all files in one folder, without train/ and test/.",
    )
