"""The threshold of a classifier of two classes: which class is the answer for a row, and how the threshold is chosen.

The answer is the second class of the dataset if its probability is at least the threshold, else the first class.
Without a threshold it is the class with the largest probability. :func:`predicted_classes` is the only place that says
so: training, scores, the gate and `predict` call it.
"""

import logging

import numpy as np
import numpy.typing as npt

from training.errors import SettingError
from training.problems.objectives import objective_named
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.settings.sections import Threshold

log = logging.getLogger("evergreen.loop")

Labels = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]

_OF_ARGMAX = 0.5


def predicted_classes(probabilities: npt.NDArray[np.float32], threshold: float | None = None) -> Labels:
    """The number of each row's predicted class, from probabilities (rows, classes), with a threshold (rows, 2).

    Of several classes with the largest probability, it is the first.
    """
    if threshold is None:
        return np.asarray(probabilities.argmax(axis=1))
    return np.asarray(probabilities[:, 1] >= threshold, np.int64)


def check_threshold(settings: Settings, version: DatasetVersion) -> None:
    """Raise :class:`SettingError` for a threshold of other than two classes, or one that can't be chosen.

    The classes of `version` may be missing: `plan` checks before the rows are prepared.
    """
    chosen = threshold_of(settings)
    if chosen is None:
        return
    if objective_named(version.problem).loss != "cross_entropy":
        raise SettingError(f"training.threshold: a {version.problem} predicts no classes; remove the setting")
    if version.classes and len(version.classes) != 2:
        raise SettingError(
            f"training.threshold: needs two classes, and the dataset has {len(version.classes)}: "
            f"{', '.join(version.classes[:5])}; remove the setting"
        )
    if isinstance(chosen, tuple) and version.classes:
        named = [name for name, _ in chosen]
        if sorted(named) != sorted(version.classes):
            raise SettingError(
                f"training.threshold: give the cost of a mistake on a row of each class, {version.classes[0]!r} and "
                f"{version.classes[1]!r}, got {', '.join(map(repr, named))}"
            )
    if not isinstance(chosen, float) and settings.data.feed == "stream":
        raise SettingError(
            "data.feed: the validation rows, on which training.threshold is chosen, can't be streamed; use memory"
        )


def threshold_of(settings: Settings) -> Threshold:
    """The setting `training.threshold`; None for a trainer without it."""
    chosen: Threshold = getattr(settings.training, "threshold", None)
    return chosen


def best_threshold(
    rule: Threshold,
    labels: Labels,
    probabilities: npt.NDArray[np.float32],
    classes: tuple[str, ...],
    rarer: int,
    weights: Numbers | None = None,
) -> float:
    """The threshold that is best on rows of two classes, by `rule`; of equally good ones that nearest to 0.5.

    `probabilities` is (rows, 2). The rules: "f1" takes the largest F1 of class number `rarer`, "balanced_accuracy" the
    largest mean of both classes' recalls; pairs (class, cost) the least sum of costs of the rows whose class is wrong.
    `weights` (rows,) multiply each row's count; None: all rows count the same.

    Tried are the values halfway between neighbouring probabilities, and one below and one above all of them: each
    division of the rows that a threshold can give. If the rows are all of one class, the result is 0.5.
    """
    if len(np.unique(labels)) < 2:
        log.warning("training.threshold: the validation rows are of one class only, so the threshold is 0.5")
        return _OF_ARGMAX
    second = probabilities[:, 1].astype(np.float64)
    each = np.ones(len(labels)) if weights is None else weights
    values, places = np.unique(second, return_inverse=True)
    tried = np.concatenate([[values[0] / 2], (values[:-1] + values[1:]) / 2, [(values[-1] + 1) / 2]])
    # Weight of the rows of each class below each threshold, which are answered with the first class.
    below = np.stack(
        [
            np.concatenate(
                [[0.0], np.cumsum(np.bincount(places, each * (labels == k), minlength=len(values)))]
            )
            for k in (0, 1)
        ]
    )
    total = below[:, -1:]
    right = np.stack([below[0], total[1] - below[1]])
    wrong = total - right  # rows of each true class
    if rule == "f1":
        goodness = 2 * right[rarer] / np.maximum(2 * right[rarer] + wrong[0] + wrong[1], np.finfo(float).tiny)
    elif rule == "balanced_accuracy":
        goodness = (right / np.maximum(total, np.finfo(float).tiny)).mean(axis=0)
    else:
        assert isinstance(rule, tuple)
        costs = dict(rule)
        goodness = -(costs[classes[0]] * wrong[0] + costs[classes[1]] * wrong[1])
    best = goodness >= goodness.max() - 1e-12 * max(1.0, abs(float(goodness.max())))
    distance = np.where(best, np.abs(tried - _OF_ARGMAX), np.inf)
    return float(tried[int(np.argmin(distance))])
