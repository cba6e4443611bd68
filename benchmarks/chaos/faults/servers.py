"""Server outages: Prefect's for a while or for good; MLflow's refuses, fails, is slow or never comes back."""

import time

from benchmarks.chaos import services
from benchmarks.chaos.faults import IN_PROCESS, Fault
from benchmarks.chaos.proxy import Mood, Proxy
from benchmarks.chaos.services import Server
from benchmarks.chaos.trial import Trial
from training.errors import EXIT_RETRY

_OUTAGE_S = 20.0
_SLOW_S = 30.0
_PATIENCE_S = "10"


def prefect_away(trial: Trial) -> None:
    """SIGKILL Prefect's server; it comes back after 5 s, after 60 s, or when the command has ended."""
    server = services.prefect_server(trial.home.root.with_suffix(".prefect"), trial.bench.environment)
    trial.stack.enter_context(services.running(server))
    trial.environment["PREFECT_API_URL"] = f"http://127.0.0.1:{server.port}/api"
    trial.start()
    moment = trial.wait_for_some_moment()
    alive = not trial.run.ended
    server.kill()
    seconds = trial.pick((5.0, 60.0, None))
    if seconds is None:
        trial.hit(f"Prefect's server is gone {moment}", alive)
        trial.expect(EXIT_RETRY)
    else:
        trial.hit(f"Prefect's server is gone for {seconds:.0f} s {moment}", alive)
        time.sleep(seconds)
    server.start()


def mlflow_away(trial: Trial) -> None:
    """MLflow's server refuses or answers 500 for 20 s, answers 30 s late, or is away until the command has ended."""
    server = services.mlflow_server(trial.home.root.with_suffix(".mlflow"), trial.bench.environment)
    trial.stack.enter_context(services.running(server))
    proxy = trial.stack.enter_context(Proxy(server.port, _SLOW_S))
    trial.settings["tracking.uri"] = f"http://127.0.0.1:{proxy.port}"
    trial.pick((_refuses, _fails, _is_slow, _is_gone))(trial, proxy, server)


def _refuses(trial: Trial, proxy: Proxy, _server: Server) -> None:
    _for_a_while(trial, proxy, Mood.REFUSE, _OUTAGE_S)


def _fails(trial: Trial, proxy: Proxy, _server: Server) -> None:
    _for_a_while(trial, proxy, Mood.FAIL, _OUTAGE_S)


def _is_slow(trial: Trial, proxy: Proxy, _server: Server) -> None:
    _for_a_while(trial, proxy, Mood.DELAY, _SLOW_S)


def _for_a_while(trial: Trial, proxy: Proxy, mood: Mood, seconds: float) -> None:
    trial.start()
    moment = trial.wait_for_some_moment()
    trial.hit(f"MLflow: {mood.value} for {seconds:.0f} s {moment}", not trial.run.ended)
    proxy.change(mood)
    time.sleep(seconds)
    proxy.change(Mood.PASS)
    trial.expect(EXIT_RETRY)


def _is_gone(trial: Trial, proxy: Proxy, server: Server) -> None:
    trial.settings["tracking.outage_s"] = _PATIENCE_S
    trial.start()
    moment = trial.wait_for_some_moment()
    trial.hit(f"MLflow's server is gone {moment}", not trial.run.ended)
    proxy.change(Mood.REFUSE)
    server.kill()
    trial.expect(EXIT_RETRY)
    server.start()
    proxy.change(Mood.PASS)


FAULTS = (
    Fault("F7", "Prefect server gone 5 s, 60 s, for good", prefect_away, (IN_PROCESS,)),
    Fault("F8", "MLflow server gone, answering 500, slow by 30 s, gone for good", mlflow_away, (IN_PROCESS,)),
)
