"""A front over the scripted backend, and the check that ends every test of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tickertape.testing.front import Front, front


class MakeFront(Protocol):
    async def __call__(self, *plays: Mapping[str, Any], **settings: Any) -> Front: ...


@pytest.fixture
async def make_front(tmp_path: Path) -> AsyncIterator[MakeFront]:
    """Starts fronts. After the test each must be idle, have leaked no block, and still give the known text."""
    made: list[Front] = []
    async with AsyncExitStack() as stack:

        async def make(*plays: Mapping[str, Any], **settings: Any) -> Front:
            started = await stack.enter_async_context(front(tmp_path / f"model{len(made)}", plays, **settings))
            made.append(started)
            return started

        yield make
        for each in made:
            await each.check()
