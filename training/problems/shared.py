"""Methods that several problems share; see :class:`training.problems.base.Problem` for what each method does."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from training.problems.base import Baseline, BuildModel, Predictions, Targets
from training.records import DatasetVersion, Evaluation, GateMetric, ProblemName, Score, TableSchema

if TYPE_CHECKING:
    from torch import nn

_FEW = 20  # most class names in a description


class SharedMethods:
    """The methods of a problem that predicts numbers, without classes and without generated images.

    A problem inherits this class after its objective, and defines the methods that differ.
    """

    name: ProblemName
    metric: str
    score_record: ClassVar[type[Score]]
    finite: ClassVar[tuple[str, ...]]  # scores that must be finite
    needs_model: ClassVar[str] = ""

    def _of_classes(self, version: DatasetVersion) -> str:
        """Number and names of the classes, in text: "2 classes: cat, dog"; without names if there are many."""
        names = f": {', '.join(version.classes)}" if len(version.classes) <= _FEW else ""
        return f"{len(version.classes)} classes{names}"

    def spell(self, value: float) -> str:
        """A value of the metric; each problem defines this method."""
        raise NotImplementedError

    def adapted(self, build_model: BuildModel) -> BuildModel:
        """`build_model` as it is."""
        return build_model

    def generated_images(
        self, module: "Callable[[], nn.Module]", version: DatasetVersion, count: int
    ) -> npt.NDArray[np.uint8] | None:
        """None: such a model generates no images."""
        del module, version, count
        return None

    def rows_at_once(self, outputs: int, table: TableSchema | None) -> int:
        """512 rows, whatever the model; a problem whose rows need more memory overrides this method."""
        del outputs, table
        return 512

    def baseline(
        self,
        version: DatasetVersion,
        train_targets: Callable[[], Targets],
        rows: int,
        metric: GateMetric | None,
    ) -> Baseline | None:
        """None: no such model is defined."""
        del version, train_targets, rows, metric
        return None

    def aligned(
        self, predictions: Predictions, classes: tuple[str, ...], version: DatasetVersion
    ) -> Predictions:
        """Predictions as they are: they have no classes to put in order."""
        del classes, version
        return predictions

    def contradiction(self, evaluation: Evaluation) -> str | None:
        """Only a classification has counts of right and wrong rows."""
        counts = (
            evaluation.both_right,
            evaluation.only_candidate_right,
            evaluation.only_champion_right,
            evaluation.both_wrong,
        )
        problem = self.name.replace("_", " ")
        return f"the evaluation of a {problem} has counts of right and wrong rows" if any(counts) else None

    def not_finite(self, score: Score) -> list[str]:
        """Names of the scores that are NaN or infinite."""
        return [name for name in self.finite if not math.isfinite(getattr(score, name))]

    def own(self, score: Score) -> Score:
        """`score`, if it is of this problem. Raises TypeError for the scores of another problem."""
        if not isinstance(score, self.score_record):
            raise TypeError(f"a {self.name.replace('_', ' ')} can't use the scores of a {score.problem}")
        return score

    def figure(self, score: Score) -> str:
        """The metric, as :meth:`spell` writes it. Raises TypeError for the scores of another problem."""
        return self.spell(getattr(self.own(score), self.metric))

    def further_scores(self, metrics: Mapping[str, float]) -> list[tuple[str, str]]:
        """No further scores."""
        del metrics
        return []
