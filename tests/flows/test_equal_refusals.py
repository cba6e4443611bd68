"""`plan` and `retrain` refuse bad settings and bad data alike, and `retrain` before it starts Prefect or Ray."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import flows.local.prefect_server
from flows.local import api
from training.errors import DataError, EvergreenError, SettingError
from training.storage.night_files import nights_of_home
from training.storage.paths import Home

RECIPE = """
from evergreen import Classification, Recipe, Table, XGBoost

def later():
    import {library}

recipe = Recipe("coins", source=Table("coins.csv", target="{target}"), problem=Classification(), trainer=XGBoost())
"""


class Bad(NamedTuple):
    """What is wrong with a table of 40 good rows, and what the error says."""

    kind: type[EvergreenError]
    said: str
    settings: dict[str, Any] = {}  # noqa: RUF012 - of a constant
    rows: Callable[[list[str]], list[str] | None] = lambda rows: rows  # None: no file
    target: str = "side"
    library: str = "math"


BAD = {
    "unknown setting": Bad(SettingError, "did you mean training.rounds?", {"training.round": 3}),
    "impossible setting": Bad(SettingError, "scaling.num_workers", {"scaling.num_workers": 999}),
    "a setting of networks": Bad(SettingError, "data.feed", {"data.feed": "loader"}),
    "missing file": Bad(SettingError, "coins.csv", rows=lambda _: None),
    "missing column": Bad(DataError, "no column 'edge'", target="edge"),
    "too few rows": Bad(DataError, "only one row of class heads, tails", rows=lambda rows: rows[:3]),
    "one class": Bad(
        DataError, "side", rows=lambda rows: [rows[0], *[row for row in rows if "heads" in row]]
    ),
    "damaged row": Bad(DataError, "coins.csv", rows=lambda rows: [*rows[:7], "0.5,heads,more", *rows[7:]]),
    "missing library": Bad(SettingError, "imports tensorflow, which is not installed", library="tensorflow"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Home) -> Path:
    """A folder for a recipe; nothing in the test may start a Prefect server."""

    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("Prefect was started")

    monkeypatch.setattr(flows.local.prefect_server, "prefect_api", started)
    assert home.root.is_dir()
    return tmp_path


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_plan_and_retrain_refuse_alike(folder: Path, home: Home, bad: Bad, force: bool) -> None:
    recipe = folder / "coins.py"
    recipe.write_text(RECIPE.format(target=bad.target, library=bad.library))
    good = [
        "weight,side",
        *(f"{number / 7:.3f},{'heads' if number % 2 else 'tails'}" for number in range(40)),
    ]
    if (rows := bad.rows(good)) is not None:
        (folder / "coins.csv").write_text("\n".join(rows) + "\n")
    with pytest.raises(bad.kind) as by_plan:
        api.plan(recipe, bad.settings, force=force)
    with pytest.raises(bad.kind) as by_retrain:
        api.retrain(recipe, bad.settings, force=force)
    assert str(by_retrain.value) == str(by_plan.value)
    assert bad.said in str(by_plan.value)
    (night,) = nights_of_home(home, "coins")
    assert night.cause == " ".join(str(by_plan.value).split())
    assert night.exit_status == by_plan.value.exit_status
    assert not (home.root / "runs").exists()


def test_good_inputs_go_on_to_prefect(folder: Path) -> None:
    (folder / "coins.py").write_text(RECIPE.format(target="side", library="math"))
    rows = [f"{number / 7:.3f},{'heads' if number % 2 else 'tails'}" for number in range(40)]
    (folder / "coins.csv").write_text("\n".join(["weight,side", *rows]) + "\n")
    with pytest.raises(AssertionError, match="Prefect was started"):
        api.retrain(folder / "coins.py")
