"""Fixtures for tests of promotion."""

import pytest
from candidates import Candidate, World, trained_candidate

from tasks.registry.aliases import CHAMPION, PREVIOUS
from tasks.trackers.mlflow_run import connect
from training.records import Release
from training.storage.paths import Home

Trained = tuple[Home, Release, tuple[Candidate, Candidate]]


@pytest.fixture(scope="session")
def poor_and_good(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A home with a registered model of poor accuracy, and two unregistered candidates of good accuracy."""
    home = Home(tmp_path_factory.mktemp("home"))
    poor = trained_candidate(home, epochs=1, learning_rate=1e-6).register(floor=0.0)
    good = trained_candidate(home, epochs=4), trained_candidate(home, epochs=5)
    first, second = (
        candidate._replace(evaluation=candidate.evaluation.model_copy(update={"champion_version": "2"}))
        for candidate in good
    )
    return home, poor, (first, second)


@pytest.fixture
def world(poor_and_good: Trained, request: pytest.FixtureRequest) -> World:
    """A registered model for this test alone, whose versions 1 and 2 are the poor model."""
    home, poor, (first, second) = poor_and_good
    client, model = connect(None, home), f"model-{abs(hash(request.node.nodeid))}"
    source = client.get_model_version(poor.model, poor.version)
    client.create_registered_model(model)
    for alias in (PREVIOUS, CHAMPION):
        made = client.create_model_version(model, source.source, run_id=source.run_id, tags=dict(source.tags))
        client.set_registered_model_alias(model, alias, made.version)
    return World(home, client, model, (first.under(model), second.under(model)))
