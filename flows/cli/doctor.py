"""`evergreen doctor`: checks of packages, machine, processes, store and services, with remedies.

Not a Prefect flow: the command must work when Prefect does not.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress

import click

from flows.cli.options import common
from flows.cli.options import tracking_uri as tracking_uri_option
from flows.cli.output import say
from tasks.doctor import Check
from tasks.doctor.credentials import object_store_checks
from tasks.doctor.deployments import deployment_checks
from tasks.doctor.leftovers import leftover_checks
from tasks.doctor.machine import machine_checks
from tasks.doctor.packages import package_checks
from tasks.doctor.services import prefect_check, ray_checks
from tasks.doctor.store import store_checks
from training.errors import EXIT_OK, EXIT_RESOURCE, ResourceError, SettingError
from training.storage import paths

__all__ = ["Check", "checks", "command"]


@click.command
@click.option("--deep", is_flag=True, help="also start Ray, look for GPUs and open the store (half a minute)")
@tracking_uri_option
@click.option("--storage-url", metavar="URL", help="also try the object store of the setting storage.url")
@common
def command(
    deep: bool,
    tracking_uri: str | None,
    storage_url: str | None,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Check the installation and the credentials of servers, and say how to repair it."""
    from flows.cli.summary import print_checks
    from flows.local.api import check_store_named
    from flows.local.environment import prepare

    del verbose, quiet
    check_store_named(tracking_uri)
    # `checks` reports a home that can't be used, and a damaged file of Prefect's profiles, and checks the rest.
    with suppress(ResourceError, SettingError, OSError):
        prepare(paths.home_to_write(for_run=False))
    results = list(checks(None, deep, tracking_uri, storage_url))
    print_checks(results)
    if as_json:
        say(json.dumps([check.model_dump() for check in results]))
    return EXIT_RESOURCE if any(check.ok is False for check in results) else EXIT_OK


def checks(
    home: paths.Home | None = None,
    deep: bool = False,
    tracking_uri: str | None = None,
    storage_url: str | None = None,
) -> Iterator[Check]:
    """Yield all checks, each when it is done; takes some seconds, or about half a minute with `deep`.

    Without `home`, uses the home that the environment names; if that home is not writable, reports this as a failed
    check and leaves out the checks of machine, processes and store.
    """
    yield from _section("packages", package_checks)
    try:
        checked_home = home or paths.home_to_write(for_run=False)
    except ResourceError as error:
        yield Check(name="home", ok=False, found=str(error), remedy=f"Set {paths.HOME_VARIABLE}.")
    else:
        yield from _section("machine", lambda: machine_checks(checked_home.root))
        yield from _section("processes", lambda: leftover_checks(checked_home))
        yield from _section("store", lambda: store_checks(checked_home, tracking_uri, deep))
    yield from _section("object store", lambda: object_store_checks(storage_url))
    yield from _section("Prefect server", _prefect_checks)
    yield from _section("Ray", lambda: ray_checks(deep))


def _prefect_checks() -> Iterator[Check]:
    from flows.local.environment import api_is_configured

    try:
        api_is_configured()
    except (SettingError, OSError) as error:  # then Prefect can't be imported
        remedy = "Repair the file, or move it away."
        yield Check(name="Prefect server", ok=False, found=str(error), remedy=remedy)
        return
    server = prefect_check()
    yield server
    if server.ok:
        yield from deployment_checks()


def _section(name: str, look: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """The checks of one section. An exception becomes a failed check, so that the other sections still run."""
    try:
        yield from look()
    except Exception as error:
        yield Check(
            name=name, ok=False, found=f"{type(error).__name__}: {error}", remedy="Please report this."
        )
