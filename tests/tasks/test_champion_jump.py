"""An unchanged champion whose score jumps is said, with the number of test rows that are new."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from small_runs import prepared

from tasks.champion_jump import champion_jump
from training.data.row_digests import row_digests
from training.data.sources.digits import Digits
from training.plan import RunPlan, identify
from training.problems.classification import ClassificationScore
from training.recipe import load
from training.records import DatasetVersion, Evaluation, Goodput, Release, Verdict
from training.settings.overrides import resolve
from training.storage.paths import Home
from training.storage.record_files import write_record


def planned(home: Home, seed: int) -> RunPlan:
    recipe, ref = load("digits")
    plan = identify(
        home, ref, resolve(recipe.settings, {"seed": seed}), Digits().fetch(home.sources / "digits")
    )
    plan.paths.root.mkdir(parents=True)
    write_record(plan.paths.ingredients, plan, plan.paths.root.name)
    return plan


def finish_night(plan: RunPlan, version: DatasetVersion, tested: int, **changes: Any) -> None:
    """Write the release of a run that was kept beside the champion, and the digests of its first test rows."""
    release = Release(
        recipe="digits",
        run_key=plan.run_key,
        dataset_fingerprint=plan.fingerprint,
        weights_digest="0" * 64,
        model="digits",
        version="2",
        alias="challenger",
        train_rows=1,
        test_rows=1,
        epochs=1,
        selected_epoch=1,
        verdict=Verdict(promote=False, summary="Kept", rules=(), champion_version="1"),
        evaluation="night",
        metrics={"accuracy": 0.9, "champion_accuracy": 0.816},
        mlflow_run_id="0",
        report="",
        seconds=1.0,
        goodput=Goodput(total_s=1.0, parts={}),
    ).model_copy(update=changes)
    write_record(plan.paths.release, release, plan.paths.root.name)
    folder = plan.paths.evaluation / "night"
    folder.mkdir(parents=True)
    pq.write_table(
        pa.table({"digest": row_digests(version, "test")[:tested]}), folder / "predictions.parquet"
    )


def tonight(low: float, high: float, champion: str = "1") -> Evaluation:
    score = ClassificationScore.model_construct(problem="classification", low=low, high=high)
    return Evaluation.model_construct(candidate=score, champion=score, champion_version=champion)


NOW = {"accuracy": 0.95, "champion_accuracy": 0.9305}


def test_a_jump_of_the_champion_is_said_with_the_new_test_rows(tmp_path: Path) -> None:
    home = Home(tmp_path)
    version = prepared(home)
    rows = version.rows("test")
    first, second = planned(home, 1), planned(home, 2)
    assert champion_jump(second, version, tonight(0.9, 0.95), NOW) == ""  # the last run has no verdict
    finish_night(first, version, rows - 40)
    said = champion_jump(second, version, tonight(0.9, 0.95), NOW)
    assert said == (
        "the champion's accuracy was 0.8160 in the last run and is 0.9305 now, with the same weights; "
        f"40 of {rows} test rows are new"
    )
    assert champion_jump(second, version, tonight(0.8, 0.95), NOW) == ""  # within chance
    assert champion_jump(second, version, tonight(0.9, 0.95, champion="2"), NOW) == ""
    (first.paths.evaluation / "night" / "predictions.parquet").unlink()
    assert champion_jump(second, version, tonight(0.9, 0.95), NOW).endswith("with the same weights")


def test_the_score_of_a_champion_that_the_last_run_promoted_is_its_own(tmp_path: Path) -> None:
    home = Home(tmp_path)
    version = prepared(home)
    first, second = planned(home, 1), planned(home, 2)
    promoted = Verdict(promote=True, summary="Promoted", rules=(), champion_version="1")
    finish_night(first, version, 10, alias="champion", verdict=promoted)
    assert "was 0.9000 in the last run" in champion_jump(second, version, tonight(0.92, 0.95, "2"), NOW)
