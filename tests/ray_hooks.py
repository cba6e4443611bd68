"""A mark for tests of what only the hooks into Ray offer."""

import pytest

from training.ray_cluster import patches


def needs_hook(hook: str, without: str) -> pytest.MarkDecorator:
    """Skip a test of what only a hook of docs/ray-hooks.md offers; `without` says what happens without that hook."""
    return pytest.mark.skipif(not patches.active(), reason=f"without the hook {hook}, {without}")
