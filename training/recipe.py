"""Recipe files: load a recipe, copy its files into a run's folder, and digest what of them counts for the run key.

A recipe file defines `recipe = Recipe(...)`; see :mod:`training.recipe_declaration`. Recipe files may
import its names from here, too, and those of shapes and augmentation; new ones import from `evergreen`.
"""

import ast
import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from pydantic import ValidationError

from training.code_closure import source_digest
from training.data.images.augmentation import Augmentation as Augmentation
from training.data.sources.places import beside
from training.errors import SettingError
from training.preprocessors import declared_steps
from training.recipe_checks import check_named_files, checked_name
from training.recipe_declaration import BuildModel as BuildModel
from training.recipe_declaration import Recipe as Recipe
from training.recipe_declaration import Torch as Torch
from training.recipe_declaration import TransformRows as TransformRows
from training.recipe_errors import ENDS_PROGRAM, missing_extra
from training.records import ImageShape as ImageShape
from training.records import ProblemName, Record
from training.settings.overrides import explained
from training.storage.files import atomic_folder, digest_json
from training.storage.given_paths import resolved
from training.table_records import DeclaredStep
from training.text_shape import TextShape as TextShape

_NAME = re.compile(r"\w[\w.-]{0,99}")
OWN_PACKAGES = ("evergreen", "flows", "tasks", "training", "deployments")
_RECIPES = "training.recipes."  # a recipe may import the modules of these recipes
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
    "rt-polarity-bert",
    "rt-polarity-gpt2",
    "dreambooth",
)
_folders: set[Path] = set()  # of loaded recipes that import files beside them
_executing: ContextVar[frozenset[Path]] = ContextVar("executing", default=frozenset())


class RecipeRef(Record):
    """Reference to a recipe, passed between processes: its files, and the digest of their content at planning."""

    name: str
    path: str
    files: tuple[str, ...]
    digest: str
    problem: ProblemName = "classification"
    transform: str = ""  # digest of the code of `transform_rows`; empty: the recipe has no such function
    preprocessors: tuple[DeclaredStep, ...] = ()


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
    name_or_path = checked_name(name_or_path)
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
    files = _sources(path)
    if (known := _loaded.get(path)) is not None and _is_current(*known, files):
        _make_importable(path, _inside(files, path.parent), again=True)
        return known
    recipe = getattr(_import_file(path, files), "recipe", None)
    if not isinstance(recipe, Recipe):
        raise SettingError(f"recipe {path}: the file must define `recipe = Recipe(...)`")
    if not _NAME.fullmatch(recipe.name):
        raise SettingError(
            f"recipe {path}: name {recipe.name!r} is the name of folders and of the registered model; use at most 100 "
            "letters, digits, `_`, `-` and `.`, the first not `-` or `.`"
        )
    files += _named_files(recipe, path)
    check_named_files(path, recipe.files, files)
    _place(recipe, path.parent)
    ref = RecipeRef(
        name=recipe.name,
        path=str(path),
        files=tuple(str(file) for file in files),
        digest=_digest(files, _names(files, path.parent)),
        problem=recipe.problem.name,
        transform=_digest_of(recipe.transform_rows, files, path.parent),
        preprocessors=declared_steps(recipe.name, recipe.preprocessors),
    )
    _loaded[path] = recipe, ref
    return recipe, ref


def _is_current(recipe: Recipe, ref: RecipeRef, sources: list[Path]) -> bool:
    """Whether a loaded recipe still has the same files with the same content."""
    files = [*sources, *_named_files(recipe, Path(ref.path))]
    if ref.files != tuple(str(file) for file in files) or not all(file.is_file() for file in files):
        return False
    return ref.digest == _digest(files, _names(files, Path(ref.path).parent))


def _place(recipe: Recipe, folder: Path) -> None:
    """Make the relative paths of a recipe's source and settings relative to `folder`, the folder of the recipe file."""
    object.__setattr__(recipe, "source", beside(recipe.source, folder))
    object.__setattr__(recipe, "settings", recipe.settings.beside(folder))


def _named_files(recipe: Recipe, path: Path) -> list[Path]:
    """The files of a recipe that its code does not import: those that `files` names, and those of a default network."""
    chosen = recipe.chosen_file
    own = sorted(_local_files(chosen, chosen.parent)) if chosen is not None else []
    return [path.parent / name for name in recipe.files] + own


def reload(ref: RecipeRef, folder: Path) -> Recipe:
    """Load the recipe of `ref` from the run's copy in `folder`. Relative paths stay as the file has them.

    Raises :class:`SettingError` if the digest of the copy is not that in `ref`; then no code of the copy is executed.
    """
    files = check_copy(ref, folder)
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
    _make_importable(folder / Path(ref.path).name, _inside(files, folder), again=True)
    return _reloaded[key]


def reload_with_paths(ref: RecipeRef, folder: Path) -> Recipe:
    """As :func:`reload_once`; relative paths of source and settings are relative to the original, as in :func:`load`.

    Workers read no source, and a path such as `~/rows.csv` may not exist on their machine.
    """
    recipe = reload_once(ref, folder)
    _place(recipe, Path(ref.path).parent)
    return recipe


def check_copy(ref: RecipeRef, folder: Path) -> list[Path]:
    """The files of the run's copy of a recipe in `folder`. Raises :class:`SettingError` if the copy was changed."""
    files = [_kept(ref, Path(file), folder) for file in ref.files]
    if not all(file.is_file() for file in files) or ref.digest not in (
        _digest(files, _names(list(map(Path, ref.files)), Path(ref.path).parent)),
        # Digests of earlier Evergreen versions: names without folders; before that, also over every byte.
        _digest(files, [file.name for file in files]),
        _digest(files, [file.name for file in files], Path.read_bytes),
    ):
        raise SettingError(
            f"recipe {folder}: the copy kept with the run was changed; remove the folder and run again"
        )
    return files


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


def keep_copy(ref: RecipeRef, folder: Path) -> None:
    """Copy the recipe's files into `folder`, so that every attempt of a run executes the code that was hashed.

    Does nothing if `folder` exists. Raises :class:`SettingError` if the files have changed since `ref` was created.
    """
    if folder.is_dir():
        return
    files = list(map(Path, ref.files))
    if _digest(files, _names(files, Path(ref.path).parent)) != ref.digest:
        raise SettingError(f"recipe {ref.path}: it was changed while its run was prepared; run again")
    with atomic_folder(folder) as aside:
        for file in files:
            if (target := _kept(ref, file, aside)) != file:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())


def changed_files(ref: RecipeRef, folder: Path) -> list[str]:
    """Names of the recipe's files that differ from the copy of an earlier run in `folder`: changed, new and gone.

    Comments, docstrings and layout do not count. Empty if there is no copy.
    """
    if not folder.is_dir():
        return []
    base = Path(ref.path).parent
    now = {file.relative_to(base): file for file in _inside([*map(Path, ref.files)], base)}
    before = {file.relative_to(folder): file for file in folder.rglob("*") if file.is_file()}
    found = []
    for name in sorted(now.keys() | before.keys()):
        if "__pycache__" in name.parts:
            continue
        if name not in before or name not in now:
            found.append(f"{name} is {'new' if name in now else 'gone'}")
        elif _what_counts(now[name]) != _what_counts(before[name]):
            found.append(f"{name} changed")
    return found


def _kept(ref: RecipeRef, file: Path, folder: Path) -> Path:
    """Path of `file` in a run's copy. Files outside the recipe's folder (Evergreen's own recipes) are not copied."""
    base = Path(ref.path).parent
    return folder / file.relative_to(base) if _is_inside(file, base) else file


def _is_inside(file: Path, folder: Path) -> bool:
    """Whether `file` is in `folder` by its path; the file or a folder on the path may be a link to another place."""
    return file.is_relative_to(folder) and ".." not in file.relative_to(folder).parts


def _inside(files: list[Path], folder: Path) -> list[Path]:
    return [file for file in files if _is_inside(file, folder)]


def _sources(path: Path) -> list[Path]:
    """A recipe file and the files that it imports. Raises :class:`SettingError` if a file can't be parsed."""
    try:
        return sorted(_local_files(path, path.parent))
    except (SyntaxError, ValueError) as error:
        raise SettingError(f"recipe {path}: {type(error).__name__}: {error}") from error


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
        _make_importable(path, _inside(files, path.parent))
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


def _clash(path: Path, error: Exception) -> str:
    """The end of the error message if a recipe imports a name that Evergreen's packages lack; empty otherwise."""
    top = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    beside = path.parent / top
    if top not in OWN_PACKAGES:
        return ""
    if not (beside.is_dir() or beside.with_suffix(".py").is_file()):
        return (
            ". Modules of Evergreen may move between versions: import from `evergreen`, such as "
            "`from evergreen import Recipe`."
        )
    return (
        f". {beside} has the name of one of Evergreen's own packages ({', '.join(OWN_PACKAGES)}), which Python "
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
        if name.partition(".")[0] in names and any(map(origin.is_relative_to, _folders)) and not is_own:
            del sys.modules[name]
    _folders.add(folder)
    sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]
    importlib.invalidate_caches()


def _local_files(path: Path, folder: Path) -> set[Path]:
    """`path` and the files that it imports, directly or indirectly: files beside it, and Evergreen's own recipes."""
    found, queue = {path}, [path]
    while queue:
        for node in ast.walk(ast.parse(queue.pop().read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                # What follows `import` may be a module, too: `from training.recipes import mnist`.
                names = [module, *(f"{module}.{alias.name}" for alias in node.names if module)]
            else:
                continue
            near = [
                Path(__file__).parent / "recipes" / f"{name.removeprefix(_RECIPES)}.py"
                for name in names
                if name.startswith(_RECIPES)
            ]
            tops = {name.partition(".")[0] for name in names} - {"", *OWN_PACKAGES}
            near += [folder / f"{top}.py" for top in tops]
            near += [
                file for top in tops if _is_package(folder, top) for file in (folder / top).rglob("*.py")
            ]
            new = {file for file in near if file.is_file()} - found
            found |= new
            queue += new
    return found


def _is_package(folder: Path, name: str) -> bool:
    """Whether `import name` finds the package `folder/name`; without `__init__.py`, any other module comes first."""
    place = folder / name
    if (place / "__init__.py").is_file():
        return True
    if not place.is_dir() or name in sys.stdlib_module_names:
        return False
    others = [
        one for one in sys.meta_path if one is not PathFinder
    ]  # such as those of editable installations
    if any(found.origin for one in others if (found := one.find_spec(name, None)) is not None):
        return False
    elsewhere = PathFinder.find_spec(
        name, [entry for entry in sys.path if Path(entry) not in _folders | {folder}]
    )
    return elsewhere is None or elsewhere.origin is None


def _digest(files: list[Path], names: list[str], content_of: Callable[[Path], bytes] | None = None) -> str:
    """Digest of the files' `names` and content."""
    digest = hashlib.sha256()
    contents = map(content_of or _what_counts, files)
    for name, content in sorted(zip(names, contents, strict=True)):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _names(files: list[Path], folder: Path) -> list[str]:
    """Paths of a recipe's files, relative to `folder`: exchanging two files of one name then changes the digest.

    For Evergreen's own files and others outside `folder`, the name alone: their folder may be anywhere.
    """
    own = Path(__file__).parent
    return [
        file.relative_to(folder).as_posix()
        if file.is_relative_to(folder) and not file.is_relative_to(own)
        else file.name
        for file in files
    ]


def _digest_of(function: TransformRows | None, files: list[Path], folder: Path) -> str:
    """Digest of the code that a function's result depends on: its file among a recipe's `files`, and what it imports.

    Of a file in a package beside the recipe, the whole package counts. All `files` count for a callable that is no
    plain function, for a function that a factory or a decorator made, whose values may come from any of them, and for
    a function from elsewhere.
    """
    if function is None:
        return ""
    made = getattr(function, "__closure__", None) or hasattr(function, "__wrapped__")
    is_plain = inspect.isfunction(function) and not made
    place = Path(inspect.getsourcefile(function) or "") if is_plain else Path()
    chosen = _code_at(place, files, folder) if place in files else files
    return digest_json([getattr(function, "__qualname__", ""), _digest(chosen, _names(chosen, folder))])


def _code_at(place: Path, files: list[Path], folder: Path) -> list[Path]:
    """The file `place` of a recipe's `files`, with its package if it is in one beside the recipe, and their imports."""
    if place.parent == folder or not place.is_relative_to(folder):
        return sorted(_local_files(place, place.parent))
    package = folder / place.relative_to(folder).parts[0]
    inside = [file for file in files if file.is_relative_to(package) and file.suffix == ".py"]
    return sorted({found for file in inside for found in _local_files(file, folder)})


def _what_counts(file: Path) -> bytes:
    """The content to hash: a Python file without comments, docstrings and layout; every byte of any other file."""
    content = file.read_bytes()
    if file.suffix == ".py":
        with suppress(SyntaxError, ValueError):
            return source_digest(content.decode()).encode()
    return content
