"""Cycles of waiting actors, found while they wait.

An actor that has waited for a while sends a probe to those whose answers it lacks. An actor that is
itself waiting hands the probe on to those that *it* waits for, with its name added. A probe that comes
back to where it started has gone round a cycle. Its edges were not seen at one moment, so one cycle proves
nothing: only when a second round finds the same waits has each of them lasted from one round to the next,
and all were there at once. (Chandy, Misra and Haas, "Distributed deadlock detection", 1983, call it edge
chasing.)

Waits with a timeout end by themselves, and concurrent endpoints and explicit ports can be answered while
their actor waits: they are no edges. Of a cycle's members the one with the smallest address raises.
"""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from typing import TYPE_CHECKING, Any

from roost.actor._timers import at
from roost.errors import DeadlockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.actor._future import Source

AFTER_S = 0.3
"""A wait shorter than this is never probed for."""
_EVERY_S = 0.5
_LONGEST = 256

Address = tuple[int, int, int]
Step = tuple[Address, str, int]

_numbers = itertools.count(1)


class Wait:
    """One wait of one actor, from when it has lasted for `AFTER_S` to its end."""

    def __init__(self, runner: Any, source: Source, on_deadlock: Callable[[DeadlockError], object]) -> None:
        self.number = next(_numbers)
        self._runner = runner
        self._source = source
        self._on_deadlock = on_deadlock
        self._cycle: list[Step] | None = None
        self._ended = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begins to look for cycles through this wait."""
        self._runner.waits[self.number] = self
        self._again()

    def end(self) -> None:
        """The wait is over."""
        self._ended = True
        self._runner.waits.pop(self.number, None)

    def _again(self) -> None:
        if self._ended:
            return
        try:
            self.hand_on(self._runner.address, [])
        finally:
            at(time.monotonic() + _EVERY_S, self._again)

    def hand_on(self, origin: Address, path: list[Step]) -> None:
        """Sends a probe to everyone that this wait is for."""
        runner = self._runner
        path = [*path, (runner.address, runner.label, self.number)]
        for mesh, rank, box in self._source.awaited():
            target = runner.node.target(0, [(mesh, rank)])
            runner.node.cast(target, b"probe", pickle.dumps((origin, path, box), 5))

    def came_round(self, path: list[Step]) -> None:
        """A probe that this wait has sent is back."""
        with self._lock:
            first, self._cycle = self._cycle, path
        if first != path or self._ended or min(path)[0] != self._runner.address:
            return
        names = " -> ".join([*(name for _, name, _ in path), path[0][1]])
        self._on_deadlock(
            DeadlockError(
                f"actors wait for each other and none can go on: {names}. Let one of them answer before it "
                "waits, make an endpoint concurrent, or give a wait a timeout"
            )
        )


def probed(runners: dict[int, Any], me: tuple[int, int], body: bytes) -> None:
    """A probe has arrived at a process."""
    origin, path, box = pickle.loads(body)
    runner = runners.get(box)
    if runner is None or len(path) > _LONGEST:
        return
    address = (*me, box)
    if address == origin:
        wait = runner.waits.get(path[0][2])
        if wait is not None:
            wait.came_round(path)
        return
    if any(step[0] == address for step in path):
        return  # a cycle that does not pass through where the probe began; its members look for it themselves
    for wait in list(runner.waits.values()):
        wait.hand_on(origin, path)
