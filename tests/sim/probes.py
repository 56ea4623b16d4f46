"""What the kubelet of a node does to its pods: starts them, probes them, kills and restarts them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from tests.sim.nodes import Node
from tests.sim.pods import Pod

__all__ = ["Deployment", "Event", "Kubelet", "Probe", "Probes"]

What = Literal["started", "ready", "unready", "killed", "exited"]

_POLL_S: Final = 0.05


class Probe(Struct, frozen=True):
    """An HTTP probe, with the defaults of Kubernetes."""

    path: str
    period_s: float = 10.0
    timeout_s: float = 1.0
    failure_threshold: int = 3
    initial_delay_s: float = 0.0

    @property
    def budget_s(self) -> float:
        return self.initial_delay_s + self.period_s * self.failure_threshold


class Probes(Struct, frozen=True):
    """Liveness and readiness begin when startup has succeeded. `backoff_s` is the first pause before a restart, doubled
    each time up to `max_backoff_s`; the first restart comes at once. `grace_s` passes between SIGTERM and SIGKILL."""

    startup: Probe
    liveness: Probe
    readiness: Probe
    backoff_s: float = 10.0
    max_backoff_s: float = 300.0
    grace_s: float = 30.0


class Event(Struct, frozen=True):
    """`at_s` is of `time.monotonic`. "killed" is a probe's doing, "exited" the pod's own."""

    at_s: float
    pod: str
    what: What


class Kubelet:
    """Runs on a thread of its own, on the node's network. `stop` kills the pods, and raises what went wrong here."""

    def __init__(self, node: Node, pods: Sequence[Pod], probes: Probes) -> None:
        self._node = node
        self._pods = pods
        self._probes = probes
        self._events: list[Event] = []
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._main, name=f"kubelet of {node.name}")

    @property
    def events(self) -> Sequence[Event]:
        return tuple(self._events)

    def start(self) -> None:
        self._thread.start()
        self._running.wait()

    def stop(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _main(self) -> None:
        try:
            self._node.enter()
            asyncio.run(self._keep_all())
        except Exception as error:
            self._failure = error
        finally:
            self._running.set()

    async def _keep_all(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running.set()
        tasks = [asyncio.create_task(self._keep(pod)) for pod in self._pods]
        tasks.append(asyncio.create_task(self._stop_called()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self._failure = next((each for each in ended if isinstance(each, Exception)), None)
            for pod in self._pods:
                pod.kill()

    async def _stop_called(self) -> None:
        await self._stopping.wait()

    async def _keep(self, pod: Pod) -> None:
        num_restarts = 0
        while True:
            pod.start()
            self._note(pod, "started")
            killed = await self._watch(pod)
            if killed:
                await self._end(pod)
            self._note(pod, "killed" if killed else "exited")
            if num_restarts:
                await asyncio.sleep(min(self._probes.backoff_s * 2 ** (num_restarts - 1), self._probes.max_backoff_s))
            num_restarts += 1

    async def _watch(self, pod: Pod) -> bool:
        """Whether a probe wants it killed; False when it has exited."""
        started = asyncio.Event()
        exits = asyncio.create_task(self._until_exit(pod))
        fails = asyncio.create_task(self._until_failing(pod, started))
        follows = asyncio.create_task(self._follow_readiness(pod, started))
        tasks = (exits, fails, follows)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return not exits.done()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_exit(self, pod: Pod) -> None:
        gone, process = asyncio.Event(), os.pidfd_open(pod.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(process, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(process)
            os.close(process)

    async def _until_failing(self, pod: Pod, started: asyncio.Event) -> None:
        startup, liveness = self._probes.startup, self._probes.liveness
        await asyncio.sleep(startup.initial_delay_s)
        num_failures = 0
        while not await _succeeds(pod, startup):
            num_failures += 1
            if num_failures == startup.failure_threshold:
                return
            await asyncio.sleep(startup.period_s)
        started.set()
        await asyncio.sleep(liveness.initial_delay_s)
        num_failures = 0
        while num_failures < liveness.failure_threshold:
            num_failures = 0 if await _succeeds(pod, liveness) else num_failures + 1
            await asyncio.sleep(liveness.period_s)

    async def _follow_readiness(self, pod: Pod, started: asyncio.Event) -> None:
        """Never ends by itself."""
        await started.wait()
        ready = False
        try:
            while True:
                if await _succeeds(pod, self._probes.readiness) != ready:
                    ready = not ready
                    self._note(pod, "ready" if ready else "unready")
                await asyncio.sleep(self._probes.readiness.period_s)
        finally:
            if ready and not self._stopping.is_set():
                self._note(pod, "unready")

    async def _end(self, pod: Pod) -> None:
        pod.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._until_exit(pod), self._probes.grace_s)
        pod.kill()

    def _note(self, pod: Pod, what: What) -> None:
        self._events.append(Event(time.monotonic(), pod.name, what))


class Deployment:
    """Pods under the kubelets of their nodes, all started at once; a context manager that leaves none."""

    def __init__(self, pods: Sequence[Pod], probes: Probes) -> None:
        nodes = {pod.node.name: pod.node for pod in pods}
        self.pods = pods
        self._kubelets = [Kubelet(node, [pod for pod in pods if pod.node is node], probes) for node in nodes.values()]
        self.started_s = 0.0

    def __enter__(self) -> Deployment:
        self.started_s = time.monotonic()
        for kubelet in self._kubelets:
            kubelet.start()
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for kubelet in self._kubelets:
                stack.callback(kubelet.stop)

    @property
    def events(self) -> list[Event]:
        """In order of time."""
        return sorted((event for kubelet in self._kubelets for event in kubelet.events), key=lambda event: event.at_s)

    def count(self, what: What) -> int:
        return Counter(event.what for event in self.events)[what]

    @property
    def num_restarts(self) -> int:
        return self.count("started") - len({event.pod for event in self.events})

    @property
    def num_ready(self) -> int:
        return self.count("ready") - self.count("unready")

    def wait_ready(self, timeout_s: float) -> float | None:
        """Seconds from the start until all were ready, None when that did not come."""
        deadline = time.monotonic() + timeout_s
        while self.num_ready < len(self.pods):
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)
        return max(event.at_s for event in self.events if event.what == "ready") - self.started_s


async def _succeeds(pod: Pod, probe: Probe) -> bool:
    """Whether the answer is 2xx or 3xx, within the probe's time."""
    where = urlsplit(pod.url)
    writer = None
    try:
        async with asyncio.timeout(probe.timeout_s):
            reader, writer = await asyncio.open_connection(where.hostname, where.port)
            writer.write(f"GET {probe.path} HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: close\r\n\r\n".encode())
            status = (await reader.readline()).split()
            return len(status) > 1 and status[1][:1] in (b"2", b"3")
    except (OSError, TimeoutError):
        return False
    finally:
        if writer is not None:
            writer.close()
