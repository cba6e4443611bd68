"""In: settings. Out: nothing, or the error with which the object store of `storage.url` would fail a run later."""

import logging

from training.errors import SettingError, TransientError
from training.settings.schema import Settings
from training.storage.objects.base import check_store, open_store

log = logging.getLogger("evergreen.checks")


def check_storage(settings: Settings) -> None:
    """Try every kind of access that a run needs, before any long work; leaves no object in the store.

    Raises :class:`SettingError` for a wrong URL, missing credentials or a relative `storage.node_cache`,
    :class:`training.errors.ResourceError` for a store without conditional writes, and :class:`TransientError` for a
    store that does not answer.
    """
    _check_node_cache(settings)
    if settings.storage.url is not None:
        check_store(open_store(settings.storage.url))


def _check_node_cache(settings: Settings) -> None:
    """Raise :class:`SettingError` for a relative folder: each process on a node has another working folder."""
    folder = settings.storage.node_cache
    if folder is not None and not folder.startswith(("/", "~")):
        raise SettingError(
            f"storage.node_cache: {folder!r} is empty or relative; begin it with / or ~, or leave the setting out"
        )


def check_storage_reads(settings: Settings) -> None:
    """Check only that the store can be read; logs a warning if the store does not answer.

    Raises :class:`SettingError` as :func:`check_storage`.
    """
    _check_node_cache(settings)
    if settings.storage.url is None:
        return
    try:
        open_store(settings.storage.url).keys("probes")
    except TransientError as error:
        log.warning("%s", error)
