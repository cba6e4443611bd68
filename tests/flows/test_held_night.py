"""Nights of a table: its weights are in grams one night, which is held until a person accepts the data."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
from prefect.client.schemas.sorting import FlowRunSort

from flows.cli.main import main
from tasks.registry.acceptance import acceptances_in
from tasks.registry.aliases import champion_of
from tasks.trackers.mlflow_run import DATA_TAG, connect
from training.errors import EXIT_BAD_SETTING, EXIT_HELD, EXIT_OK
from training.storage.paths import HOME_VARIABLE, Home

RECIPE = """
from evergreen import Recipe, Regression, Table, XGBoost

recipe = Recipe(
    name="parcels",
    source=Table("parcels.csv", target="price"{key}),
    problem=Regression(),
    trainer=XGBoost(rounds=5, max_depth=3),
)
"""
QUICK = [
    "--set=scaling.num_workers=0",
    "--set=scaling.use_gpu=no",
    "--set=tracking.system_metrics=false",
]


class Nights:
    """A recipe in a folder, the table that it reads, and the commands of each night."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], key: str = ', key="number"'):
        self.folder, self.capsys = folder, capsys
        self.home = Home(folder / "home")
        folder.mkdir(exist_ok=True)
        (folder / "parcels.py").write_text(RECIPE.format(key=key))

    def export(self, rows: int, unit: float = 1.0) -> None:
        """Write the first rows of a table that never changes otherwise; weights are given in kilograms / `unit`."""
        draw = np.random.default_rng(0)
        weights, towns = draw.gamma(4, 3, 1000), draw.choice(["Ulm", "Bonn", "Jena"], 1000)
        prices = 3 + 0.5 * weights + draw.normal(0, 0.2, 1000)
        table = list(zip(range(1000), weights * unit, towns, prices, strict=True))[:rows]
        lines = [f"{number},{weight:.4f},{town},{price:.3f}" for number, weight, town, price in table]
        (self.folder / "parcels.csv").write_text("\n".join(["number,weight,town,price", *lines, ""]))

    def evergreen(self, *arguments: str) -> tuple[int, Any, str]:
        """Exit status, last line as JSON, and the whole standard output and error of a command."""
        self.capsys.readouterr()
        status = main([*arguments, "--json"])
        text = self.capsys.readouterr()
        return status, json.loads(text.out.splitlines()[-1]), text.out + text.err

    def retrain(self, *settings: str) -> tuple[int, Any, str]:
        return self.evergreen("retrain", str(self.folder / "parcels.py"), *QUICK, *settings)


def newest_state() -> tuple[str, str]:
    """Type and name of the state of the retraining that began last."""
    retrainings = FlowRunFilter(name=FlowRunFilterName(any_=["retrain-parcels"]))
    with get_client(sync_client=True) as client:
        run, *_ = client.read_flow_runs(
            flow_run_filter=retrainings, sort=FlowRunSort.START_TIME_DESC, limit=1
        )
    assert run.state is not None
    return run.state.type.value, str(run.state.name)


@pytest.fixture
def nights(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    prefect_harness: None,
) -> Nights:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    return Nights(tmp_path, capsys)


def test_grams_for_kilograms_are_held_until_a_person_accepts_them(nights: Nights) -> None:
    nights.export(400)
    status, first, text = nights.retrain()
    assert (status, first["verdict"]) == (EXIT_OK, "promoted")
    assert "compared with nothing, as there is no champion" in text
    status, refused, _ = nights.evergreen("accept", "parcels", "--why", "new scales")
    assert status == EXIT_BAD_SETTING
    assert "no data are held" in refused["error"]

    nights.export(410, unit=1000)
    status, held, text = nights.retrain()
    assert status == EXIT_HELD
    assert [change["what"] for change in held["data"]["changes"]] == ["scale"]
    assert "scale of weight" in text
    assert 'evergreen accept parcels --why "..."' in held["error"]
    assert newest_state() == ("COMPLETED", "Held")
    client = connect(None, nights.home)
    assert champion_of(client, "parcels") == first["version"]
    assert len(client.search_model_versions("name = 'parcels'")) == 1
    runs = client.search_runs(
        client.get_experiment_by_name("parcels").experiment_id, order_by=["start_time DESC"]
    )
    assert [run.info.status for run in runs] == ["KILLED", "FINISHED"]
    assert "weight" in runs[0].data.tags[DATA_TAG]
    assert nights.retrain()[:2] == (status, held)  # the same data once more
    status, plan, _ = nights.evergreen("plan", str(nights.folder / "parcels.py"), *QUICK)
    assert (status, plan["outcome"]) == (EXIT_OK, held["error"])
    assert nights.evergreen("verify", "parcels")[0] == EXIT_OK

    status, accepted, _ = nights.evergreen("accept", "parcels", "--why", "new scales")
    assert (status, accepted["why"]) == (EXIT_OK, "new scales")
    assert (
        acceptances_in(client.get_registered_model("parcels").tags)[0].fingerprint == accepted["fingerprint"]
    )
    refused = "--set=gate.floor=1.0"  # the champion stays
    status, second, text = nights.retrain(refused)
    assert (status, second["verdict"]) == (EXIT_OK, "kept")
    assert "new scales" in text

    nights.export(415, unit=1000)  # as the accepted data, and not as the champion's
    status, third, text = nights.retrain(refused)
    assert (status, third["version"]) == (EXIT_OK, "3")
    assert "new scales" in text
    nights.export(416, unit=1e6)
    assert nights.retrain(refused)[0] == EXIT_HELD


def test_rows_that_a_job_rewrote_are_held_where_they_have_no_key(nights: Nights) -> None:
    (nights.folder / "parcels.py").write_text(RECIPE.format(key=', drop=["number"]'))
    nights.export(400)
    nights.retrain()
    nights.export(400, unit=1.001)
    status, held, _ = nights.retrain()
    assert status == EXIT_HELD
    assert [change["what"] for change in held["data"]["changes"]] == ["identity"]
    assert nights.retrain("--set=data.change_limits=identity=inf")[0] == EXIT_OK


def test_growth_says_nothing_and_a_held_night_is_forgotten_after_the_repair(nights: Nights) -> None:
    nights.export(400)
    nights.retrain()
    nights.export(405, unit=1000)
    assert nights.retrain()[0] == EXIT_HELD
    nights.export(420)
    status, _, text = nights.retrain()
    assert status == EXIT_OK
    assert "much as the data of the champion" in text
    assert nights.evergreen("accept", "parcels", "--why", "?")[0] == EXIT_BAD_SETTING


def test_a_changed_night_that_is_told_goes_on(nights: Nights) -> None:
    nights.export(400)
    nights.retrain()
    nights.export(405, unit=1000)
    status, release, _ = nights.retrain("--set=data.changes=tell")
    assert status == EXIT_OK
    assert re.search("column 'weight' is .* times as large", release["data"])
    report = Path(release["report"]).read_text()
    assert "times as large" in report
    assert "Profile of all rows" in report
