"""In: a scored candidate. Out: exactly one model version with the run key, and the alias that the verdict demands.

A crash at any point is safe because of the order: create the version (after a lookup by run key), compare the loaded
model's outputs, record the look, move the alias, record the decision. Each of these finds out what an interrupted
attempt has done already. Fails with ChampionMovedError when the champion changed since the comparison.
"""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tasks.champion_jump import champion_jump
from tasks.comparison import as_champion_already
from tasks.gate import judge
from tasks.model_formats.base import check_same, format_name, format_of, metadata_of
from tasks.registry.aliases import (
    CLASSES_TAG,
    DATASET_TAG,
    METRIC_TAG,
    ROLLED_BACK_TAG,
    VERDICT_TAG,
    WEIGHTS_TAG,
    Alias,
    ChampionMovedError,
    alias_of,
    champion_of,
    check_compared_with,
    delete_duplicates,
    keep_as_challenger,
    load_version,
    move_alias,
    refuse_rolled_back,
    version_tags,
    was_rolled_back,
)
from tasks.registry.decisions import read_decisions
from tasks.registry.descriptions import describe_model, describe_version, version_description
from tasks.registry.initial_weights import inputs_tags
from tasks.registry.lock import Lease, registry_lock
from tasks.registry.own_digests import OwnDigests, adopt_digests, announce_digests
from tasks.registry.reign import settle_standing, take_looks
from tasks.registry.rollback import finish_rollback
from tasks.registry.safe_loading import (
    FILE_TAG,
    METADATA_TAG,
    THRESHOLD_TAG,
    TRANSFORM_TAG,
    WEIGHTS_FILE_TAG,
    NotDownloadedError,
    digest_of_logged,
)
from tasks.registry.training_rows import record_training_rows
from tasks.registry.unjudged import is_judged_elsewhere, is_made_elsewhere
from tasks.report_page.wording import summary
from tasks.step import step, worth_retrying
from tasks.trackers.mlflow_run import LONGEST_REASON, RUN_KEY_TAG, connect_patiently, log_final, open_run
from tasks.trackers.provenance import parent_tags
from training.data.dataset import open_columns
from training.errors import DataError, TransientError
from training.plan import RunPlan
from training.problems import problem_of
from training.profile_records import DataCheck
from training.recipe import Recipe, reload_once
from training.records import DatasetVersion, Evaluation, Goodput, Release, TrainedModel, Verdict
from training.storage.files import digest_file, digest_json
from training.storage.paths import Home
from training.storage.record_files import find_record
from training.trainers.base import inspection_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.register")

_MOST_CHARACTERS = 100_000  # MLflow refuses longer values of a version's tags
_VERSIONS_TAG = "mlflow.modelVersions"
_LOGGED = "models:/"


def _same_again(task: Any, run: Any, state: Any) -> bool:
    """Whether a retry may succeed; not when the champion changed, which requires a new comparison."""
    moved = isinstance(state.result(raise_on_failure=False), ChampionMovedError)
    return not moved and worth_retrying(task, run, state)


@step("register", retries=3, pause_s=5, retry_if=_same_again)
def register(
    plan: RunPlan, version: DatasetVersion, trained: TrainedModel, evaluation: Evaluation
) -> Release:
    """Register the candidate, check the registered model, judge it, and promote or keep it."""
    home = Home(Path(plan.home))
    client = connect_patiently(plan)
    # `plan` may be that of an earlier run, whose version the current run judges before its own version.
    run_id = open_run(client, plan, leaves_others=True)
    recipe = reload_once(plan.recipe, plan.paths.recipe)
    predict = inspection_of(plan.settings.trainer).predictor(recipe, version, trained)
    inputs = open_columns(version, "test").inputs
    register_model(client, plan.model)
    describe_model(client, plan, recipe, version)
    with registry_lock(client, home, plan.model) as lease:
        finish_rollback(lease)
        # Before a look is spent: the candidate may have been compared with a champion that was rolled back since.
        check_compared_with(lease, evaluation.champion_version, tags_of_candidate(plan, trained))
        number = find_or_create(lease, plan, version, trained, run_id, recipe, inputs)
        adopt_digests(client, home, plan.model, number)
        link_logged_model(client, plan.model, number)
        check_same(predict, load_version(home, plan.model, number).predict, np.array(inputs[:64]))
        looks = take_looks(lease, number, trained.weights_digest, evaluation, plan.settings.gate)
        if evaluation.metric is not None:
            kept = evaluation.metric.model_dump_json()
            client.set_model_version_tag(plan.model, number, METRIC_TAG, kept)
        verdict = judge(evaluation, plan.settings.gate, looks)
        settle_standing(lease, number, evaluation, verdict)
        if is_champion_already(lease, number, verdict):
            verdict = as_champion_already(verdict) if verdict.promote else verdict
            alias = alias_of(client, plan.model, number)
        else:
            alias = settle(lease, number, trained.weights_digest, verdict)
    client.log_dict(run_id, verdict.model_dump(mode="json"), "verdict.json")
    if not is_judged_elsewhere(client, home, plan.model, number):
        text = version_description(plan, version, trained, evaluation, verdict, alias)
        note_verdict(client, plan, number, verdict, alias, text)
    metrics = final_metrics(trained, evaluation)
    log_final(client, run_id, metrics, trained.steps, int(client.get_run(run_id).info.start_time))
    log.info("%s version %s: %s", plan.model, number, summary(verdict, alias))
    return _release(plan, version, trained, evaluation, run_id, number, alias, verdict, metrics)


def _release(
    plan: RunPlan,
    version: DatasetVersion,
    trained: TrainedModel,
    evaluation: Evaluation,
    run_id: str,
    number: str,
    alias: Alias,
    verdict: Verdict,
    metrics: dict[str, float],
) -> Release:
    """The record of the run's outcome, still without times, which the flow adds."""
    return Release(
        recipe=plan.recipe.name,
        run_key=plan.run_key,
        dataset_fingerprint=version.fingerprint,
        weights_digest=trained.weights_digest,
        model=plan.model,
        version=number,
        alias=alias,
        train_rows=version.rows("train"),
        test_rows=version.rows("test"),
        epochs=len(trained.history),
        selected_epoch=trained.selected_epoch,
        verdict=verdict,
        data=find_record(plan.paths.data_check, DataCheck, plan.paths.root.name),
        evaluation=Path(evaluation.predictions).parent.name,
        initial=plan.started_from,
        data_changes=plan.data_changes,
        champion_jump=champion_jump(plan, version, evaluation, metrics),
        metrics=metrics,
        recipe_metrics=tuple(evaluation.candidate.recipe_metrics),
        mlflow_run_id=run_id,
        report=str(plan.paths.report),
        seconds=0.0,
        goodput=Goodput(total_s=0.0, parts={}),
        reproducible=trained.reproducible,
        reproducible_reason=trained.reproducible_reason,
        stopped=trained.stopped,
    )


def tags_of_candidate(plan: RunPlan, trained: TrainedModel) -> dict[str, str]:
    """The tags by which the version of this run and these weights is found."""
    return {RUN_KEY_TAG: plan.run_key, WEIGHTS_TAG: trained.weights_digest}


def register_model(client: "MlflowClient", model: str) -> None:
    """Create the registered model that versions belong to, unless it exists."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(model)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def find_or_create(
    lease: Lease,
    plan: RunPlan,
    version: DatasetVersion,
    trained: TrainedModel,
    run_id: str,
    recipe: Recipe,
    inputs: npt.NDArray[Any],
) -> str:
    """Number of the version that an earlier attempt registered for this run and these weights, else of a new one."""
    tags = tags_of_candidate(plan, trained)
    # An earlier attempt may have been killed, or have lost the server's answers, after it made several versions.
    if (number := delete_duplicates(lease, tags)) is not None and not _deleted_if_damaged(
        lease, number, own_store=plan.settings.tracking.uri is None
    ):
        return number
    rows = max(2, min(4, len(inputs)))  # torch.export would fix a number of 1
    example = np.resize(np.array(inputs[:rows]), (rows, *inputs.shape[1:]))
    record_training_rows(lease.client, run_id, plan, version)
    metadata = metadata_of(version, format_name(plan.settings), trained.threshold)
    uri = format_of(plan.settings).log_model(run_id, recipe, version, trained, example, metadata)
    return create_version(lease, plan, version, trained, run_id, uri)


def _deleted_if_damaged(lease: Lease, number: str, own_store: bool) -> bool:
    """Delete a version whose files are missing or damaged, as after a power cut; returns whether it was deleted.

    A version with an alias, or one that was rolled back, is left alone: what to do with it is for a person to decide.
    Raises :class:`NotDownloadedError` for files that a server's store does not give, unless the store is the home's
    (`own_store`): the store may lack credentials, or be away, and the files be sound.
    """
    version = lease.client.get_model_version(lease.model, number)
    if version.aliases or ROLLED_BACK_TAG in version.tags:
        return False
    try:
        load_version(lease.home, lease.model, number)
    except DataError as error:
        if isinstance(error, NotDownloadedError) and not own_store:
            raise
        reason = str(error).partition(". ")[0]
        log.warning("%s. The version is deleted, and the model registered again.", reason)
        lease.check()
        lease.client.delete_model_version(lease.model, number)
        return True
    return False


def create_version(
    lease: Lease, plan: RunPlan, version: DatasetVersion, trained: TrainedModel, run_id: str, uri: str
) -> str:
    """Register the logged model, tagged with dataset, recipe, code, settings and parent; returns its number."""
    model_id = uri.removeprefix(_LOGGED)
    tags = {
        RUN_KEY_TAG: plan.run_key,
        DATASET_TAG: version.fingerprint,
        "evergreen.recipe": plan.ingredients["recipe"]["source"],
        "evergreen.code": digest_json(plan.ingredients["code"]),
        "evergreen.settings": digest_json(plan.ingredients["settings"]),
        WEIGHTS_TAG: trained.weights_digest,
        **parent_tags(plan),
        **inputs_tags(plan),
        **reproducible_tags(trained),
        **classes_tag(version),
        **({TRANSFORM_TAG: version.transform} if version.transform else {}),
        **({THRESHOLD_TAG: repr(trained.threshold)} if trained.threshold is not None else {}),
        FILE_TAG: digest_of_logged(lease.client, model_id, format_of(plan.settings).MODEL_FILE),
        METADATA_TAG: digest_json(metadata_of(version, format_name(plan.settings), trained.threshold)),
        **_weights_file_tag(plan, trained),
    }
    digests = OwnDigests(
        model_file=tags[FILE_TAG], metadata=tags[METADATA_TAG], weights=tags.get(WEIGHTS_FILE_TAG)
    )
    announce_digests(lease.home, plan.model, uri, digests)
    lease.check()
    lease.client.create_model_version(
        plan.model,
        source=uri,
        run_id=run_id,
        tags=tags,
        model_id=model_id,
        description=version_description(plan, version, trained),
    )
    number = delete_duplicates(lease, {name: tags[name] for name in (RUN_KEY_TAG, WEIGHTS_TAG)})
    if number is None:
        raise TransientError(
            f"model {plan.model}: the version of this run was deleted as soon as it was made. Run the command again."
        )
    return number


def classes_tag(version: DatasetVersion) -> dict[str, str]:
    """Tag with the names of the classes, unless they are too long for a tag; the model's metadata has them, too."""
    names = json.dumps(version.classes)
    return {CLASSES_TAG: names} if len(names) <= _MOST_CHARACTERS else {}


def _weights_file_tag(plan: RunPlan, trained: TrainedModel) -> dict[str, str]:
    """Tag with the digest of the weights file, for formats that log this file beside the model file."""
    if format_of(plan.settings).WEIGHTS_FILE is None:
        return {}
    return {WEIGHTS_FILE_TAG: digest_file(Path(trained.weights))}


def reproducible_tags(trained: TrainedModel) -> dict[str, str]:
    """Tags with the result of the replay check (`true`, `false` or `not checked`) and its reason."""
    word = "not checked" if trained.reproducible is None else str(trained.reproducible).lower()
    return {
        "evergreen.reproducible": word,
        "evergreen.reproducible_reason": trained.reproducible_reason[:LONGEST_REASON],
    }


def link_logged_model(client: "MlflowClient", model: str, number: str) -> None:
    """Add the version to the logged model's tags, for MLflow's run page. An MLflow server does so by itself.

    Does nothing if the logged model was deleted in MLflow, since the version stays.
    """
    from mlflow.exceptions import MlflowException

    source = client.get_model_version(model, number).source or ""
    if not source.startswith(_LOGGED):  # the version was registered from files: there is no logged model
        return
    model_id = source.removeprefix(_LOGGED)
    try:
        logged = client.get_logged_model(model_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return
        raise
    known = json.loads(logged.tags.get(_VERSIONS_TAG, "[]"))
    if not any(version["name"] == model and str(version["version"]) == number for version in known):
        versions = [*known, {"name": model, "version": int(number)}]
        client.set_logged_model_tags(model_id, {_VERSIONS_TAG: json.dumps(versions)})


def is_champion_already(lease: Lease, number: str, verdict: Verdict) -> bool:
    """Whether `number` is champion already, so that this home promotes nothing.

    True for a version that another home made and promoted, and for one that replaced a champion before and was now
    compared with no model. False for a promotion by this home that may have been interrupted.
    """
    client, home, model = lease.client, lease.home, lease.model
    if champion_of(client, model) != number:
        return False
    moves = [decision for decision in read_decisions(home, model).undamaged() if decision.to == number]
    compared = not verdict.promote or verdict.champion_version is not None
    if not moves and is_made_elsewhere(client, home, model, number):
        # Without the other home's verdict, this home may have moved the alias itself, and lacks only the record.
        return not compared or version_tags(client, model, number).get(VERDICT_TAG) == "promote"
    return not compared and any(move.before for move in moves)


def settle(lease: Lease, number: str, weights: str, verdict: Verdict) -> Alias:
    """Move the alias as the verdict says, but never promote weights again that were rolled back.

    Returns the version's alias.
    """
    client, model = lease.client, lease.model
    is_champion = champion_of(client, model) == number
    if verdict.promote and not is_champion and was_rolled_back(client, model, weights):
        log.warning(
            "the weights of %s version %s were rolled back, so they are not promoted again", model, number
        )
        refuse_rolled_back(lease, number)
    elif verdict.promote:
        move_alias(lease, number, verdict.champion_version, verdict.summary)
    elif not is_champion:
        keep_as_challenger(lease, number, verdict.summary)
    return alias_of(client, model, number)


def note_verdict(
    client: "MlflowClient", plan: RunPlan, number: str, verdict: Verdict, alias: Alias, text: str
) -> None:
    """Store the gate's verdict and the reason for the outcome as tags of the version, and `text` as its description."""
    client.set_model_version_tag(plan.model, number, VERDICT_TAG, "promote" if verdict.promote else "keep")
    client.set_model_version_tag(
        plan.model, number, "evergreen.why", summary(verdict, alias)[:LONGEST_REASON]
    )
    describe_version(client, plan.model, number, text)


def final_metrics(trained: TrainedModel, evaluation: Evaluation) -> dict[str, float]:
    """The metrics of a release, by name."""
    candidate = evaluation.candidate
    numbers = problem_of(candidate).release_metrics(candidate, evaluation.champion, trained.selected())
    numbers |= candidate.recipe_metrics
    if evaluation.champion is not None:
        numbers |= {f"champion_{name}": value for name, value in evaluation.champion.recipe_metrics.items()}
    if evaluation.metric is not None:
        name = evaluation.metric.name
        for side, value in evaluation.metric_values.items():
            if side == "candidate":
                numbers |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
            elif side != "anchor":
                numbers[f"{side}_{name}"] = value.value
    return {name: float(value) for name, value in numbers.items()}
