"""Python runs this at its start if this folder is on its path: the first rename to a path kills the process or fails.

strace can't do that: it matches only the source of a rename, and sources have random names.
"""

import errno
import os
import signal
import sys
from typing import Any

_TARGET, _EFFECT, _LOG = (os.environ[f"EVERGREEN_CHAOS_RENAME_{name}"] for name in ("TO", "EFFECT", "LOG"))


def _at_rename(event: str, args: tuple[Any, ...]) -> None:
    if event != "os.rename" or os.fspath(args[1]) != _TARGET or os.path.exists(_LOG):  # noqa: PTH110 - no imports
        return
    with open(_LOG, "w") as log:  # noqa: PTH123
        log.write("INJECTED")
    if _EFFECT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise OSError(errno.EIO, os.strerror(errno.EIO), _TARGET)


sys.addaudithook(_at_rename)
