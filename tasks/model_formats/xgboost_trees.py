"""Checks the trees in a model file of XGBoost before XGBoost loads them.

XGBoost is written in C++ and uses the numbers in a model as indices without checking all of them: with a child or a
feature outside of the model's arrays, XGBoost would read out of bounds, and with a cycle of nodes, loop forever. So a
model must have exactly the fields that XGBoost writes for Evergreen, and its nodes must form trees.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.model_formats.ubj import read_ubj
from training.errors import DataError
from training.trainers.xgboost.objectives import OBJECTIVES

_RECORDS = {objective.name: objective.record for objective in OBJECTIVES.values()}
_FEATURE_TYPES = {"q", "c"}
_NUMBER = re.compile(r"\d{1,9}")
_SCORES = re.compile(r"\[?[-+\dE.,]{1,100000}\]?", re.ASCII)
_MOST_CATEGORY_BITS = 1 << 30  # XGBoost allocates a bit for each category up to a split's largest category
_LEARNER = (
    "attributes",
    "feature_names",
    "feature_types",
    "gradient_booster",
    "learner_model_param",
    "objective",
)
_MODEL = ("cats", "gbtree_model_param", "iteration_indptr", "tree_info", "trees")
_PER_NODE = (
    "base_weights",
    "default_left",
    "left_children",
    "loss_changes",
    "parents",
    "right_children",
    "split_conditions",
    "split_indices",
    "split_type",
    "sum_hessian",
)
_PER_SPLIT = ("categories_nodes", "categories_segments", "categories_sizes")
_FLOATS = {"base_weights", "loss_changes", "split_conditions", "sum_hessian"}
Numbers = npt.NDArray[np.int64]


def check_trees(file: Path) -> None:
    """Raise :class:`DataError` if a model file is not what XGBoost writes for Evergreen, or its nodes form no trees."""
    learner = _fields(read_ubj(file.read_bytes()), "the model", "learner", "version")["learner"]
    parts = _fields(learner, "learner", *_LEARNER)
    _fields(parts["attributes"], "attributes")
    features, groups = _sizes(parts)
    _check_objective(parts["objective"])
    booster = _fields(parts["gradient_booster"], "gradient_booster", "model", "name")
    if booster["name"] != "gbtree":
        raise DataError(f"it is a {booster['name']}, no gbtree")
    model = _fields(booster["model"], "gradient_booster.model", *_MODEL)
    _check_forest(model, groups)
    bits = sum(_check_tree(tree, f"tree {number}", features) for number, tree in enumerate(model["trees"]))
    if bits > _MOST_CATEGORY_BITS:
        raise DataError("it has categories of impossible numbers")


def _sizes(parts: dict[str, Any]) -> tuple[int, int]:
    """Number of features, and number of trees in a round."""
    names = ("base_score", "boost_from_average", "num_class", "num_feature", "num_target")
    sizes = _fields(parts["learner_model_param"], "learner_model_param", *names)
    if not isinstance(sizes["base_score"], str) or not _SCORES.fullmatch(sizes["base_score"]):
        raise DataError("its base_score is no number")
    features, classes = _number(sizes, "num_feature"), _number(sizes, "num_class")
    if _number(sizes, "num_target") != 1:
        raise DataError("it has several targets")
    if len(_texts(parts, "feature_names")) != features or len(_texts(parts, "feature_types")) != features:
        raise DataError(f"it names other features than {features}")
    if not set(parts["feature_types"]) <= _FEATURE_TYPES:
        raise DataError(f"its features are of the types {', '.join(sorted(set(parts['feature_types'])))}")
    return features, max(1, classes)


def _check_objective(objective: Any) -> None:
    name = objective.get("name") if isinstance(objective, dict) else None
    if not isinstance(name, str) or name not in _RECORDS:
        raise DataError(f"its objective is {name}")
    fields = _fields(objective, "objective", "name", _RECORDS[name])
    if not all(isinstance(value, str) for value in fields[_RECORDS[name]].values()):
        raise DataError("the parameters of its objective are no texts")


def _check_forest(model: dict[str, Any], groups: int) -> None:
    """Check the lists that assign each tree to a round and a class."""
    cats = _fields(model["cats"], "cats", "enc", "feature_segments", "sorted_idx")
    if any(len(value) for value in cats.values()):
        raise DataError("it has the categories of a data frame")
    sizes = _fields(model["gbtree_model_param"], "gbtree_model_param", "num_parallel_tree", "num_trees")
    trees = _number(sizes, "num_trees")
    if _number(sizes, "num_parallel_tree") != 1 or not isinstance(model["trees"], list):
        raise DataError("it has parallel trees")
    classes, starts = _integers(model, "tree_info"), _integers(model, "iteration_indptr")
    if len(model["trees"]) != trees or len(classes) != trees or ((classes < 0) | (classes >= groups)).any():
        raise DataError(f"it does not list the class of each of {trees} trees")
    if not len(starts) or starts[0] != 0 or starts[-1] != trees or (np.diff(starts) != groups).any():
        raise DataError(f"its rounds do not have {groups} trees each")


def _check_tree(tree: Any, name: str, features: int) -> int:
    """Check a tree; returns the number of bits that XGBoost needs for the categories of its splits."""
    fields = _fields(tree, name, "id", "tree_param", "categories", *_PER_NODE, *_PER_SPLIT)
    names = ("num_deleted", "num_feature", "num_nodes", "size_leaf_vector")
    sizes = _fields(fields["tree_param"], f"tree_param of {name}", *names)
    nodes = _number(sizes, "num_nodes")
    if _number(sizes, "num_deleted") or _number(sizes, "size_leaf_vector") > 1 or not nodes:
        raise DataError(f"{name} has no nodes, deleted nodes or vectors in its leaves")
    if _number(sizes, "num_feature") != features:
        raise DataError(f"{name} is for other features than {features}")
    for field in _PER_NODE:
        _array(fields, field, nodes, "f" if field in _FLOATS else "iu")
    _check_nodes(fields, name, features)
    return _check_categories(fields, name)


def _check_nodes(tree: dict[str, Any], name: str, features: int) -> None:
    """Check that each node except the root is the child of one node, so that no path from the root has a cycle."""
    left, right = _integers(tree, "left_children"), _integers(tree, "right_children")
    inner = np.flatnonzero(left != -1)
    children = np.concatenate([left[inner], right[inner]])
    if (right[left == -1] != -1).any() or ((children < 1) | (children >= len(left))).any():
        raise DataError(f"{name} has a node whose child is outside of the tree")
    if len(np.unique(children)) != len(children) or len(children) != len(left) - 1:
        raise DataError(f"{name} is no tree")
    if (_integers(tree, "parents")[children] != np.concatenate([inner, inner])).any():
        raise DataError(f"{name} has a node that names another parent than the node of which it is a child")
    index = _integers(tree, "split_indices")
    if ((index < 0) | (index >= features)).any():
        raise DataError(f"{name} splits by a feature outside of the {features} features")
    for field in ("default_left", "split_type"):
        if not np.isin(tree[field], (0, 1)).all():
            raise DataError(f"{name}: {field} is neither 0 nor 1")


def _check_categories(tree: dict[str, Any], name: str) -> int:
    """Check that the splits by categories divide the list of categories; returns the number of bits they need."""
    nodes, starts, sizes = (_integers(tree, field) for field in _PER_SPLIT)
    categories = _integers(tree, "categories")
    if not np.array_equal(nodes, np.flatnonzero(_integers(tree, "split_type"))):
        raise DataError(f"{name} does not list its splits by categories")
    if not len(nodes) == len(starts) == len(sizes) or (sizes < 1).any() or sizes.sum() != len(categories):
        raise DataError(f"{name} does not list the categories of each split")
    if not np.array_equal(starts, np.cumsum(sizes) - sizes):
        raise DataError(f"{name} lists categories outside of its splits")
    if (categories < 0).any():
        raise DataError(f"{name} has a negative category")
    return int(np.maximum.reduceat(categories, starts).sum()) if len(categories) else 0


def _fields(value: Any, name: str, *fields: str) -> dict[str, Any]:
    """`value`, if it is an object with exactly these fields. Raises :class:`DataError` if it is not."""
    if not isinstance(value, dict):
        raise DataError(f"{name} is no object")
    if different := value.keys() ^ set(fields):
        raise DataError(f"{name} has other fields than XGBoost writes ({', '.join(sorted(different))})")
    return value


def _number(fields: dict[str, Any], name: str) -> int:
    """A whole number, which XGBoost stores as text."""
    text = fields[name]
    if not isinstance(text, str) or not _NUMBER.fullmatch(text):
        raise DataError(f"{name} is no number")
    return int(text)


def _texts(fields: dict[str, Any], name: str) -> list[str]:
    value = fields[name]
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise DataError(f"{name} is no list of texts")
    return value


def _array(fields: dict[str, Any], name: str, length: int, kinds: str) -> None:
    value = fields[name]
    if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds or len(value) != length:
        raise DataError(f"{name} has no number for each of {length} nodes")


def _integers(fields: dict[str, Any], name: str) -> Numbers:
    value = fields[name]
    if isinstance(value, list) and all(isinstance(number, int) for number in value):
        value = np.array(value, np.int64)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
        raise DataError(f"{name} is no list of whole numbers")
    numbers: Numbers = value.astype(np.int64)
    return numbers
