"""Weights & Biases tracker: sends a run's points to a W&B server, or keeps them in the run's folder `wandb`.

The user's environment decides, as for every program that uses W&B: `WANDB_MODE`, `WANDB_API_KEY`, `WANDB_BASE_URL`,
`WANDB_PROJECT`, `WANDB_ENTITY` and W&B's settings files. Without an API key, or with `WANDB_MODE=offline`, the run is
an offline run of W&B, which `wandb sync FOLDER` uploads.
"""

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.trackers.base import END_S, RunInfo, Status
from training.attempts.metrics import Point

if TYPE_CHECKING:
    import wandb

_ID_LENGTH = 32  # characters of the run key that are the id of the W&B run
# 255: the exit code of W&B itself after Ctrl-C.
_EXIT_CODES: Mapping[Status, int] = {"FINISHED": 0, "FAILED": 1, "KILLED": 255}


class WeightsAndBiases:
    """Logs a run's points with the points' own steps and times, under an id that is the beginning of the run key.

    W&B takes each step once, and drops further values of the step when the run is opened again. So a step is logged
    when the next step arrives, with all values of the step, such as those of the training and of the validation.
    """

    library = "wandb"

    def __init__(self) -> None:
        self._run: wandb.Run | None = None
        self._next_step = 0
        self._newest: Point | None = None  # not logged yet

    def begin(self, run: RunInfo) -> str:
        """Open the W&B run: online, offline without an API key, or disabled by `WANDB_MODE`.

        Returns the URL of the run, or the command that uploads the offline run.
        """
        _keep_files_in(run.folder / "wandb")
        import wandb

        known = wandb.setup(wandb.Settings(silent=True)).settings
        offline = known.mode in ("offline", "dryrun")
        if known.mode in ("online", "run"):
            offline = not wandb.login(verify=False, prompt=False)
        self._run = wandb.init(
            id=run.run_key[:_ID_LENGTH],
            name=run.folder.name,
            project=known.project or run.recipe,
            dir=run.folder,
            config={"recipe": run.recipe, "run_key": run.run_key, **_nested(run.settings)},
            settings=wandb.Settings(
                mode="offline" if offline else known.mode,
                # An offline run has all points since the first step, so that its upload replaces earlier uploads.
                resume=None if offline else "allow",
                allow_val_change=True,  # of the config: some settings may change when a run is resumed
                finish_timeout=END_S - 2,
                finish_timeout_raises=True,
                stop_fn=_ignored,
                symlink=False,
                **_NOTHING_ELSE,
            ),
        )
        if self._run.disabled:
            return "off, by WANDB_MODE=disabled"
        self._next_step = self._run.step  # after the steps that the server has
        return f"offline; {self._upload_command()} uploads it" if offline else str(self._run.url)

    def points(self, batch: Sequence[Point]) -> None:
        """Log the points of the steps that the run does not have yet, but not yet the newest step."""
        for point in batch:
            newest = self._newest
            if point.step < self._next_step:
                continue
            if newest is not None and newest.step == point.step:
                point = point.model_copy(update={"values": newest.values | point.values})
            elif newest is not None:
                self._log(newest)
            self._newest = point

    def _log(self, point: Point) -> None:
        assert self._run is not None
        self._run.log({**point.values, "_timestamp": point.at}, step=point.step, commit=True)

    def end(self, status: Status) -> None:
        """Close the W&B run, and upload the remaining points.

        A killed or failed run may have received only a part of the values of its newest step. On a server, that step
        is left out: when the run is resumed, the step is sent again. A finished offline run has all points, so the
        folders of earlier starts are deleted. Raises TimeoutError, with the command that uploads the rest, when the
        upload takes longer than `END_S - 2` seconds.
        """
        assert self._run is not None
        if self._newest is not None and (status == "FINISHED" or self._run.offline):
            self._log(self._newest)
        try:
            self._run.finish(_EXIT_CODES[status])
        except TimeoutError as error:
            raise TimeoutError(f"the upload is slow; {self._upload_command()} uploads the rest") from error
        if status == "FINISHED" and self._run.offline:
            kept = Path(self._run.sync_dir)
            for earlier in kept.parent.glob(f"offline-run-*-{self._run.id}*"):
                if earlier != kept:
                    shutil.rmtree(earlier)

    def _upload_command(self) -> str:
        assert self._run is not None
        return f"`wandb sync {shlex.quote(self._run.sync_dir)}`"


# Settings of W&B: no console output, code, state of Git, description of this machine or its use.
_NOTHING_ELSE: dict[str, Any] = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "host": "",
    "save_code": False,
    "silent": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


def _keep_files_in(folder: Path) -> None:
    """Keep W&B's caches and logs out of the user's home directory; send no reports of W&B's own errors to W&B."""
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        os.environ[name] = str(folder / "cache")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


def _nested(settings: Mapping[str, str]) -> dict[str, Any]:
    """Settings as nested dictionaries, because W&B's pages show a period in a name as a level."""
    nested: dict[str, Any] = {}
    for name, value in settings.items():
        *sections, last = name.split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return nested


def _ignored() -> None:
    """Ignore the button on W&B's pages that stops a run: by default, W&B would interrupt the tracker's process."""
