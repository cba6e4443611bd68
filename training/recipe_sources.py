"""The files of a recipe: those that its file imports, beside it, and their digests, which the run key contains."""

import ast
import hashlib
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

from training.code_closure import source_digest
from training.errors import SettingError
from training.python_files import python_files
from training.recipe_declaration import TransformRows
from training.records import ProblemName, Record
from training.storage.files import digest_json
from training.table_records import DeclaredStep

OWN_PACKAGES = ("evergreen", "flows", "tasks", "training", "deployments")
_RECIPES = "training.recipes."  # a recipe may import the modules of these recipes
recipe_folders: set[Path] = set()  # of loaded recipes that import files beside them


class RecipeRef(Record):
    """Reference to a recipe, passed between processes: its files, and the digest of their content at planning."""

    name: str
    path: str
    files: tuple[str, ...]
    digest: str
    problem: ProblemName = "classification"
    transform: str = ""  # digest of the code of `transform_rows`; empty: the recipe has no such function
    preprocessors: tuple[DeclaredStep, ...] = ()
    copied: str = ""  # digest of the files that a run copies; empty in records of earlier versions


def sources_of(path: Path) -> list[Path]:
    """A recipe file and the files that it imports. Raises :class:`SettingError` if a file can't be parsed."""
    try:
        return sorted(local_files(path, path.parent))
    except (SyntaxError, ValueError) as error:
        raise SettingError(f"recipe {path}: {type(error).__name__}: {error}") from error


def local_files(path: Path, folder: Path) -> set[Path]:
    """`path` and the files that it imports, directly or indirectly: files beside it, and Evergreen's own recipes."""
    files, queue = {path}, [path]
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
            near += [file for top in tops if _is_package(folder, top) for file in python_files(folder / top)]
            new = {file for file in near if file.is_file()} - files
            files |= new
            queue += new
    return files


def _is_package(folder: Path, name: str) -> bool:
    """Whether `import name` finds the package `folder/name`; without `__init__.py`, any other module comes first."""
    package = folder / name
    if (package / "__init__.py").is_file():
        return True
    if not package.is_dir() or name in sys.stdlib_module_names:
        return False
    # Further finders, such as those of editable installations.
    others = [finder for finder in sys.meta_path if finder is not PathFinder]
    if any(spec.origin for finder in others if (spec := finder.find_spec(name, None)) is not None):
        return False
    elsewhere = PathFinder.find_spec(
        name, [entry for entry in sys.path if Path(entry) not in recipe_folders | {folder}]
    )
    return elsewhere is None or elsewhere.origin is None


def is_inside(file: Path, folder: Path) -> bool:
    """Whether `file` is in `folder` by its path; the file or a folder on the path may be a link to another place."""
    return file.is_relative_to(folder) and ".." not in file.relative_to(folder).parts


def files_inside(files: list[Path], folder: Path) -> list[Path]:
    """Those of `files` that are in `folder` (:func:`is_inside`)."""
    return [file for file in files if is_inside(file, folder)]


def digest_of_files(
    files: list[Path], names: list[str], content_of: Callable[[Path], bytes] | None = None
) -> str:
    """Digest of the files' `names` and content."""
    digest = hashlib.sha256()
    contents = map(content_of or content_that_counts, files)
    for name, content in sorted(zip(names, contents, strict=True)):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def names_of(files: list[Path], folder: Path) -> list[str]:
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


def digest_of_function(function: TransformRows | None, files: list[Path], folder: Path) -> str:
    """Digest of the code that a function's result depends on: its file among a recipe's `files`, and what it imports.

    Of a file in a package beside the recipe, the whole package counts. All `files` count for a callable that is no
    plain function, for a function that a factory or a decorator made, whose values may come from any of them, and for
    a function from elsewhere.
    """
    if function is None:
        return ""
    made = getattr(function, "__closure__", None) or hasattr(function, "__wrapped__")
    is_plain = inspect.isfunction(function) and not made
    source_file = Path(inspect.getsourcefile(function) or "") if is_plain else Path()
    chosen = _code_at(source_file, files, folder) if source_file in files else files
    return digest_json(
        [getattr(function, "__qualname__", ""), digest_of_files(chosen, names_of(chosen, folder))]
    )


def _code_at(source_file: Path, files: list[Path], folder: Path) -> list[Path]:
    """The files that code in `source_file` depends on.

    These are the file, or its whole package if the package is beside the recipe, and the files that these import.
    """
    if source_file.parent == folder or not source_file.is_relative_to(folder):
        return sorted(local_files(source_file, source_file.parent))
    package = folder / source_file.relative_to(folder).parts[0]
    inside = [file for file in files if file.is_relative_to(package) and file.suffix == ".py"]
    return sorted({local_file for file in inside for local_file in local_files(file, folder)})


def content_that_counts(file: Path) -> bytes:
    """The content to hash: a Python file without comments, docstrings and layout; every byte of any other file."""
    content = file.read_bytes()
    if file.suffix == ".py":
        with suppress(SyntaxError, ValueError):
            return source_digest(content.decode()).encode()
    return content
