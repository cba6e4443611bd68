"""Fit the run form of each deployment to its recipe: `python -m deployments.strict`.

`prefect deploy` describes the parameters of the flow, which are the same for all recipes. After this command, the form
of a deployment has the fields, limits and values of its recipe. Prefect's server then refuses a setting that the
recipe's trainer does not have, and a parameter that the flow does not have, before it creates a run. Repeat the command
after each `prefect deploy` and after each change of a recipe. The command executes the files of these recipes, as
`evergreen plan` does.

A deployment keeps the form of all recipes if it names no recipe, if the recipe can't be loaded on this machine, or if
the deployment has parameters that the recipe's form refuses.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.run_form import FIELDS, form_for
from training.errors import EvergreenError, classify
from training.printable import printable
from training.recipe import load

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

# By flow, the entrypoint of its deployments, as another team's flow on the same server may have the same name, and the
# fields of its form that stand for a single setting.
_FLOWS: dict[str, tuple[str, Iterable[str]]] = {
    "retrain": ("flows.retrain.retrain", FIELDS),
    "tune": ("flows.tune.tune", ()),
}
_FOLDER_STEP = "prefect.deployments.steps.set_working_directory"
Schema = dict[str, Any]


class _NotFittedError(Exception):
    """The reason why a deployment keeps the form of all recipes."""


async def fit_forms(tell: Callable[[str], object]) -> None:
    """Fit the form of every deployment of these flows; calls `tell` with a line for people about each."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import DeploymentUpdate

    async with get_client() as client:
        for flow, (entrypoint, single) in _FLOWS.items():
            schema = _schema_of(entrypoint)
            for deployment in await _deployments_of(client, flow):
                if deployment.entrypoint != entrypoint:
                    continue
                form, said = _fitted(deployment, schema, single)
                if form is not None:
                    await client.update_deployment(
                        deployment.id, DeploymentUpdate(parameter_openapi_schema=form)
                    )
                tell(f"{flow}/{deployment.name}: {said}")


def _schema_of(entrypoint: str) -> Schema:
    """The schema of a flow's parameters, as `prefect deploy` gives it to the server."""
    from prefect.utilities.callables import parameter_schema

    module, _, name = entrypoint.rpartition(".")
    return parameter_schema(getattr(import_module(module), name)).model_dump_for_openapi()


async def _deployments_of(client: "PrefectClient", flow: str) -> "list[DeploymentResponse]":
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName
    from prefect.client.schemas.sorting import DeploymentSort

    named = FlowFilter(name=FlowFilterName(any_=[flow]))
    deployments: list[DeploymentResponse] = []
    while page := await client.read_deployments(
        flow_filter=named, sort=DeploymentSort.NAME_ASC, offset=len(deployments)
    ):
        deployments += page
    return deployments


def _fitted(
    deployment: "DeploymentResponse", schema: Schema, single: Iterable[str]
) -> tuple[Schema | None, str]:
    """The new schema of a deployment's parameters, None if it can't be changed, and a sentence about the form.

    `schema` is that of the flow; `single` is explained in :func:`flows.run_form.form_for`.
    """
    try:
        return (
            _form_of(deployment, schema, single),
            f"the form fits {deployment.parameters['recipe']}; other recipes, settings and parameters are refused",
        )
    except _NotFittedError as reason:
        said = str(reason)
    closed = {**schema, "additionalProperties": False}
    if refused := _refused(deployment.parameters, closed):
        return None, f"not changed: the flow refuses a parameter of the deployment: {refused}"
    return closed, f"unknown parameters are refused; the form has the settings of all recipes, because {said}"


def _form_of(deployment: "DeploymentResponse", schema: Schema, single: Iterable[str]) -> Schema:
    """The form for the deployment's recipe. Raises :class:`_NotFittedError` if the deployment can't have it."""
    given = deployment.parameters
    if "recipe" not in given:
        raise _NotFittedError("the deployment names no recipe")
    try:
        own = load(_place_of(given["recipe"], deployment))[0].settings
        form = form_for(schema, given["recipe"], own, given.get("settings") or {}, single)
    except EvergreenError as error:
        raise _NotFittedError(str(error)) from None
    if refused := _refused(given, form):
        raise _NotFittedError(
            f"the form of {given['recipe']} refuses a parameter of the deployment: {refused}"
        )
    return form


def _place_of(recipe: str, deployment: "DeploymentResponse") -> str:
    """The recipe; a relative path as an absolute path in the folder of the deployment's runs."""
    folders = [
        step[_FOLDER_STEP]["directory"] for step in deployment.pull_steps or () if _FOLDER_STEP in step
    ]
    is_relative = recipe.endswith(".py") and not recipe.startswith(("/", "~"))
    return str(Path(*folders[-1:], recipe)) if is_relative else recipe


def _refused(given: dict[str, Any], schema: Schema) -> str:
    """Why Prefect's server would refuse these parameters; empty if it accepts them."""
    from prefect.utilities.schema_tools.validation import validate

    return "; ".join(error.message for error in validate(given, schema, ignore_required=True))


def main() -> None:
    """Print a line for each deployment; ends with a message when Prefect's server does not answer."""
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        sys.stdout.write(f"{printable(line)}\n")

    try:
        asyncio.run(fit_forms(tell))
    except Exception as error:
        known = classify(error)
        if known is None:
            raise
        raise SystemExit(f"{'the other deployments are ' if told else ''}not changed: {known}") from None
    if not told:
        entrypoints = " or ".join(entrypoint for entrypoint, _ in _FLOWS.values())
        sys.stdout.write(f"there is no deployment of {entrypoints} on this server\n")


if __name__ == "__main__":
    main()
