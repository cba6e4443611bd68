"""The section of the report about the rows with the largest errors: the variables of `largest_errors.html.j2`."""

from collections.abc import Callable
from typing import Any

from tasks.report_page.data_views import view_of
from tasks.report_page.inputs import ReportInputs
from tasks.report_page.wording import number
from training.records import LargestError

_SHOWN = 24


def largest_errors(inputs: ReportInputs, intro: str, error: Callable[[LargestError], str]) -> dict[str, Any]:
    """The variables of the template; `intro` says which rows are shown, and `error` writes the error of a row."""
    view = view_of(inputs.dataset)
    return {
        "errors_intro": intro,
        "errors": [
            {
                "row": record.row,
                "place": inputs.place_of(record.row),
                "truth": number(record.truth),
                "predicted": number(record.predicted),
                "error": error(record),
                "values": values,
            }
            for record, values in view.examples(inputs, inputs.evaluation.largest_errors)[:_SHOWN]
        ],
        "error_pictures": view.pictures(inputs),
        **view.example_columns(inputs),
    }
