"""What differs between datasets of images and of tables, and is called by code that serves both.

:mod:`training.code_closure` does not follow this module's imports, so that a change of the code for tables retrains no
model of images. :func:`training.data.dataset.transform_modules` names :data:`TABLE_MODULES` for a table. A recipe with
preprocessors has the code of :data:`PREPROCESSING_MODULES` in its run key, and the other recipes have not.
"""

from pathlib import Path
from typing import Any

from training.errors import SettingError
from training.records import DatasetVersion, ProblemName, SourceFiles, Split
from training.settings.schema import DataSettings

TABLE_MODULES = ("training.data.tables.preparation", "training.data.tables.unpacking")
PREPROCESSING_MODULES = ("training.data.preprocessing.preparation",)

_OF_IMAGES = ("image_size", "channels", "duplicates")


def check_settings(files: SourceFiles, settings: DataSettings, problem: ProblemName) -> None:
    """Raises :class:`SettingError` for a problem or settings that this kind of source does not have."""
    if files.kind != "table":
        if problem != "classification":
            raise SettingError(
                f"recipe: a {problem} needs a table, as source=Table(...); {files.origin} has images, with classes"
            )
        return
    defaults = DataSettings()
    for name in _OF_IMAGES:
        if getattr(settings, name) != getattr(defaults, name):
            raise SettingError(
                f"data.{name}: {files.origin} is a table, and the setting is for images; remove it"
            )
    if settings.feed == "stream":
        raise SettingError("data.feed: a table is read from memory; use data.feed=memory")


def make_table_version(*arguments: Any, **options: Any) -> DatasetVersion:
    """See :func:`training.data.tables.preparation.make_table_version`."""
    from training.data.tables import preparation

    return preparation.make_table_version(*arguments, **options)


def unpack_table(version: DatasetVersion, split: Split, folder: Path) -> None:
    """See :func:`training.data.tables.unpacking.unpack_table`; with preprocessing, `inputs.npy` is preprocessed."""
    if version.table is not None and version.table.preprocessing is not None:
        from training.data.preprocessing.preparation import unpack_preprocessed

        unpack_preprocessed(version, split, folder)
        return
    from training.data.tables import unpacking

    unpacking.unpack_table(version, split, folder)
