"""In: settings. Out: nothing, or the error with which the object store of `storage.url` would fail a run later."""

import logging

from training.errors import TransientError
from training.settings.schema import Settings
from training.storage.objects.base import check_store, open_store

log = logging.getLogger("evergreen.checks")


def check_storage(settings: Settings) -> None:
    """Try every kind of access that a run needs, before any long work; leaves no object in the store.

    Raises :class:`training.errors.SettingError` for a wrong URL or missing credentials,
    :class:`training.errors.ResourceError` for a store without conditional writes, and :class:`TransientError` for a
    store that does not answer.
    """
    if settings.storage.url is not None:
        check_store(open_store(settings.storage.url))


def check_storage_reads(settings: Settings) -> None:
    """Check only that the store can be read; logs a warning if the store does not answer.

    Raises :class:`training.errors.SettingError` as :func:`check_storage`.
    """
    if settings.storage.url is None:
        return
    try:
        open_store(settings.storage.url).keys("probes")
    except TransientError as error:
        log.warning("%s", error)
