"""Make a Prefect server refuse parameters that Evergreen's flows do not have: `python -m deployments.strict`.

`prefect deploy` describes each parameter to the server, but can't declare that there are no others: a misspelt
parameter would create a run that fails at its start. Repeat this command after each `prefect deploy`.
"""

import asyncio
import sys
from typing import TYPE_CHECKING

from training.errors import classify
from training.printable import printable

if TYPE_CHECKING:
    from prefect.client.schemas.responses import DeploymentResponse

# By flow, the entrypoint of its deployments: another team's flow on the same server may have the same name.
_ENTRYPOINTS = {"retrain": "flows.retrain.retrain", "tune": "flows.tune.tune"}


async def close_schemas() -> list[str]:
    """Forbid other parameters in the schema of every deployment of these flows; returns names as `flow/deployment`."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import DeploymentUpdate
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName
    from prefect.client.schemas.sorting import DeploymentSort

    closed = []
    async with get_client() as client:
        for flow, entrypoint in _ENTRYPOINTS.items():
            named = FlowFilter(name=FlowFilterName(any_=[flow]))
            found: list[DeploymentResponse] = []
            while page := await client.read_deployments(
                flow_filter=named, sort=DeploymentSort.NAME_ASC, offset=len(found)
            ):
                found += page
            for one in found:
                if one.entrypoint != entrypoint:
                    continue
                schema = {**(one.parameter_openapi_schema or {}), "additionalProperties": False}
                await client.update_deployment(one.id, DeploymentUpdate(parameter_openapi_schema=schema))
                closed.append(f"{flow}/{one.name}")
    return closed


def main() -> None:
    """Print the names of the changed deployments; ends with a message when Prefect's server does not answer."""
    try:
        closed = asyncio.run(close_schemas())
    except Exception as error:
        known = classify(error)
        if known is None:
            raise
        raise SystemExit(f"not changed: {known}") from None
    if not closed:
        sys.stdout.write(f"there is no deployment of {' or '.join(_ENTRYPOINTS.values())} on this server\n")
    for name in closed:
        sys.stdout.write(f"{printable(name)}: unknown parameters are refused when a run is created\n")


if __name__ == "__main__":
    main()
