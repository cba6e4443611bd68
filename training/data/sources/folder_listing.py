"""Find, check and hash the images of a folder with one sub-folder per class.

Order and digest depend only on each image's split, class and content. Renaming or touching an image file, or moving
the whole folder, changes neither.
"""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from training.data.sources.plain_files import NotPlainError, check_link, read_plain
from training.data.sources.splits import NAMES, NEEDED, TEST, VALIDATION, in_order, split_named
from training.data.sources.unchanged import gone_named
from training.errors import DataError
from training.storage.files import canonical_json

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)

_STRAY = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx"})
_THREADS = 8
_PER_TASK = 256


class ImageFile(NamedTuple):
    """One image; the digest covers the fields before `path`, and these fields also decide the order."""

    split: str
    label: str
    sha256: str
    size: int
    path: str


@gone_named()
def list_images(root: Path, classes: tuple[str, ...]) -> tuple[list[ImageFile], tuple[str, ...]]:
    """All images under `root` in an order that depends only on content, and the class names.

    `root` holds `train/<class>/`, `test/<class>/` and optionally `val/<class>/`, or `<class>/` alone (split "").
    Raises :class:`DataError` that names the first file or folder which breaks a rule.
    """
    files: list[tuple[str, str, str]] = []
    per_split: dict[str, set[str]] = {}
    for split, split_folder in _split_folders(root).items():
        folders = _class_folders(split_folder, classes)
        per_split[split] = set(folders)
        for label, folder in folders.items():
            files += [(split, label, path) for path in _image_paths(folder)]
    names = _agreed_classes(root, per_split, classes)
    # Tuples sort by split, class and content first; the path only decides the order of copies of one image.
    return sorted(_hashed(files)), names


def listing_digest(images: list[ImageFile]) -> str:
    """sha256 over split, class, content and size of all images, in their order."""
    digest = hashlib.sha256()
    for image in images:
        digest.update(canonical_json(image[:4]).encode() + b"\n")
    return digest.hexdigest()


def holds_images(root: Path) -> bool:
    """Whether `root` looks like a folder of class folders, with or without folders of splits above them."""
    folders = [Path(entry.path) for entry in visible(root) if entry.is_dir()]
    class_folders = [*folders, *(Path(inner.path) for name in NAMES for inner in _sub_folders(root / name))]
    return any(_is_image(entry) for folder in class_folders for entry in visible(folder))


def visible(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The entries of `folder`, without hidden files and files such as Thumbs.db, which operating systems add."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.name.lower() not in _STRAY:
                yield entry


def _sub_folders(folder: Path) -> list[os.DirEntry[str]]:
    check_link(folder)
    return [entry for entry in visible(folder) if entry.is_dir()] if folder.is_dir() else []


def _is_image(entry: os.DirEntry[str]) -> bool:
    return os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES and entry.is_file()  # noqa: PTH122 - 60,000 times


def _split_folders(root: Path) -> dict[str, Path]:
    """The folder of each split. A folder `train` without sub-folders is a class of that name, not a split."""
    divided = [name for name in NEEDED if _sub_folders(root / name)]
    if not divided:
        return {"": root}
    folders: dict[str, Path] = {}
    for entry in visible(root):
        split = split_named(entry.name)
        if not split:
            raise DataError(
                f"{entry.path}: none of train/, val/ and test/, so it would not be used. Move it elsewhere."
            )
        if split in folders:
            raise DataError(
                f"{entry.path}: a second validation split beside {folders[split].name}/. Join the two."
            )
        check_link(Path(entry.path))
        folders[split] = Path(entry.path)
    if missing := [name for name in NEEDED if name not in folders]:
        raise DataError(
            f"{root / missing[0]}: missing, though {divided[0]}/ has class folders. "
            f"{_remedy(root, missing[0], folders)}"
        )
    return {name: folders[name] for name in in_order(folders)}


def _remedy(root: Path, missing: str, folders: dict[str, Path]) -> str:
    """Message text: how to provide the split `missing`, given the splits that exist."""
    if missing == TEST and VALIDATION in folders:
        return (
            f"Rename {folders[VALIDATION].name}/ to test/: then its images decide about promotion, and "
            "data.validation_share of the training images validate each epoch."
        )
    divided = next(iter(folders))
    return (
        f"Add it, or move the class folders of {divided}/ up into {root} and let data.test_share divide them."
    )


def _check_name(entry: os.DirEntry[str]) -> None:
    try:
        entry.name.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{entry.path!r}: its name is not UTF-8, as names in a dataset are. Rename it."
        ) from error


def _class_folders(folder: Path, classes: tuple[str, ...]) -> dict[str, Path]:
    folders = {}
    for entry in visible(folder):
        if not entry.is_dir():
            check_link(Path(entry.path))
            raise DataError(
                f"{entry.path}: a file outside of any class folder. Move it into one, or elsewhere."
            )
        if classes and entry.name not in classes:
            raise DataError(
                f"{entry.path}: class {entry.name!r} is not among the declared {', '.join(classes)}."
            )
        _check_name(entry)
        folders[entry.name] = Path(entry.path)
    if not folders:
        raise DataError(
            f"{folder}: no class folders, so no images. It must hold one folder of images a class."
        )
    return folders


def _image_paths(folder: Path) -> list[str]:
    paths = []
    for entry in visible(folder):
        if entry.is_dir():
            raise DataError(
                f"{entry.path}: a folder in the class folder {folder.name}/, which must hold images alone. If "
                f"{folder.name}/ is a split, rename it: splits are called train/, val/ and test/."
            )
        if not _is_image(entry):
            check_link(Path(entry.path))
            raise DataError(
                f"{entry.path}: not an image file ({', '.join(sorted(IMAGE_SUFFIXES))}). "
                "Remove it from the class folder."
            )
        _check_name(entry)
        paths.append(entry.path)
    if not paths:
        raise DataError(f"{folder}: no images of this class. Add some, or remove the folder.")
    return paths


def _agreed_classes(root: Path, per_split: dict[str, set[str]], declared: tuple[str, ...]) -> tuple[str, ...]:
    """The class names. Raises DataError for a class without a folder in a split other than the validation split."""
    wanted = set(declared).union(*per_split.values())
    for split, present in per_split.items():
        if (missing := sorted(wanted - present)) and split != VALIDATION:
            raise DataError(
                f"{root / split / missing[0]}: missing. Every class needs a folder in train/ and in test/."
            )
    return declared or tuple(sorted(wanted))


def _hashed(files: list[tuple[str, str, str]]) -> Iterator[ImageFile]:
    parts = [files[start : start + _PER_TASK] for start in range(0, len(files), _PER_TASK)]
    with ThreadPoolExecutor(_THREADS) as pool:
        for images in pool.map(_hash_part, parts):
            yield from images


def _hash_part(part: list[tuple[str, str, str]]) -> list[ImageFile]:
    images = []
    for split, label, path in part:
        try:
            content = read_plain(Path(path))
        except NotPlainError as error:
            raise DataError(f"{path}: {error}. Remove it from the class folder.") from error
        if not content:
            raise DataError(f"{path}: has zero bytes. Fetch it again, or remove it.")
        images.append(ImageFile(split, label, hashlib.sha256(content).hexdigest(), len(content), path))
    return images
