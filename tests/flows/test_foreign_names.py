"""Names that other users of a Prefect server chose can't control a terminal or the pages that show them."""

import re
from collections.abc import Iterator
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL, temporary_settings

from deployments.strict import main
from tasks.trackers.provenance import flow_run_tags

pytestmark = pytest.mark.usefixtures("prefect_harness")

HOSTILE = "night\x1b[2Jly\u202e"
LINK = "x](http://evil.example) ![y"


@flow(name="retrain")
def retrain() -> dict[str, str]:
    assert flow_run.id
    return flow_run_tags()


@pytest.fixture
def deployment() -> Iterator[UUID]:
    with get_client(sync_client=True) as client:
        made: UUID = client.create_deployment(
            client.create_flow(retrain),
            HOSTILE,
            entrypoint="flows.retrain.retrain",
            parameters={"recipe": HOSTILE},
        )
        yield made
        client.delete_deployment(made)


@pytest.mark.usefixtures("deployment")
def test_control_characters_of_a_deployment_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    said = capsys.readouterr().out
    assert "retrain/night\\u001b[2Jly\\u202e: unknown parameters" in said
    assert "recipe 'night\\x1b[2Jly\\u202e': no such recipe" in said
    assert "\x1b" not in said
    assert "\u202e" not in said


def test_a_server_that_does_not_answer_is_said_without_a_traceback() -> None:
    said = pytest.raises(SystemExit, match=r"not changed: ConnectError \(http://127\.0\.0\.1:9\)")
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}), said:
        main()


@pytest.mark.parametrize("name", [HOSTILE, LINK])
def test_the_name_of_a_flow_run_is_no_markup_in_mlflow(name: str) -> None:
    with temporary_settings({PREFECT_UI_URL: "http://prefect.example"}):
        tags = retrain.with_options(flow_run_name=name)()
    note = tags["mlflow.note.content"]
    assert "\x1b" not in note
    assert "\u202e" not in note
    assert re.findall(r"(?<!\\)\]\((http://[\w.]+)", note) == ["http://prefect.example"]  # the only link
