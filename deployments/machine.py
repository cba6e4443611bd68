"""The build step of `prefect.yaml`: the checkout and the home of runs on this machine."""

from pathlib import Path

from training.errors import EvergreenError
from training.storage.paths import home_to_read


def place() -> dict[str, str]:
    """Outputs `home` and `checkout` for the templates of the deployment file, as absolute paths."""
    try:
        return {"home": str(home_to_read().root), "checkout": str(Path.cwd())}
    except EvergreenError as error:
        # Prefect would show any other exception as a traceback, with the message in the middle.
        raise SystemExit(f"not deployed: {error}") from None
