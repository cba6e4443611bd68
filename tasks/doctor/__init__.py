"""What `evergreen doctor` looks at: packages, machine, processes, store and services. It changes nothing."""

from pydantic import Field

from training.records import Record


class Check(Record):
    """One thing that was looked at. A note (`ok` is None) is worth knowing and stops nothing."""

    name: str
    ok: bool | None = Field(description="none for a note")
    found: str
    remedy: str = Field("", description="what to do about it; empty when there is nothing to do")
