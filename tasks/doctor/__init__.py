"""Checks of `evergreen doctor`: packages, machine, processes, store and services. They repair nothing."""

from pydantic import Field

from training.records import Record


class Check(Record):
    """The result of one check. A note (`ok` is None) is information that does not count as a failure."""

    name: str
    ok: bool | None = Field(description="none for a note")
    found: str
    remedy: str = Field("", description="what to do about it; empty when there is nothing to do")
