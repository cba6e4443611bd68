"""Count values of category columns that the model did not learn, and name them in one warning for each column."""

import json
import logging
from collections import Counter

from tasks.inference.inputs import Batch

log = logging.getLogger("evergreen.predict")

_SHOWN = 5


class NewCategories:
    """Counts rows with a new category, by column, and collects examples of the values with their first location."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self._values: dict[str, dict[str, str]] = {}  # by column: location of the first row by value

    def add(self, batch: Batch) -> None:
        """Count the usable rows of a batch; a batch of images has no categories."""
        if "unknown" not in batch:
            return
        chosen = (batch["unknown"] != "") & (batch["error"] == "")
        for where, text in zip(batch["where"][chosen], batch["unknown"][chosen], strict=True):
            for column, value in json.loads(text).items():
                self.rows[column] += 1
                values = self._values.setdefault(column, {})
                if len(values) < _SHOWN:
                    values.setdefault(value, str(where))

    def warn(self) -> None:
        """Log a warning for each column with new categories."""
        for column, values in self._values.items():
            named = ", ".join(f"{value!r} ({where})" for value, where in values.items())
            log.warning(
                "column %r: %d rows have a category that the model did not learn, such as %s; they were scored as rows "
                "of an unknown category. If they are no misspellings, retrain with rows of these categories.",
                column,
                self.rows[column],
                named,
            )
