"""`evergreen history` after real nights: a first champion, a candidate, no change, bad data, a bad setting."""

import json
from pathlib import Path

import numpy as np
import pytest

from flows.cli.main import main as cli
from flows.local import api
from flows.retrain import retrain
from tasks.trackers.mlflow_run import connect
from tasks.trackers.nights import CAUSE_TAG, experiment_of_nights
from training.errors import EXIT_BAD_SETTING, EXIT_OK, DataError, SettingError
from training.storage.paths import HOME_VARIABLE, Home

RECIPE = """
from evergreen import Classification, Recipe, Table, XGBoost

recipe = Recipe("coins", source=Table("coins.csv", target="side"), problem=Classification(), trainer=XGBoost())
"""
SETTINGS = {
    "scaling": {"num_workers": 0, "use_gpu": "no"},
    "training": {"rounds": 5},
    "tracking": {"system_metrics": False},
    "gate": {"floor": 0.5},
}


def write_table(folder: Path, rows: int, damaged: bool = False) -> None:
    """Coins whose side follows from their weight, nearly always."""
    random = np.random.default_rng(0)
    weight = random.normal(size=rows)
    heads = weight + 0.1 * random.normal(size=rows) > 0
    lines = [f"{value:.6f},{'heads' if head else 'tails'}" for value, head in zip(weight, heads, strict=True)]
    if damaged:
        lines[7] = "0.5"
    (folder / "coins.csv").write_text("\n".join(["weight,side", *lines]) + "\n")


@pytest.mark.extended
@pytest.mark.usefixtures("prefect_harness")
def test_five_nights_are_five_lines_with_their_true_causes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path / "home")
    monkeypatch.setenv(HOME_VARIABLE, str(home.root))
    recipe = tmp_path / "coins.py"
    recipe.write_text(RECIPE)

    write_table(tmp_path, 300)
    first = retrain(str(recipe), SETTINGS)
    write_table(tmp_path, 330)
    kept = retrain(str(recipe), SETTINGS)
    retrain(str(recipe), SETTINGS)
    write_table(tmp_path, 340, damaged=True)
    with pytest.raises(DataError) as bad_data:
        retrain(str(recipe), SETTINGS)
    with pytest.raises(SettingError) as bad_setting:
        api.retrain(recipe, {"training.round": 5})

    assert cli(["history", str(recipe), "--json"]) == EXIT_OK
    table, _, listed = capsys.readouterr().out.rstrip().rpartition("\n")
    nights = json.loads(listed)
    assert [night["outcome"] for night in nights] == ["first", "kept", "unchanged", "failed", "refused"]
    assert [night["version"] for night in nights] == [first.version, kept.version, kept.version, "", ""]
    assert [night["train_rows"] and night["train_rows"] + night["test_rows"] for night in nights] == [
        *(300, 330, 330),
        *(None, None),
    ]
    assert nights[1]["value"] == kept.metrics["accuracy"]
    assert nights[1]["champion_value"] == kept.metrics["champion_accuracy"]
    assert nights[1]["run_key"] == kept.run_key
    assert nights[1]["mlflow_run_id"] == kept.mlflow_run_id
    assert all(night["flow_run_id"] for night in nights[:4])
    assert nights[2]["cause"].startswith(f"same data, recipe, code and settings as of version {kept.version}")
    assert nights[3]["cause"] == " ".join(str(bad_data.value).split())
    assert nights[4]["cause"] == str(bad_setting.value)
    rows = [line for line in table.splitlines() if line.startswith("20")]
    assert len(rows) == 5
    assert "coins.csv" in nights[3]["cause"]
    assert "did you mean training.rounds?" in " ".join(table.split())  # in lines of the column's width

    assert cli(["history", "coins", "--last", "2", "--json"]) == EXIT_OK  # the registered model
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == nights[3:]
    assert cli(["history", "coin"]) == EXIT_BAD_SETTING
    assert "model 'coin': no such model or recipe. Models with nights here: coins." in capsys.readouterr().err

    client = connect(None, home)
    experiment = client.get_experiment_by_name(experiment_of_nights("coins"))
    causes = [run.data.tags[CAUSE_TAG] for run in client.search_runs([experiment.experiment_id])]
    assert str(bad_setting.value)[:500] in causes
