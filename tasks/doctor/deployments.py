"""Check of Evergreen's deployments on the configured Prefect server: whether each refuses unknown parameters."""

from collections.abc import Iterator

from tasks.doctor import Check

_ENTRYPOINTS = ("flows.retrain.retrain", "flows.tune.tune")
_TIMEOUT_S = 3.0


def deployment_checks() -> Iterator[Check]:
    """A note that names the deployments which accept unknown parameters; nothing if there are none."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.sorting import DeploymentSort

    lenient: list[str] = []
    with get_client(httpx_settings={"timeout": _TIMEOUT_S}, sync_client=True) as client:
        read = 0
        while page := client.read_deployments(sort=DeploymentSort.NAME_ASC, offset=read):
            read += len(page)
            lenient += [
                deployment.name
                for deployment in page
                if deployment.entrypoint in _ENTRYPOINTS
                and (deployment.parameter_openapi_schema or {}).get("additionalProperties") is not False
            ]
    if lenient:
        yield Check(
            name="deployments",
            ok=None,
            found=f"accept unknown parameters: {', '.join(sorted(lenient))}",
            remedy="After each `prefect deploy`, run `python -m deployments.strict`: then a misspelled parameter is "
            "refused before a run exists.",
        )
