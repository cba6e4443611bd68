"""Terms for a run's rows, metric and trainer in reports and progress displays."""

from dataclasses import dataclass

from training.plan import RunPlan
from training.problems import problem_named
from training.records import ProblemName
from training.settings.schema import TrainerName, section_of_trainer
from training.settings.sections import TrainerWords as TrainerWords
from training.storage.paths import Home
from training.storage.record_files import find_record

_ROWS = ("table", "text")  # SourceFiles.kind of tables and texts; all other kinds are images


@dataclass(frozen=True)
class RunWords:
    """Terms of a run. `row` is "image" or "row".

    `metric` is the metric's name in records and metric points, `metric_word` its name inside a sentence.
    """

    row: str = "image"
    metric: str = "accuracy"
    metric_word: str = "accuracy"
    trainer: TrainerWords = section_of_trainer("torch").WORDS

    def kept(self, selected_epoch: int) -> str:
        """What of the training became the model, such as "weights of epoch 3"."""
        return self.trainer.kept.format(selected_epoch)


def run_words(kind: str, trainer: TrainerName, problem: ProblemName) -> RunWords:
    """Words for a source of `kind` (:class:`training.records.SourceFiles`), a trainer and a problem."""
    learned = problem_named(problem)
    return RunWords(
        row="row" if kind in _ROWS else "image",
        metric=learned.metric,
        metric_word=learned.metric_word,
        trainer=section_of_trainer(trainer).WORDS,
    )


def words_of(plan: RunPlan) -> RunWords:
    """Words for the run of a plan."""
    return run_words(plan.files.kind, plan.settings.trainer, plan.recipe.problem)


def words_of_run(home: Home, recipe: str, run_key: str) -> RunWords:
    """Words for a run in a home; those of an image classifier of torch if the run has no readable plan there."""
    run = home.run(recipe, run_key)
    plan = find_record(run.ingredients, RunPlan, run.root.name)
    return words_of(plan) if plan is not None else RunWords()
