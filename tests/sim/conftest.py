"""Small models at a fake origin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sim.files import Commit, read_commit
from tests.sim.models import write_sharded
from tests.sim.origin import Origin


@pytest.fixture(scope="session")
def commit(tmp_path_factory: pytest.TempPathFactory) -> Commit:
    """Of a model of 16 shards of 64 KiB."""
    return read_commit(write_sharded(tmp_path_factory.mktemp("models") / "tiny", 1 << 20))


@pytest.fixture
def origin(commit: Commit) -> Iterator[Origin]:
    with Origin() as origin:
        origin.add("org/tiny", commit)
        yield origin
