"""Rows and models of a comparison: test rows on which a model was trained are left out; the anchor is compared."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import small_runs
from candidates import Candidate, trained_candidate

from tasks.evaluate import _rows_to_compare, evaluate
from tasks.gate.outcomes import read_outcomes
from tasks.registry.aliases import DATASET_TAG, champion_of
from tasks.registry.reign import STANDING_TAG, Registry, Standing
from tasks.registry.training_rows import TRAINING_ROWS, training_rows_of
from tasks.trackers.mlflow_run import connect
from training.data.row_digests import known_rows, rows_among
from training.data.sources.table import Table
from training.errors import SettingError
from training.records import DatasetVersion
from training.storage.paths import Home


def candidate(home: Home, test_share: float, **gate: Any) -> Candidate:
    return trained_candidate(
        home,
        epochs=1,
        learning_rate=1e-3,
        data={"test_share": test_share},
        gate=gate,
        seed=int(100 * test_share),
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home whose champion used a fifth of the rows as test rows."""
    home = Home(tmp_path_factory.mktemp("home"))
    candidate(home, 0.2).register()
    return home


@pytest.mark.extended
def test_test_rows_that_the_champion_was_trained_on_are_left_out_and_said(home: Home) -> None:
    new_candidate = candidate(home, 0.4)
    client = connect(None, home)
    champion = champion_of(client, new_candidate.plan.model)
    assert champion is not None
    trained_on = training_rows_of(client, new_candidate.plan, champion)
    assert trained_on is not None
    seen = rows_among(new_candidate.version, "test", trained_on)
    assert 0.3 < seen.mean() < 0.7  # of test rows (digest < 0.4), those < 0.2 were test rows before
    evaluation = new_candidate.evaluation
    assert (evaluation.left_out, evaluation.rows) == (seen.sum(), (~seen).sum())
    assert evaluation.training_rows_known
    table = pq.read_table(evaluation.predictions)
    assert np.array_equal(table["compared"].to_numpy(), ~seen)
    assert len(read_outcomes("classification", Path(evaluation.predictions), "champion")) == evaluation.rows
    labels = table["label"].to_numpy()[~seen]
    right = (table["candidate"].to_numpy()[~seen] == labels).mean()
    assert evaluation.candidate.accuracy == right
    assert all(not seen[mistake.row] for mistake in evaluation.mistakes)
    release = new_candidate.register()
    assert f"{seen.sum()} more test rows are left out, as version {champion} was trained on them" in (
        release.verdict.rules[0].explanation
    )
    assert release.verdict.looks[0].rows == evaluation.rows


def sales(home: Home, days: dict[int, str]) -> DatasetVersion:
    """A table of a row a day, of which the latest fifth are test rows; `days` changes the shop of some days."""
    file = home.root / "sales.csv"
    rows = [f"{days.get(day, 'abc'[day % 3])},{day % 2},{day % 5},{day}" for day in range(1, 51 + len(days))]
    file.write_text("\n".join(["shop,weekend,units,day", *rows]))
    source = Table(file, target="units", time="day", test_share=0.2)
    return small_runs.prepared(home, source, "sales", problem="regression")


def test_equal_features_do_not_make_a_training_row(tmp_path: Path) -> None:
    """Where time divides the rows, a new row may have the features of an old one; a row that moved is left out."""
    home = Home(tmp_path)
    before = known_rows(sales(home, {}), "train")
    after = sales(home, {60: "a"})
    assert rows_among(after, "test", before).all()
    plan = SimpleNamespace(model="sales")
    assert _rows_to_compare(plan, after, {"version 1": before}, {}).all()
    (home.root / "sales.csv").unlink()
    before = known_rows(sales(home, {7: "moved"}), "train")
    after = sales(home, {7: "a", 51: "moved"})
    compared = _rows_to_compare(plan, after, {"version 1": before}, {})
    assert (~compared).sum() == 1


def test_the_champions_dataset_in_this_home_tells_where_its_run_has_no_record(home: Home) -> None:
    new_candidate = candidate(home, 0.4)
    client = connect(None, home)
    entry = client.get_model_version(new_candidate.plan.model, "1")
    recorded = training_rows_of(client, new_candidate.plan, "1")
    artifacts = Path(client.get_run(entry.run_id).info.artifact_uri.removeprefix("file://"))
    kept = (artifacts / TRAINING_ROWS).rename(artifacts / "kept.npy")
    folder = home.dataset("digits", entry.tags[DATASET_TAG])
    try:
        assert np.array_equal(training_rows_of(client, new_candidate.plan, "1"), recorded)
        aside = folder.rename(folder.with_name("aside"))
        try:
            assert training_rows_of(client, new_candidate.plan, "1") is None
            shutil.rmtree(Path(new_candidate.evaluation.predictions).parent)
            unknown = evaluate.fn(new_candidate.plan, new_candidate.version, new_candidate.trained)
        finally:
            aside.rename(folder)
    finally:
        kept.rename(artifacts / TRAINING_ROWS)
        shutil.rmtree(Path(new_candidate.evaluation.predictions).parent, ignore_errors=True)
    assert (unknown.training_rows_known, unknown.left_out) == (False, 0)


def test_a_damaged_record_of_training_rows_is_unknown(home: Home) -> None:
    new_candidate = candidate(home, 0.4)
    client = connect(None, home)
    entry = client.get_model_version(new_candidate.plan.model, "1")
    record = Path(client.get_run(entry.run_id).info.artifact_uri.removeprefix("file://")) / TRAINING_ROWS
    whole = record.read_bytes()
    try:
        for damaged in (b"", whole[:60], whole[:-3]):
            record.write_bytes(damaged)
            assert training_rows_of(client, new_candidate.plan, "1") is None
    finally:
        record.write_bytes(whole)


def test_nothing_left_to_compare_is_said_with_the_way_out(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_candidate = candidate(home, 0.4)
    shutil.rmtree(Path(new_candidate.evaluation.predictions).parent)
    everything = np.union1d(
        known_rows(new_candidate.version, "test"), known_rows(new_candidate.version, "train")
    )
    monkeypatch.setattr("tasks.evaluate.training_rows_of", lambda *_: everything)
    with pytest.raises(SettingError, match=r"all .* test rows were training rows .* tracking\.model"):
        evaluate.fn(new_candidate.plan, new_candidate.version, new_candidate.trained)


def test_not_worse_scores_the_anchor_on_the_same_rows(home: Home) -> None:
    first = candidate(home, 0.4)
    client = connect(None, home)
    champion = champion_of(client, first.plan.model)
    assert champion is not None
    made = client.get_model_version(first.plan.model, champion)
    client.create_registered_model("anchored")
    for _ in range(2):
        client.create_model_version("anchored", made.source, run_id=made.run_id, tags=dict(made.tags))
    client.set_registered_model_alias("anchored", "champion", "2")
    identity = Registry(client, "anchored").identity("1")
    standing = Standing(anchor="1", anchor_identity=identity)
    client.set_model_version_tag("anchored", "2", STANDING_TAG, standing.model_dump_json())
    new_candidate = first.under("anchored")
    settings = new_candidate.plan.settings
    gate = settings.gate.model_copy(update={"policy": "not_worse", "margin": 0.4})
    plan = new_candidate.plan.model_copy(update={"settings": settings.model_copy(update={"gate": gate})})
    evaluation = evaluate.fn(plan, new_candidate.version, new_candidate.trained)
    assert (evaluation.champion_version, evaluation.anchor_version) == ("2", "1")
    table = pq.read_table(evaluation.predictions)
    assert table["anchor"].equals(table["champion"])
    release = new_candidate._replace(plan=plan, evaluation=evaluation).register()
    look = release.verdict.looks[0]
    assert (look.question, look.reference_version) == ("not_worse", "1")
    assert release.alias == "champion"
    kept = json.loads(client.get_model_version("anchored", release.version).tags[STANDING_TAG])
    assert kept["anchor"] == "1"
