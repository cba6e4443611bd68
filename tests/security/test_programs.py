"""The check refuses every exported program that could run code; unchecked, each hostile program does run code."""

import io
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile_programs import (
    CONSTANTS,
    EXAMPLE,
    HOSTILE,
    PROGRAM,
    WEIGHTS,
    packed,
    sound_program,
    write_hostile,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tasks.model_formats.program import check_program
from training.errors import DataError

# What a user does who trusts the files; a single process, because importing torch takes long.
_LOAD_ALL = """
import sys, torch
for file in sys.argv[1:]:
    try:
        torch.export.load(file).module()(torch.zeros((3, 1, 4, 4), dtype=torch.uint8))
    except Exception as error:
        print(file, repr(error)[:1500], file=sys.stderr)
"""


@pytest.fixture(scope="module")
def members() -> dict[str, bytes]:
    return sound_program()


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory, members: dict[str, bytes]) -> set[str]:
    """Names of the attacks that create their mark when nothing is checked."""
    folder = tmp_path_factory.mktemp("unchecked")
    files = [write_hostile(folder, members, attack)[0] for attack in HOSTILE]
    done = subprocess.run(
        [sys.executable, "-c", _LOAD_ALL, *map(str, files)],
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    sys.stderr.write(done.stderr)
    return {attack.__name__ for attack in HOSTILE if (folder / attack.__name__).exists()}


@pytest.mark.extended
@pytest.mark.parametrize("attack", HOSTILE, ids=lambda attack: attack.__name__)
def test_what_runs_unchecked_is_refused(
    members: dict[str, bytes], marked: set[str], attack: Callable[..., Any], tmp_path: Path
) -> None:
    file, mark = write_hostile(tmp_path, members, attack)
    with pytest.raises(DataError):
        check_program(file)
    assert not mark.exists()
    assert attack.__name__ in marked, "a dud"


Change = Callable[[dict[str, Any]], object]


def add_call(target: str, **argument: Any) -> Change:
    """Make the program call an operation."""
    node = {
        "target": target,
        "inputs": [{"name": "", "arg": argument, "kind": 1}],
        "outputs": [],
        "metadata": {},
        "is_hop_single_tensor_return": None,
        "name": "added",
    }
    return lambda program: program["graph_module"]["graph"]["nodes"].append(node)


def size_of_images(text: str) -> Change:
    """Make the number of images this expression."""
    expression = {"as_expr": {"expr_str": text, "hint": None}}

    def change(program: dict[str, Any]) -> None:
        program["graph_module"]["graph"]["tensor_values"]["images"]["sizes"][0] = expression

    return change


def hint_of_images(hint: Any) -> Change:
    """Give the number of images this hint."""
    expression = {"as_expr": {"expr_str": "Symbol('s1')", "hint": hint}}

    def change(program: dict[str, Any]) -> None:
        program["graph_module"]["graph"]["tensor_values"]["images"]["sizes"][0] = expression

    return change


def keyword_of_the_tree(program: dict[str, Any], name: str) -> None:
    """Make the inputs a dictionary with this key."""
    leaf = {"type": None, "context": None, "children_spec": []}
    node = {"type": "builtins.dict", "context": json.dumps([name]), "children_spec": [leaf]}
    program["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = json.dumps([1, node])


OTHER_PROGRAMS: dict[str, tuple[Change, str]] = {
    "an older schema": (
        lambda program: program["schema_version"].update(major=0, minor=0),
        "schema version 0.0",
    ),
    "a newer schema": (lambda program: program["schema_version"].update(minor=21), "schema version 8.21"),
    "an unknown field": (lambda program: program.update(hook="os.system"), "hook"),
    "an unknown field inside": (
        lambda program: program["graph_module"]["graph"].update(hook=1),
        "graph.hook",
    ),
    "an unknown verifier": (lambda program: program["verifiers"].append("MINE"), "verifiers"),
    "a function of the system": (add_call("torch.os.system", as_string="id"), "torch.os.system"),
    "an attribute of an operation": (
        add_call("torch.ops.aten.add.Tensor.__class__", as_int=1),
        "not allowed",
    ),
    "a method of an operation": (add_call("torch.ops.aten.add.__call__", as_int=1), "not allowed"),
    "a method of all operations": (add_call("torch.ops.aten.__getattr__.name", as_int=1), "not allowed"),
    "indices that are not checked": (
        add_call("torch.ops.aten._convert_indices_from_coo_to_csr.default", as_int=1),
        "_convert_indices",
    ),
    "a sparse tensor that is not checked": (
        add_call("torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default", as_int=1),
        "_sparse_coo",
    ),
    "a gradient": (
        add_call("torch.ops.aten.max_pool2d_with_indices_backward.default", as_int=1),
        "_backward",
    ),
    "another library": (add_call("torch.ops.mine.run.default", as_string="id"), "torch.ops.mine"),
    "a registered extension": (add_call("#mine:run", as_string="id"), "#mine"),
    "a file that ATen writes": (add_call("torch.ops.aten.save.default", as_string="file"), "aten.save"),
    "memory that is not checked": (add_call("torch.ops.aten.resize_.default", as_int=1), "resize_"),
    "an operation as an argument": (
        add_call("torch.ops.aten.add.Tensor", as_operator="os.system"),
        "as_operator",
    ),
    "a custom object": (add_call("torch.ops.aten.add.Tensor", as_custom_obj={"name": "a"}), "as_custom_obj"),
    "a note that ends its comment": (
        lambda program: program["graph_module"]["graph"]["nodes"][0]["metadata"].update(stack_trace="a\rb"),
        "stack_trace",
    ),
    "a note of another kind": (
        lambda program: program["graph_module"]["graph"]["nodes"][0]["metadata"].update(
            source_fn_stack="a,torch.b"
        ),
        "source_fn_stack",
    ),
    "two arguments at once": (add_call("torch.ops.aten.add.Tensor", as_int=1, as_none=True), "exactly one"),
    "a way out of the module": (
        lambda program: program["graph_module"]["signature"]["input_specs"][0]["parameter"].update(
            parameter_name="linear.__class__.forward"
        ),
        "leads out of the module",
    ),
    "an argument of two lines": (
        lambda program: keyword_of_the_tree(program, "images\n"),
        "a tree with context",
    ),
    "a power that fills the memory": (size_of_images("9**9**9**9"), "not allowed"),
    "a shift that fills the memory": (size_of_images("LShift(Integer(1), Integer(99999999999))"), "Call"),
    "a float that fills the memory": (size_of_images("1e-9999999999"), "Constant"),
    "digits that fill the memory": (size_of_images("Rational('1e9999999999')"), "Constant"),
    "a Float that fills the memory": (size_of_images("Float('1e9999999999')"), "Constant"),
    "a precision that fills the memory": (size_of_images("Float('1.0', precision=68719476736)"), "keyword"),
    "powers of powers": (size_of_images("Pow(" * 5 + "Integer(9)" + ", Integer(8))" * 5), "too many powers"),
    "code as the hint of a size": (hint_of_images("__import__('os').getpid()"), "hint"),
    "code as the name of a range": (
        lambda program: program["range_constraints"].update(
            {"__import__('os').getpid()": {"min_val": 0, "max_val": None}}
        ),
        "range_constraints.__import__",
    ),
    "code as the limit of a range": (
        lambda program: program["range_constraints"].update(
            s1={"min_val": "__import__('os').getpid()", "max_val": None}
        ),
        "range_constraints.s1.min_val",
    ),
    "an expression with a comment": (size_of_images("Integer(2) # more"), "other characters"),
    "an expression that never ends": (size_of_images("-" * 3000 + "1"), "can't be read"),
    "an expression too deep": (size_of_images("-" * 60 + "1"), "too deep"),
    "a call of a call": (size_of_images("Symbol('s1')()"), "Call"),
    "a text": (size_of_images("Symbol('import os')"), "Constant"),
}


@pytest.mark.parametrize(("change", "said"), OTHER_PROGRAMS.values(), ids=OTHER_PROGRAMS)
def test_what_no_export_of_evergreen_has_is_refused(
    members: dict[str, bytes], tmp_path: Path, change: Change, said: str
) -> None:
    program = json.loads(members[PROGRAM])
    change(program)
    assert_refused(tmp_path, packed({**members, PROGRAM: json.dumps(program).encode()}), said)


def assert_refused(folder: Path, content: bytes, said: str) -> None:
    file = folder / "model.pt2"
    file.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(said)):
        check_program(file)


def test_example_inputs_of_a_device_that_is_not_there_are_refused(
    members: dict[str, bytes], tmp_path: Path
) -> None:
    """Torch loads the examples without restrictions when its restricted unpickler fails."""
    content = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(members[EXAMPLE])) as archive, zipfile.ZipFile(content, "w") as changed:
        for name in archive.namelist():
            changed.writestr(name, archive.read(name).replace(b"cpu", b"xyz"))
    assert_refused(tmp_path, packed({**members, EXAMPLE: content.getvalue()}), "example inputs")


def test_other_members_are_refused(members: dict[str, bytes], tmp_path: Path) -> None:
    for name in (
        "data/aotinductor/model/wrapper.so",
        "data/constants/custom_obj_0",
        "models/other.json",
        "extra/a.zip",
    ):
        assert_refused(tmp_path, packed({**members, name: packed(members)}), name)
    assert_refused(tmp_path, packed(members, compression=zipfile.ZIP_DEFLATED), "compressed")
    assert_refused(tmp_path, packed(members)[:-100], "no archive")
    assert_refused(tmp_path, json.dumps({}).encode(), "no archive")
    assert_refused(tmp_path, packed({**members, PROGRAM: b"[" * 100_000}), "no archive")


def test_a_key_that_comes_twice_is_refused(members: dict[str, bytes], tmp_path: Path) -> None:
    twice = members[PROGRAM].replace(b'"guards_code": []', b'"guards_code": ["True"], "guards_code": []')
    assert_refused(tmp_path, packed({**members, PROGRAM: twice}), "twice")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.extended
@given(data=st.data())
def test_whatever_stands_somewhere_is_taken_or_refused(
    members: dict[str, bytes], data: st.DataObject
) -> None:
    """Whichever member and field is changed, no error of another type occurs."""
    member = data.draw(st.sampled_from([PROGRAM, WEIGHTS, CONSTANTS]))
    content = json.loads(members[member])
    holder, key = data.draw(st.sampled_from(list(places(content))))
    holder[key] = data.draw(ANYTHING | ANYTHING.map(json.dumps))
    with suppress(DataError):
        check_program(io.BytesIO(packed({**members, member: json.dumps(content).encode()})))


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a JSON value, with each of its keys or indices."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


def test_a_tensor_that_is_missing_is_refused(members: dict[str, bytes], tmp_path: Path) -> None:
    few = {name: content for name, content in members.items() if name != "data/weights/weight_0"}
    assert_refused(tmp_path, packed(few), "weight_0 is missing")


class Resizing(nn.Module):
    """A model with arithmetic on sizes, floats, conditions on sizes, autocast, and an operation with a string."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows = images.shape[0]
        if (rows * 2) % 2 == 0 and rows < 1000:
            images = images.float().masked_fill(images == 3, float("-inf")).clamp(0, 1)
        larger = nn.functional.interpolate(images.float(), scale_factor=2.0, mode="bilinear")
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            flat = torch.einsum("bchw->bhw", larger).reshape(rows * 2, -1, 8)
        states, _ = self.recurrent(flat.float())
        return self.head(self.attention(states)).reshape(rows, -1)


@pytest.mark.extended
def test_a_program_of_many_operations_passes() -> None:
    example = torch.zeros((3, 1, 8, 8), dtype=torch.uint8)
    program = torch.export.export(Resizing().eval(), (example,), dynamic_shapes=[{0: torch.export.Dim.AUTO}])
    content = io.BytesIO()
    torch.export.save(program, content)
    content.seek(0)
    check_program(content)
