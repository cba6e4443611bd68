"""In-memory double of MLflow's model registry, for the calls that Evergreen makes; used to explore interleavings.

`test_registry_in_memory.py` compares its answers and errors with those of MLflow's SQLite store.
"""

import re
from copy import deepcopy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import (
    INVALID_PARAMETER_VALUE,
    RESOURCE_ALREADY_EXISTS,
    RESOURCE_DOES_NOT_EXIST,
)
from mlflow.store.entities import PagedList

_TAG = re.compile(r"tags\.`([^`]+)` = '([^']*)'")
_BEGINNING = re.compile(r"tags\.`([^`]+)` LIKE '([^'%]*)%'")


@dataclass
class Model:
    tags: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, int] = field(default_factory=dict)
    versions: dict[int, dict[str, str]] = field(default_factory=dict)  # tags of each version
    runs: dict[int, str | None] = field(default_factory=dict)  # id of each version's run
    last: int = 0


class RegistryInMemory:
    """The methods of `MlflowClient` for registered models that registration, rollback and `gc` use."""

    def __init__(self) -> None:
        self.models: dict[str, Model] = {}

    def copy(self) -> "RegistryInMemory":
        return deepcopy(self)

    def create_registered_model(self, name: str) -> None:
        if name in self.models:
            raise MlflowException(f"{name} exists", RESOURCE_ALREADY_EXISTS)
        self.models[name] = Model()

    def get_registered_model(self, name: str) -> SimpleNamespace:
        model = self._model(name)
        aliases = {alias: str(version) for alias, version in model.aliases.items()}
        return SimpleNamespace(name=name, tags=dict(model.tags), aliases=aliases)

    def search_registered_models(self, **_: Any) -> PagedList[SimpleNamespace]:
        models = [self.get_registered_model(name) for name in sorted(self.models)]
        return PagedList(models, None)

    def set_registered_model_tag(self, name: str, key: str, value: str) -> None:
        self._model(name).tags[key] = value

    def delete_registered_model_tag(self, name: str, key: str) -> None:
        self._model(name).tags.pop(key, None)

    def create_model_version(
        self, name: str, tags: dict[str, str] | None = None, run_id: str | None = None, **_: Any
    ) -> SimpleNamespace:
        model = self._model(name)
        model.last += 1
        model.versions[model.last], model.runs[model.last] = dict(tags or {}), run_id
        return self.get_model_version(name, str(model.last))

    def get_model_version(self, name: str, version: str) -> SimpleNamespace:
        tags = self._version(name, version)
        aliases = [alias for alias, number in self.models[name].aliases.items() if number == int(version)]
        run_id = self.models[name].runs[int(version)]
        return SimpleNamespace(
            name=name, version=str(version), tags=dict(tags), aliases=aliases, run_id=run_id
        )

    def search_model_versions(self, wanted: str, **_: Any) -> PagedList[SimpleNamespace]:
        named, made_by = (re.search(rf"{field} = '([^']*)'", wanted) for field in ("name", "run_id"))
        tags, beginnings, versions = dict(_TAG.findall(wanted)), _BEGINNING.findall(wanted), []
        for name in [named[1]] if named else sorted(self.models):
            model = self.models.get(name, Model())
            numbers = [number for number in model.versions if tags.items() <= model.versions[number].items()]
            for tag, beginning in beginnings:
                texts = {number: model.versions[number].get(tag) for number in numbers}
                numbers = [number for number, text in texts.items() if text and text.startswith(beginning)]
            chosen = [number for number in numbers if not made_by or model.runs[number] == made_by[1]]
            versions += [self.get_model_version(name, str(number)) for number in chosen]
        return PagedList(versions, None)

    def delete_model_version(self, name: str, version: str) -> None:
        self._version(name, version)
        model = self.models[name]
        del model.versions[int(version)]
        model.aliases = {alias: number for alias, number in model.aliases.items() if number != int(version)}

    def set_model_version_tag(self, name: str, version: str, key: str, value: str) -> None:
        self._version(name, version)[key] = value

    def delete_model_version_tag(self, name: str, version: str, key: str) -> None:
        self._version(name, version).pop(key, None)

    def get_model_version_by_alias(self, name: str, alias: str) -> SimpleNamespace:
        number = self._model(name).aliases.get(alias)
        if number is None:
            raise MlflowException(f"no alias {alias}", INVALID_PARAMETER_VALUE)
        return self.get_model_version(name, str(number))

    def set_registered_model_alias(self, name: str, alias: str, version: str) -> None:
        self._version(name, version)
        self.models[name].aliases[alias] = int(version)

    def delete_registered_model_alias(self, name: str, alias: str) -> None:
        self._model(name).aliases.pop(alias, None)

    def _model(self, name: str) -> Model:
        if name not in self.models:
            raise MlflowException(f"no model {name}", RESOURCE_DOES_NOT_EXIST)
        return self.models[name]

    def _version(self, name: str, version: str) -> dict[str, str]:
        versions = self._model(name).versions
        if int(version) not in versions:
            raise MlflowException(f"no version {version} of {name}", RESOURCE_DOES_NOT_EXIST)
        return versions[int(version)]
