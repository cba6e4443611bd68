"""Weights of the registry as the start of a training: found, copied with their checks, and kept out of comparisons."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from candidates import Candidate, trained_candidate
from small_runs import tiny_settings
from tracked import planned

from tasks.evaluate import evaluate
from tasks.registry.aliases import DATASET_TAG
from tasks.registry.initial_weights import find_start, keep_initial_weights
from tasks.registry.safe_loading import WEIGHTS_FILE_TAG
from tasks.registry.training_rows import (
    TRAINING_ROWS,
    inherited_rows,
    record_training_rows,
    training_rows_of,
)
from tasks.trackers.mlflow_run import connect, open_run
from training.checkpoints.weights import digest_of_file
from training.data.row_digests import known_rows, rows_among
from training.errors import DataError, SettingError
from training.identity import inputs_digest
from training.initial_weights import InitialWeights, Start
from training.plan import RunPlan
from training.settings.schema import Settings
from training.storage.files import digest_file
from training.storage.paths import Home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home whose champion, version 1, used a fifth of the rows as test rows."""
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def parent(home: Home) -> Candidate:
    """The champion."""
    candidate = trained_candidate(home, epochs=1, data={"test_share": 0.2})
    candidate.register()
    return candidate


def starting(reference: str) -> Settings:
    return tiny_settings(training={"init_from": reference})


def child(home: Home, reference: str = "champion", seed: int = 1) -> RunPlan:
    """The plan of a run that starts from `reference`, with other test rows than the champion had."""
    sections: dict[str, Any] = {
        "data": {"test_share": 0.4},
        "training": {"epochs": 1, "init_from": reference},
    }
    return planned(home, seed=seed, **sections)[0]


@pytest.mark.extended
def test_the_champion_is_found_with_what_it_was_made_from(home: Home, parent: Candidate) -> None:
    digest = parent.trained.weights_digest
    assert find_start(home, "digits", tiny_settings()) is None
    assert find_start(home, "digits", starting("champion")) == Start(
        "champion",
        "digits",
        InitialWeights(reference="champion", model="digits", version="1", digest=digest),
        inputs=inputs_digest(parent.plan.ingredients),
    )
    by_number = InitialWeights(reference="version:1", model="digits", version="1", digest=digest)
    assert find_start(home, "digits", starting("version:1")) == Start("version:1", "digits", by_number)
    file = parent.trained.weights
    assert find_start(home, "digits", starting(file)) == Start(
        file, weights=InitialWeights(reference=file, digest=digest)
    )


@pytest.mark.parametrize("recipe", ["digits", "unknown"])
def test_what_is_not_there_is_said(home: Home, parent: Candidate, recipe: str, tmp_path: Path) -> None:
    missing = f"training.init_from: model {recipe} has no version 9."
    for searched_home in (home, Home(tmp_path)):
        start = find_start(searched_home, recipe, starting("version:9"))
        assert start is not None
        assert start.missing.startswith(missing)
    assert find_start(home, "unknown", starting("champion")) == Start("champion", "unknown")
    assert find_start(Home(tmp_path), "digits", starting("champion")) == Start("champion", "digits")
    assert not Home(tmp_path).mlflow_file.exists()
    gone = find_start(home, "digits", starting(f"{tmp_path}/gone.safetensors"))
    assert gone is not None
    assert gone.missing == f"training.init_from: {tmp_path}/gone.safetensors: no such file"


def test_a_version_without_weights_is_refused(home: Home, parent: Candidate) -> None:
    client = connect(None, home)
    kept = client.get_model_version("digits", "1").tags[WEIGHTS_FILE_TAG]
    client.delete_model_version_tag("digits", "1", WEIGHTS_FILE_TAG)
    try:
        with pytest.raises(
            SettingError, match="model digits version 1 contains no weights for further training"
        ):
            child(home, "version:1", seed=2)
    finally:
        client.set_model_version_tag("digits", "1", WEIGHTS_FILE_TAG, kept)


def test_the_run_has_its_own_checked_copy(home: Home, parent: Candidate) -> None:
    plan = child(home)
    weights = plan.paths.initial_weights
    assert digest_of_file(weights) == parent.trained.weights_digest
    assert np.array_equal(np.load(plan.paths.initial_rows), training_rows_of(connect(None, home), plan, "1"))
    written = weights.stat().st_mtime_ns
    keep_initial_weights(plan)
    assert weights.stat().st_mtime_ns == written
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    keep_initial_weights(plan)
    assert digest_of_file(weights) == parent.trained.weights_digest


def test_changed_weights_of_a_version_are_refused_and_nothing_is_left(home: Home, parent: Candidate) -> None:
    plan = child(home, seed=3)
    shutil.rmtree(plan.paths.initial)
    (registered,) = home.mlflow_artifacts.rglob("extra_files/weights.safetensors")
    whole, client = registered.read_bytes(), connect(None, home)
    tag = client.get_model_version("digits", "1").tags[WEIGHTS_FILE_TAG]
    registered.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        with pytest.raises(DataError, match=r"weights\.safetensors is not the file that was registered"):
            keep_initial_weights(plan)
        # Somebody who can write to the registry can change the tag together with the file.
        client.set_model_version_tag("digits", "1", WEIGHTS_FILE_TAG, digest_file(registered))
        with pytest.raises(
            DataError, match=r"weights\.safetensors is not the file that this home registered"
        ):
            keep_initial_weights(plan)
    finally:
        registered.write_bytes(whole)
        client.set_model_version_tag("digits", "1", WEIGHTS_FILE_TAG, tag)
    assert not plan.paths.initial.exists()


def test_a_file_that_changed_after_planning_is_refused(home: Home, parent: Candidate, tmp_path: Path) -> None:
    file = tmp_path / "one.safetensors"
    shutil.copyfile(parent.trained.weights, file)
    plan = child(home, str(file), seed=4)
    shutil.rmtree(plan.paths.initial)
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(SettingError, match=r"no longer has the weights .* Run the same command again"):
        keep_initial_weights(plan)


@pytest.mark.extended
def test_test_rows_that_the_initial_weights_know_are_left_out(
    home: Home, parent: Candidate, tmp_path: Path
) -> None:
    """Under another model name, so that there is no champion whose training rows would be left out."""
    candidate = trained_candidate(
        home, data={"test_share": 0.4}, seed=5, epochs=1, init_from="champion"
    ).under("fresh")
    assert candidate.plan.initial is not None
    known = training_rows_of(connect(None, home), parent.plan, "1")
    assert known is not None
    assert np.array_equal(inherited_rows(candidate.plan), known)
    seen = rows_among(candidate.version, "test", known)
    evaluation = candidate.compared_again().evaluation
    assert (evaluation.champion, evaluation.initial) == (None, candidate.plan.initial)
    assert not evaluation.champion_is_parent
    assert 0 < evaluation.left_out == seen.sum() < len(seen)
    assert evaluation.training_rows_known
    client = connect(None, home)
    run_id = open_run(client, candidate.plan)
    record_training_rows(client, run_id, candidate.plan, candidate.version)
    recorded = np.load(client.download_artifacts(run_id, TRAINING_ROWS, str(tmp_path)))
    assert np.array_equal(recorded, np.union1d(known, known_rows(candidate.version, "train")))
    # The rows of a file's weights are not known.
    shutil.rmtree(Path(evaluation.predictions).parent)
    candidate.plan.paths.initial_rows.unlink()
    unknown = evaluate.fn(candidate.plan, candidate.version, candidate.trained)
    assert (unknown.left_out, unknown.training_rows_known) == (0, False)
    run_id = client.create_run(client.get_run(run_id).info.experiment_id).info.run_id
    record_training_rows(client, run_id, candidate.plan, candidate.version)
    made = client.get_model_version("digits", "1")
    client.create_registered_model("grandchild")
    client.create_model_version("grandchild", made.source, run_id=run_id)
    assert training_rows_of(client, candidate.plan, "1", "grandchild") is None


@pytest.mark.extended
def test_a_champion_that_was_fine_tuned_knows_its_ancestors_rows(home: Home, parent: Candidate) -> None:
    """Also where the champion learned the same dataset version as the candidate."""
    candidate = trained_candidate(home, data={"test_share": 0.4}, seed=6, epochs=1)
    client = connect(None, home)
    client.create_registered_model("child")
    made = client.get_model_version("digits", "1")
    tags = made.tags | {DATASET_TAG: candidate.version.fingerprint, "evergreen.parent": "models:/digits/1"}
    client.create_model_version("child", made.source, run_id=made.run_id, tags=tags)
    client.set_registered_model_alias("child", "champion", "1")
    known = training_rows_of(client, parent.plan, "1")
    assert known is not None
    evaluation = candidate.under("child").compared_again().evaluation
    assert evaluation.champion_version == "1"
    assert evaluation.left_out == rows_among(candidate.version, "test", known).sum() > 0
