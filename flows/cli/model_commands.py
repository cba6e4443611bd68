"""`evergreen predict` and `evergreen rollback`: commands on a registered model.

Both look for the model before anything heavy is imported, and start no Prefect server: they run as a flow only where
the user has a Prefect server, which then shows the flow run.
"""

import argparse
import json
from typing import TYPE_CHECKING

from flows.cli.arguments import add_common, add_store, log_to
from flows.cli.output import say
from training.errors import EXIT_OK

if TYPE_CHECKING:
    pass


def predict_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `evergreen predict`."""
    parser.add_argument("model", help="registered model")
    parser.add_argument("input", help="folder of images, or Parquet file or folder with a column `image`")
    parser.add_argument("output", help="Parquet file (.parquet) or folder to write")
    parser.add_argument("--alias", default="champion", help="which version (default: champion)")
    parser.add_argument(
        "--skip-bad", action="store_true", help="leave unreadable images out instead of refusing"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace OUTPUT")
    add_store(parser)
    add_common(parser)


def predict(options: argparse.Namespace) -> int:
    """Score images with a registered model."""
    from flows.cli.summary import print_prediction
    from flows.local import api

    log_to(options, options.quiet)
    summary = api.predict(
        options.model,
        options.input,
        options.output,
        alias=options.alias,
        skip_bad=options.skip_bad,
        overwrite=options.overwrite,
        tracking_uri=options.tracking_uri,
    )
    print_prediction(summary)
    if options.json:
        say(summary.model_dump_json())
    return EXIT_OK


def rollback_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `evergreen rollback`."""
    parser.add_argument("model", help="registered model")
    parser.add_argument("--why", default="", help="a reason, kept with the decision")
    add_store(parser)
    add_common(parser)


def rollback(options: argparse.Namespace) -> int:
    """Return to the champion before the present one."""
    from flows.local import api

    log_to(options, options.quiet)
    before, now = api.rollback(options.model, options.why, tracking_uri=options.tracking_uri)
    say(f"{options.model}: champion is version {now} again (was version {before})")
    if options.json:
        say(json.dumps({"model": options.model, "from": before, "to": now}))
    return EXIT_OK
