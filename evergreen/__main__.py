"""Start the `evergreen` command with Evergreen's own packages, even if other packages have the same names.

Evergreen's packages are called `flows`, `tasks`, `training` and `deployments`. Users have folders of these names
too, and a folder on PYTHONPATH takes precedence over installed packages.
"""

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_PACKAGES = ("flows", "tasks", "training", "deployments")


def main() -> int:
    """Run one command; returns the exit status."""
    prefer_own_packages()
    from flows.cli.main import main as run

    return run()


def prefer_own_packages() -> None:
    """If another package shadows one of Evergreen's, put Evergreen's folder first on the import path.

    This holds for this process and its child processes. Without shadowing, nothing changes: Evergreen's folder may be
    `site-packages`, whose position in the import path should stay the same.
    """
    root = Path(__file__).resolve().parents[1]
    if all(_found_in(name) == root for name in _PACKAGES):
        return
    sys.path.insert(0, str(root))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))


def _found_in(package: str) -> Path | None:
    """The folder from which `import package` would take the package, or None when there is no such package."""
    spec = PathFinder.find_spec(package)
    locations = spec.submodule_search_locations if spec else None
    return Path(next(iter(locations))).resolve().parent if locations else None


if __name__ == "__main__":
    sys.exit(main())
