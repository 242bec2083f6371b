from __future__ import annotations

import pytest
from gitrepo import GitRepo
from hypothesis import settings

# A busy machine is no failure.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


@pytest.fixture
def repo(tmp_path) -> GitRepo:
    """An empty repository named ``project``."""
    return GitRepo(tmp_path / "project")
