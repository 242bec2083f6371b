from __future__ import annotations

import pytest
from gitrepo import GitRepo


@pytest.fixture
def repo(tmp_path) -> GitRepo:
    """An empty repository named ``project``."""
    return GitRepo(tmp_path / "project")
