"""The command line as a user meets it: real processes, exit statuses and messages."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from training.errors import EXIT_BAD_DATA, EXIT_BAD_SETTING, EXIT_OUTPUT_CLOSED, EXIT_RESOURCE
from training.storage.paths import Home

HEAVY = {
    "torch",
    "torchvision",
    "ray",
    "mlflow",
    "prefect",
    "pandas",
    "sklearn",
    "matplotlib",
    "jinja2",
    "PIL.Image",
}


def evergreen(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a new process."""
    environment = os.environ | {"EVERGREEN_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "flows.cli.main", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["retrai"], ["retrain"]),
        (["retrain", "digits-l"], ["digits-lightning"]),
        (["retrain", "digits", "--for"], ["--force"]),
    ],
)
def test_bash_completes_commands_recipes_and_options(
    tmp_path: Path, words: list[str], said: list[str]
) -> None:
    """As the shell asks once README's line has been evaluated; Python's `-m` has another name than `evergreen`."""
    code = "import sys; from flows.cli.main import main; sys.argv[0] = 'evergreen'; main()"
    asked = {"COMP_WORDS": " ".join(["evergreen", *words]), "COMP_CWORD": str(len(words))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | asked | {"_EVERGREEN_COMPLETE": "bash_complete", "EVERGREEN_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == said, done.stderr


@pytest.mark.extended
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("training.epoch=3", "did you mean training.epochs?"),
        ("trainig.epochs=3", "trainig.epochs: no such setting; did you mean training.epochs?"),
        ("training.learning_rate=-1", "training.learning_rate"),
        ("training.global_batch_size=65", "the nearest that does is 64"),
        ("scaling.num_workers=999", "scaling.num_workers: 999 workers need at least one CPU each"),
        ("epochs", "expected section.name=value"),
        ("training=3", "training is a section"),
        ("data.path=", "data.path: the text is empty"),
        ("tracking.uri=", "tracking.uri: the text is empty"),
        ("ray.address=", "ray.address: the text is empty"),
    ],
)
def test_a_bad_setting_is_refused_at_once(tmp_path: Path, assignment: str, said: str, force: bool) -> None:
    more = ["--force"] if force else []
    done = evergreen("retrain", "digits", "--set", assignment, *more, "--json", home=tmp_path)
    assert done.returncode == EXIT_BAD_SETTING
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["exit_status"] == EXIT_BAD_SETTING
    # The night is on record; no store and no server log was created.
    assert {entry.name for entry in tmp_path.iterdir()} == {"home-id", "locks", "nights"}


@pytest.mark.extended
@pytest.mark.parametrize(
    "arguments", [["--help"], ["recipes"], ["plan", "digits", "--json"], ["doctor", "--json"]]
)
def test_a_closed_output_is_no_error(tmp_path: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "flows.cli.main", *arguments]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(
            command,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"EVERGREEN_HOME": str(tmp_path)},
            check=False,
        )
    assert done.returncode == EXIT_OUTPUT_CLOSED
    assert "Pipe" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_terminal_that_was_closed_is_no_error(tmp_path: Path) -> None:
    """Scenario: a command in the background of an SSH session that has ended."""
    terminal, output = os.openpty()
    os.close(terminal)
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli.main", "recipes"],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"EVERGREEN_HOME": str(tmp_path)},
        check=False,
    )
    os.close(output)
    assert done.returncode == EXIT_OUTPUT_CLOSED
    assert done.stderr == ""


@pytest.mark.extended
@pytest.mark.parametrize("closed", ["stdout", "stderr"])
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["plan", "digit", "--json"], EXIT_BAD_SETTING),
        (["no-such-command"], EXIT_BAD_SETTING),
        (["doctor", "--json"], EXIT_RESOURCE),
    ],
)
def test_a_closed_output_keeps_the_status_of_an_error(
    tmp_path: Path, arguments: list[str], status: int, closed: str
) -> None:
    (tmp_path / "file").touch()
    root = "file/home" if "doctor" in arguments else "home"  # doctor reports a home that can't be created
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {closed: writer}
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli.main", *arguments],
        **streams,
        text=True,
        env=os.environ | {"EVERGREEN_HOME": str(tmp_path / root)},
        check=False,
    )
    os.close(writer)
    assert done.returncode == status
    assert "Traceback" not in (done.stderr or "") + (done.stdout or "")


@pytest.mark.parametrize(("arguments", "status"), [(["recipes"], 0), (["plan", "digit"], EXIT_BAD_SETTING)])
def test_without_output_streams_a_command_works(tmp_path: Path, arguments: list[str], status: int) -> None:
    command = [sys.executable, "-m", "flows.cli.main", *arguments]
    script = shlex.join(command) + " >&- 2>&-"
    environment = os.environ | {"EVERGREEN_HOME": str(tmp_path)}
    assert subprocess.run(["sh", "-c", script], env=environment, check=False).returncode == status


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_behind_the_output_is_reported(tmp_path: Path, options: list[str]) -> None:
    command = [sys.executable, "-m", "flows.cli.main", "recipes", *options]
    environment = os.environ | {"EVERGREEN_HOME": str(tmp_path)}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False
        )
    assert done.returncode == EXIT_RESOURCE
    assert "The disk is full" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")
@pytest.mark.parametrize("streams", ["2>/dev/full", ">/dev/full 2>/dev/full"])
@pytest.mark.parametrize("arguments", [["plan", "digit", "--json"], ["no-such-command"]])
def test_a_full_disk_behind_the_messages_keeps_the_status_of_an_error(
    tmp_path: Path, arguments: list[str], streams: str
) -> None:
    script = f"{shlex.join([sys.executable, '-m', 'flows.cli.main', *arguments])} {streams}"
    environment = os.environ | {"EVERGREEN_HOME": str(tmp_path)}
    assert subprocess.run(["sh", "-c", script], env=environment, check=False).returncode == EXIT_BAD_SETTING


_PRINTS = "from flows.cli.closed_output import lenient_output\nwith lenient_output():\n    print('✓ 猫')"


def test_characters_that_the_output_lacks_are_escaped() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PRINTS],
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u2713 \\u732b\n", "")


def test_an_unknown_recipe_is_refused_with_a_list_of_recipes(tmp_path: Path) -> None:
    done = evergreen("retrain", "digit", home=tmp_path)
    assert done.returncode == EXIT_BAD_SETTING
    assert "fashion-mnist" in done.stderr


@pytest.mark.extended
def test_missing_and_damaged_data(tmp_path: Path) -> None:
    missing = evergreen(
        "retrain", "digits", "--set", f"data.path={tmp_path / 'none'}", home=tmp_path / "home"
    )
    assert missing.returncode == EXIT_BAD_SETTING
    assert "data.path" in missing.stderr
    damaged = tmp_path / "rows.parquet"
    damaged.write_bytes(b"PAR1 cut short")
    refused = evergreen("plan", "digits", "--set", f"data.path={damaged}", home=tmp_path / "home")
    assert refused.returncode == EXIT_BAD_DATA
    assert str(damaged) in refused.stderr


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    done = evergreen("retrain", "digits", home=blocked)
    assert done.returncode == EXIT_RESOURCE
    assert "EVERGREEN_HOME" in done.stderr


@pytest.mark.extended
@pytest.mark.parametrize("command", [["recipes"], ["plan", "digits"], ["retrain", "--help"]])
def test_light_commands_import_nothing_heavy(tmp_path: Path, command: list[str]) -> None:
    program = (
        "import sys\nfrom flows.cli.main import main\n"
        f"try:\n    main({command!r})\nexcept SystemExit:\n    pass\n"
        f"print('heavy:', sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"EVERGREEN_HOME": str(tmp_path)},
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_plan_says_what_would_run(home: Home) -> None:
    done = evergreen("plan", "digits", "--set", "training.epochs=7", "--json", home=home.root)
    made = json.loads(done.stdout.splitlines()[-1])
    assert made["outcome"] == "first run of this recipe in this home"
    assert (made["settings"]["training.epochs"], made["batch_per_worker"], made["world_size"]) == (7, 32, 2)
    assert made["steps"]["prepare"].startswith("runs")


def test_help_lists_every_setting(tmp_path: Path) -> None:
    from training.settings.overrides import describe
    from training.settings.schema import Settings

    text = evergreen("retrain", "--help", home=tmp_path).stdout
    assert [name for name in describe(Settings()) if name not in text] == []
