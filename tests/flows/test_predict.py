"""Batch prediction with a registered model: inputs and outputs, in this process and on Ray."""

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect_failures import server_fails_at_the_end
from registered import BROKEN, CLASSES, MODEL, SHAPE, encoded, picture, rows_of, save

from tasks import predict as step
from tasks.inference.prediction_files import PredictionWriter
from tasks.inference.unlabelled_images import Images, find_chunks
from tasks.problems.classification.outputs import CLASSES_KEY, ClassOutputs
from tasks.trackers.mlflow_store import connect
from training.errors import DataError, SettingError
from training.settings.schema import RaySettings


def test_folder_at_any_depth_to_one_file(predict, tmp_path):
    source = tmp_path / "images"
    save(source, [("b/deep/er/1.png", "red top"), ("a.bmp", "blue bottom"), ("b/0.png", "green top")])
    picture("red bottom").convert("P").save(source / "palette.gif")
    picture("green bottom").convert("RGBA").save(source / "alpha.png")
    save(source, [("large.JPG", "blue top")], size=64)
    (source / "notes.txt").write_text("no image")
    summary = predict(source, tmp_path / "made" / "result.parquet")

    expected = {
        "a.bmp": "blue bottom",
        "alpha.png": "green bottom",
        "b/0.png": "green top",
        "b/deep/er/1.png": "red top",
        "large.JPG": "blue top",
        "palette.gif": "red bottom",
    }
    rows = rows_of(tmp_path / "made" / "result.parquet")
    assert [(row["where"], row["class"]) for row in rows] == list(expected.items())  # sorted by path
    assert {(row["model"], row["version"]) for row in rows} == {(MODEL, "1")}
    assert summary.counts == dict.fromkeys(CLASSES, 1)
    assert (summary.rows, summary.skipped, summary.version) == (6, 0, "1")
    assert Path(summary.output) == tmp_path / "made" / "result.parquet"


def test_probabilities_are_those_of_the_model(predict, tmp_path):
    save(tmp_path / "images", [("0.png", "green bottom")])
    predict(tmp_path / "images" / "0.png", tmp_path / "result.parquet")  # a single file is a valid input
    table = pq.read_table(tmp_path / "result.parquet")
    row = table.to_pylist()[0]
    logits = np.zeros(6)
    logits[3] = 20 * 200 / 255
    wanted = np.exp(logits) / np.exp(logits).sum()
    assert np.allclose(row["probabilities"], wanted, atol=1e-6)
    assert row["probability"] == max(row["probabilities"])
    assert row["where"] == "0.png"
    assert table.schema.field("probabilities").type == pa.list_(pa.float32(), 6)
    assert json.loads(table.schema.metadata[CLASSES_KEY]) == list(CLASSES)


def as_tensors(labels):
    pixels = np.stack([np.asarray(picture(label)) for label in labels])
    return pa.FixedShapeTensorArray.from_numpy_ndarray(pixels)


def as_lists(labels):
    return pa.array([np.asarray(picture(label)).transpose(2, 0, 1).tolist() for label in labels])


def as_structs(labels):
    return pa.array([{"bytes": encoded(label, kind="JPEG"), "path": None} for label in labels])


def as_bytes(labels):
    return pa.array([encoded(label, size=16) for label in labels])


@pytest.mark.parametrize("column", [as_bytes, as_structs, as_tensors, as_lists])
def test_parquet_to_a_folder(predict, tmp_path, column):
    labels = [CLASSES[number % 6] for number in (0, 1, 2, 3, 4, 5, 3, 2, 1)]
    source = tmp_path / "tables"
    (source / "inner").mkdir(parents=True)
    pq.write_table(pa.table({"image": column(labels[:7])}), source / "b.parquet", row_group_size=3)
    pq.write_table(
        pa.table({"image": column(labels[7:]), "label": ["x", "y"]}), source / "inner" / "a.parquet"
    )
    summary = predict(source, tmp_path / "result", alias="challenger")
    assert [file.name for file in (tmp_path / "result").iterdir()] == ["part-00000.parquet"]
    rows = rows_of(tmp_path / "result")
    where = [f"b.parquet:{row}" for row in range(7)] + ["inner/a.parquet:0", "inner/a.parquet:1"]
    assert [row["where"] for row in rows] == where
    assert [row["class"] for row in rows] == labels
    assert summary.version == "2"


def test_linked_folders_are_read_once(tmp_path):
    save(tmp_path / "elsewhere", [("0.png", "red top")])
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "images")
    assert [chunk.files for chunk in find_chunks(tmp_path / "images")] == [("link/0.png",)]


@pytest.mark.extended
@given(sizes=st.lists(st.integers(0, 23), min_size=1, max_size=12))
def test_parts_do_not_depend_on_how_rows_arrive(tmp_path_factory, sizes):
    rows = sum(sizes)
    probabilities = np.random.default_rng(rows).random((rows, 3), np.float32)
    where = np.array([f"{row}.png" for row in range(rows)], object)

    def written(cuts):
        folder = tmp_path_factory.mktemp("parts")
        writer = PredictionWriter(folder, False, ClassOutputs(("a", "b", "c")), MODEL, "1", group_rows=4)
        for start, stop in itertools.pairwise([0, *cuts]):
            writer.write(where[start:stop], probabilities[start:stop])
        writer.close()
        return {file.name: pq.ParquetFile(file) for file in sorted(folder.iterdir())}

    one_by_one = written(range(1, rows + 1))
    at_once = written(list(itertools.accumulate(sizes)))
    assert one_by_one.keys() == at_once.keys()
    for name, part in at_once.items():
        assert part.read() == one_by_one[name].read()
        assert part.metadata.num_row_groups == one_by_one[name].metadata.num_row_groups
    predictions = [row for part in at_once.values() for row in part.read().to_pylist()]
    assert [row["where"] for row in predictions] == where.tolist()
    assert [row["class"] for row in predictions] == ["abc"[best] for best in probabilities.argmax(1)]


def test_ray_is_used_for_many_rows_or_on_request():
    here, cluster, images = RaySettings(), RaySettings(address="head:6379"), Images(SHAPE)
    assert [step.choose_ray(images, rows, None, here) for rows in (1, 1999, 2000)] == [False, False, True]
    assert step.choose_ray(images, 1, None, cluster)
    assert step.choose_ray(images, 1, True, here)
    assert not step.choose_ray(images, 10**6, False, cluster)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_ray_gives_the_same_rows_in_the_same_order(predict, tmp_path):
    source = tmp_path / "images"
    save(source, [(f"{number % 7}/{number}.png", CLASSES[number % 6]) for number in range(700)])
    (source / "3" / "143.png").write_bytes(BROKEN)
    on_ray = predict(source, tmp_path / "ray.parquet", with_ray=True, skip_bad=True)
    here = predict(source, tmp_path / "here.parquet", with_ray=False, skip_bad=True)
    theirs, ours = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("ray", "here"))
    assert len(theirs) == 699
    exact = ["where", "class", "model", "version"]
    assert theirs.select(exact) == ours.select(exact)
    probabilities = [np.array(table["probabilities"].to_pylist()) for table in (theirs, ours)]
    assert np.allclose(*probabilities, atol=1e-6)
    assert on_ray.counts == here.counts

    # A worker's error reaches the caller with its own type.
    file = tmp_path / "rows.parquet"
    pq.write_table(
        pa.table({"image": [encoded("red top")] * 5}), file, compression="zstd", write_page_checksum=True
    )
    content = bytearray(file.read_bytes())
    content[40:80] = bytes(40)
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"rows\.parquet: not a whole Parquet file"):
        predict(file, tmp_path / "rows", with_ray=True)
    assert not (tmp_path / "rows").exists()


@pytest.mark.usefixtures("prefect_harness")
def test_the_flow_returns_the_summary(served_home, tmp_path, monkeypatch):
    from flows.predict import predict

    monkeypatch.setenv("EVERGREEN_HOME", str(served_home.root))
    save(tmp_path / "images", [("0.png", "red top")])
    summary = predict(MODEL, str(tmp_path / "images"), str(tmp_path / "result.parquet"))
    assert summary.counts["red top"] == summary.rows == 1


@pytest.mark.usefixtures("prefect_harness")
def test_predictions_are_reported_although_prefects_server_fails_at_their_end(
    served_home, tmp_path, monkeypatch, caplog
):
    from flows.predict import run_prediction

    monkeypatch.setenv("EVERGREEN_HOME", str(served_home.root))
    save(tmp_path / "images", [("0.png", "red top")])
    with server_fails_at_the_end() as refused:
        summary = run_prediction(MODEL, str(tmp_path / "images"), str(tmp_path / "result.parquet"))
    assert refused
    assert (summary.rows, "the prediction is done" in caplog.text) == (1, True)


@pytest.mark.usefixtures("prefect_harness")
def test_a_permanent_failure_of_a_deployed_prediction_is_not_retried(served_home, tmp_path, monkeypatch):
    from prefect.client.orchestration import get_client

    from flows.predict import predict

    monkeypatch.setenv("EVERGREEN_HOME", str(served_home.root))
    deployed = predict.with_options(retries=2, retry_delay_seconds=1)
    with pytest.raises(SettingError, match="does not exist"):
        deployed(MODEL, str(tmp_path / "gone"), str(tmp_path / "result.parquet"))
    with get_client(sync_client=True) as client:
        newest = max(client.read_flow_runs(), key=lambda run: run.created)
        assert (newest.run_count, newest.state_name) == (1, "Failed")


def test_plain_mlflow_uses_cpus_on_a_machine_with_gpus(served_home, monkeypatch):
    """MLflow would ask for a program on a GPU, and refuses one whose weights are on CPUs."""
    import mlflow
    import torch

    connect(None, served_home)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    images = np.stack([np.asarray(picture(label)).transpose(2, 0, 1) for label in CLASSES])
    predicted = mlflow.pyfunc.load_model(f"models:/{MODEL}@champion").predict(images)
    assert predicted.argmax(1).tolist() == list(range(len(CLASSES)))
