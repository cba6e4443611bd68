"""Collect all results of an MLflow search, which returns them in pages."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mlflow.store.entities import PagedList

Entity = TypeVar("Entity")

PAGE_SIZE = 1000  # the largest page that a server allows for every kind of entity


def all_pages(search: "Callable[..., PagedList[Entity]]", *given: Any, **named: Any) -> list[Entity]:
    """All results, over all pages, of `search`, a method of MLflow's client, with these arguments."""
    entities: list[Entity] = []
    token: str | None = None
    while True:
        page = search(*given, **named, max_results=PAGE_SIZE, page_token=token)
        entities += page
        token = page.token
        if not token:
            return entities
