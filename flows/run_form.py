"""The parameters of a retraining as Prefect's run form shows them, and as Prefect's server checks them for a new run.

The form has one field for each of the few settings that people change often, and one JSON field for all others.
"""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field
from pydantic_core import CoreSchema

from training.errors import SettingError
from training.settings.overrides import setting_schema, settings_schema
from training.settings.schema import TrainerName, section_of_trainer

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
        dotted = section_of_trainer(trainer).FORM.get(name, FIELDS[name])
        if dotted is None:
            raise SettingError(f"{name}: trainer {trainer} has no such setting; leave the field empty")
        section, _, setting = dotted.rpartition(".")
        (overrides.setdefault(section, {}) if section else overrides)[setting] = value
    return overrides


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
