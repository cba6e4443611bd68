"""The run form: few fields, one JSON field, and what a Prefect server refuses before a run exists."""

import asyncio
from typing import Any

import pytest
from prefect.client.orchestration import PrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import is_valid

from deployments.strict import close_schemas
from flows.retrain import retrain
from flows.run_form import FIELDS, nested
from training.errors import SettingError
from training.seams import TRAINERS
from training.settings.overrides import describe, resolve
from training.settings.schema import Settings, section_of_trainer
from training.trainers.xgboost.choice import XGBoost
from training.trainers.xgboost.own_settings import own_settings

SCHEMA = parameter_schema(retrain).model_dump_for_openapi()
DEFAULTS = Settings()


def test_the_form_has_fields_for_common_settings_and_one_for_all_others() -> None:
    shown = sorted(SCHEMA["properties"], key=lambda name: int(SCHEMA["properties"][name]["position"]))
    assert shown == ["recipe", "force", *FIELDS, "settings"]
    for name, field in SCHEMA["properties"].items():
        assert isinstance(field["type"], str), f"{name} would be shown as a choice between types"
        assert field["description"], name
    assert "properties" not in SCHEMA["properties"]["settings"]  # or Prefect shows a field for each
    assert "required" not in SCHEMA


def test_each_field_stands_for_a_setting() -> None:
    assert set(FIELDS.values()) <= describe(DEFAULTS).keys()
    filled = {"epochs": 3, "batch_size": 32, "learning_rate": 0.1, "seed": 9, "data_path": "here"}
    found = describe(resolve(DEFAULTS, nested(filled)))
    assert {name: found[setting] for name, setting in FIELDS.items()} == filled


def test_the_fields_fit_the_trainer_of_the_recipe() -> None:
    base = XGBoost(max_depth=4).adapted(DEFAULTS)
    found = resolve(base, nested({"epochs": 7, "learning_rate": 0.2, "batch_size": None}, "xgboost"))
    own = own_settings(found)
    assert (own.rounds, own.learning_rate, own.max_depth) == (7, 0.2, 4)
    with pytest.raises(SettingError, match="batch_size: trainer xgboost has no such setting"):
        nested({"batch_size": 64}, "xgboost")


def test_an_empty_form_changes_nothing() -> None:
    """Prefect's form sends null for each empty field."""
    empty = dict.fromkeys(FIELDS)
    assert is_valid({"recipe": "digits", "force": False, "settings": {}, **empty}, SCHEMA)
    assert resolve(DEFAULTS, nested(empty)) == DEFAULTS


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"epochs": "three"},
        {"learning_rate": 0},
        {"seed": -1},
        {"settings": {"training": {"epochs": 0}}},
        {"settings": {"training": {"epoch": 1}}},
        {"settings": {"trainig": {"epochs": 1}}},
        {"settings": {"gate": {"confidence": 0.2}}},
        {"settings": {"seed": "one"}},
    ],
)
def test_a_server_refuses_an_unknown_setting(wrong: dict[str, Any]) -> None:
    assert not is_valid(wrong, SCHEMA)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_server_accepts_every_setting(trainer: str) -> None:
    everything = Settings(training=section_of_trainer(trainer)()).model_dump(mode="json")
    assert is_valid({"settings": everything}, SCHEMA)


def test_a_server_accepts_what_one_of_several_trainers_accepts() -> None:
    """The deepest tree has no limit in LightGBM with -1, which XGBoost refuses."""
    assert is_valid({"settings": {"training": {"max_depth": -1}}}, SCHEMA)
    assert is_valid({"settings": {"training": {"max_depth": 6}}}, SCHEMA)
    assert not is_valid({"settings": {"training": {"max_depth": "deep"}}}, SCHEMA)


def test_a_server_accepts_no_value_for_an_optional_setting() -> None:
    assert is_valid(
        {"settings": {"training": {"clip_norm": None}}, "epochs": 3, "learning_rate": 0.5}, SCHEMA
    )


@pytest.mark.usefixtures("prefect_harness")
def test_a_server_refuses_an_unknown_parameter_once_the_schema_is_closed() -> None:
    with get_client(sync_client=True) as client:
        flow_id = client.create_flow(retrain)
        made = client.create_deployment(
            flow_id, "closed", parameter_openapi_schema=SCHEMA, entrypoint="flows.retrain.retrain"
        )
        assert client.create_flow_run_from_deployment(
            made, parameters={"epoch": 3}
        )  # the flow would fail at its start
        assert asyncio.run(close_schemas()) == ["retrain/closed"]
        with pytest.raises(PrefectHTTPStatusError, match="'epoch' was unexpected"):
            client.create_flow_run_from_deployment(made, parameters={"epoch": 3})
        assert client.create_flow_run_from_deployment(made, parameters={"epochs": 3, "seed": None})
        client.delete_deployment(made)


@pytest.mark.usefixtures("prefect_harness")
def test_all_deployments_of_evergreens_flows_are_closed_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another team's flow on the same server may be called `retrain`, too."""
    real = PrefectClient.read_deployments

    async def one_at_a_time(*given: Any, **options: Any) -> Any:
        return await real(*given, **options | {"limit": 1})

    monkeypatch.setattr(PrefectClient, "read_deployments", one_at_a_time)
    entrypoints = {
        "ours": "flows.retrain.retrain",
        "theirs": "their_models.py:retrain",
        "zebra": "flows.retrain.retrain",
    }
    with get_client(sync_client=True) as client:
        flow_id = client.create_flow(retrain)
        made = [
            client.create_deployment(flow_id, name, parameter_openapi_schema=SCHEMA, entrypoint=entrypoint)
            for name, entrypoint in entrypoints.items()
        ]
        try:
            assert asyncio.run(close_schemas()) == ["retrain/ours", "retrain/zebra"]
            theirs = client.read_deployment(made[1])
            assert (theirs.parameter_openapi_schema or {}).get("additionalProperties") is not False
        finally:
            for one in made:
                client.delete_deployment(one)
