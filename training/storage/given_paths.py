"""Paths that a user gives: in the command line, in a setting or in a recipe."""

from pathlib import Path

from training.errors import SettingError

_LONGEST = 255  # bytes of a name; the limit of Linux


def expanded(given: str | Path, what: str) -> Path:
    """The path with the `~` at its beginning replaced by a user's home directory; `what` names the path in the error.

    Raises :class:`SettingError` when the machine has no such user, and for anything but a path.
    """
    if not isinstance(given, str | Path):
        raise SettingError(f"{what}: expected one path, as text or pathlib.Path, not {given!r}")
    try:
        return Path(given).expanduser()
    except RuntimeError:
        user = Path(given).parts[0]
        raise SettingError(
            f"{what}: {given}: this machine knows no home directory {user}. Write the whole path; a file whose name "
            "begins with ~ is ./~NAME."
        ) from None


def resolved(given: str | Path, what: str) -> Path:
    """The absolute path without links; `what` names the path in the error.

    Raises :class:`SettingError` also when links point to each other, and for a path that is not UTF-8, as records and
    digests are, or has a name that is too long for a file system.
    """
    path = expanded(given, what)
    try:
        real_path = path.resolve()
    except RuntimeError:
        raise SettingError(
            f"{what}: {given} leads to links that point to each other. Repair the links, or give another path."
        ) from None
    try:
        longest = max(real_path.parts, key=lambda part: len(part.encode()))
    except UnicodeEncodeError:
        raise SettingError(f"{what}: the path {str(real_path)!r} is not UTF-8. Rename it.") from None
    if len(longest.encode()) > _LONGEST:
        raise SettingError(f"{what}: the name {longest} has more than {_LONGEST} bytes. Give another path.")
    return real_path


def named(given: str | Path, what: str) -> Path:
    """As :func:`resolved`, but a link to a file keeps its own name, whose suffix says the format.

    Data version control and caches of models store files under digests, to which links with the files' names lead.
    """
    path = resolved(given, what)
    link = expanded(given, what)
    return link.parent.resolve() / link.name if path.is_file() and link.is_symlink() else path
