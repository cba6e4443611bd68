"""Check a sample of a source's rows before preparation, to find unusable and duplicate images in about a second.

Preparation checks every row. This check decodes at most 256 rows of each split, and searches the listing of an image
folder, which has the sha256 of each file, for equal files in different splits or classes.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from training.data.images.decoding import Target, decode, first_shape, none_readable
from training.data.preparation.prepare import plan_shards, selected_rows
from training.data.sources.folder import read_listing
from training.data.sources.locate import reader
from training.data.sources.splits import VALIDATION
from training.data.sources.wording import counted
from training.errors import DataError
from training.records import ImageShape, SourceFiles
from training.settings.schema import DataSettings

_ROWS, _SHARDS = 256, 4  # per split
_SHOWN = 5


def check_source(files: SourceFiles, settings: DataSettings, refused: Path) -> ImageShape:
    """The shape that prepared images will have.

    Raises :class:`DataError` for rows that preparation would refuse, and as :func:`check_not_refused`.
    """
    check_not_refused(files, refused)
    if files.kind in ("folder", "folder-targets") and settings.duplicates == "refuse":
        _check_listing(files, settings)
    return _check_images(files, settings)


def check_not_refused(files: SourceFiles, refused: Path) -> None:
    """Raises :class:`DataError` when the file `refused` exists, to which a preparation writes rows that it refuses."""
    if refused.is_file():
        raise DataError(
            f"{files.origin}: these data were refused before; {refused} lists the rows. Correct the data, or see "
            "data.duplicates and data.max_dropped_share."
        )


def _check_images(files: SourceFiles, settings: DataSettings) -> ImageShape:
    batches = list(_sample(files, settings))
    shape = _shape(files, settings, batches)
    target = Target(settings.image_size, settings.channels, shape)
    bad = [row for batch in batches for row in decode(batch, target).bad]
    if bad and not settings.max_dropped_share:
        rows = counted(sum(batch.num_rows for batch in batches), "row")
        raise DataError(
            f"{len(bad)} of the {rows} looked at can't be used:\n  " + "\n  ".join(bad[:_SHOWN]) + "\n"
            "Repair or remove them, or leave them out by setting data.max_dropped_share."
        )
    return shape


def _sample(files: SourceFiles, settings: DataSettings) -> Iterator[pa.RecordBatch]:
    """Raw rows from at most 4 shards of each split, out of the rows that preparation selects."""
    shards = plan_shards(files, settings)
    for split in dict.fromkeys(shard.split for shard in shards):
        own = [shard for shard in shards if shard.split == split]
        numbers = np.unique(np.linspace(0, len(own) - 1, _SHARDS).astype(int))
        for number in numbers:
            rows = np.array(selected_rows(files, own[number], settings))
            chosen = rows[np.unique(np.linspace(0, len(rows) - 1, _ROWS // len(numbers)).astype(int))]
            yield from reader(files).read(files, split, np.sort(chosen).tolist())


def _shape(files: SourceFiles, settings: DataSettings, batches: list[pa.RecordBatch]) -> ImageShape:
    target = Target(settings.image_size, settings.channels)
    shape = next((image_shape for batch in batches if (image_shape := first_shape(batch, target))), None)
    if shape is None:
        raise DataError(f"{files.origin}: {none_readable(batches[0], target)}")
    return shape


def _check_listing(files: SourceFiles, settings: DataSettings) -> None:
    """Raises :class:`DataError` when files with equal content are in two splits, or have two classes or targets."""
    if settings.max_train_rows or settings.max_test_rows:
        return  # the copies may be outside the subset of rows
    table = pa.Table.from_batches([read_listing(files)])
    if settings.validation_split == "ignore":
        table = table.filter(pc.not_equal(table["split"], VALIDATION))
    places = table.group_by("sha256").aggregate([("split", "count_distinct"), ("label", "count_distinct")])
    several = pc.or_(
        pc.greater(places["split_count_distinct"], 1), pc.greater(places["label_count_distinct"], 1)
    )
    copied = places.filter(several)["sha256"]
    if not len(copied):
        return
    paths: dict[str, list[str]] = {}
    for row in table.filter(pc.is_in(table["sha256"], value_set=copied)).to_pylist():
        paths.setdefault(row["sha256"], []).append(row["path"])
    shown = [" and ".join(sorted(copies)) for copies in sorted(paths.values())[:_SHOWN]]
    raise DataError(
        f"{files.origin}: {counted(len(paths), 'image file is', 'image files are')} in more than one split or "
        f"{'target' if files.target else 'class'}:\n  "
        + "\n  ".join(shown)
        + "\nRemove the copies, or set data.duplicates=drop. `evergreen retrain` writes a list of all copies."
    )
