"""Parses, merges and validates overrides of the settings tree, explains errors, and gives the tree's JSON schema."""

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from training.errors import SettingError
from training.seams import TRAINERS, TrainerName
from training.settings.schema import Section, Settings

_TAGS = {(1, trainer) for trainer in TRAINERS}
_NONE = "none"  # null on the command line, which unsets a setting


def resolve(base: Settings, *overrides: Mapping[str, Any]) -> Settings:
    """Merge nested `overrides` into `base`, where later overrides take precedence, and validate the result.

    Raises :class:`SettingError` that names the key, the rule and, for an unknown key, the nearest valid key.
    """
    return validated(merged(base, *overrides))


def merged(base: Settings, *overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested `overrides` into the nested values of `base`, without validating the values.

    Raises :class:`SettingError` for an unknown key, and for a section that is set to a single value.
    """
    values = base.model_dump()
    for override in overrides:
        values = _merge(values, override, (), base)
    return values


def validated(values: Mapping[str, Any]) -> Settings:
    """Nested values as settings. Raises :class:`SettingError` that names each invalid value and its rule."""
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingError(explained(error)) from None


SectionT = TypeVar("SectionT", bound=Section)


def section_of(kind: type[SectionT], values: Mapping[str, Any], name: str) -> SectionT:
    """A section with `values`; `name` stands for the section in messages. Raises :class:`SettingError` if invalid."""
    if unknown := sorted(values.keys() - kind.model_fields.keys()):
        close = difflib.get_close_matches(unknown[0], kind.model_fields, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(kind.model_fields)}"
        raise SettingError(f"{name}: no setting {unknown[0]}; {hint}")
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise SettingError(f"{name}: {explained(error)}") from None


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Parse assignments such as `["training.epochs=3", ...]` into nested overrides.

    A value is read as JSON, or else as plain text; `none` is null. Several values of one section are merged, where
    later ones take precedence. Raises :class:`SettingError` for malformed ones.
    """
    tree: dict[str, Any] = {}
    for assignment in assignments:
        dotted, equals, text = assignment.partition("=")
        if not equals or not dotted.strip():
            raise SettingError(
                f"--set {assignment!r}: expected section.name=value, such as training.epochs=3"
            )
        *sections, name = dotted.strip().split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
            if not isinstance(branch, dict):
                raise SettingError(f"--set {assignment!r}: {section} was given a value before")
        value = value_of(text)
        if isinstance(value, dict) and isinstance(branch.get(name), dict):
            branch[name] |= value
        else:
            branch[name] = value
    return tree


def describe(settings: Settings) -> dict[str, Any]:
    """All settings as one flat mapping from dotted name to JSON value."""
    flat: dict[str, Any] = {}

    def walk(prefix: str, tree: Mapping[str, Any]) -> None:
        for name, value in tree.items():
            if isinstance(value, Mapping):
                walk(f"{prefix}{name}.", value)
            else:
                flat[prefix + name] = value

    walk("", settings.model_dump(mode="json"))
    return flat


def setting_schema(dotted: str, trainer: TrainerName | None = None) -> dict[str, Any]:
    """JSON schema of one setting's values other than null, with type and limits, without title and description.

    The schema is that of `trainer`, or of the first trainer that has the setting.
    """
    field = _field(dotted, trainer)
    (kind,) = [variant for variant in field.get("anyOf", [field]) if variant.get("type") != "null"]
    return _limits(kind)


def setting_text(dotted: str, trainer: TrainerName) -> str:
    """What a setting of `trainer` means, as `--help` says it."""
    return str(_field(dotted, trainer)["description"])


def settings_schema(trainer: TrainerName | None = None) -> dict[str, Any]:
    """JSON schema of nested overrides, without `properties`, so that Prefect's form shows a single JSON field.

    The section `training` is that of `trainer`; without a name, the fields of all trainers are allowed.
    """
    whole = Settings.model_json_schema()
    parts = {
        name: _merged(_sections(whole, name, trainer)) if "$ref" in field or "oneOf" in field else field
        for name, field in whole["properties"].items()
    }
    patterns = {f"^{name}$": part for name, part in parts.items()}
    return {"type": "object", "patternProperties": patterns, "additionalProperties": False}


def _field(dotted: str, trainer: TrainerName | None) -> dict[str, Any]:
    section, _, name = dotted.rpartition(".")
    whole = Settings.model_json_schema()
    having = _sections(whole, section, trainer) if section else [whole]
    field: dict[str, Any] = next(
        schema["properties"][name] for schema in having if name in schema["properties"]
    )
    return field


def _sections(whole: Mapping[str, Any], name: str, trainer: TrainerName | None) -> list[dict[str, Any]]:
    """The JSON schemas that a section may have, of one trainer or all; fields contain no references to definitions."""
    field = whole["properties"][name]
    names = [variant["$ref"].rpartition("/")[2] for variant in field.get("oneOf", [field])]
    if trainer is not None and len(names) > 1:  # in the order of the trainers
        names = [names[list(TRAINERS).index(trainer)]]
    return [whole["$defs"][definition] for definition in names]


def _merged(sections: list[dict[str, Any]]) -> dict[str, Any]:
    """A schema that allows the fields of every section, with the values that any section allows.

    The section `training` is that of one of several trainers; the run itself checks which.
    """
    variants: dict[str, list[dict[str, Any]]] = {}
    for section in sections:
        for name, field in section["properties"].items():
            known = variants.setdefault(name, [])
            if _limits(field) not in map(_limits, known):
                known.append(field)
    fields = {
        name: schemas[0] if len(schemas) == 1 else {"anyOf": schemas} for name, schemas in variants.items()
    }
    return sections[0] | {"properties": fields}


def _limits(field: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a field without default and texts."""
    return {key: value for key, value in field.items() if key not in ("default", "title", "description")}


def value_of(text: str) -> Any:
    """The value that a text of the command line stands for: JSON, or else the text itself; `none` is null."""
    if text == _NONE:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _merge(
    base: dict[str, Any], override: Mapping[str, Any], path: tuple[str, ...], settings: Settings
) -> dict[str, Any]:
    result = dict(base)
    for key, value in override.items():
        dotted = ".".join((*path, key))
        if key not in base:
            raise SettingError(_unknown(_first_leaf(dotted, value), settings))
        if isinstance(base[key], dict):
            if not isinstance(value, Mapping):
                raise SettingError(
                    f"{dotted} is a section; set one of {', '.join(f'{dotted}.{name}' for name in base[key])}"
                )
            result[key] = _merge(base[key], value, (*path, key), settings)
        else:
            result[key] = value
    return result


_OF_TRAINERS = "a recipe's trainer takes its settings as arguments, such as XGBoost(rounds=100)"


def _first_leaf(dotted: str, value: Any) -> str:
    """Full name of the first setting inside an unknown section, for the search of the nearest valid name."""
    while isinstance(value, Mapping) and value:
        name, value = next(iter(value.items()))
        dotted = f"{dotted}.{name}"
    return dotted


def _unknown(dotted: str, base: Settings) -> str:
    known = list(describe(base))
    leaves = {name.rsplit(".", 1)[-1]: name for name in known}
    close = difflib.get_close_matches(dotted, known, n=1, cutoff=0.5)
    close = close or [
        leaves[leaf] for leaf in difflib.get_close_matches(dotted.rsplit(".", 1)[-1], leaves, n=1, cutoff=0.5)
    ]
    return f"{dotted}: no such setting" + (
        f"; did you mean {close[0]}?" if close else "; `evergreen retrain --help` lists all"
    )


def explained(error: ValidationError) -> str:
    """What is wrong with settings: a line for each, with the setting's full name, the rule and the value."""
    lines = []
    for details in error.errors(include_url=False):
        # For the section of a trainer, pydantic adds the trainer's name after `training`.
        path = [part for index, part in enumerate(details["loc"]) if (index, part) not in _TAGS]
        where = ".".join(str(part) for part in path)
        rule = str(details["msg"]).removeprefix("Value error, ")
        if details["type"] == "extra_forbidden":
            rule = "no such setting"
            if path[0] == "training":
                rule += f" of trainer {details['loc'][1]}; {_OF_TRAINERS}"
        lines.append(f"{where}: {rule}, got {details['input']!r}" if where else rule)
    return "\n".join(lines)
