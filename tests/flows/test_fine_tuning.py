"""Nightly retraining from the champion: the real flow, in one process (`num_workers` 0)."""

from pathlib import Path
from typing import Any

import pytest

from flows.cli.summary import print_preview, print_release
from flows.preview import preview
from flows.retrain import retrain
from tasks.trackers.mlflow_run import connect
from tasks.verify import verify
from training.errors import SettingError
from training.initial_weights import InitialWeights
from training.plan import RunPlan
from training.records import Release, TrainedModel
from training.storage.paths import TRAINED, Home
from training.storage.record_files import read_record

pytestmark = pytest.mark.usefixtures("prefect_harness")


def sections(**training: Any) -> dict[str, Any]:
    """Settings of a short run; the gate promotes any model that is not much worse."""
    return {
        "training": {"epochs": 1, "init_from": "champion", **training},
        "scaling": {"num_workers": 0},
        "tracking": {"system_metrics": False},
        "gate": {"floor": 0.0, "policy": "not_worse", "margin": 0.9, "max_class_drop": 0.99},
    }


def night(seed: int = 0, **training: Any) -> Release:
    return retrain("digits", sections(**training), seed=seed)


def first_loss(home: Home, release: Release) -> float:
    paths = home.run("digits", release.run_key)
    return read_record(paths.model / TRAINED, TrainedModel, paths.root.name).history[0].train_loss


def check_verify_reads_the_copy_of_the_initial_weights(home: Home, release: Release) -> None:
    def broken() -> list[tuple[str, str]]:
        findings = verify(home.run("digits", release.run_key), home)
        return [(finding.name, finding.detail) for finding in findings if finding.ok is False]

    copy = home.run("digits", release.run_key).initial_weights
    whole = copy.read_bytes()
    copy.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    ((name, detail),) = broken()
    assert name == "initial weights"
    assert "not those of the plan" in detail
    copy.write_bytes(whole[:100])
    ((name, detail),) = broken()
    assert "no readable safetensors file" in detail
    copy.unlink()
    assert broken() == [("initial weights", f"{copy} is missing")]
    copy.write_bytes(whole)
    assert broken() == []


@pytest.mark.extended
def test_each_night_starts_from_the_champion_of_the_night_before(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = preview("digits", sections(), home)
    assert asked.initial == "new weights: there was no champion"
    first = night()
    assert (first.alias, first.initial) == ("champion", "new weights: there was no champion")
    assert night().reused
    assert night(init_from=None).version == "1"  # without a champion, the run is that without the setting

    planned = preview("digits", sections() | {"seed": 1}, home)
    assert planned.initial == f"digits version 1, weights {first.weights_digest[:16]}"
    assert planned.changes == (
        f"initial_weights: new -> {first.weights_digest[:12]}…",
        "settings.seed: 0 -> 1",
    )
    second = night(seed=1)
    assert (second.version, second.alias, second.run_key) == ("2", "champion", planned.run_key)
    assert second.initial == planned.initial
    assert first_loss(home, second) < first_loss(home, first)
    assert second.verdict.summary.endswith("; the candidate was fine-tuned from this version")
    assert all(finding.ok is not False for finding in verify(home.run("digits", second.run_key), home))
    check_verify_reads_the_copy_of_the_initial_weights(home, second)

    # Nothing but the champion has changed: no training, and neither by the number of the version it started from.
    assert (night(seed=1).reused, night(seed=1).version) == (True, "2")
    assert night(seed=1, init_from="version:1").version == "2"

    client = connect(None, home)
    for tags in (
        client.get_model_version("digits", "2").tags,
        client.get_run(second.mlflow_run_id).data.tags,
    ):
        assert tags["evergreen.parent"] == "models:/digits/1"
        assert tags["evergreen.parent_weights"] == first.weights_digest
    said = f"Fine-tuned from digits version 1, weights {first.weights_digest[:16]}."
    assert said in client.get_model_version("digits", "2").description
    assert second.initial in Path(second.report).read_text()
    print_release(second)
    print_preview(planned)
    out = capsys.readouterr().out
    assert out.count(second.initial) == 2
    paths = home.run("digits", second.run_key)
    assert read_record(paths.ingredients, RunPlan, paths.root.name).initial == InitialWeights(
        reference="champion", model="digits", version="1", digest=first.weights_digest
    )

    # A plan refuses what the training would refuse.
    with pytest.raises(
        SettingError, match=r"training\.freeze: the model has no part 'layer1'; it has 0\.weight"
    ):
        preview("digits", sections(freeze=["layer1"]) | {"seed": 3}, home)
