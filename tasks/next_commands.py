"""What to do after a run; the same in the terminal and on the report page."""

from training.records import Release


def next_commands(release: Release) -> tuple[tuple[str, str], ...]:
    """Commands worth knowing after a run, each with what it does."""
    return (
        (f"evergreen predict {release.model} IMAGES OUT.parquet", "score images with the champion"),
        (f"evergreen plan {release.recipe}", "what the next run would do, and why"),
        (f"evergreen rollback {release.model}", "return to the champion before this one"),
        ("evergreen ui", "open MLflow on this store"),
    )
