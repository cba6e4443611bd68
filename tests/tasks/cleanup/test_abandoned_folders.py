"""Temporary folders that killed runs left: recognised as abandoned only after their process has ended."""

import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from small_runs import tiny_settings

from tasks.cleanup.abandoned_folders import abandoned_folders
from tasks.cleanup.retention import collect
from tasks.train import keep_plan
from training.data.sources.digits import Digits
from training.plan import identify
from training.ray_cluster.node_caches import in_use, node_cache
from training.recipe import load
from training.storage.files import temporary_folder
from training.storage.paths import Home
from training.storage.scratch import scratch_folder

_LEAVES_A_FOLDER = """
import os
from training.storage.files import temporary_folder
with temporary_folder("model") as folder:
    (folder / "program.pt2").write_bytes(b"weights")
    print(folder, flush=True)
    os.kill(os.getpid(), 9)
"""


def found() -> set[str]:
    return {folder.path.name for folder in abandoned_folders()}


def ended_pid() -> int:
    """Id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def session(tmp: Path, pid: int, made: float, *logs: str) -> Path:
    stamp = datetime.fromtimestamp(made).strftime("%Y-%m-%d_%H-%M-%S_%f")
    folder = tmp / "ray" / f"session_{stamp}_{pid}"
    (folder / "logs").mkdir(parents=True)
    for name in ("raylet.out", *logs):
        (folder / "logs" / name).touch()
        os.utime(folder / "logs" / name, (made - 600,) * 2)
    return folder


def test_a_temporary_folder_goes_when_its_process_is_gone(own_tmp: Path, tmp_path: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", _LEAVES_A_FOLDER], stdout=subprocess.PIPE, text=True, check=False
    )
    left = Path(killed.stdout.strip())
    assert (left.parent, left.exists()) == (own_tmp, True)
    with temporary_folder("model") as mine:
        reused = mine.with_name(f"evergreen-model-{os.getpid()}-abcdefgh")
        reused.mkdir()
        os.utime(reused, (time.time() - 86400,) * 2)  # by an earlier process with this process's id
        (own_tmp / "evergreen-notes").mkdir()  # created by a user, not by Evergreen
        assert found() == {left.name, reused.name}
        would = collect(Home(tmp_path / "home"), keep=1, dry_run=True)
        assert {removal.name for removal in would.removals} == {str(left), str(reused)}
        assert sorted(removal.bytes for removal in would.removals) == [0, len(b"weights")]
        assert left.exists()
        assert collect(Home(tmp_path / "home"), keep=1) == would
        assert (left.exists(), reused.exists(), mine.exists()) == (False, False, True)
    assert (own_tmp / "evergreen-notes").exists()


def test_the_lock_on_a_worker_s_folder_decides_and_not_its_process_id(own_tmp: Path) -> None:
    """As with a clock that was set, and in another container, where the id is that of another process or of none."""
    with scratch_folder("worker") as mine:
        os.utime(mine, (0, 0))
        elsewhere = mine.rename(own_tmp / f"evergreen-worker-{ended_pid()}-abcdefgh")
        assert found() == set()
        elsewhere.rename(mine)
    left = own_tmp / f"evergreen-worker-{os.getpid()}-abcdefgh"
    left.mkdir()
    assert found() == set()  # a worker has just made it, and has no lock yet
    (left / ".held").touch()
    assert found() == {left.name}


@pytest.mark.parametrize(
    "name",
    [
        "evergreen-model-diamonds",
        "evergreen-rows-2025",
        "evergreen-data-{pid}-backup",
        "evergreen-{pid}-abcdefgh",
    ],
)
def test_folders_that_a_user_named_like_evergreen_stay(own_tmp: Path, name: str) -> None:
    folder = own_tmp / name.format(pid=ended_pid())
    folder.mkdir()
    os.utime(folder, (time.time() - 20 * 86400,) * 2)
    assert found() == set()


def test_a_session_of_ray_goes_when_nobody_uses_it(own_tmp: Path) -> None:
    gone, now = ended_pid(), time.time()
    dead = session(own_tmp, gone, now - 60)
    session(own_tmp, os.getpid(), now)  # belongs to this process
    reused = session(own_tmp, os.getpid(), now - 7 * 86400)
    session(own_tmp, gone, now - 61, "log_monitor.log")  # by another Ray than that of Evergreen's runs
    in_use = session(own_tmp, gone, now - 62)  # the cluster outlived the command that started it
    elsewhere = session(own_tmp, gone, now - 63)  # on another machine that shares the temporary files
    (elsewhere / "logs" / "debug_state.txt").touch()
    (own_tmp / "ray" / "session_latest").symlink_to(dead)
    raylet = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)", f"--session-dir={in_use}"],
        stdout=subprocess.PIPE,
    )
    try:
        assert raylet.stdout is not None
        raylet.stdout.readline()
        assert found() == {dead.name, reused.name}
    finally:
        raylet.kill()
        raylet.wait()
    assert found() == {dead.name, reused.name, in_use.name}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
def test_folders_of_other_users_and_links_stay(own_tmp: Path) -> None:
    theirs = session(own_tmp, ended_pid(), time.time() - 60)
    os.chown(theirs, 12345, 12345)
    elsewhere = own_tmp / "elsewhere"
    elsewhere.mkdir()
    (own_tmp / f"evergreen-model-{ended_pid()}-abcdefgh").symlink_to(elsewhere)
    assert found() == set()


def test_datasets_in_a_node_s_cache_that_nothing_uses_go(own_tmp: Path, tmp_path: Path) -> None:
    """Also in a folder that the settings of a run name; a version that was used this week stays."""
    home = Home(tmp_path / "home")
    _, ref = load("digits")
    options = tiny_settings(
        storage={"url": f"file://{tmp_path}/store", "node_cache": str(tmp_path / "cache")}
    )
    keep_plan(identify(home, ref, options, Digits().fetch(home.sources / "digits")))
    old, new = [], []
    for cache in (node_cache(None), node_cache(str(tmp_path / "cache"))):
        for name, folders in (("01" * 8, old), ("0a" * 8, new)):
            folders.append(cache / "datasets" / "digits" / name)
            folders[-1].mkdir(parents=True)
            (folders[-1] / "part.parquet").write_bytes(b"rows")
        os.utime(old[-1], (0, 0))
    with in_use(old[0]):
        assert [removal.name for removal in collect(home, keep=1, dry_run=True).removals] == [str(old[1])]
    would = collect(home, keep=1, dry_run=True).removals
    assert [(removal.kind, removal.name, removal.bytes) for removal in would] == [
        ("cached dataset", str(folder), 4) for folder in old
    ]
    assert collect(home, keep=1).removals == would
    assert [folder.exists() for folder in (*old, *new)] == [False, False, True, True]
