"""Checks that the initial weights of a run fit its model, so that `plan` refuses weights that training would refuse."""

from training.plan import RunPlan
from training.problems import problem_named
from training.recipe import Recipe
from training.records import DatasetVersion
from training.storage.files import temporary_folder


def check_initial_weights(plan: RunPlan, recipe: Recipe, version: DatasetVersion) -> None:
    """Load the initial weights into a new model of the recipe, and freeze the parts in `training.freeze`.

    Checks nothing if the run starts from new weights, or while the shapes of the model's inputs and outputs are not
    known because the data are not prepared. Raises :class:`training.errors.SettingError` if the weights are missing, do
    not fit, or belong to another tokenizer than that of the prepared data; and :class:`training.errors.DataError` if
    their files are damaged.
    """
    outputs = problem_named(version.problem).outputs(version)
    if plan.initial is None or not outputs or not (version.has_images or version.parts["train"]):
        return
    from tasks.registry.initial_weights import check_tokenizer, copy_initial_weights
    from training.checkpoints.weights import load_weights
    from training.trainers.network.fine_tuning import start_from
    from training.trainers.network.inputs import model_shape
    from training.trainers.network.modules import build_module
    from training.trainers.network.own_settings import fine_tuning_settings

    module = build_module(recipe, model_shape(version), outputs)
    kept = plan.paths.initial_weights  # copy in a run that has begun; the version may be deleted since
    with temporary_folder("initial") as folder:
        file = kept if kept.is_file() else copy_initial_weights(plan, plan.initial, folder)
        check_tokenizer(plan, version, file.parent)
        weights = load_weights(file)
    start_from(module, weights, fine_tuning_settings(plan.settings), outputs)
