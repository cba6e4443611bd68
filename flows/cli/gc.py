"""`evergreen gc`: remove runs, datasets and checkpoints that a home does not need any more."""

import click

from flows.cli.options import common, prepared_home
from flows.cli.output import say
from training.errors import EXIT_OK, EXIT_RESOURCE, SettingError


@click.command(short_help="Remove runs, datasets and checkpoints that nothing needs.")
@click.option("--dry-run", is_flag=True, help="show what would be removed, and remove nothing")
@click.option(
    "--keep", type=int, default=5, show_default=True, metavar="N", help="finished runs to keep of each recipe"
)
@click.option("--versions", is_flag=True, help="also delete removed runs and their versions from MLflow")
@click.option(
    "--node-cache",
    metavar="FOLDER",
    help="also clean this storage.node_cache, on a node without plans of runs",
)
@common
def command(
    dry_run: bool,
    keep: int,
    versions: bool,
    node_cache: str | None,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Remove runs, datasets and checkpoints that nothing needs any more.

    Keeps the newest finished runs of each recipe, runs whose version any alias points to, unfinished runs of the last
    30 days, the datasets of kept runs, and searches of the last 30 days with a kept trial. The command of a removed run
    trains the same model again, bit for bit. Also removes Ray sessions and temporary folders that killed
    runs of this user left, claims on the registry's lock that killed processes of this home left, and datasets that
    workers downloaded to this machine and no training used for a week.
    """
    from flows.cli.summary import print_collection
    from tasks.cleanup.retention import collect

    if node_cache is not None and not node_cache.strip():
        raise SettingError(
            "--node-cache: the text is empty, perhaps from a variable that is not set; name a folder"
        )
    home = prepared_home(verbose, quiet, read_only=dry_run)
    collection = collect(home, keep, versions, dry_run, node_cache)
    print_collection(collection, home, dry_run)
    if as_json:
        say(collection.model_dump_json())
    return EXIT_RESOURCE if collection.failed else EXIT_OK
