"""The parameters of a retraining as Prefect's run form shows them, and as Prefect's server checks them for a new run.

The form has one field for each of the few settings that people change often, and one JSON field for all others.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field
from pydantic_core import CoreSchema

from training.errors import SettingError
from training.settings.overrides import describe, resolve, setting_schema, setting_text, settings_schema
from training.settings.schema import Settings, TrainerName, section_of_trainer

FIELDS = {
    "epochs": "training.epochs",
    "batch_size": "training.global_batch_size",
    "learning_rate": "training.learning_rate",
    "seed": "seed",
    "data_path": "data.path",
}
_SETTINGS = "settings"


def nested(fields: dict[str, Any], trainer: TrainerName = "torch") -> dict[str, Any]:
    """The fields that were filled in, as nested overrides for a recipe of `trainer`.

    For an empty field the form sends null. Raises :class:`SettingError` for a field that the trainer does not have.
    """
    overrides: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None:
            continue
        dotted = _setting_of(name, trainer)
        if dotted is None:
            raise SettingError(f"{name}: trainer {trainer} has no such setting; leave the field empty")
        section, _, setting = dotted.rpartition(".")
        (overrides.setdefault(section, {}) if section else overrides)[setting] = value
    return overrides


def form_for(
    schema: Mapping[str, Any],
    recipe: str,
    own: Settings,
    given: Mapping[str, Any] = MappingProxyType({}),
    single: Iterable[str] = FIELDS,
) -> dict[str, Any]:
    """Restrict `schema`, a flow's form for all recipes, to `recipe`; the result refuses unknown parameters.

    `own` are the recipe's settings, and `given` are the nested settings of the deployment, which a run uses unless the
    run has its own. `single` are the fields of the flow that set a single setting. A field whose setting the recipe's
    trainer does not have is left out. The others have the trainer's limits and texts, with the value that is used for
    an empty field. The JSON field allows the settings of the recipe's trainer alone.

    Raises :class:`SettingError` for invalid settings.
    """
    trainer, values, used = own.trainer, describe(own), describe(resolve(own, given))
    fields = dict(schema["properties"])
    fields["recipe"] = {**fields["recipe"], "enum": [recipe], "default": recipe}
    told = fields[_SETTINGS].get("description", "").replace("retrain --help", f"retrain {recipe} --help")
    fields[_SETTINGS] = {
        **_without_limits(fields[_SETTINGS]),
        **settings_schema(trainer),
        "description": told,
    }
    for name in single:
        known, dotted = fields.pop(name), _setting_of(name, trainer)
        if dotted is not None:
            empty = f"Empty: {_spelled(values[dotted])}"
            if used[dotted] != values[dotted]:
                empty += f", with the deployment's settings {_spelled(used[dotted])}"
            text = f"{setting_text(dotted, trainer)}. {empty}."
            limits = setting_schema(dotted, trainer)
            fields[name] = {**_without_limits(known), **limits, "description": text}
    return {**schema, "properties": fields, "additionalProperties": False}


def _setting_of(field: str, trainer: TrainerName) -> str | None:
    """The setting of `trainer` that a field stands for; None if the trainer has no such setting."""
    return section_of_trainer(trainer).FORM.get(field, FIELDS[field])


def _without_limits(field: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in field.items()
        if name in ("title", "description", "position", "default")
    }


def _spelled(value: Any) -> str:
    return "none" if value is None else str(value)


def form_of(function: Callable[..., Any]) -> inspect.Signature:
    """Signature from which Prefect derives the form of a flow's `function` and the JSON schema for its server.

    A field has a type and no default, so that Prefect's server accepts null as its value, and its form shows one
    empty input instead of a choice between types. The JSON field comes last.
    """
    known = inspect.signature(function).parameters
    order = [*(name for name in known if name not in FIELDS and name != _SETTINGS), *FIELDS, _SETTINGS]
    return inspect.Signature([_shown(known[name]) for name in order])


def _shown(parameter: inspect.Parameter) -> inspect.Parameter:
    keyword = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    if parameter.name == _SETTINGS:
        return keyword.replace(annotation=Annotated[dict[str, Any], _Schema(settings_schema())])
    if parameter.name in FIELDS:
        schema = setting_schema(FIELDS[parameter.name])
        empty = Field(default_factory=lambda: None)  # a default that does not appear in the schema
        kind: Any = Annotated[parameter.annotation, _Schema(schema), empty]
        return keyword.replace(annotation=kind, default=inspect.Parameter.empty)
    return keyword


class _Schema:
    """Annotation that replaces a type's JSON schema; unlike pydantic's own annotation, it keeps title and default."""

    def __init__(self, schema: dict[str, Any]):
        self.schema = schema

    def __get_pydantic_json_schema__(self, _core: CoreSchema, _handler: Any) -> dict[str, Any]:
        return dict(self.schema)
