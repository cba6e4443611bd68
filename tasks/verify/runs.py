"""Finds the run that a user names by its folder, by its run key or the beginning of the key, or by its recipe."""

from pathlib import Path

from pydantic import BaseModel

from training.errors import SettingError
from training.storage.given_paths import resolved
from training.storage.paths import Home, RunPaths, newest_first
from training.storage.record_files import find_record


class _Plan(BaseModel):
    """The fields of a run's plan that are needed here; another version of Evergreen may have written the plan."""

    home: str
    run_key: str


def run_of_folder(text: str) -> RunPaths | None:
    """The run in folder `text`, or None when `text` is not the folder of a run.

    Raises :class:`SettingError` when `text` is a path that can't be followed.
    """
    paths = RunPaths(resolved(text, "run"))
    return paths if paths.release.is_file() or paths.ingredients.is_file() else None


def home_of(run: RunPaths) -> Home:
    """The home that contains a run's folder, or, for a folder that was moved, the home that the run's plan names.

    Raises :class:`SettingError` when neither is known.
    """
    if run.root.parents[1].name == "runs":
        return Home(run.root.parents[2])
    plan = find_record(run.ingredients, _Plan, run.root.name)
    if plan is None:
        raise SettingError(
            f"run {run.root}: the folder is in no home and has no readable ingredients.json; name a folder "
            "HOME/runs/RECIPE/KEY"
        )
    return Home(Path(plan.home))


def find_run(text: str, home: Home) -> RunPaths:
    """The run of `home` that `text` names: a recipe (its newest run), or a run key or the beginning of a run key.

    Raises :class:`SettingError`, which lists the existing runs, when no run or more than one run matches.
    """
    named = [Path(text).name] == list(Path(text).parts)  # `home.runs` of a path could be in another home
    if named and home.runs(text).is_dir() and (newest := _newest_first(home.runs(text))):
        return newest[0]
    known = [run for recipe in sorted(home.runs("").glob("*")) for run in _newest_first(recipe)]
    matching = [run for run in known if text and _has_key(run, text)]
    if len(matching) == 1:
        return matching[0]
    listed = ", ".join(f"{run.root.parent.name}/{run.root.name}" for run in matching or known) or "none yet"
    why = "several run keys begin like this" if matching else "no such run folder, run key or recipe"
    raise SettingError(f"run {text!r}: {why} in {home.root}. Runs: {listed}")


def _newest_first(folder: Path) -> list[RunPaths]:
    return [RunPaths(file.parent) for file in newest_first(folder, "ingredients.json")]


def _has_key(run: RunPaths, text: str) -> bool:
    """Whether the run's key begins with `text`; the name of the run's folder is the first 16 digits of the key."""
    name = run.root.name
    if len(text) <= len(name):
        return name.startswith(text)
    if not text.startswith(name):
        return False
    plan = find_record(run.ingredients, _Plan, name)
    return plan is not None and plan.run_key.startswith(text)
