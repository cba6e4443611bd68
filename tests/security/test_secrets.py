"""Canary secrets in the environment, in URLs and in errors: after a run no file or output contains any of them."""

import base64
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from mlflow_servers import MlflowServer, Proxy, mlflow_server

from deployments.cluster import _placed
from flows.predict import predict as predict_flow
from flows.retrain import retrain as retrain_flow
from flows.rollback import rollback as rollback_flow
from training.errors import SettingError
from training.redaction import hidden, hide_credentials, redact, show_credentials, shown

# Recipes assemble the canaries from parts, because a recipe's own text is kept with the run.
PASSWORD, KEY, ORIGIN, SIGNED = "canary-wren-1", "canary-finch-2", "canary-robin-3", "canary-tit-4"
BASIC = base64.b64encode(f"writer:{PASSWORD}".encode()).decode()
CANARIES = (PASSWORD, BASIC, KEY, ORIGIN, SIGNED)
# The secret of the run's own Prefect server, in plain text and as in an HTTP header.
_OF_THE_SERVER = re.compile(rb"evergreen:[0-9a-f]{64}|ZXZlcmdyZWVuO[jm][0-9A-Za-z]{80}")
NOWHERE: dict[str, list[str]] = {canary: [] for canary in CANARIES}

_RECIPE = """
import os
from dataclasses import dataclass, field
from training.recipe import Recipe
from training.data.sources.digits import Digits

@dataclass(frozen=True)
class Addressed(Digits):
    def fetch(self, folder):
        files = super().fetch(folder)
        bird = "canary-" + "robin-3"
        signature = "canary-" + "tit-4"
        origin = f"https://reader:{bird}@data.example/digits?X-Amz-Signature={signature}"
        return files.model_copy(update={"origin": origin})

def build_model(shape, classes):
    from torch import nn

    class Failing(nn.Sequential):
        def forward(self, images):
            if self.training and FAILURE:
                address = "http://writer:canary-" + "robin-3@metrics.example"
                raise FAILURE(f"{os.environ['PARTNER_API_KEY']} was refused by {address}")
            return super().forward(images)

    return Failing(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

recipe = Recipe("birds", "for a test", Addressed(), build_model=build_model)
"""


class Ran(NamedTuple):
    """A finished retraining: exit status, output, and the folders that contain what it wrote."""

    status: int
    said: str
    home: Path
    server: Path
    listened: frozenset[tuple[str, str]]  # (process, address) of all sockets that listened

    def where(self, canary: str) -> list[str]:
        """The output and files that contain a canary."""
        leaks = ["output"] if canary in self.said else []
        files = [
            file for root in (self.home, self.server) for file in sorted(root.rglob("*")) if file.is_file()
        ]
        return leaks + [str(file) for file in files if canary.encode() in file.read_bytes()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as started:
        yield started


def retrain(folder: Path, server: MlflowServer, port: int, *, failure: str = "None", workers: int = 0) -> Ran:
    """Run `evergreen retrain` as a user would, with a password in the URL of MLflow's server."""
    recipe, home = folder / "birds.py", folder / "home"
    recipe.write_text(_RECIPE.replace("FAILURE", failure))
    settings = (
        f"tracking.uri=http://writer:{PASSWORD}@127.0.0.1:{port}",
        f"scaling.num_workers={workers}",
        "training.epochs=1",
        "tracking.system_metrics=false",
        "tracking.outage_s=1",
        "data.max_train_rows=300",
        "data.max_test_rows=100",
        "failure.max_failures=1",
        "ray.num_cpus=2",
    )
    chosen = [part for setting in settings for part in ("--set", setting)]
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli.main", "retrain", str(recipe), "--verbose", *chosen],
        env=os.environ
        | {"EVERGREEN_HOME": str(home), "PARTNER_API_KEY": KEY, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
        # Prefect gets states and logs as from a deployment, and stores them where this test looks.
        | {
            "PREFECT_HOME": str(home / "prefect"),
            "PREFECT_LOGGING_TO_API_ENABLED": "true",
            "PREFECT_LOGGING_LEVEL": "INFO",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    listened: set[tuple[str, str]] = set()
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(process.communicate, timeout=300)
        while not said.done():
            listened |= sockets(process.pid)
            time.sleep(0.2)
    return Ran(process.returncode, said.result()[0], home, server.folder, frozenset(listened))


def sockets(pid: int) -> set[tuple[str, str]]:
    """(process, address) of all sockets at which a process and its children listen."""
    listeners = set()
    with suppress(psutil.Error):
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            with suppress(psutil.Error):
                for connection in process.net_connections("inet"):
                    if connection.status == psutil.CONN_LISTEN:
                        listeners.add((process.name(), connection.laddr.ip))
    return listeners


@pytest.fixture(scope="module")
def succeeded(tmp_path_factory: pytest.TempPathFactory, server: MlflowServer) -> tuple[Ran, Proxy]:
    """A run on its own cluster with two workers."""
    proxy = Proxy(server.port)
    ran = retrain(tmp_path_factory.mktemp("succeeded"), server, proxy.port, workers=2)
    proxy.away()
    return ran, proxy


@pytest.mark.slow
def test_a_run_listens_to_this_machine_alone(succeeded: tuple[Ran, Proxy]) -> None:
    listened = succeeded[0].listened
    names = {name for name, _ in listened}
    assert names >= {"raylet", "gcs_server"}
    assert any(name.startswith(("ray::RayTrainWorker", "ray::execute")) for name in names), names
    assert {(name, ip) for name, ip in listened if not ip.removeprefix("::ffff:").startswith("127.")} == set()


@pytest.mark.extended
def test_a_run_that_succeeds_gives_none_away(succeeded: tuple[Ran, Proxy]) -> None:
    ran, proxy = succeeded
    assert ran.status == 0, ran.said
    assert proxy.authorizations == {f"Basic {BASIC}"}
    assert {canary: ran.where(canary) for canary in CANARIES} == {canary: [] for canary in CANARIES}
    assert not any(_OF_THE_SERVER.search(file.read_bytes()) for file in ran.home.rglob("*") if file.is_file())
    assert not _OF_THE_SERVER.search(ran.said.encode())


@pytest.mark.extended
@pytest.mark.parametrize(
    ("failure", "status"), [("RuntimeError", 4), pytest.param("ConnectionError", 75, marks=pytest.mark.slow)]
)
def test_a_run_that_fails_gives_none_away(
    tmp_path: Path, server: MlflowServer, failure: str, status: int
) -> None:
    ran = retrain(tmp_path, server, server.port, failure=failure)
    assert ran.status == status, ran.said
    assert "was refused by http://metrics.example" in ran.said
    assert ("Failure 1 of 1 allowed" in ran.said) == (status == 75)
    database = b"".join(file.read_bytes() for file in (ran.home / "prefect").glob("prefect.db*"))
    assert b"was refused by http://metrics.example" in database, (
        "neither a state nor a log tells of the failure"
    )
    assert {canary: ran.where(canary) for canary in CANARIES} == {canary: [] for canary in CANARIES}


@pytest.mark.slow
def test_a_server_that_is_away_is_named_without_its_password(tmp_path: Path, server: MlflowServer) -> None:
    proxy = Proxy(server.port)
    proxy.away()
    ran = retrain(tmp_path, server, proxy.port)
    assert ran.status == 75
    assert f"http://127.0.0.1:{proxy.port}" in ran.said
    assert ran.where(PASSWORD) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:secret@host:5000/x", "http://host:5000/x"),
        ("postgresql://me:p%40ss@db/mlflow failed", "postgresql://db/mlflow failed"),
        ("postgresql+psycopg://me:pa/ss9@db/mlflow", "postgresql+psycopg://db/mlflow"),
        ("mysql://me:p@ss?#/9@db/mlflow failed", "mysql://db/mlflow failed"),
        ("https://me:pw@server/p?mail=a@b.c", "https://server/p?mail=a@b.c"),
        ("http://me:pa/ss@server:5000/x failed", "http://server:5000/x failed"),
        ("http://server:5000/#/models@champion, you@x", "http://server:5000/#/models@champion, you@x"),
        ("file:///data/a@b/c and s3://bucket/a@b", "file:///data/a@b/c and s3://bucket/a@b"),
        ("see https://u:a@b@host", "see https://host"),
        ("token@host is not a URL", "token@host is not a URL"),
        ("http://host/a@b?c=d@e", "http://host/a@b?c=d@e"),
        ("https://h/f?X-Amz-Signature=abc&x=1", "https://h/f?X-Amz-Signature=***&x=1"),
        ("https://h/f?sig=a%2Fb", "https://h/f?sig=***"),
        ("https://h/f?access_token=abc)", "https://h/f?access_token=***)"),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
    ],
)
def test_what_is_left_out_of_a_text(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown


def test_credentials_of_an_address_are_kept_from_prefects_parameters() -> None:
    """Prefect's server records a flow run's parameters as `serialize_parameters` returns them."""
    uri = f"http://writer:{PASSWORD}@host:5000"
    overrides = {"tracking": {"uri": uri, "model": "m"}, "seed": 1}
    recorded = retrain_flow.serialize_parameters({"settings": hide_credentials(overrides)})
    assert PASSWORD not in json.dumps(recorded)
    assert recorded["settings"]["tracking"]["model"] == "m"
    assert show_credentials(hide_credentials(overrides)) == overrides
    assert PASSWORD in json.dumps(retrain_flow.serialize_parameters({"settings": overrides}))


@pytest.mark.parametrize(
    ("flow", "given"),
    [(predict_flow, {"model": "m", "input": "a", "output": "b"}), (rollback_flow, {"model": "m"})],
)
def test_credentials_of_another_flow_s_address_are_kept_from_its_parameters(
    flow: Any, given: dict[str, str]
) -> None:
    uri = f"http://writer:{PASSWORD}@host:5000"
    checked = flow.validate_parameters(given | {"tracking_uri": hidden(uri)})
    assert PASSWORD not in json.dumps(flow.serialize_parameters(checked))
    assert shown(checked["tracking_uri"]) == uri
    for plain in (None, "http://host:5000"):
        assert (
            shown(flow.validate_parameters(given | {"tracking_uri": hidden(plain)})["tracking_uri"]) == plain
        )
        assert hidden(plain) == plain


def test_a_deployment_on_a_cluster_shows_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {
        "EVERGREEN_HOME": "/shared",
        "EVERGREEN_RAY_ADDRESS": "127.0.0.1:1",
        "EVERGREEN_TRACKING_URI": f"http://writer:{PASSWORD}@host:5000",
    }
    with pytest.raises(SettingError, match="EVERGREEN_TRACKING_URI: it contains credentials") as refused:
        _placed(places)
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    "overrides", [{}, {"tracking": {"model": "m"}}, {"tracking": 3}, {"tracking": {"uri": 3}}]
)
def test_settings_without_an_address_stay_as_they_are(overrides: dict[str, Any]) -> None:
    """Values that are no valid settings are refused later, with their own messages."""
    assert hide_credentials(overrides) == show_credentials(overrides) == overrides


def test_values_of_secret_variables_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARTNER_API_KEY", "abcdefgh12")
    monkeypatch.setenv("PARTNER_TOKEN", "abcdefgh")
    monkeypatch.setenv("SHORT_TOKEN", "abc")
    monkeypatch.setenv("SSL_KEY", str(tmp_path))
    monkeypatch.setenv("PARTNER_NAME", "somebody")
    text = f"abcdefgh12 and abcdefgh of somebody, abc, {tmp_path}"
    assert redact(text) == f"*** and *** of somebody, abc, {tmp_path}"
