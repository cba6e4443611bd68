"""The source of images in Parquet for a regression: the label column holds the numbers to predict."""

from dataclasses import dataclass
from pathlib import Path

from training.data.sources.parquet import Notes, ParquetImages, check_divided, check_images, write_index
from training.data.sources.parquet_files import open_parquet
from training.data.sources.parquet_index import SPLIT_COLUMN, IndexedRow, find_files, splits_of
from training.data.sources.places import given_path, listing_folder
from training.data.sources.target_numbers import check_kind, target_texts
from training.data.sources.unchanged import gone_named, warn_of_copies
from training.data.tables.encoding import nearest
from training.errors import DataError
from training.records import SourceFiles
from training.storage.files import digest_file, digest_json

KIND = "parquet-targets"


@dataclass(frozen=True)
class ParquetTargets(ParquetImages):
    """The files and options of a :class:`ParquetImages`, whose `label` column holds numbers: integers or floats."""

    def fetch(self, folder: Path) -> SourceFiles:
        """Hash the files and check schema and numbers; an index of rows is written to `folder`, no file is copied."""
        root = given_path(self.path, "a Parquet source")
        with gone_named():
            hashed_files = sorted(
                (split, digest_file(file), file.stat().st_size, file) for split, file in find_files(root)
            )
        warn_of_copies(hashed_files)
        files = [file for *_, file in hashed_files]
        index = [
            row
            for number, (split, *_, file) in enumerate(hashed_files)
            for row in self._rows(number, file, split)
        ]
        check_divided(root, {row.split for row in index})
        for file in files:
            check_images(file, self.image)
        digest = digest_json(
            {"image": self.image, "target": self.label, "files": [list(entry[:3]) for entry in hashed_files]}
        )
        index_folder = listing_folder(folder, root, digest)
        sizes = [size for _, _, size, _ in hashed_files]
        write_index(
            index_folder, index, Notes(image=self.image, files=[str(file) for file in files], sizes=sizes)
        )
        return SourceFiles(
            kind=KIND,
            root=str(index_folder),
            origin=str(root),
            digest=digest,
            files=len(files),
            bytes=sum(sizes),
            target=self.label,
        )

    def _rows(self, number: int, file: Path, split: str) -> list[IndexedRow]:
        """Index entries of all rows of `file`, the numbers as text. Raises DataError that names file and row."""
        with open_parquet(file) as parquet:
            schema = parquet.schema_arrow
            for column, option in ((self.image, "image"), (self.label, "label")):
                if column not in schema.names:
                    raise DataError(
                        f"{file}: no column {column!r}; {nearest(column, schema.names)} Name the right one in "
                        f"ParquetImages({option}=...)."
                    )
            check_kind(schema.field(self.label).type, self.label, file)
            wanted = [self.label, *([SPLIT_COLUMN] if SPLIT_COLUMN in schema.names else [])]
            table = parquet.read(columns=wanted)
        if not len(table):
            raise DataError(f"{file}: has no rows.")
        numbers = target_texts(table[self.label], self.label, lambda row: f"{file} row {row}")
        splits = splits_of(table, file, split)
        return [
            IndexedRow(*fields)
            for fields in zip(splits, [number] * len(numbers), range(len(numbers)), numbers, strict=True)
        ]
