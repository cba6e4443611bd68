"""Ways in which a test damages a file: delete, truncate, empty, flip a bit."""

from pathlib import Path

from training.records import DatasetVersion, Split


def part_file(version: DatasetVersion, split: Split = "train") -> Path:
    return Path(version.path) / version.parts[split][0].path


def missing(file: Path) -> None:
    file.unlink()


def shortened(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES = (missing, shortened, emptied, flipped)
