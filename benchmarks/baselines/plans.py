"""Plans of retraining runs in a home: what the steps that talk to MLflow are given."""

from training.plan import RunPlan, choose_source, identify
from training.recipe import load
from training.settings.overrides import resolve
from training.storage.paths import Home


def plan_of_digits(home: Home) -> RunPlan:
    """The plan of `evergreen retrain digits` in this home."""
    recipe, ref = load("digits")
    settings = resolve(recipe.settings, {"scaling": {"num_workers": 0, "use_gpu": "no"}})
    files = choose_source(recipe, settings, home).fetch(home.sources / recipe.name)
    return identify(home, ref, settings, files)


def numbered(plan: RunPlan, number: int) -> RunPlan:
    """A run of its own: the plan under another run key."""
    return plan.model_copy(update={"run_key": f"{number:064x}"})
