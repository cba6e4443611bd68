"""Find forbidden calls in the syntax tree: code that executes the data it reads, or that admits other machines."""

import ast
from collections.abc import Iterator

# Modules whose loaders execute code contained in the file.
_UNPICKLING = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
_LOADERS = {"load", "loads", "Unpickler", "open"}
_EVALUATING = {"eval", "exec"}
_EVERYWHERE = {"0.0.0.0", "::"}  # addresses at which other machines can connect
_AUTOLOAD = "RAY_DATA_AUTOLOAD"


def dangers(source: str) -> Iterator[str]:
    """Each forbidden construct in a Python file, with its line number."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and (said := _of_call(node)):
            yield f"line {node.lineno}: {said}"
        if isinstance(node, ast.ImportFrom) and node.module in _UNPICKLING:
            for name in {alias.name for alias in node.names} & _LOADERS:
                yield f"line {node.lineno}: {node.module}.{name} runs what it reads"
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value in _EVERYWHERE:
                yield f"line {node.lineno}: {node.value} lets other machines in"
            if _AUTOLOAD in node.value:
                yield f"line {node.lineno}: Ray would unpickle Parquet metadata"


def _of_call(call: ast.Call) -> str | None:
    module, _, name = ast.unparse(call.func).rpartition(".")
    options = {
        keyword.arg: keyword.value.value
        for keyword in call.keywords
        if isinstance(keyword.value, ast.Constant)
    }
    if module in _UNPICKLING and name in _LOADERS:
        return f"{module}.{name} runs what it reads"
    if module == "torch" and name == "load" and options.get("weights_only") is not True:
        return "torch.load without weights_only=True"
    if options.get("weights_only") is False or options.get("allow_pickle") is True:
        return "unpickling is allowed"
    if module == "torch.jit" and name == "load":
        return "torch.jit.load runs what it reads"
    if not module and name in _EVALUATING:
        return f"{name} runs text"
    if options.get("shell") is True or (module, name) == ("os", "system"):
        return "a shell interprets text"
    if module == "yaml" and name in ("load", "unsafe_load", "full_load"):
        return f"yaml.{name} makes any object"
    checks_a_key = (module, name) == ("wandb", "login")  # there, `verify` is about the API key
    if options.get("verify") is False and not checks_a_key:
        return "certificates are not checked"
    if name in ("extractall", "unpack_archive"):
        return f"{name} writes where the archive says"
    return "a name that others can guess" if (module, name) == ("tempfile", "mktemp") else None
