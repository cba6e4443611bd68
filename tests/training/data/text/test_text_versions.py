"""Dataset versions of text: splits, token ids, tokenizer, damage, and rows that are refused."""

from pathlib import Path

import numpy as np
import pytest
from small_runs import prepared, prepared_from
from small_texts import sentences, write_csv

pytest.importorskip("tokenizers", reason="install the extras by: make setup EXTRAS=all")
from training.data.dataset import find, open_columns
from training.data.manifest import read_parts
from training.data.sources.text import Text
from training.data.text.text_check import check_text
from training.data.text.tokenizers import Encoder, train
from training.errors import DataError, SettingError
from training.records import DatasetVersion, ProblemName
from training.settings.schema import DataSettings
from training.storage.paths import Home

pytestmark = pytest.mark.frameworks
DATA = {"max_tokens": 12, "vocabulary": 400}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def version(home: Home) -> DatasetVersion:
    return prepared(home, Text(write_csv(home.root / "rows.csv")), "films", DATA)


def texts_of(version: DatasetVersion, split: str) -> list[str]:
    return [
        text
        for part in read_parts(version, split, ["feature.text"])
        for text in part["feature.text"].to_pylist()
    ]


def open_rows(version: DatasetVersion) -> list[np.ndarray]:
    return [open_columns(version, split).inputs for split in ("train", "test")]


def test_rows_have_ids_of_a_tokenizer_of_the_train_split(version: DatasetVersion) -> None:
    expected = train(texts_of(version, "train"), 400, 12)
    assert version.text is not None
    assert version.text.tokenizer == expected.digest
    assert (version.shape, version.classes, version.text.padding) == ((12,), ("neg", "pos"), 0)
    for split in ("train", "test"):
        columns = open_columns(version, split)
        assert columns.inputs.dtype == np.int64
        assert (columns.inputs == Encoder(expected.content).encode(texts_of(version, split)).ids).all()
    every = dict(sentences(300))
    columns = open_columns(version, "test")
    assert [every[text] for text in texts_of(version, "test")] == [
        version.classes[target] for target in columns.targets
    ]
    assert not set(texts_of(version, "train")) & set(texts_of(version, "test"))


def test_the_same_rows_give_the_same_ids(version: DatasetVersion, tmp_path: Path) -> None:
    again = prepared(Home(tmp_path), Text(write_csv(tmp_path / "renamed.csv")), "films", DATA)
    assert (again.fingerprint, again.table) == (version.fingerprint, version.table)
    for ids, other in zip(open_rows(again), open_rows(version), strict=True):
        assert (ids == other).all()


def test_a_changed_tokenizer_is_damage(tmp_path: Path) -> None:
    home = Home(tmp_path)
    made = prepared(home, Text(write_csv(tmp_path / "rows.csv")), "films", DATA)
    assert find(home, "films", made.fingerprint) is not None
    file = Path(made.path) / "tokenizer.json"
    file.write_text(file.read_text().replace("film", "flim", 1))
    assert find(home, "films", made.fingerprint) is None


def test_a_given_tokenizer_is_used_and_the_vocabulary_does_not_count(home: Home) -> None:
    own = home.root / "tokenizer.json"
    own.write_text(train(["film " * 3, "story " * 3], 300, 4).content)
    source = Text(home.root / "rows.csv", tokenizer=own)
    made = prepared(home, source, "films", DATA)
    other = prepared(home, source, "films", DATA | {"vocabulary": 500})
    assert made.text is not None
    assert not made.text.trained
    assert (made.shape, made.fingerprint) == ((12,), other.fingerprint)


def test_rows_without_text_or_target_are_named(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "rows.csv")
    file.write_text(file.read_text() + ",pos\nno target,\n")
    with pytest.raises(DataError) as caught:
        prepared(Home(tmp_path / "home"), Text(file), "films", DATA)
    assert "rows.csv row 301: column 'text' is empty" in str(caught.value)
    assert "rows.csv row 302: column 'label' is empty" in str(caught.value)
    made = prepared(Home(tmp_path / "home"), Text(file), "films", DATA | {"max_dropped_share": 0.1})
    assert len(made.dropped) == 2
    assert made.rows("train") + made.rows("test") == 300


def test_a_row_without_text_and_target_is_one_row(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "rows.csv", 96)
    file.write_text(file.read_text() + ",pos\n,\nno target,\n,\n")
    with pytest.raises(DataError, match=r"^4 of 100 rows can't be used") as caught:
        prepared(Home(tmp_path / "home"), Text(file), "films", DATA)
    assert [line.partition("rows.csv ")[2] for line in str(caught.value).splitlines()[1:5]] == [
        "row 97: column 'text' is empty, and every row needs a text",
        "row 98: columns 'text' and 'label' are empty, and every row needs a text and a target",
        "row 99: column 'label' is empty, and every row needs a target",
        "row 100: columns 'text' and 'label' are empty, and every row needs a text and a target",
    ]
    made = prepared(Home(tmp_path / "home"), Text(file), "films", DATA | {"max_dropped_share": 0.04})
    assert len(made.dropped) == 4


@pytest.mark.parametrize(
    ("rows", "target"),
    [
        (",pos\n,\nno target,\n", "label"),
        (",pos\n" * 7, "label"),
        (",pos\n", None),
        ("film,x\n,y\n", "label"),
    ],
)
def test_plan_refuses_what_preparation_refuses(tmp_path: Path, rows: str, target: str | None) -> None:
    home, problem = Home(tmp_path / "home"), "classification" if target else "language_model"
    file = write_csv(tmp_path / "rows.csv", 60)
    file.write_text(file.read_text() + rows)
    files = Text(file, target=target).fetch(home.sources)
    with pytest.raises(DataError) as early:
        check_text(files, DataSettings(**DATA), problem)
    with pytest.raises(DataError) as late:
        prepared_from(home, files, "films", DataSettings(**DATA), problem)
    listings = (home.root / "refused").rglob("*.csv")
    assert str(late.value).replace(f", all listed in {next(listings, '')}", "") == str(early.value)


def test_plan_refuses_a_class_whose_rows_have_no_text_in_a_split(tmp_path: Path) -> None:
    for split, label in (("train", "neg"), ("train", "pos"), ("test", "neg")):
        write_csv(tmp_path / "films" / split / f"{label}.csv", 40, seed=len(split + label))
    (tmp_path / "films" / "test" / "pos.csv").write_text("text,label\n,new\n")
    (tmp_path / "films" / "train" / "new.csv").write_text("text,label\na new film,new\n")
    files = Text(tmp_path / "films").fetch(tmp_path / "home")
    with pytest.raises(DataError, match="no test rows of class new"):
        check_text(files, DataSettings(**DATA, max_dropped_share=0.5), "classification")


@pytest.mark.parametrize("target", ["label", None])
def test_an_empty_file_is_a_row_that_is_named(tmp_path: Path, target: str | None) -> None:
    for number, (text, label) in enumerate(sentences(60)):
        file = tmp_path / "films" / (label if target else "") / f"{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    empty = file.with_name("empty.txt")
    empty.touch()
    source, problem = (
        Text(tmp_path / "films", target=target),
        "classification" if target else "language_model",
    )
    with pytest.raises(DataError) as caught:
        prepared(Home(tmp_path / "home"), source, "films", DATA, problem)
    assert f"{empty} row 1: column 'text' is empty, and every row needs a text" in str(caught.value)
    made = prepared(Home(tmp_path / "home"), source, "films", DATA | {"max_dropped_share": 0.1}, problem)
    assert (made.rows("train") + made.rows("test"), len(made.dropped)) == (60, 1)


@pytest.mark.parametrize("problem", ["classification", "language_model"])
def test_texts_in_both_splits_are_a_warning(
    tmp_path: Path, problem: ProblemName, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [f"{text},{label}" for text, label in sentences(80)]
    for split, chosen in (("train", rows[:60]), ("test", [*rows[60:], *rows[:3]])):
        file = tmp_path / split / "rows.csv"
        file.parent.mkdir()
        file.write_text("\n".join(["text,label", *chosen]) + "\n")
    source = Text(tmp_path, target="label" if problem == "classification" else None)
    with caplog.at_level("WARNING", "evergreen.prepare"):
        made = prepared(Home(tmp_path / "home"), source, "films", DATA, problem)
    assert made.table is not None
    (warning,) = made.table.warnings
    assert warning.startswith("3 test rows have the text of a train row, of 23 test rows, so the test score")
    assert f"{tmp_path}: {warning}" in caplog.messages


def test_texts_that_the_content_divides_give_no_warning(version: DatasetVersion) -> None:
    assert version.table is not None
    assert version.table.warnings == ()


def test_numbers_can_be_predicted(tmp_path: Path) -> None:
    lines = [f"{text},{len(text)}" for text, _ in sentences(100)]
    file = tmp_path / "rows.csv"
    file.write_text("\n".join(["text,label", *lines]) + "\n")
    made = prepared(Home(tmp_path), Text(file), "lengths", DATA, "regression")
    targets = open_columns(made, "train").targets
    assert made.table is not None
    assert made.table.target_mean == pytest.approx(targets.mean())


def test_settings_of_other_rows_are_refused(home: Home, version: DatasetVersion) -> None:
    del version
    source = Text(home.root / "rows.csv")
    with pytest.raises(SettingError, match=r"data.image_size: .* is text, and the setting is for images"):
        prepared(home, source, "films", {"image_size": 8})
    with pytest.raises(SettingError, match=r"data.feed: text is read from memory"):
        prepared(home, source, "films", {"feed": "stream"})
    with pytest.raises(SettingError, match=r"data.max_tokens: .* has images, and the setting is for text"):
        prepared(home, data={"max_tokens": 12})
