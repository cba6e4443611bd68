"""The run form: few fields, one JSON field, and what a Prefect server refuses before a run exists."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import PrefectClient, SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import is_valid

from deployments.strict import fit_forms
from flows.retrain import retrain
from flows.run_form import FIELDS, form_for, nested
from flows.tune import tune
from tasks.doctor.deployments import deployment_checks
from training.errors import SettingError
from training.recipe import load
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
    values = describe(resolve(DEFAULTS, nested(filled)))
    assert {name: values[setting] for name, setting in FIELDS.items()} == filled


def test_the_fields_fit_the_trainer_of_the_recipe() -> None:
    base = XGBoost(max_depth=4).adapted(DEFAULTS)
    resolved = resolve(base, nested({"epochs": 7, "learning_rate": 0.2, "batch_size": None}, "xgboost"))
    own = own_settings(resolved)
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


def fitted(recipe: str, **sections: Any) -> dict[str, Any]:
    return form_for(SCHEMA, recipe, load(recipe)[0].settings, sections)


def told() -> list[str]:
    """What the command says about each deployment."""
    said: list[str] = []
    asyncio.run(fit_forms(said.append))
    return said


def test_the_form_of_a_recipe_has_the_fields_and_values_of_its_trainer() -> None:
    trees, network = fitted("breast-cancer"), fitted("digits", training={"epochs": 7})
    assert set(network["properties"]) == set(SCHEMA["properties"])
    assert set(network["properties"]) - set(trees["properties"]) == {"batch_size"}
    assert trees["properties"]["epochs"]["description"] == (
        "Boosting rounds; each adds a tree, or one a class. Empty: 60."
    )
    assert network["properties"]["epochs"]["description"] == (
        "Passes over the training rows. Empty: 20, with the deployment's settings 7."
    )
    assert (trees["properties"]["recipe"]["default"], SCHEMA["properties"]["recipe"]["default"]) == (
        "breast-cancer",
        "digits",
    )
    assert network["properties"]["data_path"]["description"].endswith(". Empty: none.")
    assert "`evergreen retrain digits --help` lists" in network["properties"]["settings"]["description"]
    for name, field in network["properties"].items():
        assert field["position"] == SCHEMA["properties"][name]["position"], name
        assert field["title"] == SCHEMA["properties"][name]["title"], name


@pytest.mark.extended
@pytest.mark.parametrize(
    ("recipe", "accepted", "refused"),
    [
        ("breast-cancer", {"settings": {"training": {"max_depth": 3}}}, {"batch_size": 64}),
        ("breast-cancer", {"learning_rate": 0.5}, {"learning_rate": 2.0}),  # the share of a tree is at most 1
        ("breast-cancer", {"settings": {"seed": 3}}, {"settings": {"training": {"clip_norm": 1.0}}}),
        ("digits", {"learning_rate": 2.0}, {"settings": {"training": {"max_depth": 3}}}),
        ("digits", {"batch_size": 64, "seed": None}, {"recipe": "breast-cancer"}),
        ("digits", {"settings": {"training": {"clip_norm": None}}}, {"epoch": 3}),
    ],
)
def test_the_form_of_a_recipe_refuses_what_the_recipe_does_not_have(
    recipe: str, accepted: dict[str, Any], refused: dict[str, Any]
) -> None:
    assert is_valid({"recipe": recipe, **accepted}, fitted(recipe))
    assert not is_valid({"recipe": recipe, **refused}, fitted(recipe))


def made(client: SyncPrefectClient, name: str, used: Any = retrain, **given: Any) -> UUID:
    """A deployment as `prefect deploy` makes it."""
    entrypoint = given.pop("entrypoint", f"flows.{used.name}.{used.name}")
    return client.create_deployment(
        client.create_flow(used),
        name,
        parameter_openapi_schema=parameter_schema(used).model_dump_for_openapi(),
        entrypoint=entrypoint,
        parameters=given,
        enforce_parameter_schema=True,
    )


@pytest.mark.usefixtures("prefect_harness")
def test_a_server_refuses_an_unknown_parameter_once_the_form_is_fitted() -> None:
    with get_client(sync_client=True) as client:
        deployment_id = made(client, "closed", recipe="breast-cancer")
        # The run would fail at its start.
        assert client.create_flow_run_from_deployment(deployment_id, parameters={"epoch": 3})
        (note,) = deployment_checks()
        assert (note.ok, note.found) == (None, "accept unknown parameters: closed")
        assert told() == [
            "retrain/closed: the form fits breast-cancer; other recipes, settings and parameters are refused"
        ]
        assert list(deployment_checks()) == []
        with pytest.raises(PrefectHTTPStatusError, match="'epoch' was unexpected"):
            client.create_flow_run_from_deployment(deployment_id, parameters={"epoch": 3})
        with pytest.raises(PrefectHTTPStatusError, match="'batch_size' was unexpected"):
            client.create_flow_run_from_deployment(deployment_id, parameters={"batch_size": 64})
        assert client.create_flow_run_from_deployment(deployment_id, parameters={"epochs": 3, "seed": None})
        client.delete_deployment(deployment_id)


@pytest.mark.usefixtures("prefect_harness")
def test_the_form_of_a_search_keeps_the_seed_of_its_trials() -> None:
    with get_client(sync_client=True) as client:
        deployment_id = made(client, "search", tune, recipe="digits")
        (said,) = told()
        assert said.startswith("tune/search: the form fits digits")
        schema = client.read_deployment(deployment_id).parameter_openapi_schema or {}
        assert schema["properties"]["seed"]["description"] == "Seed of the trials' values."
        with pytest.raises(PrefectHTTPStatusError, match="max_depth"):
            client.create_flow_run_from_deployment(
                deployment_id, parameters={"settings": {"training": {"max_depth": 3}}}
            )
        client.delete_deployment(deployment_id)


@pytest.mark.extended
@pytest.mark.usefixtures("prefect_harness")
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "because the deployment names no recipe"),
        ({"recipe": "/not/here.py"}, "/not/here.py"),
        (
            {"recipe": "digits", "settings": {"data": {"feed": "stream"}, "scaling": {"min_workers": 1}}},
            "min_workers",
        ),
        # The recipe was one of a network when the deployment was made.
        ({"recipe": "breast-cancer", "batch_size": 64}, "'batch_size' was unexpected"),
    ],
)
def test_a_deployment_whose_form_can_not_be_fitted_keeps_that_of_all_recipes(
    given: dict[str, Any], why: str
) -> None:
    with get_client(sync_client=True) as client:
        deployment_id, other_id = made(client, "a", **given), made(client, "b", recipe="digits")
        try:
            said = told()
            assert said[0].startswith(
                "retrain/a: unknown parameters are refused; the form has the settings of all"
            )
            assert why in said[0]
            assert (
                said[1]
                == "retrain/b: the form fits digits; other recipes, settings and parameters are refused"
            )
            assert client.create_flow_run_from_deployment(
                deployment_id, parameters={"batch_size": 64, "recipe": "digits"}
            )
            with pytest.raises(PrefectHTTPStatusError, match="'epoch' was unexpected"):
                client.create_flow_run_from_deployment(deployment_id, parameters={"epoch": 3})
        finally:
            client.delete_deployment(deployment_id)
            client.delete_deployment(other_id)


@pytest.mark.usefixtures("prefect_harness")
def test_a_deployment_with_an_unknown_parameter_is_named_and_the_others_are_fitted() -> None:
    with get_client(sync_client=True) as client:
        deployment_id, other_id = (
            made(client, "a", recipe="digits", epoch=3),
            made(client, "b", recipe="digits"),
        )
        try:
            first, second = told()
            assert first.startswith("retrain/a: not changed: ")
            assert "'epoch' was unexpected" in first
            assert (
                second
                == "retrain/b: the form fits digits; other recipes, settings and parameters are refused"
            )
        finally:
            client.delete_deployment(deployment_id)
            client.delete_deployment(other_id)


@pytest.mark.usefixtures("prefect_harness")
def test_a_relative_recipe_is_that_of_the_folder_of_the_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "from evergreen import BundledTable, Recipe, XGBoost\n"
        'recipe = Recipe("own", "", BundledTable("breast_cancer"), trainer={})'
    )
    for folder, trainer in (("theirs", "XGBoost()"), ("here", "None")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.py").write_text(text.format(trainer))
    monkeypatch.chdir(tmp_path / "here")
    with get_client(sync_client=True) as client:
        step = {"prefect.deployments.steps.set_working_directory": {"directory": str(tmp_path / "theirs")}}
        deployment_id = client.create_deployment(
            client.create_flow(retrain),
            "relative",
            parameter_openapi_schema=SCHEMA,
            entrypoint="flows.retrain.retrain",
            parameters={"recipe": "own.py"},
            pull_steps=[step],
        )
        try:
            assert told() == [
                "retrain/relative: the form fits own.py; other recipes, settings and parameters are refused"
            ]
            form = client.read_deployment(deployment_id).parameter_openapi_schema or {}
            assert "Boosting rounds" in form["properties"]["epochs"]["description"]
        finally:
            client.delete_deployment(deployment_id)


@pytest.mark.usefixtures("prefect_harness")
def test_the_forms_of_all_deployments_of_evergreens_flows_are_fitted_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another team's flow on the same server may be called `retrain`, too."""
    real = PrefectClient.read_deployments

    async def one_at_a_time(*given: Any, **options: Any) -> Any:
        return await real(*given, **options | {"limit": 1})

    monkeypatch.setattr(PrefectClient, "read_deployments", one_at_a_time)
    with get_client(sync_client=True) as client:
        deployments = [
            made(client, "ours", recipe="digits"),
            made(client, "theirs", entrypoint="their_models.py:retrain"),
            made(client, "zebra"),
        ]
        try:
            fitted_ones = [line.partition(":")[0] for line in told()]
            assert fitted_ones == ["retrain/ours", "retrain/zebra"]
            theirs = client.read_deployment(deployments[1])
            assert theirs.parameter_openapi_schema
            assert theirs.parameter_openapi_schema.get("additionalProperties") is not False
        finally:
            for deployment_id in deployments:
                client.delete_deployment(deployment_id)
