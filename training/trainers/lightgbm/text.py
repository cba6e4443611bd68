"""A model of LightGBM as text, as a model file stores it."""

from urllib.parse import quote, unquote

import lightgbm  # noqa: TID253 - imported by processes that train

_PARAMETERS, _END_OF_PARAMETERS = "\nparameters:\n", "\nend of parameters\n"


def text_of(model: lightgbm.Booster, rounds: int = -1) -> bytes:
    """The model of the first `rounds` rounds (-1: all); equal trees have equal bytes.

    The text of LightGBM ends with the parameters of the training, which name the workers' addresses and ports: this
    section is left out. Loading needs none of it.
    """
    text: str = model.model_to_string(num_iteration=rounds)
    trees, separator, rest = text.partition(_PARAMETERS)
    return (trees + rest.partition(_END_OF_PARAMETERS)[2] if separator else text).encode()


def model_of(content: bytes) -> lightgbm.Booster:
    """The model from its text. Raises :class:`lightgbm.basic.LightGBMError` for other content."""
    return lightgbm.Booster(model_str=content.decode())


def feature_name(column: str) -> str:
    """The name of a column in a model: LightGBM allows no spaces, commas and brackets in names."""
    return quote(column, safe="")


def column_name(feature: str) -> str:
    """The name of the column whose name in a model is `feature`: the inverse of :func:`feature_name`."""
    return unquote(feature)
