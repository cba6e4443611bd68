"""Records and lines with checksums: damage is reported, never read; a killed writer's partial line is no damage."""

import json
import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from training.errors import EXIT_BAD_DATA
from training.records import Record
from training.storage.record_files import (
    DamagedError,
    append_record,
    find_record,
    read_lines,
    read_record,
    rewrite_undamaged,
    set_aside,
    write_record,
    write_records,
)

Change = Callable[[bytes, random.Random], bytes]

TIMES = 200
OWNER = "0123456789abcdef"


class Note(Record):
    """The record that these tests write."""

    step: int
    text: str
    share: float = 0.5


NOTES = [Note(step=step, text=f"Größe {step}", share=1 / (step + 1)) for step in range(6)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with one record."""
    write_record(tmp_path / "note.json", NOTES[3], OWNER)
    return tmp_path / "note.json"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """A file of six lines, appended one by one."""
    for note in NOTES:
        append_record(tmp_path / "notes.jsonl", note, OWNER)
    return tmp_path / "notes.jsonl"


def flipped(content: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << dice.randrange(8))]) + content[at + 1 :]


def zeroed(content: bytes, dice: random.Random) -> bytes:
    start, stop = sorted(dice.sample(range(len(content) + 1), 2))
    return content[:start] + bytes(stop - start) + content[stop:]


def swapped(content: bytes, dice: random.Random) -> bytes:
    parts = content.splitlines(keepends=True)
    first, second = dice.sample(range(len(parts)), 2)
    parts[first], parts[second] = parts[second], parts[first]
    return b"".join(parts)


def numbers(file: Path) -> list[int]:
    return [note.step for note in read_lines(file, Note, OWNER).all()]


def test_a_record_comes_back_as_it_was(file: Path) -> None:
    assert read_record(file, Note, OWNER) == NOTES[3]
    assert json.loads(file.read_bytes())["text"] == "Größe 3"


def test_a_record_without_a_checksum_is_one_of_an_earlier_version(tmp_path: Path) -> None:
    (tmp_path / "note.json").write_text(NOTES[3].model_dump_json(indent=1))
    assert read_record(tmp_path / "note.json", Note, OWNER) == NOTES[3]


@pytest.mark.parametrize("change", [flipped, zeroed])
def test_a_changed_record_is_never_believed(file: Path, change: Change) -> None:
    whole, dice, refused = file.read_bytes(), random.Random(11), 0
    for _ in range(TIMES):
        file.write_bytes(change(whole, dice))
        try:
            assert read_record(file, Note, OWNER) == NOTES[3]
        except DamagedError:
            refused += 1
    assert refused > TIMES * 0.9  # the rest changed only a space, or an escape of the same letter


def test_a_record_that_was_cut_short_is_damaged_wherever_the_cut(file: Path) -> None:
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(DamagedError):
            read_record(file, Note, OWNER)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (bytes(400), "it holds zeros only"),
        (b"\xff\xfe\x00", "it is not UTF-8"),
        (b"{", "it is not JSON"),
        (b"[1, 2]", "it holds no object, but a list"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"step": "many", "text": ""}', "step: Input should be a valid integer"),
        (b'{"step": 1, "text": "", "other": 1}', "other: Extra inputs are not permitted"),
    ],
)
def test_the_message_says_file_damage_and_remedy(file: Path, content: bytes, said: str) -> None:
    file.write_bytes(content)
    with pytest.raises(DamagedError) as caught:
        read_record(file, Note, OWNER, "Delete it.")
    assert str(caught.value).startswith(f"{file}: damaged (")
    assert str(caught.value).endswith(" Delete it.")
    assert said in str(caught.value)
    assert caught.value.exit_status == EXIT_BAD_DATA


def test_a_record_of_another_owner_or_kind_is_damage(file: Path, tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="or belongs to another file or run"):
        read_record(file, Note, "another run")
    with pytest.raises(DamagedError, match="or belongs to another file or run"):
        read_record(file.rename(tmp_path / "other.json"), Note, OWNER)
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(DamagedError, match="it is a folder"):
        read_record(tmp_path / "folder.json", Note, OWNER)


def test_who_only_looks_is_warned(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert find_record(file, Note, OWNER) == NOTES[3]
    assert find_record(file.with_name("none.json"), Note, OWNER) is None
    assert not caplog.text
    file.write_bytes(b"")
    assert find_record(file, Note, OWNER) is None
    assert f"{file}: damaged (it is empty); it is not used" in caplog.text


def test_lines_come_back_as_they_were(lines: Path) -> None:
    notes = read_lines(lines, Note, OWNER)
    assert (notes.all(), notes.sound, notes.damage) == (NOTES, 6, "")
    write_records(lines, NOTES[:2], OWNER)
    append_record(lines, NOTES[2], OWNER)
    assert read_lines(lines, Note, OWNER).all() == NOTES[:3]
    assert read_lines(lines.with_name("none.jsonl"), Note, OWNER).all() == []


def test_lines_without_checksums_are_those_of_an_earlier_version(lines: Path) -> None:
    lines.write_text("".join(f"{note.model_dump_json()}\n" for note in NOTES[:3]))
    assert read_lines(lines, Note, OWNER).all() == NOTES[:3]
    for note in NOTES[3:]:
        append_record(lines, note, OWNER)
    assert read_lines(lines, Note, OWNER).all() == NOTES
    text = lines.read_text().splitlines(keepends=True)
    write_records(lines, NOTES[:1], OWNER)
    lines.write_text(lines.read_text() + text[1])
    assert "it has no checksum, though lines before it have" in read_lines(lines, Note, OWNER).damage


def test_an_unfinished_last_line_is_left_out_wherever_it_ends(lines: Path) -> None:
    whole = lines.read_bytes()
    begin = whole[:-1].rfind(b"\n") + 1
    for length in range(begin, len(whole) - 1):
        lines.write_bytes(whole[:length])
        assert numbers(lines) == [0, 1, 2, 3, 4]
        append_record(lines, NOTES[5], OWNER)  # the partial line stays left out
        assert numbers(lines) == [0, 1, 2, 3, 4, 5]
    lines.write_bytes(whole[:-1])
    assert numbers(lines) == [0, 1, 2, 3, 4, 5]


def test_the_first_line_may_be_the_unfinished_one(lines: Path) -> None:
    lines.write_bytes(lines.read_bytes()[:9])
    append_record(lines, NOTES[0], OWNER)
    assert numbers(lines) == [0]


@pytest.mark.parametrize("change", [flipped, zeroed, swapped])
def test_changed_lines_are_never_believed(lines: Path, change: Change) -> None:
    whole, dice = lines.read_bytes(), random.Random(12)
    for _ in range(TIMES):
        lines.write_bytes(change(whole, dice))
        notes = read_lines(lines, Note, OWNER)
        assert all(note in NOTES for note in notes.records)
        assert notes.records[: notes.sound] == NOTES[: notes.sound]
        if notes.records != NOTES:
            with pytest.raises(DamagedError, match=str(lines)):
                notes.all()


@pytest.mark.parametrize("number", range(6))
def test_the_lines_beside_a_damaged_one_are_kept(
    lines: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    text = lines.read_text().splitlines(keepends=True)
    text[number] = text[number].replace('"share": ', '"share": 1')
    lines.write_text("".join(text))
    notes = read_lines(lines, Note, OWNER)
    rest = [note for note in NOTES if note.step != number]
    assert (notes.undamaged(), notes.sound) == (rest, number)
    assert f"line {number + 1}: its checksum does not match" in caplog.text
    append_record(lines, NOTES[0], OWNER)  # appending does not hide the damage
    assert read_lines(lines, Note, OWNER).sound == number
    rewrite_undamaged(lines, Note, OWNER)
    assert read_lines(lines, Note, OWNER).all() == [*rest, NOTES[0]]
    assert lines.with_name("notes.jsonl.damaged-0").is_file()


def test_a_last_line_that_is_nested_too_deeply_is_damage(lines: Path) -> None:
    with lines.open("ab") as stream:
        stream.write(b"[" * 100_000)
    notes = read_lines(lines, Note, OWNER)
    assert notes.undamaged() == NOTES
    with pytest.raises(DamagedError, match="nested too deeply"):
        notes.all()


def test_a_file_that_was_written_whole_has_its_end(lines: Path) -> None:
    whole = lines.read_bytes()
    for length in (0, whole.rfind(b"{") + 9, len(whole) - 2):
        lines.write_bytes(whole[:length])
        assert not read_lines(lines, Note, OWNER).damage
        assert read_lines(lines, Note, OWNER, appended=False).damage
    assert not read_lines(lines.with_name("none.jsonl"), Note, OWNER, appended=False).damage


@pytest.mark.parametrize("number", range(5))
def test_a_missing_line_is_damage(lines: Path, number: int) -> None:
    text = lines.read_text().splitlines(keepends=True)
    lines.write_text("".join(text[:number] + text[number + 1 :]))
    assert read_lines(lines, Note, OWNER).sound == number
    assert f"it is number {number + 2}, expected was {number + 1}" in read_lines(lines, Note, OWNER).damage


def test_lines_of_another_run_are_damage(lines: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "other" / "notes.jsonl"
    write_records(foreign, NOTES, "another run")
    mine, theirs = (path.read_text().splitlines(keepends=True) for path in (lines, foreign))
    lines.write_text("".join([*mine[:3], theirs[3], *mine[4:]]))
    assert read_lines(lines, Note, OWNER).sound == 3


def test_sound_lines_are_not_rewritten(lines: Path) -> None:
    # Not the whole result of stat(): reading the lines changes the time of the last access.
    before = lines.stat()
    rewrite_undamaged(lines, Note, OWNER)
    after = lines.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_what_is_set_aside_takes_a_free_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for number in range(2):
        (tmp_path / "note.json").write_text(str(number))
        set_aside(tmp_path / "note.json", "it is empty")
        assert (tmp_path / f"note.json.damaged-{number}").read_text() == str(number)
        assert f"was set aside as note.json.damaged-{number}" in caplog.text
