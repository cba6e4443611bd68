"""The report page, its Markdown and its pictures on tables: a regression by trees, a classification by a network."""

import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from page_reader import Page
from page_sample import HOSTILE
from PIL import Image
from table_page_sample import ROUNDS, class_table_report, diabetes_run, regression_report

from tasks.problems.regression.plots import POINTS_UP_TO, error_counts, plots
from tasks.report_page.artifact import markdown
from tasks.report_page.data_views import column_facts
from tasks.report_page.examples import _readable, _text, predicted_numbers
from tasks.report_page.inputs import Predicted
from tasks.report_page.page import render
from tasks.report_page.sections import figures
from tasks.report_page.wording import NOTHING
from training.printable import printable
from training.records import ColumnKind, TableColumn
from training.trainers.base import inspection_of


@cache
def regression() -> Page:
    return Page(render(regression_report()))


@cache
def classes() -> Page:
    return Page(render(class_table_report()))


@pytest.mark.parametrize("shown", [regression, classes])
def test_the_page_is_sound(shown) -> None:
    tags = shown().tags
    identities = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    assert not {tag for tag, _ in tags} & {
        "script",
        "iframe",
        "object",
        "embed",
        "link",
        "base",
        "form",
        "img",
    }
    for tag, attributes in tags:
        assert tag != "a" or (attributes["href"] or "")[1:] in identities
        assert attributes.get("aria-labelledby") in {None, *identities}
    names = [tag for tag, _ in tags]
    levels = [int(tag[1]) for tag in names if tag in {"h1", "h2", "h3"}]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert names.count("caption") == names.count("table") > 5


def contents(page: Page) -> list[str]:
    return [(at["href"] or "")[1:] for tag, at in page.tags if tag == "a" and (at["href"] or "") != "#report"]


def test_each_problem_has_sections_of_its_own() -> None:
    common = ["gate", "scores", "learning"], ["time", "lineage", "data", "settings", "next"]
    assert contents(regression()) == [*common[0], "predictions", "errors", "importances", *common[1]]
    assert contents(classes()) == [*common[0], "confusion", "classes", "mistakes", *common[1]]


def test_settings_without_a_meaning_for_the_problem_are_left_out() -> None:
    for name in ("max_class_drop", "max class drop"):  # in the list of settings, and below the gate's rules
        assert name in classes().text
        assert name not in regression().text
    assert regression().text.count("floor") >= 2


def test_the_scores_are_those_of_the_record() -> None:
    inputs = regression_report()
    ours, theirs = inputs.evaluation.candidate, inputs.evaluation.champion
    for name, field in (("RMSE", "rmse"), ("MAE", "mae"), ("R²", "r2"), ("Bias", "bias")):
        shown = [float(text.replace(",", "").replace("−", "-")) for text in regression().row(name, 4)[:2]]
        assert shown == pytest.approx([getattr(ours, field), getattr(theirs, field)], rel=1e-3)
    tone = next(
        at["class"] for tag, at in regression().tags if tag == "dd" and "big" in (at.get("class") or "")
    )
    assert tone == "big"
    text = regression().text
    assert f"R² {ours.r2:.4f}" in text
    assert "big good" in render(inputs)  # a lower RMSE is better
    assert "Accuracy" not in text
    assert "image" not in text.replace("image_size", "")


def test_the_largest_errors_show_their_rows() -> None:
    inputs = regression_report()
    heads = next(row for row in regression().rows if row[0] == "Row")
    assert heads[1:4] == ["True", "Predicted", "Error"]
    assert heads[4:] == [column.name for column in inputs.dataset.table.columns]
    worst = inputs.evaluation.largest_errors[0]
    row = regression().row(f"diabetes.csv row {worst.row + 2}", len(heads))
    assert float(row[2].replace("−", "-")) == pytest.approx(worst.predicted - worst.truth, rel=1e-3)
    assert row[3:] == [f"{value:g}" for value in diabetes_run()[1][0][worst.row]]


def test_rounds_are_called_rounds_and_curves_are_named_by_the_metric() -> None:
    text = regression().text
    assert f"The trees of the first {ROUNDS - 3} rounds were kept." in text
    assert "Round by round" in text
    assert "Train RMSE" in text
    assert re.search(r"RMSE by round\. Training from [\d.]+ in round 1", text)
    assert "epoch" not in text
    assert "gradients" not in text
    assert len([row for row in regression().rows if len(row) == 8 and row[0].isdigit()]) == ROUNDS - 1


def test_the_page_says_why_training_ended_early() -> None:
    inputs = regression_report()
    why = "stopped at round 40: the validation loss had not improved since round 37"
    shown = Page(render(replace(inputs, trained=inputs.trained.model_copy(update={"stopped": why})))).text
    assert f"Training {why}. The trees of the first" in shown
    assert "Training stopped" not in regression().text


def test_columns_of_a_table_are_described() -> None:
    shown = {row[0]: row[1:] for row in regression().rows if len(row) == 4}
    assert shown["sex"] == ["category", "1 (235), 2 (207)", "2"]
    assert shown["age"][0] == "number"
    assert shown["age"][1].startswith("19 to 79, mean 48")
    assert "10 feature columns, target progression" in regression().text
    others = {row[0]: row[1:] for row in classes().rows if len(row) == 4}
    assert others["hatched"] == ["date", "2022-01-08 to 2022-01-18 06:00", "7"]
    assert others["banded"] == ["boolean", "25.0\N{NO-BREAK SPACE}% true", "none"]


def test_many_categories_are_counted() -> None:
    names = tuple(f"c{number:03}" for number in range(300))
    column = TableColumn(name="code", kind="category", categories=names, counts=(2, 9, *[1] * 298))
    assert column_facts(column, 500).values.startswith("c001 (9), c000 (2), c002 (1)")
    assert column_facts(column, 500).values.endswith(" and 292 more")


def test_mistakes_on_a_table_are_rows() -> None:
    inputs = class_table_report()
    rows = [row for row in classes().rows if len(row) == 6 and "→" in row[0]][1:]
    assert len(rows) == len(inputs.evaluation.mistakes)
    assert rows[0][2:] == [
        f"penguins.csv row {inputs.evaluation.mistakes[0].row}",
        "Torgersen",
        "2022-01-08",
        "–",
    ]
    assert "median for one row, one a batch" in classes().text
    assert "Rows per second" in classes().text


def test_the_columns_by_which_trees_gained_most_come_first() -> None:
    shares = diabetes_run()[2]
    names = [row[0] for row in regression().rows if len(row) == 3 and row[0] in shares]
    assert names == sorted(shares, key=lambda name: -shares[name])


def test_wide_tables_show_the_columns_that_matter() -> None:
    inputs = class_table_report()
    columns = tuple(TableColumn(name=f"n{number}", kind="number") for number in range(40))
    wide = replace(
        inputs,
        dataset=inputs.dataset.model_copy(
            update={"table": inputs.dataset.table.model_copy(update={"columns": columns}), "shape": (40,)}
        ),
        example_rows=tuple(tuple(str(at) for at in range(40)) for _ in inputs.evaluation.mistakes),
        importances={"n39": 0.5, "n20": 0.25},
    )
    page = Page(render(wide))
    heads = next(row for row in page.rows if row[0] == "Truth → taken for")
    assert heads[3:] == [*(f"n{number}" for number in range(10)), "n20", "n39"]
    assert "28 further columns are not shown." in page.text


def test_few_rows_are_points_and_many_rows_are_cells() -> None:
    few, many = (regression_report(times=times) for times in (1, 5))
    assert len(few.predicted.truth) <= POINTS_UP_TO < len(many.predicted.truth)
    for inputs, points in ((few, True), (many, False)):
        against_true, by_prediction = plots(inputs.predicted, "t")
        for plot in (against_true, by_prediction):
            assert bool(plot.points) == points
            assert bool(plot.cells) != points
            for x, y in (*plot.points, *((cell.x, cell.y) for cell in plot.cells)):
                assert plot.left - 1 <= x <= plot.right + 1
                assert plot.top - 1 <= y <= plot.bottom + 1
    # A row whose prediction is the truth lies on the guide.
    exact = np.array([1.0, 5.0, 9.0])
    on_guide = plots(Predicted(exact, exact), "t")[0]
    (x1, y1, x2, y2) = on_guide.guide
    for x, y in on_guide.points:
        assert (y - y1) * (x2 - x1) == pytest.approx((y2 - y1) * (x - x1), abs=1)


def test_the_histogram_counts_every_row() -> None:
    predicted = regression_report(times=5).predicted
    counts, edges = error_counts(predicted)
    assert counts.sum() == len(predicted.truth)
    assert edges[0] == -edges[-1]
    far = Predicted(np.zeros(1000), np.r_[np.linspace(-1, 1, 999), 1e6])
    counts, edges = error_counts(far)
    assert counts.sum() == 1000
    assert edges[-1] < 2  # one extreme error does not flatten the rest


@pytest.mark.extended
@pytest.mark.parametrize("values", [[], [3.0], [3.0, 3.0, 3.0], [float("nan"), 1.0, 2.0]])
def test_degenerate_numbers_can_be_drawn(values: list[float], tmp_path: Path) -> None:
    truth = np.array(values)
    inputs = replace(regression_report(), predicted=Predicted(truth, truth.copy()))
    text = render(inputs)
    assert not re.search(r"\b(nan|inf)\b", text, re.IGNORECASE)
    assert len(figures(inputs, tmp_path)) == 3


def test_markdown_of_a_regression() -> None:
    inputs = regression_report()
    ours = inputs.evaluation.candidate
    text = markdown(inputs)
    assert f"RMSE **{ours.rmse:.4g}**, R² {ours.r2:.4f}" in text
    assert f"{ours.low:.4g} to {ours.high:.4g}" in text
    assert "| Measured RMSE | " in text
    assert "accura" not in text
    first = markdown(regression_report(with_champion=False))
    assert "Champion" not in first.split("## Scores")[1]


def test_a_refused_regression_says_what_was_missing() -> None:
    inputs = regression_report()
    swapped = inputs.release.verdict.looks[0].model_copy(
        update={"passed": False, "difference": 1.0, "p": 0.5}
    )
    verdict = inputs.release.verdict.model_copy(update={"looks": (swapped,)})
    text = Page(render(replace(inputs, release=inputs.release.model_copy(update={"verdict": verdict})))).text
    assert "RMSE needed on these rows at most" in text
    assert "Test rows needed if the measured difference is the true one" in text


@pytest.mark.extended
def test_pictures_of_a_regression(tmp_path: Path) -> None:
    for inputs in (regression_report(), regression_report(times=5)):
        drawn = figures(inputs, tmp_path)
        assert [path.name for path in drawn] == [
            "learning_curves.png",
            "predicted_against_true.png",
            "errors.png",
        ]
        for path in drawn:
            with Image.open(path) as picture:
                assert len(set(picture.convert("L").getdata())) > 10
    assert [path.name for path in figures(class_table_report(), tmp_path)] == [
        "learning_curves.png",
        "confusion_matrix.png",
    ]


def test_text_of_a_table_stays_text(tmp_path: Path) -> None:
    shown = render(class_table_report(text=HOSTILE))
    assert {tag for tag, _ in Page(shown).tags} <= {tag for tag, _ in classes().tags} | {"img"}
    assert "<script" not in shown
    assert "<img" not in shown
    named = regression_report(target=HOSTILE)
    page = Page(render(named))
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in regression().tags}
    assert page.text.count(printable(" ".join(HOSTILE.split()))) > 5
    assert len(figures(named, tmp_path)) == 3


def test_rows_must_match_examples() -> None:
    with pytest.raises(ValueError, match="0 rows for 24 examples; give one row for each"):
        replace(regression_report(), example_rows=())


def test_compared_rows_are_read(tmp_path: Path) -> None:
    file = tmp_path / "predictions.parquet"
    columns = {"label": [1.0, 2.0, 3.0], "candidate": [1.5, np.nan, 2.5], "compared": [True, False, True]}
    pq.write_table(pa.table(columns), file)
    predicted = predicted_numbers(
        regression_report().evaluation.model_copy(update={"predictions": str(file)})
    )
    assert predicted is not None
    assert predicted.truth.tolist() == [1.0, 3.0]
    assert predicted.candidate.tolist() == [1.5, 2.5]


def test_importances_of_trees(tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    rows, targets, *_ = diabetes_run()[1]
    data = xgboost.DMatrix(rows[:, :3], targets, feature_names=["age", "sex", "bmi"])
    trees = xgboost.train({"max_depth": 2}, data, num_boost_round=5)
    trees.save_model(tmp_path / "model.ubj")
    importances = inspection_of("xgboost").importances(tmp_path / "model.ubj")
    assert sum(importances.values()) == pytest.approx(1)
    assert max(importances, key=lambda name: importances[name]) == "bmi"
    assert inspection_of("torch").importances(tmp_path / "model.ubj") == {}


def test_warnings_of_the_table_are_shown() -> None:
    inputs = class_table_report()
    table = inputs.dataset.table.model_copy(update={"warnings": ("column 'x' follows the target <b>",)})
    page = render(replace(inputs, dataset=inputs.dataset.model_copy(update={"table": table})))
    assert "<li>column &#39;x&#39; follows the target &lt;b&gt;</li>" in page


@pytest.mark.parametrize(
    ("value", "text"), [(1234567.0, "1234567"), (0.125, "0.125"), (2.5e15, "2.5e+15"), (float("nan"), "–")]
)
def test_a_number_of_an_example_row_keeps_its_digits(value: float, text: str) -> None:
    assert _text(value, longest=30) == text


@pytest.mark.parametrize("kind", ["number", "category", "boolean", "date"])
def test_a_column_without_values_has_no_statistics(kind: ColumnKind) -> None:
    column = TableColumn(name="empty", kind=kind, missing=40)
    assert column_facts(column, 40).values == "no values"
    assert column_facts(column, 41).values != "no values"


def test_the_speed_of_another_program_is_not_compared() -> None:
    """The trained candidate is measured as it is, the champion as the program that was registered."""
    for page in (regression(), classes()):
        candidate, champion, change = next(row[1:4] for row in page.rows if row[0].startswith("Latency"))
        assert float(candidate.replace(",", "")) > 0
        assert champion == change == NOTHING


def test_dates_beyond_those_of_python_are_shown() -> None:
    seconds = [0, 49_440, 253_402_300_799 + 5 * 3600, -62_167_219_200, None]
    times = pa.array(seconds, pa.int64()).cast(pa.timestamp("s")).cast(pa.timestamp("us"))
    rows = pa.table(
        {"at": times, "in zone": times.cast(pa.timestamp("us", "UTC")), "on": times.cast(pa.date32())}
    )
    shown = _readable(rows).to_pydict()
    assert shown["at"] == ["1970-01-01", "1970-01-01 13:44", "10000-01-01 04:59", "0000-01-01", None]
    assert shown["in zone"][1:3] == ["1970-01-01 13:44", "10000-01-01 04:59"]
    assert shown["on"][1:4] == ["1970-01-01", "10000-01-01", "0000-01-01"]
