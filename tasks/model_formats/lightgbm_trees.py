"""Checks the trees in a model file of LightGBM before LightGBM loads them.

LightGBM is written in C++ and uses numbers in a model as offsets and indices without checking them all: tree sizes
beyond the end of the text, or a child, a feature or a set of categories outside of the model's arrays. So a model must
have exactly the lines that LightGBM writes for Evergreen, and its nodes must form trees.
"""

import math
import re
from itertools import pairwise
from pathlib import Path

from training.errors import DataError
from training.trainers.lightgbm.objectives import OBJECTIVES

_HEADER = (
    "version",
    "num_class",
    "num_tree_per_iteration",
    "label_index",
    "max_feature_idx",
    "objective",
    "feature_names",
    "feature_infos",
    "tree_sizes",
)
_PER_SPLIT = ("split_feature", "threshold", "decision_type", "left_child", "right_child")
_NUMBERS_PER_SPLIT = ("split_gain", "internal_value", "internal_weight", "internal_count")
_PER_LEAF = ("leaf_value", "leaf_weight", "leaf_count")
_TREE = (
    "num_leaves",
    "num_cat",
    "split_feature",
    "split_gain",
    "threshold",
    "decision_type",
    "left_child",
    "right_child",
    "leaf_value",
    "leaf_weight",
    "leaf_count",
    "internal_value",
    "internal_weight",
    "internal_count",
)
# A split of missing values from all others has an infinite threshold; large targets give infinite gains.
_MAY_BE_INFINITE = ("threshold", "split_gain")
_CATEGORIES = ("cat_boundaries", "cat_threshold")
_LAST = ("is_linear", "shrinkage")
_WHOLE = re.compile(r"-?\d{1,10}", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,400}(\.\d{1,60})?(e[+-]?\d{1,3})?", re.ASCII)
_FEATURE = re.compile(r"[\w.~%-]+", re.ASCII)
_INFO = re.compile(r"none|\[[-+.\de]+:[-+.\de]+\]|-?\d+(:-?\d+)*", re.ASCII)
_IMPORTANCE = re.compile(r"[\w.~%-]+=\d{1,10}", re.ASCII)
# No other end of a line, at which LightGBM would begin a new one.
_PRINTABLE = re.compile(r"[\n -~]*", re.ASCII)
# Bit 0 of a decision: a set of categories; bits 2 and 3: handling of NaN.
_IS_CATEGORY, _KINDS_OF_MISSING = 1, 3
_END = "\nend of trees\n\nfeature_importances:\n"
_REST = "\npandas_categorical:null\n"
_MOST = 1 << 31


def check_text(file: Path) -> None:
    """Check a model file. Raises :class:`DataError` if Evergreen did not write the file, or its nodes form no trees."""
    try:
        text = file.read_bytes().decode("ascii")
    except UnicodeDecodeError as error:
        raise DataError("it is no text of LightGBM") from error
    if not _PRINTABLE.fullmatch(text) or not text.startswith("tree\n"):
        raise DataError("it is no text of LightGBM")
    head, _, rest = text.partition("\n\n")
    header = _lines(head, ("tree", *_HEADER), "its header")
    features, groups = _sizes(header)
    sizes = _wholes(header["tree_sizes"], "tree_sizes")
    if not sizes or len(sizes) % groups or min(sizes) < 1 or sum(sizes) > len(rest):
        raise DataError("it names impossible sizes of trees")
    start = 0
    for number, size in enumerate(sizes):
        _check_tree(rest[start : start + size], f"tree {number}", number, features)
        start += size
    _check_end(rest[start:])


def _lines(text: str, wanted: tuple[str, ...], name: str) -> dict[str, str]:
    """The lines `key=value` with exactly these keys, in this order; "tree" is a line without a value."""
    parts = [line.partition("=")[::2] for line in text.split("\n")]
    if tuple(key for key, _ in parts) != wanted:
        raise DataError(f"{name} has other lines than LightGBM writes")
    return dict(parts)


def _sizes(header: dict[str, str]) -> tuple[int, int]:
    """Number of features, and of trees a round."""
    if (header["version"], header["label_index"]) != ("v4", "0"):
        raise DataError(f"it has the version {header['version']} of LightGBM's text")
    classes, groups, last = (
        _whole(header[name], name) for name in ("num_class", "num_tree_per_iteration", "max_feature_idx")
    )
    known = {
        f"{objective.name} num_class:{classes}"
        if objective.per_class
        else objective.name: objective.per_class
        for objective in OBJECTIVES.values()
    }
    per_class = known.get(header["objective"])
    if per_class is None or groups != classes or not 1 <= groups <= (1 << 20 if per_class else 1):
        raise DataError(f"its objective is {header['objective'][:100]!r}, with {groups} trees a round")
    names, infos = header["feature_names"].split(" "), header["feature_infos"].split(" ")
    if not len(names) == len(infos) == len(set(names)) == last + 1:
        raise DataError(f"it names other features than {last + 1}")
    if not all(map(_FEATURE.fullmatch, names)) or not all(map(_INFO.fullmatch, infos)):
        raise DataError("it names features as LightGBM does not write them")
    return last + 1, groups


def _check_tree(text: str, name: str, number: int, features: int) -> None:
    begin, end = f"Tree={number}\n", "\n\n\n"
    if not text.startswith(begin) or not text.endswith(end):
        raise DataError(f"{name} is not where tree_sizes says")
    body = text[len(begin) : -len(end)]
    some = _CATEGORIES if "\ncat_boundaries=" in body else ()
    tree = _lines(body, (*_TREE, *some, *_LAST), name)
    leaves, sets = (_whole(tree[key], name) for key in ("num_leaves", "num_cat"))
    if not 1 <= leaves <= _MOST or tree["is_linear"] != "0" or bool(sets) != bool(some) or sets < 0:
        raise DataError(f"{name} has {leaves} leaves and {sets} sets of categories")
    for key in (*_NUMBERS_PER_SPLIT, *_PER_LEAF):
        count = leaves if key in _PER_LEAF else leaves - 1
        _check_numbers(tree[key], count, f"{name} {key}", leaves == 1, key in _MAY_BE_INFINITE)
    _check_numbers(tree["shrinkage"], 1, f"{name} shrinkage")
    _check_splits(tree, name, leaves, features, _check_categories(tree, name, sets) if some else 0)


def _check_splits(tree: dict[str, str], name: str, leaves: int, features: int, sets: int) -> None:
    """Check that nodes split by a feature and a threshold or category set, and form a tree with the leaves."""
    _check_numbers(tree["threshold"], leaves - 1, f"{name} threshold", may_be_infinite=True)
    thresholds = [float(value) for value in tree["threshold"].split()]
    columns, decisions, left, right = (
        _wholes(tree[key], f"{name} {key}") for key in _PER_SPLIT if key != "threshold"
    )
    if not len(columns) == len(decisions) == len(left) == len(right) == leaves - 1:
        raise DataError(f"{name} has other splits than {leaves - 1}")
    if any(not 0 <= column < features for column in columns):
        raise DataError(f"{name} splits by a feature outside of the {features} features")
    for decision, threshold in zip(decisions, thresholds, strict=True):
        if not 0 <= decision < 16 or decision >> 2 == _KINDS_OF_MISSING:
            raise DataError(f"{name} has the decision {decision}")
        if decision & _IS_CATEGORY and not (threshold.is_integer() and 0 <= threshold < sets):
            raise DataError(f"{name} splits by a set of categories outside of its {sets} sets")
    children = [*left, *right]
    for parent, child in zip([*range(leaves - 1)] * 2, children, strict=True):
        if child >= leaves - 1 or (0 <= child <= parent):
            raise DataError(f"{name} has a node whose child is outside of the tree, or above the node")
    wanted = {*range(1, leaves - 1), *(~leaf for leaf in range(leaves))} if leaves > 1 else set()
    if len(children) != len(wanted) or set(children) != wanted:
        raise DataError(f"{name} is no tree")


def _check_categories(tree: dict[str, str], name: str, sets: int) -> int:
    """Check the sets of categories, bit masks in 32-bit words; returns the number of sets."""
    bounds, words = (_wholes(tree[key], f"{name} {key}") for key in _CATEGORIES)
    growing = all(a < b for a, b in pairwise(bounds))
    if len(bounds) != sets + 1 or bounds[0] != 0 or bounds[-1] != len(words) or not growing:
        raise DataError(f"{name} has sets of categories outside of its words")
    if any(not 0 <= word < 1 << 32 for word in words):
        raise DataError(f"{name} has a word of categories that is no 32 bits")
    return sets


def _check_end(text: str) -> None:
    """Check the text after the trees: splits per feature, which no loader reads."""
    middle = text.removeprefix(_END.removeprefix("\n"))
    if middle == text or not middle.endswith(_REST):
        raise DataError("it ends otherwise than LightGBM writes")
    if not all(map(_IMPORTANCE.fullmatch, middle.removesuffix(_REST).split())):
        raise DataError("it has importances as LightGBM does not write them")


def _whole(text: str, name: str) -> int:
    values = _wholes(text, name)
    if len(values) != 1:
        raise DataError(f"{name} has {len(values)} whole numbers in place of one")
    return values[0]


def _wholes(text: str, name: str) -> list[int]:
    values = text.split(" ") if text else []
    if not all(map(_WHOLE.fullmatch, values)):
        raise DataError(f"{name} has something else than whole numbers")
    return [int(value) for value in values]


def _check_numbers(
    text: str, count: int, name: str, may_lack: bool = False, may_be_infinite: bool = False
) -> None:
    """`count` numbers, finite or `inf`; none at all if the tree `may_lack` them, as LightGBM writes a single leaf."""
    values = text.split(" ") if text else []
    if len(values) != count and not (may_lack and not values):
        raise DataError(f"{name}: {len(values)} numbers, not {count}")
    for value in values:
        if value == "inf" and may_be_infinite:
            continue
        if not _NUMBER.fullmatch(value) or not math.isfinite(float(value)):
            raise DataError(f"{name} has something else than finite numbers")
