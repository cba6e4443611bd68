"""Compiles an environment's modules to bytecode: `python -m training.bytecode`, which `make setup` runs.

Installers compile nothing unless they are told to. Python then compiles each module when a process first imports it,
and with PYTHONDONTWRITEBYTECODE=1, which most container images set, in every process again. A retraining starts some
ten processes, each of which imports thousands of modules.

`compileall` and uv's `--compile-bytecode` also do this, in a third more time (docs/performance.md, "Bytecode"): they
rename one temporary file for each module, and compile the libraries' own tests. Set-up would then take longer by more
than the first run gains.
"""

import importlib.util
import marshal
import os
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

_HEADER_BYTES = 16
_CHECKED_HASH = (0b11).to_bytes(4, "little")  # PEP 552: the bytecode is valid while the source has this hash
_FOLDERS_PER_TASK = 16
_LONG_TEST_BYTES = 8192  # the longer tests of libraries are a sixth of all code, and no run imports them
_OWN_PACKAGES = ("evergreen", "flows", "tasks", "training", "deployments")


def folders() -> list[Path]:
    """The folders whose modules a run imports: this environment's packages, and Evergreen's own."""
    root = Path(__file__).parents[1]
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return [*sorted(installed), *(root / package for package in _OWN_PACKAGES)]


def compile_all(roots: list[Path]) -> int:
    """Compile the modules below `roots` that have no valid bytecode, on all CPUs; returns how many were compiled.

    Bytecode is checked by a hash of the source, as times change when an environment is copied. A module that this
    version of Python can't compile, or a folder that can't be written, is passed over.
    """
    groups = [modules for root in roots for modules in _by_folder(root)]
    groups = [[module for module in modules if not _is_long_test(module)] for modules in groups]
    with ProcessPoolExecutor() as pool:
        return sum(pool.map(_compile_folder, groups, chunksize=_FOLDERS_PER_TASK))


def compiled_share(roots: list[Path]) -> float:
    """The share of the modules below `roots` that have bytecode, whether it is valid or not; 1 without any module."""
    total = compiled = 0
    for modules in (modules for root in roots for modules in _by_folder(root)):
        targets = set(map(_bytecode_of, modules))
        present = {file for cache in {target.parent for target in targets} for file in cache.glob("*.pyc")}
        compiled += len(targets & present)
        total += len(modules)
    return compiled / total if total else 1.0


def _by_folder(root: Path) -> Iterator[list[Path]]:
    """The modules of each folder below `root`."""
    for folder, _, files in os.walk(root):
        if modules := [Path(folder, file) for file in files if file.endswith(".py")]:
            yield modules


def _is_long_test(module: Path) -> bool:
    return "tests" in module.parts and module.stat().st_size > _LONG_TEST_BYTES


def _bytecode_of(module: Path) -> Path:
    return Path(importlib.util.cache_from_source(str(module)))


def _compile_folder(modules: list[Path]) -> int:
    return sum(map(_compile, modules))


def _compile(module: Path) -> bool:
    target = _bytecode_of(module)
    try:
        source = module.read_bytes()
        header = importlib.util.MAGIC_NUMBER + _CHECKED_HASH + importlib.util.source_hash(source)
        if _header(target) == header:
            return False
        code = compile(source, str(module), "exec", dont_inherit=True)
        _write(target, header, marshal.dumps(code))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False
    return True


def _header(target: Path) -> bytes:
    try:
        with target.open("rb") as stream:
            return stream.read(_HEADER_BYTES)
    except FileNotFoundError:
        return b""


def _write(target: Path, header: bytes, body: bytes) -> None:
    """Write the header last: without it, Python takes a file that an interruption left incomplete for outdated."""
    target.parent.mkdir(exist_ok=True)
    with target.open("wb") as stream:
        stream.write(bytes(_HEADER_BYTES) + body)
        stream.flush()
        stream.seek(0)
        stream.write(header)


def main() -> int:
    """Compile this environment and Evergreen. Returns 0, as bytecode only saves time."""
    count = compile_all(folders())
    sys.stdout.write(f"{count:,} modules compiled to bytecode\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
