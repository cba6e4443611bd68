"""A home keeps its identity and all of its files, whatever its folder is called and whichever file is damaged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.machine import place
from flows.cli.main import main
from flows.cli.verify import locate
from flows.local.environment import api_is_configured, prepare
from tasks.trackers.embedded_store import opened
from tasks.trackers.mlflow_store import connect
from training.errors import EXIT_BAD_SETTING, EXIT_RESOURCE, ResourceError, SettingError
from training.storage.paths import HOME_VARIABLE, Home
from training.storage.paths import home_to_write as home_of_environment
from training.storage.record_files import DamagedError

# Special characters of SQLite's and SQLAlchemy's URLs, an encoded percent sign, and a long name in UTF-8.
ODD = [
    "question?uri=true&mode=memory#fragment %3F%20 " + "größe" * 25,
    pytest.param("sharp#100% " + "größe" * 30, marks=pytest.mark.slow),
]
DATABASE = """
import asyncio
from flows.local.environment import prepare
from training.storage.paths import home_to_write

prepare(home_to_write())

from prefect.server.database import provide_database_interface
from sqlalchemy import text

async def write():
    engine = await provide_database_interface().engine()
    async with engine.begin() as connection:
        await connection.execute(text("create table proof (id integer)"))

asyncio.run(write())
"""


@pytest.fixture(params=ODD, ids=["with a question mark", "without"])
def odd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home in a folder with an unusual name; the working directory is an empty folder elsewhere."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "outer" / request.param))
    (tmp_path / "working").mkdir()
    monkeypatch.chdir(tmp_path / "working")
    return home_of_environment()


def test_a_tilde_that_no_shell_replaced_is_a_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"HOME": str(tmp_path), HOME_VARIABLE: "~/kept", "PREFECT_HOME": "~/prefect"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (tmp_path / "working").mkdir()
    monkeypatch.chdir(tmp_path / "working")
    assert home_of_environment().root == tmp_path / "kept"
    with pytest.raises(SystemExit, match=r"not deployed: .*/working has no file prefect\.yaml"):
        place()
    (tmp_path / "working" / "prefect.yaml").touch()
    assert place() == {"home": str(tmp_path / "kept"), "checkout": str(Path.cwd())}
    (tmp_path / "prefect").mkdir()
    profiles = 'active = "work"\n[profiles.work]\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n'
    (tmp_path / "prefect" / "profiles.toml").write_text(profiles)
    assert api_is_configured()
    assert [path.name for path in Path.cwd().iterdir()] == ["prefect.yaml"]


def test_the_home_directory_of_an_unknown_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, "~no-such-user/kept")
    with pytest.raises(ResourceError, match=r"EVERGREEN_HOME=~no-such-user/kept: .*whole path"):
        home_of_environment()
    with pytest.raises(SystemExit, match="not deployed: EVERGREEN_HOME=~no-such-user"):
        place()


@pytest.mark.parametrize("content", [b'active = "work', b"\xff\xfe", b"profiles = 3"])
@pytest.mark.parametrize("url", ["", "http://127.0.0.1:9/api"])
def test_a_damaged_file_of_prefects_profiles_is_named(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, url: str
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_URL", url)
    (tmp_path / "profiles.toml").write_bytes(content)
    with pytest.raises(SettingError, match=rf"{tmp_path}/profiles.toml: .*Repair the file, or move it away"):
        prepare(home)


def outside(home: Home) -> set[Path]:
    """Files and folders beside the home and in the working directory."""
    return {*home.root.parent.iterdir(), *Path.cwd().iterdir()} - {home.root}


def test_mlflows_store_lies_in_the_home(odd: Home) -> None:
    client = connect(None, odd)
    experiment = client.create_experiment("digits", (odd.mlflow_artifacts / "digits").as_uri())
    run = client.create_run(experiment)
    client.log_dict(run.info.run_id, {"said": "here"}, "proof.json")
    assert odd.mlflow_file.is_file()
    assert len(list(odd.mlflow_artifacts.rglob("proof.json"))) == 1
    assert outside(odd) == set()
    with opened(odd) as store:
        assert store.execute("select count(*) from runs").fetchone() == (1,)


@pytest.mark.extended
def test_prefects_database_lies_in_the_home(odd: Home) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", DATABASE],
        env=clean | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (odd.prefect / "prefect.db").stat().st_size > 0
    assert outside(odd) == set()


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    with pytest.raises(ResourceError, match=r"caf.*its name is not UTF-8"):
        home_of_environment()


def test_a_home_keeps_its_identity(home: Home) -> None:
    made = home.identity
    assert home.identity == Home(home.root).identity == made
    (home.root / "home-id").write_text(f"{made}\n")  # in the format of earlier versions
    assert home.identity == made


DAMAGES = [b"", b"\n", bytes(16), b"\xff\xfe", b"0123456789abcde", b"{}", b'{"identity": "0123456789abcdef"']


@pytest.mark.parametrize("content", DAMAGES)
def test_a_damaged_identity_is_no_identity(
    home: Home, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    before = home.identity
    (home.root / "home-id").write_bytes(content)
    assert home.identity not in (before, content.decode(errors="replace"))
    assert "home-id.damaged-0" in caplog.text
    home.run("digits", "0" * 64).root.mkdir(parents=True)
    (home.root / "home-id").write_bytes(content)
    with pytest.raises(
        DamagedError, match=r"home-id: damaged .*tag evergreen.home.*remove it: a new one is made"
    ):
        _ = home.identity
    (home.root / "home-id").unlink()
    assert home.identity != before


def test_a_changed_digit_is_noticed(home: Home) -> None:
    made = home.identity
    home.run("digits", "0" * 64).root.mkdir(parents=True)
    file = home.root / "home-id"
    other = "0" if made[3] != "0" else "1"
    file.write_text(file.read_text().replace(made, made[:3] + other + made[4:]))
    with pytest.raises(DamagedError, match="its checksum"):
        _ = home.identity


@pytest.mark.parametrize("named", ["", "relative"])
def test_a_working_folder_that_was_removed_is_named(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, named)
    (tmp_path / "working").mkdir()
    monkeypatch.chdir(tmp_path / "working")
    (tmp_path / "working").rmdir()
    assert main(["plan", "digits"]) == EXIT_RESOURCE
    assert (
        "the working folder, to which this path is relative, does not exist any more"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "command", [["gc", "--dry-run", "--node-cache", ""], ["verify", "", "--against", "x"]]
)
def test_an_empty_text_from_a_variable_that_is_not_set_is_refused(
    command: list[str], home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == EXIT_BAD_SETTING
    assert "empty, perhaps from a variable that is not set" in capsys.readouterr().err


def test_a_run_is_compared_with_no_run_of_an_empty_name(home: Home) -> None:
    with pytest.raises(SettingError, match="empty, perhaps from a variable"):
        locate("")
