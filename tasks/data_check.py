"""Comparison of a run's dataset with the dataset of the champion, whose profile is kept with its MLflow run."""

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tasks.checks.damaged_columns import DeclaredColumns, check_columns_sound
from tasks.registry.acceptance import acceptances_in, held_in
from tasks.registry.aliases import DATASET_TAG, champion_of
from tasks.registry.recorded_dataset import recorded_dataset
from tasks.trackers.embedded_store import champion_tags, registered_models, tags_of_model
from tasks.trackers.mlflow_run import connect_once
from training.data.manifest import read_manifest
from training.data.profiles.compare import compare
from training.data.profiles.identity import row_changes
from training.data.tables.other_columns import ColumnDifferences
from training.errors import DataError, HeldError
from training.plan import RunPlan
from training.profile_records import Acceptance, Change, DataCheck
from training.records import DatasetVersion
from training.settings.change_limits import limits_of
from training.storage.paths import Home
from training.storage.record_files import find_record

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHANGES_FILE = "data_changes.json"  # of an MLflow run: the comparison of its dataset
_SAID = 3  # changes in a sentence
Connect = Callable[[], "MlflowClient"]


class Champion(NamedTuple):
    """The version in service, its tags, and those of the registered model."""

    number: str
    tags: dict[str, str]
    model_tags: dict[str, str]


def check_data(
    plan: RunPlan, version: DatasetVersion, declared: DeclaredColumns, connect: Connect
) -> DataCheck:
    """Compare a dataset with the champion's.

    `connect` makes a client of the store, if one is needed: the embedded store is read without MLflow, whose import
    takes seconds. Columns that the recipe leaves out are told at most, and so are kinds that it declares.

    Raises :class:`DataError` for a column that the champion learned as numbers and that a few values turned into text.
    """
    made = partial(DataCheck, model=plan.model, fingerprint=version.fingerprint)
    if plan.settings.data.changes == "ignore":
        return made(outcome="ignored", summary="changes are ignored (data.changes=ignore)")
    champion = find_champion(plan, connect)
    if champion is None:
        return made(outcome="not compared", summary="compared with nothing, as there is no champion")
    made = partial(made, reference_version=champion.number)
    named = f"the data of the champion, version {champion.number}"
    fingerprint = champion.tags.get(DATASET_TAG, "")
    if fingerprint == version.fingerprint:
        return made(outcome="fine", summary=f"the same as {named}")
    reference = _dataset(plan, fingerprint, lambda: _run_of(plan, champion, connect), connect)
    if reference is not None:
        check_columns_sound(plan, champion.number, reference, declared)
    if reference is None or reference.profile is None or reference.problem != version.problem:
        why = "another problem" if reference is not None and reference.profile else "no longer on record"
        return made(outcome="not compared", summary=f"not compared with {named}: {why}")
    found = _changes(plan, reference, version, declared)
    if not found:
        return made(outcome="fine", summary=f"much as {named}")
    held = plan.settings.data.changes == "hold" and any(change.effect == "hold" for change in found)
    acceptance = _acceptance(plan, version, declared, champion, connect) if held else None
    held = held and acceptance is None
    return made(
        outcome="held" if held else "changed",
        summary=_summary(plan.model, named, found, held, acceptance),
        changes=tuple(found),
        acceptance=acceptance,
    )


def check_still_held(plan: RunPlan, declared: DeclaredColumns) -> None:
    """Raise :class:`HeldError` if this run was held with its dataset, and still is.

    Returns if the registry does not name this dataset as the last held one: the run has to record it again.
    """
    before = find_record(plan.paths.data_check, DataCheck, plan.paths.root.name)
    if before is None or before.outcome != "held" or (version := plan.find_dataset()) is None:
        return
    connect = partial(connect_once, plan)
    check = check_data(plan, version, declared, connect)
    champion = find_champion(plan, connect)
    held = None if champion is None else held_in(champion.model_tags)
    if check.outcome == "held" and held is not None and held.fingerprint == version.fingerprint:
        raise HeldError(check)


def find_champion(plan: RunPlan, connect: Connect) -> Champion | None:
    """The champion of the plan's model; None without one."""
    home = Home(Path(plan.home))
    if plan.settings.tracking.uri is None and registered_models(home) is not None:
        number, tags = champion_tags(home, plan.model)
        return None if number is None else Champion(number, tags, tags_of_model(home, plan.model))
    client = connect()
    number = champion_of(client, plan.model)
    if number is None:
        return None
    tags = client.get_model_version(plan.model, number).tags
    return Champion(number, dict(tags), dict(client.get_registered_model(plan.model).tags))


def _run_of(plan: RunPlan, champion: Champion, connect: Connect) -> str:
    return connect().get_model_version(plan.model, champion.number).run_id or ""


def _dataset(
    plan: RunPlan, fingerprint: str, run_id: Callable[[], str], connect: Connect
) -> DatasetVersion | None:
    """The record of another dataset version: from this home, else from the MLflow run that had it."""
    folder = Home(Path(plan.home)).dataset(plan.recipe.name, fingerprint)
    try:
        return read_manifest(folder, fingerprint)
    except DataError:  # removed by `evergreen gc`, or made by another home or recipe
        return recorded_dataset(connect(), run_id())


def _changes(
    plan: RunPlan, reference: DatasetVersion, version: DatasetVersion, declared: DeclaredColumns
) -> list[Change]:
    if reference.profile is None or version.profile is None:
        return []
    meant = set(declared.dropped)
    if reference.transform != version.transform:  # the recipe computes its columns in another way
        profiles = (reference.profile, version.profile)
        meant |= {column.name for profile in profiles for column in (*profile.columns, *profile.measures)}
    data = plan.settings.data
    limits = limits_of(data.change_limits, data.ignore_changes)
    changes = compare(reference.profile, version.profile, limits, rewritten=meant)
    changes = [
        change.model_copy(update={"effect": "tell"})
        if change.what == "kind" and change.column in declared.typed
        else change
        for change in changes
    ]
    found = [*changes, *row_changes(reference, version, limits)]
    return sorted(found, key=lambda change: change.effect)


def _acceptance(
    plan: RunPlan, version: DatasetVersion, declared: DeclaredColumns, champion: Champion, connect: Connect
) -> Acceptance | None:
    """The acceptance of this dataset, or of one that was compared with this champion and that it continues.

    Otherwise, each later night would be held again, until a candidate is better than the champion.
    """
    accepted = acceptances_in(champion.model_tags)
    for acceptance in accepted:
        if acceptance.fingerprint == version.fingerprint:
            return acceptance
    for acceptance in accepted:
        run_id = acceptance.run_id
        if acceptance.champion != champion.number:
            continue
        reference = _dataset(plan, acceptance.fingerprint, lambda run_id=run_id: run_id, connect)  # type: ignore[misc]
        if reference is not None and not any(
            change.effect == "hold" for change in _changes(plan, reference, version, declared)
        ):
            return acceptance
    return None


def _summary(model: str, named: str, found: list[Change], held: bool, acceptance: Acceptance | None) -> str:
    sentences = _sentences(found)
    count = len(sentences) - _SAID
    said = "; ".join(sentences[:_SAID]) + (f"; and {count} more" if count > 0 else "")
    if held:
        return (
            f"held: the data changed since {named} as only a mistake does, so nothing is trained: {said}. Repair the "
            "data and run the same command again. If the data are right, accept them: "
            f'evergreen accept {shlex.quote(model)} --why "..."'
        )
    if acceptance is not None:
        day = acceptance.at.partition("T")[0]
        return f"changed since {named}, and accepted by {acceptance.who} on {day} ({acceptance.why}): {said}"
    return f"changed since {named}: {said}"


def _sentences(found: list[Change]) -> list[str]:
    """The sentences of the changes; all differences of the columns are one, at the place of the first of them."""
    of_columns = [change for change in found if change.what in ("column", "kind")]
    if len(of_columns) < 2:
        return [change.sentence for change in found]
    kinds = [change for change in of_columns if change.what == "kind"]
    columns = ColumnDifferences(
        tuple(
            change.column or "" for change in of_columns if change.current != "gone" and change not in kinds
        ),
        tuple(change.column or "" for change in of_columns if change.current == "gone"),
        {change.column or "": (change.reference, change.current) for change in kinds},
    )
    said = f"{columns.words()}; drop=[...] in the recipe's Table leaves columns out"
    first = found.index(of_columns[0])
    return [
        said if change is found[first] else change.sentence
        for change in found
        if change not in of_columns[1:]
    ]
