"""The versions of all libraries that a recipe imports are ingredients of its run key."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_runs import tiny_settings, write_recipe

from training import libraries
from training.identity import Ingredients, changes, ingredients, run_key
from training.libraries import imported_packages, library_versions
from training.recipe import load
from training.recipe_sources import RecipeRef

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """A function that installs a package with one module as pip does, or replaces it by another version."""
    site_packages = tmp_path / "site-packages"
    site_packages.mkdir()
    monkeypatch.syspath_prepend(str(site_packages))

    def installed(package: str, distribution: str, version: str, text: str = "", origin: str = "") -> None:
        folder = site_packages / package
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text(text)
        stem = distribution.replace("-", "_")
        for old in site_packages.glob(f"{stem}-*.dist-info"):
            for file in old.iterdir():
                file.unlink()
            old.rmdir()
        about = site_packages / f"{stem}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (about / "top_level.txt").write_text(package)
        if origin:
            (about / "direct_url.json").write_text(origin)
        libraries._distributions.cache_clear()

    yield installed
    libraries._distributions.cache_clear()


def recipe_with(folder: Path, line: str, name: str = "plain") -> RecipeRef:
    """A recipe with `line` inside its build_model, which planning does not execute."""
    path = Path(write_recipe(folder, name=name))
    path.write_text(path.read_text().replace("from torch import nn", f"from torch import nn\n    {line}"))
    return load(str(path))[1]


def key_parts(ref: RecipeRef) -> Ingredients:
    return ingredients(ref, tiny_settings(), "d" * 64, {})


def test_an_upgraded_library_changes_the_key_and_is_named(tmp_path: Path, install: Install) -> None:
    install("pictures", "py-pictures", "1.0.3")
    ref = recipe_with(tmp_path, "import pictures.layers as layers")
    before = key_parts(ref)
    assert before["versions"]["py-pictures"] == "1.0.3"
    install("pictures", "py-pictures", "1.0.4")
    after = key_parts(ref)
    assert run_key(before) != run_key(after)
    assert changes(before, after) == ["versions.py-pictures: 1.0.3 -> 1.0.4"]


def test_a_run_that_did_not_record_a_library_is_still_compared(tmp_path: Path, install: Install) -> None:
    install("pictures", "py-pictures", "1.0.3")
    now = key_parts(recipe_with(tmp_path, "import pictures"))
    old = json.loads(json.dumps(now))
    del old["versions"]["py-pictures"]
    assert changes(old, now) == ["versions.py-pictures: not recorded -> 1.0.3"]


def test_libraries_of_a_file_beside_the_recipe_count_and_the_file_is_none(
    tmp_path: Path, install: Install
) -> None:
    """The recipe's folder may have the same name as a library."""
    install("pictures", "py-pictures", "1.0.3")
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "layers.py").write_text("from pictures import block\nfrom . import other\n")
    versions = library_versions(recipe_with(folder, "from layers import block"))
    assert versions.keys() == {"torch", "torchvision", "numpy", "python", "py-pictures"}


def test_the_standard_library_and_what_is_missing_are_left_out(tmp_path: Path) -> None:
    versions = library_versions(recipe_with(tmp_path, "import math, not_installed_anywhere"))
    assert versions.keys() == {"torch", "torchvision", "numpy", "python"}
    assert library_versions(load("digits")[1]) == versions


def test_a_module_may_have_another_name_than_its_distribution(tmp_path: Path) -> None:
    versions = library_versions(recipe_with(tmp_path, "import sklearn.datasets, PIL.Image"))
    assert {"scikit-learn", "pillow"} <= versions.keys()


@pytest.mark.extended
@pytest.mark.parametrize("editable", [True, False], ids=["editable", "no distribution"])
def test_code_without_a_fixed_version_counts_by_its_text(
    tmp_path: Path, install: Install, editable: bool
) -> None:
    origin = json.dumps({"url": "file:///src", "dir_info": {"editable": True}}) if editable else ""
    install("ours", "ours-dist", "0.1", "A = 1", origin)
    if not editable:
        for file in (tmp_path / "site-packages").glob("*.dist-info/*"):
            file.unlink()
        libraries._distributions.cache_clear()
    ref = recipe_with(tmp_path, "import ours")
    before = key_parts(ref)
    (tmp_path / "site-packages" / "ours" / "__init__.py").write_text("A = 2")
    (said,) = changes(before, key_parts(ref))
    assert said.startswith(f"versions.{'ours-dist' if editable else 'ours'}: sha256:")
    assert "ours" not in sys.modules


@pytest.mark.extended
@pytest.mark.parametrize("with_metadata", [False, True], ids=["working copy", "sources with egg-info"])
def test_another_copy_of_an_installed_library_counts_by_its_text(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch, with_metadata: bool
) -> None:
    install("ours", "ours-dist", "0.1")
    ref = recipe_with(tmp_path, "import ours")
    assert key_parts(ref)["versions"]["ours-dist"] == "0.1"
    source = tmp_path / "src"
    (source / "ours").mkdir(parents=True)
    (source / "ours" / "__init__.py").write_text("A = 1")
    if with_metadata:
        about = source / "ours_dist.egg-info"
        about.mkdir()
        (about / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: ours-dist\nVersion: 0.1\n")
        (about / "top_level.txt").write_text("ours")
    monkeypatch.syspath_prepend(str(source))
    libraries._distributions.cache_clear()
    before = key_parts(ref)
    (source / "ours" / "__init__.py").write_text("A = 2")
    (said,) = changes(before, key_parts(ref))
    assert said.startswith("versions.ours-dist: sha256:")


def test_links_in_a_package_without_a_version_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    shared, package = tmp_path / "shared", tmp_path / "path" / "linked"
    package.mkdir(parents=True)
    shared.mkdir()
    (package / "__init__.py").touch()
    (package / "sub").symlink_to(shared)
    (shared / "back").symlink_to(package)
    (package / ".#__init__.py").symlink_to("someone@host.1")  # the lock of an editor
    digests = []
    for text in ("A = 1", "A = 2"):
        (shared / "block.py").write_text(text)
        digests.append(libraries._digest("linked"))
    assert digests[0] != digests[1]


def test_modules_that_exchange_their_places_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    files = [tmp_path / "placed" / name / "__init__.py" for name in ("", "one", "two")]
    digests = []
    for texts in (["", "A = 1", "A = 2"], ["", "A = 2", "A = 1"]):
        for file, text in zip(files, texts, strict=True):
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        digests.append(libraries._digest("placed"))
    assert digests[0].startswith("sha256:")
    assert digests[0] != digests[1]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import a.b, c as d", {"a", "c"}),
        ("from a.b import c", {"a"}),
        ("from . import a\nfrom .b import c", set()),
        ("def f():\n    import a", {"a"}),
        ("import importlib\nimportlib.import_module('a.b')\n__import__('c')", {"importlib", "a", "c"}),
        ("import_module(name)", set()),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import b", {"b"}),
        ("try:\n    import a\nexcept ImportError:\n    import b", {"a", "b"}),
    ],
)
def test_imports_are_read_from_the_source(source: str, names: set[str]) -> None:
    assert imported_packages(source) == names
