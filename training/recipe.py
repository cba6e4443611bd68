"""Load recipe files: execute them once, from their place or from the copy in a run's folder.

A recipe file defines `recipe = Recipe(...)`; see :mod:`training.recipe_declaration`. Older recipe files import
`Recipe`, `Torch`, the image and text shapes and `Augmentation` from here; new recipe files import these names from
`evergreen`.
"""

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType

from pydantic import ValidationError

from training.data.images.augmentation import Augmentation as Augmentation
from training.data.sources.places import beside
from training.errors import SettingError
from training.preprocessors import declared_steps
from training.recipe_checks import check_named_files, checked_name
from training.recipe_copy import check_copy
from training.recipe_declaration import BuildModel as BuildModel
from training.recipe_declaration import Recipe as Recipe
from training.recipe_declaration import Torch as Torch
from training.recipe_declaration import TransformRows as TransformRows
from training.recipe_errors import ENDS_PROGRAM, missing_extra
from training.recipe_sources import (
    OWN_PACKAGES,
    RecipeRef,
    digest_of_files,
    digest_of_function,
    files_inside,
    local_files,
    names_of,
    recipe_folders,
    sources_of,
)
from training.records import ImageShape as ImageShape
from training.settings.overrides import explained
from training.storage.given_paths import resolved
from training.text_shape import TextShape as TextShape

_NAME = re.compile(r"\w[\w.-]{0,99}")
_LONGEST_NAME = 240  # bytes; file systems allow 255
BUILT_IN = (
    "digits",
    "digits-lightning",
    "digits-accelerate",
    "digits-keras",
    "digits-tensorflow",
    "fashion-mnist",
    "mnist",
    "cifar10-resnet",
    "cifar10-vit",
    "diabetes",
    "breast-cancer",
    "breast-cancer-lightgbm",
    "rt-polarity",
    "rt-polarity-mean",
    "rt-polarity-gpt2",
    "dreambooth",
)
_executing: ContextVar[frozenset[Path]] = ContextVar("executing", default=frozenset())
_loaded: dict[Path, tuple[Recipe, RecipeRef]] = {}  # by the path of the recipe file
_reloaded: dict[tuple[str, Path], Recipe] = {}  # by digest and folder of the run's copy


def is_built_in(ref: RecipeRef) -> bool:
    """Whether `ref` is one of Evergreen's own recipes."""
    return ref.name in BUILT_IN and Path(ref.path).parent == Path(__file__).parent / "recipes"


def load(name_or_path: str | Path) -> tuple[Recipe, RecipeRef]:
    """Load a recipe, given as one of the names in :data:`BUILT_IN` or as a path ending in `.py`.

    A process executes a recipe file once, and again only when the recipe's code or files changed.

    Raises :class:`SettingError` if there is no such recipe, or its file or the files that it names are not valid.
    """
    path = _path_of(checked_name(name_or_path))
    if outer := _executing.get() - {path}:
        raise SettingError(
            f"recipe {min(outer)}: the file loads the recipe {path} while it is loaded itself, and its run key would "
            "miss changes there. Import what the recipe needs, as in `from training.recipes.digits import build_model` "
            'or from a file beside the recipe; write calls such as retrain() below `if __name__ == "__main__":`.'
        )
    files = sources_of(path)
    if (known := _loaded.get(path)) is not None and _is_current(*known, files):
        _make_importable(path, files_inside(files, path.parent), again=True)
        return known
    recipe = _executed(path, files)
    files += _named_files(recipe, path)
    check_named_files(path, recipe.files, files)
    _resolve_paths(recipe, path.parent)
    ref = _reference(recipe, path, files)
    _loaded[path] = recipe, ref
    return recipe, ref


def _path_of(name_or_path: str) -> Path:
    """The file of a recipe. Raises :class:`SettingError` if there is none."""
    if name_or_path.endswith(".py"):
        path = resolved(name_or_path, "recipe")
    elif name_or_path in BUILT_IN:
        path = Path(__file__).parent / "recipes" / f"{name_or_path.replace('-', '_')}.py"
    else:
        raise SettingError(
            f"recipe {name_or_path!r}: no such recipe; take one of {', '.join(BUILT_IN)}, or a path ending in .py"
        )
    if not path.is_file():
        raise SettingError(f"recipe {path}: no such file")
    return path


def _executed(path: Path, files: list[Path]) -> Recipe:
    """Execute a recipe's file; returns its `recipe`. Raises :class:`SettingError` if that is not valid."""
    recipe = getattr(_import_file(path, files), "recipe", None)
    if not isinstance(recipe, Recipe):
        raise SettingError(f"recipe {path}: the file must define `recipe = Recipe(...)`")
    if not _NAME.fullmatch(recipe.name) or len(recipe.name.encode()) > _LONGEST_NAME:
        raise SettingError(
            f"recipe {path}: name {recipe.name!r} is the name of folders and of the registered model; use at most 100 "
            f"letters, digits, `_`, `-` and `.`, the first not `-` or `.`, and {_LONGEST_NAME} bytes in UTF-8"
        )
    return recipe


def _reference(recipe: Recipe, path: Path, files: list[Path]) -> RecipeRef:
    """The record of a recipe's code: the digests of all its files, and of those in the folder of its file."""
    inside = files_inside(files, path.parent)
    return RecipeRef(
        name=recipe.name,
        path=str(path),
        files=tuple(str(file) for file in files),
        digest=digest_of_files(files, names_of(files, path.parent)),
        problem=recipe.problem.name,
        transform=digest_of_function(recipe.transform_rows, files, path.parent),
        preprocessors=declared_steps(recipe.name, recipe.preprocessors),
        copied=digest_of_files(inside, names_of(inside, path.parent)),
    )


def _is_current(recipe: Recipe, ref: RecipeRef, sources: list[Path]) -> bool:
    """Whether a loaded recipe still has the same files with the same content."""
    files = [*sources, *_named_files(recipe, Path(ref.path))]
    if ref.files != tuple(str(file) for file in files) or not all(file.is_file() for file in files):
        return False
    return ref.digest == digest_of_files(files, names_of(files, Path(ref.path).parent))


def _resolve_paths(recipe: Recipe, folder: Path) -> None:
    """Make the relative paths of a recipe's source and settings relative to `folder`, the folder of the recipe file."""
    object.__setattr__(recipe, "source", beside(recipe.source, folder))
    object.__setattr__(recipe, "settings", recipe.settings.beside(folder))


def _named_files(recipe: Recipe, path: Path) -> list[Path]:
    """The files of a recipe that its code does not import: those that `files` names, and those of a default network."""
    chosen = recipe.chosen_file
    own = sorted(local_files(chosen, chosen.parent)) if chosen is not None else []
    return [path.parent / name for name in recipe.files] + own


def reload(ref: RecipeRef, folder: Path, *, any_version: bool = False) -> Recipe:
    """Load the recipe of `ref` from the run's copy in `folder`. Relative paths stay as the file has them.

    Raises :class:`SettingError` as :func:`check_copy`; then no code of the copy is executed.
    """
    files = check_copy(ref, folder, any_version=any_version)
    path = folder / Path(ref.path).name
    recipe: Recipe = _import_file(path, [file for file in files if file.suffix == ".py"]).recipe
    return recipe


def reload_once(ref: RecipeRef, folder: Path) -> Recipe:
    """As :func:`reload`, but a process executes the copy once; for code that changes no global variable."""
    key = ref.digest, folder
    if key not in _reloaded:
        _reloaded[key] = reload(ref, folder)
        return _reloaded[key]
    files = check_copy(ref, folder)
    _make_importable(folder / Path(ref.path).name, files_inside(files, folder), again=True)
    return _reloaded[key]


def reload_with_paths(ref: RecipeRef, folder: Path) -> Recipe:
    """As :func:`reload_once`; relative paths of source and settings are relative to the original, as in :func:`load`.

    Workers read no source, and a path such as `~/rows.csv` may not exist on their machine.
    """
    recipe = reload_once(ref, folder)
    _resolve_paths(recipe, Path(ref.path).parent)
    return recipe


@contextmanager
def modules_set_aside(folder: Path) -> Iterator[None]:
    """Within the block, imports of the recipe in `folder` and of its helpers execute their code again.

    So their global variables begin with the values that they have in a new process. After the block, the old modules
    are restored.
    """
    before = {name: module for name, module in list(sys.modules.items()) if _is_from(module, folder)}
    for name in before:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.modules.update(before)


def _is_from(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and Path(str(file)).is_relative_to(folder)


def _import_file(path: Path, files: list[Path]) -> ModuleType:
    """Execute a recipe file. `files` are its Python files; the files in the recipe's folder become importable."""
    if path in _executing.get():
        raise SettingError(
            f"recipe {path}: the file calls a function of Evergreen, such as retrain(), on itself, and so would be "
            'executed without end. Write the call below `if __name__ == "__main__":`.'
        )
    name = f"evergreen_recipe_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that classes of the recipe can be pickled in this process
    outer = _executing.set(_executing.get() | {path})
    try:
        _forget_bytecode(files_inside(files, path.parent))
        _make_importable(path, files_inside(files, path.parent))
        spec.loader.exec_module(module)
    except SettingError:
        raise
    except SystemExit as error:
        raise SettingError(f"recipe {path}: {ENDS_PROGRAM}") from error
    except Exception as error:
        if isinstance(error, ValidationError):
            raise SettingError(f"recipe {path}: {explained(error)}") from error
        end = _clash(path, error) or missing_extra(error)
        raise SettingError(f"recipe {path}: {type(error).__name__}: {error}{end}") from error
    finally:
        _executing.reset(outer)
    return module


def _forget_bytecode(files: list[Path]) -> None:
    """Remove what Python compiled of a recipe's files before.

    Python would execute this code if the file has the same size as then and was changed in the same second.
    """
    for file in files:
        if not file.is_relative_to(Path(__file__).parent):
            with suppress(OSError, NotImplementedError):  # not there; an interpreter that stores none
                Path(importlib.util.cache_from_source(str(file))).unlink()


def _clash(path: Path, error: Exception) -> str:
    """The end of the error message if a recipe imports a name that Evergreen's packages lack; empty otherwise."""
    top = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    local = path.parent / top
    if top not in OWN_PACKAGES:
        return ""
    if not (local.is_dir() or local.with_suffix(".py").is_file()):
        return (
            ". Modules of Evergreen may move between versions: import from `evergreen`, such as "
            "`from evergreen import Recipe`."
        )
    return (
        f". {local} has the name of one of Evergreen's own packages ({', '.join(OWN_PACKAGES)}), which Python "
        "imports instead: rename it."
    )


def _make_importable(path: Path, files: list[Path], again: bool = False) -> None:
    """Make the files beside a recipe importable in their current version, also for imports inside functions.

    Python caches modules by name alone: without this, a recipe would get another recipe's module of the same name, or
    an older version of its own. `again`: the recipe was loaded before, and its own modules stay.
    """
    folder = path.parent
    names = {file.relative_to(folder).parts[0].removesuffix(".py") for file in files if file != path}
    if not names:
        return
    for name, module in list(sys.modules.items()):
        origin = Path(getattr(module, "__file__", None) or "/")
        is_own = again and origin.is_relative_to(folder)
        if name.partition(".")[0] in names and any(map(origin.is_relative_to, recipe_folders)) and not is_own:
            del sys.modules[name]
    recipe_folders.add(folder)
    sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]
    importlib.invalidate_caches()
