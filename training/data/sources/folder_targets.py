"""The source of image files: one folder for each class, or a table with the number to predict for each image."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from training.data.sources import folder as class_folders

# Making these public would change the digest of their module, and so the identity of every dataset of class folders.
from training.data.sources.folder import _LISTING, _write_listing
from training.data.sources.folder_listing import listing_digest
from training.data.sources.image_targets import FILE_NAME, list_with_targets
from training.data.sources.places import given_path, listing_folder
from training.errors import DataError, SettingError
from training.records import SourceFiles
from training.storage.files import digest_json

KIND = "folder-targets"
_TABLE = "metadata.csv"


@dataclass(frozen=True)
class ImageFolder(class_folders.ImageFolder):
    """Image files in `train/<class>/` and `test/<class>/`, or in `<class>/` alone: then preparation divides the rows.

    An optional folder `val/<class>/` (also `valid/` or `validation/`) has the images that validate each epoch.
    `classes` declares the classes and their order; without it, the classes are the folders' names, sorted.

    For a regression, `target` names a column of numbers in the table `targets`, a CSV or Parquet file in the folder, or
    one in each of `train/`, `test/` and `val/`. The table's column `file_name` has the path of each image, relative to
    the table, as in Hugging Face's `imagefolder`. The images may lie in sub-folders at any depth. Without `train/` and
    `test/`, preparation divides the rows.

    Raises :class:`SettingError` for options that contradict each other.
    """

    target: str | None = None
    targets: str = _TABLE

    def __post_init__(self) -> None:
        if self.target is None and self.targets != _TABLE:
            raise SettingError(
                f"ImageFolder(targets={self.targets!r}): name the column of numbers, too, as target='age'"
            )
        if self.target is not None and self.classes:
            raise SettingError(
                f"ImageFolder(target={self.target!r}, classes=...): a target is a number, which has no classes; "
                "give one of the two"
            )
        if self.target == FILE_NAME:
            raise SettingError(
                f"ImageFolder(target={FILE_NAME!r}): this column has the images' paths; name the column of numbers, "
                "as target='age'"
            )
        table = PurePosixPath(self.targets)
        if table.is_absolute() or ".." in table.parts:
            raise SettingError(
                f"ImageFolder(targets={self.targets!r}): the table lies inside the image folder; give its path "
                "relative to that folder"
            )

    def fetch(self, folder: Path) -> SourceFiles:
        """List and hash all images; writes the listing to `folder`, and does not copy the images."""
        if self.target is None:
            return super().fetch(folder)
        root = given_path(self.path, "an image folder")
        if not root.is_dir():
            raise DataError(f"{root}: not a folder.")
        images = list_with_targets(root, self.targets, self.target)
        digest = digest_json({"target": self.target, "images": listing_digest(images)})
        destination = listing_folder(folder, root, digest)
        _write_listing(destination / _LISTING, images)
        return SourceFiles(
            kind=KIND,
            root=str(destination),
            origin=str(root),
            digest=digest,
            files=len(images),
            bytes=sum(image.size for image in images),
            target=self.target,
        )
