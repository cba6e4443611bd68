"""The command uses Evergreen's packages even if the user has folders with the same names."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from training.errors import EXIT_BAD_SETTING

PACKAGES = ("flows", "tasks", "training", "deployments")
COMMAND = Path(sys.executable).with_name("evergreen")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project with packages named like Evergreen's."""
    for name in PACKAGES:
        package = tmp_path / "project" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f'raise ImportError("the user\'s own {name}")\n')
    return tmp_path / "project"


def run(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command in the user's project."""
    return subprocess.run(
        [str(COMMAND), *arguments],
        cwd=project,
        env=os.environ | {"EVERGREEN_HOME": str(project.parent / "home")} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_folders_on_pythonpath_do_not_replace_evergreens_packages(project: Path) -> None:
    done = run(project, "recipes", PYTHONPATH=str(project))
    assert done.returncode == 0, done.stderr
    assert "digits" in done.stdout


def test_child_processes_import_evergreens_packages_too(project: Path) -> None:
    code = (
        "import subprocess, sys; from evergreen.__main__ import prefer_own_packages; prefer_own_packages(); "
        "child = [sys.executable, '-P', '-c', 'import flows.cli.main, training.trainers.torch.worker']; "
        "sys.exit(subprocess.run(child).returncode)"
    )
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(project), str(root)])
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=os.environ | {"PYTHONPATH": path}, check=False
    )
    assert done.returncode == 0


@pytest.mark.extended
def test_workers_on_ray_import_evergreens_packages_from_such_a_folder(project: Path) -> None:
    """Ray puts the working directory first on the import path of its workers."""
    code = """
        import os
        from training.ray_cluster.cluster import ray_cluster
        from training.settings.schema import RaySettings, Settings
        import ray

        def imported():
            import flows, tasks, training.trainers.torch.worker
            return [module.__file__ for module in (flows, tasks, training.trainers.torch.worker)]

        before = os.getcwd()
        with ray_cluster(Settings(ray=RaySettings(num_cpus=1))):
            print(*ray.get(ray.remote(num_cpus=1)(imported).remote()), sep="\\n")
        assert os.getcwd() == before
        """
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(code)],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [Path(line).is_relative_to(root) for line in done.stdout.split()[-3:]] == [True] * 3


@pytest.mark.extended
def test_a_recipe_beside_such_a_folder_loads(project: Path) -> None:
    recipe = project / "mine.py"
    recipe.write_text(RECIPE)
    done = run(project, "plan", str(recipe))
    assert done.returncode == 0, done.stderr


def test_a_recipe_that_imports_from_such_a_folder_is_told_to_rename_it(project: Path) -> None:
    recipe = project / "mine.py"
    recipe.write_text("from tasks.layers import Block\n" + RECIPE)
    done = run(project, "plan", str(recipe))
    assert done.returncode == EXIT_BAD_SETTING
    assert f"{project / 'tasks'} has the name of one of Evergreen's own packages" in done.stderr
    assert "rename it" in done.stderr


RECIPE = """
from training.recipe import Recipe
from training.data.sources.digits import Digits



def build_model(shape, classes):
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


recipe = Recipe(name="mine", summary="digits", source=Digits(), build_model=build_model)
"""
