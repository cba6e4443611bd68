"""`evergreen predict` and `evergreen rollback`: commands on a registered model.

Both look for the model before anything heavy is imported, and start no Prefect server: they run as a flow only where
the user has a Prefect server, which then shows the flow run.
"""

import argparse
import json
from typing import TYPE_CHECKING

from flows.cli.arguments import add_common, add_store, prepared_home
from flows.cli.output import say
from training.errors import EXIT_OK

if TYPE_CHECKING:
    from tasks.predict import PredictionSummary
    from training.storage.paths import Home


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
    from tasks.registry.lookup import check_known

    place = prepared_home(options, options.quiet)
    if options.tracking_uri is None:
        check_known(place, options.model, options.alias)
    summary = _predicted(options, place)
    print_prediction(summary)
    if options.json:
        say(summary.model_dump_json())
    return EXIT_OK


def _predicted(options: argparse.Namespace, place: "Home") -> "PredictionSummary":
    """Predict as a flow run where the user has a Prefect server, and without Prefect's records elsewhere."""
    from flows.local.environment import api_is_configured, quieten

    chosen = {
        "alias": options.alias,
        "skip_bad": options.skip_bad,
        "overwrite": options.overwrite,
        "tracking_uri": options.tracking_uri,
    }
    if not api_is_configured():
        from tasks.predict import predict as step

        quieten()  # Prefect set its own levels when it was imported
        made: PredictionSummary = step.fn(
            str(place.root), options.model, options.input, options.output, **chosen
        )
        return made
    from flows.local.prefect_server import prefect_api
    from flows.predict import predict as flow

    quieten()
    with prefect_api(place):
        recorded: PredictionSummary = flow(options.model, options.input, options.output, **chosen)
        return recorded


def rollback_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `evergreen rollback`."""
    parser.add_argument("model", help="registered model")
    parser.add_argument("--why", default="", help="a reason, kept with the decision")
    add_store(parser)
    add_common(parser)


def rollback(options: argparse.Namespace) -> int:
    """Return to the champion before the present one."""
    from tasks.registry.lookup import check_known

    place = prepared_home(options, options.quiet)
    if options.tracking_uri is None:
        check_known(place, options.model)
    before, now = _rolled_back(options, place)
    say(f"{options.model}: champion is version {now} again (was version {before})")
    if options.json:
        say(json.dumps({"model": options.model, "from": before, "to": now}))
    return EXIT_OK


def _rolled_back(options: argparse.Namespace, place: "Home") -> tuple[str, str]:
    """Roll back as a flow run where the user has a Prefect server, and without Prefect's records elsewhere."""
    from flows.local.environment import api_is_configured, quieten

    if not api_is_configured():
        from tasks.rollback import rollback as step

        quieten()
        moved: tuple[str, str] = step.fn(str(place.root), options.model, options.why, options.tracking_uri)
        return moved
    from flows.local.prefect_server import prefect_api
    from flows.rollback import rollback as flow

    quieten()
    with prefect_api(place):
        return flow(options.model, options.why, options.tracking_uri)
