"""No module outside the rooms of the problems asks which problem a run has."""

import ast
from collections.abc import Iterator

import pytest
from named_parts import ROOT, asked_names, modules_outside

from training.errors import DataError
from training.problems import problem_named
from training.seams import PROBLEMS

ROOMS = ("training/problems/", "tasks/problems/", "training/recipes/")
# The registry; the public API; the default of a recipe; images have classes.
MAY_NAME = {
    "training/seams.py",
    "evergreen/__init__.py",
    "training/recipe_declaration.py",
    "training/data/row_kinds.py",
}


def asked(tree: ast.AST) -> Iterator[str]:
    """Comparisons with a problem's name, mappings by such a name, and imports of one problem's modules."""
    own = {module.partition(":")[0] for module in PROBLEMS.values()}
    own |= {f"training.problems.objectives.{name}" for name in PROBLEMS}
    yield from asked_names(tree, PROBLEMS)
    for node in ast.walk(tree):
        module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        if module in own or module.startswith("tasks.problems."):
            yield f"imports {module}"


@pytest.mark.extended
@pytest.mark.parametrize("name", modules_outside(ROOMS, MAY_NAME))
def test_no_other_module_asks_for_a_problem(name: str) -> None:
    assert not list(asked(ast.parse((ROOT / name).read_text())))


@pytest.mark.parametrize(
    "text",
    [
        'x = problem == "regression"',
        'x = problem in ("regression", "ranking")',
        'x = {"classification": 1}[problem]',
        "from training.problems.regression import RegressionScore",
        "def f():\n    from tasks.problems.classification.gate import outcomes",
        'match problem:\n    case "regression":\n        pass',
    ],
)
def test_the_ways_to_ask_are_seen(text: str) -> None:
    assert list(asked(ast.parse(text)))


def test_a_name_that_this_version_does_not_know() -> None:
    with pytest.raises(DataError, match="problem 'of-tomorrow' is not known to this version of Evergreen"):
        problem_named("of-tomorrow")
