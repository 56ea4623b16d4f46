"""Records that are kept at the other end of a network, in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from tests.sim.clockwork import Process, World
from tickertape.weights.slots.register import RegisterFault

__all__ = ["Cell", "Network", "Remote"]

T = TypeVar("T")
Record = TypeVar("Record")


class Network(Struct):
    """`loss` is the share of requests that get lost, or whose answers do: such a one may have been carried out, or
    will be. `on_write` is called, once, when somebody's write was carried out and the answer is under way."""

    delay_s: float = 0.02
    loss: float = 0.0
    down: bool = False
    on_write: Callable[[Process], None] | None = None

    @property
    def well(self) -> bool:
        return self.delay_s <= 0.02 and not self.loss and not self.down


class Cell(Generic[Record]):
    """A record as its server keeps it, and all that it has been, with the true times."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.history: list[tuple[float, Record]] = [(0.0, record)]

    @property
    def version(self) -> str:
        return str(len(self.history))

    def swap(self, record: Record, version: str, now: float) -> str | None:
        if version != self.version:
            return None
        self.record = record
        self.history.append((now, record))
        return self.version


class Remote(Generic[Record]):
    """A `Register`, as a process has it."""

    def __init__(self, cell: Cell[Record], world: World, network: Network, timeout_s: float, process: Process) -> None:
        self._cell, self._world, self._network = cell, world, network
        self._timeout_s, self._process = timeout_s, process

    def read(self) -> tuple[Record, str]:
        return self._ask(lambda: (self._cell.record, self._cell.version))

    def compare_and_swap(self, record: Record, version: str) -> str | None:
        return self._ask(lambda: self._swap(record, version))

    def _swap(self, record: Record, version: str) -> str | None:
        written = self._cell.swap(record, version, self._world.now)
        on_write = self._network.on_write
        if written is not None and on_write is not None:
            self._network.on_write = None
            on_write(self._process)
        return written

    def _ask(self, carry_out: Callable[[], T]) -> T:
        world, network, random = self._world, self._network, self._world.random
        out_s, back_s = (network.delay_s * 2 * random.random() for _ in range(2))
        lost = random.random() < network.loss
        answers: list[T] = []

        if not network.down and not (lost and random.random() < 0.5):
            # Once sent it arrives, whatever becomes of the sender; one whose answer is lost, maybe after he gave up.
            world.at(world.now + out_s + (10 * random.random() if lost else 0.0), lambda: answers.append(carry_out()))
        in_time = not network.down and not lost and out_s + back_s < self._timeout_s
        world.park(out_s + back_s if in_time else self._timeout_s, self._process)
        if not in_time:
            raise RegisterFault("no answer")
        return answers[0]
