"""The flow that scores images, rows of a table or texts with a registered model, and writes Parquet.

evergreen predict digits IMAGES OUTPUT.parquet
"""

from typing import Any

from prefect import flow
from pydantic import SecretStr

from flows.local.finished_work import done, with_result
from flows.local.prefect_signals import sigterm_ends_flow
from tasks import predict as step
from tasks.flow_retries import retried_if_transient
from tasks.predict import PredictionSummary
from tasks.step import without_secrets
from training.redaction import shown
from training.settings.schema import RaySettings
from training.storage.paths import home_to_write


@flow(name="predict", flow_run_name="predict-{model}")
def predict(
    model: str,
    input: str,
    output: str,
    alias: str = "champion",
    skip_bad: bool = False,
    overwrite: bool = False,
    with_ray: bool | None = None,
    tracking_uri: str | SecretStr | None = None,
    ray: RaySettings = RaySettings(),  # noqa: B008 - frozen
) -> PredictionSummary:
    """Score all images, rows of a table or texts with a registered model.

    Args:
        model: Name of the registered model, by default its recipe's.
        input: For a model of images: image file, folder of image files at any depth, or Parquet with a column `image`.
            For a model of a table: CSV or Parquet file with the table's columns, or a folder of such files.
            For a model of text: CSV, TSV or Parquet file with the column of text, .txt file with a text on each line,
            or a folder of such files of one format.
        output: A name that ends in .parquet or .csv gives one file, a name without an ending a folder of part files.
        alias: Which version scores: champion, challenger or previous.
        skip_bad: Leave images or rows that can't be read out of the result, and log each. Otherwise, the first such
            image or row ends the flow with an error.
        overwrite: Replace predictions that already exist at the output.
        with_ray: Score on Ray or in this process; empty: on Ray from 2,000 images, 5 million rows of a table or
            2 million texts.
        tracking_uri: MLflow tracking URI; empty: the store under EVERGREEN_HOME.
        ray: The Ray cluster to compute on.
    """
    with sigterm_ends_flow(), retried_if_transient(), without_secrets():
        made = step.predict(
            str(home_to_write(for_run=False).root),
            model,
            input,
            output,
            alias,
            skip_bad,
            overwrite,
            with_ray,
            shown(tracking_uri),
            ray,
        )
    return done(made)


def run_prediction(model: str, input: str, output: str, **options: Any) -> PredictionSummary:
    """Run the flow; returns the summary also when the flow fails after the predictions were written."""
    made: PredictionSummary = with_result(
        lambda: predict(model, input, output, **options), f"{model}: the prediction"
    )
    return made
