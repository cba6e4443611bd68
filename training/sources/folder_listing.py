"""Find, check and hash the images of a folder with one sub-folder a class.

Order and digest come from content alone: renaming, touching or moving files changes neither.
"""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from training.errors import DataError
from training.files import canonical_json

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
SPLITS = ("train", "test")

_STRAY = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx"})
_THREADS = 8
_PER_TASK = 256


class ImageFile(NamedTuple):
    """One image; the fields before `path` are what order and digest see."""

    split: str
    label: str
    sha256: str
    size: int
    path: str


def list_images(root: Path, classes: tuple[str, ...]) -> tuple[list[ImageFile], tuple[str, ...]]:
    """All images under `root` in their lasting order, and the class names.

    `root` holds `train/<class>/` and `test/<class>/`, or `<class>/` alone (split ""). Raises
    :class:`DataError` that names the first thing which is not as it should be.
    """
    found: list[tuple[str, str, str]] = []
    per_split: dict[str, set[str]] = {}
    for split, place in _split_folders(root).items():
        folders = _class_folders(place, classes)
        per_split[split] = set(folders)
        for label, folder in folders.items():
            found += [(split, label, path) for path in _image_paths(folder)]
    names = _agreed_classes(root, per_split, classes)
    # A tuple sorts by split, class and content first; the path only settles which twin comes first.
    return sorted(_hashed(found)), names


def listing_digest(images: list[ImageFile]) -> str:
    """sha256 over split, class, content and size of all images, in their order."""
    digest = hashlib.sha256()
    for image in images:
        digest.update(canonical_json(image[:4]).encode() + b"\n")
    return digest.hexdigest()


def holds_images(root: Path) -> bool:
    """Whether `root` looks like a folder of class folders, divided or not."""
    folders = [Path(entry.path) for entry in visible(root) if entry.is_dir()]
    places = [*folders, *(Path(inner.path) for split in SPLITS for inner in _sub_folders(root / split))]
    return any(_is_image(entry) for place in places for entry in visible(place))


def visible(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What lies in `folder`, without what systems leave there unasked."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.name.lower() not in _STRAY:
                yield entry


def _sub_folders(folder: Path) -> list[os.DirEntry[str]]:
    return [entry for entry in visible(folder) if entry.is_dir()] if folder.is_dir() else []


def _is_image(entry: os.DirEntry[str]) -> bool:
    return os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES and entry.is_file()  # noqa: PTH122 - 60,000 times


def _split_folders(root: Path) -> dict[str, Path]:
    """The folder of each split. A class may be called train, too: then it holds images, not folders."""
    divided = [split for split in SPLITS if _sub_folders(root / split)]
    if not divided:
        return {"": root}
    missing = [split for split in SPLITS if not (root / split).is_dir()]
    if missing:
        raise DataError(
            f"{root / missing[0]}: missing, though {divided[0]}/ has class folders. Add it, or move the "
            f"class folders of {divided[0]}/ up into {root} and let data.test_share divide them."
        )
    for entry in visible(root):
        if entry.name not in SPLITS:
            raise DataError(
                f"{entry.path}: neither train/ nor test/, so it would not be used. Move it elsewhere."
            )
    return {split: root / split for split in SPLITS}


def _class_folders(place: Path, classes: tuple[str, ...]) -> dict[str, Path]:
    folders = {}
    for entry in visible(place):
        if not entry.is_dir():
            raise DataError(
                f"{entry.path}: a file outside of any class folder. Move it into one, or elsewhere."
            )
        if classes and entry.name not in classes:
            raise DataError(
                f"{entry.path}: class {entry.name!r} is not among the declared {', '.join(classes)}."
            )
        folders[entry.name] = Path(entry.path)
    if not folders:
        raise DataError(
            f"{place}: no class folders, so no images. It must hold one folder of images a class."
        )
    return folders


def _image_paths(folder: Path) -> list[str]:
    paths = []
    for entry in visible(folder):
        if not _is_image(entry):
            raise DataError(
                f"{entry.path}: not an image file ({', '.join(sorted(IMAGE_SUFFIXES))}). "
                "Remove it from the class folder."
            )
        paths.append(entry.path)
    if not paths:
        raise DataError(f"{folder}: no images of this class. Add some, or remove the folder.")
    return paths


def _agreed_classes(root: Path, per_split: dict[str, set[str]], declared: tuple[str, ...]) -> tuple[str, ...]:
    """The class names, each checked to have a folder in every split."""
    wanted = set(declared).union(*per_split.values())
    for split, present in per_split.items():
        if missing := sorted(wanted - present):
            raise DataError(
                f"{root / split / missing[0]}: missing. Every class needs a folder in every split."
            )
    return declared or tuple(sorted(wanted))


def _hashed(found: list[tuple[str, str, str]]) -> Iterator[ImageFile]:
    parts = [found[start : start + _PER_TASK] for start in range(0, len(found), _PER_TASK)]
    with ThreadPoolExecutor(_THREADS) as pool:
        for images in pool.map(_hash_part, parts):
            yield from images


def _hash_part(part: list[tuple[str, str, str]]) -> list[ImageFile]:
    images = []
    for split, label, path in part:
        content = Path(path).read_bytes()
        if not content:
            raise DataError(f"{path}: has zero bytes. Fetch it anew, or remove it.")
        images.append(ImageFile(split, label, hashlib.sha256(content).hexdigest(), len(content), path))
    return images
