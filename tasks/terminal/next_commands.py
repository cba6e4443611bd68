"""Commands to suggest after a run; the same in the terminal and on the report page."""

import shlex

from tasks.registry.aliases import CHALLENGER, CHAMPION, PREVIOUS, ROLLED_BACK_TAG
from tasks.run_words import words_of_run
from tasks.trackers.embedded_store import aliases, tags_of_version
from training.plan import arguments_of_run
from training.records import Release
from training.storage.paths import home_to_read


def next_commands(release: Release) -> tuple[tuple[str, str], ...]:
    """(command, purpose) pairs to suggest after a run; only commands that work in this home in its present state.

    For a release in an external store (`tracking.uri`), this home has nothing to predict with, roll back or open.
    """
    home, model = home_to_read(), shlex.quote(release.model)
    known = aliases(home, release.model, release.mlflow_run_id)
    champion, previous = known.get(CHAMPION), known.get(PREVIOUS)
    words = words_of_run(home, release.recipe, release.run_key)
    score = f"evergreen predict {model} {words.row.upper()}S OUT.parquet"
    plan = shlex.join(["evergreen", "plan", *arguments_of_run(home, release.recipe, release.run_key)])
    commands = [(plan, "what the next run would do, and why")]
    if champion:
        commands.insert(0, (score, f"score {words.row}s with the champion"))
    elif CHALLENGER in known:
        purpose = f"score {words.row}s with the challenger, as there is no champion"
        commands.insert(0, (f"{score} --alias {CHALLENGER}", purpose))
    undone = previous is not None and ROLLED_BACK_TAG in tags_of_version(home, release.model, previous)
    if champion and previous and champion != previous and not undone:  # else the bad version would come back
        commands.append((f"evergreen rollback {model}", f"return to the champion before, version {previous}"))
    if known:
        commands.append(("evergreen ui", "open MLflow on this store"))
    return tuple(commands)
