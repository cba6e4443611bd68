"""What a run key that was seen before means: the release it led to, as long as the registry still has it."""

from pathlib import Path

from tasks.gate import same_policy
from tasks.registry import WEIGHTS_TAG, alias_of, find_version
from tasks.tracking import RUN_KEY_TAG, connect
from training.paths import Home
from training.plan import RunPlan
from training.records import Release


def find_release(plan: RunPlan) -> Release | None:
    """The finished release of this run key, or None when something is left to do.

    A gate that was set differently since asks for a new verdict on the same model, and a version that is gone
    from the registry for a new registration; neither trains again.
    """
    release = read_release(plan)
    if release is None:
        return None
    client = connect(plan.settings.tracking.uri, Home(Path(plan.home)))
    mine = {RUN_KEY_TAG: plan.run_key, WEIGHTS_TAG: release.weights_digest}
    if find_version(client, plan.model, mine) != release.version:
        return None
    alias = alias_of(client, plan.model, release.version)
    # What was champion once and is not now was replaced or rolled back on purpose: it is not judged again.
    judged_for_good = alias == "champion" or release.alias == "champion"
    if not judged_for_good and not same_policy(release.verdict, plan.settings.gate):
        return None
    return release.model_copy(update={"reused": True, "alias": alias})


def read_release(plan: RunPlan) -> Release | None:
    """What the run wrote down last, without asking the registry."""
    file = plan.paths.release
    return Release.model_validate_json(file.read_text()) if file.is_file() else None
