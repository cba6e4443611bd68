"""I9, for Prefect: no flow run is Running after its process has ended, on the home's or on a configured server."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psutil

from tasks.doctor.prefect_server import configured_server
from tasks.doctor.store import holders
from tasks.verify.evidence import Evidence
from tasks.verify.finding import NoEvidence, Outcome, judged
from tasks.verify.residue import is_held
from training.storage.run_lock import lock_file

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

_ACTIVE = (
    "select flow.name, flow_run.name, coalesce(flow_run.start_time, flow_run.created) "
    "from flow_run join flow on flow.id = flow_run.flow_id where flow_run.state_type in ('RUNNING', 'CANCELLING')"
)
_FLOWS = ["retrain", "tune", "prepare-data"]  # a process that runs these flows holds the recipe's lock
_TIMEOUT_S = 10.0


def own_server(run: Evidence) -> Outcome:
    """Check the database of the Prefect servers that this home's commands start.

    Such a server ends with its command. So an active flow run is alive only if a process that has the database open,
    or that process's parent, is older than the flow run.
    """
    file = run.home.prefect / "prefect.db"
    if not file.is_file():
        return Outcome(True, "no command of this home has started a server")
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)) as store:
            active = store.execute(_ACTIVE).fetchall()
    except sqlite3.Error as error:
        raise NoEvidence(f"{file}: {error}") from error
    oldest = min(_began(holders(file)), default=time.time()) if active else 0.0
    dead = [
        f"{flow} {name} is Running since {start}, and its process is gone"
        for flow, name, start in active
        if _seconds(start) < oldest
    ]
    return judged(dead, f"{len(active) or 'none'} Running")


def configured(run: Evidence) -> Outcome:
    """Check the Prefect server that the user has configured; other homes may report to the same server."""
    server = configured_server()
    if server is None:
        return Outcome(True, "none is configured")
    try:
        flow_runs = _active_there()
    except Exception as error:  # httpx, TLS and JSON raise many kinds
        raise NoEvidence(f"{server.url} does not answer ({type(error).__name__}: {error})") from error
    states = {f"{flow_run.name} ({flow_run.id})": _is_alive(run, flow_run) for flow_run in flow_runs}
    dead = [f"{name} is Running, and its process is gone" for name, alive in states.items() if alive is False]
    unsure = [name for name, alive in states.items() if alive is None]
    if unsure and not dead:
        raise NoEvidence(
            f"{'; '.join(unsure)}: Running, but in no process of this home; another home may have started it"
        )
    return judged(dead, f"{server.url}: {len(states) or 'none'} Running")


def _active_there() -> "list[FlowRun]":
    from prefect.client.orchestration import get_client
    from prefect.client.schemas import filters
    from prefect.client.schemas.objects import StateType

    states = filters.FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.CANCELLING])
    with get_client(httpx_settings={"timeout": _TIMEOUT_S}, sync_client=True) as client:
        return client.read_flow_runs(
            flow_filter=filters.FlowFilter(name=filters.FlowFilterName(any_=_FLOWS)),
            flow_run_filter=filters.FlowRunFilter(state=filters.FlowRunFilterState(type=states)),
        )


def _is_alive(run: Evidence, flow_run: "FlowRun") -> bool | None:
    """Whether a process works on a flow run; None when that can't be determined from here."""
    plan: dict[str, Any] = flow_run.parameters.get("plan") or {}
    given = str(flow_run.parameters.get("recipe", ""))
    tagged = [tag.removeprefix("recipe:") for tag in flow_run.tags if tag.startswith("recipe:")]
    recipe = (
        plan.get("recipe", {}).get("name") or next(iter(tagged), "") or Path(given).name.removesuffix(".py")
    )
    if is_held(lock_file(run.home, recipe)):
        return True
    # The process is on the worker's machine, which Prefect does not name.
    pid = flow_run.infrastructure_pid or ""
    if pid.isdigit() and psutil.pid_exists(int(pid)):
        return True
    if plan.get("home") == str(run.home.root):
        return False
    with suppress(NoEvidence):  # without a store, this home has written nothing
        return False if run.store.has_flow_run(str(flow_run.id)) else None
    return None


def _began(processes: list[psutil.Process]) -> Iterator[float]:
    """Start times of these processes and of their parents, in seconds since 1970."""
    for process in processes:
        with suppress(psutil.Error):
            yield process.create_time()
            parent = process.parent()
            if parent is not None and parent.pid != 1:
                yield parent.create_time()


def _seconds(text: str) -> float:
    """A time from Prefect's database, which is in UTC, as seconds since 1970."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
