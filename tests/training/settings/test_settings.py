"""Settings: unknown, impossible or contradictory values are refused by name before a run starts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from training.errors import SettingError
from training.seams import TRAINERS
from training.settings.overrides import describe, parse_assignments, resolve
from training.settings.schema import Section, Settings, section_of_trainer
from training.trainers.network.feeds import local_batch_size

DEFAULTS = Settings()


def refusal(overrides: dict[str, Any]) -> str:
    with pytest.raises(SettingError) as caught:
        resolve(DEFAULTS, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "named", "meant"),
    [
        ({"training": {"epoch": 3}}, "training.epoch", "training.epochs"),
        ({"training": {"lerning_rate": 3}}, "training.lerning_rate", "training.learning_rate"),
        ({"epochs": 3}, "epochs", "training.epochs"),
        ({"scaling": {"global_batch_size": 8}}, "scaling.global_batch_size", "training.global_batch_size"),
        ({"num_worker": 1}, "num_worker", "scaling.num_workers"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(
    overrides: dict[str, Any], named: str, meant: str
) -> None:
    message = refusal(overrides)
    assert message.startswith(f"{named}: no such setting")
    assert message.endswith(f"did you mean {meant}?")


def test_nothing_near_means_no_guess() -> None:
    assert "did you mean" not in refusal({"zzzzqqqq": 1})


@pytest.mark.parametrize(
    ("overrides", "field", "shown"),
    [
        ({"training": {"learning_rate": -0.1}}, "training.learning_rate", "-0.1"),
        ({"training": {"learning_rate": 0}}, "training.learning_rate", "0"),
        ({"training": {"learning_rate": float("nan")}}, "training.learning_rate", "nan"),
        ({"training": {"learning_rate": float("inf")}}, "training.learning_rate", "inf"),
        ({"training": {"epochs": 0}}, "training.epochs", "0"),
        ({"training": {"epochs": "many"}}, "training.epochs", "'many'"),
        ({"training": {"optimizer": "adamm"}}, "training.optimizer", "'adamm'"),
        ({"data": {"validation_share": 0}}, "data.validation_share", "0"),
        ({"data": {"validation_share": 1}}, "data.validation_share", "1"),
        ({"data": {"max_dropped_share": 1.0}}, "data.max_dropped_share", "1.0"),
        ({"scaling": {"num_workers": -1}}, "scaling.num_workers", "-1"),
        ({"checkpoint": {"keep_newest": 1}}, "checkpoint.keep_newest", "1"),
        ({"gate": {"confidence": 0.5}}, "gate.confidence", "0.5"),
        ({"tracking": {"model": "a/b"}}, "tracking.model", "'a/b'"),
        ({"tracking": {"model": "it's"}}, "tracking.model", '"it\'s"'),
        ({"tracking": {"experiment": "../up"}}, "tracking.experiment", "'../up'"),
        ({"seed": -1}, "seed", "-1"),
        ({"seed": 2**63}, "seed", str(2**63)),
    ],
)
def test_an_impossible_value_is_named_with_its_field(
    overrides: dict[str, Any], field: str, shown: str
) -> None:
    message = refusal(overrides)
    assert message.startswith(f"{field}: ")
    assert message.endswith(f"got {shown}")


def test_all_impossible_values_are_named_at_once() -> None:
    message = refusal({"training": {"epochs": 0, "learning_rate": -1}, "gate": {"floor": 2}})
    assert [line.partition(":")[0] for line in message.splitlines()] == [
        "training.epochs",
        "training.learning_rate",
        "gate.floor",
    ]


@pytest.mark.parametrize(
    ("batch", "workers", "accumulation", "nearest"),
    [(100, 3, 1, 99), (101, 3, 1, 102), (1, 2, 1, 2), (10, 4, 2, 8), (13, 4, 2, 16), (7, 1, 2, 6)],
)
def test_a_batch_that_does_not_divide_is_answered_with_the_nearest(
    batch: int, workers: int, accumulation: int, nearest: int
) -> None:
    message = refusal(
        {
            "training": {"global_batch_size": batch, "accumulation_steps": accumulation},
            "scaling": {"num_workers": workers},
        }
    )
    assert message.startswith(f"training.global_batch_size: {batch} ")
    assert message.endswith(f"the nearest that does is {nearest}")


@given(batch=st.integers(1, 500), workers=st.integers(0, 9), accumulation=st.integers(1, 5))
def test_the_nearest_batch_divides_and_none_is_nearer(batch: int, workers: int, accumulation: int) -> None:
    def resolved(size: int) -> Settings:
        training = {"global_batch_size": size, "accumulation_steps": accumulation}
        return resolve(DEFAULTS, {"training": training, "scaling": {"num_workers": workers}})

    try:
        assert local_batch_size(resolved(batch)) * max(1, workers) == batch
    except SettingError as error:
        nearest = int(str(error).rsplit(" ", 1)[1])
        assert resolved(nearest).training.global_batch_size == nearest
        unit = max(1, workers) * accumulation
        others = range(unit, batch + 2 * unit, unit)
        assert abs(nearest - batch) == min(abs(size - batch) for size in others)


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ({"scaling": {"num_workers": 0}, "data": {"feed": "stream"}}, "data.feed"),
        ({"scaling": {"use_gpu": "no", "backend": "nccl"}}, "scaling.backend"),
        ({"scaling": {"use_gpu": "no"}, "training": {"precision": "float16"}}, "training.precision"),
    ],
)
def test_contradictions_are_refused_and_each_half_is_not(overrides: dict[str, Any], field: str) -> None:
    assert refusal(overrides).startswith(f"{field}: ")
    for section, values in overrides.items():
        for name, value in values.items():
            resolve(DEFAULTS, {section: {name: value}})


def test_a_section_is_no_value() -> None:
    assert "set one of training.epochs," in refusal({"training": 3})


def test_later_overrides_win_and_the_rest_stays() -> None:
    base = resolve(DEFAULTS, {"training": {"epochs": 7, "momentum": 0.5}, "seed": 4})
    final = resolve(base, {"training": {"epochs": 8}}, {"training": {"epochs": 9}, "gate": {"floor": 0.5}})
    assert (final.training.epochs, final.training.momentum, final.seed, final.gate.floor) == (9, 0.5, 4, 0.5)
    changed = {name for name, value in describe(final).items() if value != describe(DEFAULTS)[name]}
    assert changed == {"training.epochs", "training.momentum", "seed", "gate.floor"}
    assert base.training.epochs == 7


def test_resolving_nothing_changes_nothing() -> None:
    assert resolve(DEFAULTS) == resolve(DEFAULTS, {}, {"training": {}}) == DEFAULTS


def test_settings_can_not_be_changed_in_place() -> None:
    with pytest.raises(ValidationError):
        DEFAULTS.training.epochs = 3


def test_settings_survive_json() -> None:
    settings = resolve(DEFAULTS, {"training": {"clip_norm": 0.1}, "data": {"path": "/data/ü"}})
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


def test_assignments_become_a_tree() -> None:
    made = parse_assignments(
        ["training.epochs=3", " training.learning_rate =1e-2", "data.path=/data/a=b.tar", "seed=5",
         "training.augment=false", "data.max_train_rows=null", "ray.address=127.0.0.1:6379"]
    )  # fmt: skip
    assert made == {
        "training": {"epochs": 3, "learning_rate": 0.01, "augment": False},
        "data": {"path": "/data/a=b.tar", "max_train_rows": None},
        "seed": 5,
        "ray": {"address": "127.0.0.1:6379"},
    }
    assert resolve(DEFAULTS, made).ray.address == "127.0.0.1:6379"


def test_the_last_assignment_wins() -> None:
    assert parse_assignments(["seed=1", "seed=2"]) == {"seed": 2}


@pytest.mark.parametrize(
    "assignments",
    [
        ["training.epochs=3", 'training={"patience":2}'],
        ['training={"patience":2}', "training.epochs=3"],
        ['training={"patience":2,"epochs":1}', 'training={"epochs":3}'],
    ],
)
def test_a_section_and_its_settings_are_merged_in_any_order(assignments: list[str]) -> None:
    assert parse_assignments(assignments) == {"training": {"epochs": 3, "patience": 2}}


@pytest.mark.parametrize("wrong", [["training.epochs"], ["=3"], [" =3"], ["seed=1", "seed.x=2"]])
def test_a_malformed_assignment_is_quoted(wrong: list[str]) -> None:
    with pytest.raises(SettingError) as caught:
        parse_assignments(wrong)
    assert repr(wrong[-1]) in str(caught.value)


@pytest.mark.parametrize("name", describe(DEFAULTS))
def test_describe_names_what_assignments_take(name: str) -> None:
    value = describe(DEFAULTS)[name]
    assert resolve(DEFAULTS, parse_assignments([f"{name}={json.dumps(value)}"])) == DEFAULTS


def leaves(model: type[BaseModel], training: type[Section], prefix: str = "") -> dict[str, str | None]:
    """Descriptions of all settings by dotted name, with the section `training` of one trainer."""
    descriptions: dict[str, str | None] = {}
    for name, info in model.model_fields.items():
        kind = training if name == "training" else info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            descriptions |= leaves(kind, training, f"{prefix}{name}.")
        else:
            descriptions[prefix + name] = info.description
    return descriptions


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_setting_is_described(trainer: str) -> None:
    training = section_of_trainer(trainer)()
    described = leaves(Settings, type(training))
    assert described.keys() == describe(Settings(training=training)).keys()
    assert all(described.values())


def test_every_section_is_described() -> None:
    for name, info in Settings.model_fields.items():
        assert info.description, name
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            assert info.annotation.__doc__


@pytest.mark.parametrize("text", ["none", "null"])
def test_none_takes_away_what_the_recipe_sets(text: str) -> None:
    recipe = resolve(DEFAULTS, {"training": {"epochs": 17, "clip_norm": 2.0}, "data": {"path": "here"}})
    expected = resolve(DEFAULTS, {"training": {"epochs": 17}})
    overrides = parse_assignments([f"training.clip_norm={text}", f"data.path={text}"])
    assert resolve(recipe, overrides) == expected


def test_none_is_no_value_where_there_has_to_be_one() -> None:
    with pytest.raises(SettingError, match="epochs"):
        resolve(DEFAULTS, parse_assignments(["training.epochs=none"]))
