"""Check that an exported program can be loaded without running any code except tensor operations.

`torch.export.load` evaluates content of a program: it passes shapes to sympy, puts guards and names into Python
source, looks up operators by name, and may unpickle tensors and example inputs. So :func:`check_program` first
validates the program against a strict schema, and refuses everything that Evergreen's own exports do not need.
"""

from tasks.model_formats.program.archive import check_program

__all__ = ["check_program"]
