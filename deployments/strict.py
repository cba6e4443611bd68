"""Fit the run form of each deployment to its recipe: `python -m deployments.strict`.

`prefect deploy` describes the parameters of the flow, which are the same for all recipes. After this command, the form
of a deployment has the fields, limits and values of its recipe. Prefect's server then refuses a setting that the
recipe's trainer does not have, and a parameter that the flow does not have, before it creates a run. Repeat the command
after each `prefect deploy` and after each change of a recipe.
"""

import asyncio
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flows.run_form import FIELDS, form_for
from training.errors import EvergreenError, classify
from training.printable import printable
from training.recipe import load
from training.settings.overrides import resolve

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

# By flow, the entrypoint of its deployments, as another team's flow on the same server may have the same name, and the
# fields of its form that stand for a single setting.
_FLOWS: dict[str, tuple[str, Iterable[str]]] = {
    "retrain": ("flows.retrain.retrain", FIELDS),
    "tune": ("flows.tune.tune", ()),
}


async def fit_forms() -> list[str]:
    """Fit the form of every deployment of these flows; returns a line for people about each.

    If a deployment's recipe can't be loaded here, its form keeps the fields of all recipes.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import DeploymentUpdate

    done = []
    async with get_client() as client:
        for flow, (entrypoint, single) in _FLOWS.items():
            schema = _schema_of(entrypoint)
            for one in await _deployments_of(client, flow):
                if one.entrypoint == entrypoint:
                    form, said = _fitted(schema, one.parameters, single)
                    await client.update_deployment(one.id, DeploymentUpdate(parameter_openapi_schema=form))
                    done.append(f"{flow}/{one.name}: {said}")
    return done


def _schema_of(entrypoint: str) -> dict[str, Any]:
    """The schema of a flow's parameters, as `prefect deploy` gives it to the server."""
    from prefect.utilities.callables import parameter_schema

    module, _, name = entrypoint.rpartition(".")
    return parameter_schema(getattr(import_module(module), name)).model_dump_for_openapi()


async def _deployments_of(client: "PrefectClient", flow: str) -> "list[DeploymentResponse]":
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName
    from prefect.client.schemas.sorting import DeploymentSort

    named = FlowFilter(name=FlowFilterName(any_=[flow]))
    found: list[DeploymentResponse] = []
    while page := await client.read_deployments(
        flow_filter=named, sort=DeploymentSort.NAME_ASC, offset=len(found)
    ):
        found += page
    return found


def _fitted(
    schema: dict[str, Any], given: dict[str, Any], single: Iterable[str]
) -> tuple[dict[str, Any], str]:
    """The schema of the flow's parameters for a deployment's recipe, and a sentence about the form.

    `given` has the deployment's own parameters; `single` is explained in :func:`flows.run_form.form_for`.
    """
    recipe = given.get("recipe", schema["properties"]["recipe"]["default"])
    try:
        settings = resolve(load(recipe)[0].settings, given.get("settings") or {})
    except EvergreenError as error:
        closed = {**schema, "additionalProperties": False}
        return closed, f"unknown parameters are refused; the form has the settings of all recipes ({error})"
    return form_for(
        schema, recipe, settings, single
    ), f"the form fits {recipe}, and other parameters are refused"


def main() -> None:
    """Print a line for each changed deployment; ends with a message when Prefect's server does not answer."""
    try:
        changed = asyncio.run(fit_forms())
    except Exception as error:
        known = classify(error)
        if known is None:
            raise
        raise SystemExit(f"not changed: {known}") from None
    if not changed:
        entrypoints = " or ".join(entrypoint for entrypoint, _ in _FLOWS.values())
        sys.stdout.write(f"there is no deployment of {entrypoints} on this server\n")
    for line in changed:
        sys.stdout.write(f"{printable(line)}\n")


if __name__ == "__main__":
    main()
