"""Functions that differ between datasets of images and of tables, for callers that serve both.

:mod:`training.code_closure` does not follow this module's imports, so that a change of the code for tables, or for
images with numbers to predict, retrains no image classifier. For datasets that use :data:`TABLE_MODULES`,
:data:`TARGET_MODULES` or :data:`TEXT_MODULES`, :func:`training.data.versions.transform_modules` adds these
modules to the run key. Only recipes with preprocessors have the code of :data:`PREPROCESSING_MODULES` in their run key.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.errors import DataError, SettingError
from training.problems.objectives import objective_named
from training.records import DatasetVersion, ProblemName, SourceFiles, Split, TableSchema
from training.settings.schema import DataSettings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

TABLE_MODULES = ("training.data.tables.preparation", "training.data.tables.unpacking")
PREPROCESSING_MODULES = ("training.data.preprocessing.preparation",)

TEXT_MODULES = ("training.data.text.preparation", "training.data.text.unpacking")

TARGET_MODULES = ("training.data.image_targets.preparation", "training.data.image_targets.unpacking")
# Kinds of SourceFiles that are images with numbers to predict.
TARGET_KINDS = frozenset({"folder-targets", "parquet-targets"})

_OF_IMAGES = ("image_size", "channels", "duplicates")
_OF_TEXT = ("max_tokens", "vocabulary")


def check_settings(files: SourceFiles, settings: DataSettings, problem: ProblemName) -> None:
    """Raises :class:`SettingError` for a problem or settings that this kind of source does not support.

    Raises :class:`DataError` for images of a single class, if the problem is to predict their class.
    """
    if files.kind != "text":
        _check_unused(files, settings, _OF_TEXT, "text")
    if files.kind not in ("table", "text"):
        _check_target(files, problem)
        return
    _check_unused(files, settings, _OF_IMAGES, "images")
    if files.kind == "text" and settings.feed == "stream":
        raise SettingError("data.feed: text is read from memory; use data.feed=memory")


_NOUN = {"table": "a table", "text": "text"}
_BETWEEN_CLASSES = "cross_entropy"  # a loss that is 0 with a single class


def _check_unused(files: SourceFiles, settings: DataSettings, names: tuple[str, ...], kind: str) -> None:
    """Raises :class:`SettingError` for a setting among `names`, which are for rows of `kind`, without its default."""
    defaults = DataSettings()
    for name in names:
        if getattr(settings, name) != getattr(defaults, name):
            what = f"is {_NOUN[files.kind]}" if files.kind in _NOUN else "has images"
            raise SettingError(
                f"data.{name}: {files.origin} {what}, and the setting is for {kind}; remove it"
            )


def _check_target(files: SourceFiles, problem: ProblemName) -> None:
    """Raises :class:`SettingError` for images without the targets that the problem needs: classes, or numbers.

    Raises :class:`DataError` for images of a single class, between which a model has nothing to choose.
    """
    has_numbers = files.kind in TARGET_KINDS
    if len(files.classes) == 1 and objective_named(problem).loss == _BETWEEN_CLASSES:
        raise DataError(
            f"{files.origin}: all images are of one class, {files.classes[0]}; a {problem} needs at least 2 classes. "
            "Make a folder for each class, or give each image a label."
        )
    if has_numbers and objective_named(problem).target == "class":
        raise SettingError(
            f"recipe: {files.origin} has a number for each image, in column {files.target!r}, and a {problem} needs "
            "classes. Use problem=Regression(), or ImageFolder(path) with one folder for each class."
        )
    if not has_numbers and objective_named(problem).target == "number":
        raise SettingError(
            f"recipe: a {problem} needs a number for each row; {files.origin} has images, with classes. Use a source "
            "such as ImageFolder(path, target=...), ParquetImages(path, label=...) or Table(path, target=...)."
        )


def make_table_version(*arguments: Any, **options: Any) -> DatasetVersion:
    """See :func:`training.data.tables.preparation.make_table_version`."""
    from training.data.tables import preparation

    return preparation.make_table_version(*arguments, **options)


def with_profile(
    version: DatasetVersion, folder: Path, files: SourceFiles, settings: DataSettings
) -> DatasetVersion:
    """The version with its profile; its part files are still in `folder`."""
    from training.data.profiles.making import profile_of
    from training.data.tables.typed_copy import read_notes

    notes = read_notes(Path(files.root)) if files.kind in ("table", "text") else None
    profile = profile_of(version, folder, counted=notes is not None and not notes.target)
    about: dict[str, Any] = {"subset": (settings.max_train_rows, settings.max_test_rows)}
    if notes is not None and notes.newest is not None:
        about |= {"newest": notes.newest, "newest_is_date": notes.time == "date"}
    return version.model_copy(update={"profile": profile.model_copy(update=about)})


def model_inputs(rows: "pa.Table", schema: TableSchema, prefix: str) -> "npt.NDArray[np.float32]":
    """See :func:`training.data.preprocessing.applying.model_inputs`."""
    from training.data.preprocessing import applying

    return applying.model_inputs(rows, schema, prefix)


def unpack_table(version: DatasetVersion, split: Split, folder: Path) -> None:
    """Unpack a split of a dataset with a table schema: rows of a table, images with numbers to predict, or texts.

    See :func:`training.data.tables.unpacking.unpack_table`; with preprocessing, `inputs.npy` is preprocessed. For
    images, see :func:`training.data.image_targets.unpacking.unpack_images`; for text,
    :func:`training.data.text.unpacking.unpack_text`.
    """
    if version.table is not None and version.table.preprocessing is not None:
        from training.data.preprocessing.preparation import unpack_preprocessed

        unpack_preprocessed(version, split, folder)
    elif version.text is not None:
        from training.data.text.unpacking import unpack_text

        unpack_text(version, split, folder)
    elif version.has_images:
        from training.data.image_targets.unpacking import unpack_images

        unpack_images(version, split, folder)
    else:
        from training.data.tables import unpacking

        unpacking.unpack_table(version, split, folder)
