"""A folder of image files, one sub-folder a class; read where they lie, if they still are what was listed."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from training.errors import DataError
from training.files import atomic_file
from training.records import SourceFiles
from training.sources.folder_listing import ImageFile, list_images, listing_digest
from training.sources.places import given_path, listing_folder
from training.sources.plain_files import NotPlainError, read_plain
from training.sources.rows import RawImage, checked_rows, cut, raw_batch
from training.sources.splits import in_order

_LISTING = "listing.parquet"


@dataclass(frozen=True)
class ImageFolder:
    """`train/<class>/` and `test/<class>/` with image files, or `<class>/` alone, to be divided.

    A folder `val/<class>/` (also `valid/` or `validation/`) beside them validates each epoch.

    `classes` fixes the classes and their order; without it they are the folders' names, sorted.
    """

    path: str | Path | None = None
    classes: tuple[str, ...] = ()

    def fetch(self, folder: Path) -> SourceFiles:
        """List and hash all images; the listing goes to `folder`, the images stay."""
        root = given_path(self.path, "an image folder")
        if not root.is_dir():
            raise DataError(f"{root}: not a folder.")
        images, classes = list_images(root, self.classes)
        digest = listing_digest(images)
        place = listing_folder(folder, root, digest)
        with atomic_file(place / _LISTING) as aside:
            columns = zip(*images, strict=True)
            pq.write_table(pa.table(dict(zip(ImageFile._fields, map(pa.array, columns), strict=True))), aside)
        return SourceFiles(
            kind="folder",
            root=str(place),
            origin=str(root),
            digest=digest,
            files=len(images),
            bytes=sum(image.size for image in images),
            classes=classes,
        )

    def count(self, files: SourceFiles, split: str) -> int:
        """Number of images of `split`."""
        return len(_listing(files, split))

    def splits(self, files: SourceFiles) -> Sequence[str]:
        """("train", "test") with or without "val" between them, or ("",) where there are only class folders."""
        found = pq.read_table(Path(files.root) / _LISTING, columns=["split"])["split"].unique().to_pylist()
        return in_order(found)

    def read(self, files: SourceFiles, split: str, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Encoded images in the order of the listing."""
        listing = _listing(files, split)
        chosen = listing.take(pa.array(checked_rows(rows, len(listing))))
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


def _listing(files: SourceFiles, split: str) -> pa.Table:
    return read_listing(files, [("split", "==", split)])


def read_listing(files: SourceFiles, wanted: list[tuple[str, str, str]] | None = None) -> pa.Table:
    """The listed images, one row each with the columns of :class:`ImageFile`; all, or those that fit `wanted`."""
    file = Path(files.root) / _LISTING
    if not file.is_file():
        raise DataError(f"{file}: the listing is gone. Run the command again: it lists the images anew.")
    return pq.read_table(file, filters=wanted)


def _content(image: ImageFile) -> bytes:
    # A dataset that says which bytes it was made of must not be made of others.
    try:
        content = read_plain(Path(image.path))
    except FileNotFoundError as error:
        raise DataError(f"{image.path}: gone since the images were listed. Run the command again.") from error
    except NotPlainError as error:
        raise DataError(f"{image.path}: {error}. Run the command again.") from error
    if hashlib.sha256(content).hexdigest() != image.sha256:
        raise DataError(f"{image.path}: changed since the images were listed. Run the command again.")
    return content
