"""What the report shows of a regression: predictions against true numbers, and the largest errors."""

from pathlib import Path
from typing import Any

from tasks.problems.largest_errors import largest_errors
from tasks.problems.regression import pictures, plots
from tasks.report_page.inputs import ReportInputs
from tasks.report_page.measure import Measure
from tasks.report_page.sections import Tile
from tasks.report_page.tables import Measured, speed_measures
from tasks.report_page.wording import number, signed_number
from training.problems.regression import RegressionScore
from training.records import Evaluation

MEASURE = Measure("rmse", "RMSE", "RMSE", is_share=False, greater_is_better=False)
CONTENTS = (("predictions", "Predictions"), ("errors", "Largest errors"))
WITHOUT_MEANING = ("gate.max_class_drop",)


def candidate_of(evaluation: Evaluation) -> RegressionScore:
    """The candidate's scores, typed as the scores of a regression."""
    assert isinstance(evaluation.candidate, RegressionScore)
    return evaluation.candidate


def measures(inputs: ReportInputs) -> tuple[Measured, ...]:
    """See :class:`tasks.report_page.sections.Sections`."""
    return (
        Measured(
            "RMSE",
            "rmse",
            "root of the mean squared error; lower is better; its interval takes the rows as independent",
            False,
            False,
        ),
        Measured("MAE", "mae", "mean absolute error; lower is better", False, False),
        Measured("R²", "r2", "share of the target's variance that is explained", False, True),
        Measured("Median error", "median_error", "median absolute error; lower is better", False, False),
        Measured("Bias", "bias", "mean of predicted minus true; 0 is best", False, None),
        *speed_measures(inputs.words.row, "rows_per_s"),
    )


def tiles(inputs: ReportInputs) -> tuple[Tile, ...]:
    """R², with the mean absolute error below."""
    score = candidate_of(inputs.evaluation)
    return (Tile("R²", f"{score.r2:.4f}", f"MAE {number(score.mae)}, the mean absolute error"),)


def corrected(inputs: ReportInputs) -> str:
    """See :class:`tasks.report_page.sections.Sections`."""
    del inputs
    return ""


def agreement(evaluation: Evaluation) -> list[tuple[str, str, int]]:
    """Nothing, because predictions of a regression are not simply right or wrong."""
    del evaluation
    return []


def context(inputs: ReportInputs) -> dict[str, Any]:
    """See :class:`tasks.report_page.sections.Sections`."""
    target = _target(inputs)
    predicted = inputs.predicted
    return {
        "target": target,
        "plots": (
            ()
            if predicted is None
            else (
                *plots.plots(predicted, target),
                plots.histogram(predicted, target),
            )
        ),
        "score": candidate_of(inputs.evaluation),
        **largest_errors(
            inputs,
            f"The test rows on which the candidate is farthest from the true {target}.",
            lambda record: signed_number(record.predicted - record.truth),
        ),
    }


def summary_sentence(inputs: ReportInputs) -> str:
    """See :class:`tasks.report_page.sections.Sections`."""
    score = candidate_of(inputs.evaluation)
    return (
        f"RMSE **{number(score.rmse)}**, R² {score.r2:.4f}, MAE {number(score.mae)} on {inputs.evaluation.rows:,} "
        "test rows"
    )


def figures(inputs: ReportInputs, folder: Path) -> list[Path]:
    """Draw predicted against true numbers, the distribution of the errors, and the images with the largest errors."""
    if inputs.predicted is None:
        return []
    target = _target(inputs)
    drawn = [
        pictures.predicted_against_true(inputs.predicted, target, folder / "predicted_against_true.png"),
        pictures.error_histogram(inputs.predicted, target, folder / "errors.png"),
    ]
    if inputs.example_pictures:
        drawn.append(pictures.error_grid(inputs, folder / "largest_errors.png"))
    return drawn


def _target(inputs: ReportInputs) -> str:
    return inputs.dataset.table.target if inputs.dataset.table is not None else "target"
