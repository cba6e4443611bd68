"""Versions of the libraries that a recipe imports. They are part of the run key: an upgrade may change the weights.

Imports are read from the source without executing it: import statements anywhere in a file, and calls of
`importlib.import_module` and `__import__` with a literal name. A library that is not installed is left out.
"""

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from training.recipe import RecipeRef

ALWAYS = ("torch", "torchvision", "numpy")  # recorded even if not imported; CPU and GPU builds count as equal
_OURS = {"evergreen", "training", "tasks", "flows"}
_IMPORTERS = {"import_module", "__import__"}


def library_versions(ref: RecipeRef, more: tuple[str, ...] = ()) -> dict[str, str]:
    """Version of Python and of each distribution that the recipe's Python files import, by distribution name.

    `more` names packages that count as well, such as those of the recipe's trainer.

    An editable installation keeps its version when its code changes, and a package without a distribution has no
    version: for both, the value is a digest of their Python files, as `sha256:...`.
    """
    sources = [file for file in map(Path, ref.files) if file.suffix == ".py"]
    names = set(more) | {
        name for file in sources for name in imported_packages(file.read_text(encoding="utf-8"))
    }
    found = {name: version(name).partition("+")[0] for name in ALWAYS}
    found["python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
    for name in sorted(names - _beside(ref, sources) - _OURS - sys.stdlib_module_names - set(ALWAYS)):
        found |= _versions(name)
    return found


def _beside(ref: RecipeRef, sources: list[Path]) -> set[str]:
    """Top-level names of the recipe's own helper files and packages."""
    recipe = Path(ref.path)
    inside = [file for file in sources if file != recipe and file.is_relative_to(recipe.parent)]
    return {file.relative_to(recipe.parent).parts[0].removesuffix(".py") for file in inside}


def imported_packages(source: str) -> set[str]:
    """Top-level names of all modules that Python source imports, without relative imports."""
    return _packages(ast.walk(ast.parse(source)))


def needed_packages(source: str) -> set[str]:
    """As :func:`imported_packages`, without those that the source can do without.

    These are imported below `if TYPE_CHECKING:`, or in a `try` block that is followed by `except ImportError`.
    """
    return _packages(_needed(ast.parse(source)))


def _packages(nodes: Iterable[ast.AST]) -> set[str]:
    return {name.partition(".")[0] for node in nodes for name in _imports(node)} - {""}


def _needed(node: ast.AST) -> Iterator[ast.AST]:
    """The node and the nodes below it, without optional blocks."""
    yield node
    optional: list[ast.stmt] = []
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        optional = node.body
    if isinstance(node, ast.Try) and any(map(_catches_import_error, node.handlers)):
        optional = node.body
    for child in ast.iter_child_nodes(node):
        if child not in optional:
            yield from _needed(child)


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
    found = {}
    for name in _distributions().get(package, ()):
        with suppress(importlib.metadata.PackageNotFoundError):  # its metadata folder has another name
            distribution = importlib.metadata.distribution(name)
            found[name] = _digest(package) if _is_editable(distribution) else distribution.version
    if not found and (digest := _digest(package)):
        found[package] = digest
    return {name: value for name, value in found.items() if value}


@cache
def _distributions() -> Mapping[str, list[str]]:
    """Distributions by top-level package. Cached, as reading all metadata takes 0.3 s."""
    return importlib.metadata.packages_distributions()


def _is_editable(distribution: importlib.metadata.Distribution) -> bool:
    """Whether the distribution is an editable installation, as its `direct_url.json` says (PEP 610)."""
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable"))


def _digest(package: str) -> str:
    """sha256 over the Python files of a top-level package or module; empty if there are no such files."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return ""
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [
        (file.relative_to(folder).as_posix(), file) for folder in folders for file in folder.rglob("*.py")
    ]
    if not folders and spec.origin and Path(spec.origin).is_file():
        files = [(Path(spec.origin).name, Path(spec.origin))]
    contents = sorted((name, hashlib.sha256(file.read_bytes()).hexdigest()) for name, file in files)
    return f"sha256:{hashlib.sha256(json.dumps(contents).encode()).hexdigest()}" if files else ""
