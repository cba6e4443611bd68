"""A path of an unknown user, or with links that point to each other, is an error that names the path."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tasks import predict
from tasks.registry.initial_weights import find_start
from tasks.verify.runs import run_of_folder
from training.data.sources.places import beside, given_path
from training.data.sources.table import Table
from training.data.sources.text import Text
from training.data.text.tokenizers_found import find_tokenizer
from training.errors import SettingError
from training.ray_cluster.node_caches import cache_folder
from training.settings.schema import Settings
from training.storage.given_paths import expanded, named, resolved
from training.storage.paths import Home
from training.trainers.torch.settings import TrainingSettings

UNKNOWN = "~no-such-user-here/data.csv"


def weights_to_start_from(path: str, home: Home) -> object:
    settings = Settings(training=TrainingSettings(init_from=path.replace(".csv", ".safetensors")))
    return find_start(home, "mine", settings)


@pytest.mark.parametrize(
    ("what", "use"),
    [
        ("input", lambda path, home: predict.predict.fn(str(home.root), "mine", path, "out.parquet")),
        ("output", lambda path, home: predict.predict.fn(str(home.root), "mine", "images", path)),
        ("run", lambda path, _: run_of_folder(path)),
        ("data.path", lambda path, _: given_path(path, "a table", "data.path")),
        ("Table(path=...)", lambda path, home: beside(Table(path, target="y"), home.root)),
        ("Text(path=...)", lambda path, home: Text(path).beside(home.root)),
        ("Text(tokenizer=...)", lambda path, home: Text(tokenizer=path).beside(home.root)),
        ("Text(tokenizer=...)", lambda path, _: find_tokenizer(path)),
        ("storage.node_cache", lambda path, _: cache_folder(path)),
        ("training.init_from", weights_to_start_from),
        (
            "training.init_from",
            lambda path, home: TrainingSettings(init_from=path.replace(".csv", ".safetensors")).beside(
                home.root
            ),
        ),
    ],
)
def test_a_home_directory_of_an_unknown_user_is_refused(
    home: Home, what: str, use: Callable[[str, Home], object]
) -> None:
    with pytest.raises(SettingError) as caught:
        use(UNKNOWN, home)
    assert str(caught.value).startswith(f"{what}: ~no-such-user-here/data.")
    assert "this machine knows no home directory ~no-such-user-here. Write the whole path" in str(
        caught.value
    )


def test_links_that_point_to_each_other_are_refused(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.symlink_to(there)
    there.symlink_to(here)
    with pytest.raises(SettingError, match=f"recipe: {here} leads to links that point to each other"):
        given_path(here, "a table")


def test_a_tilde_is_replaced_and_a_relative_path_stays_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert expanded("~/data", "input") == tmp_path / "data"
    assert expanded("data", "input") == Path("data")
    assert resolved("data", "input") == tmp_path / "data"


def test_a_link_to_a_file_keeps_its_name(tmp_path: Path) -> None:
    """As links into a cache, in which files have digests as names."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "3fa9").write_text("a,y\n" + "1,2\n3,4\n" * 20)
    link, folder = tmp_path / "rows.csv", tmp_path / "folder"
    link.symlink_to(cache / "3fa9")
    folder.symlink_to(cache)
    assert named(link, "input") == link
    assert named(folder, "input") == cache
    assert named(cache / ".." / "cache" / "3fa9", "input") == cache / "3fa9"
    assert Table(link, "y").fetch(tmp_path / "copies").root
