"""No module needs, while it is imported, a module that needs the first: then a name could be missing."""

import ast
from collections.abc import Collection, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import evergreen

ROOT = Path(evergreen.__file__).parents[1]
PACKAGES = ("evergreen", "flows", "tasks", "training", "deployments", "benchmarks")


def modules_below(root: Path, packages: Sequence[str] = PACKAGES) -> dict[str, Path]:
    """The file of each module, by its name."""
    modules = {}
    for package in packages:
        for file in (root / package).rglob("*.py"):
            parts = file.relative_to(root).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return modules


def executed(nodes: Sequence[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements that run when the module is imported.

    Not those in functions, under `if TYPE_CHECKING` and under `if __name__ == "__main__"`.
    """
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith(
            ("TYPE_CHECKING", "__name__ == '__main__'")
        ):
            not_run = not ast.unparse(node.test).startswith("not ")
            yield from executed(node.orelse if not_run else node.body)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from executed(list(ast.iter_child_nodes(node)))


def with_parents(name: str) -> list[str]:
    """`a.b.c` and the packages `a` and `a.b`, whose `__init__` Python runs before."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def needed(module: str, file: Path, modules: Collection[str]) -> set[str]:
    """Those of `modules` that the import of `module` runs by its own statements.

    Its packages are not among them, unless it takes a name from one: Python has begun to import them already.
    """
    imported: set[str] = set()
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in executed(ast.parse(file.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            inner = [f"{origin}.{alias.name}" for alias in node.names]
            # A name is a module in the package `origin`, or something that `origin` defines.
            names = [name if name in modules else origin for name in inner]
            imported.update(name for name in names if name == origin and name in modules)
        imported.update(
            imported_name
            for name in names
            for imported_name in with_parents(name)
            if imported_name not in with_parents(module)
        )
    return (imported & set(modules)) - {module}


def circle(modules: dict[str, Path]) -> str:
    """A circle among the imports, as `a imports b imports a`; "" when there is none."""
    graph = {name: needed(name, file, modules) for name, file in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        # Each module of the list is imported by the next one.
        return " imports ".join(reversed(error.args[1]))
    return ""


def test_no_circle_among_imports() -> None:
    modules = modules_below(ROOT)
    assert {name.partition(".")[0] for name in modules} == set(PACKAGES)
    assert len(modules) > 600
    assert circle(modules) == ""


def written(root: Path, files: dict[str, str]) -> dict[str, Path]:
    for name, text in {"a/__init__.py": "", "b/__init__.py": "", "a/d/__init__.py": "", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return modules_below(root, ("a", "b"))


CIRCLES = {
    "import": {"a/x.py": "import b.y", "b/y.py": "import a.x"},
    "name": {"a/x.py": "from b.y import f", "b/y.py": "from a.x import g"},
    "submodule": {"a/x.py": "from b import y", "b/y.py": "from a import x"},
    "relative": {"a/d/x.py": "from ..y import f", "a/y.py": "from .d import x"},
    "of three": {"a/x.py": "import a.y", "a/y.py": "import b.z", "b/z.py": "from a.x import f"},
    "through a package": {"a/__init__.py": "import b.y", "b/y.py": "import a.x", "a/x.py": ""},
    "through an inner package": {"a/d/__init__.py": "import b.y", "b/y.py": "from a.d.x import f", "a/d/x.py": ""},
    "name of its package": {"a/__init__.py": "from a.x import f", "a/x.py": "from a import f"},
    "package imports itself by way of others": {"a/__init__.py": "from a import x", "a/x.py": "from . import f"},
    "in try": {"a/x.py": "try:\n    import b.y\nexcept ImportError:\n    pass", "b/y.py": "import a.x"},
    "in a class": {"a/x.py": "class C:\n    import b.y", "b/y.py": "import a.x"},
    "else": {"a/x.py": "if TYPE_CHECKING:\n    f = 1\nelse:\n    import b.y", "b/y.py": "import a.x"},
    "not for types": {"a/x.py": "if not TYPE_CHECKING:\n    import b.y", "b/y.py": "import a.x"},
}  # fmt: skip


@pytest.mark.parametrize("case", CIRCLES)
def test_a_circle_is_seen_and_named(tmp_path: Path, case: str) -> None:
    modules = circle(written(tmp_path, CIRCLES[case])).split(" imports ")
    assert modules[0] == modules[-1]
    assert len(modules) > 2


STRAIGHT = {
    "in a function": {"a/x.py": "def f():\n    import b.y", "b/y.py": "import a.x"},
    "for types": {"a/x.py": "if TYPE_CHECKING:\n    import b.y", "b/y.py": "import a.x"},
    "for types, qualified": {"a/x.py": "if typing.TYPE_CHECKING:\n    import b.y", "b/y.py": "import a.x"},
    "run as a program": {"a/x.py": "if __name__ == '__main__':\n    import b.y", "b/y.py": "import a.x"},
    "a package imports its modules": {"a/__init__.py": "from a.x import f", "a/x.py": "import a.y", "a/y.py": ""},
    "modules beside each other": {"a/x.py": "from a import y", "a/y.py": "from b import z", "b/z.py": ""},
}  # fmt: skip


@pytest.mark.parametrize("case", STRAIGHT)
def test_what_runs_later_or_is_complete_is_no_circle(tmp_path: Path, case: str) -> None:
    assert circle(written(tmp_path, STRAIGHT[case])) == ""
