"""Recognise the kind of source at a path, and find the reader of source files."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from training.data.sources import Source, cifar, folder_listing, idx
from training.data.sources.archives import SUFFIXES, is_archive
from training.data.sources.cifar import Cifar10
from training.data.sources.digits import Digits
from training.data.sources.folder_targets import ImageFolder
from training.data.sources.idx import IdxFiles
from training.data.sources.packed import Packed, unpacked
from training.data.sources.parquet import ParquetImages
from training.data.sources.parquet_index import files_with
from training.data.sources.parquet_targets import ParquetTargets
from training.data.sources.places import given_path
from training.data.sources.splits import NAMES
from training.data.sources.table import Table
from training.data.sources.text import Text
from training.errors import DataError, SettingError
from training.records import SourceFiles
from training.seams import SOURCES, part_named

log = logging.getLogger("evergreen.sources")

_MAX_DEPTH = 4


def open_path(path: Path, folder: Path, classes: tuple[str, ...] = (), own: Source | None = None) -> Source:
    """The source at `path`, recognised by its files; an archive is first unpacked under `folder`, once per content.

    `classes`, if not empty, declares the class names and their order. `own` is the recipe's source, which the source
    at `path` replaces: when both are of the same kind, all options of `own` apply, such as the names of Parquet
    columns. Raises :class:`training.errors.SettingError` when nothing exists at `path`, and :class:`DataError` when
    nothing there is recognised or an archive is unsafe.
    """
    source_path = given_path(path, "the source", "data.path")
    inside = (
        unpacked(source_path, folder) if source_path.is_file() and is_archive(source_path) else source_path
    )
    if isinstance(own, Table):
        source, kind = _own_files(inside, own), "a table"
    elif isinstance(own, Text):
        source, kind = _own_files(inside, own), "text"
    elif isinstance(own, ImageFolder) and own.target is not None:
        source, kind = _own_files(inside, own), "a folder of images with a table of targets"
    else:
        source, kind = _recognise(inside, classes, own)
    log.info("%s: recognised as %s", source_path, kind)
    if type(own) is type(source):
        source = replace(cast(Any, own), path=cast(Any, source).path)
    return source if inside == source_path else Packed(source, source_path, inside)


def reader(files: SourceFiles) -> Source:
    """The source whose `count`, `splits` and `read` understand `files`, in any process.

    Raises :class:`DataError` when no reader has the kind of `files`.
    """
    if files.kind not in SOURCES:
        raise DataError(
            f"{files.root}: no reader for source files of kind {files.kind!r}; one of {', '.join(SOURCES)}."
        )
    kind = part_named(SOURCES, files.kind)
    # These two can't be made without arguments, which only `fetch` uses.
    options: dict[Any, tuple[str, ...]] = {IdxFiles: ("",), Table: (files.root, "any")}
    return cast(Source, kind(*options.get(kind, ())))


def with_numbers(source: Source) -> Source:
    """`source` with numbers as targets instead of classes.

    Raises :class:`SettingError` for a source that has classes only.
    """
    if isinstance(source, Packed):
        return replace(source, source=with_numbers(source.source))
    if isinstance(source, ParquetImages):
        if source.classes:
            raise SettingError("ParquetImages(classes=...): numbers to predict have no classes; remove it")
        return ParquetTargets(source.path, source.image, source.label)
    if isinstance(source, Digits | IdxFiles | Cifar10) or (
        isinstance(source, ImageFolder) and source.target is None
    ):
        raise SettingError(
            f"recipe: {type(source).__name__} has images with classes, and a regression needs a number for each image. "
            "Give ImageFolder(path, target='age') and a table metadata.csv in the folder, with the columns file_name "
            "and age; or ParquetImages(path, label='age') with a column of numbers; or a table, as Table(path, "
            "target='age')."
        )
    return source


def without_target(source: Source, problem: str) -> Source:
    """`source` without a target, for a problem that predicts the texts themselves.

    Raises :class:`SettingError` for a source whose rows are no texts.
    """
    if isinstance(source, Packed):
        return replace(source, source=without_target(source.source, problem))
    if not isinstance(source, Text):
        raise SettingError(
            f"recipe: a {problem} learns texts, and {type(source).__name__} has other rows. Use "
            "source=Text(path, text=...)."
        )
    return replace(source, target=None)


def check_has_target(source: Source, problem: str) -> None:
    """Raise :class:`SettingError` for texts without a target."""
    inside = source.source if isinstance(source, Packed) else source
    if isinstance(inside, Text) and inside.target is None:
        raise SettingError(
            f"recipe: Text(target=None) has nothing that a {problem} could predict. Name the column as "
            "Text(path, target=...), or use problem=LanguageModel()."
        )


def _own_files(path: Path, own: "Table | ImageFolder | Text") -> Source:
    """The source of a recipe with its files at `path`, or in the only folder there.

    A folder that has the recipe's table of targets, also in a sub-folder, is the folder of images.
    """
    for _ in range(_MAX_DEPTH):
        inner = _only_folder(path)
        has_targets = isinstance(own, ImageFolder) and (path / own.targets).is_file()
        if inner is None or inner.name in NAMES or has_targets:
            break
        path = inner
    return replace(own, path=path)


def _recognise(path: Path, classes: tuple[str, ...], own: Source | None) -> tuple[Source, str]:
    for depth in range(_MAX_DEPTH):
        if source_and_kind := _look(path, classes, own):
            return source_and_kind
        inner = _only_folder(path)
        if inner is None or depth == _MAX_DEPTH - 1:
            break
        path = inner
    if _holds_csv(path):
        raise DataError(f"{path}: CSV files need a recipe with a table, as source=Table(path, target=...).")
    raise DataError(
        f"{path}: no source that Evergreen knows. Looked for idx files (such as "
        f"{idx.FILES['train', 'images']}), CIFAR-10's binary version (such as data_batch_1.bin), *.parquet "
        "here or in train/ and test/, folders of images (train/<class>/ and test/<class>/, or <class>/), and "
        f"archives of these ({', '.join(SUFFIXES)})."
    )


def _look(path: Path, classes: tuple[str, ...], own: Source | None) -> tuple[Source, str] | None:
    """The source at `path` and its kind in words. CIFAR-10 beside idx files is meant if `own` is CIFAR-10."""
    if path.is_file():
        is_parquet = path.suffix.lower() in {".parquet", ".pq"}
        return (ParquetImages(path, classes=classes), "a Parquet file") if is_parquet else None
    name = own.name if isinstance(own, IdxFiles) else ""
    is_cifar = cifar.locate(path) is not None
    if not (is_cifar and isinstance(own, Cifar10)) and idx.locate(path, name):
        return IdxFiles(path.name, classes, path), "idx files as of MNIST"
    if is_cifar:
        return Cifar10(path, classes or cifar.CLASSES), "CIFAR-10's binary version"
    if cifar.is_pickled(path):
        raise DataError(
            f"{path}: the Python version of CIFAR-10 is made of pickles, which can run any code and are "
            "never loaded. Take cifar-10-binary.tar.gz instead."
        )
    if any(files_with(at, (".parquet",)) for at in (path, path / "train", path / "test")):
        return ParquetImages(path, classes=classes), "Parquet files"
    if folder_listing.holds_images(path):
        return ImageFolder(path, classes), "folders of images, one a class"
    return None


def _holds_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv" if path.is_file() else bool(files_with(path, (".csv",)))


def _only_folder(path: Path) -> Path | None:
    """The only folder in `path`, or None when there is anything else that is visible."""
    if not path.is_dir():
        return None
    inner = list(folder_listing.visible(path))
    return Path(inner[0].path) if len(inner) == 1 and inner[0].is_dir() else None
