"""The base class of all records."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base class of all records: immutable, unknown fields refused, convertible to and from JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")
