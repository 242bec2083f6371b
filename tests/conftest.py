from __future__ import annotations

import os

import pytest
from gitrepo import GitRepo
from hypothesis import settings

# A busy machine is no failure.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Nothing of what tests keep goes into the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        if "BISECT_RECOMPUTE_CACHE" not in os.environ:
            patch.setenv("BISECT_RECOMPUTE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def repo(tmp_path) -> GitRepo:
    """An empty repository named ``project``."""
    return GitRepo(tmp_path / "project")


@pytest.fixture(scope="session")
def simulator(tmp_path_factory):
    """One warm simulator for the session; its compiled code is kept in a folder of the session."""
    from bisect_recompute.probe.simulate.client import Simulator

    with Simulator(tmp_path_factory.mktemp("bytecode"), timeout=120) as warm:
        yield warm


@pytest.fixture(scope="session")
def simulate(simulator, tmp_path_factory):
    """``simulate(recipe)`` probes the installed Megatron Core (or the tree given) and expects a measurement."""
    folder = tmp_path_factory.mktemp("probes")

    def run(recipe, tree=None, expect="ok"):
        log = folder / f"{len(list(folder.iterdir()))}.log"
        empty = folder.with_name("no-commit")
        empty.mkdir(exist_ok=True)
        result = simulator.probe(recipe, tree or empty, "0" * 40, {}, log)
        assert result.status == expect, f"{result.stage}: {result.reason}\n{log.read_text()[-2000:]}"
        return result

    return run
