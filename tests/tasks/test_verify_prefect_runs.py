"""`evergreen verify`: whether a process works on a flow run that Prefect reports as Running."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun

from tasks.verify.evidence import Evidence
from tasks.verify.prefect_runs import _is_alive
from training.storage.paths import Home
from training.storage.run_lock import run_lock


@pytest.mark.parametrize(
    ("parameters", "tags"),
    [
        ({"recipe": "leaves.v2"}, []),
        ({"recipe": "recipes/leaves.v2.py"}, ["evergreen"]),
        ({"plan": {"recipe": {"name": "leaves.v2"}}, "recipe": "recipes/other.py"}, []),
        ({"recipe": "recipes/other.py"}, ["recipe:leaves.v2"]),
    ],
)
def test_a_flow_run_is_alive_while_its_recipe_is_locked(
    tmp_path: Path, parameters: dict[str, Any], tags: list[str]
) -> None:
    run = cast(Evidence, SimpleNamespace(home=Home(tmp_path)))
    flow_run = FlowRun(flow_id=uuid4(), parameters=parameters, tags=tags)
    with run_lock(run.home, "leaves.v2"):
        assert _is_alive(run, flow_run) is True
