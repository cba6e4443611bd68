"""A file under its final name is complete, or does not exist."""

import errno
import hashlib
import io
import json
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.errors import ResourceError
from training.storage import files
from training.storage.files import (
    DigestedFile,
    append_line,
    atomic_file,
    atomic_folder,
    canonical_json,
    copy_checked,
    digest_file,
    digest_json,
    remove_folder,
    sweep,
    write_text,
)
from training.storage.paths import HOME_VARIABLE, home_to_write

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


class Stop(Exception):
    """Ends a block before its work is complete."""


def stop_after(file: Path, text: str) -> None:
    file.write_text(text)
    raise Stop


def test_a_file_appears_when_the_block_succeeds(tmp_path: Path) -> None:
    target = tmp_path / "made" / "file.txt"
    with atomic_file(target) as aside:
        aside.write_text("whole")
        assert not target.exists()
    assert target.read_text() == "whole"
    assert list(target.parent.iterdir()) == [target]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    write_text(target, "old")
    with pytest.raises(Stop), atomic_file(target) as aside:
        stop_after(aside, "ne")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "made" / "folder"
    with atomic_folder(target) as aside:
        (aside / "inner").mkdir()
        (aside / "inner" / "file").write_text("whole")
        assert not target.exists()
    assert (target / "inner" / "file").read_text() == "whole"
    assert list(target.parent.iterdir()) == [target]


def test_a_failed_folder_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Stop), atomic_folder(tmp_path / "folder") as aside:
        stop_after(aside / "file", "half")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_renamed_when_that_is_forbidden_after_the_sync(tmp_path: Path) -> None:
    """Scenario: a newer attempt begins while an older one waits for a slow disk."""
    steps: list[str] = []

    def superseded() -> None:
        steps.append("asked")
        raise Stop

    def write() -> None:
        with atomic_folder(tmp_path / "folder", superseded) as aside:
            (aside / "file").write_text("whole")
            steps.append("written")

    with pytest.raises(Stop):
        write()
    assert steps == ["written", "asked"]
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_two_makers_wins(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with atomic_folder(target) as slow:
        (slow / "by").write_text("slow")
        with atomic_folder(target) as fast:
            (fast / "by").write_text("fast")
    assert (target / "by").read_text() == "fast"
    assert list(tmp_path.iterdir()) == [target]


@given(value=JSON)
def test_canonical_json_is_json_of_the_same_value(value: object) -> None:
    assert json.loads(canonical_json(value)) == value


def test_canonical_json_has_one_spelling() -> None:
    assert canonical_json({"b": [1, 2.5], "a": "ü"}) == '{"a":"ü","b":[1,2.5]}'
    assert digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
    assert digest_json([1, 2]) != digest_json([2, 1])
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json(float("nan"))


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1])
def test_digests_are_of_all_bytes(tmp_path: Path, size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    file = tmp_path / "file"
    assert copy_checked(io.BytesIO(content).read, file) == (hashlib.sha256(content).hexdigest(), size)
    assert file.read_bytes() == content
    assert digest_file(file) == hashlib.sha256(content).hexdigest()


def test_a_large_file_is_synced_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, written, synced = tmp_path / "file", list[int](), list[int]()
    monkeypatch.setattr(files, "_PIECE", 4)
    monkeypatch.setattr(files, "_UNSYNCED", 8)
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(path.stat().st_size))
    with path.open("wb") as out:
        digested = DigestedFile(out, written.append)
        assert [digested.write(b"0123456789"), digested.write(b"abcdefg")] == [10, 7]
        assert digested.write(b"") == 0
    assert path.read_bytes() == b"0123456789abcdefg"
    assert digested.sha256.hexdigest() == hashlib.sha256(b"0123456789abcdefg").hexdigest()
    assert (digested.bytes, written, synced) == (17, [4, 4, 2, 4, 3], [8, 17])


def test_files_that_can_not_be_deleted_are_an_error_if_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root, a test can make no file that it can't delete."""

    def refuse(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(files.shutil, "rmtree", refuse)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.raises(PermissionError, match="Permission denied"):
        remove_folder(tmp_path / "a", strict=True)
    remove_folder(tmp_path / "b")


def test_home_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "a" / "b"))
    assert home_to_write().root == tmp_path / "a" / "b"
    assert list(home_to_write().root.iterdir()) == []
    monkeypatch.delenv(HOME_VARIABLE)
    monkeypatch.chdir(tmp_path)
    assert home_to_write().root == tmp_path / ".evergreen"


def test_a_home_that_can_not_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "file" / "home"))
    with pytest.raises(ResourceError, match=f"{tmp_path}/file/home is not writable.*{HOME_VARIABLE}"):
        home_to_write()


def test_what_a_crash_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "whole.json") as aside:
        aside.write_text("half")
        # As a killed process leaves it.
        shutil.copy(aside, aside.with_name(aside.name.replace("whole", "other")))
    (tmp_path / ".step-4.removed" / "rest").mkdir(parents=True)
    for name in (".columns-train", "step-8", "data.tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "metrics.jsonl").touch()
    assert len(list(tmp_path.iterdir())) == 7
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        ".columns-train",
        "step-8",
        "data.tmp",
        "metrics.jsonl",
        "whole.json",
    }
    sweep(tmp_path / "absent")


@contextmanager
def no_byte_can_be_written() -> Iterator[None]:
    """As on a full disk: a file can be created, but not written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_can_not_be_written_leaves_no_empty_file(tmp_path: Path) -> None:
    file = tmp_path / "failures.jsonl"
    with no_byte_can_be_written(), pytest.raises(OSError, match="File too large"):
        append_line(file, "first")
    assert not file.exists()
    append_line(file, "first")
    with no_byte_can_be_written(), pytest.raises(OSError, match="File too large"):
        append_line(file, "second")
    assert file.read_text() == "first\n"
