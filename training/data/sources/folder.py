"""An image folder with one sub-folder per class; images are read in place if they still have their listed digest."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pyarrow as pa

from training.data.sources.folder_listing import ImageFile, list_images, listing_digest
from training.data.sources.places import given_path, listing_folder
from training.data.sources.plain_files import NotPlainError, read_plain
from training.data.sources.rows import RawImage, checked_rows, cut, raw_batch
from training.data.sources.splits import in_order
from training.errors import DataError
from training.records import SourceFiles
from training.storage.files import atomic_file

_LISTING = "listing.arrow"
_SPLITS = b"rows of each split"  # key in the listing's metadata: rows [start, stop) of each split


@dataclass(frozen=True)
class ImageFolder:
    """Image files in `train/<class>/` and `test/<class>/`, or in `<class>/` alone: then preparation divides the rows.

    An optional folder `val/<class>/` (also `valid/` or `validation/`) has the images that validate each epoch.

    `classes` declares the classes and their order; without it, the classes are the folders' names, sorted.
    """

    path: str | Path | None = None
    classes: tuple[str, ...] = ()

    def fetch(self, folder: Path) -> SourceFiles:
        """List and hash all images; the listing is written to `folder`, the images are not copied."""
        root = given_path(self.path, "an image folder")
        if not root.is_dir():
            raise DataError(f"{root}: not a folder.")
        images, classes = list_images(root, self.classes)
        digest = listing_digest(images)
        destination = listing_folder(folder, root, digest)
        _write_listing(destination / _LISTING, images)
        return SourceFiles(
            kind="folder",
            root=str(destination),
            origin=str(root),
            digest=digest,
            files=len(images),
            bytes=sum(image.size for image in images),
            classes=classes,
        )

    def count(self, files: SourceFiles, split: str) -> int:
        """Number of images of `split`."""
        return int(_listing(files, split).num_rows)

    def splits(self, files: SourceFiles) -> Sequence[str]:
        """("train", "test"), with "val" between them if there is one, or ("",) when there are only class folders."""
        return in_order(_rows_of_splits(read_listing(files)))

    def read(self, files: SourceFiles, split: str, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Encoded images in the order of the listing."""
        listing = _listing(files, split)
        chosen = listing.take(pa.array(checked_rows(rows, listing.num_rows)))
        for part in cut(chosen["size"].to_numpy()):
            images = [
                ImageFile(**row) for row in chosen.slice(part.start, part.stop - part.start).to_pylist()
            ]
            yield raw_batch(
                [RawImage(_content(image)) for image in images],
                [image.label for image in images],
                split,
                [image.path for image in images],
            )


def _write_listing(file: Path, images: list[ImageFile]) -> None:
    """Write the listing as one record batch, so that any rows can be read without reading the others."""
    kinds = {name: pa.int64() if name == "size" else pa.large_string() for name in ImageFile._fields}
    batch = pa.record_batch(
        {n: pa.array([getattr(image, n) for image in images], k) for n, k in kinds.items()}
    )
    counts = Counter(image.split for image in images)
    ends = dict(zip(sorted(counts), accumulate(counts[split] for split in sorted(counts)), strict=True))
    ranges = {split: [end - counts[split], end] for split, end in ends.items()}
    batch = batch.replace_schema_metadata({_SPLITS: json.dumps(ranges)})
    with atomic_file(file) as aside, pa.ipc.new_file(aside, batch.schema) as writer:
        writer.write_batch(batch)


def _rows_of_splits(listing: pa.RecordBatch) -> dict[str, list[int]]:
    ranges: dict[str, list[int]] = json.loads(listing.schema.metadata[_SPLITS])
    return ranges


def _listing(files: SourceFiles, split: str) -> pa.RecordBatch:
    listing = read_listing(files)
    start, stop = _rows_of_splits(listing).get(split, [0, 0])
    return listing.slice(start, stop - start)


def read_listing(files: SourceFiles) -> pa.RecordBatch:
    """The listed images, one row each, with the columns of :class:`ImageFile`.

    The listing is memory-mapped, so the cost of reading a shard of rows does not depend on the number of images.
    Raises :class:`DataError` when the listing is missing.
    """
    file = Path(files.root) / _LISTING
    if not file.is_file():
        raise DataError(f"{file}: the listing is gone. Run the command again: it lists the images again.")
    with pa.memory_map(str(file)) as source:
        return pa.ipc.open_file(source).get_batch(0)


def _content(image: ImageFile) -> bytes:
    # The dataset's fingerprint covers the listed bytes, so the dataset must not contain other bytes.
    try:
        content = read_plain(Path(image.path))
    except FileNotFoundError as error:
        raise DataError(f"{image.path}: gone since the images were listed. Run the command again.") from error
    except NotPlainError as error:
        raise DataError(f"{image.path}: {error}. Run the command again.") from error
    if hashlib.sha256(content).hexdigest() != image.sha256:
        raise DataError(f"{image.path}: changed since the images were listed. Run the command again.")
    return content
