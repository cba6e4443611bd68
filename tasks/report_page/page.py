"""The report page of a run: one self-contained HTML file, from verdict to settings."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from tasks.problems import template_of
from tasks.report_page import charts, tables, wording
from tasks.report_page.data_views import view_of
from tasks.report_page.inputs import ReportInputs
from tasks.report_page.looks import look_facts
from tasks.report_page.profile_view import profile_context
from tasks.report_page.sections import sections_of
from training.printable import printable
from training.records import DatasetVersion, Split
from training.storage.files import digest_json
from training.trainers.replay_outcome import spelled

_IMPORTANCES = (("importances", "Columns"),)
_SHOWN_IMPORTANCES = 20


def render(inputs: ReportInputs) -> str:
    """The page as HTML text. Text from data is escaped; the page has no scripts and loads nothing from elsewhere.

    Control characters, and text that is not valid Unicode (file names in another encoding), are shown escaped.
    """
    return printable(_environment().get_template("page.html.j2").render(_context(inputs)))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("tasks.report_page"), PackageLoader("tasks.problems", "")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("percent", "level", "points", "number", "duration", "size", "unbroken"):
        environment.filters[name] = getattr(wording, name)
    return environment


def _context(inputs: ReportInputs) -> dict[str, Any]:
    """The template's variables: the records themselves, and values derived from them."""
    sections, view, words = sections_of(inputs.dataset.problem), view_of(inputs.dataset), inputs.words
    return {
        "inputs": inputs,
        "release": inputs.release,
        "verdict": inputs.release.verdict,
        "trained": inputs.trained,
        "evaluation": inputs.evaluation,
        "dataset": inputs.dataset,
        "created": inputs.created,
        "headline": wording.headline(inputs.release),
        "summary": wording.summary(inputs.release.verdict, inputs.release.alias),
        "words": words,
        "measure": sections.MEASURE,
        "contents": sections.CONTENTS + (_IMPORTANCES if inputs.importances else ()),
        "problem_template": template_of(inputs.dataset.problem),
        "tiles": sections.tiles(inputs),
        "corrected": sections.corrected(inputs),
        "intervals": charts.intervals(inputs.evaluation, inputs.release.version, sections.MEASURE),
        "curves": charts.learning_curves(
            inputs.trained.history, inputs.trained.selected_epoch, sections.MEASURE, words.trainer
        ),
        "score_rows": tables.score_rows(inputs.evaluation, sections.measures(inputs)),
        "agreement": sections.agreement(inputs.evaluation),
        "importances": _importances(inputs),
        "looks": look_facts(inputs.release.verdict),
        "lineage": _lineage(inputs),
        "policy": {
            name: value
            for name, value in inputs.release.verdict.policy.items()
            if f"gate.{name}" not in sections.WITHOUT_MEANING
            and not isinstance(value, list)
            and value is not None
        },
        "settings": _by_section(inputs.settings, sections.WITHOUT_MEANING),
        **sections.context(inputs),
        **view.data(),
        **_time_context(inputs),
        **_data_context(inputs.dataset),
        **profile_context(inputs.release, inputs.dataset),
    }


def _importances(inputs: ReportInputs) -> list[tuple[str, float, float]]:
    """(column, share of the gain, width of its bar in percent), the largest first."""
    pairs = sorted(inputs.importances.items(), key=lambda pair: -pair[1])[:_SHOWN_IMPORTANCES]
    largest = pairs[0][1] if pairs else 1.0
    return [(name, share, round(100 * share / (largest or 1.0), 1)) for name, share in pairs]


def _time_context(inputs: ReportInputs) -> dict[str, Any]:
    """The time bar of the whole run, and that of the training alone if the two differ."""
    whole, training = inputs.release.goodput, inputs.trained.goodput
    colours = tables.part_colours(whole, training)
    bars = [("The whole run", whole)] + ([("Training alone", training)] if training != whole else [])
    return {
        "time_bars": [
            {
                "title": title,
                "parts": tables.goodput_parts(goodput, colours),
                "total": tables.total_seconds(goodput),
            }
            for title, goodput in bars
        ]
    }


def _lineage(inputs: ReportInputs) -> list[tuple[str, str, bool]]:
    """(name, value, whether the value is a digest) of everything that the model was made from."""
    parts, release = inputs.ingredients, inputs.release
    recipe = parts.get("recipe", {})
    versions = ", ".join(f"{name} {version}" for name, version in parts.get("versions", {}).items())
    rows = [
        ("Run key", release.run_key, True),
        ("Dataset fingerprint", release.dataset_fingerprint, True),
        ("Source", inputs.dataset.source_origin, False),
        ("Source digest", inputs.dataset.source_digest, True),
        ("Recipe", str(recipe.get("name", release.recipe)), False),
        ("Recipe digest", str(recipe.get("source", "")), True),
        ("Code digest", _code_digest(parts.get("code", "")), True),
        ("Weights digest", release.weights_digest, True),
        ("Training started from", release.initial, False),
        ("Library versions", versions, False),
        ("Reproducible", spelled(inputs.trained.reproducible, inputs.trained.reproducible_reason), False),
        ("Registered as", f"{release.model}, version {release.version}", False),
        ("MLflow run", release.mlflow_run_id, True),
    ]
    return [row for row in rows if row[1]]


def _code_digest(code: str | dict[str, str]) -> str:
    """One digest of all modules that count for the run key, of which the ingredients have a digest each."""
    return code if isinstance(code, str) else digest_json(code)


def _data_context(dataset: DatasetVersion) -> dict[str, Any]:
    splits: tuple[Split, ...] = tuple(split for split in ("train", "test") if split in dataset.parts)
    counts = [dataset.label_counts.get(split, ()) for split in splits]
    return {
        "splits": splits,
        "labels": list(zip(dataset.classes, *counts, strict=False)) if all(counts) else [],
        "largest_count": max((max(split_counts, default=0) for split_counts in counts), default=0) or 1,
        "dropped": Counter(dataset.dropped).most_common(),
    }


def _by_section(settings: dict[str, Any], left_out: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Settings grouped by section, in the order given, without those named in `left_out`."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for dotted, value in settings.items():
        if dotted in left_out:
            continue
        section, _, name = dotted.rpartition(".")
        sections.setdefault(section or "run", []).append((name, _spell(value)))
    return sections


def _spell(value: Any) -> str:
    """A setting's value as a user writes it on the command line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and math.isfinite(value) else str(value)
