"""Finds code that asks which of several parts, such as problems or trainers, it has."""

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import training
from training.seams import TRAINERS

# Trainers with a folder. The tests of a trainer that is one file are all in its own test file.
WITH_FOLDER = {name for name, part in TRAINERS.items() if part.partition(":")[0].endswith(".settings")}
ROOT = Path(training.__file__).parents[1]


def modules_outside(rooms: tuple[str, ...], exceptions: Collection[str]) -> list[str]:
    """Paths of the product's modules, without those in the folders `rooms` and without `exceptions`."""
    paths = (
        file.relative_to(ROOT).as_posix()
        for package in ("evergreen", "flows", "tasks", "training")
        for file in (ROOT / package).rglob("*.py")
    )
    return sorted(name for name in paths if not name.startswith(rooms) and name not in exceptions)


def asked_names(tree: ast.AST, names: Collection[str]) -> Iterator[str]:
    """Which of `names` the code compares with, or has as keys of a mapping."""
    for node in ast.walk(tree):
        values: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            values = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            values = node.keys
        elif isinstance(node, ast.MatchValue):
            values = [node.value]
        yield from (
            child.value
            for value in values
            if value is not None
            for child in ast.walk(value)
            if isinstance(child, ast.Constant) and child.value in names
        )
