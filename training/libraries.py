"""Versions of the libraries that a recipe imports. They are part of the run key: an upgrade may change the weights.

Imports are read from the source without executing it: import statements anywhere in a file, and calls of
`importlib.import_module` and `__import__` with a literal name. A library that is not installed is left out.
"""

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import version
from pathlib import Path

from training.code_closure import is_for_type_checkers
from training.python_files import python_files
from training.recipe_sources import RecipeRef, recipe_folders

ALWAYS = ("torch", "torchvision", "numpy")  # recorded even if not imported; CPU and GPU builds count as equal
_OURS = {"evergreen", "training", "tasks", "flows"}
_INSTALLED = ("site-packages", "dist-packages")
_IMPORTERS = {"import_module", "__import__"}


def library_versions(ref: RecipeRef, more: tuple[str, ...] = ()) -> dict[str, str]:
    """Version of Python and of each distribution that the recipe's Python files import, by distribution name.

    `more` names packages that count as well, such as those of the recipe's trainer.

    An editable installation keeps its version when its code changes, and so does a package of which the import path
    has another copy first; a package without a distribution has no version. For these, the value is a digest of their
    Python files, as `sha256:...`.
    """
    sources = [file for file in map(Path, ref.files) if file.suffix == ".py"]
    names = set(more) | {
        name for file in sources for name in imported_packages(file.read_text(encoding="utf-8"))
    }
    versions = {name: version(name).partition("+")[0] for name in ALWAYS}
    versions["python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
    for name in sorted(names - _beside(ref, sources) - _OURS - sys.stdlib_module_names - set(ALWAYS)):
        versions |= _versions(name)
    return versions


def _beside(ref: RecipeRef, sources: list[Path]) -> set[str]:
    """Top-level names of the recipe's own helper files and packages."""
    recipe = Path(ref.path)
    inside = [file for file in sources if file != recipe and file.is_relative_to(recipe.parent)]
    return {file.relative_to(recipe.parent).parts[0].removesuffix(".py") for file in inside}


def imported_packages(source: str) -> set[str]:
    """Top-level names of all modules that Python source imports, without relative imports.

    Imports below `if TYPE_CHECKING:`, which are for type checkers alone, are left out.
    """
    return _packages(_executed(ast.parse(source), _for_type_checkers))


def needed_packages(source: str) -> set[str]:
    """As :func:`imported_packages`, without those that the source can do without.

    These are imported below `if TYPE_CHECKING:`, or in a `try` block that is followed by `except ImportError`.
    """
    return _packages(_executed(ast.parse(source), lambda node: [*_for_type_checkers(node), *_tried(node)]))


def _packages(nodes: Iterable[ast.AST]) -> set[str]:
    return {name.partition(".")[0] for node in nodes for name in _imports(node)} - {""}


def _executed(node: ast.AST, left_out: Callable[[ast.AST], Sequence[ast.stmt]]) -> Iterator[ast.AST]:
    """The node and the nodes below it, without the statements that `left_out` returns for a node."""
    yield node
    without = left_out(node)
    for child in ast.iter_child_nodes(node):
        if child not in without:
            yield from _executed(child, left_out)


def _for_type_checkers(node: ast.AST) -> Sequence[ast.stmt]:
    return node.body if isinstance(node, ast.If) and is_for_type_checkers(node) else ()


def _tried(node: ast.AST) -> Sequence[ast.stmt]:
    return node.body if isinstance(node, ast.Try) and any(map(_catches_import_error, node.handlers)) else ()


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    caught = "Exception" if handler.type is None else ast.unparse(handler.type)
    return any(name in caught for name in ("ImportError", "ModuleNotFoundError", "Exception"))


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield node.module or ""
    elif isinstance(node, ast.Call) and node.args and _called(node.func) in _IMPORTERS:
        name = node.args[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield name.value


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _versions(package: str) -> dict[str, str]:
    """Versions of the distributions that provide a top-level package; a namespace package may have several."""
    versions = {}
    for name in _distributions().get(package, ()):
        with suppress(importlib.metadata.PackageNotFoundError):  # its metadata folder has another name
            distribution = importlib.metadata.distribution(name)
            versions[name] = (
                distribution.version if _is_installed(package, distribution) else _digest(package)
            )
    if not versions and (digest := _digest(package)):
        versions[package] = digest
    return {name: value for name, value in versions.items() if value}


@cache
def _distributions() -> Mapping[str, list[str]]:
    """Distributions by top-level package. Cached, as reading all metadata takes 0.3 s."""
    return importlib.metadata.packages_distributions()


def _is_installed(package: str, distribution: importlib.metadata.Distribution) -> bool:
    """Whether `import package` takes the files that the distribution installed, so that its version describes them.

    This is not so for an editable installation, as `direct_url.json` says (PEP 610); for a folder of sources with
    metadata, which has no list `RECORD` of installed files (Debian's packages have none either); and if another folder
    of the import path comes first.
    """
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    root = os.path.realpath(str(distribution.locate_file("")))
    is_sources = distribution.read_text("RECORD") is None and Path(root).name not in _INSTALLED
    if origin.get("dir_info", {}).get("editable") or is_sources:
        return False
    # Without the folders of recipes that this process has loaded, whose own helper files are no libraries.
    spec = PathFinder.find_spec(package, [entry for entry in sys.path if Path(entry) not in recipe_folders])
    locations = (
        [] if spec is None else [*(spec.submodule_search_locations or ()), *filter(None, [spec.origin])]
    )
    roots = (str(distribution.locate_file("")), root)  # a tool may install packages as links into a cache
    paths = {path for given in locations for path in (given, os.path.realpath(given))}
    return not locations or any(Path(path).is_relative_to(folder) for path in paths for folder in roots)


def _digest(package: str) -> str:
    """sha256 over the Python files of a top-level package or module; empty if there are no such files."""
    spec = None
    with suppress(ValueError):  # of a module that a program made without a file
        spec = importlib.util.find_spec(package)
    if spec is None:
        return ""
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [
        (file.relative_to(folder).as_posix(), file) for folder in folders for file in python_files(folder)
    ]
    if not folders and spec.origin and Path(spec.origin).is_file():
        files = [(Path(spec.origin).name, Path(spec.origin))]
    contents = sorted((name, hashlib.sha256(file.read_bytes()).hexdigest()) for name, file in files)
    return f"sha256:{hashlib.sha256(json.dumps(contents).encode()).hexdigest()}" if files else ""
