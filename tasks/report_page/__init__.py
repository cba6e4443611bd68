"""The report of one retraining run: a page to send to a colleague, short Markdown, and pictures.

`render` and `markdown` take one :class:`ReportInputs`; pictures for trackers: :mod:`tasks.report_page.figures`.
"""

from tasks.report_page.artifact import markdown
from tasks.report_page.inputs import ReportInputs
from tasks.report_page.page import render

__all__ = ["ReportInputs", "markdown", "render"]
