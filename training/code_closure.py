"""Import closure of the training code: the digests of all Evergreen modules whose code can change the weights.

The closure holds the roots and all modules of the packages in :data:`COMPUTING` that the roots import, directly or
through other modules of the closure. Imports are read from the source without executing it. The other modules of
`training/` (supervision, checkpoints, storage, records and so on) store and transfer numbers, but change no weight.
The digest of a module is over its syntax tree, without comments, docstrings, layout and the body of `if
TYPE_CHECKING:`.
"""

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

COMPUTING = ("training.data.", "training.problems.", "training.trainers.")
# Not followed: these modules import the code for every kind of source and of rows, of which a run uses one. The caller
# passes the chosen modules as roots.
_CHOOSING = frozenset({"training.data.sources.locate", "training.data.row_kinds"})
_PACKAGE = Path(__file__).parent


def code_digests(*roots: str) -> dict[str, str]:
    """Digest of each module in the import closure of `roots`, by module name.

    Raises :class:`ValueError` for a root that is not a module of `training/`.
    """
    digests: dict[str, str] = {}
    queue = list(roots)
    while queue:
        name = queue.pop()
        if name in digests:
            continue
        digests[name], imported = _read(name)
        queue += [other for other in imported if other.startswith(COMPUTING) and other not in _CHOOSING]
    return dict(sorted(digests.items()))


def source_digest(text: str) -> str:
    """sha256 over the syntax tree of Python source, without comments, docstrings, layout and `if TYPE_CHECKING:`.

    Raises :class:`SyntaxError` if `text` is not valid Python.
    """
    tree = json.dumps(_reduced(ast.parse(text)), separators=(",", ":"))
    return hashlib.sha256(tree.encode()).hexdigest()


@cache
def _read(name: str) -> tuple[str, tuple[str, ...]]:
    """Digest of a module of `training/`, and the names of the modules of `training/` that it imports."""
    file = _file(name)
    if file is None:
        raise ValueError(f"{name} is no module of {_PACKAGE}")
    text = file.read_text(encoding="utf-8")
    imported = {module for node in _executed(ast.parse(text)) for module in _imported(node)}
    return source_digest(text), tuple(sorted(imported))


def _file(name: str) -> Path | None:
    package, *parts = name.split(".")
    path = _PACKAGE.joinpath(*parts)
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if package == _PACKAGE.name and file.is_file()), None)


def _imported(node: ast.AST) -> Iterator[str]:
    """Modules of `training/` that a node imports, with their parent packages, which Python executes first."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
        names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    else:
        return
    for name in names:
        parts = name.split(".")
        around = (".".join(parts[: length + 1]) for length in range(len(parts)))
        yield from (module for module in around if _file(module) is not None)


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a tree, without `if TYPE_CHECKING:` blocks."""
    for node in _without_types(ast.iter_child_nodes(tree)):
        yield node
        yield from _executed(node)


def _reduced(node: Any) -> Any:
    """A node as JSON: its kind and its fields, without empty fields, as newer Python versions add such fields."""
    if isinstance(node, ast.Constant):
        return ["Constant", type(node.value).__name__, repr(node.value)]
    if isinstance(node, ast.AST):
        fields = ((name, _reduced(value)) for name, value in ast.iter_fields(node))
        return [type(node).__name__, *([name, value] for name, value in fields if value not in (None, []))]
    if isinstance(node, list):
        return [_reduced(child) for child in _without_types(node) if not _is_text(child)]
    return node


def _is_text(node: Any) -> bool:
    """Whether a node is a docstring, or another statement that is only a string literal."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _without_types(nodes: Iterable[Any]) -> Iterator[Any]:
    """`nodes` with the statements of `else:` in the place of an `if TYPE_CHECKING:`, since only these execute."""
    for node in nodes:
        if is_for_type_checkers(node):
            yield from _without_types(node.orelse)
        else:
            yield node


def is_for_type_checkers(node: Any) -> bool:
    """Whether a node of a syntax tree is `if TYPE_CHECKING:`, whose body never executes."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
