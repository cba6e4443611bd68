"""The download step: retries when a server is down, fails at once for wrong data, and skips finished downloads."""

import gzip
import hashlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from small_runs import tiny_settings
from web_site import Site, serving

from tasks.download import download
from training.data.sources.idx import FILES
from training.errors import DataError, TransientError
from training.records import SourceFiles
from training.storage.paths import Home

pytestmark = pytest.mark.usefixtures("prefect_harness")

RECIPE = """
from training.recipe import Recipe
from training.data.sources.idx import IdxFiles
from training.data.sources.published import Download, Publication

recipe = Recipe("small", "for a test", IdxFiles("small", published=Publication({mirrors}, {files})), build_model=print)
"""


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as web_site:
        yield web_site


@pytest.fixture
def recipe(site: Site, tmp_path: Path) -> str:
    """A recipe whose four files are on the site."""
    files = []
    for (_, part), name in FILES.items():
        shape = (4, 2, 2) if part == "images" else (4,)
        sizes = b"".join(size.to_bytes(4, "big") for size in shape)
        packed = gzip.compress(bytes([0, 0, 8, len(shape)]) + sizes + np.zeros(shape, np.uint8).tobytes())
        sha256 = hashlib.sha256(packed).hexdigest()
        files.append(f"Download({name + '.gz'!r}, sha256={sha256!r}, size={len(packed)})")
        site.give(f"/{name}.gz", packed)
    file = tmp_path / "small.py"
    file.write_text(RECIPE.format(mirrors=json.dumps([site.url("")]), files=f"[{', '.join(files)}]"))
    return str(file)


def downloaded(recipe: str, home: Home) -> SourceFiles:
    impatient = download.with_options(retry_delay_seconds=0.0)
    return impatient(recipe, tiny_settings(), str(home.root))


FIRST = f"/{next(iter(FILES.values()))}.gz"


def test_a_server_that_is_down_for_a_while_is_asked_again(site: Site, recipe: str, home: Home) -> None:
    good, left = site.answers[FIRST], [503, 500, 429]
    site.fail("/down", 503)

    def burst(handler: object) -> None:
        (site.answers["/down"] if left and left.pop() else good)(handler)  # type: ignore[arg-type]

    site.answers[FIRST] = burst
    files = downloaded(recipe, home)
    assert (files.kind, files.files) == ("idx", 4)
    assert site.requests.count(FIRST) == 4
    assert len(site.requests) == 7
    assert downloaded(recipe, home) == files
    assert len(site.requests) == 7


def test_a_server_that_stays_down_is_given_up_for_now(site: Site, recipe: str, home: Home) -> None:
    site.fail(FIRST, 503)
    with pytest.raises(TransientError, match="answered 503"):
        downloaded(recipe, home)
    assert site.requests == [FIRST] * 4


def damage(site: Site) -> None:
    """Answer at /damaged with the content of FIRST in reverse order: as many bytes, but others."""
    with urllib.request.urlopen(site.url(FIRST)) as response:
        site.give("/damaged", response.read()[::-1])
    site.requests.clear()


def test_a_file_that_arrives_damaged_is_fetched_again(site: Site, recipe: str, home: Home) -> None:
    damage(site)
    answers = [site.answers["/damaged"], site.answers["/damaged"], site.answers[FIRST]]
    site.answers[FIRST] = lambda handler: answers.pop(0)(handler)
    assert downloaded(recipe, home).files == 4
    assert site.requests.count(FIRST) == 3


def test_a_file_that_stays_damaged_is_given_up_for_now(site: Site, recipe: str, home: Home) -> None:
    damage(site)
    site.answers[FIRST] = site.answers["/damaged"]
    with pytest.raises(TransientError, match="wrong sha256"):
        downloaded(recipe, home)
    assert site.requests == [FIRST] * 4
    assert not [path for path in home.sources.rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.parametrize("wrong", ["gone", "other bytes", "more bytes", "elsewhere"])
def test_what_will_not_pass_is_asked_once(site: Site, recipe: str, home: Home, wrong: str) -> None:
    if wrong == "gone":
        site.fail(FIRST, 404)
    elif wrong == "elsewhere":
        site.fail(FIRST, 302, Location="http://localhost:1/")
    else:
        site.give(FIRST, bytes(10) if wrong == "other bytes" else bytes(100_000))
    with pytest.raises(DataError, match=FIRST):
        downloaded(recipe, home)
    assert site.requests == [FIRST]
    assert not [path for path in home.sources.rglob("*") if path.is_file() and path.suffix != ".lock"]
