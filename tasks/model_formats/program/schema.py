"""Strict schema of an exported program: allowed fields of schema version 8 of `torch._export.serde.schema`.

Fields that load only through pickle, custom classes or the import of a module are left out, and thus refused: custom
objects, tokens, opaque values, operators as arguments, named tuples. Unknown fields are refused, too: torch skips
fields that it does not know, but a newer torch may use them.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from tasks.model_formats.program.grammar import (
    IDENTIFIER,
    MODULE_PATH,
    SYMBOL,
    expression,
    guard,
    module_path,
    operator,
    tree,
)

_MAJOR, _NEWEST_MINOR = 8, 20

Name = Annotated[str, StringConstraints(pattern=IDENTIFIER)]
ModulePath = Annotated[str, StringConstraints(pattern=MODULE_PATH), AfterValidator(module_path)]
Symbol = Annotated[str, StringConstraints(pattern=SYMBOL)]
Text = Annotated[str, StringConstraints(max_length=1000)]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Number = float | Literal["Infinity", "-Infinity", "NaN"]
Expression = Annotated[str, AfterValidator(expression)]
Tree = Annotated[str, AfterValidator(tree)]
ScalarType = Annotated[int, Field(ge=1, le=35)]
# Text that torch may write into generated source as a comment: a carriage return would end the comment.
Note = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x08\x0b\x0d-\x1f\x7f]*$")]
Metadata = dict[Literal["stack_trace", "nn_module_stack", "torch_fn", "from_node", "custom"], Note]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Choice(_Fields):
    """A tagged union, as torch writes it: exactly one field is set."""

    @model_validator(mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        if not isinstance(value, dict) or len(value) != 1 or None in value.values():
            raise ValueError("must have exactly one field")
        return value


class Device(_Fields):
    type: Literal["cpu"]
    index: Literal[0] | None = None


class Hint(_Choice):
    as_int: Whole | None = None
    as_bool: bool | None = None
    as_float: Number | None = None


class SymbolicExpression(_Fields):
    expr_str: Expression
    hint: Hint | None = None


class SymInt(_Choice):
    as_expr: SymbolicExpression | None = None
    as_int: Whole | None = None


class SymFloat(_Choice):
    as_expr: SymbolicExpression | None = None
    as_float: Number | None = None


class SymBool(_Choice):
    as_expr: SymbolicExpression | None = None
    as_bool: bool | None = None


class TensorMeta(_Fields):
    dtype: ScalarType
    sizes: list[SymInt]
    requires_grad: bool
    device: Device
    strides: list[SymInt]
    storage_offset: SymInt
    layout: Literal[7]  # strided


class Named(_Fields):
    name: Name


class IntArgument(_Choice):
    as_name: Name | None = None
    as_int: Whole | None = None


class FloatArgument(_Choice):
    as_name: Name | None = None
    as_float: Number | None = None


class BoolArgument(_Choice):
    as_name: Name | None = None
    as_bool: bool | None = None


class OptionalTensor(_Choice):
    as_tensor: Named | None = None
    as_none: bool | None = None


class Complex(_Fields):
    real: Number
    imag: Number


class Subgraph(_Fields):
    name: Name
    graph: "Graph"


class Argument(_Choice):
    as_none: bool | None = None
    as_tensor: Named | None = None
    as_tensors: list[Named] | None = None
    as_int: Whole | None = None
    as_ints: list[Whole] | None = None
    as_float: Number | None = None
    as_floats: list[Number] | None = None
    as_string: Text | None = None
    as_sym_int: IntArgument | None = None
    as_sym_ints: list[IntArgument] | None = None
    as_scalar_type: ScalarType | None = None
    as_memory_format: Annotated[int, Field(ge=1, le=4)] | None = None
    as_layout: Literal[7] | None = None
    as_device: Device | None = None
    as_bool: bool | None = None
    as_bools: list[bool] | None = None
    as_sym_bool: BoolArgument | None = None
    as_sym_bools: list[BoolArgument] | None = None
    as_graph: Subgraph | None = None
    as_optional_tensors: list[OptionalTensor] | None = None
    as_sym_float: FloatArgument | None = None
    as_sym_floats: list[FloatArgument] | None = None
    as_optional_tensor: OptionalTensor | None = None
    as_complex: Complex | None = None


class NamedArgument(_Fields):
    name: Name | Literal[""]
    arg: Argument
    kind: Literal[0, 1, 2] | None = None


class Node(_Fields):
    target: Annotated[str, AfterValidator(operator)]
    inputs: list[NamedArgument]
    outputs: list[Argument]
    metadata: Metadata
    is_hop_single_tensor_return: bool | None = None
    name: Name | None = None


class Graph(_Fields):
    inputs: list[Argument]
    outputs: list[Argument]
    nodes: list[Node]
    tensor_values: dict[Name, TensorMeta]
    sym_int_values: dict[Name, SymInt]
    sym_bool_values: dict[Name, SymBool]
    is_single_tensor_return: bool = False
    custom_obj_values: dict[Name, None] = Field(default={}, max_length=0)
    sym_float_values: dict[Name, SymFloat] = {}


class UserValue(_Fields):
    arg: Argument


class Parameter(_Fields):
    arg: Named
    parameter_name: ModulePath


class Buffer(_Fields):
    arg: Named
    buffer_name: ModulePath
    persistent: bool


class TensorConstant(_Fields):
    arg: Named
    tensor_constant_name: ModulePath


class Input(_Choice):
    user_input: UserValue | None = None
    parameter: Parameter | None = None
    buffer: Buffer | None = None
    tensor_constant: TensorConstant | None = None


class BufferMutation(_Fields):
    arg: Named
    buffer_name: ModulePath


class Output(_Choice):
    user_output: UserValue | None = None
    buffer_mutation: BufferMutation | None = None


class Signature(_Fields):
    input_specs: list[Input]
    output_specs: list[Output]


class CallSignature(_Fields):
    inputs: list[Argument]
    outputs: list[Argument]
    in_spec: Tree
    out_spec: Tree
    forward_arg_names: list[Name] | None = None


class ModuleCall(_Fields):
    fqn: ModulePath
    signature: CallSignature | None = None


class GraphModule(_Fields):
    graph: Graph
    signature: Signature
    module_call_graph: list[ModuleCall]
    metadata: dict[Literal["custom"], Note] = {}
    treespec_namedtuple_fields: dict[str, None] = Field(default={}, max_length=0)


class Range(_Fields):
    min_val: Whole | None
    max_val: Whole | None


class Version(_Fields):
    major: int
    minor: int

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.major != _MAJOR or not 0 <= self.minor <= _NEWEST_MINOR:
            raise ValueError(
                f"schema version {self.major}.{self.minor} is not one of {_MAJOR}.0 to {_MAJOR}.{_NEWEST_MINOR}"
            )
        return self


class Program(_Fields):
    """Schema of `models/model.json` in the archive."""

    graph_module: GraphModule
    opset_version: dict[Literal["aten"], Whole]
    range_constraints: dict[Symbol, Range]
    schema_version: Version
    verifiers: list[Literal["ATEN", "TRAINING"]]
    torch_version: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.+_-]{1,60}$")]
    guards_code: list[Annotated[str, AfterValidator(guard)]]


class Size(_Choice):
    """A size of a stored tensor: always a number, never a symbol."""

    as_int: Whole | None = None


class StoredTensor(TensorMeta):
    sizes: list[Size]  # type: ignore[assignment]
    strides: list[Size]  # type: ignore[assignment]
    storage_offset: Size  # type: ignore[assignment]


class Payload(_Fields):
    path_name: Annotated[str, StringConstraints(pattern=r"^(weight|tensor)_[0-9]{1,6}$")]
    is_param: bool
    use_pickle: Literal[False]
    tensor_meta: StoredTensor


class Payloads(_Fields):
    """Schema of `data/weights/model_weights_config.json` and `data/constants/model_constants_config.json`."""

    config: dict[ModulePath, Payload]
