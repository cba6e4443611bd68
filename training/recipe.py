"""A recipe: what one model is made of, in one short Python file.

A recipe file defines `recipe = Recipe(...)`. It imports torch inside `build_model`, so that listing, planning
and a run that finds its work done stay fast.
"""

import ast
import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from training.code_closure import source_digest
from training.data.images.augmentation import Augmentation as Augmentation
from training.data.sources import Source
from training.errors import SettingError
from training.records import DatasetVersion, Record, Split
from training.records import ImageShape as ImageShape
from training.settings.schema import Settings
from training.storage.files import atomic_folder

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import Dataset

_NAME = re.compile(r"\w[\w.-]{0,99}")
_OWN_PACKAGES = ("evergreen", "flows", "tasks", "training", "deployments")
_RECIPES = "training.recipes."  # modules that one recipe may take from another
BUILT_IN = ("digits", "fashion-mnist", "mnist", "cifar10-resnet", "cifar10-vit")
_folders: set[Path] = set()  # of the recipes with files beside them that this process has loaded


@dataclass(frozen=True)
class Recipe:
    """A model, its data and its settings.

    `build_model(shape, classes)` returns a fresh module that maps float images of (rows, channels, height, width),
    normalised per channel, to logits of (rows, classes). `dataset(version, split)` may return a map-style torch
    Dataset of (uint8 image, label) pairs for `data.feed=loader`; by default it reads the dataset version. `files`
    names other files that `build_model` reads, relative to the recipe: they count for the run key and go with it.
    """

    name: str
    summary: str
    source: Source
    build_model: Callable[[ImageShape, int], "nn.Module"]
    settings: Settings = field(default_factory=Settings)
    augmentation: Augmentation = field(default_factory=Augmentation)
    dataset: Callable[[DatasetVersion, Split], "Dataset[Any]"] | None = None
    files: tuple[str, ...] = ()


class RecipeRef(Record):
    """Where a recipe's source lies and what it was when it was hashed; passes between processes."""

    name: str
    path: str
    files: tuple[str, ...]
    digest: str


def is_built_in(ref: RecipeRef) -> bool:
    """Whether the recipe comes with Evergreen."""
    return ref.name in BUILT_IN and Path(ref.path).parent == Path(__file__).parent / "recipes"


def load(name_or_path: str) -> tuple[Recipe, RecipeRef]:
    """The recipe called `name_or_path`: one of :data:`BUILT_IN`, or a path ending in `.py`.

    Raises :class:`SettingError` when there is no such recipe or its file does not define one.
    """
    if name_or_path.endswith(".py"):
        path = Path(name_or_path).expanduser().resolve()
    elif name_or_path in BUILT_IN:
        path = Path(__file__).parent / "recipes" / f"{name_or_path.replace('-', '_')}.py"
    else:
        raise SettingError(
            f"recipe {name_or_path!r}: no such recipe; take one of {', '.join(BUILT_IN)}, or a path ending in .py"
        )
    if not path.is_file():
        raise SettingError(f"recipe {path}: no such file")
    files = _sources(path)
    recipe = getattr(_import_file(path, files), "recipe", None)
    if not isinstance(recipe, Recipe):
        raise SettingError(f"recipe {path}: the file must define `recipe = Recipe(...)`")
    if not _NAME.fullmatch(recipe.name):
        raise SettingError(
            f"recipe {path}: name {recipe.name!r} is the name of folders and of the registered model; use letters, "
            "digits, `_`, `-` and `.`, beginning with a letter or digit"
        )
    files += [path.parent / name for name in recipe.files]
    if missing := [file for file in files if not file.is_file()]:
        raise SettingError(f"recipe {path}: files names {missing[0]}, which does not exist")
    if outside := [name for name in recipe.files if not _is_inside(path.parent / name, path.parent)]:
        raise SettingError(f"recipe {path}: files names {outside[0]}, which lies outside the recipe's folder")
    return recipe, RecipeRef(
        name=recipe.name, path=str(path), files=tuple(str(file) for file in files), digest=_digest(files)
    )


def reload(ref: RecipeRef, folder: Path) -> Recipe:
    """The recipe that `ref` names, from the copy that the run keeps in `folder`.

    Raises :class:`SettingError` when it is not what was hashed; then nothing of it is executed.
    """
    path = folder / Path(ref.path).name
    files = [_kept(ref, Path(file), folder) for file in ref.files]
    if not all(file.is_file() for file in files) or _digest(files) != ref.digest:
        raise SettingError(
            f"recipe {folder}: the copy kept with the run was changed; remove the folder and run again"
        )
    recipe: Recipe = _import_file(path, [file for file in files if file.suffix == ".py"]).recipe
    return recipe


@contextmanager
def modules_set_aside(folder: Path) -> Iterator[None]:
    """Inside the block, a recipe in `folder` and its helpers are imported again; afterwards the old modules are back.

    What their global variables hold inside the block is what a new process would start with.
    """
    before = {name: module for name, module in sys.modules.items() if _is_from(module, folder)}
    for name in before:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.modules.update(before)


def _is_from(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and Path(str(file)).is_relative_to(folder)


def keep_copy(ref: RecipeRef, folder: Path) -> None:
    """Copy the recipe's files into `folder`, so that every attempt of a run executes what was hashed.

    Raises :class:`SettingError` when they were changed since.
    """
    if folder.is_dir():
        return
    if _digest([Path(file) for file in ref.files]) != ref.digest:
        raise SettingError(f"recipe {ref.path}: it was changed while its run was prepared; run again")
    with atomic_folder(folder) as aside:
        for file in map(Path, ref.files):
            if (target := _kept(ref, file, aside)) != file:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())


def _kept(ref: RecipeRef, file: Path, folder: Path) -> Path:
    """Where `file` lies in a run's copy: files of other recipes that come with Evergreen stay where they are."""
    base = Path(ref.path).parent
    return folder / file.relative_to(base) if _is_inside(file, base) else file


def _is_inside(file: Path, folder: Path) -> bool:
    return file.resolve().is_relative_to(folder.resolve())


def _sources(path: Path) -> list[Path]:
    """A recipe file and the files that it imports. Raises :class:`SettingError` when one can't be parsed."""
    try:
        return sorted(_local_files(path, path.parent))
    except (SyntaxError, ValueError) as error:
        raise SettingError(f"recipe {path}: {type(error).__name__}: {error}") from error


def _import_file(path: Path, files: list[Path]) -> ModuleType:
    """Execute a recipe file; `files` are those of its folder that it imports."""
    name = f"evergreen_recipe_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # lets classes that the recipe defines be pickled within the process
    try:
        _make_importable(path, [file for file in files if _is_inside(file, path.parent)])
        spec.loader.exec_module(module)
    except SettingError:
        raise
    except Exception as error:
        raise SettingError(f"recipe {path}: {type(error).__name__}: {error}{_clash(path, error)}") from error
    return module


def _clash(path: Path, error: Exception) -> str:
    """The remedy when a recipe imports something from Evergreen's packages that is not there."""
    top = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    beside = path.parent / top
    if top not in _OWN_PACKAGES:
        return ""
    if not (beside.is_dir() or beside.with_suffix(".py").is_file()):
        return (
            ". Modules of Evergreen may move between versions: import from `evergreen`, such as "
            "`from evergreen import Recipe`."
        )
    return (
        f". {beside} has the name of one of Evergreen's own packages ({', '.join(_OWN_PACKAGES)}), which Python "
        "imports instead: rename it."
    )


def _make_importable(path: Path, files: list[Path]) -> None:
    """Let a recipe import the files beside it as they are now, inside its functions too.

    Python keeps modules by name alone: it would take another recipe's file of that name, or an older text.
    """
    folder = path.parent
    names = {file.relative_to(folder).parts[0].removesuffix(".py") for file in files if file != path}
    if not names:
        return
    for name, module in list(sys.modules.items()):
        origin = Path(getattr(module, "__file__", None) or "/")
        if name.partition(".")[0] in names and any(map(origin.is_relative_to, _folders)):
            del sys.modules[name]
    _folders.add(folder)
    sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]
    importlib.invalidate_caches()


def _local_files(path: Path, folder: Path) -> set[Path]:
    """`path` and the files beside it that it imports, directly or through each other."""
    found, queue = {path}, [path]
    while queue:
        for node in ast.walk(ast.parse(queue.pop().read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            near = [
                Path(__file__).parent / "recipes" / f"{name.removeprefix(_RECIPES)}.py"
                for name in names
                if name.startswith(_RECIPES)
            ]
            tops = {name.partition(".")[0] for name in names} - {"", *_OWN_PACKAGES}
            near += [folder / f"{top}.py" for top in tops]
            near += [
                file
                for top in tops
                if (folder / top / "__init__.py").is_file()
                for file in (folder / top).rglob("*.py")
            ]
            new = {file for file in near if file.is_file()} - found
            found |= new
            queue += new
    return found


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted((file.name, _what_counts(file)) for file in files):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _what_counts(file: Path) -> bytes:
    """Of Python files all but comments, docstrings and layout; of other files every byte."""
    content = file.read_bytes()
    if file.suffix == ".py":
        with suppress(SyntaxError, ValueError):
            return source_digest(content.decode()).encode()
    return content
