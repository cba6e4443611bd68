"""What the report shows of a language model: the texts with the largest loss per token."""

from pathlib import Path
from typing import Any

from tasks.report_page.data_views import view_of
from tasks.report_page.inputs import ReportInputs
from tasks.report_page.measure import Measure
from tasks.report_page.sections import Tile
from tasks.report_page.tables import Measured, speed_measures
from tasks.report_page.wording import number
from training.problems.language_model import LanguageModelScore
from training.records import Evaluation

MEASURE = Measure("perplexity", "Perplexity", "perplexity", is_share=False, greater_is_better=False)
CONTENTS = (("worst-texts", "Worst texts"),)
WITHOUT_MEANING = ("gate.max_class_drop",)

_SHOWN = 24


def candidate_of(evaluation: Evaluation) -> LanguageModelScore:
    """The candidate's scores, typed as the scores of a language model."""
    assert isinstance(evaluation.candidate, LanguageModelScore)
    return evaluation.candidate


def measures(inputs: ReportInputs) -> tuple[Measured, ...]:
    """See :class:`tasks.report_page.sections.Sections`."""
    return (
        Measured(
            "Perplexity", "perplexity", "exponential of the loss per token; lower is better", False, False
        ),
        Measured(
            "Loss per token", "loss_per_token", "mean over all tokens, in nats; lower is better", False, False
        ),
        *speed_measures(inputs.words.row, "rows_per_s"),
    )


def tiles(inputs: ReportInputs) -> tuple[Tile, ...]:
    """The loss per token, with the number of tokens below."""
    score = candidate_of(inputs.evaluation)
    return (Tile("Loss per token", f"{score.loss_per_token:.4f}", f"nats, on {score.tokens:,} tokens"),)


def corrected(inputs: ReportInputs) -> str:
    """See :class:`tasks.report_page.sections.Sections`."""
    del inputs
    return ""


def agreement(evaluation: Evaluation) -> list[tuple[str, str, int]]:
    """Nothing, because a text is neither right nor wrong."""
    del evaluation
    return []


def context(inputs: ReportInputs) -> dict[str, Any]:
    """See :class:`tasks.report_page.sections.Sections`."""
    view = view_of(inputs.dataset)
    worst = [
        {
            "place": inputs.place_of(record.row),
            "tokens": f"{record.truth:,.0f}",
            "loss": number(record.predicted),
            "values": values,
        }
        for record, values in view.examples(inputs, inputs.evaluation.largest_errors)[:_SHOWN]
    ]
    return {"score": candidate_of(inputs.evaluation), "worst": worst, **view.example_columns(inputs)}


def summary_sentence(inputs: ReportInputs) -> str:
    """See :class:`tasks.report_page.sections.Sections`."""
    score = candidate_of(inputs.evaluation)
    return (
        f"Perplexity **{number(score.perplexity)}**, {score.loss_per_token:.4f} nats per token on {score.tokens:,} "
        f"tokens of {inputs.evaluation.rows:,} test texts"
    )


def figures(inputs: ReportInputs, folder: Path) -> list[Path]:
    """No pictures."""
    del inputs, folder
    return []
