"""`evergreen accept`: take the data of a held run as they are."""

import click

from flows.cli.options import common, tracking_uri
from flows.cli.output import say
from training.errors import EXIT_OK


@click.command
@click.argument("model")
@click.option("--why", required=True, help="why these data are right; recorded with your name and the time")
@tracking_uri
@common
def command(model: str, why: str, tracking_uri: str | None, verbose: bool, quiet: bool, as_json: bool) -> int:
    """Accept the data with which the last run of a model was held; the next run trains on them."""
    from flows.local import api
    from flows.local.environment import log_to_terminal

    log_to_terminal(verbose, quiet)
    acceptance = api.accept(model, why, tracking_uri=tracking_uri)
    data = acceptance.fingerprint[:16]
    say(f"{model}: data {data} accepted by {acceptance.who}. Run the command that was held again.")
    if as_json:
        say(acceptance.model_dump_json())
    return EXIT_OK
