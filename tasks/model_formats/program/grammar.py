"""In: a string of an exported program. Out: the same string, when it is safe for torch to evaluate.

The source of torch 2.14 shows where each string is evaluated: sizes and symbols in `sympy.sympify` (which calls
`eval`), guards in `exec`, names of values, parameters and arguments in the source of the generated `forward`,
operators in `getattr` on `torch`, tree specifications in `importlib.import_module`. Every public function here raises
:class:`ValueError` for a string that is not allowed.
"""

import ast
import json
import re
from collections.abc import Callable
from typing import Any

IDENTIFIER = r"^[A-Za-z_][A-Za-z0-9_]{0,499}$"
# Path of a parameter or module. :func:`module_path` also refuses parts such as `__class__`.
MODULE_PATH = r"^([A-Za-z0-9_@-]{1,200}(\.[A-Za-z0-9_@-]{1,200}){0,63})?$"
SYMBOL = r"^[a-z]{1,4}[0-9]{1,6}$"
_LONGEST = 4000
_LARGEST = 2**63
_DEEPEST = 40
_LARGEST_POWER, _MOST_POWERS = 8, 4
_MOST_BITS = 200  # of the digits of a Float

_PLAIN = re.compile(r"[A-Za-z0-9_()\[\]{},.=' +*/%<>!&|~-]*")
_SUMS = {"Add", "Mul", "Pow", "PowByNatural", "Integer", "Rational", "Float", "Symbol", "Max", "Min", "Abs"}
_RELATIONS = {
    "Equality",
    "Unequality",
    "StrictLessThan",
    "LessThan",
    "StrictGreaterThan",
    "GreaterThan",
    "Eq",
    "Ne",
}
_LOGIC = {"And", "Or", "Not", "Where", "Piecewise", "ExprCondPair", "Tuple"}
_OF_TORCH = {
    "FloorDiv", "ModularIndexing", "PythonMod", "Mod", "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv",
    "FloatTrueDiv", "IntTrueDiv", "IsNonOverlappingAndDenseIndicator", "TruncToFloat", "TruncToInt", "RoundToInt",
    "ToFloat", "Identity", "floor", "ceiling",
}  # fmt: skip
_FUNCTIONS = _SUMS | _RELATIONS | _LOGIC | _OF_TORCH
_POWERS = {"Pow", "PowByNatural"}
_CONSTANTS = {"true", "false", "oo", "int_oo"}
_ASSUMPTIONS = {"positive", "nonnegative", "integer", "real", "precision", "evaluate"}
_OPERATIONS = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare)
_SIGNS = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
_NOT_SIGNS = (ast.LShift, ast.RShift, ast.MatMult, ast.BitXor, ast.In, ast.NotIn, ast.Is, ast.IsNot)

_ATEN = re.compile(r"torch\.ops\.aten\.([A-Za-z0-9_]{1,200})\.([A-Za-z][A-Za-z0-9_]{0,199})")
# ATen's names with a leading underscore are internal: many of these operations trust their callers and access memory
# without checking indices or sizes. Allowed are those that exports of usual networks contain, and that check.
_INTERNAL_ATEN = {
    "__and__", "__or__", "__xor__", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_assert_scalar",
    "_assert_tensor_metadata", "_conj", "_fft_c2c", "_fft_c2r", "_fft_r2c", "_is_all_true", "_is_any_true",
    "_local_scalar_dense", "_log_softmax", "_safe_softmax", "_shape_as_tensor", "_softmax", "_to_copy", "_trilinear",
    "_unique2", "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "_weight_norm",
}  # fmt: skip
# Public operations that write or read files, print, change global state, or whose kernels trust indices or sizes
# among their arguments. A trained model needs no gradients, so none of the backward operations.
_UNSAFE_ATEN = re.compile(
    r"from_file|save|set|set_|set_data|set_grad_enabled|record_stream|print|warn"
    r"|\w*(?:unsafe|resize|sparse|nested|jagged|mkl|fbgemm|cudnn|miopen|quantize|backward|packed|prepack)\w*"
    r"|q_\w+|int_repr|(?:crow|ccol)_indices\w*|(?:row|col)_indices\w*|to_padded_tensor"
    r"|\w*lu_solve|linalg_ldl_solve|lu_unpack|segment_reduce|ctc_loss|multi(?:label)?_margin_loss\w*"
    r"|fractional_max_pool\w*|native_batch_norm\w*|batch_norm_\w+"
)
_ON_SIZES = re.compile(
    r"_operator\.(add|sub|mul|floordiv|truediv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|getitem)"
    r"|torch\.(sym_(max|min|not|float|int|ite)|_sym_sqrt)|math\.(trunc|ceil|floor)"
)
_OF_GRAPHS = re.compile(r"torch\.ops\.higher_order\.(wrap_with_set_grad_enabled|wrap_with_autocast|cond)")
_CONTAINERS = {"builtins.tuple", "builtins.list", "builtins.dict"}


def expression(text: str) -> str:
    """Check a symbolic size: sympy's notation (`Mul(Integer(2), Symbol('s0', integer=True))`) or plain arithmetic."""
    _each(_parsed(text), _in_expression, text)
    return text


def guard(text: str) -> str:
    """Check a condition on sizes of the inputs, such as `L['images'].size()[0] % 2 == 0`."""
    _each(_parsed(text), _in_guard, text)
    return text


def operator(text: str) -> str:
    """Check the full name of an operation.

    Allowed are arithmetic on sizes, ATen operations that check their arguments and have no effects outside of tensors,
    and the higher-order operations of :data:`_OF_GRAPHS`.
    """
    aten = _ATEN.fullmatch(text)
    known = _ON_SIZES.fullmatch(text) or _OF_GRAPHS.fullmatch(text)
    if not known and (aten is None or not _is_allowed(aten[1])):
        raise ValueError(f"operation {text[:100]!r} is not allowed")
    return text


def _is_allowed(name: str) -> bool:
    if name.startswith("_"):
        return name in _INTERNAL_ATEN
    return _UNSAFE_ATEN.fullmatch(name) is None


def module_path(text: str) -> str:
    """Check that no part of a path begins with `__`, which could lead out of the module.

    :data:`MODULE_PATH` has checked the path's form before.
    """
    if any(part.startswith("__") for part in text.split(".")):
        raise ValueError(f"{text[:100]!r} leads out of the module")
    return text


def tree(text: str) -> str:
    """Check the nesting of inputs or outputs, given as JSON: only tuples, lists and dictionaries with text keys."""
    try:
        version, node = json.loads(text)
        if version != 1:
            raise ValueError(f"tree version {str(version)[:20]!r} is not known")
        _check_tree(node)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"tree {text[:100]!r} can't be read") from error
    return text


def _check_tree(node: Any, depth: int = 0) -> None:
    if set(node) != {"type", "context", "children_spec"} or depth > _DEEPEST:
        raise ValueError("a tree has other fields, or is too deep")
    kind, context, children = node["type"], node["context"], node["children_spec"]
    if kind is None and context is None and children == []:
        return
    if kind not in _CONTAINERS or not isinstance(children, list):
        raise ValueError(f"a tree of {str(kind)[:100]!r} is not allowed")
    keys = json.loads(context)
    wanted = isinstance(keys, list) if kind == "builtins.dict" else keys is None
    if not wanted or not all(isinstance(key, str) and re.fullmatch(IDENTIFIER, key) for key in keys or ()):
        raise ValueError(f"a tree with context {str(context)[:100]!r} is not allowed")
    for child in children:
        _check_tree(child, depth + 1)


def _parsed(text: str) -> ast.expr:
    # Python's parser ignores comments and line ends, but torch inserts the whole text into source: refuse them here.
    if len(text) > _LONGEST or not _PLAIN.fullmatch(text):
        raise ValueError(
            f"expression {text[:100]!r} has other characters than arithmetic needs, or is too long"
        )
    try:
        return ast.parse(text.strip(" "), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"expression {text[:100]!r} can't be read") from error


def _each(root: ast.expr, allowed: Callable[[ast.AST], bool], text: str) -> None:
    """Check that every node of a syntax tree passes `allowed` or is arithmetic, and limit depth and powers."""
    level: list[ast.AST] = [root]
    powers = depth = 0
    while level:
        depth += 1
        for node in level:
            if not (allowed(node) or _is_arithmetic(node)):
                raise ValueError(f"expression {text[:100]!r} has {type(node).__name__}, which is not allowed")
            powers += _is_power(node)
        if depth > _DEEPEST or powers > _MOST_POWERS:
            raise ValueError(f"expression {text[:100]!r} is too deep, or has too many powers")
        level = [child for node in level for child in ast.iter_child_nodes(node)]


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool) or _is_whole(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _is_small(node.right)
    if isinstance(node, _SIGNS):
        return not isinstance(node, _NOT_SIGNS)
    return isinstance(node, (*_OPERATIONS, ast.Load))


def _is_whole(value: Any) -> bool:
    # No floats: sympy makes a fraction of them, and that of 1e-9999999999 fills the memory.
    return isinstance(value, int) and abs(value) < _LARGEST


def _is_small(node: ast.AST) -> bool:
    """Whether an exponent is a small integer: evaluating `9**9**9` would fill the memory."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Integer":
        return len(node.args) == 1 and _is_small(node.args[0])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _is_small(node.operand)
    return isinstance(node, ast.Constant) and node.value in range(_LARGEST_POWER + 1)


def _is_power(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _POWERS
    return isinstance(node, ast.Pow)


def _in_expression(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _FUNCTIONS | _CONSTANTS or re.fullmatch(SYMBOL, node.id) is not None
    if isinstance(node, ast.keyword):
        if node.arg == "precision":
            return isinstance(node.value, ast.Constant) and node.value.value in range(_MOST_BITS + 1)
        return node.arg in _ASSUMPTIONS and isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        # The name of a symbol, or the digits of a Float.
        return re.fullmatch(SYMBOL, node.value) is not None or _is_digits(node)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and _is_call(node.func.id, node.args)
    return False


def _is_call(name: str, arguments: list[ast.expr]) -> bool:
    """Whether `name` may be called with `arguments`; digits as text are for `Float` alone."""
    if name in _POWERS and not (len(arguments) == 2 and _is_small(arguments[1])):
        return False
    return name in _FUNCTIONS and (name == "Float" or not any(map(_is_digits, arguments)))


def _is_digits(node: ast.expr) -> bool:
    """Whether a constant is a decimal number as text, with an exponent of at most 3 digits."""
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"-?[0-9.]{1,40}(?:e[+-]?[0-9]{1,3})?", node.value) is not None
    )


def _in_guard(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in {"L", "Max", "Min", "Mod", "FloorDiv", "PythonMod"}
    if isinstance(node, ast.Subscript):  # an input by name, or a size by number
        return isinstance(node.slice, ast.Constant)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.fullmatch(IDENTIFIER, node.value) is not None
    if isinstance(node, ast.Constant) and isinstance(node.value, float):  # Python computes guards, not sympy
        return True
    if isinstance(node, ast.Attribute):
        return node.attr in {"size", "stride", "storage_offset"}
    return isinstance(node, ast.Call) and not node.keywords
