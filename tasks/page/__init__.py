"""The report of one retraining run: a page to send to a colleague, short Markdown, and pictures.

`render` and `markdown` take one :class:`ReportInputs`; pictures for trackers: :mod:`tasks.page.figures`.
"""

from tasks.page.artifact import markdown
from tasks.page.inputs import ReportInputs
from tasks.page.page import render

__all__ = ["ReportInputs", "markdown", "render"]
