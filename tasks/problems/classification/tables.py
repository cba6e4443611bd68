"""Rows of the report's tables about classes: scores by class, the confusion matrix, and the most confused pairs."""

import math
from dataclasses import dataclass

from tasks.report_page.wording import Tone, tone_of
from training.problems.probabilities import ClassificationScore, ClassScore

# A matrix of more classes is unreadable; the page then lists the most confused pairs of classes instead.
MATRIX_UP_TO = 20
_PAIRS = 15
ClassChanges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ClassRow:
    """One class: the candidate's scores, and with a champion, the champion's scores and the change in recall.

    `won` and `lost` are the rows that only the candidate, and only the champion, got right.
    """

    now: ClassScore
    before: ClassScore | None
    change: float | None
    won: int
    lost: int

    @property
    def tone(self) -> Tone:
        """The tone in which the report shows that recall rose or fell."""
        return "plain" if self.change is None else tone_of(self.change)


def class_rows(
    candidate: ClassificationScore, champion: ClassificationScore | None, changes: ClassChanges
) -> tuple[ClassRow, ...]:
    """A row for every class, largest loss of recall first; without a champion, lowest recall first.

    `changes` are :attr:`training.records.Evaluation.class_changes`.
    """
    before = {score.name: score for score in champion.classes} if champion else {}
    nothing = ((0, 0),) * len(candidate.classes)
    rows = []
    for now, (won, lost) in zip(candidate.classes, changes or nothing, strict=True):
        old = before.get(now.name)
        rows.append(ClassRow(now, old, now.recall - old.recall if old else None, won, lost))
    return tuple(
        sorted(rows, key=lambda row: (row.change if row.change is not None else 0.0, row.now.recall))
    )


@dataclass(frozen=True)
class Cell:
    """One cell of the confusion matrix; `depth` (0 to 1) is the square root of its share of the row."""

    count: int
    right: bool
    depth: float


def confusion_cells(score: ClassificationScore) -> tuple[tuple[Cell, ...], ...]:
    """The confusion matrix with colour depths; square roots make single mistakes of a good model visible."""
    return tuple(
        tuple(
            Cell(count, truth == predicted, round(math.sqrt(count / rows), 3))
            for predicted, count in enumerate(row)
        )
        for truth, row in enumerate(score.confusion)
        for rows in (sum(row) or 1,)
    )


@dataclass(frozen=True)
class Pair:
    """Rows of class `truth` that were predicted as class `predicted`; `share` is their share of all `truth` rows."""

    truth: str
    predicted: str
    count: int
    share: float


def confused_pairs(score: ClassificationScore, limit: int = _PAIRS) -> tuple[Pair, ...]:
    """The most frequent mistakes, the most frequent first."""
    names = [class_score.name for class_score in score.classes]
    pairs = [
        Pair(names[truth], names[predicted], count, count / rows)
        for truth, row in enumerate(score.confusion)
        for rows in (sum(row),)
        for predicted, count in enumerate(row)
        if count and truth != predicted
    ]
    return tuple(sorted(pairs, key=lambda pair: (-pair.count, -pair.share))[:limit])
