"""The report page of a regression on images: the largest errors have their pictures."""

import base64
import io
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from page_reader import Page
from page_sample import HOSTILE
from PIL import Image
from table_page_sample import regression_report

from tasks.report_page.inputs import ReportInputs
from tasks.report_page.page import render
from tasks.report_page.sections import figures
from training.records import TableSchema


@cache
def on_images(target: str = "progression") -> ReportInputs:
    """The report of a regression on a table, as if each row were a picture."""
    inputs = regression_report()
    schema = TableSchema(target=target, columns=(), target_mean=152.0, target_std=77.0)
    about = {"table": schema, "shape": (1, 8, 8), "mean": (0.25,), "std": (0.5,)}
    count = len(inputs.evaluation.largest_errors)
    pictures = np.random.default_rng(0).integers(0, 256, (count, 1, 8, 8)).astype(np.uint8)
    return replace(
        inputs,
        dataset=inputs.dataset.model_copy(update=about),
        example_pictures=tuple(pictures),
        example_rows=(),
        words=replace(inputs.words, row="image"),
        importances={},
    )


def test_each_of_the_largest_errors_has_its_picture() -> None:
    inputs = on_images()
    page = Page(render(inputs))
    heads = next(row for row in page.rows if row[0] == "Row")
    assert heads == ["Row", "Image", "True", "Predicted", "Error"]
    shown = [attributes for tag, attributes in page.tags if tag == "img"]
    errors = inputs.evaluation.largest_errors
    assert len(shown) == len(errors) > 10
    for attributes, pixels, error in zip(shown, inputs.example_pictures, errors, strict=True):
        kind, _, content = (attributes["src"] or "").partition(",")
        assert kind == "data:image/png;base64"
        with Image.open(io.BytesIO(base64.b64decode(content))) as picture:
            assert np.array_equal(np.asarray(picture), pixels[0])
        assert (attributes["alt"] or "").startswith(f"Test row {error.row}: ")
        assert page.row(inputs.place_of(error.row), len(heads))[0] == ""


def test_the_target_is_described() -> None:
    page = Page(render(on_images()))
    assert "target progression, images of 8 × 8 pixels with 1 channel" in page.text
    assert page.row("Target progression", 2) == ["mean 152, standard deviation 77 in the train split"]
    assert page.row("Normalised", 2) == ["by mean 0.2500, standard deviation 0.5000"]


def test_text_of_a_target_stays_text() -> None:
    page = Page(render(on_images(HOSTILE)))
    assert not {tag for tag, _ in page.tags} & {"script", "iframe", "object"}


def test_the_largest_errors_are_drawn(tmp_path: Path) -> None:
    drawn = figures(on_images(), tmp_path)
    assert [path.name for path in drawn] == [
        "learning_curves.png",
        "predicted_against_true.png",
        "errors.png",
        "largest_errors.png",
    ]
    with Image.open(drawn[-1]) as picture:
        assert len(set(picture.convert("L").getdata())) > 10
