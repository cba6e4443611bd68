"""Make a Prefect server refuse parameters that `retrain` does not have: `python -m deployments.strict`.

`prefect deploy` describes each parameter to the server, but can't declare that there are no others: a misspelt
parameter would create a run that fails at its start. Repeat this command after each `prefect deploy`.
"""

import asyncio
import sys


async def close_schemas() -> list[str]:
    """Forbid other parameters in the schema of every deployment of the flow `retrain`; returns their names."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import DeploymentUpdate
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    async with get_client() as client:
        named = FlowFilter(name=FlowFilterName(any_=["retrain"]))
        found = await client.read_deployments(flow_filter=named)
        for one in found:
            schema = {**(one.parameter_openapi_schema or {}), "additionalProperties": False}
            await client.update_deployment(one.id, DeploymentUpdate(parameter_openapi_schema=schema))
    return [one.name for one in found]


if __name__ == "__main__":
    for closed in asyncio.run(close_schemas()):
        sys.stdout.write(f"retrain/{closed}: unknown parameters are refused when a run is created\n")
