"""The build step of `prefect.yaml`: the checkout and the home of runs on this machine."""

from pathlib import Path

from training.errors import EvergreenError, SettingError
from training.storage.paths import home_to_read


def _check_folder() -> None:
    """Raise :class:`SettingError` if the deployments would belong to a folder where `prefect deploy` ran by mistake."""
    if not Path("prefect.yaml").is_file():
        raise SettingError(
            f"{Path.cwd()} has no file prefect.yaml, and runs would have this working folder, and by default a home in "
            "it. Run `prefect deploy` in the folder of prefect.yaml."
        )


def place() -> dict[str, str]:
    """Outputs `home` and `checkout` for the templates of the deployment file, as absolute paths."""
    try:
        _check_folder()
        return {"home": str(home_to_read().root), "checkout": str(Path.cwd())}
    except EvergreenError as error:
        # Prefect would show any other exception as a traceback, with the message in the middle.
        raise SystemExit(f"not deployed: {error}") from None
