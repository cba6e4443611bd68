"""Plans of retraining runs in a home: the input of the steps that use MLflow."""

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
    """A copy of the plan with another run key, and thus a separate run."""
    return plan.model_copy(update={"run_key": f"{number:064x}"})
