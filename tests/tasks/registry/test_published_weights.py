"""Weights by name: from a hub that a real HTTP server plays, and from torch's cache."""

import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save
from torchvision.models import SqueezeNet1_1_Weights, squeezenet1_1
from web_site import Site, serving

from tasks.registry.initial_weights import find_start
from tasks.registry.published_weights import published_weights
from training.errors import SettingError, TransientError
from training.initial_weights import published_in
from training.settings.schema import Settings
from training.storage.files import digest_file
from training.storage.paths import Home
from training.trainers.torch.settings import TrainingSettings

TORCHVISION = "torchvision:SqueezeNet1_1_Weights.IMAGENET1K_V1"
HUB = "hub:owner/small"
_PRINT_PATH = """
import sys
from pathlib import Path
from tasks.registry.published_weights import published_weights
from training.errors import EvergreenError
from training.initial_weights import published_in
from training.storage.paths import Home

try:
    print(published_weights(Home(Path(sys.argv[1])), sys.argv[2], published_in(sys.argv[2])))
except EvergreenError as error:
    sys.exit(str(error))
"""


def taken(home: Home, reference: str) -> Path:
    published = published_in(reference)
    assert published is not None
    return published_weights(home, reference, published)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """TorchVision's weights on a site, named after the beginning of their digest; torch's cache is empty."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    site = tmp_path / "site"
    site.mkdir()
    torch.manual_seed(0)
    torch.save(squeezenet1_1().state_dict(), site / "new.pth")
    file = site / f"squeezenet1_1-{digest_file(site / 'new.pth')[:8]}.pth"
    (site / "new.pth").rename(file)
    monkeypatch.setattr(SqueezeNet1_1_Weights.IMAGENET1K_V1.value, "url", file.as_uri())
    return file


@pytest.fixture
def torch_cache(published: Path, tmp_path: Path) -> Path:
    """The file in torch's cache alone."""
    file = tmp_path / "torch" / "hub" / "checkpoints" / published.name
    file.parent.mkdir(parents=True)
    published.rename(file)
    return file


def test_torchvision_s_weights_are_taken_from_torch_s_cache_once(home: Home, torch_cache: Path) -> None:
    file = taken(home, TORCHVISION)
    assert file.is_relative_to(home.root)
    wanted = torch.load(torch_cache, weights_only=True)
    weights = load_file(file)
    assert weights.keys() == wanted.keys()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
    torch_cache.unlink()
    assert taken(home, TORCHVISION) == file


def test_a_file_in_torch_s_cache_with_other_content_is_not_used(
    home: Home, published: Path, tmp_path: Path
) -> None:
    cached = tmp_path / "torch" / "hub" / "checkpoints" / published.name
    cached.parent.mkdir(parents=True)
    cached.write_bytes(published.read_bytes()[:-1])
    wanted = torch.load(published, weights_only=True)
    weights = load_file(taken(home, TORCHVISION))
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)


def test_a_site_that_is_away_may_be_there_later(home: Home, published: Path) -> None:
    published.unlink()
    with pytest.raises(TransientError, match="can't be downloaded"):
        taken(home, TORCHVISION)
    assert not list(home.root.rglob("*.safetensors"))


def test_damaged_weights_are_downloaded_again(home: Home, published: Path) -> None:
    settings = Settings(training=TrainingSettings(init_from=TORCHVISION))
    start = find_start(home, "own", settings)
    file = taken(home, TORCHVISION)
    file.write_bytes(file.read_bytes()[:100])
    assert published.is_file()
    assert find_start(home, "own", settings) == start


def test_a_start_has_the_name_and_the_digest_of_the_weights(home: Home, torch_cache: Path) -> None:
    settings = Settings(training=TrainingSettings(init_from=TORCHVISION))
    assert settings.beside(Path("/recipe")) == settings
    start = find_start(home, "own", settings)
    assert torch_cache.is_file()
    assert start is not None
    assert start.weights is not None
    assert start.weights.name == TORCHVISION


def test_a_name_that_torchvision_does_not_know(home: Home) -> None:
    with pytest.raises(SettingError, match=r"TorchVision has no weights 'ResNet18_Weights\.NONE'"):
        taken(home, "torchvision:ResNet18_Weights.NONE")
    assert not list(home.root.rglob("*.safetensors"))


@pytest.mark.parametrize("text", ["hub:small", "hub:a/b/c", "torchvision:resnet18", "hub:a/b@"])
def test_other_texts_name_no_published_weights(text: str) -> None:
    assert published_in(text) is None


# --- the hub


@pytest.fixture
def hub() -> Iterator[Site]:
    with serving() as site:
        yield site


def printed(home: Home, hub: Site, reference: str) -> "subprocess.CompletedProcess[str]":
    """What a process prints that has this server as its hub; the library reads the variable when it is imported."""
    pytest.importorskip("huggingface_hub", reason="install the extras by: make setup EXTRAS=all")
    return subprocess.run(
        [sys.executable, "-c", _PRINT_PATH, str(home.root), reference],
        env=os.environ
        | {"HF_ENDPOINT": hub.url(""), "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.frameworks
def test_weights_of_the_hub_are_downloaded_once(home: Home, hub: Site) -> None:
    content = save({"weight": torch.arange(6.0)})

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        headers = {"ETag": '"abc"', "X-Repo-Commit": "1" * 40, "Content-Length": str(len(content))}
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(content)

    for revision in ("main", "1" * 40):
        hub.answers[f"/owner/small/resolve/{revision}/model.safetensors"] = answer
    done = printed(home, hub, HUB)
    assert done.returncode == 0, done.stderr
    file = Path(done.stdout.strip())
    assert file.is_relative_to(home.root)
    assert torch.equal(load_file(file)["weight"], torch.arange(6.0))
    asked = len(hub.requests)
    assert printed(home, hub, HUB).stdout == done.stdout
    assert len(hub.requests) == asked


@pytest.mark.frameworks
def test_a_name_that_the_hub_does_not_know(home: Home, hub: Site) -> None:
    hub.fail("/owner/small/resolve/main/model.safetensors", 404, **{"X-Error-Code": "RepoNotFound"})
    done = printed(home, hub, HUB)
    assert done.returncode == 1
    assert f"training.init_from: {HUB} can't be downloaded" in done.stderr
    assert "give the file's path" in done.stderr
    assert not list(home.root.rglob("*.safetensors"))
