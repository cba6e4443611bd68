"""The report of one retraining run: a self-contained HTML page, a short Markdown version, and pictures.

`render` of :mod:`tasks.report_page.page` and `markdown` of :mod:`tasks.report_page.artifact` take a `ReportInputs`;
:mod:`tasks.report_page.figures` draws pictures for trackers. Commands that only print import
:mod:`tasks.report_page.wording`, so this file imports nothing: the page takes a tenth of a second to import.
"""
