"""What callers rely on of every object store. A test class inherits :class:`StoreContract` and gives two stores."""

import threading
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from training.storage.objects.base import ObjectStore, check_store, open_store


class StoreContract(ABC):
    """Tests of a store, through two objects of one URL, as two processes would have them."""

    @abstractmethod
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        """URL of an empty store."""

    @pytest.fixture
    def store(self, url: str) -> ObjectStore:
        return open_store(url)

    @pytest.fixture
    def other(self, url: str) -> ObjectStore:
        return open_store(url)

    def test_a_missing_object_is_an_error(self, store: ObjectStore, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            store.get("a/missing")
        with pytest.raises(FileNotFoundError):
            store.get_file("a/missing", tmp_path / "target")
        assert store.keys("a") == []
        store.delete(["a/missing"])

    def test_of_sixteen_writers_one_creates_the_object(self, store: ObjectStore) -> None:
        won: list[int] = []
        barrier = threading.Barrier(16)

        def write(number: int) -> None:
            barrier.wait()
            if store.put_new("log/1", str(number).encode()):
                won.append(number)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert store.get("log/1") == str(won[0]).encode()

    def test_new_objects_are_seen_at_once(self, store: ObjectStore, other: ObjectStore) -> None:
        assert other.keys("log") == []
        assert store.put_new("log/2", b"two")
        assert store.put_new("log/1", b"one")
        assert other.keys("log") == ["log/1", "log/2"]
        assert not other.put_new("log/1", b"other")
        assert other.get("log/1") == b"one"
        store.delete(["log/1"])
        assert other.keys("log") == ["log/2"]

    def test_a_prefix_ends_at_a_slash(self, store: ObjectStore) -> None:
        store.put_new("run/1/a b?", b"")
        store.put_new("run/10/a", b"")
        assert store.keys("run/1") == ["run/1/a b?"]

    def test_files_return_with_the_same_bytes(
        self, store: ObjectStore, other: ObjectStore, tmp_path: Path
    ) -> None:
        source, target = tmp_path / "source", tmp_path / "target"
        for content in (b"", b"first", bytes(range(256)) * 40_000):
            source.write_bytes(content)
            sent: list[int] = []
            received: list[int] = []
            store.put_file("folder/file", source, sent.append)
            other.get_file("folder/file", target, received.append)
            assert sum(sent) == sum(received) == len(content)
            assert target.read_bytes() == other.get("folder/file") == content
        assert store.keys("folder") == ["folder/file"]

    def test_every_access_is_confirmed(self, store: ObjectStore) -> None:
        check_store(store)
        assert store.keys("probes") == []

    def test_pyarrow_reads_the_objects(self, store: ObjectStore) -> None:
        store.put_new("parts/one", b"content")
        with store.filesystem().open_input_file("parts/one") as stream:
            assert stream.read() == b"content"
