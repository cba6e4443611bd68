"""The whole flow on real data, in one process: all steps are real, only Ray is left out (`num_workers` 0)."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from noisy import noisy_recipe
from PIL import Image
from small_runs import write_recipe

import flows.retrain
from flows.cli.summary import print_preview, print_release
from flows.preview import preview
from flows.retrain import retrain
from tasks.registry.aliases import CHALLENGER, CHAMPION, ChampionMovedError, champion_of
from tasks.registry.decisions import read_decisions
from tasks.registry.rollback import roll_back
from tasks.trackers.embedded_store import artifacts_of
from tasks.trackers.mlflow_run import RUN_KEY_TAG, connect
from tasks.verify import verify
from training.attempts.history import read_attempts
from training.data.sources.digits import Digits
from training.errors import EXIT_RETRY, DataError, ResourceError, SettingError, TrainingError
from training.plan import RunPlan
from training.records import NOT_AGAIN, DatasetVersion, Evaluation, Release, TrainedModel
from training.storage.files import digest_file
from training.storage.paths import Home

pytestmark = pytest.mark.usefixtures("prefect_harness")


def run(recipe: str = "digits", force: bool = False, **sections: dict[str, Any]) -> Release:
    """Retrain within seconds: two epochs in this process, unless `sections` say otherwise."""
    settings: dict[str, Any] = {
        "training": {"epochs": 2},
        "scaling": {"num_workers": 0},
        "tracking": {"system_metrics": False},
        "gate": {"floor": 0.5},
    }
    for name, section in sections.items():
        settings[name] = settings.get(name, {}) | section
    return retrain(recipe, settings, force=force)


def client_of(home: Home) -> Any:
    """MLflow's client for the home's own store."""
    return connect(None, home)


def model_versions(home: Home, model: str = "digits") -> list[Any]:
    """All registered versions of a model."""
    return list(client_of(home).search_model_versions(f"name = '{model}'"))


def write_images(folder: Path, rows: int = 240) -> Path:
    """Write digits as PNG files in class folders, a third of them in the test split."""
    files = Digits().fetch(folder)
    batches = Digits().read(files, "", range(rows))
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            split = "test" if number % 3 == 0 else "train"
            class_folder = folder / "images" / split / row["label"]
            class_folder.mkdir(parents=True, exist_ok=True)
            pixels = np.frombuffer(row["image"], np.uint8).reshape(8, 8)
            Image.fromarray(pixels).save(class_folder / f"{number:04d}.png")
            number += 1
    return folder / "images"


@pytest.mark.extended
def test_a_run_that_is_not_reproducible_is_marked_everywhere(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = noisy_recipe(tmp_path, "counter")
    release = run(recipe, gate={"floor": 0.0})
    assert release.reproducible is False
    (version,) = model_versions(home, "noisy")
    assert version.tags["evergreen.reproducible"] == "false"
    named = "calls (attribute)"
    assert named in version.tags["evergreen.reproducible_reason"]
    findings = verify(home.run("noisy", release.run_key), home)
    assert [(finding.name, named in finding.detail) for finding in findings if finding.ok is False] == [
        ("weights after an interruption", True)
    ]
    print_release(release)
    print_preview(preview(recipe, {"training": {"epochs": 3}}, home))
    said = " ".join(capsys.readouterr().out.split())
    assert said.count(f"the checkpoint does not hold {named}") == 2
    page = Path(release.report).read_text()
    assert "This run is not reproducible" in page
    assert "register_buffer" in page


def test_a_first_run_promotes_and_the_same_run_again_trains_nothing(home: Home) -> None:
    first = run()
    weights = home.run("digits", first.run_key).model / "weights.safetensors"
    written = weights.stat().st_mtime_ns
    again = run()

    assert (first.alias, first.version, first.reused) == ("champion", "1", False)
    assert first.reproducible is True
    assert model_versions(home)[0].tags["evergreen.reproducible"] == "true"
    assert first.metrics["accuracy"] > 0.8
    assert (again.version, again.reused, again.weights_digest) == ("1", True, first.weights_digest)
    assert weights.stat().st_mtime_ns == written
    assert len(model_versions(home)) == 1
    assert champion_of(client_of(home), "digits") == "1"


@pytest.mark.extended
def test_the_same_run_in_another_home_gives_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases = []
    for name in ("one", "other"):
        monkeypatch.setenv("EVERGREEN_HOME", str(tmp_path / name))
        releases.append(run())
    assert releases[0].run_key == releases[1].run_key
    assert releases[0].weights_digest == releases[1].weights_digest
    assert releases[0].report != releases[1].report


@pytest.mark.extended
def test_a_changed_setting_makes_a_new_version_and_force_another(home: Home) -> None:
    first, changed, forced = run(), run(training={"epochs": 1}), run(force=True)
    assert len({first.run_key, changed.run_key, forced.run_key}) == 3
    assert forced.weights_digest == first.weights_digest  # the same computation, repeated because of force
    assert sorted(version.version for version in model_versions(home)) == [1, 2, 3]
    assert not forced.verdict.promote  # a model equal to the champion is not better
    assert forced.verdict.champion_version == first.version


def test_a_worse_candidate_is_kept_as_challenger_with_reasons(home: Home) -> None:
    champion = run(training={"epochs": 4})
    worse = run(training={"epochs": 1, "learning_rate": 1e-5}, gate={"floor": 0.0})
    client = client_of(home)
    assert (worse.alias, champion_of(client, "digits"), champion_of(client, "digits", CHALLENGER)) == (
        "challenger",
        champion.version,
        worse.version,
    )
    failed = [rule for rule in worse.verdict.rules if not rule.passed]
    assert "better" in [rule.name for rule in failed]
    assert worse.metrics["champion_accuracy"] == champion.metrics["accuracy"]


@pytest.mark.extended
def test_changed_gate_settings_judge_again_without_training(home: Home) -> None:
    kept = run(gate={"floor": 0.999})
    assert kept.alias == "challenger"
    checkpoint = home.run("digits", kept.run_key).model / "trained.json"
    written = checkpoint.stat().st_mtime_ns
    promoted = run(gate={"floor": 0.5})
    assert (promoted.alias, promoted.version, promoted.run_key) == ("champion", kept.version, kept.run_key)
    assert checkpoint.stat().st_mtime_ns == written
    assert len(model_versions(home)) == 1


def champion_moves(patch: pytest.MonkeyPatch, home: Home, times: int) -> list[str | None]:
    """Make another version champion before each of the first `times` registrations.

    Returns the list, filled by the flow, of the champion versions that the candidate was compared with.
    """
    register, held_against = flows.retrain.register, list[str | None]()

    def overtaken(
        plan: RunPlan, version: DatasetVersion, trained: TrainedModel, evaluation: Evaluation
    ) -> Release:
        held_against.append(evaluation.champion_version)
        if len(held_against) <= times:
            client = client_of(home)
            first_version = client.get_model_version("digits", "1")
            twin = client.create_model_version(
                "digits", first_version.source, run_id=first_version.run_id, tags=dict(first_version.tags)
            )
            client.set_registered_model_alias("digits", CHAMPION, twin.version)
        return register(plan, version, trained, evaluation)

    patch.setattr(flows.retrain, "register", overtaken)
    return held_against


@pytest.mark.slow
def test_a_candidate_that_was_overtaken_is_compared_with_the_new_champion(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(training={"epochs": 1, "learning_rate": 1e-5}, gate={"floor": 0.0})
    held_against = champion_moves(monkeypatch, home, times=1)
    release = run()
    assert held_against == ["1", "2"]
    assert (release.alias, release.version, release.verdict.champion_version) == ("champion", "3", "2")
    assert champion_of(client_of(home), "digits") == "3"
    assert sorted(int(version.version) for version in model_versions(home)) == [1, 2, 3]


@pytest.mark.slow
def test_a_champion_that_keeps_moving_ends_the_run_and_a_retry_does_not_train_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(training={"epochs": 1, "learning_rate": 1e-5}, gate={"floor": 0.0})
    with monkeypatch.context() as patch:
        held_against = champion_moves(patch, home, times=3)
        with pytest.raises(ChampionMovedError) as caught:
            run()
    assert caught.value.exit_status == EXIT_RETRY == 75
    assert held_against == ["1", "2", "3"]
    assert champion_of(client_of(home), "digits") == "4"
    assert len(model_versions(home)) == 4, "the candidate was registered without a verdict"
    release = run()
    assert (release.alias, release.version, release.verdict.champion_version) == ("champion", "5", "4")
    attempts = read_attempts(home.run("digits", release.run_key))
    assert len(attempts) == 1


@pytest.mark.extended
def test_one_mlflow_run_a_key_with_every_point_once(home: Home) -> None:
    release = run()
    client = client_of(home)
    mlflow_runs = client.search_runs(
        [e.experiment_id for e in client.search_experiments()], f"tags.`{RUN_KEY_TAG}` = '{release.run_key}'"
    )
    assert [mlflow_run.info.status for mlflow_run in mlflow_runs] == ["FINISHED"]
    for name in ("train/loss", "validation/loss", "validation/accuracy"):
        steps = Counter(metric.step for metric in client.get_metric_history(release.mlflow_run_id, name))
        assert steps
        assert set(steps.values()) == {1}
    assert mlflow_runs[0].data.params["training.epochs"] == "2"
    names = {file.path for file in client.list_artifacts(release.mlflow_run_id)}
    assert {"report.html", "figures", "verdict.json", "ingredients.json", "dataset.json"} <= names


@pytest.mark.extended
def test_a_crash_after_registration_ends_in_the_same_single_version(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def power_cut(*_: Any, **__: Any) -> None:
        raise OSError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr("flows.retrain.report", power_cut)
        with pytest.raises(OSError, match="power cut"):
            run()
    assert champion_of(client_of(home), "digits") == "1"
    repaired = run()
    assert (repaired.version, repaired.alias, repaired.reused) == ("1", "champion", False)
    assert repaired.verdict.promote
    assert len(model_versions(home)) == 1
    assert run().reused


@pytest.mark.extended
def test_a_promotion_of_a_candidate_that_was_refused_before_survives_a_crash(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def power_cut(*_: Any, **__: Any) -> None:
        raise OSError("power cut")

    run()
    worse = {"training": {"epochs": 1, "learning_rate": 1e-4}, "gate": {"floor": 0.0}}
    assert run(**worse).alias == "challenger"
    gate = {"floor": 0.0, "policy": "not_worse", "margin": 0.99, "max_class_drop": 1.0}
    lax = worse | {"gate": gate}
    with monkeypatch.context() as patch:
        patch.setattr("flows.retrain.report", power_cut)
        with pytest.raises(OSError, match="power cut"):
            run(**lax)
    assert champion_of(client_of(home), "digits") == "2"
    repaired = run(**lax)
    assert (repaired.version, repaired.alias, repaired.reused) == ("2", "champion", False)
    assert repaired.verdict.promote
    paths = home.run("digits", repaired.run_key)
    assert [finding.detail for finding in verify(paths, home) if finding.ok is False] == []
    assert run(**lax).reused


def test_a_missing_library_is_named_before_the_data_are_prepared(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Path(write_recipe(tmp_path))
    recipe.write_text(recipe.read_text() + "\ndef later():\n    from diffusers import DDPMScheduler\n")
    monkeypatch.setattr("tasks.checks.library_check.find_spec", lambda _: None)
    with pytest.raises(SettingError, match="imports diffusers, which is not installed; install it by"):
        run(str(recipe))
    assert not list(home.datasets.glob("*/*"))


def test_the_champion_loads_in_plain_mlflow_without_evergreen(home: Home, tmp_path: Path) -> None:
    release = run()
    program = """
import sys, mlflow, numpy as np
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/digits@champion")
answers = [model.predict(np.zeros((n, 1, 8, 8), np.uint8)) for n in (1, 3, 64)]
assert [a.shape for a in answers] == [(1, 10), (3, 10), (64, 10)]
assert all(np.allclose(a.sum(1), 1, atol=1e-5) for a in answers)
ours = [name for name in sys.modules if name.partition(".")[0] in ("training", "tasks", "flows")]
assert not ours, ours
"""
    done = subprocess.run(
        [sys.executable, "-c", program, home.mlflow_uri],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert release.version == "1"


@pytest.mark.slow
def test_one_changed_image_makes_a_new_run_and_says_what_changed(home: Home, tmp_path: Path) -> None:
    images = write_images(tmp_path)
    data = {"path": str(images)}
    first = run(data=data, tracking={"model": "folder"})
    assert run(data=data, tracking={"model": "folder"}).reused
    victim = sorted((images / "train" / "3").glob("*.png"))[0]
    pixels = np.array(Image.open(victim))
    pixels[0, 0] ^= 1
    Image.fromarray(pixels).save(victim)

    second = run(data=data, tracking={"model": "folder"})
    assert not second.reused
    assert second.dataset_fingerprint != first.dataset_fingerprint
    kept = json.loads(home.run("digits", second.run_key).ingredients.read_text())
    assert kept["changes"] == ["data: +1 image, 1 removed"]
    assert second.data_changes == "+1 image, 1 removed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("corrupt", "not a readable image"),
        ("zero bytes", "0005.png"),
        ("missing class", "class"),
        ("leak", "in more than one split"),
    ],
)
def test_bad_images_are_named_and_nothing_is_registered(
    home: Home, tmp_path: Path, damage: str, said: str
) -> None:
    images = write_images(tmp_path)
    before = {path: digest_file(path) for path in images.rglob("*.png")}
    victim = next(images.glob("train/*/0005.png"))
    if damage == "corrupt":
        victim.write_bytes(victim.read_bytes()[:60])
    elif damage == "zero bytes":
        victim.write_bytes(b"")
    elif damage == "missing class":
        for path in (images / "test" / "7").iterdir():
            path.unlink()
        (images / "test" / "7").rmdir()
    else:
        target = images / "test" / victim.parent.name / "copy.png"
        target.write_bytes(victim.read_bytes())

    with pytest.raises(DataError, match=said):
        run(data={"path": str(images)})
    assert model_versions(home) == []
    assert not any(path.name.endswith(".tmp") for path in home.root.rglob("*"))
    assert before.keys() >= {victim}

    good = write_images(tmp_path / "good")
    assert run(data={"path": str(good)}).version == "1"


@pytest.mark.extended
def test_a_diverging_training_fails_for_good_and_registers_nothing(home: Home) -> None:
    with pytest.raises(TrainingError, match="diverged"):
        run(training={"learning_rate": 1e38, "optimizer": "sgd", "warmup_share": 0.0})
    assert model_versions(home) == []
    statuses = [mlflow_run.info.status for mlflow_run in client_of(home).search_runs(["1"])]
    assert statuses == ["FAILED"]
    assert run().version == "1"


def test_more_workers_than_cpus_are_refused_before_anything_starts(home: Home) -> None:
    with pytest.raises(SettingError, match="workers need at least one CPU each, and this machine has"):
        run(scaling={"num_workers": 512}, training={"global_batch_size": 512})
    assert not home.datasets.exists()


@pytest.mark.extended
def test_a_recipe_file_of_the_users_own(home: Home, tmp_path: Path) -> None:
    recipe = tmp_path / "mine" / "flat.py"
    recipe.parent.mkdir()
    recipe.write_text(
        "from layers import head\n"
        "from training.recipe import Recipe\n"
        "from training.data.sources.digits import Digits\n"
        "def build_model(shape, classes):\n"
        "    return head(shape, classes)\n"
        "recipe = Recipe(name='flat', summary='one layer', source=Digits(), build_model=build_model)\n"
    )
    layers = recipe.parent / "layers.py"
    layers.write_text(
        "def head(shape, classes):\n"
        "    from torch import nn\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))\n"
    )
    first = run(str(recipe))
    assert run(str(recipe)).reused
    layers.write_text(layers.read_text() + "# a comment\n")
    assert run(str(recipe)).reused
    layers.write_text(layers.read_text().replace("nn.Flatten(), ", "nn.Flatten(), nn.Identity(), "))
    second = run(str(recipe))
    assert (first.model, second.version) == ("flat", "2")


@pytest.mark.slow
def test_a_version_rolled_back_stays_so_whatever_the_gate(home: Home) -> None:
    first = run(training={"epochs": 1}, gate={"floor": 0.1})
    second = run(training={"epochs": 6})
    assert second.alias == "champion"
    roll_back(client_of(home), home, "digits", "by hand")
    again = run(training={"epochs": 6}, gate={"floor": 0.4})
    assert (again.reused, again.version, again.alias) == (True, second.version, "previous")
    assert champion_of(client_of(home), "digits") == first.version


@pytest.mark.slow
def test_a_forced_run_whose_weights_were_rolled_back_is_sound(home: Home) -> None:
    first, second = run(training={"epochs": 1}, gate={"floor": 0.1}), run(training={"epochs": 6})
    assert second.alias == "champion"
    roll_back(client_of(home), home, "digits", "by hand")
    forced = run(training={"epochs": 6}, force=True)
    assert (forced.version, forced.alias, champion_of(client_of(home), "digits")) == (
        "3",
        "none",
        first.version,
    )
    decision = read_decisions(home, "digits").records[-1]
    assert (decision.action, decision.candidate, decision.why) == ("keep", "3", NOT_AGAIN)
    assert [
        finding for finding in verify(home.run("digits", forced.run_key), home) if finding.ok is False
    ] == []


def test_a_damaged_mlflow_store_is_reported_and_not_changed(home: Home) -> None:
    store = home.root / "mlflow.db"
    store.write_bytes(b"not a database" * 100)
    with pytest.raises(ResourceError, match=r"mlflow\.db"):
        run()
    assert store.read_bytes() == b"not a database" * 100


@pytest.mark.extended
def test_a_run_ends_although_the_prefect_server_is_away(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def away(*_: Any, **options: Any) -> None:
        asked.append(options["key"])
        raise httpx.ConnectError("All connection attempts failed")

    monkeypatch.setattr("tasks.report.create_markdown_artifact", away)
    with caplog.at_level("WARNING", logger="evergreen.report"):
        release = run()
    assert asked == ["digits-report"]
    assert f"it is in {release.report}" in caplog.text
    assert client_of(home).get_run(release.mlflow_run_id).info.status == "FINISHED"
    assert run().reused


def test_a_run_in_a_copied_home_is_refused_before_its_data_are_prepared(home: Home, tmp_path: Path) -> None:
    """MLflow's store has absolute paths: the models of the run would be written into the original."""
    original = Home(tmp_path / "original")
    original.root.mkdir()
    artifacts = artifacts_of(original, "digits")
    artifacts.mkdir(parents=True)
    client_of(original).create_experiment("digits", artifact_location=artifacts.as_uri())
    shutil.copytree(original.root, home.root, dirs_exist_ok=True)
    with pytest.raises(ResourceError, match=f"was moved or copied from {original.root}"):
        run()
    assert not list(home.datasets.glob("*"))
    assert not home.runs("digits").exists()
