"""The code never unpickles, evaluates text or listens to other machines; models and settings can't enable that."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from dangers import dangers

import flows
from tasks.registry.safe_loading import NO_PICKLE
from tasks.trackers.mlflow_run import connect
from training.storage.paths import Home

ROOT = Path(flows.__file__).parent.parent
FOLDERS = ("flows", "tasks", "training", "deployments")
EXTRAS = ("lightning", "accelerate", "transformers", "keras")  # the core installation goes without them
CODE = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))


@pytest.mark.extended
@pytest.mark.parametrize("file", CODE, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_line_runs_what_it_reads_or_lets_others_in(file: Path) -> None:
    assert list(dangers(file.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "line",
    [
        "pickle.load(file)",
        "pickle.loads(content)",
        "cloudpickle.loads(content)",
        "pickle.Unpickler(file)",
        "joblib.load(path)",
        "from pickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=flag)",
        "load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "torch.jit.load(path)",
        "eval(text)",
        "exec(text)",
        "os.system(text)",
        "subprocess.run(text, shell=True)",
        "yaml.load(text)",
        "requests.get(url, verify=False)",
        "archive.extractall(folder)",
        "tempfile.mktemp()",
        "server.bind(('0.0.0.0', 0))",
        "os.environ['RAY_DATA_AUTOLOAD_PYEXTENSIONTYPE'] = '1'",
    ],
)
def test_the_search_finds(line: str) -> None:
    assert len(list(dangers(line))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(path, weights_only=True)",
        "pickle.dumps(value)",
        "json.loads(text)",
        "yaml.safe_load(text)",
        "wandb.login(verify=False)",
    ],
)
def test_the_search_lets_pass(line: str) -> None:
    assert list(dangers(line)) == []


def test_unpickling_of_models_is_off_whatever_the_user_has_set(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "true")
    connect(None, home)
    from mlflow.environment_variables import MLFLOW_ALLOW_PICKLE_DESERIALIZATION

    assert MLFLOW_ALLOW_PICKLE_DESERIALIZATION.get() is False
    assert NO_PICKLE == {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}


def test_no_other_code_touches_that_switch() -> None:
    name = "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"
    files = {str(file.relative_to(ROOT)) for file in CODE if name in file.read_text(encoding="utf-8")}
    assert files == {"tasks/trackers/mlflow_store.py"}


@pytest.mark.extended
def test_importing_all_of_evergreen_sets_no_variable_of_rays_loaders() -> None:
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in CODE]
    program = (
        "import importlib, os, sys\n"
        "before = dict(os.environ)\n"
        "for name in sys.argv[1:]:\n"
        "    try: importlib.import_module(name)\n"
        f"    except ModuleNotFoundError as error: assert error.name.split('.')[0] in {EXTRAS}, error\n"
        "changed = {name for name in os.environ if os.environ[name] != before.get(name)}\n"
        "print({name for name in changed if name.startswith('RAY_DATA')})\n"
    )
    names = [name.removesuffix(".__init__") for name in modules if "recipes" not in name]
    done = subprocess.run(
        [sys.executable, "-c", program, *names],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "set()"
