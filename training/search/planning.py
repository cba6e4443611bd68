"""In: a recipe, its settings and a request for a search. Out: the search, and a run plan for each trial.

Fails with SettingError, before any trial starts, when a setting can't be searched, when the settings refuse the values
of a trial, or when the weights that `training.init_from` names are missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.errors import SettingError
from training.identity import latest_run
from training.initial_weights import CHAMPION, Start
from training.plan import RunPlan, identify_after
from training.problems import problem_named
from training.recipe_sources import RecipeRef
from training.records import SourceFiles
from training.search.records import SCHEDULERS, Scheduler, Search, Trial, failure_file
from training.search.space import Values, parse_space, propose
from training.settings.overrides import describe, resolve
from training.settings.schema import Settings
from training.storage.files import digest_json
from training.storage.paths import Home

# A trial trains in one process: several trials at a time use the machine better than several workers of one trial.
_ONE_PROCESS = {"scaling": {"num_workers": 0, "min_workers": None}}
_MOST_TRIALS = 10_000
_GENERATIONS = 4
RECORD = "search.json"
_NOT_SEARCHED = {
    "training.trainer": "the recipe chooses the trainer",
    "training.init_from": "all trials start from the same weights",
}


@dataclass(frozen=True)
class Request:
    """A user's request for a search.

    `space` has the values of each searched setting as text, `trials` is the number of trials, and `seed` the seed of
    their values. `concurrent` limits the number of trials that run at a time; None: as many as CPUs or GPUs allow.
    With the scheduler pbt, `trials` is the number of trials of each of the `generations`; None: four generations.
    """

    space: Mapping[str, str]
    trials: int
    scheduler: Scheduler
    seed: int
    concurrent: int | None = None
    generations: int | None = None

    @property
    def rounds(self) -> int:
        """How often the trials are trained: the number of generations with the scheduler pbt, else 1."""
        asked = _GENERATIONS if self.generations is None else self.generations
        return asked if self.scheduler == "pbt" else 1


@dataclass(frozen=True)
class PlannedSearch:
    """A search, and the run plans of its trials in the order of the trials.

    `settings` are what all trials share: the recipe's settings with the user's overrides, before the values of a trial.
    """

    search: Search
    plans: tuple[RunPlan, ...]
    settings: Settings

    @property
    def folder(self) -> Path:
        """The search's folder in the home."""
        return Home(Path(self.plans[0].home)).search(self.search.recipe, self.search.key)

    @property
    def record(self) -> Path:
        """File of the :class:`Search` with the results so far."""
        return self.folder / RECORD

    @property
    def picture(self) -> Path:
        """File of the parallel-coordinates picture."""
        return self.folder / "parallel_coordinates.png"

    def failure_of(self, trial: Trial) -> Path:
        """File of the trial's :class:`training.search.records.TrialFailure`."""
        return failure_file(self.folder, trial.number)

    def trial(self, number: int) -> Trial:
        """The trial with this number; trials are numbered from 1."""
        return self.search.trials[number - 1]

    def plan_of(self, trial: Trial) -> RunPlan:
        """The plan of the trial's run."""
        return self.plans[trial.number - 1]

    def unfrozen(self, parent: Trial, values: Values) -> Values:
        """The override `training.freeze=[]` for a trial with `values` that continues from `parent`, or no override.

        A trial of the first generation that found no weights to start from has trained all parts of the model. The
        trials that continue from it train all parts, too, whatever `training.freeze` says.
        """
        first = parent
        while first.parent is not None:
            first = self.trial(first.parent)
        freezes = getattr(resolve(self.settings, nested(values)).training, "freeze", ())
        return {"training.freeze": []} if freezes and self.plan_of(first).initial is None else {}

    def overrides_of(self, trial: Trial) -> Values:
        """The settings by which the trial's run differs from other runs of the recipe, by their dotted names.

        These are the trial's values, and for a trial that starts from another trial the file of the initial weights,
        the seed, and that nothing is frozen if the first trials had no weights to start from.
        """
        if trial.parent is None:
            return dict(trial.values)
        settings = self.plan_of(trial).settings
        start = {"training.init_from": settings.training.initial_weights, "seed": settings.seed}
        return trial.values | start | self.unfrozen(trial, trial.values)


def check_request(request: Request, settings: Settings) -> list[Values]:
    """Check a request for a search; returns the values of each trial.

    Raises :class:`SettingError` for a request that is not possible with these settings.
    """
    if not 1 <= request.trials <= _MOST_TRIALS:
        raise SettingError(f"--trials {request.trials}: a search has 1 to {_MOST_TRIALS} trials")
    if request.concurrent is not None and request.concurrent < 1:
        raise SettingError(f"--concurrent {request.concurrent}: at least one trial must run at a time")
    if request.scheduler not in SCHEDULERS:
        raise SettingError(f"--scheduler {request.scheduler}: choose one of {', '.join(SCHEDULERS)}")
    _check_generations(request, settings)
    space = parse_space(request.space)
    known = describe(settings)
    for name in space:
        _check_searchable(name, known, settings)
    if settings.storage.url is not None and settings.ray.address is not None:
        raise SettingError(
            "storage.url: the trials of a search need a home that all nodes share; unset storage.url, or search "
            "without ray.address"
        )
    trial_values = propose(space, request.trials, request.seed)
    for number, values in enumerate(trial_values, start=1):
        settings_of(settings, values, number)
    return trial_values


def plan_search(
    home: Home,
    ref: RecipeRef,
    settings: Settings,
    files: SourceFiles,
    request: Request,
    start: Start | None = None,
) -> PlannedSearch:
    """Plan the run of each trial; the search's key is a digest of the run keys, the space and the scheduler.

    With the scheduler pbt, the key also has the number of generations and the seed, and only the first generation is
    planned: the others follow from its results; see :mod:`training.search.generations`. `start` has the weights to
    which `training.init_from` refers at present; None if the setting is not set. Raises the errors of
    :func:`check_request` and :func:`training.plan.identify`.
    """
    trial_values = check_request(request, settings)
    before, by_key = latest_run(home, ref.name), dict[str, tuple[Values, RunPlan]]()
    for number, values in enumerate(trial_values, start=1):
        plan = identify_after(before, home, ref, settings_of(settings, values, number), files, start=start)
        by_key.setdefault(plan.run_key, (values, plan))  # 1 and 1.0 are the same value
    trials = tuple(
        Trial(number=number, values=values, run_key=key)
        for number, (key, (values, _)) in enumerate(by_key.items(), start=1)
    )
    named = [[trial.run_key for trial in trials], dict(request.space), request.scheduler]
    search = Search(
        recipe=ref.name,
        key=digest_json([*named, request.rounds, request.seed] if request.scheduler == "pbt" else named),
        problem=ref.problem,
        metric=problem_named(ref.problem).metric,
        space=dict(request.space),
        scheduler=request.scheduler,
        generations=request.rounds,
        seed=request.seed,
        trials=trials,
    )
    plans = (plan.model_copy(update={"search": search.key}) for _, plan in by_key.values())
    return PlannedSearch(search, tuple(plans), settings)


def with_values(overrides: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """Add a trial's values to nested overrides of the settings."""
    return dict(overrides) | {
        name: {**overrides.get(name, {}), **given} if isinstance(given, dict) else given
        for name, given in nested(values).items()
    }


def at_version(overrides: Mapping[str, Any], start: Start | None) -> tuple[dict[str, Any], Start | None]:
    """Replace `training.init_from=champion` by the number of the version that is the champion now.

    Returns overrides of the settings, and the start that they give. So all trials and the winner's retraining start
    from the same weights, whatever becomes the champion in between, and whichever weights earlier runs started from.
    """
    if start is None or start.reference != CHAMPION or start.weights is None:
        return dict(overrides), start
    reference = f"version:{start.weights.version}"
    weights = start.weights.model_copy(update={"reference": reference})
    return with_values(overrides, {"training.init_from": reference}), Start(reference, start.model, weights)


def nested(values: Values) -> dict[str, Any]:
    """Convert values by dotted name to nested overrides of the settings."""
    tree: dict[str, Any] = {}
    for dotted, value in values.items():
        section, _, name = dotted.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = value
    return tree


def _check_generations(request: Request, settings: Settings) -> None:
    """Raise :class:`SettingError` if the number of generations, or the scheduler pbt, is not possible."""
    if request.scheduler != "pbt":
        if request.generations is not None:
            raise SettingError(f"--generations {request.generations}: only --scheduler pbt has generations")
        return
    if request.trials < 2:
        raise SettingError(f"--trials {request.trials}: --scheduler pbt compares two or more trials")
    if request.rounds < 2 or request.rounds * request.trials > _MOST_TRIALS:
        raise SettingError(
            f"--generations {request.rounds}: a search has two or more generations, and at most {_MOST_TRIALS} "
            f"trials in all"
        )
    if "training.init_from" not in describe(settings):
        raise SettingError(
            f"--scheduler pbt: trials start from the weights of other trials, which the trainer {settings.trainer} "
            "does not offer. Use --scheduler asha or none"
        )


def _check_searchable(name: str, known: Mapping[str, Any], settings: Settings) -> None:
    """Raise :class:`SettingError` unless the setting can be searched.

    Only settings of the section `training` can be searched: settings of other sections choose the data, the workers or
    the seed, or do not change the trained weights.
    """
    section = name.partition(".")[0]
    if section == "training" and name in known and name not in _NOT_SEARCHED:
        return
    if name not in known:
        # `resolve` raises an error that names the nearest setting.
        resolve(settings, nested({name: None}))
    why = _NOT_SEARCHED.get(name) or {
        "data": "settings of data choose the rows, which all trials of a search must share",
        "scaling": "each trial trains in one process",
        "seed": "another seed is another draw of the same settings",
    }.get(section, "it does not change the trained model")
    raise SettingError(
        f"--space {name}: {why}. Only settings of the section training can be searched; --set gives {name} one value"
    )


def settings_of(base: Settings, values: Values, number: int) -> Settings:
    """Settings of a trial. Raises :class:`SettingError` that names the trial and its values."""
    listed = ", ".join(f"{name}={value}" for name, value in values.items())
    try:
        resolve(base, nested(values))  # valid for the winner's retraining, too
        feed = (
            {"data": {"feed": "memory"}} if base.data.feed == "stream" else {}
        )  # a stream needs Ray's workers
        return resolve(base, nested(values), _ONE_PROCESS | feed)
    except SettingError as error:
        raise SettingError(f"trial {number} ({listed}): {error}") from None
