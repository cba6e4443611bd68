"""The report page, its Markdown and its pictures, made from real predictions of handwritten digits."""

import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_reader import Page, share
from page_sample import DIGITS, HOSTILE, digits_run, hostile, report
from PIL import Image

from tasks.problems.classification.tables import confused_pairs
from tasks.report_page.artifact import markdown
from tasks.report_page.figures import prediction_grid
from tasks.report_page.links import where_to_look
from tasks.report_page.page import render
from tasks.report_page.sections import figures
from tasks.report_page.tables import round_together
from tasks.report_page.wording import level, reason, unbroken
from tasks.report_page.wording import sentence as as_sentence
from training.printable import printable
from training.records import EpochMetrics, Goodput

KINDS = tuple(f"kind {at}" for at in range(120))
CASES: dict[str, dict[str, Any]] = {
    "promoted": {},
    "refused": {"floor": 0.99},
    "first": {"with_champion": False},
    "first refused": {"with_champion": False, "floor": 0.99},
    "2 classes": {"names": ("even", "odd")},
    "120 classes": {"names": KINDS},
}


@cache
def page(case: str) -> Page:
    return Page(render(report(**CASES[case])))


@pytest.mark.parametrize("case", CASES)
def test_the_page_is_sound_and_loads_nothing(case: str) -> None:
    tags = page(case).tags
    identities = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    for tag, attributes in tags:
        assert tag not in {"script", "iframe", "object", "embed", "link", "base", "form"}
        assert not [name for name in attributes if name.startswith("on")]
        assert "url(" not in (attributes.get("style") or "")
        for name in {"src", "href", "srcset", "data", "action", "poster"} & set(attributes):
            address = attributes[name] or ""
            assert address.startswith("data:image/png;base64,") or address[1:] in identities
        for name in {"aria-labelledby"} & set(attributes):
            assert attributes[name] in identities
        assert tag != "img" or attributes["alt"]


def test_the_style_loads_nothing() -> None:
    style = re.findall(r"<style>(.*?)</style>", render(report()), re.DOTALL)
    assert len(style) == 1
    assert not re.search(r"@import|url\(|https?:", style[0])


@pytest.mark.parametrize("case", CASES)
def test_headings_descend_and_tables_are_named(case: str) -> None:
    tags = [tag for tag, _ in page(case).tags]
    levels = [int(tag[1]) for tag in tags if tag in {"h1", "h2", "h3"}]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert tags.count("caption") == tags.count("table") > 5


def test_the_numbers_are_those_of_the_records() -> None:
    inputs = report()
    ours, theirs = inputs.evaluation.candidate, inputs.evaluation.champion
    assert theirs is not None
    shown = [share(cell) for cell in page("promoted").row("Accuracy", 4)]
    assert shown == pytest.approx(
        [ours.accuracy, theirs.accuracy, ours.accuracy - theirs.accuracy], abs=5.1e-5
    )
    for rule in inputs.release.verdict.rules:
        value, limit, outcome = page("promoted").row(rule.name.replace("_", " "), 4)
        assert [float(text.replace("−", "-")) for text in (value, limit)] == pytest.approx(
            [rule.value, rule.limit], rel=1e-3
        )
        assert outcome == ("✓ passed" if rule.passed else "✕ failed")
        assert " ".join(unbroken(rule.explanation).split()) in page("promoted").text


def test_a_comparison_shows_how_many_there_were_and_what_was_needed() -> None:
    (look,) = report().release.verdict.looks
    shown = page("promoted")
    assert shown.row("Comparison with this version", 2)[0] == f"{look.number:,} of {look.horizon:,} planned"
    spent, of = shown.row("Error probability spent so far", 2)[0].split(" of ")
    assert 0 < float(spent.rstrip(" %")) <= float(of.rstrip(" %"))
    assert look.boundary is not None
    assert shown.row("Needed: z above", 2)[0] == f"{look.boundary:.2f}"


def test_rows_that_were_left_out_are_counted_and_listed_with_the_reason() -> None:
    inputs = report()
    dropped = ("a.png: a copy of b.png", "a.png: a copy of b.png", "scan-90.png: 7x8 pixels, expected 8x8")
    shown = Page(render(replace(inputs, dataset=inputs.dataset.model_copy(update={"dropped": dropped}))))
    assert shown.row("Rows left out", 2) == ["3"]
    assert "a.png: a copy of b.png (2 times)" in shown.text
    assert "scan-90.png: 7x8 pixels, expected 8x8" in shown.text


def test_every_class_is_shown_the_worst_change_first() -> None:
    inputs = report()
    theirs = {class_score.name: class_score for class_score in inputs.evaluation.champion.classes}
    for class_score in inputs.evaluation.candidate.classes:
        recall, change, _, precision, f1, rows = page("promoted").row(class_score.name, 7)
        numbers = [share(text) for text in (recall, precision, f1)]
        assert numbers == pytest.approx(
            [class_score.recall, class_score.precision, class_score.f1], abs=5.1e-5
        )
        assert share(change) == pytest.approx(
            class_score.recall - theirs[class_score.name].recall, abs=5.1e-5
        )
        assert int(rows) == class_score.rows
    changes = [share(row[2]) for row in page("promoted").rows if len(row) == 7 and row[0] in DIGITS]
    assert changes == sorted(changes)
    assert len(changes) == 10


def test_the_matrix_is_the_record_and_many_classes_become_pairs() -> None:
    shown = [row[1:] for row in page("promoted").rows if len(row) == 11 and row[0] in DIGITS]
    counts = [[0 if text == "·" else int(text) for text in row] for row in shown]
    assert counts == [list(row) for row in report().evaluation.candidate.confusion]
    worst = confused_pairs(report(names=KINDS).evaluation.candidate)[0]
    assert page("120 classes").row(f"{worst.truth} → {worst.predicted}", 4)[0] == str(worst.count)
    assert len([row for row in page("120 classes").rows if len(row) == 7 and row[0] in KINDS]) == 120


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_comes_first(case: str) -> None:
    verdict = report(**CASES[case]).release.verdict
    text = page(case).text
    summary = " ".join(unbroken(verdict.summary).split())
    badge = "Promoted" if verdict.promote else "Refused"
    assert 0 < text.index(badge) < text.index(summary) < text.index("Latency")


def test_a_passed_gate_without_the_alias_is_no_promotion() -> None:
    inputs = report()
    moved = replace(inputs, release=inputs.release.model_copy(update={"alias": "challenger"}))
    assert "passed the gate but is not the champion" in Page(render(moved)).text


@pytest.mark.parametrize("total", [93.37, 93.371, 97.2, 12_345.6])
def test_the_time_shown_adds_up_to_the_whole(total: float) -> None:
    inputs = report()
    parts = inputs.release.goodput.parts
    scale = total / 93.37 if total > 1000 else 1
    goodput = Goodput(total_s=total, parts={name: seconds * scale for name, seconds in parts.items()})
    shown = Page(render(replace(inputs, release=inputs.release.model_copy(update={"goodput": goodput}))))
    start = next(at for at, row in enumerate(shown.rows) if row == ["Part", "Seconds", "Share"])
    stop = next(at for at, row in enumerate(shown.rows) if at > start and row[0] == "all")
    seconds = [float(row[1].replace(",", "")) for row in shown.rows[start + 1 : stop]]
    whole = float(shown.rows[stop][1].replace(",", ""))
    assert sum(seconds) == pytest.approx(whole, abs=1e-6)
    assert whole == pytest.approx(total, abs=0.5 if total > 10_000 else 0.051)
    assert sum(share(row[2]) for row in shown.rows[start + 1 : stop]) == pytest.approx(1)
    named = dict(zip((row[0] for row in shown.rows[start + 1 : stop]), seconds, strict=True))
    assert named["compute"] == pytest.approx(goodput.parts["compute"], abs=1 if total > 10_000 else 0.1)
    assert ("not accounted for" in named) == (total == 97.2)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12).filter(any), st.integers(0, 10**6))
def test_rounding_together_keeps_the_sum_and_stays_near(values: list[float], total: int) -> None:
    rounded = round_together(values, total)
    assert sum(rounded) == total
    for value, rounded_value in zip(values, rounded, strict=True):
        assert abs(rounded_value - value * total / sum(values)) <= 1 + 1e-6


@pytest.mark.parametrize(
    ("confidence", "shown"), [(0.95, "95"), (0.995, "99.5"), (1 - 1e-4, "99.99"), (0.975, "97.5")]
)
def test_a_level_has_all_its_digits(confidence: float, shown: str) -> None:
    assert level(confidence) == f"{shown}\N{NO-BREAK SPACE}%"


def test_text_from_data_stays_text() -> None:
    text = render(hostile())
    shown = Page(text)
    tame = page("promoted")
    assert {tag for tag, _ in shown.tags} <= {tag for tag, _ in tame.tags}
    assert "<script" not in text
    assert not [tag for tag, attributes in shown.tags if "onerror" in attributes]
    assert all(
        (attributes["src"] or "").startswith("data:") for tag, attributes in shown.tags if tag == "img"
    )
    assert shown.text.count(printable(" ".join(HOSTILE.split()))) > 15
    assert printable(text) == text
    text.encode("utf-8")


def test_markdown_says_the_same_and_can_not_be_injected() -> None:
    inputs = report()
    text = markdown(inputs)
    assert text.startswith("# Promoted: Version 7 replaces version 6 as champion\n")
    once = as_sentence(reason(inputs.release.verdict, inputs.release.alias)).replace("_", "\\_")
    assert text.count(once) == 1
    for rule in inputs.release.verdict.rules:
        assert f"| {rule.value:.4g} | {rule.limit:.4g} | passed |".replace(" -", " −") in text
    assert "| **all** | **93.4** |" in text
    attacked = markdown(hostile())
    assert not re.search(r"(?<!\\)<", attacked)
    assert "\\u202e" in attacked
    assert printable(attacked) == attacked
    widths = {line.count("|") - line.count("\\|") for line in attacked.splitlines() if line.startswith("|")}
    assert widths == {3, 4, 5}
    assert "Champion" not in markdown(report(with_champion=False)).split("## Scores")[1]


@pytest.mark.extended
@pytest.mark.parametrize("case", ["promoted", "first", "120 classes"])
def test_figures_are_pictures(case: str, tmp_path: Path) -> None:
    drawn = figures(report(**CASES[case]), tmp_path / "figures")
    assert [path.name for path in drawn] == [
        "learning_curves.png",
        "confusion_matrix.png",
        "worst_mistakes.png",
    ]
    for path in drawn:
        with Image.open(path) as picture:
            picture.load()
            assert picture.format == "PNG"
            assert 300 < picture.width < 2000 > picture.height > 150
            assert len(set(picture.convert("L").getdata())) > 10


def test_hostile_names_can_be_drawn(tmp_path: Path) -> None:
    assert len(figures(hostile(), tmp_path)) == 3


def test_a_prediction_grid_tells_right_from_wrong(tmp_path: Path) -> None:
    pixels = list(digits_run()[1][0][:9])
    right, wrong = ([str(at)] * 9 for at in (1, 2))
    colour = np.repeat(pixels[0], 3, axis=0)
    for name, images, predictions in (("right", pixels, right), ("wrong", [colour] * 9, wrong)):
        with Image.open(prediction_grid(images, right, predictions, tmp_path / f"{name}.png")) as picture:
            red, green, _ = np.asarray(picture.convert("RGB"), dtype=int).reshape(-1, 3).T
        assert ((red - green).max() > 80) == (name == "wrong")
        assert ((green - red).max() > 60) == (name == "right")


def test_a_page_without_mistakes_epochs_or_commands_says_so() -> None:
    inputs = report()
    perfect = inputs.evaluation.model_copy(update={"mistakes": ()})
    trained = inputs.trained.model_copy(update={"history": ()})
    bare = replace(
        inputs, evaluation=perfect, trained=trained, example_pictures=(), changes=(), commands=(), settings={}
    )
    text = Page(render(bare)).text
    for sentence in (
        "No epoch was finished",
        "No pictures of mistakes",
        "Nothing needs to be done",
        "first run of the recipe",
    ):
        assert sentence in text


def test_one_epoch_and_diverged_values_are_drawn(tmp_path: Path) -> None:
    first, second, *_ = report().trained.history
    broken = EpochMetrics.model_construct(**(second.model_dump() | {"validation_loss": float("nan")}))
    for history in ((first,), (first, broken)):
        inputs = report()
        trained = inputs.trained.model_copy(update={"history": history, "selected_epoch": 1})
        changed = replace(inputs, trained=trained)
        paths = [
            attributes["d"] or ""
            for tag, attributes in Page(render(changed)).tags
            if tag == "path" and "class" in attributes
        ]
        assert len(paths) == 4
        assert not [path for path in paths if "nan" in path]
        assert figures(changed, tmp_path)


def test_pictures_must_match_examples() -> None:
    with pytest.raises(ValueError, match="0 pictures for 12 examples; give one picture for each"):
        replace(report(), example_pictures=())


def test_text_has_enough_contrast_in_light_and_dark() -> None:
    """WCAG 2.2, 1.4.3: a contrast of 4.5 to 1 for text."""
    style = (Path(render.__code__.co_filename).parent / "templates" / "style.css").read_text()
    themes = [
        dict(re.findall(r"--([\w-]+): (#\w{6})", block))
        for block in style.split("prefers-color-scheme: dark")
    ]
    assert len(themes) == 2
    pairs = [
        (text, ground) for text in ("ink", "soft", "accent", "bad", "warn") for ground in ("paper", "wash")
    ]
    for theme in themes:
        for text, ground in [*pairs, ("accent", "good-wash"), ("warn", "warn-wash")]:
            darker, lighter = sorted((luminance(theme[text]), luminance(theme[ground])))
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (text, ground)


def luminance(colour: str) -> float:
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize(
    ("uri", "base", "command"),
    [
        (None, "http://127.0.0.1:5000", "EVERGREEN_HOME=/h evergreen ui"),
        ("http://me:secret@mlflow:5000/", "http://mlflow:5000", ""),
        (
            "postgresql://me:secret@db/m",
            "http://127.0.0.1:5000",
            "mlflow ui --backend-store-uri postgresql://",
        ),
    ],
)
def test_the_report_links_run_version_and_page(uri: str | None, base: str, command: str) -> None:
    release = report().release.model_copy(update={"model": "a b", "version": "7", "mlflow_run_id": "r1"})
    links, needed = where_to_look(release, "3", uri, Path("/h"))
    assert f"[MLflow run]({base}/#/experiments/3/runs/r1?workflowType=machine_learning)" in links
    assert f"[model version]({base}/#/models/a%20b/versions/7?workflowType=machine_learning)" in links
    assert (
        f"[report page]({base}/#/experiments/3/runs/r1/artifacts/report.html?workflowType=machine_learning)"
        in links
    )
    assert needed.startswith(command)
    assert bool(needed) == bool(command)
    assert "secret" not in links + needed
    text = markdown(report(), links, needed)
    assert links in text
    assert needed in text
