"""Batch prediction names what it can't read or write or what the model can't do, and leaves no partial result."""

import errno
import logging
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import registered
from registered import BROKEN, MODEL, SHAPE, encoded, rows_of, save

from tasks import predict as step
from tasks.inference.prediction_files import staged
from tasks.inference.scoring import score_batch
from tasks.inference.unlabelled_images import find_chunks, read_chunk
from tasks.registry.lookup import find_alias
from tasks.trackers.mlflow_run import connect
from training.errors import DataError, SettingError
from training.storage.paths import Home


def test_unreadable_image_is_named_and_nothing_is_left(predict, tmp_path):
    source = tmp_path / "images"
    save(source, [("0.png", "red top"), ("2.png", "blue top")])
    (source / "1.png").write_bytes(BROKEN)
    with pytest.raises(DataError, match=r"images/1\.png: is not a readable image"):
        predict(source, tmp_path / "out" / "result.parquet")
    with pytest.raises(DataError, match=r"images/1\.png"):
        predict(source, tmp_path / "out" / "result")
    assert list((tmp_path / "out").iterdir()) == []


def test_unreadable_images_are_left_out_on_request(predict, tmp_path, caplog):
    source = tmp_path / "images"
    save(source, [("0.png", "red top"), ("2.png", "blue top")])
    (source / "1.png").write_bytes(BROKEN)
    (source / "3.png").write_bytes(b"")
    with caplog.at_level(logging.WARNING, "evergreen.predict"):
        summary = predict(source, tmp_path / "result.parquet", skip_bad=True)
    rows = rows_of(tmp_path / "result.parquet")
    assert [(row["where"], row["class"]) for row in rows] == [("0.png", "red top"), ("2.png", "blue top")]
    assert (summary.rows, summary.skipped) == (2, 2)
    named = {record.getMessage().split(": ")[1] for record in caplog.records}
    assert named == {str(source / "1.png"), str(source / "3.png")}


def test_no_readable_image_is_an_error(predict, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "0.png").write_bytes(BROKEN)
    with pytest.raises(DataError, match="none of the 1 images"):
        predict(tmp_path / "images", tmp_path / "result.parquet", skip_bad=True)
    assert not (tmp_path / "result.parquet").exists()


def test_bad_parquet_row_is_named(predict, tmp_path):
    images = pa.array([encoded("red top"), None, encoded("blue top"), BROKEN])
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"image": images}), file, row_group_size=2)
    with pytest.raises(DataError, match=r"rows\.parquet row 1: has zero bytes"):
        predict(file, tmp_path / "result.parquet")
    summary = predict(file, tmp_path / "result.parquet", skip_bad=True)
    assert [row["where"] for row in rows_of(tmp_path / "result.parquet")] == [
        "rows.parquet:0",
        "rows.parquet:2",
    ]
    assert summary.skipped == 2


def test_damaged_parquet_is_named(predict, tmp_path):
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"image": [encoded("red top")] * 50}), file, compression="none")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"rows\.parquet: not a whole Parquet file"):
        predict(file, tmp_path / "result.parquet")


def test_impossible_inputs_are_refused(predict, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="nothing to score"):
        predict(tmp_path / "empty", tmp_path / "result.parquet")
    mixed = tmp_path / "mixed"
    save(mixed, [("0.png", "red top")])
    pq.write_table(pa.table({"image": [b"x"]}), mixed / "rows.parquet")
    with pytest.raises(DataError, match="one kind at a time"):
        predict(mixed, tmp_path / "result.parquet")
    pq.write_table(pa.table({"picture": [b"x"]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match="no column 'image'; there are picture"):
        predict(tmp_path / "other.parquet", tmp_path / "result.parquet")
    with pytest.raises(SettingError, match="gone does not exist"):
        predict(tmp_path / "gone", tmp_path / "result.parquet")


def test_existing_output_is_kept_unless_overwritten(predict, tmp_path):
    save(tmp_path / "images", [("0.png", "red top"), ("1.png", "blue top")])
    for output in (tmp_path / "result.parquet", tmp_path / "result"):
        predict(tmp_path / "images" / "0.png", output)
        with pytest.raises(SettingError, match="exists"):
            predict(tmp_path / "images", output)
        assert [row["class"] for row in rows_of(output)] == ["red top"]
        predict(tmp_path / "images", output, overwrite=True)
        assert [row["class"] for row in rows_of(output)] == ["red top", "blue top"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["images", "result", "result.parquet"]


def test_overwriting_replaces_only_predictions(predict, tmp_path):
    save(tmp_path / "images", [("0.png", "red top")])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("three years")
    with pytest.raises(SettingError, match=r"holds thesis\.txt"):
        predict(tmp_path / "images", tmp_path / "mine", overwrite=True)
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "rows" / "part-00000.parquet")
    with pytest.raises(SettingError, match=r"holds part-00000\.parquet, which is no prediction"):
        predict(tmp_path / "images", tmp_path / "rows", overwrite=True)
    for output in (tmp_path / "images", tmp_path / "images" / "result.parquet", tmp_path):
        with pytest.raises(SettingError, match="one inside the other"):
            predict(tmp_path / "images", output, overwrite=True)
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(SettingError, match="a name with this ending is that of a file"):
        predict(tmp_path / "images", tmp_path / "folder.parquet", overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "three years"


@pytest.mark.parametrize("inside", ["out.parquet", "deep/out.parquet", "out"])
def test_an_output_below_a_file_is_refused_before_the_model_is_loaded(predict, tmp_path, inside):
    save(tmp_path / "images", [("0.png", "red top")])
    file = tmp_path / "results.csv"
    file.write_text("kept")
    with pytest.raises(SettingError, match=f"output: {file} is a file, so there is no {file}/{inside}"):
        predict(tmp_path / "images", file / inside, model="not looked for")
    assert file.read_text() == "kept"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (os.fsdecode(b"caf\xe9.parquet"), "is not UTF-8"),
        (os.fsdecode(b"caf\xe9/out.parquet"), "is not UTF-8"),
        (f"{'猫' * 74}.parquet", "has 230 bytes, more than 220"),
        ("x" * 300, "has more than 255 bytes"),
    ],
    ids=["name", "folder", "long", "too long for the file system"],
)
def test_an_output_with_an_impossible_name_is_refused_before_the_model_is_loaded(
    predict, tmp_path, name, why
):
    save(tmp_path / "images", [("0.png", "red top")])
    with pytest.raises(SettingError, match=why):
        predict(tmp_path / "images", tmp_path / name, model="not looked for")


def test_a_device_is_no_output(predict, tmp_path):
    save(tmp_path / "images", [("0.png", "red top")])
    with pytest.raises(SettingError, match="/dev/null is a device or a pipe"):
        predict(tmp_path / "images", "/dev/null", overwrite=True)


def test_an_input_file_whose_name_is_not_utf_8_is_refused(predict, tmp_path):
    save(tmp_path / "images", [("0.png", "red top")])
    file = (tmp_path / "images" / "0.png").rename(tmp_path / "images" / os.fsdecode(b"caf\xe9.png"))
    with pytest.raises(SettingError, match=r"input: the path .* is not UTF-8"):
        predict(file, tmp_path / "result.parquet")
    with pytest.raises(DataError, match="its name is not UTF-8"):
        predict(file.parent, tmp_path / "result.parquet")


def test_an_image_that_is_not_on_this_machine_is_no_bad_image(tmp_path):
    """As on a node of a cluster that does not share the disk: `skip_bad` would leave good images out."""
    save(tmp_path / "images", [("0.png", "red top")])
    (tmp_path / "images" / "1.png").symlink_to("nowhere")
    (chunk,) = find_chunks(tmp_path / "images")
    [batch] = read_chunk(chunk, SHAPE)
    assert ["can't be read" in error for error in batch["error"]] == [False, True]
    (tmp_path / "images" / "0.png").unlink()
    with pytest.raises(
        DataError, match=r"0\.png: not on .*on a cluster, keep it on a disk that all machines share"
    ):
        list(read_chunk(chunk, SHAPE))


@pytest.mark.parametrize("replaced", [True, False])
def test_an_interruption_while_a_folder_is_replaced_keeps_the_former_folder(tmp_path, monkeypatch, replaced):
    former, rename = tmp_path / "result", Path.rename
    former.mkdir()
    (former / "part-00000.parquet").write_text("former")

    def interrupted(path, target):
        if path.name.endswith(".done"):
            if replaced:
                Path(target).mkdir()
                (Path(target) / "part-00000.parquet").write_text("theirs")
                raise OSError(errno.ENOTEMPTY, "Directory not empty")
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with (
        pytest.raises(SettingError if replaced else KeyboardInterrupt),
        staged(former, overwrite=True) as aside,
    ):
        (aside / "part-00000.parquet").write_text("new")
    assert (former / "part-00000.parquet").read_text() == ("theirs" if replaced else "former")
    assert [file.name for file in tmp_path.iterdir()] == ["result"]


def test_output_of_a_concurrent_process_is_kept(tmp_path):
    def meanwhile(output):
        with staged(output, overwrite=False) as aside:
            (aside if output.suffix else aside / "part-00000.parquet").write_text("ours")
            output.write_text("theirs")

    for name in ("result", "result.parquet"):
        with pytest.raises(SettingError, match="meanwhile"):
            meanwhile(tmp_path / name)
        assert (tmp_path / name).read_text() == "theirs"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["result", "result.parquet"]


def test_unknown_model_or_alias_lists_what_is_registered(predict, tmp_path):
    save(tmp_path / "images", [("0.png", "red top")])
    listed = r"Registered are: .*halves \(challenger -> 2, champion -> 1\)"
    with pytest.raises(SettingError, match=f"'digits': no such model.*{listed}"):
        predict(tmp_path / "images", tmp_path / "result.parquet", model="digits")
    with pytest.raises(SettingError, match=f"'halves': no alias 'previous'.*{listed}"):
        predict(tmp_path / "images", tmp_path / "result.parquet", alias="previous")
    with pytest.raises(SettingError, match="No model is registered yet"):
        find_alias(connect(None, Home(tmp_path)), "digits", "champion")


def test_a_model_that_does_not_name_its_classes_is_refused(served_home, predict, tmp_path):
    save(tmp_path / "images", [("0.png", "red top")])
    registered.register(served_home, versions=1, metadata={"classes": ["red", "green"]}, model="nameless")
    with pytest.raises(SettingError, match="gives 6 numbers a row and names 2 classes"):
        predict(tmp_path / "images", tmp_path / "result.parquet", model="nameless")


def test_a_model_that_gives_nan_is_refused():
    batch = {
        "where": np.array(["a", "bad", "b"], object),
        "error": np.array(["", "unreadable", ""], object),
        "inputs": np.zeros((3, *SHAPE), np.uint8),
    }
    answers = np.array([[0.5, 0.5], [np.nan, 0.5]], np.float32)
    with pytest.raises(DataError, match=r"^b: the model gives a probability that is not finite"):
        score_batch(lambda images: answers[: len(images)], batch, 512, "probability")


def test_non_square_models_take_images_of_their_size_only(tmp_path):
    save(tmp_path, [("0.png", "red top")])
    chunk = find_chunks(tmp_path)[0]
    errors = [str(error) for batch in read_chunk(chunk, (3, 8, 10)) for error in batch["error"]]
    assert errors == [
        f"{tmp_path}/0.png: has shape (3, 8, 8), the model takes (3, 8, 10) (channels, height, width)"
    ]


@pytest.mark.parametrize(("source", "output", "named"), [("", "out", "input"), ("images", "", "output")])
def test_an_empty_path_is_not_the_working_directory(served_home, source, output, named):
    with pytest.raises(SettingError, match=f"{named}: the path is empty"):
        step.predict.fn(str(served_home.root), MODEL, source, output)
