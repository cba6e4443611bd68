"""Whether an exported program can be loaded without running anything but tensor operations.

`torch.export.load` evaluates what a program says of itself: shapes go to sympy, guards and names into Python source,
operators are looked up by name, and tensors and example inputs may be pickles. So a program is read here first, held
against a strict schema, and refused for everything that Evergreen's own exports do not need.
"""

from tasks.model_formats.program.archive import check_program

__all__ = ["check_program"]
