"""`evergreen history` as a user meets it, from the records in a home."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from flows.cli.history import data_text, metric_text
from flows.cli.main import main as cli
from training.errors import EXIT_BAD_SETTING, EXIT_OK
from training.night_record import NightRecord
from training.storage.night_files import keep_sent, keep_unsent
from training.storage.paths import Home


def night(day: int, **facts: Any) -> NightRecord:
    began = datetime(2026, 11, day, 3, 30, tzinfo=UTC)
    about = {"home": "0" * 16, "recipe": "coins", "model": "coins", "began_at": began}
    return NightRecord(night=f"202611{day}T033000", **about, **facts)


FIRST = night(21, outcome="first", dataset_fingerprint="a", train_rows=240, test_rows=60, version="1")
REFUSED = night(22, outcome="refused", cause="training.round: did you mean \x1b[31mtraining.rounds?")


def test_the_newest_night_is_the_last_line(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    keep_unsent(home, REFUSED)
    keep_sent(home, FIRST)
    assert cli(["history", "coins", "--json"]) == EXIT_OK
    *table, listed = capsys.readouterr().out.splitlines()
    assert [NightRecord.model_validate(entry) for entry in json.loads(listed)] == [FIRST, REFUSED]
    lines = [line for line in table if line.startswith("2026-")]
    assert ["first" in lines[0], "refused" in lines[1]] == [True, True]
    assert "did you mean \\u001b[31mtraining.rounds?" in lines[1]  # the terminal does not obey it

    assert cli(["history", "coins", "--last", "1", "--json"]) == EXIT_OK
    assert json.loads(capsys.readouterr().out.splitlines()[-1])[0]["night"] == REFUSED.night


def test_an_unknown_model_is_refused(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    keep_sent(home, FIRST)
    assert cli(["history", "coin"]) == EXIT_BAD_SETTING
    assert "model 'coin': no such model or recipe. Models with nights here: coins." in capsys.readouterr().err


def test_data_and_metric_are_said_in_words() -> None:
    again = night(23, dataset_fingerprint="a", train_rows=240, test_rows=60)
    grown = night(24, dataset_fingerprint="b", train_rows=1000, test_rows=60, data_changes="+760 rows")
    assert data_text(FIRST, None) == "300 rows"
    assert data_text(again, FIRST) == "300 rows, as the night before"
    assert data_text(grown, FIRST) == "1,060 rows, +760 rows"
    assert data_text(REFUSED, FIRST) == "not read"
    assert metric_text(REFUSED) == ""
    measured = night(25, metric="rmse", value=4.25, champion_value=5.0)
    assert metric_text(measured) == "RMSE 4.25, champion 5"
    assert metric_text(night(26, metric="cost", value=1234.5)) == "cost 1,234"


def test_history_imports_no_heavy_library() -> None:
    code = (
        "import sys, flows.cli.history, tasks.history\n"
        "print(sorted({'torch', 'ray', 'mlflow', 'prefect', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
