"""The copy of a recipe in a run's folder, so that every attempt of the run executes the code that was hashed."""

from pathlib import Path

from training.errors import SettingError
from training.recipe_sources import (
    RecipeRef,
    content_that_counts,
    digest_of_files,
    files_inside,
    is_inside,
    names_of,
)
from training.storage.files import atomic_folder


def keep_copy(ref: RecipeRef, folder: Path) -> None:
    """Copy the recipe's files into `folder`, so that every attempt of a run executes the code that was hashed.

    Does nothing if `folder` exists. Raises :class:`SettingError` if the files have changed since `ref` was created.
    """
    if folder.is_dir():
        return
    files = list(map(Path, ref.files))
    if digest_of_files(files, names_of(files, Path(ref.path).parent)) != ref.digest:
        raise SettingError(f"recipe {ref.path}: it was changed while its run was prepared; run again")
    with atomic_folder(folder) as aside:
        for file in files_inside(files, Path(ref.path).parent):
            target = _path_in_copy(ref, file, aside)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())


def check_copy(ref: RecipeRef, folder: Path, *, any_version: bool = False) -> list[Path]:
    """The files of the run's copy of a recipe in `folder`, and Evergreen's own files that the recipe uses.

    Raises :class:`SettingError` if the copy was changed, and, unless `any_version`, if Evergreen's own files are those
    of another version than at the time of the run.
    """
    originals = [*map(Path, ref.files)]
    files = [_path_in_copy(ref, file, folder) for file in originals]
    if all(file.is_file() for file in files) and ref.digest in (
        digest_of_files(files, names_of(originals, Path(ref.path).parent)),
        # Digests of earlier Evergreen versions: names without folders; before that, also over every byte.
        digest_of_files(files, [file.name for file in files]),
        digest_of_files(files, [file.name for file in files], Path.read_bytes),
    ):
        return files
    inside = files_inside(originals, Path(ref.path).parent)
    copied = [_path_in_copy(ref, file, folder) for file in inside]
    whole = len(inside) < len(originals) and all(file.is_file() for file in copied)
    if not (
        ref.copied
        and whole
        and digest_of_files(copied, names_of(inside, Path(ref.path).parent)) == ref.copied
    ):
        raise SettingError(
            f"recipe {folder}: the copy kept with the run was changed; remove the folder and run again"
        )
    if not any_version:
        others = ", ".join(file.name for file in originals if file not in inside)
        raise SettingError(
            f"recipe {ref.path}: the copy kept with the run is as it was, but it uses {others} of another version of "
            "Evergreen; run again"
        )
    return copied


def changed_files(ref: RecipeRef, folder: Path) -> list[str]:
    """Names of the recipe's files that differ from the copy of an earlier run in `folder`: changed, new and gone.

    Comments, docstrings and layout do not count. Empty if there is no copy.
    """
    if not folder.is_dir():
        return []
    base = Path(ref.path).parent
    now = {file.relative_to(base): file for file in files_inside([*map(Path, ref.files)], base)}
    before = {file.relative_to(folder): file for file in folder.rglob("*") if file.is_file()}
    changes = []
    for name in sorted(now.keys() | before.keys()):
        if "__pycache__" in name.parts:
            continue
        if name not in before or name not in now:
            changes.append(f"{name} is {'new' if name in now else 'gone'}")
        elif content_that_counts(now[name]) != content_that_counts(before[name]):
            changes.append(f"{name} changed")
    return changes


def _path_in_copy(ref: RecipeRef, file: Path, folder: Path) -> Path:
    """Path of `file` in a run's copy. Files outside the recipe's folder (Evergreen's own files) are not copied.

    These are where this installation has them: the run may be older than the environment.
    """
    base = Path(ref.path).parent
    if is_inside(file, base):
        return folder / file.relative_to(base)
    own = Path(__file__).parent
    below = file.parts[::-1].index(own.name) if own.name in file.parts else 0
    moved = own.joinpath(*file.parts[len(file.parts) - below :])
    return moved if moved.is_file() else file
