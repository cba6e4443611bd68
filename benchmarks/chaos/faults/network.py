"""Network faults: the link between two Ray nodes goes down or loses packets, and Ray's remote calls get lost."""

import json
import shutil
import subprocess
import time
from contextlib import AbstractContextManager, ExitStack

from benchmarks.chaos import services
from benchmarks.chaos.faults import ON_RAY, Fault
from benchmarks.chaos.trial import Trial
from training.storage.paths import HOME_VARIABLE

_DOWN_S = 10.0
_CALLS = ("*",)


def lose_calls(trial: Trial) -> None:
    """Each of Ray's remote calls loses its request or its reply with a probability of a few percent."""
    percent = trial.pick((2, 5, 10))
    # A worker start whose calls were lost never ends; a short timeout leaves time for several starts in a trial.
    trial.settings["failure.worker_start_timeout_s"] = "60"
    lost = {"num_failures": -1, "req_failure_prob": percent, "resp_failure_prob": percent}
    trial.start(RAY_testing_rpc_failure=json.dumps(dict.fromkeys(_CALLS, lost)))
    trial.hit(f"{percent} % of requests and of answers of Ray's calls are lost")


def cut_network(trial: Trial) -> None:
    """The link between two nodes is down for 10 s, down until the command ends, loses 30 % of packets, or is slow."""
    with ExitStack() as setup:
        names = _namespaces(setup, trial)
        _two_nodes(setup, trial, names)
        trial.settings["scaling.placement_strategy"] = "STRICT_SPREAD"
        trial.settings["scaling.cpus_per_worker"] = "1"
        trial.settings["scaling.network_interface"] = "ev0"
        del trial.settings["ray.num_cpus"]
        # Without the second node no worker start can succeed; the command must report that within the trial's time.
        trial.settings |= {"failure.worker_start_timeout_s": "45", "failure.max_failures": "1"}
        trial.stack.push(setup.pop_all())
    trial.start(["ip", "netns", "exec", names[0]])
    step = trial.wait_for_some_step()
    # The kernel may lack netem.
    shapes = (_lossy, _slow) if _shape(names, "delay", "0ms").returncode == 0 else ()
    trial.pick((_down_for_a_while, _down, *shapes))(trial, names, step)


def _down_for_a_while(trial: Trial, names: tuple[str, str], step: int) -> None:
    trial.hit(f"link down for {_DOWN_S:.0f} s at step {step}", not trial.run.ended)
    _ip("-n", names[1], "link", "set", "ev0", "down")
    time.sleep(_DOWN_S)
    _ip("-n", names[1], "link", "set", "ev0", "up")
    _go_on(trial, names)


def _down(trial: Trial, names: tuple[str, str], step: int) -> None:
    trial.hit(f"link down at step {step}", not trial.run.ended)
    _ip("-n", names[1], "link", "set", "ev0", "down")
    trial.wait()
    _ip("-n", names[1], "link", "set", "ev0", "up")
    # Ray has removed the node from the cluster, and its processes end when they learn that; start a new node.
    trial.stack.enter_context(_second_node(trial, names))
    _go_on(trial, names)


def _lossy(trial: Trial, names: tuple[str, str], step: int) -> None:
    _shaped(trial, names, ("loss", "30%"), f"30 % of packets lost at step {step}")


def _slow(trial: Trial, names: tuple[str, str], step: int) -> None:
    _shaped(trial, names, ("delay", "300ms"), f"300 ms more a packet at step {step}")


def _shaped(trial: Trial, names: tuple[str, str], how: tuple[str, str], what: str) -> None:
    made = _shape(names, *how)
    trial.hit(what if not made.returncode else f"{what} ({made.stderr.strip()})", not made.returncode)
    _go_on(trial, names)


def _shape(names: tuple[str, str], *how: str) -> "subprocess.CompletedProcess[str]":
    """Set the behaviour of the second node's end of the link with netem, if the kernel can."""
    shape = ["ip", "netns", "exec", names[1], "tc", "qdisc", "replace", "dev", "ev0", "root", "netem", *how]
    return subprocess.run(shape, capture_output=True, text=True, check=False)


def _go_on(trial: Trial, names: tuple[str, str]) -> None:
    """Restart the command inside the namespace until it succeeds."""
    while trial.wait() != 0 and len(trial.runs) < 5:
        trial.start(["ip", "netns", "exec", names[0]])


def _namespaces(setup: ExitStack, trial: Trial) -> tuple[str, str]:
    """Create two network namespaces with a link between them; returns their names."""
    mark = trial.home.root.parent.name[-6:]
    names = f"ev{mark}a", f"ev{mark}b"
    for name in names:
        _ip("netns", "add", name)
        setup.callback(_ip, "netns", "del", name)
    _ip("-n", names[0], "link", "add", "ev0", "type", "veth", "peer", "name", "ev0", "netns", names[1])
    for number, name in enumerate(names, start=1):
        _ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "ev0")
        for link in ("lo", "ev0"):
            _ip("-n", name, "link", "set", link, "up")
    return names


def _two_nodes(setup: ExitStack, trial: Trial, names: tuple[str, str]) -> None:
    """Start a Ray node of one CPU in each namespace, for the trial to compute on."""
    folder, environment = trial.bench.folder / "n", trial.bench.environment
    inside = ["ip", "netns", "exec", names[0]]
    head = setup.enter_context(services.ray_head(folder, environment, 1, "10.77.0.1", inside))
    trial.environment |= head.environment
    trial.settings["ray.address"] = head.address
    setup.enter_context(_second_node(trial, names))


def _second_node(trial: Trial, names: tuple[str, str]) -> AbstractContextManager[None]:
    """A Ray node of one CPU in the second namespace."""
    environment = trial.bench.environment | trial.environment
    del environment[HOME_VARIABLE]  # it marks the processes that must end with the command
    inside = ["ip", "netns", "exec", names[1]]
    head = trial.settings["ray.address"]
    return services.ray_worker(trial.bench.folder / "n", environment, head, "10.77.0.2", inside)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _no_namespaces() -> str | None:
    if not shutil.which("ip"):
        return "network namespaces: `ip` is not installed"
    tried = subprocess.run(
        ["ip", "netns", "add", "evergreen-try"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        return f"network namespaces: {tried.stderr.strip()}"
    _ip("netns", "del", "evergreen-try")
    return None


FAULTS = (
    Fault("F17", "network loss between two nodes", cut_network, (ON_RAY,), True, unavailable=_no_namespaces),
    Fault("F18", "lost Ray calls", lose_calls, (ON_RAY,), own_services=True),
)
