"""The front's side of the fetcher: asks it for the models and waits for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from tickertape.children import Child, describe_exit
from tickertape.core.backend import ModelSpec
from tickertape.core.errors import StartupError
from tickertape.core.messages import Fetch, FromFetcher, Loading, Resolved, StoppedEarly
from tickertape.core.ports import Progress
from tickertape.link import AsyncLink

__all__ = ["fetch_models"]


async def fetch_models(
    child: Child, fetch: Fetch, report: Callable[[str, Progress], None]
) -> AsyncGenerator[ModelSpec]:
    """The models in the order asked, each as soon as it lies in the store. `report` gets the model's name as asked.
    Raises StartupError with the fetcher's last word. Closing the iterator ends the fetcher."""
    inbox: asyncio.Queue[FromFetcher | Exception | None] = asyncio.Queue()

    def take(messages: list[FromFetcher]) -> None:
        for message in messages:
            inbox.put_nowait(message)

    link: AsyncLink[FromFetcher] = AsyncLink(child.socket, FromFetcher, on_messages=take, on_close=inbox.put_nowait)
    try:
        link.send(fetch)
        for name, model in fetch.models:
            while not isinstance(message := await inbox.get(), Resolved):
                if isinstance(message, Loading):
                    report(name or _file_name(model), message.progress)
                elif message is None or isinstance(message, Exception):
                    raise StartupError(await _fate(child, message), code="FetchFailed")
                elif isinstance(message, StoppedEarly):
                    raise message.failure.error()
            yield message.spec
    finally:
        link.close()
        await asyncio.to_thread(child.process.wait)


def _file_name(model: str | None) -> str:
    return (model or "demo model").rstrip("/").rpartition("/")[2]


async def _fate(child: Child, error: Exception | None) -> str:
    if error is not None:
        child.kill()
        return f"the fetcher's link broke: {error}"
    return f"the fetcher {describe_exit(await asyncio.to_thread(child.process.wait))}"
