"""`evergreen predict`: score images, rows of a table or texts with a registered model."""

import click

from flows.cli.options import common, tracking_uri
from flows.cli.output import say
from training.errors import EXIT_OK


@click.command
@click.argument("model")
@click.argument("input")
@click.argument("output")
@click.option("--alias", default="champion", show_default=True, help="which version scores")
@click.option("--skip-bad", is_flag=True, help="leave unreadable images or rows out instead of refusing them")
@click.option("--overwrite", is_flag=True, help="replace OUTPUT")
@tracking_uri
@common
def command(
    model: str,
    input: str,
    output: str,
    alias: str,
    skip_bad: bool,
    overwrite: bool,
    tracking_uri: str | None,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Score images, rows of a table or texts with a registered model.

    INPUT is a folder of images, or a Parquet file or folder with a column `image`. For a model of a table, INPUT is a
    CSV or Parquet file, or a folder of such files, with the columns of the table; the target is not needed. For a
    model of text, INPUT may also be a TSV file, or a .txt file with a text on each line. OUTPUT is the file to
    write, Parquet (.parquet) or CSV (.csv), or a folder for Parquet files.
    """
    from flows.cli.summary import print_prediction
    from flows.local import api
    from flows.local.environment import log_to_terminal

    log_to_terminal(verbose, quiet)
    summary = api.predict(
        model, input, output, alias=alias, skip_bad=skip_bad, overwrite=overwrite, tracking_uri=tracking_uri
    )
    print_prediction(summary)
    if as_json:
        say(summary.model_dump_json())
    return EXIT_OK
