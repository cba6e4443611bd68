"""The report of one retraining run: a self-contained HTML page, a short Markdown version, and pictures.

`render` and `markdown` take a :class:`ReportInputs`; :mod:`tasks.report_page.figures` draws pictures for trackers.
"""

from tasks.report_page.artifact import markdown, short_markdown
from tasks.report_page.inputs import ReportInputs
from tasks.report_page.page import render

__all__ = ["ReportInputs", "markdown", "render", "short_markdown"]
