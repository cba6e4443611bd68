"""Checks of the fields of a recipe, so that a wrong type is an error that names the field, the rule and the remedy.

The fields of sources and of the augmentation are checked here, and not by their own classes: the code of those is part
of the run key, and a change of it would train models again.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from training.data.images.augmentation import Augmentation
from training.errors import SettingError
from training.records import DatasetVersion
from training.settings.schema import Settings

if TYPE_CHECKING:
    from training.recipe_declaration import Recipe

_SOURCES = "training.data.sources."
_METHODS_OF_SOURCE = ("fetch", "count", "splits", "read")
_PROBLEMS = "Classification(), Regression(), LanguageModel() or Denoising()"


def checked_name(given: str | Path) -> str:
    """The name or the path of a recipe, as text. Raises :class:`SettingError` for anything else."""
    if not isinstance(given, str | Path):
        raise SettingError(f"recipe {given!r}: expected the name of a recipe, or a path ending in .py")
    return str(given)


def check_fields(recipe: "Recipe") -> None:
    """Check the types of a recipe's fields. Raises :class:`SettingError` for the first that is wrong."""
    for name in ("name", "summary"):
        if not isinstance(value := getattr(recipe, name), str):
            raise SettingError(f'recipe: {name}={value!r} must be text in quotes, such as {name}="scans"')
    what = f"recipe {recipe.name}"
    _check_source(what, recipe.source)
    _check_object(what, "problem", recipe.problem, ("needs_model",), _PROBLEMS)
    if recipe.trainer is not None:
        _check_object(what, "trainer", recipe.trainer, ("adapted",), "Torch(build_model) or XGBoost()")
    for name, kind, example in (
        ("settings", Settings, "Settings(...)"),
        ("augmentation", Augmentation, "Augmentation(shift=1)"),
        ("metrics", Mapping, 'a dict such as {"f1": build_f1}'),
    ):
        if not isinstance(value := getattr(recipe, name), kind):
            raise SettingError(f"{what}: {name} must be {example}, not {_described(value)}")
    for name in ("build_model", "dataset", "transform_rows"):
        if (value := getattr(recipe, name)) is not None and not callable(value):
            raise SettingError(
                f"{what}: {name} must be a function, not {_described(value)}; write {name}=NAME, without parentheses"
            )
    _check_files(what, recipe.files)
    _check_augmentation(what, recipe.augmentation)


def check_augmentation_is_used(recipe: "Recipe") -> None:
    """Raise :class:`SettingError` for an augmentation, if the recipe's trainer changes no images."""
    training = recipe.settings.training
    if recipe.augmentation != Augmentation() and "augment" not in type(training).model_fields:
        raise SettingError(
            f"recipe {recipe.name}: augmentation: trainer {recipe.settings.trainer} changes no rows while it trains; "
            "remove augmentation"
        )


def check_augmentation_of(recipe: "Recipe", version: DatasetVersion) -> None:
    """Raise :class:`SettingError` for an augmentation, if the rows of the dataset are no images."""
    if recipe.augmentation != Augmentation() and not version.has_images:
        raise SettingError(
            f"recipe {recipe.name}: augmentation changes images, and the source has none; remove augmentation"
        )


def check_named_files(path: Path, named: Sequence[str], files: Sequence[Path]) -> None:
    """Check that a recipe's `files` exist; `named` are the names in its field `files`.

    Raises :class:`SettingError` for a file that is missing, a folder, or outside the folder of the recipe at `path`.
    """
    for file in files:
        if file.is_dir():
            raise SettingError(
                f"recipe {path}: files names {file}, which is a folder; name each of its files"
            )
        if not file.is_file():
            raise SettingError(f"recipe {path}: files names {file}, which does not exist")
    for name in named:
        if not (path.parent / name).resolve().is_relative_to(path.parent.resolve()):
            raise SettingError(f"recipe {path}: files names {name}, which lies outside the recipe's folder")


def _check_object(what: str, name: str, value: Any, attributes: Sequence[str], examples: str) -> None:
    """Raise :class:`SettingError` for a class, and for an object that lacks one of `attributes`."""
    if isinstance(value, type):
        raise SettingError(
            f"{what}: {name}={value.__name__} is a class; add parentheses: {name}={value.__name__}(...)"
        )
    if not all(hasattr(value, attribute) for attribute in attributes):
        raise SettingError(f"{what}: {name} must be such as {examples}, not {_described(value)}")


def _check_source(what: str, source: Any) -> None:
    if source is None:
        raise SettingError(f"{what}: it names no source, such as source=ImageFolder(path)")
    path = repr(str(source)) if isinstance(source, str | Path) else "path"
    examples = f"ImageFolder({path}), Table({path}, target=...) or Text({path})"
    _check_object(what, "source", source, _METHODS_OF_SOURCE, examples)
    if not is_dataclass(source) or not type(source).__module__.startswith(_SOURCES):
        return
    hints = get_type_hints(type(source))
    for field in fields(source):
        value, hint = getattr(source, field.name), hints[field.name]
        rule = _broken_rule(value, hint, field.name)
        if rule:
            raise SettingError(
                f"{what}: {type(source).__name__}({field.name}=...): expected {rule}, not {_described(value)}"
            )


def _broken_rule(value: Any, hint: Any, name: str) -> str:
    """What the field `name` of a source, of the type `hint`, must be, if `value` is something else; else ""."""
    kinds = {hint} if hint is str else set(get_args(hint))
    if value is None and NoneType in kinds:
        return ""
    if get_origin(hint) in (Sequence, tuple) and str in kinds:
        # Also the columns of a DataFrame.
        is_list = isinstance(value, Collection) and not isinstance(value, str)
        good = is_list and all(isinstance(item, str) for item in value)
        return "" if good else f'a list of names, such as {name}=["a", "b"]'
    if str not in kinds or not kinds <= {str, Path, NoneType}:
        return ""
    if Path in kinds:
        return "" if isinstance(value, str | Path) else "one path, as text or pathlib.Path"
    return "" if isinstance(value, str) else f'one text in quotes, such as {name}="a"'


def _check_files(what: str, files: Any) -> None:
    if isinstance(files, str):
        raise SettingError(
            f"{what}: files={files!r} is one text, and each of its letters would count as a file; a comma makes it a "
            f"tuple: files=({files!r},)"
        )
    if not isinstance(files, Collection) or not all(isinstance(file, str | Path) for file in files):
        raise SettingError(
            f'{what}: files must be a tuple of names, such as files=("width.json",), not {_described(files)}; leave it '
            "out if there are no such files"
        )


def _check_augmentation(what: str, given: Augmentation) -> None:
    def number(value: Any) -> bool:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)

    rules: dict[str, tuple[Callable[[Any], bool], str]] = {
        "shift": (
            lambda value: number(value) and isinstance(value, Integral) and int(value) >= 0,
            "a whole number of pixels, 0 or more",
        ),
        "rotation": (number, "a number of degrees"),
        "scale": (
            lambda value: number(value) and 0 <= value < 1,
            "a share of the size, at least 0 and less than 1",
        ),
        "flip": (lambda value: isinstance(value, bool), "True or False"),
    }
    for name, (is_valid, rule) in rules.items():
        if not is_valid(value := getattr(given, name)):
            raise SettingError(f"{what}: augmentation: {name}={value!r} must be {rule}")


def _described(value: Any) -> str:
    return "None" if value is None else f"{value!r}, of the type {type(value).__name__}"
