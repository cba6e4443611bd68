"""In: `training.init_from`. Out: the initial weights, resolved when a run is planned, and copied to the run's folder.

The weights of a registered version are the safetensors file beside its model; the file must pass the checks of
:mod:`tasks.registry.safe_loading`. The tags of a version name the initial weights from which the version itself was
trained. Fails with SettingError when the weights are missing, and with DataError when their files are damaged.
"""

import errno
import logging
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tasks.registry.aliases import WEIGHTS_TAG, champion_of
from tasks.registry.published_weights import published_weights
from tasks.registry.safe_loading import WEIGHTS_FILE_TAG, copy_weights, without_weights
from tasks.registry.training_rows import training_rows_of, training_rows_of_run
from tasks.trackers.mlflow_run import connect_patiently
from tasks.trackers.mlflow_store import connect, patiently
from tasks.trackers.provenance import parent_in
from training.checkpoints.weights import digest_of_file
from training.data.manifest import TOKENIZER
from training.errors import DataError, SettingError, classify
from training.identity import inputs_digest
from training.initial_weights import (
    CHAMPION,
    InitialWeights,
    Start,
    is_path,
    published_in,
    version_in,
    weights_file,
)
from training.plan import RunPlan
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.storage.files import atomic_folder, digest_file, remove_folder, write_text
from training.storage.given_paths import expanded
from training.storage.paths import Home, RunPaths
from training.storage.record_files import find_record, set_aside
from training.supervision.launch import finished

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.initial_weights")

_INPUTS_TAG = "evergreen.inputs"  # digest of the ingredients of the run key besides the initial weights
_FORCED_TAG = "evergreen.forced"  # nonce of a forced run


def find_start(home: Home, recipe: str, settings: Settings, wait: bool = False) -> Start | None:
    """Resolve `training.init_from` to weights; None if the setting is not set, and for trainers without the setting.

    With `wait`, waits up to `tracking.outage_s` seconds for an MLflow server that does not answer. Raises
    :class:`TransientError` if the server does not answer, and :class:`DataError` if a file can't be read.
    """
    reference = settings.training.initial_weights
    if reference is None:
        return None
    if is_path(reference):
        return _file(home, str(expanded(reference, "training.init_from").absolute()))
    if published_in(reference) is not None:
        return _file(home, reference)
    model, number = settings.tracking.model or recipe, version_in(reference)
    if settings.tracking.uri is None and not home.mlflow_file.is_file():  # nothing was registered yet
        return Start(reference, model, missing=_no_version(model, number) if number else "")
    opened = partial(connect, settings.tracking.uri, home)
    client = patiently(opened, settings.tracking.outage_s) if wait else opened()
    number = number or champion_of(client, model)
    return Start(reference, model) if number is None else _version(client, model, number, reference)


def keep_initial_weights(plan: RunPlan) -> None:
    """Copy the initial weights of a run into the run's folder, with the digests of the rows they were trained on.

    With this copy, each attempt starts from the same bytes, even after the version or the file was changed or deleted.
    Copies nothing if the copy exists, or the training is finished. Raises :class:`SettingError` if the weights are
    missing, or differ from the weights in the plan, and :class:`DataError` if their files are damaged.
    """
    paths = plan.paths
    if plan.started_from:
        log.info("training starts from %s", plan.started_from)
    if plan.initial is None or finished(paths, plan.run_key) is not None:
        return
    if paths.initial.exists():
        if _is_kept(plan, plan.initial):
            return
        set_aside(paths.initial, "it does not hold the weights that the run was planned with")
    with atomic_folder(paths.initial) as aside:
        copy_initial_weights(plan, plan.initial, aside)


def copy_initial_weights(plan: RunPlan, initial: InitialWeights, folder: Path) -> Path:
    """Copy the weights into `folder`, with the digests of their training rows if known; returns the path of the copy.

    Raises :class:`SettingError` if the weights are missing, or differ from the weights in the plan, and
    :class:`DataError` if their files are damaged.
    """
    weights = folder / plan.paths.initial_weights.name
    if initial.version:
        client = connect_patiently(plan)
        if missing := _version(client, initial.model, initial.version, initial.reference).missing:
            raise SettingError(missing)
        copy_weights(Home(Path(plan.home)), initial.model, initial.version, weights)
        rows = training_rows_of(client, plan, initial.version, initial.model)
    else:
        file = _file_of(Home(Path(plan.home)), initial.reference)
        try:
            shutil.copyfile(file, weights)
        except OSError as error:
            # An error of the home's disk, such as a full disk.
            if error.errno != errno.EACCES and classify(error) is not None:
                raise
            raise SettingError(f"training.init_from: {initial.reference}: {error.strerror}") from error
        made = _run_of(Home(Path(plan.home)), file, initial.digest)
        rows = None if made is None else training_rows_of_run(*made)
        if made is not None and made[1].text is not None:
            shutil.copyfile(Path(made[1].path) / TOKENIZER, folder / TOKENIZER)
    if rows is not None:
        np.save(folder / plan.paths.initial_rows.name, rows)
    if digest_of_file(weights) != initial.digest:
        raise SettingError(
            f"training.init_from: {initial.name} no longer has the weights {initial.digest[:16]} that the run was "
            "planned with. Run the same command again."
        )
    return weights


def check_tokenizer(plan: RunPlan, version: DatasetVersion, folder: Path | None = None) -> None:
    """Raise :class:`SettingError` if the initial weights are those of a model with another tokenizer than the dataset.

    Another tokenizer numbers tokens otherwise, so the model's embeddings would belong to other tokens; the length to
    which tokenizers cut rows does not count. `folder` has the copy of the weights, with their tokenizer; by default
    that of the run. Nothing is checked for weights whose tokenizer is not known, and before the dataset has one.
    """
    theirs, ours = (folder or plan.paths.initial) / TOKENIZER, Path(version.path) / TOKENIZER
    if plan.initial is None or version.text is None or not (theirs.is_file() and ours.is_file()):
        return
    if _token_ids(theirs) != _token_ids(ours):
        kept = Home(Path(plan.home)).root / "cache" / "tokenizers" / f"{digest_file(theirs)[:16]}.json"
        write_text(kept, theirs.read_text(encoding="utf-8"))
        raise SettingError(
            f"training.init_from: {plan.initial.name} has another tokenizer than dataset {version.name}, so its "
            f"embeddings belong to other tokens. Copy {kept} to {TOKENIZER} beside the recipe, and name it there: "
            f'Text(..., tokenizer="{TOKENIZER}").'
        )


def _token_ids(tokenizer: Path) -> dict[str, int]:
    from tokenizers import Tokenizer

    token_ids: dict[str, int] = Tokenizer.from_file(str(tokenizer)).get_vocab(with_added_tokens=True)
    return token_ids


def inputs_tags(plan: RunPlan) -> dict[str, str]:
    """Tags of a version by which a later plan recognises that the version was trained from the same inputs."""
    forced = plan.ingredients.get("forced")
    return {_INPUTS_TAG: inputs_digest(plan.ingredients), **({_FORCED_TAG: forced} if forced else {})}


def _run_of(home: Home, weights: Path, digest: str) -> tuple[RunPlan, DatasetVersion] | None:
    """Plan and dataset version of the run of this home that wrote the file `weights`; None if there is no such run."""
    paths = RunPaths(weights.resolve().parent.parent)
    plan = find_record(paths.ingredients, RunPlan, paths.root.name)
    if plan is None or home.run(plan.recipe.name, plan.run_key) != paths:
        return None
    plan = plan.model_copy(update={"home": str(home.root)})  # the home may have been moved since
    trained, version = finished(paths, plan.run_key), plan.find_dataset()
    if trained is None or trained.weights_digest != digest or version is None:
        return None
    return plan, version


def _file(home: Home, reference: str) -> Start:
    try:
        digest = _digest(home, reference)
    except SettingError as error:
        return Start(reference, missing=str(error))
    return Start(reference, weights=InitialWeights(reference=reference, digest=digest))


def _digest(home: Home, reference: str) -> str:
    file = _file_of(home, reference)
    try:
        return digest_of_file(file)
    except DataError as error:
        if published_in(reference) is None:
            raise
        log.warning("%s The weights are downloaded again.", error)
        remove_folder(file.parent)
        return digest_of_file(_file_of(home, reference))


def _file_of(home: Home, reference: str) -> Path:
    """The safetensors file of a path, or of published weights. Raises :class:`SettingError` if there is none."""
    published = published_in(reference)
    return (
        weights_file(Path(reference)) if published is None else published_weights(home, reference, published)
    )


def _version(client: "MlflowClient", model: str, number: str, reference: str) -> Start:
    from mlflow.exceptions import MlflowException

    try:
        tags: dict[str, str] = client.get_model_version(model, number).tags
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return Start(reference, model, missing=_no_version(model, number))
    if WEIGHTS_TAG not in tags or WEIGHTS_FILE_TAG not in tags:
        return Start(reference, model, missing=without_weights(model, number))
    weights = InitialWeights(reference=reference, model=model, version=number, digest=tags[WEIGHTS_TAG])
    if reference != CHAMPION:
        return Start(reference, model, weights)
    inputs, forced = tags.get(_INPUTS_TAG, ""), tags.get(_FORCED_TAG)
    return Start(reference, model, weights, inputs=inputs, before=parent_in(tags), forced=forced)


def _no_version(model: str, number: str) -> str:
    return (
        f"training.init_from: model {model} has no version {number}. MLflow's page of the model lists its versions; "
        "training.init_from=champion takes the version in service."
    )


def _is_kept(plan: RunPlan, initial: InitialWeights) -> bool:
    try:
        return digest_of_file(plan.paths.initial_weights) == initial.digest
    except DataError as error:
        log.warning("%s", error)
        return False
