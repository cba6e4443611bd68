"""The doctor's checks of MLflow's store: damage, the process that holds it, and a remedy that keeps every byte."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import contextmanager

import pytest
from small_runs import tiny_settings, write_recipe

from tasks.doctor import store
from tasks.registry.lock import registry_lock
from tasks.trackers.embedded_store import schema
from tasks.trackers.mlflow_run import connect, open_run
from tasks.train import keep_plan
from training.data.sources.digits import Digits
from training.plan import identify
from training.recipe import load


@contextmanager
def held(file):
    """A file lock that another process holds."""
    code = f"import filelock, time\nwith filelock.FileLock({str(file)!r}):\n print('held', flush=True)\n time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield
    process.kill()
    process.wait()


def test_runs_whose_process_is_gone(home):
    client = connect(None, home)
    experiment = client.create_experiment("digits")
    for recipe, status in (("digits", "RUNNING"), ("other", "FINISHED")):
        run = client.create_run(experiment, tags={"evergreen.recipe": recipe})
        client.update_run(run.info.run_id, status=status)

    def unfinished():
        return {
            check.name: check
            for check in store.embedded_store_checks(home)
            if check.name.startswith("run of")
        }

    assert unfinished().keys() == {"run of digits"}
    assert unfinished()["run of digits"].remedy.startswith("`evergreen retrain digits`, with the same --set")
    home.locks.mkdir(exist_ok=True)
    with held(home.locks / "run-digits.lock"):
        assert unfinished() == {}
    assert unfinished().keys() == {"run of digits"}


def test_an_unfinished_run_of_a_recipe_of_the_users_own_is_named_by_its_path(home, tmp_path):
    file = write_recipe(tmp_path / "own", name="scans")
    plan = identify(home, load(file)[1], tiny_settings(), Digits().fetch(home.sources))
    keep_plan(plan)
    open_run(connect(None, home), plan)
    [check] = [check for check in store.embedded_store_checks(home) if check.name == "run of scans"]
    assert check.remedy.startswith(f"`evergreen retrain {file}`")


def at_revision(home, revision):
    """Create a store with the tables of an older MLflow."""
    from alembic import command
    from mlflow.store.db.utils import _get_alembic_config
    from mlflow.store.tracking.dbmodels.initial_models import Base
    from sqlalchemy import create_engine

    engine = create_engine(home.mlflow_uri)
    Base.metadata.create_all(engine)
    config = _get_alembic_config(home.mlflow_uri)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()


@pytest.mark.slow
def test_a_store_of_an_older_mlflow_and_its_upgrade(home):
    at_revision(home, "e1f2a3b4c5d6")
    [check] = store.embedded_store_checks(home)
    assert check.ok is False
    assert "its tables are of revision e1f2a3b4c5d6" in check.found
    copy, upgrade = check.remedy.partition("(")[2].split("), then: ")
    subprocess.run(["sh", "-c", copy], check=True)
    assert (home.root / "mlflow.db.before-upgrade").read_bytes() == (home.root / "mlflow.db").read_bytes()
    subprocess.run(
        ["sh", "-c", upgrade.replace("mlflow", f"{sys.executable} -m mlflow", 1)],
        check=True,
        capture_output=True,
    )
    connect(None, home)
    assert next(store.embedded_store_checks(home)).ok


def test_a_store_of_a_newer_mlflow(home):
    connect(None, home)
    with sqlite3.connect(home.root / "mlflow.db") as made:
        assert schema(made).revision == schema(made).newest
        made.execute("update alembic_version set version_num = 'ffff00001111'")
    [check] = store.embedded_store_checks(home)
    assert check.ok is False
    assert "A newer MLflow" in check.remedy
    assert "upgrade" not in check.remedy


def test_a_locked_store_names_its_holder(home):
    connect(None, home)
    file = home.root / "mlflow.db"
    code = (
        "import sqlite3, time\n"
        f"store = sqlite3.connect({str(file)!r}, isolation_level=None)\n"
        "store.execute('begin exclusive')\n"
        "print('held', flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        [check] = store.embedded_store_checks(home)
        assert check.ok is False
        assert "database is locked" in check.found
        assert f"open in process {holder.pid} " in check.found
        assert check.remedy.startswith(f"Wait until the process ends, or end the process: kill {holder.pid}.")
        assert not {"delete", "remove", "rm", "away"} & set(check.remedy.split())
        os.kill(holder.pid, signal.SIGTERM)
    assert next(store.embedded_store_checks(home)).ok


def test_damage_that_quick_check_reports(home):
    """SQLite reports such damage as text, so the error that the check raises has no code of SQLite."""
    check = store.unusable_check(home.root / "mlflow.db", sqlite3.DatabaseError("row 12 missing from index"))
    assert check.found.endswith("mlflow.db: row 12 missing from index")
    assert check.remedy.startswith("Restore a backup of the file.")


def test_a_store_locked_by_an_unknown_process(home):
    locked = sqlite3.OperationalError("database is locked")
    locked.sqlite_errorcode = sqlite3.SQLITE_BUSY
    (home.root / "mlflow.db").touch()
    check = store.unusable_check(home.root / "mlflow.db", locked)  # no process has the file open
    assert "Wait until the process ends" in check.remedy
    assert not {"delete", "remove", "rm", "away"} & set(check.remedy.split())


def test_the_store_is_read_and_not_changed(home):
    assert next(store.embedded_store_checks(home)).ok is None
    assert not (home.root / "mlflow.db").exists()
    client = connect(None, home)
    client.create_registered_model("digits")
    client.create_model_version("digits", source=str(home.root))
    client.set_registered_model_alias("digits", "champion", "1")
    before = (home.root / "mlflow.db").read_bytes()
    assert next(store.embedded_store_checks(home)).found == "1 models, 1 versions"
    assert (home.root / "mlflow.db").read_bytes() == before
    assert store.opened_store_check(home, None).found == 'digits {"champion": 1}'
    with registry_lock(client, home, "digits"):
        held = store.opened_store_check(home, None)
        assert (held.ok, "locked: digits by process" in held.found) == (None, True)
    assert store.opened_store_check(home, None).ok


def test_a_damaged_store_is_found(home):
    file = home.root / "mlflow.db"
    with sqlite3.connect(file) as made:
        made.execute("create table t (x)")
    [check] = store.embedded_store_checks(home)
    assert check.ok is False
    assert "no such table" in check.found
    file.write_bytes(b"no database " * 1000)
    [check] = store.embedded_store_checks(home)
    assert check.ok is False
    assert str(file) in check.found


def test_a_folder_at_the_stores_path_is_an_error(home):
    (home.root / "mlflow.db").mkdir()
    [check] = store.embedded_store_checks(home)
    assert check.ok is False
    assert str(home.root / "mlflow.db") in check.found


def test_a_store_that_is_no_server_is_opened(home, tmp_path):
    database = f"sqlite:///{tmp_path / 'shared.db'}"
    connect(database, home).create_registered_model("leaves")
    [check] = database_checks(home, database)
    assert (check.ok, check.found) == (True, "leaves {}")
    [check] = database_checks(home, database, deep=True)  # once
    assert check.ok


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("sqlite:///{}/gone.db", "there is no file {}/gone.db"),
        ("sqlite:///file:{}/gone.db?uri=true", "there is no file {}/gone.db"),
        ("localhost:5000", "localhost:5000 is not where MLflow can record"),
        ("postgresql://me:hidden@127.0.0.1:9/models", "127.0.0.1:9/models"),
    ],
)
def test_a_store_that_cannot_be_opened_is_a_failed_check_and_is_not_created(home, tmp_path, uri, message):
    [check] = database_checks(home, uri.format(tmp_path))
    assert check.ok is False
    assert message.format(tmp_path) in check.found
    assert "hidden" not in check.found
    assert check.remedy
    assert not (tmp_path / "gone.db").exists()


def database_checks(home, uri, deep=False):
    """The checks of the store at `uri`, without those of the home."""
    return [check for check in store.store_checks(home, uri, deep) if check.name not in ("home", "locks")]
