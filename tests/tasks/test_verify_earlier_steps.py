"""A run of an earlier version, whose last step of an epoch could have a row for each worker: no finding, no defect."""

from typing import Any

import pytest
from small_runs import tiny_settings

from tasks.verify.evidence import Evidence
from tasks.verify.finding import NoEvidence
from training.data.sample_order import SampleOrder
from training.data.sources.digits import Digits
from training.plan import RunPlan, identify
from training.recipe import load
from training.storage.paths import Home


def evidence(home: Home, order: SampleOrder, code: str | dict[str, str]) -> Evidence:
    """The evidence of a run with this order.

    `code` replaces the digests of some modules, or as a text those of all, as in runs of the first versions.
    """
    settings = tiny_settings(
        training={"global_batch_size": order.global_batch_size},
        scaling={"num_workers": order.number_of_parts},
    )
    plan: RunPlan = identify(home, load("digits")[1], settings, Digits().fetch(home.sources / "digits"))
    parts: dict[str, Any] = plan.ingredients
    parts = parts | {"code": code if isinstance(code, str) else parts["code"] | code}
    run_evidence = Evidence(plan.paths, home)
    # Read from files otherwise, which a whole training would have to write.
    given = {
        "plan": plan.model_copy(update={"ingredients": parts}),
        "order": order,
        "learn": range(order.rows),
    }
    run_evidence.__dict__.update(given)
    return run_evidence


EARLIER = [{"training.data.sample_order": "0" * 64}, "0" * 64]


@pytest.mark.parametrize("code", EARLIER, ids=["other digest of the module", "one digest of all modules"])
def test_steps_of_an_earlier_rule_are_no_evidence(home: Home, code: str | dict[str, str]) -> None:
    order = SampleOrder(1002, 8, 0, number_of_parts=2)  # a rest of two rows: a step of its own before
    with pytest.raises(NoEvidence, match="an earlier version of Evergreen divided the rows into other steps"):
        _ = evidence(home, order, code).steps


@pytest.mark.parametrize(
    ("order", "code"),
    [
        (SampleOrder(1002, 8, 0, number_of_parts=2), {}),
        *((SampleOrder(1000, 8, 0, number_of_parts=2), code) for code in EARLIER),
    ],
    ids=["of this version", "both rules give the same steps", "the same, of a first version"],
)
def test_other_runs_are_compared(home: Home, order: SampleOrder, code: str | dict[str, str]) -> None:
    assert evidence(home, order, code).steps.per_epoch == 125
