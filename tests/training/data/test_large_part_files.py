"""Part files of large images: a read may return fewer bytes than the file has, and shards have a limit of pixels."""

import io
from pathlib import Path
from typing import Any

import pytest

from training.data.manifest import _content
from training.data.preparation.prepare import plan_shards
from training.data.sources.digits import Digits
from training.settings.schema import DataSettings
from training.storage.paths import Home


class Short(io.FileIO):
    """A file of which one read returns at most 1,000 bytes, as Linux returns at most 2 GiB."""

    def readinto(self, buffer: Any) -> int:
        return super().readinto(memoryview(buffer)[:1000])


def test_a_file_is_read_whole_in_several_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 20
    file = tmp_path / "part.parquet"
    file.write_bytes(content)
    monkeypatch.setattr(Path, "open", lambda path, *_, **__: Short(path))
    assert _content(file).to_pybytes() == content


def test_shards_of_resized_images_have_a_limit_of_pixels(home: Home) -> None:
    files = Digits().fetch(home.sources / "digits")
    assert len(plan_shards(files, DataSettings())) == 1
    shards = plan_shards(files, DataSettings(image_size=512, channels=3))
    assert max(shard.stop - shard.start for shard in shards) * 512 * 512 * 3 <= 256 << 20
    assert sum(shard.stop - shard.start for shard in shards) == 1797
