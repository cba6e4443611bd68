"""The number of CPUs that a process may use, and when a process started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from training import machine
from training.machine import available_cpus, process_start


@pytest.mark.parametrize(
    ("own", "files", "cpus"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, 8),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),
        ("0::/host/only\n", {"cpu.max": "400000 100000\n"}, 4),
        ("4:memory:/x\n2:cpu,cpuacct:/x\n", {"cpu,cpuacct/x": (200000, 100000)}, 2),
        ("4:memory:/x\n1:cpu:/docker/1\n0::/\n", {"cpu": (500000, 100000)}, 5),
        ("1:cpu:/\n", {"cpu": (-1, 100000)}, 8),
        ("4:memory:/x\n", {"memory/x/cpu.max": "100000 100000"}, 8),
        ("", {}, 8),
    ],
)
def test_the_quota_of_control_groups_counts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: str,
    files: dict[str, str | tuple[int, int]],
    cpus: int,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine, "_OWN_GROUPS", tmp_path / "own")
    (tmp_path / "own").write_text(own)
    for name, content in files.items():
        if isinstance(content, str):
            contents = {name: content}
        else:
            contents = {
                f"{name}/cpu.cfs_quota_us": f"{content[0]}\n",
                f"{name}/cpu.cfs_period_us": f"{content[1]}\n",
            }
        for file, text in contents.items():
            (tmp_path / "groups" / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "groups" / file).write_text(text)
    assert available_cpus() == cpus


def test_this_machine_has_at_least_one() -> None:
    assert 1 <= available_cpus() <= len(os.sched_getaffinity(0))


def test_all_processes_read_the_same_start_of_a_process() -> None:
    program = f"from training.machine import process_start; print(process_start({os.getpid()}))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.strip() == process_start(os.getpid())


def test_a_process_whose_name_has_a_bracket_and_one_that_is_gone(tmp_path: Path) -> None:
    odd = tmp_path / "a) 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([odd, "60"]) as process:
        boot, ticks = (process_start(process.pid) or "").split("/")
        process.kill()
    assert boot == (process_start(os.getpid()) or "").split("/")[0]
    assert int(ticks) > 0
    assert process_start(process.pid) is None
