"""Empty databases for new homes: exactly the result of the migrations, complete, and never over another file."""

import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from flows.local.prefect_server import LocalServer
from tasks.trackers import empty_stores
from tasks.trackers.embedded_store import store_file
from tasks.trackers.empty_stores import MLFLOW, PREFECT, StoreKind, copy_empty, find, main, make_all
from tasks.trackers.mlflow_store import connect
from training.storage.paths import Home

Rows = dict[str, list[tuple[object, ...]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make setup` creates."""
    folder = tmp_path_factory.mktemp("stores")
    make_all(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty folder in which this test's homes look for databases."""
    folder = tmp_path / "stores"
    folder.mkdir()
    monkeypatch.setattr(empty_stores, "FOLDER", folder)
    return folder


def contents(database: Path) -> tuple[list[list[str]], Rows]:
    """SQL of tables and indexes, as a list of lines each, and the rows of all tables.

    The lines are sorted, because the migrations write a table's constraints in the order of a Python set.
    """
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as store:
        written = store.execute("select sql from sqlite_master where sql is not null")
        schema = [sorted(line.strip(" ,\t") for line in sql.splitlines()) for (sql,) in written]
        tables = [name for (name,) in store.execute("select name from sqlite_master where type = 'table'")]
        return sorted(schema), {name: store.execute(f'select * from "{name}"').fetchall() for name in tables}


def database(kind: StoreKind, folder: Path) -> Path:
    file = find(kind, folder)
    assert file is not None
    return file


@pytest.mark.slow
def test_mlflow_s_is_what_mlflow_migrates_to_before_it_adds_an_experiment_with_a_path(
    made: Path, folder: Path, tmp_path: Path
) -> None:
    alone = Home(tmp_path / "alone")
    connect(None, alone)
    schema, rows = contents(store_file(alone))
    copied_schema, copied_rows = contents(database(MLFLOW, made))
    assert copied_schema == schema
    assert copied_rows["alembic_version"] == rows["alembic_version"] != []
    assert {name for name in rows if rows[name] != copied_rows[name]} == {"experiments"}
    assert copied_rows["experiments"] == []


@pytest.mark.extended
@pytest.mark.usefixtures("prefect_harness")
def test_prefect_s_is_what_prefect_s_server_migrates_to(made: Path) -> None:
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    url = PREFECT_API_DATABASE_CONNECTION_URL.value()
    migrated = Path(str(url).removeprefix("sqlite+aiosqlite:///"))
    schema, rows = contents(migrated)
    copied_schema, copied_rows = contents(database(PREFECT, made))
    assert copied_schema == schema
    assert copied_rows["alembic_version"] == rows["alembic_version"] != []
    assert all(not listed for name, listed in copied_rows.items() if name != "alembic_version")


@pytest.mark.slow
def test_a_new_home_begins_with_copies_that_both_libraries_take(
    made: Path, folder: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(home.prefect))
    for file in made.glob("*.db"):
        shutil.copy(file, folder)
    server = LocalServer(home)
    try:
        assert contents(home.prefect / "prefect.db") == contents(database(PREFECT, folder))
        server.wait()
    finally:
        server.end()
    client = connect(None, home)
    assert contents(store_file(home))[0] == contents(database(MLFLOW, folder))[0]
    location = client.get_experiment("0").artifact_location
    # It was created when the store was opened, not copied.
    assert not location.startswith(str(made.parent)), location
    assert [file.name for file in home.prefect.glob("*.tmp")] == []


@pytest.mark.extended
def test_a_database_is_copied_by_one_of_many_and_never_over_another(
    made: Path, folder: Path, tmp_path: Path
) -> None:
    shutil.copy(database(MLFLOW, made), folder)
    target = tmp_path / "new" / "mlflow.db"
    with ThreadPoolExecutor(16) as pool:
        copied = list(pool.map(lambda _: copy_empty(MLFLOW, target), range(16)))
    assert copied.count(True) == 1
    assert [file.name for file in target.parent.iterdir()] == ["mlflow.db"]
    target.write_bytes(b"a user's")
    assert not copy_empty(MLFLOW, target)
    assert target.read_bytes() == b"a user's"


def test_one_that_is_damaged_or_of_another_version_is_not_copied(
    made: Path, folder: Path, tmp_path: Path
) -> None:
    sound = database(MLFLOW, made)
    shutil.copy(sound, folder / sound.name.replace("mlflow-", "mlflow-0."))
    with (folder / sound.name).open("wb") as damaged:
        damaged.write(sound.read_bytes()[:-1] + b"!")
    assert not copy_empty(MLFLOW, tmp_path / "mlflow.db")
    assert not (tmp_path / "mlflow.db").exists()


def test_where_nothing_can_be_written_setting_up_goes_on_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(empty_stores, "FOLDER", tmp_path / "file" / "stores")
    assert main() == 0
    assert "New homes migrate their databases themselves" in capsys.readouterr().err
