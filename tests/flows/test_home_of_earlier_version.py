"""A home that an earlier commit's commands wrote is opened by the present ones: nothing in it is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.datasets import load_digits

pytestmark = pytest.mark.extended

COMMIT = "5f53911"  # before problems and trainers were chosen by the recipe; its records name neither
REPOSITORY = Path(__file__).parents[2]
EARLIER, PRESENT = "flows.cli", "evergreen"
TRAIN_HERE = ("--set", "scaling.num_workers=0", "--json")
FLOOR = ("--set", "gate.floor=0")
IMAGES = 20


def git(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the code of the earlier commit, a home, and images of digits."""
    if git("cat-file", "-e", f"{COMMIT}^{{commit}}").returncode:
        assert git("rev-parse", "--is-shallow-repository").stdout.strip() == b"true"
        pytest.skip(f"a shallow clone, whose history has no commit {COMMIT}")
    folder = tmp_path_factory.mktemp("earlier")
    packed = git("archive", COMMIT, "flows", "tasks", "training")
    for name in ("code", "images", "home"):
        (folder / name).mkdir()
    subprocess.run(["tar", "-x", "-C", folder / "code"], input=packed.stdout, check=True)
    for number, pixels in enumerate(load_digits().images[:IMAGES]):
        Image.fromarray((pixels * 15.9).astype(np.uint8)).save(folder / "images" / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="module")
def champions(folder: Path) -> list[dict[str, Any]]:
    """Two versions that the earlier commit promoted, one after the other."""
    weak = evergreen(folder, EARLIER, "retrain", "digits", *TRAIN_HERE, "--set", "training.epochs=2", *FLOOR)
    strong = evergreen(folder, EARLIER, "retrain", "digits", *TRAIN_HERE, "--set", "training.epochs=6")
    return [weak, strong]


def evergreen(folder: Path, module: str, *arguments: str) -> Any:
    """Run a command in the home; returns the JSON that `--json` prints, or None."""
    code = folder / "code" if module == EARLIER else REPOSITORY
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | {"PYTHONPATH": str(code), "EVERGREEN_HOME": str(folder / "home")},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (arguments, done.stdout[-3000:], done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1]) if "--json" in arguments else None


def answers(folder: Path) -> list[Any]:
    """What the champion says of the images."""
    out = folder / "answers.parquet"
    evergreen(folder, PRESENT, "predict", "digits", str(folder / "images"), str(out))
    rows = pq.read_table(out).to_pylist()
    out.unlink()
    assert len(rows) == IMAGES
    return rows


def test_the_present_version_goes_on_with_an_earlier_version_s_home(
    folder: Path, champions: list[dict[str, Any]]
) -> None:
    assert [champion["verdict"] for champion in champions] == ["promoted", "promoted"]
    evergreen(folder, PRESENT, "verify", champions[1]["run_key"])
    earlier = answers(folder)
    planned = evergreen(folder, PRESENT, "plan", "digits", "--json")
    assert planned["run_key"] not in {champion["run_key"] for champion in champions}
    evergreen(folder, PRESENT, "gc", "--dry-run")

    # The same model again, judged against the earlier version's champion: not better, so not promoted.
    kept = evergreen(folder, PRESENT, "retrain", "digits", *TRAIN_HERE, "--set", "training.epochs=6")
    assert (kept["version"], kept["verdict"]) == ("3", "kept")
    assert kept["weights_digest"] == champions[1]["weights_digest"]
    assert answers(folder) == earlier

    assert evergreen(folder, PRESENT, "rollback", "digits", "--json") == {
        "model": "digits",
        "from": "2",
        "to": "1",
    }
    assert answers(folder) != earlier
    better = ("--set", "training.epochs=6", "--set", "seed=1")
    promoted = evergreen(folder, PRESENT, "retrain", "digits", *TRAIN_HERE, *better)
    assert (promoted["version"], promoted["verdict"]) == ("4", "promoted")
    for release in (champions[1], kept, promoted):
        evergreen(folder, PRESENT, "verify", release["run_key"])
    assert evergreen(folder, PRESENT, "rollback", "digits", "--json") == {
        "model": "digits",
        "from": "4",
        "to": "1",
    }
