"""What the report shows of a denoising model: generated images, errors by class, the images with the largest errors."""

from pathlib import Path
from typing import Any

from tasks.report_page.data_views import picture, view_of
from tasks.report_page.drawing import picture_grid
from tasks.report_page.inputs import ReportInputs
from tasks.report_page.measure import Measure
from tasks.report_page.sections import Tile
from tasks.report_page.tables import Measured, speed_measures
from tasks.report_page.wording import NOTHING, number
from training.problems.denoising import ClassError, DenoisingScore
from training.records import Evaluation

MEASURE = Measure("noise_error", "Noise error", "noise error", is_share=False, greater_is_better=False)
CONTENTS = (
    ("generated", "Generated images"),
    ("class-errors", "Errors by class"),
    ("errors", "Largest errors"),
)
WITHOUT_MEANING = ("gate.max_class_drop",)

_SHOWN_ERRORS = 24


def candidate_of(evaluation: Evaluation) -> DenoisingScore:
    """The candidate's scores, typed as the scores of a denoising model."""
    assert isinstance(evaluation.candidate, DenoisingScore)
    return evaluation.candidate


def measures(inputs: ReportInputs) -> tuple[Measured, ...]:
    """See :class:`tasks.report_page.sections.Sections`."""
    return (
        Measured(
            "Noise error",
            "noise_error",
            "mean squared error of the predicted noise, whose variance is 1; lower is better",
            False,
            False,
        ),
        *speed_measures(inputs.words.row, "images_per_s"),
    )


def tiles(inputs: ReportInputs) -> tuple[Tile, ...]:
    """The class with the largest error, if there are several."""
    known = [
        class_error
        for class_error in candidate_of(inputs.evaluation).classes
        if class_error.noise_error is not None
    ]
    if len(known) < 2:
        return ()
    worst = max(known, key=lambda class_error: class_error.noise_error or 0.0)
    return (Tile("Largest error of a class", _error(worst), f"{worst.name}, {worst.rows:,} test rows"),)


def corrected(inputs: ReportInputs) -> str:
    """See :class:`tasks.report_page.sections.Sections`."""
    del inputs
    return ""


def agreement(evaluation: Evaluation) -> list[tuple[str, str, int]]:
    """Nothing, because an image's noise is neither right nor wrong."""
    del evaluation
    return []


def context(inputs: ReportInputs) -> dict[str, Any]:
    """See :class:`tasks.report_page.sections.Sections`."""
    names, champion = inputs.dataset.classes, inputs.evaluation.champion
    assert champion is None or isinstance(champion, DenoisingScore)
    theirs = (
        {}
        if champion is None
        else {class_error.name: _error(class_error) for class_error in champion.classes}
    )
    made = () if inputs.generated is None else inputs.generated
    shown = zip(inputs.evaluation.largest_errors, view_of(inputs.dataset).pictures(inputs), strict=False)
    return {
        "generated": [
            {"name": name, "pictures": list(map(picture, images))}
            for name, images in zip(names, made, strict=False)
        ],
        "class_errors": [
            {
                "name": class_error.name,
                "rows": class_error.rows,
                "candidate": _error(class_error),
                "champion": theirs.get(class_error.name, ""),
            }
            for class_error in candidate_of(inputs.evaluation).classes
        ],
        "errors": [
            {
                "row": error.row,
                "place": inputs.place_of(error.row),
                "name": names[int(error.truth)],
                "error": number(error.predicted),
                **drawn,
            }
            for error, drawn in list(shown)[:_SHOWN_ERRORS]
        ],
    }


def summary_sentence(inputs: ReportInputs) -> str:
    """See :class:`tasks.report_page.sections.Sections`."""
    score = candidate_of(inputs.evaluation)
    return f"Noise error **{number(score.noise_error)}** on {inputs.evaluation.rows:,} test images"


def figures(inputs: ReportInputs, folder: Path) -> list[Path]:
    """Draw the generated images, each with its class."""
    if inputs.generated is None:
        return []
    named = zip(inputs.dataset.classes, inputs.generated, strict=False)
    names = [name for name, images in named for _ in images]
    pictures = [image for images in inputs.generated for image in images]
    return [picture_grid(pictures, names, names, [True] * len(names), folder / "generated.png")]


def _error(class_error: ClassError) -> str:
    return NOTHING if class_error.noise_error is None else number(class_error.noise_error)
