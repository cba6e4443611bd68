"""An MLflow server that does not answer holds no search: results are sent at its end."""

from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE

from tasks import search as module


class Search(module._Running):
    """A search whose results are numbers, without records and without a progress bar."""

    def __init__(self, error: Exception) -> None:
        self.planned: Any = SimpleNamespace(plans=[None])
        self.search: Any = SimpleNamespace(results=(), with_result=lambda _: self.search)
        self._progress: Any = SimpleNamespace(ended=lambda _: None)
        self._began = {}
        self._published = set()
        self.error, self.asked = error, 0

    def _save(self) -> None:
        pass

    def _publish(self, result: Any, outage_s: float = 0.0) -> None:  # noqa: ARG002
        self.asked += 1
        raise self.error

    def _open(self, client: Any) -> None:  # noqa: ARG002
        self.asked += 1
        raise self.error


AWAY = MlflowException("the server went away", error_code=TEMPORARILY_UNAVAILABLE)


def test_after_the_first_failure_mlflow_is_not_asked_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "result_of_ended", lambda *_: SimpleNamespace(number=1))
    search = Search(AWAY)
    for number in (1, 2, 3):
        search._ended(SimpleNamespace(number=number), crashed=False)  # type: ignore[arg-type]
    assert search.asked == 1


def test_a_search_begins_without_mlflow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "connect_once", lambda _: None)
    search = Search(AWAY)
    search.begin(search._progress)
    assert "The search begins" in caplog.text
    with pytest.raises(ValueError, match="a bug"):
        Search(ValueError("a bug")).begin(search._progress)
