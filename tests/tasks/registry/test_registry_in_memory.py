"""The in-memory registry for exploring interleavings answers like MLflow's SQLite store, errors included."""

import random
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow_servers import mlflow_server
from registry_in_memory import RegistryInMemory

from tasks.trackers.mlflow_store import connect
from training.storage.paths import Home

_SOURCE = "s3://bucket/model"  # servers refuse a path, and artifacts of no run
_STEPS = 300
_NAMES, _KEYS, _TEXTS = ("m", "m", "m", "n"), ("evergreen.a", "evergreen.b"), ("x", "y", "xy")
_RUNS = ("a" * 32, "b" * 32)
_ALIASES, _NUMBERS = ("champion", "previous"), ("1", "2", "3", "4")


def one(name: str, *args: Any, **options: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    return name, args, options


def calls(seed: int) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Calls in random order; some concern models, versions, aliases and tags that do not exist."""
    draw = random.Random(seed)
    made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    for _ in range(_STEPS):
        name, key, text = draw.choice(_NAMES), draw.choice(_KEYS), draw.choice(_TEXTS)
        alias, number = draw.choice(_ALIASES), draw.choice(_NUMBERS)
        tags = {key: text, "evergreen.c": draw.choice(_TEXTS)}
        wanted = (
            f"name = '{name}' and tags.`{key}` = '{text}' and tags.`evergreen.c` = '{draw.choice(_TEXTS)}'"
        )
        made.append(
            draw.choice(
                [
                    one("create_registered_model", name),
                    one("get_registered_model", name),
                    one("search_registered_models"),
                    one("set_registered_model_tag", name, key, text),
                    one("delete_registered_model_tag", name, key),
                    one("create_model_version", name, source=_SOURCE, tags=tags, run_id=draw.choice(_RUNS)),
                    one("get_model_version", name, number),
                    one("search_model_versions", f"name = '{name}'"),
                    one("search_model_versions", wanted),
                    one("search_model_versions", f"name = '{name}' and tags.`{key}` LIKE '{text}%'"),
                    one("search_model_versions", f"run_id = '{draw.choice(_RUNS)}'"),
                    one("delete_model_version", name, number),
                    one("set_model_version_tag", name, number, key, text),
                    one("delete_model_version_tag", name, number, key),
                    one("get_model_version_by_alias", name, alias),
                    one("set_registered_model_alias", name, alias, number),
                    one("delete_registered_model_alias", name, alias),
                ]
            )
        )
    return made


def answer(client: Any, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The parts of the answer that Evergreen reads, or the error code."""
    try:
        result = getattr(client, name)(*args, **options)
    except MlflowException as error:
        return error.error_code
    if name in ("create_registered_model", "set_registered_model_tag", "delete_registered_model_tag"):
        return None
    return sorted(map(described, result)) if isinstance(result, list) else described(result)


def described(entity: Any) -> Any:
    """A model or version reduced to the fields that Evergreen uses. A search of versions returns no aliases."""
    if entity is None:
        return None
    tags = sorted(entity.tags.items())
    if not hasattr(entity, "version"):
        return (
            entity.name,
            tags,
            sorted((alias, str(version)) for alias, version in dict(entity.aliases).items()),
        )
    return entity.name, tags, str(entity.version), entity.run_id


def check_alike(client: Any, seed: int) -> None:
    memory = RegistryInMemory()
    for name, args, options in calls(seed):
        assert answer(memory, name, args, options) == answer(client, name, args, options), (name, args)
    version = memory.create_model_version("m").version
    client.create_model_version("m", source=_SOURCE)
    for store in (memory, client):
        store.set_registered_model_alias("m", "champion", version)
        assert store.get_model_version("m", version).aliases == ["champion"]


def test_the_registry_in_memory_is_like_mlflows(tmp_path: Path) -> None:
    check_alike(connect(None, Home(tmp_path)), 1)


@pytest.mark.slow
def test_the_registry_in_memory_is_like_a_servers(tmp_path: Path) -> None:
    with mlflow_server(tmp_path / "server") as server:
        check_alike(connect(server.uri, Home(tmp_path)), 2)
