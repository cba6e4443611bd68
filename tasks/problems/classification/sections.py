"""What the report shows of a classification: confusion matrix, scores by class, mistakes."""

from pathlib import Path
from typing import Any

from tasks.problems.classification import pictures, tables
from tasks.report_page.data_views import view_of
from tasks.report_page.inputs import ReportInputs
from tasks.report_page.measure import Measure
from tasks.report_page.sections import Tile
from tasks.report_page.tables import Measured, speed_measures
from tasks.report_page.wording import percent, points
from training.problems.probabilities import ClassificationScore
from training.records import Evaluation

MEASURE = Measure("accuracy", "Accuracy", "accuracy", is_share=True, greater_is_better=True)
CONTENTS = (("confusion", "Confusion"), ("classes", "Classes"), ("mistakes", "Mistakes"))
WITHOUT_MEANING: tuple[str, ...] = ()

_SHOWN_CLASSES = 25


def candidate_of(evaluation: Evaluation) -> ClassificationScore:
    """The candidate's scores, typed as the scores of a classification."""
    assert isinstance(evaluation.candidate, ClassificationScore)
    return evaluation.candidate


def measures(inputs: ReportInputs) -> tuple[Measured, ...]:
    """See :class:`tasks.report_page.sections.Sections`."""
    return (
        Measured("Accuracy", "accuracy", "share of rows classified right", True, True),
        Measured("Macro F1", "macro_f1", "mean over classes, each counts the same", True, True),
        Measured("Log loss", "log_loss", "lower is better", False, False),
        Measured(
            "Calibration error",
            "calibration_error",
            "gap between stated and true confidence; lower is better",
            True,
            False,
        ),
        *speed_measures(inputs.words.row, "images_per_s"),
    )


def tiles(inputs: ReportInputs) -> tuple[Tile, ...]:
    """See :class:`tasks.report_page.sections.Sections`."""
    del inputs
    return ()


def corrected(inputs: ReportInputs) -> str:
    """See :class:`tasks.report_page.sections.Sections`."""
    choice = inputs.release.verdict.choice
    return f"{points(choice.corrected_gain)} corrected for selection bias; " if choice else ""


def agreement(evaluation: Evaluation) -> list[tuple[str, str, int]]:
    """See :class:`tasks.report_page.sections.Sections`."""
    if evaluation.champion is None:
        return []
    return [
        ("both", "both right", evaluation.both_right),
        ("won", "only the candidate right", evaluation.only_candidate_right),
        ("lost", "only the champion right", evaluation.only_champion_right),
        ("neither", "both wrong", evaluation.both_wrong),
    ]


def context(inputs: ReportInputs) -> dict[str, Any]:
    """See :class:`tasks.report_page.sections.Sections`."""
    score, champion = candidate_of(inputs.evaluation), inputs.evaluation.champion
    assert champion is None or isinstance(champion, ClassificationScore)
    names = [class_score.name for class_score in score.classes]
    rows = tables.class_rows(score, champion, inputs.evaluation.class_changes)
    matrix = len(names) <= tables.MATRIX_UP_TO
    view = view_of(inputs.dataset)
    return {
        "class_names": names,
        "matrix": tables.confusion_cells(score) if matrix else (),
        "pairs": () if matrix else tables.confused_pairs(score),
        "class_rows": rows[:_SHOWN_CLASSES],
        "more_class_rows": rows[_SHOWN_CLASSES:],
        "mistakes_template": view.mistakes_template,
        **view.mistakes(inputs),
        "wrong": sum(map(sum, score.confusion)) - sum(row[at] for at, row in enumerate(score.confusion)),
    }


def summary_sentence(inputs: ReportInputs) -> str:
    """See :class:`tasks.report_page.sections.Sections`."""
    score = candidate_of(inputs.evaluation)
    return f"**{percent(score.accuracy)}** accurate on {inputs.evaluation.rows:,} test rows"


def figures(inputs: ReportInputs, folder: Path) -> list[Path]:
    """Draw the confusion matrix and, for images, the most confident mistakes, if there are any."""
    drawn = [pictures.confusion_matrix(candidate_of(inputs.evaluation), folder / "confusion_matrix.png")]
    if inputs.example_pictures:
        drawn.append(pictures.mistake_grid(inputs, folder / "worst_mistakes.png"))
    return drawn
