"""Population-based training: each generation of trials starts from the weights of the trials before.

The first generation has the values that :func:`training.search.space.propose` gives. When all its trials have ended,
the worst quarter is replaced: the new trial starts from the weights of a trial of the best quarter, with values near
those of that trial. The values are drawn again while the settings refuse them, or while another trial has the same
parent and values. Every other trial continues from its own weights with its own values. The same happens after each
further generation.

A trial of a later generation is a run like any other: its run key has the digest of its initial weights. So the search
is a function of data, recipe, code, settings, space and seed, and an interrupted search continues with the same trials.

The method is that of Jaderberg et al., "Population Based Training of Neural Networks", 2017. The quarter, the factors
and the probability of new values are the defaults of Ray Tune's `PopulationBasedTraining`. Two things differ: a trial
takes over the weights of another, but not the state of the optimizer, and a generation begins when all trials of the
generation before have ended.
"""

import logging
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from training.errors import SettingError
from training.identity import latest_run
from training.initial_weights import InitialWeights, Start
from training.plan import LastRun, RunPlan, identify_after
from training.search.planning import PlannedSearch, nested, settings_of
from training.search.records import Search, Trial
from training.search.results import known_results
from training.search.space import Domain, Values, parse_space
from training.settings.overrides import resolve
from training.storage.paths import Home
from training.supervision.launch import finished

log = logging.getLogger("evergreen.search")

_REPLACED = 0.25  # share of a generation that is replaced, and share of the best trials that replace it
_DRAWS = 20  # of the values of a trial that replaces another, at most
_NEW_VALUE = 0.25  # probability that a value is drawn from the whole space instead of near the parent's value


def grown(planned: PlannedSearch) -> PlannedSearch:
    """Add all generations whose trials follow from the results that are known."""
    while (more := next_generation(planned, known_results(planned))) is not None:
        planned = more
    return planned


def next_generation(planned: PlannedSearch, search_record: Search) -> PlannedSearch | None:
    """The search with one more generation.

    Returns None if there is none to come: after the last generation, while a trial of the present generation has no
    final result, and when all its trials have failed. `search_record` has the results of the trials of `planned`.
    """
    search = planned.search
    generation = search.trials[-1].generation
    if generation == search.generations or search_record.left:
        return None
    members = [trial for trial in search.trials if trial.generation == generation]
    if not any(_loss(search_record, member) < math.inf for member in members):
        return None
    trials, plans = list(search.trials), list(planned.plans)
    for parent, values, plan in _members(planned, _parents(search_record, members), generation + 1):
        trials.append(
            Trial(
                number=len(trials) + 1,
                values=values,
                run_key=plan.run_key,
                generation=generation + 1,
                parent=parent.number,
            )
        )
        plans.append(plan)
    wider = search.model_copy(update={"trials": tuple(trials), "published": False})
    return replace(planned, search=wider, plans=tuple(plans))


def _members(
    planned: PlannedSearch, pairs: list[tuple[Trial, Trial]], generation: int
) -> Iterator[tuple[Trial, Values, RunPlan]]:
    """Parent, values and plan of each trial of a generation; `pairs` are those of :func:`_parents`.

    A replaced trial is left out, with a warning, if no draw of its values gives a run that no other trial has.
    """
    search, first = planned.search, len(planned.plans) + 1
    last = latest_run(Home(Path(planned.plans[0].home)), search.recipe)
    space = parse_space(search.space)
    going_on = {
        number: _plan(planned, last, parent, parent.values, generation, number)
        for number, (member, parent) in enumerate(pairs, start=first)
        if parent is member
    }
    known = {plan.run_key for plan in (*planned.plans, *going_on.values())}
    for number, (_, parent) in enumerate(pairs, start=first):
        if number in going_on:
            yield parent, parent.values, going_on[number]
            continue
        for turn in range(_DRAWS):
            values = _explored(space, parent.values, search.seed, number, turn)
            plan = _plan_if_accepted(planned, last, parent, values, generation, number)
            if plan is not None and plan.run_key not in known:
                known.add(plan.run_key)
                yield parent, values, plan
                break
        else:
            log.warning(
                "generation %d has a trial less: no other values near those of trial %d were found",
                generation,
                parent.number,
            )


def _parents(search: Search, members: list[Trial]) -> list[tuple[Trial, Trial]]:
    """(trial, parent) for each trial; its successor in the next generation starts from the parent's weights."""
    ranked = sorted(members, key=lambda member: (_loss(search, member), member.number))
    count = min(math.ceil(len(members) * _REPLACED), len(members) // 2)
    best = [member for member in ranked[:count] if _loss(search, member) < math.inf]
    worst = {member.number for member in ranked[len(ranked) - count :]}
    worst |= {member.number for member in members if _loss(search, member) == math.inf}
    draws = random.Random(f"{search.seed}/{members[-1].number}/parents")
    return [(member, draws.choice(best) if member.number in worst else member) for member in members]


def _loss(search: Search, trial: Trial) -> float:
    """The validation loss of a finished trial; infinity for a trial that failed."""
    result = search.result_of(trial)
    if result is None or result.status != "finished" or result.validation_loss is None:
        return math.inf
    return result.validation_loss


def _explored(space: Mapping[str, Domain], values: Values, seed: int, number: int, turn: int = 0) -> Values:
    """Values near `values`; each with probability 1/4 from the whole space instead. A `turn` is another draw."""
    explored: Values = {}
    for name, domain in space.items():
        draws = random.Random(f"{seed}/{number}/{name}/explored" + (f"/{turn}" if turn else ""))
        is_new, share = draws.random() < _NEW_VALUE, draws.random()
        explored[name] = domain.value(share) if is_new else domain.near(values[name], up=share >= 0.5)
    return explored


def _plan_if_accepted(
    planned: PlannedSearch, last: LastRun, parent: Trial, values: Values, generation: int, number: int
) -> RunPlan | None:
    """:func:`_plan`; None if the settings refuse the values."""
    try:
        settings_of(planned.settings, values, number)
    except SettingError:
        return None
    return _plan(planned, last, parent, values, generation, number)


def _plan(
    planned: PlannedSearch, last: LastRun, parent: Trial, values: Values, generation: int, number: int
) -> RunPlan:
    """The plan of a trial that starts from the weights of `parent`; `last` is the recipe's last run.

    Each generation has another seed: with the same seed, each would read the rows in the same order. If the first
    generation had no weights to start from, it froze nothing, and later generations freeze nothing either.
    """
    before = planned.plan_of(parent)
    trained = finished(before.paths, before.run_key)
    assert trained is not None, "a trial without its model has no result"
    path, home = Path(trained.weights).absolute(), Home(Path(before.home))
    start: Values = {"training.init_from": str(path), "seed": planned.settings.seed + generation - 1}
    settings = resolve(
        settings_of(planned.settings, values, number), nested(start | planned.unfrozen(parent, values))
    )
    weights = InitialWeights(reference=str(path), digest=trained.weights_digest)
    plan = identify_after(
        last, home, before.recipe, settings, before.files, start=Start(str(path), weights=weights)
    )
    return plan.model_copy(update={"search": planned.search.key})
