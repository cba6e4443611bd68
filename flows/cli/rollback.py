"""`evergreen rollback`: return to a former champion."""

import json

import click

from flows.cli.options import common, tracking_uri
from flows.cli.output import say
from training.errors import EXIT_OK


@click.command
@click.argument("model")
@click.option("--why", default="", help="the reason, which is recorded with the decision")
@click.option("--to", metavar="VERSION", help="a former champion to return to (default: the champion before)")
@tracking_uri
@common
def command(
    model: str,
    why: str,
    to: str | None,
    tracking_uri: str | None,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Return to the previous champion, or to an earlier one with --to."""
    from flows.local import api
    from flows.local.environment import log_to_terminal

    log_to_terminal(verbose, quiet)
    before, now = api.rollback(model, why, to=to, tracking_uri=tracking_uri)
    if before == now:
        say(f"{model}: champion is version {now} already")
    else:
        say(f"{model}: champion is version {now} again (was version {before})")
    if as_json:
        say(json.dumps({"model": model, "from": before, "to": now}))
    return EXIT_OK
