"""Checks of the arguments of the classes by which a recipe chooses its trainer, such as `Torch(build_model)`."""

from training.errors import SettingError


def check_function(trainer: str, name: str, value: object) -> None:
    """Raise :class:`SettingError` if the argument `name` of a trainer is no function."""
    if not callable(value):
        raise SettingError(
            f"{trainer}: {name} must be a function, not {value!r}; write {trainer}({name}) with the function's name, "
            "without quotes and parentheses"
        )
