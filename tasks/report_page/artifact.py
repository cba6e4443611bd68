"""The report as short Markdown, for user interfaces that show an artifact instead of an HTML page."""

from collections.abc import Sequence

from tasks.report_page import tables
from tasks.report_page.inputs import ReportInputs
from tasks.report_page.looks import look_facts
from tasks.report_page.sections import sections_of
from tasks.report_page.wording import duration, headline, level, number, reason, sentence
from training.printable import escape_markdown as escape
from training.printable import printable


def markdown(inputs: ReportInputs, links: str = "", command: str = "") -> str:
    """Verdict, links, rules, scores, goodput and changes as Markdown. Text from data is escaped.

    `links` is Markdown; `command` is the command that has to run for the links to open.
    """
    release = inputs.release
    candidate = inputs.evaluation.candidate
    sections = sections_of(inputs.dataset.problem)
    measure = sections.MEASURE
    blocks = [
        *_verdict(inputs, links, command),
        f"{sections.summary_sentence(inputs)} "
        f"({level(candidate.confidence)} confidence: {measure.spell(candidate.low)} to "
        f"{measure.spell(candidate.high)}). The run of *{escape(release.recipe)}* took "
        f"{duration(release.goodput.total_s)}.",
        "## Gate",
        _table(("Rule", "Value", "Limit", "Outcome"), _rules(inputs)),
        *_comparisons(inputs),
        "## Scores",
        _scores(inputs, sections.measures(inputs)),
        "## Time",
        _time(inputs),
    ]
    if inputs.trained.reproducible is False:
        blocks += ["## Not reproducible", escape(inputs.trained.reproducible_reason)]
    if release.data is not None and release.data.changes:
        blocks += [
            "## Changed since the champion's data",
            "\n".join(f"- {escape(change.sentence)}" for change in release.data.changes),
        ]
    if inputs.changes:
        blocks += [
            "## Changed since the last run",
            "\n".join(f"- {escape(change)}" for change in inputs.changes),
        ]
    return printable("\n\n".join(blocks)) + "\n"


def short_markdown(inputs: ReportInputs, links: str = "", command: str = "") -> str:
    """Verdict and links alone, for a server that refuses the whole of :func:`markdown` as too large."""
    rest = "The other parts are left out, because Prefect's server refused the whole report as too large."
    return printable("\n\n".join([*_verdict(inputs, links, command), rest])) + "\n"


def _verdict(inputs: ReportInputs, links: str, command: str) -> list[str]:
    headlined = headline(inputs.release)
    return [
        f"# {headlined.badge}: {escape(headlined.title)}",
        escape(sentence(reason(inputs.release.verdict, inputs.release.alias))),
        *_links(links, command),
    ]


def _links(links: str, command: str) -> list[str]:
    if not links:
        return []
    return [f"{links} (after `{command.replace('`', '')}`)" if command else links]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table whose first column is text and whose other columns are numbers; the cells are escaped already."""
    lines = [head, (":--", *("--:" for _ in head[1:])), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _rules(inputs: ReportInputs) -> list[tuple[str, ...]]:
    return [
        (
            f"{escape(rule.name.replace('_', ' '))}: {escape(rule.explanation)}",
            number(rule.value),
            number(rule.limit),
            "passed" if rule.passed else "**failed**",
        )
        for rule in inputs.release.verdict.rules
    ]


def _comparisons(inputs: ReportInputs) -> list[str]:
    return [
        _table((escape(look.title), "Value"), [(escape(name), escape(value)) for name, value in look.facts])
        for look in look_facts(inputs.release.verdict)
    ]


def _scores(inputs: ReportInputs, measures: Sequence[tables.Measured]) -> str:
    rows = tables.score_rows(inputs.evaluation, measures)
    if inputs.evaluation.champion is None:
        return _table(("Measure", "Candidate"), [(row.name, row.candidate) for row in rows])
    columns: list[tuple[str, ...]] = [
        (row.name, row.candidate, row.champion, f"{row.change} {row.unit}".strip()) for row in rows
    ]
    champion = f"Champion {escape(str(inputs.evaluation.champion_version))}"
    return _table(("Measure", f"Candidate {escape(inputs.release.version)}", champion, "Change"), columns)


def _time(inputs: ReportInputs) -> str:
    goodput = inputs.release.goodput
    rows = [(escape(part.name), part.seconds, part.share) for part in tables.goodput_parts(goodput)]
    return _table(
        ("Part", "Seconds", "Share"), [*rows, ("**all**", f"**{tables.total_seconds(goodput)}**", "")]
    )
