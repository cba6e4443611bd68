"""Checks of `evergreen doctor`: packages, machine, processes, store and services. They repair nothing."""

from pydantic import Field

from training.records import Record
from training.redaction import Redacted


class Check(Record):
    """The result of one check. A note (`ok` is None) is information that does not count as a failure.

    Secrets in the texts, such as the password of a URL, are removed.
    """

    name: str
    ok: bool | None = Field(description="none for a note")
    found: Redacted
    remedy: Redacted = Field("", description="what to do about it; empty when there is nothing to do")
